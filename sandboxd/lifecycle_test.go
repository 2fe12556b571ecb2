package sandboxd_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

var marks atomic.Int64

// mark is the argument of a sleep that no other test's process has.
func mark() string {
	return fmt.Sprintf("%d%03d", 100_000+os.Getpid()%100_000, marks.Add(1))
}

// survivors counts this machine's processes that sleep for the mark.
func survivors(mark string) int {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	n := 0
	for _, name := range lines {
		text, err := os.ReadFile(name)
		if err == nil && string(text) == "sleep\x00"+mark+"\x00" {
			n++
		}
	}
	return n
}

func gone(t *testing.T, mark string, within time.Duration) {
	t.Helper()
	assert.Eventually(t, func() bool { return survivors(mark) == 0 }, within, 10*time.Millisecond, "processes of a slot survive")
}

// lastEvent is the last event of a streamed call, which begins in the
// background and says so by the first chunk.
func lastEvent(t *testing.T, a *agenttest.Agent, c api.Call) (begun <-chan struct{}, last <-chan api.Event) {
	t.Helper()
	started, ended := make(chan struct{}), make(chan api.Event, 1)
	go func() { // ends with its stream
		var event api.Event
		open := true
		for e, err := range a.Stream(context.Background(), c) {
			if err != nil {
				break
			}
			if e.Chunk != nil && open {
				close(started)
				open = false
			}
			event = e
		}
		ended <- event
	}()
	return started, ended
}

func TestSIGTERMLetsRunningWorkEndAndTakesNoMore(t *testing.T) {
	t.Parallel()
	for _, level := range agenttest.Levels(t) {
		t.Run(level.String(), func(t *testing.T) {
			a := agenttest.Start(t, agenttest.Options{Level: level, Slots: 2})
			m := mark()
			r, err := a.Tool("slot_1", "bash", map[string]any{"background": true, "command": "setsid sleep " + m + " > /dev/null 2>&1 & echo"}, 10)
			require.NoError(t, err)
			require.True(t, r.Success, r.Error)
			a.Bash(t, "slot_1", "true", 10)
			require.Positive(t, survivors(m))
			begun, last := lastEvent(t, a, call("slot_0", "", "echo begun; sleep 1.5; echo ended", 20))
			<-begun
			require.NoError(t, syscall.Kill(a.PID, syscall.SIGTERM))
			require.Eventually(t, func() bool { h, err := a.Health(t.Context()); return err == nil && h.Status == "draining" }, 30*time.Second, 5*time.Millisecond)
			refused := execute(t, a, object{"tool": "bash", "args": object{"command": "echo new"}})
			assert.Equal(t, "draining", meta(t, refused)["error_kind"])
			assert.Equal(t, "never", meta(t, refused)["executed"])
			assert.Equal(t, true, meta(t, refused)["retryable"])
			assert.Equal(t, http.StatusServiceUnavailable, a.Post(t, "/v1/leases", object{"trajectory": "x"}).Status)
			assert.Equal(t, http.StatusServiceUnavailable, a.Send(t, http.MethodGet, "/readyz", "").Status)
			e := <-last
			require.NotNil(t, e.Result, "%+v", e)
			assert.Equal(t, "begun\nended", e.Result.Output)
			a.Stop(t)
			gone(t, m, 20*time.Second)
			assert.Contains(t, a.Log(), "draining")
		})
	}
}

func TestADrainThatTakesTooLongCutsWorkAndStillAnswers(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{Args: []string{"--drain-timeout", "500ms"}})
	m := mark()
	begun, last := lastEvent(t, a, call("slot_0", "", "echo begun; sleep "+m, 60))
	<-begun
	began := time.Now()
	require.NoError(t, syscall.Kill(a.PID, syscall.SIGTERM))
	e := <-last
	require.NotNil(t, e.Result, "the final event comes: %+v", e)
	assert.False(t, e.Result.Success)
	assert.Equal(t, slots.KindDraining, e.Result.Metadata.ErrorKind)
	assert.Equal(t, slots.ExecutedYes, e.Result.Metadata.Executed)
	a.Stop(t)
	assert.Less(t, time.Since(began), 20*time.Second)
	gone(t, m, 20*time.Second)
}

func TestKillingTheAgentLeavesNoProcess(t *testing.T) {
	t.Parallel()
	for _, level := range agenttest.Levels(t) {
		t.Run(level.String(), func(t *testing.T) {
			a := agenttest.Start(t, agenttest.Options{Level: level, Slots: 2})
			m := mark()
			begun, _ := lastEvent(t, a, call("slot_0", "", "(setsid sleep "+m+" &) ; (trap '' TERM HUP INT; sleep "+m+") & echo begun; sleep "+m, 60))
			<-begun
			require.Eventually(t, func() bool { return survivors(m) >= 2 }, 30*time.Second, 10*time.Millisecond)
			a.Kill()
			gone(t, m, 20*time.Second)
			b := agenttest.Start(t, agenttest.Options{Level: level, Slots: 2, Dir: a.Dir})
			assert.Equal(t, "fresh", b.Bash(t, "slot_0", "ls -A; echo fresh", 10).Output)
		})
	}
}

