package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots/sandbox/sandboxtest"
)

// envProgram has the test's own binary be the orchestrator.
const envProgram = "BERTH_TEST_PROGRAM"

// patience is how long anything may take before a test gives it up.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(envProgram) != "" {
		os.Exit(Main(context.Background(), os.Args[1:], nil, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// serving runs "orchestrator serve" in a process of its own until it ends or,
// when it serves, is told to. It may open so many descriptors; 0: any number.
func serving(t *testing.T, descriptors int, args ...string) (status int, log string) {
	t.Helper()
	me, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	limit := "true"
	if descriptors > 0 {
		limit = fmt.Sprintf("ulimit -n %d", descriptors)
	}
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", limit + ` && exec "$0" "$@"`, me, "serve", "--listen", "127.0.0.1:0"}, args...)...)
	cmd.Env = append(os.Environ(), envProgram+"=1")
	var text ending
	text.on = "ready"
	text.end = func() { _ = cmd.Process.Signal(syscall.SIGTERM) } // it may have ended
	cmd.Stdout, cmd.Stderr = &text, &text
	err = cmd.Run()
	require.NoError(t, ctx.Err(), "it does not end: %s", &text)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return cmd.ProcessState.ExitCode(), text.String()
}

// ending is a log that ends its writer once it says a word.
type ending struct {
	mu  sync.Mutex
	b   bytes.Buffer
	on  string
	end func()
}

func (e *ending) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.b.Write(p)
	if strings.Contains(e.b.String(), e.on) {
		e.end()
	}
	return len(p), nil
}

func (e *ending) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.b.String()
}

func TestIsolationThatTheMachineDoesNotGiveEndsTheStart(t *testing.T) {
	agent := sandboxtest.Agent(t)
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"a level":         {[]string{"--isolation-require", "landlock"}, "isolation landlock is required, this machine gives none; axis fs: wanted landlock, got shared"},
		"the default":     {nil, "isolation landlock is required"},
		"an axis":         {[]string{"--isolation-require", "none,kill=uid"}, "axis kill: wanted uid, got "},
		"no network":      {[]string{"--isolation-require", "none", "--network", "off"}, "axis net: wanted loopback-only, got host"},
		"of one of many":  {[]string{"--isolation-require", "none", "--config", "templates"}, "no container of strict can start: isolation ns is required"},
		"wrong arguments": {[]string{"--sandboxd-arg", "--dance"}, "flag provided but not defined: -dance"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := sandboxtest.DataDir(t)
			args := c.args
			for i, arg := range args {
				if arg == "templates" {
					args[i] = filepath.Join(dir, arg)
					require.NoError(t, os.WriteFile(args[i], []byte("templates: [{template: strict, isolation-require: ns}]"), 0o600))
				}
			}
			status, log := serving(t, 0, append([]string{
				"--sandboxd", agent, "--data-dir", dir, "--sandboxd-arg", "--isolation-attempt", "--sandboxd-arg", "none",
			}, args...)...)
			assert.Equal(t, exitConfig, status, "%s", log)
			assert.Contains(t, log, c.want)
			if name != "wrong arguments" {
				assert.Contains(t, log, "mend: ")
			}
			assert.NotContains(t, log, "start container", "nothing was tried in vain")
			left, err := os.ReadDir(filepath.Join(dir, "containers"))
			require.NoError(t, err)
			assert.Empty(t, left)
		})
	}
}

func TestAProgramThatIsNoSandboxdEndsTheStart(t *testing.T) {
	status, log := serving(t, 0, "--sandboxd", "/bin/echo", "--data-dir", sandboxtest.DataDir(t))
	assert.Equal(t, exitConfig, status, "%s", log)
	assert.Contains(t, log, "/bin/echo is no sandboxd")
}

// TestAWantThatMayPassIsNoConfiguration gives the program fewer descriptors
// than it needs: wherever they run out, somebody may try again.
func TestAWantThatMayPassIsNoConfiguration(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	failed := map[string]bool{}
	for descriptors := 5; ; descriptors++ {
		require.Less(t, descriptors, 64, "it never had enough")
		status, log := serving(t, descriptors, "--sandboxd", sandboxtest.Agent(t), "--data-dir", sandboxtest.DataDir(t),
			"--containers", "0", "--token-file", token, "--isolation-require", "none")
		if status == exitOK {
			break
		}
		if strings.Contains(log, "runtime.doInit") {
			continue // not even a Go program begins with so few
		}
		assert.Equal(t, exitFailed, status, "with %d descriptors: %s", descriptors, log)
		for _, where := range []string{"read token", "listen", "open local backend"} {
			failed[where] = failed[where] || strings.Contains(log, where+": ")
		}
	}
	assert.True(t, failed["open local backend"], "%v", failed)
}
