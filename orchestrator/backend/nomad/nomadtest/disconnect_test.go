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
	o := serve(t, a.URL, "--containers", "2", "--max-containers", "3", "--slots", "2")
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
	var there []poolapi.Lease // on the machine that is lost
	for _, trajectory := range []string{"one", "two", "three", "four"} {
		if lease := acquire(trajectory); allocationOf(t, a, lease.Container).NodeID == b.NodeID() {
			there = append(there, lease)
		}
	}
	require.Len(t, there, 2, "they are spread")
	held := there[0]
	before := allocationOf(t, a, held.Container)
	_, err := o.Release(t.Context(), there[1].ID)
	require.NoError(t, err)
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
	c := turns("unheard")
	assert.WithinDuration(t, time.Now().Add(jobs.LostAfter), c.Deadline, time.Minute)
	unheard, _, err := a.Client.Allocations().Info(before.ID, nil)
	require.NoError(t, err)
	assert.Equal(t, api.AllocClientStatusUnknown, unheard.ClientStatus)
	calls(held)
	fifth := acquire("five")
	assert.Equal(t, a.NodeID(), allocationOf(t, a, fifth.Container).NodeID, "its free slot is not given while it may be lost")
	b.Run()
	turns("ready")
	calls(held)
	calls(fifth)
	sixth := acquire("six")
	assert.Equal(t, held.Container, sixth.Container, "its free slot is there again")
	calls(sixth)
	after := allocationOf(t, a, held.Container)
	assert.Equal(t, before.ID, after.ID)
	assert.Equal(t, api.AllocClientStatusRunning, after.ClientStatus)
	for _, lease := range []poolapi.Lease{held, fifth, sixth} {
		_, err := o.Release(t.Context(), lease.ID)
		require.NoError(t, err)
	}
}
