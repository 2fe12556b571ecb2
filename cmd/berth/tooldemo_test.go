package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/cmd/berth/tooldemo"
	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

func TestToolDemoRunsItsToolsAndLeavesNothing(t *testing.T) {
	need.Program(t, "pip")
	need.Program(t, "npm")
	binary, agent, dir := buildOrchestrator(t), sandboxtest.Agent(t), sandboxtest.DataDir(t)
	t.Setenv("TMPDIR", dir)
	status, stdout, stderr := runMain(t.Context(), "tool", "demo", "--agent", agent, "--orchestrator", binary, "--", "--isolation-require=none")
	require.Zero(t, status, "%s%s", stdout, stderr)
	assert.Contains(t, stdout, "[5/5] notice, ")
	assert.Regexp(t, `(?m)^order +python +berth-demo-prices==1\.0 +[0-9.]+ ms +[0-9.]+ ms +[0-9.]+ ms +requirements, state, secrets +passed$`, stdout)
	assert.Regexp(t, `(?m)^notice +typescript +berth-demo-words@1\.0\.0 +[0-9.]+ ms +[0-9.]+ ms +[0-9.]+ ms +again: nothing carried over +passed$`, stdout)
	entries, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	assert.Empty(t, entries)
	assert.Empty(t, started(t, dir))
}

func TestToolDemoEndsWithAFailureWhenARunFails(t *testing.T) {
	binary, agent, dir := buildOrchestrator(t), sandboxtest.Agent(t), sandboxtest.DataDir(t)
	t.Setenv("TMPDIR", dir)
	status, stdout, stderr := runMain(t.Context(), "tool", "demo", "--agent", agent, "--orchestrator", binary, "--language", "python",
		"--", "--isolation-require=none", "--env", "PATH=/nowhere")
	assert.Equal(t, 1, status)
	assert.Contains(t, stderr, "3 of 3 runs failed")
	assert.Contains(t, stdout, "find python3: no such file or directory")
	status, _, stderr = runMain(t.Context(), "tool", "demo", "--agent", agent, "--orchestrator", "/does/not/exist")
	assert.Equal(t, 1, status)
	assert.Contains(t, stderr, "start container")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	status, _, _ = runMain(ctx, "tool", "demo", "--agent", agent, "--orchestrator", binary)
	assert.NotZero(t, status)
	entries, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	assert.Empty(t, entries)
	assert.Empty(t, started(t, dir))
}

func TestToolDemoRefusesWhatItWouldNotHeed(t *testing.T) {
	for _, args := range [][]string{
		{"--slots", "0"}, {"--language", "ruby"}, {"--language", ""}, {"--url", "http://127.0.0.1:1"}, {"--unknown"}, {"order"},
	} {
		status, stdout, stderr := runMain(t.Context(), append([]string{"tool", "demo"}, args...)...)
		assert.Equal(t, exitUsage, status, "%q: %s", args, stderr)
		assert.Empty(t, stdout)
	}
}

func TestASecretInAFileOfThePoolIsFound(t *testing.T) {
	dir, secrets := t.TempDir(), tooldemo.NewSecrets()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "logs"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "logs", "a"), []byte("nothing"), 0o600))
	require.NoError(t, secretsOnDisk(dir, secrets))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "logs", "b"), []byte("value="+secrets.Token+"\n"), 0o600))
	err := secretsOnDisk(dir, secrets)
	require.ErrorContains(t, err, "logs/b shows a secret")
	assert.NotContains(t, err.Error(), secrets.Token)
	require.NoError(t, secretsOnDisk(filepath.Join(dir, "none"), secrets))
}