func TestTheAgentDoesNotWakeToWatchItself(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	_, err := os.ReadFile(fmt.Sprintf("/proc/%d/timerslack_ns", a.PID))
	need.Facility(t, "sys_nice", err)
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", a.PID))
	require.NoError(t, err)
	slack := map[string]int{}
	for _, thread := range threads {
		text, _ := os.ReadFile("/proc/" + filepath.Base(thread) + "/timerslack_ns")
		slack[string(text)]++
	}
	assert.Contains(t, slack, "1000000\n", "of the runtime's watching thread")
	assert.Equal(t, "50000", a.Bash(t, "slot_0", "cat /proc/self/timerslack_ns", 10).Output, "a command sleeps as precisely as anywhere")
}

func TestGenerationsOutliveTheAgent(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	var last uint64
	for range 3 {
		receipt, err := a.Reset(t.Context(), "slot_0", nil)
		require.NoError(t, err)
		assert.Greater(t, receipt.Generation, last)
		last = receipt.Generation
	}
	a.Stop(t)
	b := agenttest.Start(t, agenttest.Options{Level: a.Level, Slots: 2, Dir: a.Dir})
	receipt, err := b.Reset(t.Context(), "slot_0", nil)
	require.NoError(t, err)
	assert.Greater(t, receipt.Generation, last)
}

func TestEverySignalThatCanBeCaughtLeavesTheAgentServing(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{Args: []string{"--log-level", "trace"}})
	for s := syscall.Signal(1); s <= 64; s++ {
		if slices.Contains([]syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGTERM, syscall.SIGINT, 32, 33, 34}, s) {
			continue // what cannot be caught, what ends the agent, and the C library's own
		}
		require.NoError(t, syscall.Kill(a.PID, s))
		time.Sleep(5 * time.Millisecond)
		require.True(t, a.Alive(), "%v has ended the agent\n%s", s, a.Log())
		_, err := a.Health(t.Context())
		require.NoError(t, err, s)
	}
	assert.Equal(t, "works", a.Bash(t, "slot_0", "echo works", 10).Output)
	assert.NotContains(t, a.Log(), "SIGSEGV: segmentation violation")
}

// end runs an agent that is to refuse its start.
func end(t *testing.T, args ...string) (status int, output string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, sandboxtest.Agent(t), append([]string{"serve"}, args...)...).CombinedOutput()
	if err == nil {
		return 0, string(out)
	}
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	return exit.ExitCode(), string(out)
}

func TestAnAgentThatCannotServeSaysWhy(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	dir := filepath.Join(sandboxtest.DataDir(t), "d")
	token := func(text string, mode os.FileMode) string {
		name := filepath.Join(t.TempDir(), "token")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		require.NoError(t, os.Chmod(name, mode))
		return name
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { assert.NoError(t, taken.Close()) }()
	for _, c := range []struct {
		name   string
		args   []string
		status int
		text   string
	}{
		{"the data directory is in use", []string{"--listen", "127.0.0.1:0", "--data-dir", a.Dir}, 1, "another agent uses it"},
		{"the port is taken", []string{"--listen", taken.Addr().String(), "--data-dir", dir}, 1, "address already in use"},
		{"the token is for everybody", []string{"--listen", "127.0.0.1:0", "--data-dir", dir, "--token-file", token("secret-word", 0o644)}, 1, "may be read by others"},
		{"the token is writable for everybody", []string{"--listen", "127.0.0.1:0", "--data-dir", dir, "--token-file", token("secret-word", 0o602)}, 1, "others"},
		{"the token is empty", []string{"--listen", "127.0.0.1:0", "--data-dir", dir, "--token-file", token("\n", 0o600)}, 1, "is empty"},
		{"there is no token", []string{"--listen", "127.0.0.1:0", "--data-dir", dir, "--token-file", dir + "/none"}, 1, "no such file"},
		{"the token is a directory", []string{"--listen", "127.0.0.1:0", "--data-dir", dir, "--token-file", t.TempDir()}, 1, "read token"},
		{"the token of metrics is for everybody", []string{"--listen", "127.0.0.1:0", "--data-dir", dir, "--token-file", token("a", 0o600), "--metrics-token-file", token("secret-word", 0o644)}, 1, "may be read by others"},
		{"there is no token of metrics", []string{"--listen", "127.0.0.1:0", "--data-dir", dir, "--token-file", token("a", 0o600), "--metrics-token-file", dir + "/none"}, 1, "no such file"},
		{"the token of metrics opens all", []string{"--listen", "127.0.0.1:0", "--data-dir", dir, "--token-file", token("secret-word", 0o600), "--metrics-token-file", token("secret-word\n", 0o600)}, 1, "opens more than metrics"},
		{"the data directory is a file", []string{"--listen", "127.0.0.1:0", "--data-dir", token("x", 0o600)}, 1, "data directory"},
		{"no token and a public address", []string{"--listen", "0.0.0.0:0", "--data-dir", dir}, 64, "--insecure-no-auth"},
		{"a flag that does not exist", []string{"--nothing"}, 64, "nothing"},
	} {
		status, out := end(t, c.args...)
		assert.Equal(t, c.status, status, "%s: %s", c.name, out)
		assert.Contains(t, out, c.text, c.name)
		assert.NotContains(t, out, "secret-word", c.name)
	}
	assert.Equal(t, "still", a.Bash(t, "slot_0", "echo still", 10).Output, "the first agent is not disturbed")
}

func TestTheTokenIsNowhereToBeRead(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{Args: []string{"--log-level", "trace", "--env", "PASSWORD=hidden-value"}})
	for _, header := range []string{"Authorization: Bearer " + a.Token, "Authorization: Bearer x" + a.Token, "X: " + a.Token} {
		for _, route := range []string{"/slots", "/metrics", "/nowhere?token=" + a.Token, "/health", "/v1/executions/" + a.Token[:5]} {
			assert.NotContains(t, string(a.Send(t, http.MethodGet, route, "", header).Body), a.Token)
		}
		a.Send(t, http.MethodPost, "/execute", "{", header)
	}
	metrics := a.Send(t, http.MethodGet, "/metrics", "")
	assert.Equal(t, http.StatusOK, metrics.Status)
	assert.Contains(t, string(metrics.Body), "# TYPE ")
	assert.NotContains(t, a.Log(), a.Token)
	assert.NotContains(t, a.Log(), "hidden-value")
	assert.NotContains(t, fmt.Sprint(bash(t, a, "env")), a.Token)
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", a.PID))
	require.NoError(t, err)
	assert.NotContains(t, string(cmdline), a.Token)
}

