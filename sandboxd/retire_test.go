package sandboxd_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/slots"
)

// told sends SIGTERM and waits until the agent says that it drains.
func told(t *testing.T, a *agenttest.Agent) (until time.Time) {
	t.Helper()
	require.NoError(t, syscall.Kill(a.PID, syscall.SIGTERM))
	require.Eventually(t, func() bool {
		h, err := a.Health(t.Context())
		until = h.DrainDeadline
		return err == nil && h.Status == "draining"
	}, 30*time.Second, 5*time.Millisecond)
	return until
}

func TestSIGTERMWaitsForLeasesWhereTheyGoWithTheContainer(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{Slots: 2, Args: []string{"--drain-leases", "on", "--drain-timeout", "60s"}})
	lease, err := a.Acquire(t.Context(), "slot_0", api.LeaseRequest{Trajectory: "x", TTLSeconds: 600})
	require.NoError(t, err)
	began := time.Now()
	until := told(t, a)
	assert.WithinDuration(t, began.Add(time.Minute), until, 30*time.Second)

	_, err = a.AcquireAny(t.Context(), api.LeaseRequest{Trajectory: "y"})
	assert.Equal(t, slots.KindDraining, slots.AsError(err).Kind)
	for _, command := range []string{"echo kept > f", "cat f"} { // a holder goes on
		c := call("slot_0", "", command, 30)
		c.Token = &lease.Token
		result, err := a.Execute(t.Context(), c)
		require.NoError(t, err)
		assert.True(t, result.Success, result.Error)
	}
	receipt, err := a.Release(t.Context(), "slot_0", api.LeaseRelease{Token: lease.Token})
	require.NoError(t, err)
	assert.True(t, receipt.Clean)
	a.Stop(t)
	assert.Less(t, time.Since(began), 55*time.Second, "nothing keeps it any more")
}

func TestSIGTERMLeavesLeasesToTheNextStartElsewhere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args  []string
		least time.Duration
	}{
		"at once":                      {[]string{"--drain-timeout", "300s"}, 0},
		"when the time for them is up": {[]string{"--drain-leases", "on", "--drain-timeout", "1s"}, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := best(t, agenttest.Options{Args: c.args})
			lease, err := a.Acquire(t.Context(), "slot_0", api.LeaseRequest{Trajectory: "x", TTLSeconds: 600})
			require.NoError(t, err)
			began := time.Now()
			a.Stop(t)
			assert.GreaterOrEqual(t, time.Since(began), c.least)
			b := agenttest.Start(t, agenttest.Options{Level: a.Level, Slots: 2, Dir: a.Dir})
			held, err := b.Renew(t.Context(), "slot_0", api.LeaseRenewal{Token: lease.Token})
			require.NoError(t, err)
			assert.Equal(t, "x", held.Trajectory)
		})
	}
}
