package function

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
	"berth/orchestrator/pool"
	"berth/slots"
)

// oneSlot is Leases of one slot.
type oneSlot struct {
	free    chan struct{} // holds one while the slot is free
	renewed int
	fault   error // of the next renewals
}

func newOneSlot() *oneSlot {
	o := &oneSlot{free: make(chan struct{}, 1)}
	o.free <- struct{}{}
	return o
}

func (o *oneSlot) lease(ttl time.Duration) pool.Lease {
	return pool.Lease{Container: backend.Container{ID: "c"}, Slot: slots.Lease{SlotID: "slot_0", Token: 1, TTL: ttl, ExpiresAt: time.Now().Add(ttl)}}
}

func (o *oneSlot) Acquire(ctx context.Context, want pool.Request) (pool.Lease, error) {
	select {
	case <-o.free:
		return o.lease(want.TTL), nil
	case <-time.After(want.Wait):
		return pool.Lease{}, slots.Errorf(slots.KindPoolExhausted, "no slot")
	case <-ctx.Done():
		return pool.Lease{}, slots.Errorf(slots.KindInterrupted, "gone")
	}
}

func (o *oneSlot) Renew(ctx context.Context, _ pool.Ref, ttl time.Duration) (pool.Lease, error) {
	if err := context.Cause(ctx); err != nil {
		return pool.Lease{}, err
	}
	o.renewed++
	return o.lease(ttl), o.fault
}

func (o *oneSlot) Release(context.Context, pool.Ref, bool) (*slots.Receipt, error) {
	o.free <- struct{}{}
	return &slots.Receipt{}, nil
}

func of(run time.Duration) want {
	return want{tenant: tenant{"t", "o", "f"}, keep: time.Minute, run: run}
}

func TestASlotThatIsHandedOverIsLeasedForTheNextRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWarm(newOneSlot(), time.Hour)
		defer w.close()
		first, err := w.get(t.Context(), of(time.Second))
		require.NoError(t, err)
		second := make(chan *held)
		go func() {
			h, err := w.get(t.Context(), of(time.Hour))
			assert.NoError(t, err)
			second <- h
		}()
		time.Sleep(time.Minute) // it waits
		w.put(first, true)
		h := <-second
		assert.True(t, h.reused)
		assert.GreaterOrEqual(t, time.Until(h.lease.Slot.ExpiresAt), time.Hour, "however little the run before it wanted")
		w.put(h, true)
	})
}

func TestASlotThatComesToRestBeforeTheWaitIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWarm(newOneSlot(), time.Hour)
		defer w.close()
		h, err := w.get(t.Context(), of(time.Second))
		require.NoError(t, err)
		w.put(h, true) // after the other run has looked for one at rest
		began := time.Now()
		again, err := w.await(t.Context(), of(time.Second))
		require.NoError(t, err)
		assert.Same(t, h, again)
		assert.Zero(t, time.Since(began))
		w.put(again, true)
	})
}

func TestACallerThatHasGoneLeavesTheWarmSlotToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWarm(newOneSlot(), time.Hour)
		defer w.close()
		h, err := w.get(t.Context(), of(time.Second))
		require.NoError(t, err)
		w.put(h, true)
		gone, leave := context.WithCancel(t.Context())
		leave()
		_, err = w.get(gone, of(time.Hour)) // which wants it renewed
		require.Error(t, err)
		again, err := w.get(t.Context(), of(time.Second))
		require.NoError(t, err)
		assert.Same(t, h, again)
		w.put(again, true)
	})
}

func TestALeaseHoldsForAsLongAsItsEnvironmentTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leases := newOneSlot()
		w := newWarm(leases, time.Hour)
		defer w.close()
		h, err := w.get(t.Context(), of(time.Second))
		require.NoError(t, err)
		stop := w.hold(t.Context(), h, time.Minute)
		for range 60 {
			time.Sleep(time.Minute)
		}
		stop()
		assert.Positive(t, time.Until(h.lease.Slot.ExpiresAt), "an hour later")
		assert.Positive(t, leases.renewed)
		assert.True(t, w.lasts(t.Context(), h, time.Minute))
		leases.fault = slots.Errorf(slots.KindLeaseExpired, "over")
		assert.False(t, w.lasts(t.Context(), h, 24*time.Hour))
	})
}

func TestIntegersTakeNoMoreRoomThanTheyWereWrittenIn(t *testing.T) {
	for value, want := range map[string]string{
		`"007"`: "7", `"-0"`: "0", `"+12"`: "12", `"-000340"`: "-340", `3.0`: "3", `12e2`: "1200", `-1.50e1`: "-15", `"0"`: "0",
	} {
		got, ok := coerceTo("integer", []byte(value))
		assert.True(t, ok, value)
		assert.Equal(t, want, string(got))
	}
	for _, value := range []string{`1e9999`, `1e100`, `1.5`, `"1.0"`, `""`, `"-"`} {
		_, ok := coerceTo("integer", []byte(value))
		assert.False(t, ok, value)
	}
}