func TestStreamsResumeByOffsetAndAlwaysEnd(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	for _, kind := range []string{"application/x-ndjson", "text/event-stream"} {
		id := "stream-" + kind[:4]
		ctx, cut := context.WithCancel(t.Context())
		body := fmt.Sprintf(`{"slot_id":"slot_0","tool":"bash","execution_id":%q,"args":{"command":"for i in 1 2 3 4 5 6; do echo out $i; echo err $i >&2; sleep 0.2; done"}}`, id)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.URL+"/execute", strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+a.Token)
		req.Header.Set("Accept", kind)
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		assert.Equal(t, kind, res.Header.Get("Content-Type"))
		seen := make([]byte, 0, 4096)
		for !strings.Contains(string(seen), "out 2") {
			p := make([]byte, 512)
			n, err := res.Body.Read(p)
			require.NoError(t, err)
			seen = append(seen, p[:n]...)
		}
		cut() // the connection is cut; the call goes on
		res.Body.Close()
		rest := a.Send(t, http.MethodGet, "/v1/executions/"+id+"/stream?stdout_offset=6&stderr_offset=12", "", "Accept: "+kind)
		text := string(rest.Body)
		assert.NotContains(t, text, `"data":"out 1`, kind)
		for _, want := range []string{"out 2", "out 6", "err 3", "err 6", `"offset":6`} {
			assert.Contains(t, text, want, kind)
		}
		assert.NotContains(t, strings.Split(text, `"success"`)[0], "err 2", kind)
		events := strings.Split(strings.TrimSpace(text), "\n")
		last := events[len(events)-1]
		assert.Contains(t, last, `"event":"result"`)
		assert.Contains(t, last, `"success":true`)
		again := a.Send(t, http.MethodGet, "/v1/executions/"+id+"/stream", "", "Accept: "+kind, "Last-Event-ID: 36.36")
		assert.Contains(t, string(again.Body), `"event":"result"`, kind)
		assert.NotContains(t, string(again.Body), `"event":"chunk"`, kind)
	}
	for _, bad := range []string{"Last-Event-ID: x", "Last-Event-ID: -1.5", "Last-Event-ID: 1"} {
		assert.Equal(t, http.StatusBadRequest, a.Send(t, http.MethodGet, "/v1/executions/stream-appl/stream", "", bad).Status, bad)
	}
	assert.Equal(t, http.StatusNotFound, a.Send(t, http.MethodGet, "/v1/executions/nobody/stream", "").Status)

	_, last := lastEvent(t, a, call("slot_0", "", "echo x; sleep 20", 0.3))
	assert.Equal(t, slots.OutcomeTimedOut, (<-last).Result.Metadata.Outcome)
	begun, last := lastEvent(t, a, call("slot_0", "to-cancel", "echo x; sleep 20", 30))
	<-begun
	result, _, err := a.Cancel(t.Context(), "to-cancel")
	require.NoError(t, err)
	assert.Equal(t, slots.OutcomeCancelled, result.Metadata.Outcome)
	assert.Equal(t, slots.OutcomeCancelled, (<-last).Result.Metadata.Outcome)
	_, last = lastEvent(t, a, call("no slot", "", "x", 1))
	assert.Equal(t, "Unknown slot: no slot", (<-last).Result.Error)
	begun, last = lastEvent(t, a, call("slot_0", "", "echo x; sleep 20", 30))
	<-begun
	_, err = a.Reset(t.Context(), "slot_0", nil)
	require.NoError(t, err)
	assert.Equal(t, slots.KindInterrupted, (<-last).Result.Metadata.ErrorKind)
}
