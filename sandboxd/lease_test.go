package sandboxd_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/slots"
)

func TestC14ALeaseFencesItsSlot(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	lease, err := a.Acquire(t.Context(), "slot_0", api.LeaseRequest{Trajectory: "one", TTLSeconds: 60})
	require.NoError(t, err)
	_, err = a.Acquire(t.Context(), "slot_0", api.LeaseRequest{Trajectory: "two", TTLSeconds: 60})
	assert.Equal(t, slots.KindConflict, slots.AsError(err).Kind)

	kind := func(token *uint64) any {
		body := object{"tool": "bash", "args": object{"command": "true"}}
		if token != nil {
			body["token"] = *token
		}
		return meta(t, execute(t, a, body))["error_kind"]
	}
	old := lease.Token - 1
	assert.Nil(t, kind(&lease.Token))
	assert.Equal(t, "fenced", kind(nil))
	assert.Equal(t, "fenced", kind(&old))
	for _, request := range []func() agenttest.Answer{
		func() agenttest.Answer { return a.Post(t, "/artifacts/list", object{"slot_id": "slot_0"}) },
		func() agenttest.Answer { return a.Send(t, http.MethodGet, "/slots/slot_0/files/x", "") },
		func() agenttest.Answer { return a.Send(t, http.MethodPut, "/slots/slot_0/files/x", "x") },
	} {
		assert.Equal(t, http.StatusConflict, request().Status)
	}
	assert.Equal(t, "fenced", meta(t, a.Post(t, "/reset", object{"slot_id": "slot_0"}).Object(t))["error_kind"])

	_, err = a.Renew(t.Context(), "slot_0", api.LeaseRenewal{Token: lease.Token, TTLSeconds: 90})
	require.NoError(t, err)
	receipt, err := a.Release(t.Context(), "slot_0", api.LeaseRelease{Token: lease.Token})
	require.NoError(t, err)
	assert.True(t, receipt.Clean)
	again, err := a.Release(t.Context(), "slot_0", api.LeaseRelease{Token: lease.Token})
	require.NoError(t, err, "releasing twice is once")
	assert.Equal(t, receipt.Generation, again.Generation)
	assert.Equal(t, "fenced", kind(&lease.Token))
	assert.Nil(t, kind(nil))

	next, err := a.Acquire(t.Context(), "slot_0", api.LeaseRequest{Trajectory: "two", TTLSeconds: 60})
	require.NoError(t, err)
	assert.Greater(t, next.Token, lease.Token)
	_, err = a.Release(t.Context(), "slot_0", api.LeaseRelease{Token: lease.Token})
	assert.Equal(t, slots.KindFenced, slots.AsError(err).Kind)
	for body, status := range map[string]int{`{"trajectory":"x","future":1}`: 400, `{"trajectory":"x","ttl_s":-1}`: 400, `{"trajectory":"x","ttl_s":1e12}`: 400, `{`: 400, `{"trajectory":5}`: 400} {
		assert.Equal(t, status, a.Send(t, http.MethodPost, "/v1/slots/slot_1/lease", body).Status, body)
	}
}

func TestC14LeasesOutliveTheAgentAndEndByThemselves(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	long, err := a.Acquire(t.Context(), "slot_0", api.LeaseRequest{Trajectory: "long", TTLSeconds: 300, Labels: map[string]string{"a": "b"}})
	require.NoError(t, err)
	short, err := a.Acquire(t.Context(), "slot_1", api.LeaseRequest{Trajectory: "short", TTLSeconds: 1})
	require.NoError(t, err)
	_, err = a.Execute(t.Context(), api.Call{SlotID: "slot_1", Tool: "write_file", Args: []byte(`{"path":"f","content":"x"}`), Token: &short.Token})
	require.NoError(t, err)
	before, err := a.Slots(t.Context())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		now, err := a.Slots(t.Context())
		return err == nil && now[1].Lease == nil && now[1].State == slots.StateAvailable && now[1].Generation > before[1].Generation
	}, 15*time.Second, 20*time.Millisecond, "an expired lease resets its slot")
	assert.Empty(t, a.Bash(t, "slot_1", "ls", 10).Output)

	_, err = a.Execute(t.Context(), api.Call{SlotID: "slot_0", Tool: "write_file", Args: []byte(`{"path":"d/f","content":"mine"}`), Token: &long.Token})
	require.NoError(t, err)

	last, err := a.Acquire(t.Context(), "slot_1", api.LeaseRequest{Trajectory: "last", TTLSeconds: 1})
	require.NoError(t, err)
	a.Kill()
	b := agenttest.Start(t, agenttest.Options{Level: a.Level, Slots: 2, Dir: a.Dir})
	leases, err := b.Leases(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, leases)
	assert.Equal(t, long.Token, leases[0].Token)
	assert.Equal(t, "long", leases[0].Trajectory)
	assert.Equal(t, "b", leases[0].Labels["a"])
	kept, err := b.Execute(t.Context(), api.Call{SlotID: "slot_0", Tool: "bash", Args: []byte(`{"command":"echo more >> d/f; cat d/f"}`), Token: &long.Token})
	require.NoError(t, err)
	assert.Equal(t, "minemore", kept.Output, "the lease's files as well")
	_, err = b.Renew(t.Context(), "slot_0", api.LeaseRenewal{Token: long.Token})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		now, err := b.Slots(t.Context())
		return err == nil && now[1].Lease == nil && now[1].State == slots.StateAvailable
	}, 15*time.Second, 20*time.Millisecond, "a lease that ran out while nobody watched")
	next, err := b.Acquire(t.Context(), "slot_1", api.LeaseRequest{Trajectory: "next", TTLSeconds: 60})
	require.NoError(t, err)
	assert.Greater(t, next.Token, last.Token, "tokens grow over restarts")
	none, err := b.AcquireAny(t.Context(), api.LeaseRequest{Trajectory: "any"})
	assert.Equal(t, slots.KindPoolExhausted, slots.AsError(err).Kind, "%v", none)
}
