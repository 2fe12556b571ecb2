package sandboxd_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/sandboxd/client"
	"berth/slots"
	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

func call(slot, id, command string, timeout float64) api.Call {
	args, _ := json.Marshal(object{"command": command})
	return api.Call{SlotID: slot, Tool: "bash", Args: args, ExecutionID: id, Timeout: api.Seconds(timeout)}
}

func TestC01AnExecutionIDRunsAtMostOnce(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	results := make(chan api.Result, 5)
	for range 5 {
		go func() { // ends with its call
			r, err := a.Execute(context.Background(), call("slot_0", "once", "echo ran >> ran; sleep 0.4; cat ran", 10))
			assert.NoError(t, err)
			results <- r
		}()
	}
	replayed := 0
	for range 5 {
		r := <-results
		assert.Equal(t, "ran", r.Output)
		if r.Metadata.Replayed {
			replayed++
		}
	}
	assert.Equal(t, 4, replayed)
	r, err := a.Execute(t.Context(), call("slot_0", "once", "echo ran >> ran; sleep 0.4; cat ran", 10))
	require.NoError(t, err)
	assert.Equal(t, "ran", r.Output)
	other := a.Post(t, "/execute", object{"slot_id": "slot_0", "tool": "bash", "execution_id": "once", "args": object{"command": "echo other"}, "timeout": 10})
	assert.Equal(t, "conflict", meta(t, other.Object(t))["error_kind"])
	assert.Equal(t, "1", bash(t, a, "wc -l < ran")["output"])
}

func TestC01ACrashLeavesFinishedResultsAndInterruptions(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	done, err := a.Execute(t.Context(), call("slot_0", "done", "echo finished", 10))
	require.NoError(t, err)
	running := make(chan error, 1)
	go func() { // ends with the agent
		_, err := a.Try("slot_1", "sleep 60", 60)
		running <- err
	}()
	raw := make(chan struct{})
	go func() { // ends with the agent
		defer close(raw)
		_, _ = a.Execute(context.Background(), call("slot_0", "cut", "echo ran >> ran; sleep 60", 60))
	}()
	require.Eventually(t, func() bool { h, err := a.Health(t.Context()); return err == nil && h.Executing == 2 }, 30*time.Second, 10*time.Millisecond)
	a.Kill()
	require.Error(t, <-running)
	b := agenttest.Start(t, agenttest.Options{Level: a.Level, Slots: 2, Dir: a.Dir})
	<-raw
	again, err := b.Execute(t.Context(), call("slot_0", "done", "echo finished", 10))
	require.NoError(t, err)
	assert.Equal(t, done.Output, again.Output)
	assert.True(t, again.Metadata.Replayed)
	cut := b.Post(t, "/execute", call("slot_0", "cut", "echo ran >> ran; sleep 60", 60)).Object(t)
	assert.Equal(t, false, cut["success"])
	assert.Equal(t, "interrupted", meta(t, cut)["error_kind"])
	assert.Equal(t, "maybe", meta(t, cut)["executed"])
	// The files are as they were left: the first run may have come so far, and no other one did.
	assert.Contains(t, []any{"", "ran"}, bash(t, b, "cat ran 2>/dev/null; true")["output"], "it was not run again")
	stream := b.Send(t, http.MethodGet, "/v1/executions/done/stream", "", "Accept: application/x-ndjson")
	assert.Contains(t, string(stream.Body), `"event":"result"`)
}

