package orchestrator_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots/sandbox/sandboxtest"
)

// keys are those of a JSON object, sorted.
func keys(o map[string]any) []string {
	out := make([]string, 0, len(o))
	for k := range o {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func TestTheReferenceClientsFindWhatTheyKnow(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t))
	for _, path := range []string{"/health", "/livez", "/readyz"} {
		answer := i.get(path, "Authorization: ")
		assert.Equal(t, 200, answer.status, path)
		assert.JSONEq(t, `{"status":"ok"}`, string(answer.body), "%s without a token", path)
	}
	assert.JSONEq(t, `{"success":false,"error":"No active slot for trajectory (run a sandbox tool first)",
		"error_kind":"not_found","retryable":false,"executed":"never"}`, string(i.post("/artifacts/list", object{"trajectory_id": "a"}).body))

	first := i.post("/execute", object{
		"trajectory_id": "a", "timeout_s": nil, "unknown": 1,
		"tool": object{"name": "terminal", "arguments": object{"command": "echo out; echo err >&2; exit 3", "timeout": 20}, "uniq_id": "u", "more": true},
	})
	require.Equal(t, 200, first.status, "%s", first.body)
	assert.Equal(t, "application/json", first.header.Get("Content-Type"))
	assert.Equal(t, []string{"error", "metadata", "output", "success", "uniq_id"}, keys(first.object()))
	assert.Equal(t, false, first.object()["success"])
	assert.Equal(t, "out\n[stderr]\nerr", first.object()["output"])
	assert.Equal(t, "Exit code: 3", first.object()["error"])
	assert.Equal(t, "u", first.object()["uniq_id"])
	assert.InDelta(t, 3, first.metadata()["exit_code"], 0)
	timing := first.metadata()["timing_ms"].(map[string]any)
	assert.Equal(t, []string{"acquire", "dispatch", "queue", "run", "spawn", "transfer"}, keys(timing))
	assert.Positive(t, timing["acquire"])

	assert.Equal(t, "kept", i.run("a", "export X=kept; echo $X"))
	state := func(command string) string {
		r := i.post("/execute", object{"trajectory_id": "a", "tool": object{"name": "terminal_stateful", "arguments": object{"command": command}}})
		assert.NotEmpty(t, r.object()["uniq_id"], "made up")
		assert.Equal(t, true, r.metadata()["stateful"])
		return r.object()["output"].(string)
	}
	state("X=1; cd /tmp")
	assert.Equal(t, "1 /tmp", state("echo $X $PWD"))
	written := i.post("/execute", object{"trajectory_id": "a", "tool": object{"name": "write_file", "arguments": object{"path": "d/f", "content": "hello"}, "uniq_id": "w"}})
	assert.Equal(t, "Successfully wrote 5 bytes to d/f", written.object()["output"])

	read := i.post("/artifacts/read", object{"trajectory_id": "a", "path": "d/f", "include_sha256": true}).object()
	assert.Equal(t, "hello", read["content"])
	assert.Equal(t, "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", read["sha256"])
	list := i.post("/artifacts/list", object{"trajectory_id": "a", "recursive": true}).object()
	assert.Len(t, list["entries"], 2)
	archive := i.post("/artifacts/archive", object{"trajectory_id": "a"}).object()
	assert.InDelta(t, 2, archive["entry_count"], 0)
	for _, c := range []struct {
		path, text string
		status     int
		body       object
	}{
		{"read", "Not found: nope", 404, object{"path": "nope"}},
		{"read", "Access denied: path outside workspace", 403, object{"path": "../x"}},
		{"read", "Not a file: d", 400, object{"path": "d"}},
		{"read", "Unsupported encoding: hex", 400, object{"path": "d/f", "encoding": "hex"}},
		{"archive", "Unsupported archive format: zip", 400, object{"format": "zip"}},
	} {
		c.body["trajectory_id"] = "a"
		r := i.post("/artifacts/"+c.path, c.body)
		assert.Equal(t, c.status, r.status, "%s", r.body)
		assert.Equal(t, c.text, r.object()["error"])
		assert.Equal(t, false, r.object()["success"])
	}
	large := i.post("/artifacts/archive", object{"trajectory_id": "a", "max_bytes": 1})
	assert.Equal(t, 413, large.status)
	assert.Positive(t, large.object()["bytes"])

	status := i.get("/status").object()
	assert.Equal(t, []string{"pool", "queue_size", "total_errors", "total_requests"}, keys(status))
	assert.Equal(t, []string{"acquired_slots", "available_slots", "containers", "slots_by_state", "total_slots"}, keys(status["pool"].(object)))
	require.Eventually(t, func() bool { // it may have been read while it ran a call
		counted := i.get("/status").object()["pool"].(object)
		by := counted["slots_by_state"].(object)
		return by["leased"] == counted["acquired_slots"] && by["available"] == counted["available_slots"]
	}, patience, tick, "a leased slot is not available")
	assert.InDelta(t, 1, status["total_errors"], 0)
	assert.InDelta(t, 5, status["total_requests"], 0)

	for _, trajectory := range []string{"a", "a", "never seen"} {
		r := i.post("/release", object{"trajectory_id": trajectory, "reset_workspace": false})
		assert.Equal(t, 200, r.status)
		assert.JSONEq(t, `{"status":"ok"}`, string(r.body))
	}
	assert.Equal(t, "empty", i.run("a", "ls | grep . || echo empty"), "it begins anew")
	assert.Equal(t, "u", i.post("/execute", call("a", "u", "echo $((1+1))")).object()["uniq_id"])
	assert.NotContains(t, i.post("/execute", call("a", "u", "echo $((1+1))")).metadata(), "error_kind", "what the name stood for went with the slot")
}

