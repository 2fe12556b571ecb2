package orchestrator_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots/sandbox/sandboxtest"
)

// fault is the typed error of an answer on /v1.
func (r reply) fault() object {
	r.t.Helper()
	f, ok := r.object()["error"].(map[string]any)
	require.True(r.t, ok, "%d %s", r.status, r.body)
	return f
}

// acquire leases a slot on /v1.
func (i *instance) acquire(want object) object {
	i.t.Helper()
	r := i.post("/v1/leases", want)
	require.Equal(i.t, 201, r.status, "%s", r.body)
	return r.object()
}

func path(lease object, rest string) string { return "/v1/leases/" + lease["lease"].(string) + rest }

func TestALeaseLivesFromAcquireToRelease(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t))
	lease := i.acquire(object{"trajectory": "a", "labels": object{"run": "7"}, "ttl_s": 60})
	assert.Equal(t, []string{"acquired_at", "container", "expires_at", "further", "labels", "lease", "slot_id", "template", "trajectory", "ttl_s"}, keys(lease))
	assert.InDelta(t, 60, lease["ttl_s"], 0)
	assert.Equal(t, object{"run": "7"}, lease["labels"])
	assert.Equal(t, lease["lease"], i.acquire(object{"trajectory": "a"})["lease"], "to acquire twice is to acquire once")
	further := i.acquire(object{"trajectory": "a", "further": true})
	assert.NotEqual(t, lease["lease"], further["lease"])
	for _, trajectory := range []string{"b", "c"} {
		i.acquire(object{"trajectory": trajectory, "labels": object{"run": "8"}})
	}

	none := i.post("/v1/leases", object{"trajectory": "d", "wait_s": 0.05})
	assert.Equal(t, 429, none.status)
	assert.NotEmpty(t, none.header.Get("Retry-After"))
	assert.Equal(t, "pool_exhausted", none.fault()["kind"])
	queue := none.fault()["queue"].(map[string]any)
	assert.Equal(t, []string{"length", "place", "waited_s"}, keys(queue))
	assert.InDelta(t, 1, queue["place"], 0)

	list := func(query string) []any { return i.get("/v1/leases" + query).object()["leases"].([]any) }
	assert.Len(t, list(""), 4)
	assert.Len(t, list("?label=run=8"), 2)
	assert.Empty(t, list("?label=run=8&label=more=1"))
	assert.Len(t, list("?trajectory=a"), 2)
	assert.Len(t, list("?template=default&container="+lease["container"].(string)), 2)
	assert.Equal(t, lease["lease"], i.get(path(lease, "")).object()["lease"])
	renewed := i.do(http.MethodPut, path(lease, ""), object{"ttl_s": 600})
	assert.InDelta(t, 600, renewed.object()["ttl_s"], 0, "%s", renewed.body)

	waiting := make(chan reply, 1)
	go func() {
		r, err := i.try(http.MethodPost, "/v1/leases", object{"trajectory": "d", "wait_s": 30})
		assert.NoError(t, err)
		waiting <- r
	}()
	released := i.do(http.MethodDelete, path(lease, ""), nil)
	require.Equal(t, 200, released.status, "%s", released.body)
	assert.Equal(t, true, released.object()["reset"].(object)["clean"])
	assert.Equal(t, 201, (<-waiting).status)
	assert.Equal(t, 200, i.do(http.MethodDelete, path(lease, ""), object{"reset": true}).status, "twice is once")
	gone := i.get(path(lease, ""))
	assert.Equal(t, 404, gone.status)
	assert.Equal(t, "not_found", gone.fault()["kind"])
	late := i.post(path(lease, "/execute"), object{"tool": "bash", "args": object{"command": "true"}})
	assert.Equal(t, 409, late.status, "%s", late.body)
	assert.Equal(t, "fenced", late.fault()["kind"])

	bulk := i.do(http.MethodDelete, "/v1/leases?label=run=8", nil).object()["released"].([]any)
	require.Len(t, bulk, 2)
	assert.Equal(t, true, bulk[0].(map[string]any)["reset"].(map[string]any)["clean"])
	assert.Equal(t, 400, i.do(http.MethodDelete, "/v1/leases", nil).status, "never all by accident")
	assert.Len(t, list(""), 2)
}