func TestC02AStreamedBatchAnswersEachWhenItIsReady(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	var order []int
	var next string
	for r, err := range a.BatchStream(t.Context(), []api.Call{call("slot_0", "slow", "sleep 600", 600), call("slot_1", "", "echo quick > before", 60), call("slot_1", "", "cat before", 60), {SlotID: "X", Tool: "bash"}}) {
		require.NoError(t, err)
		if *r.Index == 2 {
			next = r.Output
		}
		if order = append(order, *r.Index); len(order) == 3 {
			assert.NotContains(t, order, 0, "the slow one still runs")
			_, _, err = a.Cancel(t.Context(), "slow")
			require.NoError(t, err)
		}
	}
	require.Len(t, order, 4)
	assert.Equal(t, 0, order[3], "the slowest comes last")
	assert.Equal(t, "quick", next, "calls of one slot run in their order")
	sse := a.Send(t, http.MethodPost, "/batch", `[{"slot_id":"slot_0","tool":"bash","args":{"command":"echo a"}}]`, "Accept: text/event-stream")
	assert.Equal(t, "text/event-stream", sse.Header.Get("Content-Type"))
	assert.Contains(t, string(sse.Body), "event: result\n")
}

func TestC03ASlotIsAFIFOWhoseWaitersCanLeave(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	calls := make([]api.Call, 12)
	for i := range calls {
		calls[i] = call("slot_0", "", fmt.Sprintf("sleep 0.05; echo %d >> order", i), 10)
	}
	results, err := a.Batch(t.Context(), calls)
	require.NoError(t, err)
	assert.Greater(t, results[11].Metadata.QueueMS, results[1].Metadata.QueueMS)
	assert.Greater(t, results[11].Metadata.QueueMS, 500.0)
	assert.Equal(t, "0 1 2 3 4 5 6 7 8 9 10 11", strings.Join(strings.Fields(bash(t, a, "cat order")["output"].(string)), " "))

	// Waiting is not counted in the timeout.
	both, err := a.Batch(t.Context(), []api.Call{call("slot_0", "", "sleep 1.2", 10), call("slot_0", "", "echo in time", 1)})
	require.NoError(t, err)
	assert.Equal(t, "in time", both[1].Output)

	ctx, leave := context.WithCancel(t.Context())
	blocker := make(chan api.Result, 1)
	go func() { // ends with its call
		r, _ := a.Try("slot_0", "sleep 1; echo blocker", 10)
		blocker <- r
	}()
	require.Eventually(t, func() bool { h, _ := a.Health(t.Context()); return h.Executing == 1 }, 30*time.Second, 5*time.Millisecond)
	gone := make(chan struct{})
	go func() { // ends when it leaves
		defer close(gone)
		_, _ = a.Execute(ctx, call("slot_0", "left", "echo left >> left", 10))
	}()
	require.Eventually(t, func() bool { h, _ := a.Health(t.Context()); return h.Queued == 1 }, 30*time.Second, 5*time.Millisecond)
	leave()
	<-gone
	require.Eventually(t, func() bool { h, _ := a.Health(t.Context()); return h.Queued == 0 }, 30*time.Second, 5*time.Millisecond, "it leaves the queue")
	assert.Equal(t, "blocker", (<-blocker).Output)
	assert.Equal(t, "absent", bash(t, a, "test -e left || echo absent")["output"])
}

func TestC04ACallEndsWithItsShell(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	began := time.Now()
	assert.Equal(t, "started", bash(t, a, "sleep 60 & echo started")["output"])
	assert.Less(t, time.Since(began), 20*time.Second)
	for _, escape := range []string{"setsid sleep 61", "(setsid sh -c 'trap \"\" TERM HUP; sleep 61' &)", "trap '' TERM INT HUP; sleep 61", "nohup sleep 61 & disown; sleep 61"} {
		r := execute(t, a, object{"tool": "bash", "args": object{"command": escape + "; sleep 61"}, "timeout": 0.4})
		assert.Equal(t, "timed_out", meta(t, r)["outcome"], escape)
		assert.Equal(t, "0", bash(t, a, "ps -eo args 2> /dev/null | grep -c '[s]leep 6[01]' || true")["output"], escape)
	}
}

