package keeper

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots"
)

func TestASlotHasOneLeaseAndServesItsTokenAlone(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		lease := h.lease(t, "a", time.Minute)
		_, err := h.Acquire("slot_0", api.LeaseRequest{Trajectory: "b"})
		assert.Equal(t, slots.KindConflict, kind(err))
		_, err = h.Acquire("slot_0", api.LeaseRequest{Trajectory: "a"})
		assert.Equal(t, slots.KindConflict, kind(err))

		c := call("true")
		assert.Equal(t, slots.KindFenced, h.run(c).Metadata.ErrorKind)
		c.Token = new(lease.Token + 1)
		assert.Equal(t, slots.KindFenced, h.run(c).Metadata.ErrorKind)
		c.Token = &lease.Token
		assert.True(t, h.run(c).Success)
		assert.Equal(t, []slots.Lease{lease}, h.Leases())
		assert.Equal(t, 1, h.Health().Leased)
	})
}

func TestAWrongLeaseRequestIsRefused(t *testing.T) {
	t.Parallel()
	bubble(t, Config{MaxTTL: time.Hour}, func(h *harness) {
		t := h.t
		for _, want := range []api.LeaseRequest{
			{},
			{Trajectory: "a", TTLSeconds: -1},
			{Trajectory: "a", TTLSeconds: 3601},
			{Trajectory: "a", TTLSeconds: math.NaN()},
			{Trajectory: "a", TTLSeconds: math.Inf(1)},
			{Trajectory: "a", Labels: manyLabels()},
		} {
			_, err := h.Acquire("slot_0", want)
			assert.Equal(t, slots.KindBadRequest, kind(err), "%v", want)
			_, err = h.AcquireAny(want)
			assert.Equal(t, slots.KindBadRequest, kind(err), "%v", want)
		}
		_, err := h.Acquire("slot_7", api.LeaseRequest{Trajectory: "a"})
		assert.Equal(t, slots.KindNotFound, kind(err))
		_, err = h.Renew("slot_7", api.LeaseRenewal{})
		assert.Equal(t, slots.KindNotFound, kind(err))
		_, err = h.Release(t.Context(), "slot_7", 0, true)
		assert.Equal(t, slots.KindNotFound, kind(err))
	})
}

func manyLabels() map[string]string {
	labels := map[string]string{}
	for i := range 100 {
		labels[fmt.Sprint(i)] = "x"
	}
	return labels
}

func TestAcquireComparesTheTokenItExpects(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		want := api.LeaseRequest{Trajectory: "a", ExpectedToken: new(uint64(0))}
		lease, err := h.Acquire("slot_0", want)
		require.NoError(t, err)
		_, err = h.Release(t.Context(), "slot_0", lease.Token, true)
		require.NoError(t, err)
		_, err = h.Acquire("slot_0", want)
		assert.Equal(t, slots.KindConflict, kind(err))
		want.ExpectedToken = &lease.Token
		_, err = h.Acquire("slot_0", want)
		assert.NoError(t, err)
	})
}

func TestAnyFreeSlotIsTakenInTurnsUntilThereIsNone(t *testing.T) {
	t.Parallel()
	bubble(t, Config{Slots: 3}, func(h *harness) {
		t := h.t
		h.Submit(t.Context(), call("sleep 1h"))
		synctest.Wait()
		taken := map[string]bool{}
		for range 2 {
			l, err := h.AcquireAny(api.LeaseRequest{Trajectory: "a"})
			require.NoError(t, err)
			taken[l.SlotID] = true
		}
		assert.Equal(t, map[string]bool{"slot_1": true, "slot_2": true}, taken, "slot_0 serves somebody without a lease")
		_, err := h.AcquireAny(api.LeaseRequest{Trajectory: "a"})
		assert.Equal(t, slots.KindPoolExhausted, kind(err))
	})
}

func TestABusySlotCannotBeLeased(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		e := h.Submit(t.Context(), call("sleep 1s"))
		synctest.Wait()
		_, err := h.Acquire("slot_0", api.LeaseRequest{Trajectory: "a"})
		assert.Equal(t, slots.KindConflict, kind(err))
		<-e.Done()
		h.lease(t, "a", time.Minute)
	})
}

func TestAnExpiredLeaseResetsTheSlotByItself(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		lease := h.lease(t, "a", time.Minute)
		time.Sleep(time.Minute - time.Millisecond)
		synctest.Wait()
		assert.Len(t, h.Leases(), 1)
		assert.Zero(t, h.box(0).swaps())
		time.Sleep(time.Millisecond)
		synctest.Wait()
		assert.Empty(t, h.Leases())
		assert.Equal(t, 1, h.box(0).swaps())
		assert.EqualValues(t, 1, h.Slots()[0].Generation)
		_, err := h.Renew("slot_0", api.LeaseRenewal{Token: lease.Token})
		assert.Equal(t, slots.KindFenced, kind(err))
		next := h.lease(t, "b", time.Minute)
		assert.Greater(t, next.Token, lease.Token)
	})
}