func TestTrajectoriesStayInTheirSlotsAndSeeNobodyElses(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t))
	for n := range 4 {
		i.run(fmt.Sprint("t", n), fmt.Sprintf("echo %d > mine; echo %d > /tmp/mine", n, n))
	}
	for range 3 {
		for n := range 4 {
			want := fmt.Sprint(n)
			assert.Equal(t, want, i.run("t"+want, "cat *"), "in its own slot")
			list := i.post("/artifacts/list", object{"trajectory_id": "t" + want, "recursive": true}).object()
			assert.Len(t, list["entries"], 1)
		}
	}
	assert.InDelta(t, 4, i.get("/status").object()["pool"].(object)["acquired_slots"], 0)
	// The same uniq_id of two trajectories is two executions.
	for _, trajectory := range []string{"t0", "t1"} {
		assert.Equal(t, trajectory, i.post("/execute", call(trajectory, "same", "echo "+trajectory)).object()["output"])
	}
}

func TestARetryRunsOnce(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t))
	var group sync.WaitGroup
	for range 8 { // joins while it runs
		group.Go(func() {
			r := i.post("/execute", call("a", "once", "sleep 0.3; echo line >> log; wc -l < log"))
			assert.Equal(t, "1", r.object()["output"])
		})
	}
	group.Wait()
	long := strings.Repeat("x", 5000)
	for range 3 { // gets what was kept
		assert.Equal(t, "1", i.post("/execute", call("a", "once", "sleep 0.3; echo line >> log; wc -l < log")).object()["output"])
		assert.Equal(t, "2", i.post("/execute", call("a", long, "echo line >> log; wc -l < log")).object()["output"])
	}
	other := i.post("/execute", call("a", "once", "echo other"))
	assert.Equal(t, 200, other.status)
	assert.Equal(t, "conflict", other.metadata()["error_kind"])
	assert.Equal(t, "never", other.metadata()["executed"])
}

