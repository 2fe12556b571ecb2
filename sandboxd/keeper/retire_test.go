package keeper

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots"
)

// retire begins to, and tells by the channel when it is done.
func (h *harness) retire(within time.Duration) <-chan time.Duration {
	ctx, cancel := context.WithTimeout(h.t.Context(), within)
	done := make(chan time.Duration, 1)
	start := time.Now()
	go func() { // ends with ctx
		defer cancel()
		h.Retire(ctx)
		done <- time.Since(start)
	}()
	synctest.Wait()
	return done
}

func TestARetiringKeeperServesLeasesUntilTheyEnd(t *testing.T) {
	t.Parallel()
	bubble(t, Config{Slots: 4}, func(h *harness) {
		t := h.t
		released := h.lease(t, "a", time.Hour)
		expired, err := h.Acquire("slot_1", api.LeaseRequest{Trajectory: "b", TTLSeconds: 20})
		require.NoError(t, err)
		_, err = h.Acquire("slot_2", api.LeaseRequest{Trajectory: "nobody", TTLSeconds: 3600, Labels: map[string]string{api.LabelClosing: "1"}})
		require.NoError(t, err)
		by := time.Now().Add(time.Minute)
		retired := h.retire(time.Minute)

		assert.Equal(t, "draining", h.Health().Status)
		assert.WithinDuration(t, by, h.Health().DrainDeadline, 0)
		assert.False(t, h.Ready())
		_, err = h.AcquireAny(api.LeaseRequest{Trajectory: "c"})
		assert.Equal(t, slots.KindDraining, kind(err), "a free slot is not given any more")
		_, err = h.Acquire("slot_3", api.LeaseRequest{Trajectory: "c"})
		assert.Equal(t, slots.KindDraining, kind(err))
		for _, free := range []string{"slot_2", "slot_3"} {
			c := call("new")
			c.SlotID = free
			assert.Equal(t, slots.KindDraining, h.run(c).Metadata.ErrorKind)
		}

		time.Sleep(10 * time.Second)
		held := call("held")
		held.SlotID, held.Token = released.SlotID, &released.Token
		assert.True(t, h.run(held).Success)
		_, err = h.Renew(released.SlotID, api.LeaseRenewal{Token: released.Token})
		require.NoError(t, err)
		receipt, err := h.Release(t.Context(), released.SlotID, released.Token, true)
		require.NoError(t, err)
		assert.True(t, receipt.Clean)
		synctest.Wait()
		assert.Equal(t, slots.KindDraining, h.run(held).Metadata.ErrorKind, "its slot is drained")
		held.SlotID, held.Token = expired.SlotID, &expired.Token
		assert.True(t, h.run(held).Success, "the other one is not")
		assert.Equal(t, 20*time.Second, <-retired, "when the last lease ends")
		require.NoError(t, h.Drain(t.Context()))
	})
}

func TestARetiringKeeperDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	bubble(t, Config{Slots: 1}, func(h *harness) {
		t := h.t
		lease := h.lease(t, "a", time.Hour)
		running := call("sleep 25s")
		running.SlotID, running.Token = lease.SlotID, &lease.Token
		e := h.Submit(t.Context(), running)
		assert.Equal(t, 5*time.Second, <-h.retire(5*time.Second))
		require.NoError(t, h.Close())
		<-e.Done()
		assert.Equal(t, slots.KindDraining, e.Result().Metadata.ErrorKind)
		assert.Equal(t, lease.Token, h.Leases()[0].Token, "it stays on record")
	})
}

func TestAKeeperWithoutLeasesRetiresAtOnce(t *testing.T) {
	t.Parallel()
	bubble(t, Config{Slots: 2}, func(h *harness) {
		assert.Zero(h.t, <-h.retire(time.Minute))
		require.NoError(h.t, h.Drain(h.t.Context()))
	})
}
