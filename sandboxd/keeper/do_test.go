package keeper

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots"
)

func TestAnOperationDoesNotWaitForTheCallThatRuns(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		e := h.Submit(t.Context(), call("sleep 10s"))
		synctest.Wait()
		start := time.Now()
		require.NoError(t, h.Do(t.Context(), "slot_0", nil, "read", time.Second, nil, nil, nil))
		assert.Equal(t, time.Second, time.Since(start))
		<-e.Done()
	})
}

func TestOperationsOfASlotAreBounded(t *testing.T) {
	t.Parallel()
	bubble(t, Config{OpsMax: 3}, func(h *harness) {
		t := h.t
		var wg sync.WaitGroup
		for range 30 {
			wg.Go(func() {
				assert.NoError(t, h.Do(context.Background(), "slot_0", nil, "read", time.Second, nil, nil, nil))
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		err := h.Do(ctx, "slot_0", nil, "read", nil, nil, nil, nil)
		assert.Equal(t, slots.KindQueueTimeout, kind(err))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		wg.Wait()
		assert.Equal(t, 3, h.box(0).mostOps)
	})
}

func TestAnOperationNeedsTheToken(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		lease := h.lease(t, "a", time.Minute)
		assert.Equal(t, slots.KindFenced, kind(h.Do(t.Context(), "slot_0", nil, "read", nil, nil, nil, nil)))
		assert.Equal(t, slots.KindNotFound, kind(h.Do(t.Context(), "slot_x", nil, "read", nil, nil, nil, nil)))
		assert.NoError(t, h.Do(t.Context(), "slot_0", &lease.Token, "read", nil, nil, nil, nil))
	})
}

func TestAResetEndsOperationsAndHoldsNewOnesBack(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		h.box(0).set(func(f *fakeSandbox) { f.resetTakes = time.Second })
		var wg sync.WaitGroup
		wg.Go(func() {
			err := h.Do(context.Background(), "slot_0", nil, "write", time.Hour, nil, nil, nil)
			assert.Equal(t, slots.KindInterrupted, kind(err))
			assert.Equal(t, slots.ExecutedMaybe, slots.AsError(err).Executed)
		})
		synctest.Wait()
		start := time.Now()
		wg.Go(func() {
			_, err := h.Reset(context.Background(), "slot_0", nil)
			assert.NoError(t, err)
		})
		synctest.Wait()
		require.NoError(t, h.Do(t.Context(), "slot_0", nil, "read", nil, nil, nil, nil))
		assert.Equal(t, time.Second, time.Since(start))
		wg.Wait()
	})
}

func TestAnOperationWaitsForAResetNoLongerThanItsCaller(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		h.box(0).set(func(f *fakeSandbox) { f.resetTakes = 20 * time.Second })
		go func() { _, _ = h.Reset(context.Background(), "slot_0", nil) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := h.Do(ctx, "slot_0", nil, "read", nil, nil, nil, nil)
		assert.Equal(t, slots.KindQueueTimeout, kind(err))
		time.Sleep(30 * time.Second)
	})
}

func TestAnOperationThatDoesNotEndDoesNotHoldTheResetForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Config{}, newStore(), nil)
		require.NoError(t, h.WaitReady(t.Context()))
		var wg sync.WaitGroup
		wg.Go(func() {
			err := h.Do(context.Background(), "slot_0", nil, "stuck", 10*time.Minute, nil, nil, nil)
			assert.NoError(t, err)
		})
		synctest.Wait()
		begun := time.Now()
		_, err := h.Reset(t.Context(), "slot_0", nil)
		require.NoError(t, err)
		assert.Equal(t, opsGrace, time.Since(begun))
		wg.Wait()
		h.stop(t)
	})
}

func TestALeaseDoesNotBeginBesideAnOperation(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		go func() { _ = h.Do(context.Background(), "slot_0", nil, "read", time.Second, nil, nil, nil) }()
		synctest.Wait()
		_, err := h.Acquire("slot_0", api.LeaseRequest{Trajectory: "a"})
		assert.Equal(t, slots.KindConflict, kind(err))
		time.Sleep(2 * time.Second)
		h.lease(t, "a", time.Minute)
	})
}
