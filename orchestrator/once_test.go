package orchestrator_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots/sandbox/sandboxtest"
)

func key(name string) string { return "Idempotency-Key: " + name }

func TestRequestsWithTheSameKeyAreOneRequest(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t))
	further := object{"trajectory": "a", "further": true}
	var group sync.WaitGroup
	var mu sync.Mutex
	leases, replayed := map[any]bool{}, 0
	for range 8 {
		group.Go(func() {
			r, err := i.try(http.MethodPost, "/v1/leases", further, key("k"))
			if err != nil || !assert.Equal(t, 201, r.status, "%s", r.body) {
				return // fewer are there than came
			}
			mu.Lock()
			defer mu.Unlock()
			leases[r.object()["lease"]] = true
			if r.header.Get("Idempotency-Replayed") != "" {
				replayed++
			}
		})
	}
	group.Wait()
	assert.Len(t, leases, 1)
	assert.Equal(t, 7, replayed)
	assert.Len(t, i.get("/v1/leases").object()["leases"], 1)
	for _, other := range []reply{
		i.post("/v1/leases", object{"trajectory": "b", "further": true}, key("k")),
		i.do(http.MethodDelete, "/v1/leases?trajectory=a", nil, key("k")),
	} {
		assert.Equal(t, 409, other.status, "%s", other.body)
		assert.Equal(t, "conflict", other.fault()["kind"])
		assert.Equal(t, "never", other.fault()["executed"])
	}
	for _, bad := range []string{"a b", "é", strings.Repeat("x", 256)} {
		assert.Equal(t, 400, i.post("/v1/leases", further, key(bad)).status, bad)
	}

	// A reset with a key spares what was done since it was sent first.
	lease := i.acquire(object{"trajectory": "c"})
	bash := func(command string) object { return object{"tool": "bash", "args": object{"command": command}} }
	first := i.post(path(lease, "/reset"), nil, key("reset"))
	require.Equal(t, 200, first.status, "%s", first.body)
	i.post(path(lease, "/execute"), bash("echo here > f"))
	assert.Equal(t, first.body, i.post(path(lease, "/reset"), nil, key("reset")).body)
	assert.Equal(t, "here", i.post(path(lease, "/execute"), bash("cat f")).object()["output"])

	// A call's key names its execution.
	count := bash("echo line >> log; wc -l < log")
	for range 3 {
		assert.Equal(t, "1", i.post(path(lease, "/execute"), count, key("call")).object()["output"])
		batch := i.post(path(lease, "/batch"), object{"calls": []object{count, count}}, key("batch")).object()["results"].([]any)
		assert.Equal(t, "2", batch[0].(object)["output"])
		assert.Equal(t, "3", batch[1].(object)["output"])
	}
	assert.Equal(t, 409, i.post(path(lease, "/execute"), bash("echo other"), key("call")).status)

	// What was refused and may be sent again is carried out then.
	for range 2 {
		i.acquire(object{"trajectory": "d", "further": true})
	}
	full := i.post("/v1/leases", object{"trajectory": "e"}, key("later"))
	require.Equal(t, 429, full.status, "%s", full.body)
	assert.NotEmpty(t, full.header.Get("Retry-After"))
	i.do(http.MethodDelete, "/v1/leases?trajectory=d", nil, key("bulk"))
	assert.Equal(t, 201, i.post("/v1/leases", object{"trajectory": "e"}, key("later")).status)
}

func TestKeysOfLeasesAndCallsOutliveTheOrchestrator(t *testing.T) {
	dir := sandboxtest.DataDir(t)
	var lease any
	for n := range 2 {
		i := start(t, dir, "--keep")
		r := i.post("/v1/leases", object{"trajectory": "a", "further": true, "ttl_s": 600}, key("k"))
		require.Equal(t, 201, r.status, "%s", r.body)
		assert.Empty(t, r.object()["labels"], "the key is not shown")
		if n == 0 {
			lease = r.object()["lease"]
		}
		assert.Equal(t, lease, r.object()["lease"])
		run := i.post(path(r.object(), "/execute"), object{"tool": "bash", "args": object{"command": "echo line >> log; wc -l < log"}}, key("call"))
		assert.Equal(t, "1", run.object()["output"], "%s", run.body)
		i.stop()
	}
	start(t, dir).stop()
}