func TestACallOfATrajectoryKeepsAShortLease(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1", "--slots", "1")
	lease := i.acquire(object{"trajectory": "mix", "ttl_s": 6})
	assert.Equal(t, "done", i.run("mix", "sleep 9; echo done"))
	held := i.get(path(lease, ""))
	require.Equal(t, 200, held.status, "%s", held.body)
	assert.InDelta(t, 6, held.object()["ttl_s"], 0, "and no longer than its holder wanted")
	require.Eventually(t, func() bool { return i.get(path(lease, "")).status == 404 }, patience, 100*time.Millisecond, "nobody uses it")
}

func TestCallsByLease(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	lease, other := i.acquire(object{"trajectory": "a"}), i.acquire(object{"trajectory": "b"})
	bash := func(command string) object { return object{"tool": "bash", "args": object{"command": command}} }
	r := i.post(path(lease, "/execute"), bash("echo hi; exit 3"))
	require.Equal(t, 200, r.status, "%s", r.body)
	assert.Equal(t, "hi", r.object()["output"])
	assert.Contains(t, r.metadata(), "timing_ms")
	assert.NotEmpty(t, r.object()["execution_id"])
	once := bash("echo line >> log; wc -l < log")
	once["execution_id"] = "mine"
	for _, l := range []object{lease, lease, other} {
		r := i.post(path(l, "/execute"), once)
		assert.Equal(t, "1", r.object()["output"], "%s", r.body)
		assert.Equal(t, "mine", r.object()["execution_id"])
	}

	batch := object{"calls": []object{bash("echo 0 > order"), bash("cat order; echo 1 > order"), {"tool": "dance"}, {}, bash("cat order")}}
	results := i.post(path(lease, "/batch"), batch)
	var got struct{ Results []api.Result }
	require.NoError(t, json.Unmarshal(results.body, &got), "%s", results.body)
	require.Len(t, got.Results, 5)
	for n, want := range []string{"", "0", "", "", "1"} {
		assert.Equal(t, want, got.Results[n].Output)
		assert.Nil(t, got.Results[n].Index)
	}
	assert.Equal(t, "Unknown tool: dance", got.Results[2].Error)
	assert.Equal(t, "tool is missing", got.Results[3].Error)
	assert.JSONEq(t, `{"results":[]}`, string(i.post(path(lease, "/batch"), object{"calls": []object{}}).body))
	lines := strings.Split(strings.TrimSpace(string(i.post(path(lease, "/batch"), batch, "Accept: application/x-ndjson").body)), "\n")
	assert.Len(t, lines, 5)
	seen := map[int]bool{}
	for _, line := range lines {
		var e api.Event
		require.NoError(t, json.Unmarshal([]byte(line), &e), line)
		require.NotNil(t, e.Result)
		seen[*e.Result.Index] = true
	}
	assert.Len(t, seen, 5)

	once["execution_id"] = "streamed"
	once["args"] = object{"command": "echo one; sleep 0.1; echo two >&2"}
	for accept, start := range map[string]string{"application/x-ndjson": `{"event":"start"`, "text/event-stream": "event: start\ndata: "} {
		r := i.post(path(lease, "/execute"), once, "Accept: "+accept)
		assert.Equal(t, accept, r.header.Get("Content-Type"))
		assert.True(t, strings.HasPrefix(string(r.body), start), "%s", r.body)
		for _, text := range []string{`"execution_id":"streamed"`, `"data":"one\n"`, `"stream":"stderr"`, `"success":true`} {
			assert.Contains(t, string(r.body), text)
		}
		assert.Equal(t, 1, strings.Count(string(r.body), `"timing_ms":{"queue":`), "%s", r.body)
	}
	refused := i.post(path(lease, "/execute"), object{"tool": "dance"}, "Accept: application/x-ndjson")
	assert.Contains(t, string(refused.body), "Unknown tool: dance")

	reset := i.post(path(lease, "/reset"), nil)
	assert.Equal(t, true, reset.object()["clean"], "%s", reset.body)
	assert.Empty(t, i.post(path(lease, "/execute"), bash("ls")).object()["output"])
	assert.Equal(t, "log", i.post(path(other, "/execute"), bash("ls")).object()["output"], "nobody else's slot was reset")
}

