package orchestrator_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/poolapi"
	"berth/slots/sandbox/sandboxtest"
)

func TestAHolderIsToldThatItsContainerIsDrained(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t))
	lease := i.acquire(object{"trajectory": "a", "ttl_s": 60})
	call := object{"tool": "bash", "args": object{"command": "true"}}
	asATrajectory := object{"trajectory_id": "a", "tool": object{"name": "bash", "arguments": object{"command": "true"}}}
	assert.Empty(t, i.post(path(lease, "/execute"), call).header.Get(poolapi.HeaderDraining))
	assert.Empty(t, i.post("/execute", asATrajectory).header.Get(poolapi.HeaderDraining))

	asOperator := "Authorization: Bearer " + operatorToken
	container := "/v1/containers/" + lease["container"].(string) + "/drain"
	drained := i.post(container, object{}, asOperator).object()
	assert.Equal(t, "draining", drained["state"])
	assert.NotContains(t, drained, "deadline")
	renewed := i.do(http.MethodPut, path(lease, ""), object{}).object()
	assert.Equal(t, true, renewed["draining"])
	assert.NotContains(t, renewed, "drain_deadline")
	assert.Equal(t, poolapi.DrainsLater, i.post(path(lease, "/execute"), call).header.Get(poolapi.HeaderDraining))
	assert.Equal(t, poolapi.DrainsLater, i.post("/execute", asATrajectory).header.Get(poolapi.HeaderDraining))

	drained = i.post(container, object{"within_s": 600}, asOperator).object()
	by, err := time.Parse(time.RFC3339, drained["deadline"].(string))
	require.NoError(t, err)
	assert.WithinDuration(t, time.Now().Add(10*time.Minute), by, 2*time.Minute)
	assert.Equal(t, drained["deadline"], i.get(path(lease, "")).object()["drain_deadline"])
	answer := i.post(path(lease, "/batch"), object{"calls": []object{call}})
	assert.Equal(t, by.UTC().Format(time.RFC3339), answer.header.Get(poolapi.HeaderDraining))
	one := i.get("/v1/pools").object()["pools"].([]any)[0].(map[string]any)
	assert.Equal(t, true, one["scales"])
	assert.Contains(t, string(i.get("/metrics").body), `berth_pool_scales{template="default"} 1`)
}
