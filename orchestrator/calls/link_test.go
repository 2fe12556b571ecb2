package calls_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
	"berth/orchestrator/backend/memory"
	"berth/orchestrator/calls"
	"berth/orchestrator/dispatch"
	"berth/orchestrator/pool"
	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/sandboxd/client"
	"berth/slots"
)

// door is one of several ways to an agent, which can be closed: then it answers
// as an agent does to a token that was good before.
type door struct {
	*httptest.Server
	closed atomic.Bool
}

func newDoor(t *testing.T, to string) *door {
	t.Helper()
	at, err := url.Parse(to)
	require.NoError(t, err)
	d := &door{}
	pass := httputil.NewSingleHostReverseProxy(at)
	pass.FlushInterval = -1
	d.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.closed.Load() {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(d.Close)
	return d
}

// Whoever holds a lease names it again and again, and nothing else brings the
// new address or token of its container to the calls.
func TestCallsByLeaseGoWhereTheContainerIsNow(t *testing.T) {
	a := agenttest.Start(t, agenttest.Options{Level: slots.LevelNone, Slots: 1})
	doors := []*door{newDoor(t, a.URL), newDoor(t, a.URL)}
	fleet := memory.New(memory.Config{URL: func(_ string, n int) string { return doors[n].URL }})
	t.Cleanup(func() { assert.NoError(t, fleet.Close()) })
	connect := func(c backend.Container) (*client.Client, error) {
		return client.New(client.Config{URL: c.URL, Token: a.Token})
	}
	pools, err := pool.New(fleet, func(c backend.Container) (pool.Remote, error) { return connect(c) }, pool.Config{
		Templates: []pool.Template{{Name: "t", Slots: 1, MinContainers: 1, MaxContainers: 1, TTL: time.Minute}},
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, pools.Close()) })
	carrier := calls.New(pools, calls.Config{Template: "t", Connect: connect})
	t.Cleanup(func() { assert.NoError(t, carrier.Close(context.Background())) })

	lease, err := pools.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "x", Wait: 30 * time.Second})
	require.NoError(t, err)
	says := func() (string, error) {
		at, err := carrier.Locate(t.Context(), lease.Ref())
		if err != nil {
			return "", err
		}
		answer, err := carrier.Do(t.Context(), at, dispatch.Call{Call: api.Call{Tool: "bash", Args: json.RawMessage(`{"command":"echo here"}`)}})
		return answer.Result.Output, err
	}
	out, err := says()
	require.NoError(t, err)
	require.Equal(t, "here", out)

	require.True(t, fleet.Flap(lease.Container.ID))
	require.Eventually(t, func() bool {
		known, ok := pools.Known(lease.Container.ID)
		return ok && known.URL == doors[1].URL
	}, 30*time.Second, 5*time.Millisecond)
	doors[0].closed.Store(true)
	out, err = says()
	require.NoError(t, err)
	assert.Equal(t, "here", out)

	_, known := pools.Known("nobody")
	assert.False(t, known)
	_, err = carrier.Locate(t.Context(), pool.Ref{Container: "nobody", SlotID: "slot_0", Token: 1})
	assert.Equal(t, slots.KindSlotLost, slots.AsError(err).Kind)
}
