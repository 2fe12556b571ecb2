package nomadtest_test

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend/nomad/nomadtest"
	"berth/orchestrator/poolapi"
)

// shows waits until the orchestrator shows the only container in the state.
func (o *orchestrator) shows(t *testing.T, state string) (c poolapi.Container) {
	t.Helper()
	o.await(t, "state "+state, func() bool {
		all, err := o.Containers(t.Context())
		if err != nil || len(all) != 1 {
			return false
		}
		c = all[0]
		return c.State == state
	})
	return c
}

func TestTheDutyIsGivenBackAtAnOrderlyEnd(t *testing.T) {
	t.Parallel()
	const scales = "this orchestrator scales the job"
	a := nomadtest.Start(t, nomadtest.Config{})
	size := []string{"--containers", "1", "--slots", "1"}
	first := serve(t, a.URL, size...)
	first.settled(t, 1)
	second := serve(t, a.URL, size...)
	second.settled(t, 1)
	require.Zero(t, second.said(t, scales))

	// What is asked of either holds for both, and outlasts who leads.
	one := second.ids(t)[0]
	_, err := second.Cordon(t.Context(), one, true)
	require.NoError(t, err)
	first.shows(t, "cordoned")
	_, err = first.Cordon(t.Context(), one, false)
	require.NoError(t, err)
	second.shows(t, "ready")
	held, alloc := hold(t, first), allocationOf(t, a, one).ID
	const within = 10 * time.Second
	asked := time.Now()
	_, err = second.Drain(t.Context(), one, within)
	require.NoError(t, err)
	assert.WithinDuration(t, asked.Add(within), first.shows(t, "draining").Deadline, 5*time.Second)

	first.end(t)
	began := time.Now()
	second.await(t, "the duty", func() bool { return second.said(t, scales) > 0 })
	assert.Less(t, time.Since(began), 10*time.Second, "a lock that is not given back lasts at least half as long again")
	assert.Equal(t, []string{one}, second.ids(t), "it has a lease, and its time is not over")
	second.await(t, "a stop", func() bool {
		now, _, err := a.Client.Allocations().Info(alloc, nil)
		return err == nil && now.DesiredStatus == api.AllocDesiredStatusStop
	})
	assert.GreaterOrEqual(t, time.Since(asked), within)
	_, err = second.Release(t.Context(), held.lease.ID) // else Nomad waits for it
	require.NoError(t, err)
	second.settled(t, 1, one)
}
