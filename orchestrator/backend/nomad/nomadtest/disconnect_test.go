package nomadtest_test

import (
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator/backend/nomad/nomadtest"
	"berth/orchestrator/poolapi"
)

func TestLeasesOutliveAClientThatNomadDoesNotHearOf(t *testing.T) {
	t.Parallel()
	a := nomadtest.Start(t, nomadtest.Config{})
	b := nomadtest.Start(t, nomadtest.Config{Servers: []string{a.RPC}})
	o := serve(t, a.URL, "--containers", "2", "--max-containers", "3", "--slots", "1")
	o.settled(t, 2)
	acquire := func(trajectory string) poolapi.Lease {
		t.Helper()
		lease, err := o.Acquire(t.Context(), poolapi.LeaseRequest{Trajectory: trajectory, TTLSeconds: 600, WaitS: 60})
		require.NoError(t, err)
		return lease
	}
	calls := func(lease poolapi.Lease) {
		t.Helper()
		result, err := o.Execute(t.Context(), lease.ID, poolapi.Call{Tool: "bash", Args: []byte(`{"command": "echo here"}`)})
		require.NoError(t, err)
		assert.Equal(t, "here", result.Output)
	}
	held := acquire("one")
	if other := acquire("two"); allocationOf(t, a, held.Container).NodeID != b.NodeID() {
		held = other
	}
	before := allocationOf(t, a, held.Container)
	require.Equal(t, b.NodeID(), before.NodeID, "they are spread")
	turns := func(state string) (c poolapi.Container) {
		t.Helper()
		o.await(t, "state "+state, func() bool {
			all, err := o.Containers(t.Context())
			at := slices.IndexFunc(all, func(c poolapi.Container) bool { return c.ID == held.Container })
			if err != nil || at < 0 {
				return false
			}
			c = all[at]
			return c.State == state
		})
		return c
	}

	b.Kill()
	c := turns("draining")
	assert.WithinDuration(t, time.Now().Add(jobs.LostAfter), c.Deadline, time.Minute)
	unheard, _, err := a.Client.Allocations().Info(before.ID, nil)
	require.NoError(t, err)
	assert.Equal(t, api.AllocClientStatusUnknown, unheard.ClientStatus)
	calls(held)
	third := acquire("three")
	assert.Equal(t, a.NodeID(), allocationOf(t, a, third.Container).NodeID)
	b.Run()
	turns("ready")
	calls(held)
	calls(third)
	after := allocationOf(t, a, held.Container)
	assert.Equal(t, before.ID, after.ID)
	assert.Equal(t, api.AllocClientStatusRunning, after.ClientStatus)
	for _, lease := range []poolapi.Lease{held, third} {
		_, err := o.Release(t.Context(), lease.ID)
		require.NoError(t, err)
	}
}
