package orchestrator_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots/sandbox/sandboxtest"
)

const tick = 10 * time.Millisecond

func decode(t *testing.T, text []byte, v any) {
	t.Helper()
	require.NoError(t, json.Unmarshal(text, v), "%s", text)
}

func TestExecutionsAreAskedForByTheirIDs(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	lease, other := i.acquire(object{"trajectory": "a"}), i.acquire(object{"trajectory": "b"})
	bash := func(id, command string) object {
		return object{"tool": "bash", "args": object{"command": command}, "execution_id": id}
	}
	at := func(l object, id, rest string) string { return path(l, "/executions/"+url.PathEscape(id)+rest) }

	// A result is there by the id that the call was given, or that it got.
	const name = "a/b é:?"
	first := i.post(path(lease, "/execute"), bash(name, "printf one; printf two >&2; exit 3")).object()
	again := i.get(at(lease, name, ""))
	require.Equal(t, 200, again.status, "%s", again.body)
	assert.Equal(t, first["output"], again.object()["output"])
	assert.Equal(t, name, again.object()["execution_id"])
	told := again.metadata()["timing_ms"].(object)
	assert.Positive(t, told["transfer"])
	assert.Zero(t, told["run"], "it ran for an earlier request")
	made := i.post(path(lease, "/execute"), bash("", "echo made")).object()["execution_id"].(string)
	assert.Equal(t, "made", i.get(at(lease, made, "")).object()["output"])
	var batch struct{ Results []object }
	decode(t, i.post(path(lease, "/batch"), object{"calls": []object{bash("", "echo batch")}}).body, &batch)
	assert.Equal(t, "batch", i.get(at(lease, batch.Results[0]["execution_id"].(string), "")).object()["output"])

	// Nobody else's is.
	for _, where := range []string{at(other, name, ""), at(lease, "nope", ""), at(lease, "nope", "/stream"), at(lease, "nope", "/output")} {
		r := i.get(where)
		assert.Equal(t, 404, r.status, "%s: %s", where, r.body)
		assert.Equal(t, "not_found", r.fault()["kind"])
		assert.NotContains(t, r.fault()["message"], "slot_", "in the caller's words")
	}
	assert.Equal(t, 404, i.do(http.MethodDelete, at(other, name, ""), nil).status)

	// The output from an offset on, and its events.
	out := i.get(at(lease, name, "/output?offset=1&length=1"))
	assert.Equal(t, "n", string(out.body))
	assert.Equal(t, "3", out.header.Get("Berth-Total"))
	assert.Equal(t, "two", string(i.get(at(lease, name, "/output?stream=stderr")).body))
	events := string(i.get(at(lease, name, "/stream?stdout_offset=1&stderr_offset=3"), "Accept: application/x-ndjson").body)
	assert.Contains(t, events, `"data":"ne"`)
	assert.NotContains(t, events, `"stderr","offset"`)
	assert.Contains(t, events, `"event":"result"`)
	assert.Contains(t, events, `"timing_ms":{"queue":`)
	assert.NotContains(t, events, "slot_0:", "in the caller's words")
	resumed := string(i.get(at(lease, name, "/stream"), "Last-Event-ID: 3.1").body)
	assert.Contains(t, resumed, "event: chunk\nid: 3.3\ndata: ")
	assert.Contains(t, resumed, `"data":"wo"`)
	assert.NotContains(t, resumed, `"stdout","offset"`)

	for _, bad := range []string{"?wait_s=x", "?wait_s=-1", "?wait_s=NaN", "/stream?stdout_offset=-1", "/output?offset=x", "/output?stream=x"} {
		r := i.get(at(lease, name, bad))
		assert.Equal(t, 400, r.status, "%s: %s", bad, r.body)
		assert.Equal(t, "bad_request", r.fault()["kind"])
	}
	assert.Equal(t, 400, i.get(at(lease, name, "/stream"), "Last-Event-ID: 3").status)
}

func TestAnExecutionUnderWayIsWaitedForFollowedAndCancelled(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	lease := i.acquire(object{"trajectory": "a"})
	began := func(id, command string) (answer chan reply) {
		answer = make(chan reply, 1)
		go func() {
			r, err := i.try(http.MethodPost, path(lease, "/execute"), object{"tool": "bash", "args": object{"command": command}, "execution_id": id})
			assert.NoError(t, err)
			answer <- r
		}()
		require.Eventually(t, func() bool {
			r := i.get(path(lease, "/executions/"+id))
			return r.status == 200 && r.object()["state"] == "running"
		}, patience, tick)
		return answer
	}
	ended := began("waited", "until test -e go; do sleep 0.05; done; echo done")
	still := i.get(path(lease, "/executions/waited?wait_s=0.05"))
	assert.Equal(t, object{"execution_id": "waited", "state": "running"}, still.object(), "the wait is over, it is not")
	waiting, followed := make(chan reply, 1), make(chan reply, 1)
	for to, rest := range map[chan reply]string{waiting: "?wait_s=600", followed: "/stream"} {
		go func() {
			r, err := i.try(http.MethodGet, path(lease, "/executions/waited"+rest), nil)
			assert.NoError(t, err)
			to <- r
		}()
	}
	require.Equal(t, 201, i.do(http.MethodPut, path(lease, "/files/go"), "").status)
	assert.Equal(t, "done", (<-waiting).object()["output"])
	assert.Contains(t, string((<-followed).body), `"data":"done\n"`)
	assert.Equal(t, "done", (<-ended).object()["output"])

	ended = began("cut", "echo before; sleep 600")
	require.Eventually(t, func() bool { return string(i.get(path(lease, "/executions/cut/output")).body) == "before\n" }, patience, tick)
	cut := i.do(http.MethodDelete, path(lease, "/executions/cut"), nil)
	require.Equal(t, 200, cut.status, "%s", cut.body)
	assert.Equal(t, "cancelled", cut.metadata()["outcome"], "%s", cut.body)
	assert.True(t, strings.HasPrefix(cut.object()["output"].(string), "before"), "%s", cut.body)
	assert.Equal(t, "cut", cut.object()["execution_id"])
	told := <-ended
	assert.Equal(t, 200, told.status, "it ran: %s", told.body)
	assert.Equal(t, "interrupted", told.metadata()["error_kind"])
	assert.Equal(t, "yes", told.metadata()["executed"])
	assert.Equal(t, cut.object()["output"], told.object()["output"])
}