func TestFilesAndArtifactsByLease(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	lease, other := i.acquire(object{"trajectory": "a"}), i.acquire(object{"trajectory": "b"})
	content := strings.Repeat("0123456789", 300_000)
	put := i.do(http.MethodPut, path(lease, "/files/d/a%20b"), content)
	require.Less(t, put.status, 300, "%s", put.body)
	assert.Equal(t, "d/a b", put.object()["path"])
	assert.Equal(t, content, string(i.get(path(lease, "/files/d/a%20b")).body))
	part := i.get(path(lease, "/files/d/a%20b"), "Range: bytes=10-14")
	assert.Equal(t, 206, part.status)
	assert.Equal(t, "01234", string(part.body))
	head := i.do(http.MethodHead, path(lease, "/files/d/a%20b"), nil)
	assert.Equal(t, "3000000", head.header.Get("Content-Length"))
	assert.Empty(t, head.body)
	unsized := i.do(http.MethodPut, path(lease, "/files/unsized"), struct{ *bytes.Reader }{bytes.NewReader([]byte("x"))})
	require.Less(t, unsized.status, 300, "%s", unsized.body)
	for _, p := range []string{"/files/nope", "/files/..%2f..%2fetc%2fpasswd"} {
		r := i.get(path(lease, p))
		assert.Contains(t, []int{400, 403, 404}, r.status)
		assert.NotEmpty(t, r.fault()["kind"])
	}
	assert.Equal(t, 404, i.get(path(other, "/files/d/a%20b")).status)
	assert.Equal(t, 412, i.do(http.MethodPut, path(lease, "/files/unsized"), "y", `If-Match: "`+strings.Repeat("0", 64)+`"`).status)

	read := i.post(path(lease, "/artifacts/read"), object{"path": "unsized"})
	assert.Equal(t, "x", read.object()["content"], "%s", read.body)
	assert.Len(t, i.post(path(lease, "/artifacts/list"), object{}).object()["entries"], 2)
	assert.Equal(t, true, i.post(path(lease, "/artifacts/archive"), object{"path": "d"}).object()["success"])
	missing := i.post(path(lease, "/artifacts/read"), object{"path": "nope"})
	assert.Equal(t, 404, missing.status)
	assert.Equal(t, "not_found", missing.fault()["kind"])
	assert.Equal(t, 400, i.post(path(lease, "/artifacts/read"), object{"path": "unsized", "slot_id": other["slot_id"]}).status)
	stranger := strings.Replace(path(lease, "/files/unsized"), lease["lease"].(string), strings.Join([]string{lease["container"].(string), lease["slot_id"].(string), "99"}, ":"), 1)
	assert.Equal(t, "fenced", i.get(stranger).fault()["kind"])
}

