package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/cmd/berth/rollout/rollouttest"
)

func TestMain(m *testing.M) { rollouttest.Main(m, programs.remove) }

// runMain runs the program and returns its status and what it printed.
func runMain(ctx context.Context, args ...string) (int, string, string) {
	var stdout, stderr bytes.Buffer
	status := run(ctx, args, &app{in: strings.NewReader(""), out: &stdout, err: &stderr, getenv: os.Getenv})
	return status, stdout.String(), stderr.String()
}

func TestDemoPlaysARolloutAndLeavesNothing(t *testing.T) {
	binary := rollouttest.Binary(t)
	status, stdout, stderr := runMain(t.Context(), "demo", "--containers", "0", "--agent", binary, "--slots", "4", "--trajectories", "9")
	require.Zero(t, status, stderr)
	assert.Contains(t, stdout, "isolation not reported")
	assert.Contains(t, stdout, "[9/9] trajectory ")
	assert.Regexp(t, `(?m)^9 +4 +90 +[0-9.]+ ms +[0-9.]+ ms +[0-9.]+ ms +0$`, stdout)
	left, err := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestDemoSaysWhyTheAgentDoesNotStart(t *testing.T) {
	binary := rollouttest.Binary(t)
	status, _, stderr := runMain(t.Context(), "demo", "--containers", "0", "--agent", binary, "--", "--refuse")
	assert.Equal(t, 1, status)
	assert.Contains(t, stderr, "ended before it was ready")
	assert.Contains(t, stderr, "exit status 78")
	assert.Contains(t, stderr, "wanted ns, got landlock")
}

func TestDemoWithoutAnAgentIsAnError(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	status, _, stderr := runMain(t.Context(), "demo", "--containers", "0", "--agent", "/does/not/exist")
	assert.Equal(t, 1, status)
	assert.Contains(t, stderr, "start container")
}

func TestDemoThatIsInterruptedStopsItsAgent(t *testing.T) {
	binary := rollouttest.Binary(t)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, cancel)
	status, _, _ := runMain(ctx, "demo", "--containers", "0", "--agent", binary, "--trajectories", "5000")
	assert.Equal(t, exitInterrupted, status)
	left, err := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestWrongUsageEndsWithStatus2(t *testing.T) {
	for _, args := range [][]string{
		{},
		{"dance"},
		{"demo", "--unknown"},
		{"demo", "--slots", "0"},
		{"demo", "--containers", "-1"},
		{"demo", "--trajectories", "-1"},
		{"bench", "--runs", "0"},
		{"bench", "--only", "("},
		{"bench", "--unknown"},
		{"exec", "--timeout", "0", "true"},
		{"exec", "--timeout", "-1s", "true"},
		{"shell", "--timeout", "0"},
	} {
		status, stdout, stderr := runMain(t.Context(), args...)
		assert.Equal(t, 2, status, "%q", args)
		assert.Empty(t, stdout, "%q", args)
		assert.NotEmpty(t, stderr, "%q", args)
	}
}

func TestHelpAndVersionEndWithStatus0(t *testing.T) {
	for _, args := range [][]string{{"help"}, {"--help"}, {"version"}, {"demo", "--help"}, {"bench", "--help"}} {
		status, stdout, stderr := runMain(t.Context(), args...)
		assert.Zero(t, status, "%q", args)
		assert.Contains(t, strings.ToLower(stdout+stderr), "berth", "%q", args)
	}
}

func TestBenchPrintsItsTableAlsoWhenARowIsMissing(t *testing.T) {
	me, err := os.Executable()
	require.NoError(t, err)
	status, stdout, stderr := runMain(t.Context(), "bench", "--agent", me, "--only", "^static binary")
	assert.Equal(t, 1, status)
	assert.Contains(t, stdout, "| static binary, stripped |")
	assert.Contains(t, stdout, "| not measured |")
	assert.Contains(t, stderr, "the binary is not")
}

func TestBenchRefusesWhatItWouldNotHeed(t *testing.T) {
	t.Setenv("BERTH_URL", "http://127.0.0.1:1") // it does not count
	for _, flag := range [][]string{
		{"--calls", "5"}, {"--workers", "2"}, {"--command", "id"}, {"--protocol", "slots"}, {"--timeout", "1s"}, {"--token-file", "x"}, {"--json"},
	} {
		status, stdout, stderr := runMain(t.Context(), append([]string{"bench", "--only", "nothing is called so"}, flag...)...)
		assert.Equal(t, exitUsage, status, "%q: %s", flag, stderr)
		assert.Contains(t, stderr, flag[0]+" is about a server under load: name the server by --url (BERTH_URL does not count here)")
		assert.Empty(t, stdout)
	}
	for _, args := range [][]string{
		{"--agent", "x"}, {"--orchestrator", "x"}, {"--runs", "5"}, {"--executions", "5"}, {"--starts", "5"}, {"--only", "reset"}, {"--", "--slots", "2"},
	} {
		status, _, stderr := runMain(t.Context(), append([]string{"bench", "--url", "http://127.0.0.1:1"}, args...)...)
		assert.Equal(t, exitUsage, status, "%q: %s", args, stderr)
		assert.Contains(t, stderr, "leave out either it or --url", "%q", args)
	}
}
