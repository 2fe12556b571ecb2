package function

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
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
	waiting atomic.Int32
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

func (o *oneSlot) Waiting(string) int { return int(o.waiting.Load()) }

// manySlots is Leases of any number of slots, whose reset takes a while.
type manySlots struct {
	oneSlot
	resets atomic.Int32
}

func (m *manySlots) Acquire(_ context.Context, want pool.Request) (pool.Lease, error) {
	return m.lease(want.TTL), nil
}

func (m *manySlots) Release(context.Context, pool.Ref, bool) (*slots.Receipt, error) {
	m.resets.Add(1)
	time.Sleep(2 * time.Second)
	return &slots.Receipt{}, nil
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

// TestNoTenantKeepsAFullPool has one tenant ask for more than there is, without
// an end, and another one ask once.
func TestNoTenantKeepsAFullPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leases := newOneSlot()
		w := newWarm(leases, time.Hour)
		defer w.close()
		var steady sync.WaitGroup
		var runs, reused atomic.Int64
		ctx, enough := context.WithCancel(t.Context())
		for range 3 {
			steady.Go(func() {
				for ctx.Err() == nil {
					h, err := w.get(ctx, of(time.Second))
					if err != nil {
						return
					}
					runs.Add(1)
					if h.reused {
						reused.Add(1)
					}
					time.Sleep(10 * time.Millisecond)
					w.put(h, true)
				}
			})
		}
		for range 5 {
			time.Sleep(time.Second)
			other := of(time.Second)
			other.tenant.organization = "another"
			began := time.Now()
			h, err := w.get(t.Context(), other)
			require.NoError(t, err)
			assert.Less(t, time.Since(began), time.Second)
			assert.False(t, h.reused)
			w.put(h, true)
		}
		enough()
		steady.Wait()
		assert.Empty(t, w.waiting)
		assert.Greater(t, runs.Load(), int64(450))
		assert.GreaterOrEqual(t, reused.Load(), runs.Load()-6, "nothing is reset for nobody")
	})
}

func TestWhoCameFirstIsServedFirst(t *testing.T) {
	at := time.Now()
	ours, theirs := of(0), of(0)
	theirs.tenant.organization = "another"
	anew, elsewhere := ours, theirs
	anew.fresh, elsewhere.tenant.template = true, "elsewhere"
	for name, c := range map[string]struct {
		waiting []*waiter
		next    int // in waiting; -1: nobody
		wanted  bool
	}{
		"nobody":                     {nil, -1, false},
		"of another pool":            {[]*waiter{{want: elsewhere, since: at.Add(-time.Hour)}}, -1, false},
		"ours":                       {[]*waiter{{want: ours}, {want: ours}}, 0, true},
		"theirs":                     {[]*waiter{{want: theirs}}, -1, true},
		"one that wants a new one":   {[]*waiter{{want: anew}}, -1, true},
		"ours before theirs":         {[]*waiter{{want: ours, since: at.Add(-2 * time.Hour)}, {want: theirs, since: at.Add(-time.Hour)}}, 0, true},
		"theirs long before":         {[]*waiter{{want: theirs, since: at.Add(-overtaking)}, {want: ours, since: at}}, -1, true},
		"theirs shortly before":      {[]*waiter{{want: theirs, since: at.Add(-time.Millisecond)}, {want: ours, since: at}}, 1, true},
		"theirs, who have one":       {[]*waiter{{want: theirs, since: at.Add(-time.Hour), promised: at}, {want: ours, since: at}}, 1, true},
		"theirs, who never got it":   {[]*waiter{{want: theirs, since: at.Add(-time.Hour), promised: at.Add(-time.Minute)}, {want: ours, since: at}}, -1, true},
		"theirs, who have one alone": {[]*waiter{{want: theirs, since: at.Add(-time.Hour), promised: at}}, -1, true},
	} {
		w := warm{waiting: c.waiting}
		next, wanted := w.nextLocked(&held{tenant: ours.tenant})
		assert.Equal(t, c.next, slices.Index(c.waiting, next), name)
		assert.Equal(t, c.wanted, wanted, name)
	}
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

func TestASlotIsKeptAfterEachUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leases := newOneSlot()
		w := newWarm(leases, time.Hour)
		defer w.close()
		h, err := w.get(t.Context(), of(time.Second)) // which is to be kept for a minute
		require.NoError(t, err)
		w.put(h, true)
		for range 5 {
			time.Sleep(50 * time.Second)
			again, err := w.get(t.Context(), of(time.Second))
			require.NoError(t, err)
			assert.Same(t, h, again, "each use begins the minute anew")
			assert.Positive(t, time.Until(again.lease.Slot.ExpiresAt))
			time.Sleep(20 * time.Second) // it is in use, and so not at rest
			w.put(again, true)
		}
		time.Sleep(time.Minute - time.Nanosecond)
		synctest.Wait()
		assert.Empty(t, leases.free)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.Len(t, leases.free, 1, "then it is given back")
	})
}