func TestContainersArePutAsideAndReplaced(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1", "--max-containers", "2", "--slots", "1")
	ofOperator := "Authorization: Bearer " + operatorToken
	containers := func() []any { return i.get("/v1/containers").object()["containers"].([]any) }
	first := containers()[0].(map[string]any)
	assert.Equal(t, "ready", first["state"])
	assert.NotContains(t, string(i.get("/v1/containers").body), "oken")
	at := "/v1/containers/" + first["id"].(string)
	for _, how := range []string{"/cordon", "/drain", "/recycle"} {
		r := i.post(at+how, nil)
		assert.Equal(t, 403, r.status, "for operators")
		assert.Equal(t, "denied", r.fault()["kind"])
		assert.Equal(t, 404, i.post("/v1/containers/nope"+how, nil, ofOperator).status)
		assert.Equal(t, 400, i.post(at+how, object{"more": 1}, ofOperator).status)
	}
	lease := i.acquire(object{"trajectory": "a"})
	assert.Equal(t, "cordoned", i.post(at+"/cordon", nil, ofOperator).object()["state"])
	assert.Equal(t, "ready", i.post(at+"/cordon", object{"on": false}, ofOperator).object()["state"])
	assert.Equal(t, "draining", i.post(at+"/recycle", object{"within_s": 0.5}, ofOperator).object()["state"])
	next := i.acquire(object{"trajectory": "b", "wait_s": 30})
	assert.NotEqual(t, first["id"], next["container"])
	require.Eventually(t, func() bool { return len(containers()) == 1 }, patience, 20*time.Millisecond)
	for _, r := range []reply{
		i.post(path(lease, "/execute"), object{"tool": "bash", "args": object{"command": "true"}}), i.get(path(lease, "")),
		i.do(http.MethodPut, path(lease, ""), nil), i.do(http.MethodDelete, path(lease, ""), nil), i.post(path(lease, "/reset"), nil), i.get(path(lease, "/files/x")),
	} {
		assert.Equal(t, 503, r.status, "%s", r.body)
		assert.Equal(t, "slot_lost", r.fault()["kind"])
		assert.Equal(t, "never", r.fault()["executed"])
	}
	pools := i.get("/v1/pools").object()["pools"].([]any)
	require.Len(t, pools, 1)
	assert.InDelta(t, 1, pools[0].(map[string]any)["acquired"], 0)
	metrics := string(i.get("/metrics").body)
	for _, name := range []string{
		`berth_pool_slots{state="leased",template="default"} 1`, `berth_pool_leased_slots{template="default"} 1`,
		`berth_pool_acquires_total{result="ok",template="default"} 2`, `berth_orchestrator_http_requests_total{class="2xx",method="POST",route="/v1/leases"} 2`,
		`berth_pool_leases_ended_total{reason="slot_lost",template="default"} 1`,
	} {
		assert.Contains(t, metrics, name)
	}
}

func TestBadRequestsOnV1AreTypedErrors(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1", "--max-body", "64KiB")
	lease := i.acquire(object{"trajectory": "a"})
	at := path(lease, "")
	bodies := []string{"", "[]", "{", "null", `"x"`, `{"unknown":1}`, `{"a":` + strings.Repeat("[", 20000), "\x00", `{"trajectory":7}`, `{} {}`}
	var group sync.WaitGroup
	for _, p := range []string{"/v1/leases", at + "/execute", at + "/batch", at + "/reset", at + "/artifacts/read", at + "/artifacts/list", at + "/artifacts/archive"} {
		for _, body := range bodies {
			group.Go(func() {
				r, err := i.try(http.MethodPost, p, body)
				if err != nil || body == "" && strings.HasSuffix(p, "/reset") {
					assert.NoError(t, err)
					return
				}
				assert.Equal(t, 400, r.status, "%s %.50s: %s", p, body, r.body)
				assert.Contains(t, string(r.body), `"kind":"bad_request"`)
			})
		}
		large := i.post(p, `{"x":"`+strings.Repeat("x", 70_000)+`"}`)
		assert.Equal(t, 413, large.status)
		assert.Equal(t, "too_large", large.fault()["kind"])
	}
	group.Wait()
	for _, c := range []struct {
		method, path string
		body         any
		status       int
	}{
		{"POST", "/v1/leases", object{"trajectory": ""}, 400},
		{"POST", "/v1/leases", object{"trajectory": strings.Repeat("x", 257)}, 400},
		{"POST", "/v1/leases", object{"trajectory": "x", "ttl_s": -1}, 400},
		{"POST", "/v1/leases", object{"trajectory": "x", "wait_s": 1e300}, 400},
		{"POST", "/v1/leases", object{"trajectory": "x", "ttl_s": 1e12}, 400},
		{"POST", "/v1/leases", object{"trajectory": "x", "template": "nope"}, 404},
		{"POST", "/v1/leases", object{"trajectory": "x", "labels": object{"x": strings.Repeat("y", 300)}}, 400},
		{"GET", "/v1/leases?more=1", nil, 400},
		{"GET", "/v1/leases?label=x", nil, 400},
		{"GET", "/v1/leases?trajectory=", nil, 400},
		{"GET", "/v1/leases/nope", nil, 400},
		{"GET", "/v1/leases/" + url.PathEscape("a:b:c"), nil, 400},
		{"GET", "/v1/leases/nope:slot_0:1", nil, 503},
		{"DELETE", "/v1/leases/" + lease["container"].(string) + ":slot_77:1", nil, 404},
		{"PUT", at, object{"ttl_s": -1}, 400},
		{"PUT", at, object{"more": 1}, 400},
		{"DELETE", at, object{"reset": 1}, 400},
		{"POST", at + "/execute", object{"tool": "bash", "args": "x"}, 400},
		{"POST", at + "/execute", object{"tool": "bash", "args": object{"command": "true"}, "timeout_s": -1}, 400},
		{"POST", at + "/execute", object{"tool": "nope"}, 400},
		{"PUT", "/v1/leases", nil, 405},
		{"POST", at + "/dance", nil, 404},
		{"GET", "/v1/containers/x", nil, 404},
	} {
		r := i.do(c.method, c.path, c.body)
		assert.Equal(t, c.status, r.status, "%s %s %v: %s", c.method, c.path, c.body, r.body)
		assert.NotEmpty(t, r.fault()["kind"])
		assert.NotEmpty(t, r.fault()["message"])
	}
	assert.Equal(t, 200, i.get(at).status, "nothing of it cost the lease")
	assert.NotContains(t, i.log.String(), "panicked")
	for _, p := range []string{"/v1/leases", "/v1/containers", "/v1/pools", "/metrics"} {
		assert.Equal(t, 401, i.get(p, "Authorization: ").status, p)
		assert.Equal(t, 403, i.get(p, "Authorization: Bearer x").status, p)
	}
	assert.Equal(t, 200, i.get("/livez", "Authorization: ").status)
}

