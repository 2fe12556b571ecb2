package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/cmd/berth/rollout/rollouttest"
)

// actAsAgent makes the test binary behave like "sandboxd serve".
const actAsAgent = "BERTH_TEST_ACT_AS_AGENT"

func TestMain(m *testing.M) {
	if os.Getenv(actAsAgent) != "" {
		os.Exit(serveAgent(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// serveAgent serves the stand-in container until it is told to stop.
func serveAgent(args []string) int {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	listen := flags.String("listen", "", "")
	slots := flags.Int("slots", 0, "")
	dir := flags.String("data-dir", "", "")
	tokenFile := flags.String("token-file", "", "")
	refuse := flags.Bool("refuse", false, "do not start")
	status := flags.Int("status", 0, "end with this status, after a long log")
	_ = flags.Parse(args[1:])
	if *refuse {
		_, _ = io.WriteString(os.Stderr, "isolation: wanted ns, got landlock\n")
		return 78
	}
	token, err := os.ReadFile(*tokenFile)
	if err != nil {
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	server := http.Server{Addr: *listen, Handler: rollouttest.Container{Dir: *dir, Slots: *slots, Token: string(token)}}
	go func() { _ = server.ListenAndServe() }()
	<-ctx.Done()
	if *status != 0 {
		fmt.Fprintf(os.Stderr, "first line\n%s\ntold to end with %d\n", strings.Repeat("x", 2*logTail), *status)
	}
	return *status
}

// runMain runs the program and returns its status and what it printed.
func runMain(ctx context.Context, args ...string) (int, string, string) {
	var stdout, stderr bytes.Buffer
	status := Main(ctx, args, &stdout, &stderr)
	return status, stdout.String(), stderr.String()
}

// standIn is the path of a binary that serves the stand-in container.
func standIn(t *testing.T) string {
	t.Helper()
	t.Setenv(actAsAgent, "1")
	t.Setenv("TMPDIR", t.TempDir())
	me, err := os.Executable()
	require.NoError(t, err)
	return me
}

func TestDemoPlaysARolloutAndLeavesNothing(t *testing.T) {
	binary := standIn(t)
	status, stdout, stderr := runMain(t.Context(), "demo", "--agent", binary, "--slots", "4", "--trajectories", "9")
	require.Zero(t, status, stderr)
	assert.Contains(t, stdout, "isolation not reported")
	assert.Contains(t, stdout, "[9/9] trajectory ")
	assert.Regexp(t, `(?m)^9 +4 +90 +[0-9.]+ ms +[0-9.]+ ms +[0-9.]+ ms +0$`, stdout)
	left, err := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestDemoSaysWhyTheAgentDoesNotStart(t *testing.T) {
	binary := standIn(t)
	status, _, stderr := runMain(t.Context(), "demo", "--agent", binary, "--", "--refuse")
	assert.Equal(t, 1, status)
	assert.Contains(t, stderr, "ended before it was ready")
	assert.Contains(t, stderr, "exit status 78")
	assert.Contains(t, stderr, "wanted ns, got landlock")
}

func TestDemoWithoutAnAgentIsAnError(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	status, _, stderr := runMain(t.Context(), "demo", "--agent", "/does/not/exist")
	assert.Equal(t, 1, status)
	assert.Contains(t, stderr, "start agent")
}

func TestDemoThatIsInterruptedStopsItsAgent(t *testing.T) {
	binary := standIn(t)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, cancel)
	status, _, _ := runMain(ctx, "demo", "--agent", binary, "--trajectories", "5000")
	assert.Equal(t, 1, status)
	left, err := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestWrongUsageEndsWithStatus2(t *testing.T) {
	for _, args := range [][]string{
		{}, {"dance"}, {"demo", "--unknown"}, {"demo", "--slots", "0"}, {"demo", "--trajectories", "-1"},
	} {
		status, stdout, stderr := runMain(t.Context(), args...)
		assert.Equal(t, 2, status, "%q", args)
		assert.Empty(t, stdout, "%q", args)
		assert.NotEmpty(t, stderr, "%q", args)
	}
}

func TestHelpAndVersionEndWithStatus0(t *testing.T) {
	for _, args := range [][]string{{"help"}, {"--help"}, {"version"}, {"demo", "--help"}} {
		status, stdout, stderr := runMain(t.Context(), args...)
		assert.Zero(t, status, "%q", args)
		assert.Contains(t, strings.ToLower(stdout+stderr), "berth", "%q", args)
	}
}