func TestATrajectoryFindsItsSlotAfterARestart(t *testing.T) {
	dir := sandboxtest.DataDir(t)
	for n := range 3 {
		i := start(t, dir, "--keep")
		if n == 0 {
			i.run("a", "echo here > f")
		}
		assert.Equal(t, "here", i.run("a", "cat f"))
		r := i.post("/execute", call("a", "u", "echo line >> log; wc -l < log"))
		assert.Equal(t, "1", r.object()["output"], "%s", r.body)
		i.stop()
		assert.Len(t, i.pids(), 2, "they run on")
	}
	for range 3 { // also when its containers were stopped with the orchestrator
		i := start(t, dir)
		assert.Equal(t, "here", i.run("a", "cat f"))
		r := i.post("/execute", call("a", "u", "echo line >> log; wc -l < log"))
		assert.Equal(t, "1", r.object()["output"], "%s", r.body)
		i.stop()
		assert.Empty(t, i.pids())
	}
}

// mortal is an agent whose container does not start again once there is a file
// "lost" beside its data.
func mortal(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sandboxd")
	script := "#!/bin/sh\nfor a; do [ \"$p\" = --data-dir ] && [ -e \"$a/../lost\" ] && exit 64; p=$a; done\nexec " + sandboxtest.Agent(t) + " \"$@\"\n"
	require.NoError(t, os.WriteFile(path, []byte(script), 0o700)) //nolint:gosec // it is run
	return path
}

func TestALostContainerIsALostSlotAndTheNextCallHasAnother(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1", "--sandboxd", mortal(t))
	i.run("a", "echo here > f")
	running := make(chan reply, 1)
	go func() {
		r, err := i.try(http.MethodPost, "/execute", call("a", "cut", "touch began; sleep 30"))
		assert.NoError(t, err)
		running <- r
	}()
	require.Eventually(t, func() bool {
		return strings.Contains(string(i.post("/artifacts/list", object{"trajectory_id": "a"}).body), "began")
	}, patience, 10*time.Millisecond)
	waiting := make(chan reply, 1)
	go func() {
		r, err := i.try(http.MethodPost, "/execute", call("a", "waits", "true"))
		assert.NoError(t, err)
		waiting <- r
	}()
	kill := func() {
		for id, pid := range i.pids() {
			writeFile(t, filepath.Join(i.dir, "containers", id, "lost"), "")
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		}
	}
	kill()
	for _, answers := range []chan reply{running, waiting} {
		r := <-answers
		assert.Equal(t, 200, r.status)
		assert.Equal(t, "slot_lost", r.metadata()["error_kind"], "%s", r.body)
		assert.Contains(t, []any{"maybe", "never"}, r.metadata()["executed"])
		assert.Equal(t, false, r.object()["success"])
	}
	assert.Equal(t, "empty", i.run("a", "ls | grep . || echo empty"), "it heard of it, and begins anew")

	kill() // while nothing runs
	lost := i.post("/execute", call("a", "lost", "cat f"))
	assert.Equal(t, "slot_lost", lost.metadata()["error_kind"], "%s", lost.body)
	assert.Equal(t, "lost", lost.object()["uniq_id"])
	assert.Equal(t, "empty", i.run("a", "ls | grep . || echo empty"))

	kill()
	require.Eventually(t, func() bool {
		r := i.post("/artifacts/list", object{"trajectory_id": "a"})
		return r.status == 503 && r.object()["error_kind"] == "slot_lost"
	}, patience, time.Millisecond)
	assert.Equal(t, "empty", i.run("a", "ls | grep . || echo empty"))
	kill()
	for range 2 {
		r := i.post("/release", object{"trajectory_id": "a"})
		assert.JSONEq(t, `{"status":"ok"}`, string(r.body), "what is lost is released")
	}
	assert.Equal(t, "empty", i.run("a", "ls | grep . || echo empty"))
}

func TestASlotEndsWithTheIdleTimeAndNotWithUse(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--trajectory-idle", "3s")
	i.run("a", "echo here > f")
	for range 3 { // calls renew
		time.Sleep(1500 * time.Millisecond)
		assert.Equal(t, "here", i.run("a", "cat f"))
	}
	assert.Equal(t, "here", i.run("a", "sleep 5; cat f"), "a call that runs renews")
	require.Eventually(t, func() bool {
		return i.get("/status").object()["pool"].(object)["acquired_slots"] == 0.0
	}, patience, 50*time.Millisecond)
	r := i.post("/execute", call("a", "late", "cat f"))
	assert.Equal(t, "lease_expired", r.metadata()["error_kind"], "%s", r.body)
	assert.Equal(t, "never", r.metadata()["executed"])
	assert.Equal(t, "empty", i.run("a", "ls | grep . || echo empty"))
}

