package docs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots/need"
)

var nomadScripts = regexp.MustCompile("(?m)^```sh nomad\n((?:[^`].*\n|\n)*)```\n(?:```text\n((?:[^`].*\n|\n)*)```\n)?")

// The guide's blocks are one session: each goes on where the last one ended.
func TestNomadGuideDoesWhatItSays(t *testing.T) {
	_, err := exec.LookPath("nomad")
	need.Facility(t, "nomad", err)
	if os.Geteuid() != 0 {
		need.Facility(t, "root", errors.New("nomad's clients run tasks as root only"))
	}
	text, err := os.ReadFile("nomad.md")
	require.NoError(t, err)
	blocks := nomadScripts.FindAllStringSubmatch(string(text), -1)
	require.GreaterOrEqual(t, len(blocks), 8)
	var script strings.Builder
	script.WriteString("trap 'kill $(jobs -p); wait' EXIT\n")
	for i, b := range blocks {
		fmt.Fprintf(&script, "%s\necho '=== block %d'\n", b[1], i)
	}
	out := nomadSession(t, script.String())
	parts := regexp.MustCompile(`(?m)^=== block \d+\n`).Split(out, -1)
	require.Len(t, parts, len(blocks)+1, "%s", out)
	for i, b := range blocks {
		said := spaces.ReplaceAllString(parts[i], " ")
		for _, line := range strings.FieldsFunc(b[2], func(r rune) bool { return r == '\n' }) {
			assert.Contains(t, said, spaces.ReplaceAllString(line, " "), "block %d:\n%s", i, b[1])
		}
	}
}

// nomadSession plays the script with ports and places of its own. Whatever it
// started is ended.
func nomadSession(t *testing.T, script string) string {
	t.Helper()
	// A socket's path has room for 107 bytes, and Nomad puts most of them below it.
	dir, err := os.MkdirTemp("/tmp", "b") //nolint:usetesting // see above
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o711))
	t.Cleanup(func() { _ = exec.Command("rm", "-rf", "--one-file-system", dir).Run() }) // what is mounted there stays
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
	defer cancel()
	for _, port := range []string{"4646", "4647", "4648"} {
		_, own, _ := strings.Cut(freeAddress(t), ":")
		script = strings.ReplaceAll(script, port, own)
	}
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir, cmd.Env = root, []string{"TMPDIR=" + dir, "XDG_CONFIG_HOME=" + dir}
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); !strings.HasPrefix(name, "NOMAD_") && !strings.HasPrefix(name, "BERTH_") && name != "TMPDIR" {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	out, err := cmd.CombinedOutput()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what is left of it
	if err != nil {
		log, _ := exec.Command("sh", "-c", "tail -n 30 "+dir+"/*/nomad.log").CombinedOutput()
		t.Logf("nomad's log ends so:\n%s", log)
	}
	require.NoError(t, err, "%s", out)
	return string(out)
}