func TestC05AndC06OutputIsKeptBoundedAndWhole(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	r := execute(t, a, object{"tool": "bash", "args": object{"command": "echo before; echo oops >&2; sleep 20"}, "timeout": 0.3})
	assert.Equal(t, "before\n[stderr]\noops", r["output"])

	const lines = 200_000
	r = execute(t, a, object{"tool": "bash", "execution_id": "long", "args": object{"command": fmt.Sprintf("seq 1 %d", lines)}})
	out, m := r["output"].(string), meta(t, r)
	assert.Less(t, len([]rune(out)), 51_000)
	assert.True(t, strings.HasPrefix(out, "1\n2\n3\n"))
	assert.True(t, strings.HasSuffix(out, fmt.Sprint(lines)), "the end of the log is kept")
	assert.Contains(t, out, "bytes omitted")
	assert.Equal(t, true, m["truncated"])
	total := int64(m["stdout_bytes"].(float64))
	assert.Zero(t, m["stderr_bytes"])
	assert.Equal(t, fmt.Sprint(total), bash(t, a, "wc -c < "+m["stdout_path"].(string))["output"])
	assert.Equal(t, "100000", bash(t, a, "sed -n 100000p "+m["stdout_path"].(string))["output"])
	part, whole, err := a.Output(t.Context(), "long", "stdout", 600_000, 7)
	require.NoError(t, err)
	assert.Equal(t, total, whole)
	assert.Equal(t, strings.TrimSpace(string(part)), strings.TrimSpace(bash(t, a, "tail -c +600001 "+m["stdout_path"].(string)+" | head -c 7")["output"].(string)))
	small := bash(t, a, "seq 1 1000", object{"max_output": 100})
	assert.Less(t, len(small["output"].(string)), 200)
	for _, query := range []string{"?stream=x", "?offset=-1", "?length=x", "?offset=99999999999999999999"} {
		assert.Equal(t, http.StatusBadRequest, a.Send(t, http.MethodGet, "/v1/executions/long/output"+query, "").Status, query)
	}
	assert.Empty(t, a.Send(t, http.MethodGet, "/v1/executions/long/output?offset=999999999", "").Body)
}

func TestC07AndC08TheShellIsBashAndItsOutputUntouched(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	r := bash(t, a, "printf '  indented\\n\\n'; echo err >&2", object{"separate": true})
	assert.Equal(t, "  indented\n[stderr]\nerr", r["output"])
	assert.Equal(t, "  indented", meta(t, r)["stdout"])
	assert.Equal(t, "err", meta(t, r)["stderr"])
	r = bash(t, a, `x=(a b); [[ ${x[1]} == b ]] && echo "$BASH_VERSION"`)
	assert.NotEmpty(t, r["output"])
	assert.Equal(t, "bash", meta(t, r)["shell"])
	// A call's PATH is for what the command starts; its shell stays the slot's.
	require.Equal(t, true, bash(t, a, "mkdir bin && printf '#!/bin/sh\necho mine' > bin/tool && cp bin/tool bin/bash && chmod +x bin/*")["success"])
	r = bash(t, a, `tool; bash; [[ $BASH_VERSION ]] && echo "$PATH"`, object{"env": object{"PATH": "/workspace/bin"}})
	assert.Equal(t, "mine\nmine\n/workspace/bin", r["output"])
	assert.Equal(t, "bash", meta(t, r)["shell"])
	// A slot without bash falls back to sh, and says so.
	b := best(t, agenttest.Options{Args: []string{"--env", "PATH=/workspace/bin"}})
	sh, err := os.Open("/bin/sh")
	require.NoError(t, err)
	defer sh.Close()
	_, err = b.PutFile(t.Context(), client.Place{SlotID: "slot_0", Path: "bin/sh"}, sh, client.PutOptions{Mode: 0o755})
	require.NoError(t, err)
	r = bash(t, b, "echo from $0")
	assert.Equal(t, "from sh", r["output"])
	assert.Equal(t, "sh", meta(t, r)["shell"])
}