func TestSeveralTemplatesAreSeveralPools(t *testing.T) {
	path := t.TempDir() + "/settings.yaml"
	writeFile(t, path, "templates: [{template: big, slots: 3, containers: 1, env: {WHO: big}}]")
	i := start(t, sandboxtest.DataDir(t), "--config", path, "--containers", "1", "--slots", "1", "--env", "WHO=small")
	for template, want := range map[string]string{"": "small", "default": "small", "big": "big"} {
		lease := i.acquire(object{"trajectory": "a", "template": template})
		r := i.post("/v1/leases/"+lease["lease"].(string)+"/execute", object{"tool": "bash", "args": object{"command": "echo $WHO"}})
		assert.Equal(t, want, r.object()["output"], "%s", r.body)
	}
	assert.Len(t, i.get("/v1/pools").object()["pools"], 2)
	assert.Equal(t, "small", i.run("a", "echo $WHO"), "trajectories get the first")
	assert.Len(t, fmt.Sprint(i.get("/status").object()["pool"].(object)["total_slots"]), 1)
}

func TestCallsOfALeaseKeepTheirOrderAlsoStreamed(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	lease, other := i.acquire(object{"trajectory": "a"}), i.acquire(object{"trajectory": "b"})
	bash := func(id, command string) object {
		return object{"tool": "bash", "args": object{"command": command}, "execution_id": id}
	}
	var group sync.WaitGroup
	send := func(id, command string, headers ...string) {
		group.Go(func() {
			r, err := i.try(http.MethodPost, path(lease, "/execute"), bash(id, command), headers...)
			if assert.NoError(t, err) { // not for require: this is no test's goroutine
				assert.Equal(t, 200, r.status, "%s", r.body)
			}
		})
	}
	under := func(n int) { // the calls that have come
		require.Eventually(t, func() bool {
			var status struct {
				QueueSize int `json:"queue_size"`
			}
			decode(t, i.get("/status").body, &status)
			return status.QueueSize == n
		}, patience, tick)
	}
	send("a", "until test -e go; do sleep 0.05; done; echo A >> log")
	require.Eventually(t, func() bool { return i.get(path(lease, "/executions/a")).status == 200 }, patience, tick)
	send("b", "echo B >> log")
	under(1)
	send("c", "echo C >> log", "Accept: text/event-stream")
	under(2)
	send("d", "echo D >> log")
	under(3)
	free := i.post(path(other, "/execute"), bash("free", "echo free"), "Accept: text/event-stream")
	assert.Contains(t, string(free.body), `"data":"free\n"`, "it waits for no other lease")
	require.Equal(t, 201, i.do(http.MethodPut, path(lease, "/files/go"), "").status)
	group.Wait()
	assert.Equal(t, "A\nB\nC\nD", i.post(path(lease, "/execute"), bash("", "cat log")).object()["output"])
}