func TestARenewedLeaseLastsAsLongAsItSays(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		lease := h.lease(t, "a", time.Minute)
		for range 10 {
			time.Sleep(50 * time.Second)
			_, err := h.Renew("slot_0", api.LeaseRenewal{Token: lease.Token})
			require.NoError(t, err)
		}
		assert.Zero(t, h.box(0).swaps())
		renewed, err := h.Renew("slot_0", api.LeaseRenewal{Token: lease.Token, TTLSeconds: 5})
		require.NoError(t, err)
		assert.Equal(t, 5*time.Second, time.Until(renewed.ExpiresAt))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		assert.Equal(t, 1, h.box(0).swaps())
	})
}

func TestExpiryEndsWhatRunsAndWhatWaits(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		lease := h.lease(t, "a", time.Minute)
		c := call("sleep 1h")
		c.Token, c.Timeout = &lease.Token, api.Seconds(3600)
		running, waiting := h.Submit(t.Context(), c), h.Submit(t.Context(), c)
		start := time.Now()
		<-running.Done()
		<-waiting.Done()
		assert.Equal(t, time.Minute, time.Since(start))
		assert.Equal(t, slots.OutcomeCancelled, running.Result().Metadata.Outcome)
		assert.Equal(t, slots.KindLeaseExpired, running.Result().Metadata.ErrorKind)
		assert.Equal(t, slots.ExecutedYes, running.Result().Metadata.Executed)
		assert.Equal(t, slots.KindLeaseExpired, waiting.Result().Metadata.ErrorKind)
		assert.Equal(t, slots.ExecutedNever, waiting.Result().Metadata.Executed)
		synctest.Wait()
		assert.Equal(t, slots.StateAvailable, h.state(0))
	})
}

func TestATokenIsCheckedAgainWhenItsCallLeavesTheQueue(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		lease := h.lease(t, "a", time.Hour)
		c := call("sleep 10s")
		c.Token = &lease.Token
		running := h.Submit(t.Context(), c)
		late := call("late")
		late.Token = &lease.Token
		waiting := h.Submit(t.Context(), late)
		synctest.Wait()
		_, err := h.Release(t.Context(), "slot_0", lease.Token, false)
		require.NoError(t, err)
		<-running.Done()
		<-waiting.Done()
		assert.True(t, running.Result().Success, "it had begun under its lease")
		assert.Equal(t, slots.KindFenced, waiting.Result().Metadata.ErrorKind)
		assert.NotContains(t, h.box(0).commands(), "late")
	})
}

func TestReleaseResetsUnlessToldOtherwise(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		lease := h.lease(t, "a", time.Minute)
		receipt, err := h.Release(t.Context(), "slot_0", lease.Token, true)
		require.NoError(t, err)
		assert.True(t, receipt.Clean)
		assert.EqualValues(t, 1, receipt.Generation)

		again, err := h.Release(t.Context(), "slot_0", lease.Token, true)
		require.NoError(t, err, "a release whose answer was lost is sent again")
		assert.Equal(t, receipt, again)
		assert.Equal(t, 1, h.box(0).swaps())

		next := h.lease(t, "b", time.Minute)
		_, err = h.Release(t.Context(), "slot_0", lease.Token, true)
		assert.Equal(t, slots.KindFenced, kind(err))
		_, err = h.Release(t.Context(), "slot_0", next.Token, false)
		require.NoError(t, err)
		receipt, err = h.Release(t.Context(), "slot_0", next.Token, true)
		require.NoError(t, err)
		assert.False(t, receipt.Clean, "nothing was proven since")
		assert.Equal(t, 1, h.box(0).swaps())
		time.Sleep(time.Hour)
		assert.Equal(t, 1, h.box(0).swaps(), "the timer of a released lease does nothing")
	})
}

func TestTwoReleasesAtOnceAreOneReset(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		h.box(0).set(func(f *fakeSandbox) { f.resetTakes = time.Second })
		lease := h.lease(t, "a", time.Minute)
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				receipt, err := h.Release(context.Background(), "slot_0", lease.Token, true)
				assert.True(t, receipt.Clean, "%v", err)
			})
		}
		wg.Wait()
		assert.Equal(t, 1, h.box(0).swaps())
	})
}

func TestALeaseThatCannotBeSavedIsNotGiven(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		h.store.fail(errors.New("disk full"))
		_, err := h.Acquire("slot_0", api.LeaseRequest{Trajectory: "a"})
		assert.Equal(t, slots.KindInternal, kind(err))
		assert.Empty(t, h.Leases())
		h.store.fail(nil)
		lease := h.lease(t, "a", time.Minute)

		h.store.fail(errors.New("disk full"))
		_, err = h.Renew("slot_0", api.LeaseRenewal{Token: lease.Token, TTLSeconds: 3600})
		assert.Equal(t, slots.KindInternal, kind(err))
		_, err = h.Release(t.Context(), "slot_0", lease.Token, true)
		assert.Equal(t, slots.KindInternal, kind(err))
		assert.Equal(t, []slots.Lease{lease}, h.Leases(), "what holds is what is on record")
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Empty(t, h.Leases(), "but a lease ends with its time, saved or not")
		assert.Equal(t, 1, h.box(0).swaps())
		h.store.fail(nil)
	})
}