func TestC09IsolationIsSaidAndRequired(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	said := a.Send(t, http.MethodGet, "/health", "").Object(t)["isolation"].(object)
	assert.Equal(t, a.Level.String(), said["level"])
	assert.Equal(t, said["level"], meta(t, bash(t, a, "true"))["isolation"].(object)["level"])
	r := bash(t, a, "echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1")
	assert.Equal(t, said["level"], meta(t, r)["isolation"].(object)["level"])

	out, err := exec.CommandContext(t.Context(), sandboxtest.Agent(t), "serve", "--listen", "127.0.0.1:0", "--data-dir", filepath.Join(sandboxtest.DataDir(t), "d"),
		"--isolation-attempt", "none", "--isolation-require", "uid+landlock,net=loopback-only").CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "%s", out)
	assert.Equal(t, 78, exit.ExitCode(), "%s", out)
	for _, word := range []string{"uid+landlock,net=loopback-only is required", "gives none", "axis net: wanted loopback-only, got host"} {
		assert.Contains(t, string(out), word)
	}
}

func TestC10OnlyTheTokenOpensAndNoSlotFindsIt(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	for _, route := range []string{"/slots", "/metrics", "/v1/leases", "/slots/slot_0/files/x"} {
		assert.Equal(t, http.StatusUnauthorized, a.Send(t, http.MethodGet, route, "", "Authorization: Bearer x").Status, route)
	}
	look := bash(t, a, `env; cat /proc/*/environ /proc/*/cmdline 2> /dev/null | tr '\0' '\n'; cat `+a.Dir+`/token; curl -s --max-time 2 `+a.URL+`/health; exec 3<> /dev/tcp/127.0.0.1/`+fmt.Sprint(a.Port)+` && printf 'GET /health HTTP/1.0\r\n\r\n' >&3 && timeout 2 cat <&3`)
	assert.NotContains(t, fmt.Sprint(look), a.Token)
	assert.NotContains(t, fmt.Sprint(look["output"]), `"status":"ok"`)
}

func TestC11AResetIsVerifiedAndQuick(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	require.Equal(t, true, bash(t, a, "echo left > f; echo left > /tmp/left; echo left > /dev/shm/left; for d in /var/tmp /run; do echo left > $d/left 2> /dev/null; done; true")["success"])
	bash(t, a, "sleep 600 & disown", object{"background": true})
	bash(t, a, "true")
	reset := a.Post(t, "/reset", object{"slot_id": "slot_0"}).Object(t)
	require.Equal(t, true, reset["success"], "%v", reset)
	assert.Equal(t, true, meta(t, reset)["clean"])
	assert.NotEmpty(t, meta(t, reset)["checks"])
	generation := meta(t, reset)["generation"].(float64)
	assert.Equal(t, "none", bash(t, a, "ls -A . /tmp /dev/shm /var/tmp /run 2> /dev/null | grep -q left || echo none; ps -eo args 2> /dev/null | grep '[s]leep 600'")["output"])
	assert.InDelta(t, generation, meta(t, bash(t, a, "true"))["generation"], 0)

	// What runs meanwhile is told so, and what comes behind finds a new slot.
	cut := make(chan api.Result, 1)
	go func() { // ends with its call
		r, _ := a.Try("slot_0", "sleep 30", 60)
		cut <- r
	}()
	require.Eventually(t, func() bool { h, _ := a.Health(t.Context()); return h.Executing == 1 }, 30*time.Second, 5*time.Millisecond)
	require.Equal(t, true, a.Post(t, "/reset", object{"slot_id": "slot_0"}).Object(t)["success"])
	r := <-cut
	assert.False(t, r.Success)
	assert.Equal(t, slots.OutcomeCancelled, r.Metadata.Outcome)
	assert.Equal(t, slots.KindInterrupted, r.Metadata.ErrorKind)
}

