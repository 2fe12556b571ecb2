package orchestrator_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots/sandbox/sandboxtest"
)

// What a command has said is worth as much as that it was ended: who gave its
// slot back too early, or let the lease run out, sees how far it came.
func TestACallThatItsLeaseEndsUnderAnswersWhatItHasSaid(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	const says = "echo start; echo begun > begun; sleep 600; echo end"
	tell := func(r reply, kind string) {
		assert.Equal(t, 200, r.status, "%s", r.body)
		assert.Equal(t, false, r.object()["success"])
		assert.Equal(t, "start", r.object()["output"], "%s", r.body)
		m := r.metadata()
		assert.Equal(t, kind, m["error_kind"])
		assert.Equal(t, "cancelled", m["outcome"])
		assert.Equal(t, "yes", m["executed"])
		assert.Contains(t, m, "timing_ms")
	}
	ask := func(path string, body object) <-chan reply {
		told := make(chan reply, 1)
		go func() {
			r, err := i.try(http.MethodPost, path, body)
			assert.NoError(t, err)
			told <- r
		}()
		return told
	}

	told := ask("/execute", call("a", "cut", says))
	require.Eventually(t, func() bool {
		return i.post("/artifacts/read", object{"trajectory_id": "a", "path": "begun"}).object()["success"] == true
	}, patience, tick)
	require.Equal(t, 200, i.post("/release", object{"trajectory_id": "a"}).status)
	tell(<-told, "interrupted")

	lease := i.acquire(object{"trajectory": "b", "ttl_s": 2})
	tell(<-ask(path(lease, "/execute"), object{"tool": "bash", "args": object{"command": says}, "execution_id": "cut"}), "lease_expired")
	lease = i.acquire(object{"trajectory": "c", "ttl_s": 2})
	r := <-ask(path(lease, "/batch"), object{"calls": []object{{"tool": "bash", "args": object{"command": says}}}})
	result := r.object()["results"].([]any)[0].(map[string]any)
	assert.Equal(t, "start", result["output"], "%s", r.body)
	assert.Equal(t, "lease_expired", result["metadata"].(map[string]any)["error_kind"])
}