func TestManyTrajectoriesShareFewSlots(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t))
	var group sync.WaitGroup
	var failed atomic.Int64
	began := time.Now()
	for n := range 200 {
		group.Go(func() {
			me := fmt.Sprint("t", n)
			for k := range 3 {
				r, err := i.try(http.MethodPost, "/execute", call(me, fmt.Sprint(k), "echo "+me+" >> f; cat f"))
				var answer struct{ Output string }
				if err != nil || json.Unmarshal(r.body, &answer) != nil || answer.Output != strings.Repeat(me+"\n", k)+me {
					failed.Add(1)
					t.Logf("%v: %s", err, r.body)
				}
			}
			if r, err := i.try(http.MethodPost, "/release", object{"trajectory_id": me}); err != nil || r.status != 200 {
				failed.Add(1)
			}
		})
	}
	group.Wait()
	assert.Zero(t, failed.Load())
	t.Logf("200 trajectories of 3 calls on 4 slots took %v", time.Since(began))
	assert.InDelta(t, 0, i.get("/status").object()["pool"].(object)["acquired_slots"], 0)
}

func TestWhoWaitsTooLongForASlotIsToldAndMayTryAgain(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1", "--slots", "1", "--trajectory-wait", "100ms")
	i.run("a", "true")
	r := i.post("/execute", call("b", "u", "echo hi"))
	assert.Equal(t, 200, r.status)
	assert.Equal(t, "pool_exhausted", r.metadata()["error_kind"])
	assert.Equal(t, true, r.metadata()["retryable"])
	assert.Equal(t, "never", r.metadata()["executed"])
	assert.GreaterOrEqual(t, r.metadata()["timing_ms"].(object)["acquire"], 100.0)
	i.post("/release", object{"trajectory_id": "a"})
	assert.Equal(t, "hi", i.post("/execute", call("b", "u", "echo hi")).object()["output"])
}

func TestTokensAreAskedFor(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	for _, c := range []struct {
		header string
		status int
	}{
		{"Authorization: ", 401},
		{"Authorization: " + trainerToken, 401},
		{"Authorization: Basic " + trainerToken, 401},
		{"Authorization: Bearer", 401},
		{"Authorization: Bearer  ", 401},
		{"Authorization: Bearer wrong", 403},
		{"Authorization: Bearer " + trainerToken + "x", 403},
		{"Authorization: bearer " + trainerToken, 0},
		{"Authorization: Bearer " + operatorToken, 0},
	} {
		for _, r := range []reply{
			i.post("/execute", call("a", "u", "true"), c.header), i.post("/release", object{"trajectory_id": "x"}, c.header),
			i.post("/artifacts/list", object{"trajectory_id": "x"}, c.header), i.get("/status", c.header), i.get("/nothing", c.header),
		} {
			if c.status == 0 {
				assert.NotContains(t, []int{401, 403}, r.status, c.header)
				continue
			}
			assert.Equal(t, c.status, r.status, "%s: %s", c.header, r.body)
			assert.Contains(t, string(r.body), "unauthorized")
		}
	}
	assert.NotContains(t, i.log.String(), trainerToken)
}

