package keeper

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots"
)

func TestAResetAnswersWithItsReceipt(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		h.box(0).set(func(f *fakeSandbox) { f.resetTakes = 3 * time.Millisecond })
		receipt, err := h.Reset(t.Context(), "slot_0", nil)
		require.NoError(t, err)
		assert.True(t, receipt.Clean)
		assert.EqualValues(t, 1, receipt.Generation)
		assert.InDelta(t, 3, receipt.MS, 1e-9)
		assert.NotEmpty(t, receipt.Checks)
		_, err = h.Reset(t.Context(), "slot_5", nil)
		assert.Equal(t, slots.KindNotFound, kind(err))
	})
}

func TestAResetNeedsTheTokenOfTheLease(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		_, err := h.Reset(t.Context(), "slot_0", new(uint64(1)))
		assert.Equal(t, slots.KindFenced, kind(err))
		lease := h.lease(t, "a", time.Minute)
		_, err = h.Reset(t.Context(), "slot_0", nil)
		assert.Equal(t, slots.KindFenced, kind(err))
		_, err = h.Reset(t.Context(), "slot_0", &lease.Token)
		require.NoError(t, err)
		assert.Equal(t, []slots.Lease{lease}, h.Leases(), "a reset leaves the lease alone")
	})
}

func TestS11_AResetEndsTheCallThatRunsAndRefusesThoseThatWait(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		running, waiting := h.Submit(t.Context(), call("sleep 1h")), h.Submit(t.Context(), call("never"))
		synctest.Wait()
		_, err := h.Reset(t.Context(), "slot_0", nil)
		require.NoError(t, err)
		for _, e := range []interface {
			Done() <-chan struct{}
			Result() api.Result
		}{running, waiting} {
			select {
			case <-e.Done():
			default:
				t.Fatal("a call outlived the reset")
			}
			assert.Equal(t, slots.KindInterrupted, e.Result().Metadata.ErrorKind)
			assert.Equal(t, "slot slot_0 was reset", e.Result().Error)
			assert.EqualValues(t, 0, e.Result().Metadata.Generation)
		}
		assert.Equal(t, slots.OutcomeCancelled, running.Result().Metadata.Outcome)
		assert.Equal(t, slots.ExecutedYes, running.Result().Metadata.Executed)
		assert.Equal(t, slots.ExecutedNever, waiting.Result().Metadata.Executed)
		assert.NotContains(t, h.box(0).commands(), "never")
	})
}

func TestS12_ResetsAtOnceAreOneSwap(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		h.box(0).set(func(f *fakeSandbox) { f.resetTakes = time.Second })
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 50 * time.Millisecond)
				receipt, err := h.Reset(context.Background(), "slot_0", nil)
				assert.EqualValues(t, 1, receipt.Generation, "%v", err)
			})
		}
		wg.Wait()
		assert.Equal(t, 1, h.box(0).swaps())
	})
}

func TestS13_ACallDuringAResetRunsAfterIt(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		h.box(0).set(func(f *fakeSandbox) { f.resetTakes = time.Second })
		go func() { _, _ = h.Reset(context.Background(), "slot_0", nil) }()
		synctest.Wait()
		assert.Equal(t, slots.StateResetting, h.state(0))
		r := h.run(call("true"))
		assert.True(t, r.Success)
		assert.EqualValues(t, 1, r.Metadata.Generation)
		assert.InDelta(t, 1000, r.Metadata.QueueMS, 1e-6)
	})
}

func TestAResetGoesOnWhenItsCallerGoesAway(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		h.box(0).set(func(f *fakeSandbox) { f.resetTakes = time.Second })
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := h.Reset(ctx, "slot_0", nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, 1, h.box(0).swaps())
		assert.Equal(t, slots.StateAvailable, h.state(0))
	})
}

