package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/cmd/berth/container"
	"berth/slots/sandbox/sandboxtest"
)

// buildOrchestrator builds the orchestrator.
func buildOrchestrator(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("real containers take seconds to start")
	}
	path := filepath.Join(t.TempDir(), "orchestrator")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "berth/cmd/orchestrator").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// started are the processes whose arguments name the directory.
func started(t *testing.T, dir string) (found []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, name := range all {
		if text, err := os.ReadFile(name); err == nil && strings.Contains(string(text), dir) {
			found = append(found, string(text))
		}
	}
	return found
}

func TestDemoPlaysOnAPoolAndLeavesNothing(t *testing.T) {
	binary, agent, dir := buildOrchestrator(t), sandboxtest.Agent(t), sandboxtest.DataDir(t)
	t.Setenv("TMPDIR", dir)
	flags := []string{"demo", "--agent", agent, "--orchestrator", binary, "--slots", "2", "--trajectories", "12"}
	status, stdout, stderr := runMain(t.Context(), append(flags, "--", "--isolation-require=none")...)
	require.Zero(t, status, "%s%s", stdout, stderr)
	assert.Contains(t, stdout, "2 containers of 2 slots")
	assert.Contains(t, stdout, "[12/12] trajectory ")
	assert.Regexp(t, `(?m)^12 +4 +120 +[0-9.]+ ms +[0-9.]+ ms +[0-9.]+ ms +0$`, stdout)
	left := func() {
		entries, err := filepath.Glob(filepath.Join(dir, "*"))
		require.NoError(t, err)
		assert.Empty(t, entries)
		assert.Empty(t, started(t, dir))
	}
	left()

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	status, _, _ = runMain(ctx, flags...)
	assert.NotZero(t, status, "it was interrupted")
	left()
	status, _, stderr = runMain(t.Context(), "demo", "--agent", agent, "--orchestrator", "/does/not/exist")
	assert.Equal(t, 1, status)
	assert.Contains(t, stderr, "start container")
}

func TestDemoPlaysOnThePoolOfAServer(t *testing.T) {
	binary, agent, dir := buildOrchestrator(t), sandboxtest.Agent(t), sandboxtest.DataDir(t)
	t.Setenv("TMPDIR", dir)
	pool := container.Pool{Orchestrator: binary, Agent: agent, Containers: 1, Slots: 3, Args: []string{"--isolation-require=none"}}
	server, err := container.Start(t.Context(), pool.Config())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, server.Close()) })
	t.Setenv("BERTH_TOKEN", server.Token)
	status, stdout, stderr := runMain(t.Context(), "demo", "--url", server.URL, "--trajectories", "8")
	require.Zero(t, status, "%s%s", stdout, stderr)
	assert.Regexp(t, `(?m)^8 +3 +80 +[0-9.]+ ms +[0-9.]+ ms +[0-9.]+ ms +0$`, stdout)
	for _, more := range [][]string{{"--slots", "2"}, {"--containers", "2"}, {"--agent", agent}, {"--", "--slots=2"}} {
		status, _, stderr = runMain(t.Context(), append([]string{"demo", "--url", server.URL}, more...)...)
		assert.Equal(t, exitUsage, status)
		assert.Contains(t, stderr, "not go with --url")
	}
}
