package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
)

// floorCommand is what all ratios are against. It has no context, whose watcher
// would cost time, and the slots' locale: what bash loads for another one, or
// saves by having none, would show in every ratio.
func floorCommand() *exec.Cmd {
	cmd := exec.Command("bash", "-c", "true") //nolint:noctx // see above
	cmd.Env = floorEnvironment()
	return cmd
}

var floorEnvironment = sync.OnceValue(func() []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "LANG") || strings.HasPrefix(kv, "LC_")
	})
	return append(env, "LC_CTYPE=C.UTF-8")
})

// floor runs the command, capturing nothing.
func floor(context.Context) error {
	if err := floorCommand().Run(); err != nil {
		return fmt.Errorf("run bash -c true: %w", err)
	}
	return nil
}

// floorWithOutput is floor with both output streams captured, as every
// execution of a container has them.
func floorWithOutput(context.Context) error {
	cmd := floorCommand()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run bash -c true: %w", err)
	}
	return nil
}