func TestC12And13BodiesAndTimeoutsAreBounded(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{Args: []string{"--max-timeout", "100s", "--default-timeout", "1"}})
	large := execute(t, a, object{"tool": "bash", "args": object{"command": "wc -c", "stdin": strings.Repeat("x", 30<<20)}, "timeout": 20})
	assert.Equal(t, fmt.Sprint(30<<20), large["output"])
	tooLarge := a.Send(t, http.MethodPost, "/batch", `[{"args":{"x":"`+strings.Repeat("x", 64<<20)+`"}}]`)
	assert.Equal(t, http.StatusRequestEntityTooLarge, tooLarge.Status)
	assert.Equal(t, false, tooLarge.Object(t)["success"])
	for timeout, ok := range map[string]bool{"null": true, "100": true, "0.5": true, "1e1": true, "101": false, "0": false, "-1": false, `"5"`: false, "1e309": false, "true": false, "[]": false, "1e-400": false} {
		r := a.Send(t, http.MethodPost, "/execute", `{"slot_id":"slot_0","tool":"bash","args":{"command":"true"},"timeout":`+timeout+`}`)
		require.Equal(t, http.StatusOK, r.Status)
		assert.Equal(t, ok, r.Object(t)["success"], "%s: %s", timeout, r.Body)
	}
	assert.Equal(t, "Command timed out after 1s", bash(t, a, "sleep 20")["error"], "the default")
}

func TestC15FilesComeWholeByTheirOwnRoute(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	put := a.Send(t, http.MethodPut, "/slots/slot_0/files/d/f?mode=0750", "content")
	require.Equal(t, http.StatusCreated, put.Status, "%s", put.Body)
	sum := put.Object(t)["sha256"].(string)
	get := a.Send(t, http.MethodGet, "/slots/slot_0/files/d/f?sha256=1", "")
	assert.Equal(t, "content", string(get.Body))
	assert.Equal(t, `"`+sum+`"`, get.Header.Get("ETag"))
	assert.Equal(t, "0750", get.Header.Get("Berth-Mode"))
	assert.Equal(t, http.StatusNotModified, a.Send(t, http.MethodGet, "/slots/slot_0/files/d/f", "", `If-None-Match: "`+sum+`"`).Status)
	assert.Equal(t, http.StatusPreconditionFailed, a.Send(t, http.MethodPut, "/slots/slot_0/files/d/f", "new", `If-Match: "0"`).Status)
	head := a.Send(t, http.MethodHead, "/slots/slot_0/files/d/f", "")
	assert.Equal(t, "7", head.Header.Get("Content-Length"))
	tree := a.Send(t, http.MethodGet, "/slots/slot_0/files/?tar=1&gzip=1", "")
	require.Equal(t, http.StatusOK, tree.Status)
	back := a.Send(t, http.MethodPut, "/slots/slot_1/files/copy?untar=1", string(tree.Body))
	require.Equal(t, http.StatusOK, back.Status, "%s", back.Body)
	assert.Equal(t, "content 750", a.Bash(t, "slot_1", "cat copy/d/f; stat -c ' %a' copy/d/f", 10).Output)
	assert.Equal(t, string(tree.Body), string(a.Send(t, http.MethodGet, "/slots/slot_0/files/?tar=1&gzip=1", "").Body))
}