func TestASlotAtRestGoesToWhoWaitsInThePool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leases := newOneSlot()
		w := newWarm(leases, time.Hour)
		defer w.close()
		for range 2 { // again and again
			h, err := w.get(t.Context(), of(time.Second)) // which is to be kept for a minute
			require.NoError(t, err)
			leases.waiting.Store(1)
			time.Sleep(10 * time.Second)
			assert.Empty(t, leases.free, "it is in use")
			leases.waiting.Store(0)
			w.put(h, true)
			time.Sleep(10 * time.Second)
			synctest.Wait()
			assert.Empty(t, leases.free, "nobody wants it")
			leases.waiting.Store(1)
			time.Sleep(time.Second)
			synctest.Wait()
			assert.Len(t, leases.free, 1, "somebody does, who is no run")
		}
	})
}

func TestAsManySlotsAreGivenBackAsAreWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leases := &manySlots{}
		w := newWarm(leases, time.Hour)
		defer w.close()
		var all []*held
		for range 8 {
			h, err := w.get(t.Context(), of(time.Second))
			require.NoError(t, err)
			all = append(all, h)
		}
		for _, h := range all[:4] {
			w.put(h, true)
		}
		leases.waiting.Store(1)
		time.Sleep(time.Second) // who waits has his slot when its reset is done
		assert.EqualValues(t, 1, leases.resets.Load(), "one is on its way")
		leases.waiting.Store(2)
		w.put(all[4], true)
		w.put(all[5], true)
		synctest.Wait()
		assert.EqualValues(t, 2, leases.resets.Load(), "steady runs keep no slot from who waits, and give no more than that")
		leases.waiting.Store(0)
		for _, h := range all[6:] {
			w.put(h, true)
		}
	})
}

func TestAtTheEndNobodyWaitsForASlot(t *testing.T) {
	f := newFleet(1)
	r, _ := runner(t, f, nil)
	f.gate = make(chan struct{})
	ended := make(chan error, 2)
	run := func(organization string) {
		_, err := r.Run(t.Context(), organization, python("x"), nil)
		ended <- err
	}
	go run("acme")
	require.Eventually(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.calls) == 1
	}, time.Minute, time.Millisecond)
	go run("globex")
	waits := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		n := 0
		for _, w := range r.warm {
			w.mu.Lock()
			n += len(w.waiting)
			w.mu.Unlock()
		}
		return n
	}
	require.Eventually(t, func() bool { return waits() == 1 }, time.Minute, time.Millisecond)
	r.EndQueues()
	err := <-ended
	assert.Equal(t, slots.KindDraining, slots.AsError(err).Kind, "%v", err)
	_, err = r.Run(t.Context(), "acme", python("x"), nil)
	assert.Equal(t, slots.KindDraining, slots.AsError(err).Kind, "nor later on: %v", err)
	assert.Zero(t, waits())
	close(f.gate)
	require.NoError(t, <-ended, "who has a slot keeps it")
	_, err = r.Run(t.Context(), "acme", python("x"), nil)
	require.NoError(t, err, "and what finds one at once is run")
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
