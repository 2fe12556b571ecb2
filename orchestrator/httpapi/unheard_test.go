package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
	"berth/orchestrator/backend/memory"
	"berth/orchestrator/calls"
	"berth/orchestrator/pool"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/agenttest"
	"berth/sandboxd/client"
	"berth/slots"
)

func TestAHolderIsToldThatNobodyHearsOfItsMachineUntilItIsBack(t *testing.T) {
	a := agenttest.Start(t, agenttest.Options{Level: slots.LevelNone, Slots: 1})
	fleet := memory.New(memory.Config{URL: func(string, int) string { return a.URL }})
	connect := func(c backend.Container) (*client.Client, error) {
		return client.New(client.Config{URL: c.URL, Token: a.Token})
	}
	metrics := NewMetrics()
	pools, err := pool.New(fleet, func(c backend.Container) (pool.Remote, error) { return connect(c) }, pool.Config{
		Templates: []pool.Template{{Name: "t", Slots: 1, MinContainers: 1, MaxContainers: 1, TTL: time.Minute}}, Observer: metrics,
	})
	require.NoError(t, err)
	carrier := calls.New(pools, calls.Config{Template: "t", Connect: connect})
	t.Cleanup(func() {
		assert.NoError(t, carrier.Close(context.Background()))
		assert.NoError(t, pools.Close())
		assert.NoError(t, fleet.Close())
	})
	s := New(Deps{Logger: hclog.NewNullLogger(), Metrics: metrics, Pools: pools, Calls: carrier}, Config{Template: "t"})
	held, err := pools.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "x", Wait: 30 * time.Second})
	require.NoError(t, err)
	ask := func(method, path, body string) (map[string]any, http.Header) {
		answer := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), method, "/v1/leases/"+held.Ref().String()+path, strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		s.ServeHTTP(answer, r)
		require.Equal(t, http.StatusOK, answer.Code, "%s", answer.Body)
		var read map[string]any
		require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &read))
		return read, answer.Header()
	}
	// told is what a renewal and a call say of the container's end.
	told := func() (lease map[string]any, header http.Header) {
		lease, _ = ask(http.MethodPut, "", "{}")
		_, header = ask(http.MethodPost, "/execute", `{"tool":"bash","args":{"command":"true"}}`)
		return lease, header
	}
	nothing := func() {
		lease, header := told()
		for _, name := range []string{"draining", "unheard", "drain_deadline"} {
			assert.NotContains(t, lease, name)
		}
		assert.NotContains(t, header, poolapi.HeaderDraining)
		assert.NotContains(t, header, poolapi.HeaderUnheard)
	}
	knows := func(unheard bool) {
		require.Eventually(t, func() bool {
			known, _ := pools.Known(held.Container.ID)
			return known.Unheard == unheard
		}, 30*time.Second, time.Millisecond)
	}

	nothing()
	by := time.Now().Add(10 * time.Minute).UTC().Truncate(time.Second)
	require.True(t, fleet.Unhear(held.Container.ID, true, by))
	knows(true)
	lease, header := told()
	assert.Equal(t, []any{true, true, by.Format(time.RFC3339)}, []any{lease["draining"], lease["unheard"], lease["drain_deadline"]})
	assert.Equal(t, by.Format(time.RFC3339), header.Get(poolapi.HeaderDraining))
	assert.Equal(t, "true", header.Get(poolapi.HeaderUnheard))

	require.True(t, fleet.Unhear(held.Container.ID, false, time.Time{}))
	knows(false)
	nothing()
	require.True(t, fleet.Drain(held.Container.ID, true, by))
	require.Eventually(t, func() bool {
		known, _ := pools.Known(held.Container.ID)
		return known.Draining
	}, 30*time.Second, time.Millisecond)
	lease, header = told()
	assert.NotContains(t, lease, "unheard", "it drains, and is heard of")
	assert.NotContains(t, header, poolapi.HeaderUnheard)
	assert.Equal(t, by.Format(time.RFC3339), header.Get(poolapi.HeaderDraining))
}