func TestBadRequestsAreTypedAndNeverAnInternalError(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1", "--max-body", "64KiB")
	deep := strings.Repeat("[", 20000)
	for _, c := range []struct {
		path, body string
		status     int
		text       string
	}{
		{"/execute", "", 400, "Invalid JSON"},
		{"/execute", "[]", 400, "Invalid JSON"},
		{"/execute", "{", 400, "Invalid JSON"},
		{"/execute", `{"trajectory_id":"a"} x`, 400, "Invalid JSON"},
		{"/execute", `{"x":` + deep, 400, "Invalid JSON"},
		{"/execute", "{}", 400, "trajectory_id must have 1 to 256 bytes, got 0"},
		{"/execute", `{"trajectory_id":7}`, 400, "trajectory_id must be a string"},
		{"/execute", `{"trajectory_id":"` + strings.Repeat("x", 257) + `","tool":{"name":"bash"}}`, 400, "got 257"},
		{"/execute", `{"trajectory_id":"a"}`, 400, "tool.name is missing"},
		{"/execute", `{"trajectory_id":"a","tool":[]}`, 400, "tool must be an object"},
		{"/execute", `{"trajectory_id":"a","tool":{"name":"bash","uniq_id":5}}`, 400, "uniq_id must be a string"},
		{"/execute", `{"trajectory_id":"a","tool":{"name":"bash","arguments":"x"}}`, 200, "tool.arguments must be an object"},
		{"/execute", `{"trajectory_id":"a","tool":{"name":"terminal","arguments":{"command":"true","background":true}}}`, 200, "not supported"},
		{"/execute", `{"trajectory_id":"a","tool":{"name":"dance"}}`, 200, "Unknown tool: dance"},
		{"/execute", `{"trajectory_id":"a","tool":{"name":"bash","arguments":{}}}`, 200, "command"},
		{"/execute", `{"trajectory_id":"a","tool":{"name":"bash","arguments":{"command":"true"}},"timeout_s":-1}`, 200, "timeout"},
		{"/execute", `{"trajectory_id":"a","tool":{"name":"bash","arguments":{"command":"true"}},"timeout_s":"x"}`, 200, "timeout"},
		{"/execute", `{"x":"` + strings.Repeat("x", 70_000) + `"}`, 413, "larger than 65536 bytes"},
		{"/release", "", 400, "Invalid JSON"},
		{"/release", "{}", 400, "trajectory_id"},
		{"/release", `{"trajectory_id":[]}`, 400, "trajectory_id must be a string"},
		{"/artifacts/read", "", 400, "Invalid JSON"},
		{"/artifacts/read", `{"trajectory_id":"a","path":7}`, 400, "path must be a string"},
		{"/artifacts/list", `{"path":"x"}`, 400, "trajectory_id"},
		{"/artifacts/archive", `{"trajectory_id":"a","max_bytes":"x"}`, 400, "max_bytes must be an integer"},
		{"/artifacts/dance", `{}`, 404, "no such route"},
	} {
		r := i.post(c.path, c.body)
		assert.Equal(t, c.status, r.status, "%s %.100s: %s", c.path, c.body, r.body)
		assert.Contains(t, string(r.body), c.text, "%s %.100s", c.path, c.body)
		if c.path == "/execute" {
			assert.Equal(t, false, r.object()["success"])
			assert.Contains(t, r.metadata(), "error_kind", "%s", r.body)
			assert.Contains(t, r.metadata(), "timing_ms", "%s", r.body)
		}
	}
	assert.Equal(t, 405, i.get("/execute").status)
	assert.Equal(t, 413, i.post("/execute", bytes.NewReader(make([]byte, 1<<20))).status)
	assert.Equal(t, "fine", i.run("a", "echo fine"))
	assert.NotContains(t, i.log.String(), "panicked")
}

func TestADrainLetsCallsEndAndTakesNoMore(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	i.run("a", "true")
	answered := make(chan reply, 1)
	go func() {
		r, err := i.try(http.MethodPost, "/execute", call("a", "u", "touch began; sleep 1; echo done"))
		assert.NoError(t, err)
		answered <- r
	}()
	require.Eventually(t, func() bool {
		return strings.Contains(string(i.post("/artifacts/list", object{"trajectory_id": "a"}).body), "began")
	}, patience, 10*time.Millisecond)
	i.stop()
	r := <-answered
	assert.Equal(t, "done", r.object()["output"], "%s", r.body)
	_, err := i.try(http.MethodGet, "/health", nil)
	assert.Error(t, err)
}