func TestAnUncleanResetQuarantinesTheSlotUntilOneSucceeds(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		breaks func(*fakeSandbox)
		text   string
	}{
		"unclean": {func(f *fakeSandbox) { f.unclean = true }, "slot slot_0 is quarantined: reset is not clean: files (1 file left)"},
		"error":   {func(f *fakeSandbox) { f.resetErr = errors.New("no mount") }, "slot slot_0 is quarantined: reset: no mount"},
		"endless": {func(f *fakeSandbox) { f.resetTakes = time.Hour }, "slot slot_0 is quarantined: reset: context deadline exceeded"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, Config{Slots: 2}, func(h *harness) {
				t := h.t
				h.box(0).set(c.breaks)
				receipt, err := h.Reset(t.Context(), "slot_0", nil)
				require.EqualError(t, err, c.text)
				assert.Equal(t, slots.KindResetFailed, kind(err))
				assert.False(t, receipt.Clean)
				assert.Equal(t, slots.StateQuarantined, h.state(0))
				assert.Equal(t, 1, h.Health().Quarantined)
				assert.Equal(t, api.HealthOK, h.Health().Status, "the other slot works")

				r := h.run(call("true"))
				assert.Equal(t, slots.KindResetFailed, r.Metadata.ErrorKind)
				assert.Equal(t, c.text, r.Error)
				_, err = h.Acquire("slot_0", api.LeaseRequest{Trajectory: "a"})
				assert.Equal(t, slots.KindResetFailed, kind(err))
				err = h.Do(t.Context(), "slot_0", nil, "read", nil, nil, nil, nil)
				assert.Equal(t, slots.KindResetFailed, kind(err))
				for range 3 {
					l, err := h.AcquireAny(api.LeaseRequest{Trajectory: "a"})
					if err == nil {
						assert.Equal(t, "slot_1", l.SlotID)
					}
				}

				h.box(0).set(func(f *fakeSandbox) { f.unclean, f.resetErr, f.resetTakes = false, nil, 0 })
				receipt, err = h.Reset(t.Context(), "slot_0", nil)
				require.NoError(t, err)
				assert.True(t, receipt.Clean)
				assert.True(t, h.run(call("true")).Success)
				assert.Empty(t, h.Slots()[0].Reason)
			})
		})
	}
}

func TestWhatWaitsForAResetIsRefusedWhenItFails(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		h.box(0).set(func(f *fakeSandbox) { f.resetTakes, f.unclean = time.Second, true })
		go func() { _, _ = h.Reset(context.Background(), "slot_0", nil) }()
		synctest.Wait()
		e := h.Submit(t.Context(), call("true"))
		err := h.Do(t.Context(), "slot_0", nil, "read", nil, nil, nil, nil)
		assert.Equal(t, slots.KindResetFailed, kind(err))
		<-e.Done()
		assert.Equal(t, slots.KindResetFailed, e.Result().Metadata.ErrorKind)
		assert.Equal(t, slots.ExecutedNever, e.Result().Metadata.Executed)
		assert.Equal(t, "quarantined", h.Health().Status)
	})
}

func TestAReleaseWhoseResetFailsEndsTheLeaseNevertheless(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		lease := h.lease(t, "a", time.Minute)
		h.box(0).set(func(f *fakeSandbox) { f.unclean = true })
		receipt, err := h.Release(t.Context(), "slot_0", lease.Token, true)
		assert.Equal(t, slots.KindResetFailed, kind(err))
		assert.False(t, receipt.Clean)
		assert.Empty(t, h.Leases())
	})
}

func TestASlotThatCannotBeOpenedIsQuarantinedAndOpenedByAReset(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Config{}, newStore(), nil, func(h *harness) { h.openErr = errors.New("no namespaces") })
		err := h.WaitReady(t.Context())
		require.EqualError(t, err, "slot slot_0 is quarantined: open: no namespaces")
		assert.True(t, h.Ready(), "the agent serves, and says what is wrong")
		_, err = h.Reset(t.Context(), "slot_0", nil)
		assert.Equal(t, slots.KindResetFailed, kind(err))
		h.openErr = nil
		_, err = h.Reset(t.Context(), "slot_0", nil)
		require.NoError(t, err)
		assert.True(t, h.run(call("true")).Success)
		h.stop(t)
	})
}
