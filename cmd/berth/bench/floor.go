package bench

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
)

// floor runs the command that all ratios are against, capturing nothing. The
// command has no context, whose watcher would cost time.
func floor(context.Context) error {
	if err := exec.Command("bash", "-c", "true").Run(); err != nil { //nolint:noctx // see above
		return fmt.Errorf("run bash -c true: %w", err)
	}
	return nil
}

// floorWithOutput is floor with both output streams captured, as every
// execution of a container has them.
func floorWithOutput(context.Context) error {
	cmd := exec.Command("bash", "-c", "true") //nolint:noctx // as in floor
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run bash -c true: %w", err)
	}
	return nil
}