// TestC16HealthAnswersWhileEverythingWorks packs one large file while 64 slots
// work. The size is that of the promise with BERTH_LEVELS=all.
func TestC16HealthAnswersWhileEverythingWorks(t *testing.T) {
	size := 128 << 20
	if agenttest.EveryLevel() {
		size = 1 << 30
	} else {
		t.Parallel()
	}
	const busy = 64
	a := best(t, agenttest.Options{Slots: busy + 2})
	archived, neighbour := fmt.Sprintf("slot_%d", busy), fmt.Sprintf("slot_%d", busy+1)
	require.True(t, a.Bash(t, archived, fmt.Sprintf("head -c %d /dev/urandom > large", size), 120).Success)
	calls := make([]api.Call, busy)
	for i := range calls {
		calls[i] = call(fmt.Sprintf("slot_%d", i), "", "for i in $(seq 1 50); do echo line $i; done; sleep 1; seq 1 20000 > f; sort f | tail -n 1", 120)
	}
	a.Watch(t, agenttest.Bounds{Neighbour: neighbour, Health: 50 * time.Millisecond, Calls: 5 * time.Second}, func() {
		packed := make(chan error, 1)
		go func() { // ends with its answer
			tree, err := a.GetTar(t.Context(), client.Place{SlotID: archived}, true)
			if err == nil {
				var n int64
				n, err = io.Copy(io.Discard, tree)
				if err = errors.Join(err, tree.Close()); err == nil && n < int64(size) {
					err = fmt.Errorf("%d bytes of at least %d", n, size)
				}
			}
			packed <- err
		}()
		// One batch after the other while the archive lasts.
		for done := false; !done; {
			results, err := a.Batch(t.Context(), calls)
			assert.NoError(t, err) //nolint:testifylint // the archive is to be waited for
			assert.Len(t, results, busy)
			for _, r := range results {
				assert.True(t, r.Success, r.Error)
			}
			select {
			case err := <-packed:
				assert.NoError(t, err) //nolint:testifylint // the watch is to end well
				done = true
			default:
				done = t.Failed()
			}
		}
	})
}

func TestC17And18PathsEnvironmentDirectoryAndInput(t *testing.T) {
	t.Parallel()
	for _, level := range agenttest.Levels(t) {
		t.Run(level.String(), func(t *testing.T) {
			a := agenttest.Start(t, agenttest.Options{Level: level})
			w := execute(t, a, object{"tool": "write_file", "args": object{"path": "/workspace/d/x", "content": "mapped"}})
			require.Equal(t, true, w["success"], "%v", w["error"])
			assert.Equal(t, "mapped", bash(t, a, "cat d/x")["output"])
			assert.Equal(t, "mapped", execute(t, a, object{"tool": "read_file", "args": object{"path": "/workspace/d/x"}})["output"])
			there := strings.TrimSpace(bash(t, a, "pwd")["output"].(string))
			assert.Equal(t, "mapped", execute(t, a, object{"tool": "read_file", "args": object{"path": there + "/d/x"}})["output"], "what pwd says is taken as well")
			assert.Equal(t, "mapped", a.Post(t, "/artifacts/read", object{"slot_id": "slot_0", "path": "/workspace/d/x"}).Object(t)["content"])
			r := bash(t, a, `echo "$A|$(cat)|${PWD##*/}"`, object{"env": object{"A": "one two"}, "cwd": "/workspace/d", "stdin": "in\nput"})
			assert.Equal(t, "one two|in\nput|d", r["output"], "%v", r["error"])
			assert.Empty(t, bash(t, a, "cat")["output"], "no input is an end at once")
		})
	}
}

// Many small processes use the memory up: the holder must not be what goes,
// and the shell and what runs in it with it.
func TestTheShellOutlivesACommandThatRanOutOfMemory(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{Args: []string{"--memory", "96MiB"}})
	health, err := a.Health(t.Context())
	require.NoError(t, err)
	if health.Isolation.Axes[slots.AxisMemory] != "cgroup" {
		need.Facility(t, "cgroup", fmt.Errorf("memory is limited by %s", health.Isolation.Axes[slots.AxisMemory]))
	}
	shell := func(command string) api.Result {
		r, err := a.Tool("slot_0", "bash_stateful", map[string]any{"command": command}, 20)
		require.NoError(t, err)
		return r
	}
	require.True(t, shell("kept=here; sleep 600 & echo begun").Success)
	r := a.Bash(t, "slot_0", `for i in $(seq 400); do (x=$(head -c 1M /dev/zero | tr '\0' x); sleep 30) & done; wait`, 30)
	assert.True(t, r.Metadata.OOMKilled, "%+v", r)
	r = shell("echo $kept; jobs -r | wc -l")
	assert.Equal(t, "here\n1", r.Output, "%+v", r)
}
