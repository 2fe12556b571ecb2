// Package sandboxtest gives tests the agent's binary: holders are it.
package sandboxtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

var agent struct {
	once sync.Once
	path string
	err  error
	out  []byte
}

// Agent builds the static agent binary, once per test process, and returns
// its path. BERTH_AGENT names one that is already built.
func Agent(t testing.TB) string {
	t.Helper()
	agent.once.Do(func() {
		if agent.path = os.Getenv("BERTH_AGENT"); agent.path != "" {
			return
		}
		dir, err := os.MkdirTemp("", "berth-agent-") //nolint:usetesting // it serves every test of the process
		if err != nil {
			agent.err = err
			return
		}
		// Slots run it under their own uid.
		agent.err = os.Chmod(dir, 0o755)
		agent.path = filepath.Join(dir, "sandboxd")
		build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", agent.path, "berth/cmd/sandboxd")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if agent.out, err = build.CombinedOutput(); err != nil {
			agent.err = err
		}
	})
	if agent.err != nil {
		t.Fatalf("build agent: %v\n%s", agent.err, agent.out)
	}
	return agent.path
}

// DataDir is a new directory that slots with a uid of their own can pass
// through, which t.TempDir is not.
func DataDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-test-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		rm := exec.Command("rm", "-rf", "--one-file-system", dir) //nolint:noctx // the test's context has ended by then
		_ = rm.Run()                                              // best effort
	})
	return dir
}
