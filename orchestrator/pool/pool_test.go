package pool_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/pool"
	"berth/slots"
)

// fixed is a template whose containers are made by hand.
func fixed() pool.Template { return pool.Template{Name: "t", Slots: 4, TTL: time.Minute} }

// open makes pools over the fleet and waits until they are rebuilt.
func open(t *testing.T, f *fleet, cfg pool.Config) *pool.Pools {
	t.Helper()
	if cfg.Templates == nil {
		cfg.Templates = []pool.Template{fixed()}
	}
	p, err := pool.New(f, f.connect, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	require.NoError(t, p.Ready(t.Context()))
	return p
}

// acquire gets a slot without waiting.
func acquire(t *testing.T, p *pool.Pools, trajectory string) pool.Lease {
	t.Helper()
	l, err := p.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: trajectory})
	require.NoError(t, err)
	return l
}

func kind(err error) slots.Kind {
	if err == nil {
		return ""
	}
	return slots.AsError(err).Kind
}

// pass lets the time pass, and everybody come to rest.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// asked is what becomes of an acquire that runs beside the test: lease and err
// are there once it is done.
type asked struct {
	lease pool.Lease
	err   error
	done  atomic.Bool
}

// ask acquires beside the test, and returns when everybody is at rest.
func ask(ctx context.Context, p *pool.Pools, want pool.Request) *asked {
	a := &asked{}
	want.Template = "t"
	go func() {
		a.lease, a.err = p.Acquire(ctx, want)
		a.done.Store(true)
	}()
	synctest.Wait()
	return a
}

func TestAcquireFillsTheFullestContainerFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 4)
		f.add("b", "t", 2)
		p := open(t, f, pool.Config{})
		var order []string
		for i := range 6 {
			order = append(order, acquire(t, p, fmt.Sprint(i)).Container.ID)
		}
		assert.Equal(t, []string{"b", "b", "a", "a", "a", "a"}, order)
	})
}

func TestAcquireFillsTheLowestRankFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 1).known.Rank = 2
		f.add("b", "t", 3).known.Rank = 1
		p := open(t, f, pool.Config{})
		first := acquire(t, p, "1")
		assert.Equal(t, "b", first.Container.ID)
		assert.Equal(t, "b", acquire(t, p, "2").Container.ID)
		assert.Equal(t, "b", acquire(t, p, "3").Container.ID)
		assert.Equal(t, "a", acquire(t, p, "4").Container.ID)
		_, err := p.Release(t.Context(), first.Ref(), false)
		require.NoError(t, err)
		synctest.Wait()
		assert.Equal(t, "b", acquire(t, p, "5").Container.ID)
	})
}

func TestATrajectoryHasOneSlotUnlessItAsksForMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		c := f.add("a", "t", 4)
		p := open(t, f, pool.Config{})
		first := acquire(t, p, "x")
		pass(10 * time.Second)
		again := acquire(t, p, "x")
		assert.Equal(t, first.Ref(), again.Ref())
		assert.True(t, again.Slot.ExpiresAt.After(first.Slot.ExpiresAt), "it lasts as long as a new one")

		shorter, err := p.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "x", TTL: time.Second})
		require.NoError(t, err)
		assert.False(t, shorter.Slot.ExpiresAt.Before(again.Slot.ExpiresAt), "it is never made shorter")

		second, err := p.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "x", Further: true})
		require.NoError(t, err)
		assert.NotEqual(t, first.Ref(), second.Ref())
		assert.True(t, second.Further)
		assert.Equal(t, first.Ref(), acquire(t, p, "x").Ref(), "the first stays the first")
		held, err := p.Lookup(t.Context(), "t", "x")
		require.NoError(t, err)
		require.Len(t, held, 2)
		assert.Equal(t, []pool.Ref{first.Ref(), second.Ref()}, []pool.Ref{held[0].Ref(), held[1].Ref()})
		assert.Equal(t, 2, c.leased())
	})
}

func TestAcquiresOfOneTrajectoryJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		c := f.add("a", "t", 4)
		p := open(t, f, pool.Config{})
		c.set(func() { c.takes = time.Second })
		one, two := ask(t.Context(), p, pool.Request{Trajectory: "x"}), ask(t.Context(), p, pool.Request{Trajectory: "x"})
		pass(2 * time.Second)
		require.True(t, one.done.Load() && two.done.Load())
		require.NoError(t, errors.Join(one.err, two.err))
		assert.Equal(t, one.lease.Ref(), two.lease.Ref())
		assert.Equal(t, 1, c.leased())
	})
}

func TestTheQueueIsServedInTheOrderOfComing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 2)
		p := open(t, f, pool.Config{})
		held := []pool.Lease{acquire(t, p, "x"), acquire(t, p, "y")}
		var waiting []*asked
		for i := range 5 {
			waiting = append(waiting, ask(t.Context(), p, pool.Request{Trajectory: fmt.Sprint(i), Wait: time.Hour}))
		}
		for i := range 5 {
			for j, w := range waiting {
				assert.Equal(t, j < i, w.done.Load(), "%d releases, waiter %d", i, j)
			}
			_, err := p.Release(t.Context(), held[i].Ref(), true)
			require.NoError(t, err)
			synctest.Wait()
			require.NoError(t, waiting[i].err)
			held = append(held, waiting[i].lease)
		}
	})
}

func TestARefusalTellsThePlaceInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 1)
		p := open(t, f, pool.Config{QueueMax: 3})
		acquire(t, p, "x")
		long := ask(t.Context(), p, pool.Request{Trajectory: "long", Wait: time.Hour})
		short := ask(t.Context(), p, pool.Request{Trajectory: "short", Wait: 3 * time.Second})
		ask(t.Context(), p, pool.Request{Trajectory: "last", Wait: time.Hour})
		full := ask(t.Context(), p, pool.Request{Trajectory: "none", Wait: time.Hour})
		pass(4 * time.Second)
		assert.False(t, long.done.Load())
		for _, c := range []struct {
			a    *asked
			want pool.QueueError
		}{
			{short, pool.QueueError{Template: "t", Place: 2, Length: 3, Waited: 3 * time.Second}},
			{full, pool.QueueError{Template: "t", Place: 4, Length: 4}},
		} {
			require.True(t, c.a.done.Load())
			assert.Equal(t, slots.KindPoolExhausted, kind(c.a.err))
			assert.True(t, slots.AsError(c.a.err).Retryable)
			got, ok := errors.AsType[*pool.QueueError](c.a.err)
			require.True(t, ok)
			assert.Equal(t, c.want, *got)
		}
		_, err := p.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "now"})
		assert.Equal(t, slots.KindPoolExhausted, kind(err), "without a wait there is none")
	})
}

func TestACallerThatLeavesTakesNothingAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		c := f.add("a", "t", 1)
		p := open(t, f, pool.Config{})
		held := acquire(t, p, "x")

		gone, leave := context.WithCancel(t.Context())
		queued := ask(gone, p, pool.Request{Trajectory: "queued", Wait: time.Hour})
		next := ask(t.Context(), p, pool.Request{Trajectory: "next", Wait: time.Hour})
		leave()
		synctest.Wait()
		assert.Equal(t, slots.KindInterrupted, kind(queued.err))
		require.ErrorIs(t, queued.err, context.Canceled)
		_, err := p.Release(t.Context(), held.Ref(), true)
		require.NoError(t, err)
		synctest.Wait()
		require.True(t, next.done.Load())
		require.NoError(t, next.err)

		// Now one leaves while the container is being asked.
		_, err = p.Release(t.Context(), next.lease.Ref(), true)
		require.NoError(t, err)
		c.set(func() { c.takes = 100 * time.Millisecond })
		gone, leave = context.WithCancel(t.Context())
		served := ask(gone, p, pool.Request{Trajectory: "served", Wait: time.Hour})
		after := ask(t.Context(), p, pool.Request{Trajectory: "after", Wait: time.Hour})
		leave()
		synctest.Wait()
		assert.Equal(t, slots.KindInterrupted, kind(served.err))
		pass(time.Second)
		require.True(t, after.done.Load(), "the slot that was won goes to the next")
		require.NoError(t, after.err)
		assert.Equal(t, 1, c.leased())
		assert.Equal(t, 1, p.Stats()[0].Acquired)
	})
}

func TestAGrantThatNobodyWaitsForIsNotFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		c := f.add("a", "t", 2)
		p := open(t, f, pool.Config{})
		c.set(func() { c.lag = map[string]time.Duration{"acquire": 3 * time.Second} })
		gone, leave := context.WithCancel(t.Context())
		served := ask(gone, p, pool.Request{Trajectory: "x"})
		pass(2 * time.Second) // the container was read, and shows the lease
		assert.Equal(t, 1, p.Stats()[0].Acquired)
		held, err := p.Lookup(t.Context(), "t", "x")
		require.NoError(t, err)
		assert.Empty(t, held, "it is not x's before x was told")
		leave()
		synctest.Wait()
		assert.True(t, served.done.Load())
		pass(3 * time.Second)
		assert.Zero(t, c.leased())
		assert.Equal(t, 2, p.Stats()[0].Available)
	})
}

func TestAGrantThatComesAfterItsTTLIsNotHandedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		c := f.add("a", "t", 2)
		p := open(t, f, pool.Config{})
		c.set(func() { c.lag = map[string]time.Duration{"acquire": 3 * time.Second} })
		start := time.Now()
		late := ask(t.Context(), p, pool.Request{Trajectory: "x", TTL: 2 * time.Second, Wait: time.Hour})
		pass(3500 * time.Millisecond)
		c.set(func() { c.lag = nil })
		pass(3 * time.Second)
		require.True(t, late.done.Load(), "it was tried again")
		require.NoError(t, late.err)
		assert.True(t, late.lease.Slot.ExpiresAt.After(start.Add(3*time.Second)), "the first was over when it came")
	})
}

func TestAContainerThatHasLostItsRecordsIsBelieved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		c := f.add("a", "t", 1)
		p := open(t, f, pool.Config{})
		for i := range 3 {
			_, err := p.Release(t.Context(), acquire(t, p, fmt.Sprint(i)).Ref(), true)
			require.NoError(t, err)
		}
		acquire(t, p, "old")
		c.set(func() { c.slots = newContainer("a", "t", 1).slots }) // its tokens begin at 1 again
		pass(6 * time.Second)
		_, err := p.Lookup(t.Context(), "t", "old")
		assert.Equal(t, slots.KindSlotLost, kind(err))
		l := acquire(t, p, "new")
		assert.Equal(t, uint64(1), l.Slot.Token)
		pass(6 * time.Second)
		assert.Equal(t, l.Ref(), acquire(t, p, "new").Ref())
		_, err = p.Release(t.Context(), l.Ref(), true)
		require.NoError(t, err)
		assert.Equal(t, 1, p.Stats()[0].Available)
		assert.Zero(t, c.leased())
	})
}

func TestAContainerThatHangsKeepsNobodyFromTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		hung := f.add("a", "t", 1)
		f.add("b", "t", 4)
		p := open(t, f, pool.Config{})
		hung.set(func() { hung.takes = time.Hour })
		first := ask(t.Context(), p, pool.Request{Trajectory: "x"}) // asks a, the fullest
		start := time.Now()
		l := acquire(t, p, "y")
		assert.Equal(t, "b", l.Container.ID)
		_, err := p.Renew(t.Context(), l.Ref(), time.Minute)
		require.NoError(t, err)
		_, err = p.Release(t.Context(), l.Ref(), true)
		require.NoError(t, err)
		assert.Zero(t, time.Since(start))
		pass(6 * time.Second)
		require.True(t, first.done.Load())
		require.NoError(t, first.err, "it was tried elsewhere")
		assert.Equal(t, "b", first.lease.Container.ID)
	})
}

func TestALeaseWhoseGrantWasNeverHeardOfIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		a, b := f.add("a", "t", 1), f.add("b", "t", 2)
		p := open(t, f, pool.Config{})
		a.set(func() { a.mute = func() bool { a.mute = nil; return true } })
		l := acquire(t, p, "x")
		assert.Equal(t, "b", l.Container.ID, "the answer of a was lost")
		pass(time.Second)
		assert.Zero(t, a.leased())
		assert.Equal(t, 1, b.leased())
		held, err := p.Lookup(t.Context(), "t", "x")
		require.NoError(t, err)
		require.Len(t, held, 1)
		assert.Equal(t, l.Ref(), held[0].Ref())
	})
}

func TestRefusedRequestsAndStaleViewsAreToldApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		a := f.add("a", "t", 1)
		f.add("b", "t", 2)
		p := open(t, f, pool.Config{})
		a.set(func() { a.refused = slots.Errorf(slots.KindBadRequest, "ttl_s must be at most 5") })
		_, err := p.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "x"})
		assert.Equal(t, slots.KindBadRequest, kind(err), "no container will take it")
		for _, k := range []slots.Kind{slots.KindConflict, slots.KindPoolExhausted, slots.KindDraining, slots.KindResetFailed} {
			a.set(func() { a.refused = slots.Errorf(k, "no") })
			l := acquire(t, p, "y")
			assert.Equal(t, "b", l.Container.ID, "after %s", k)
			_, err = p.Release(t.Context(), l.Ref(), true)
			require.NoError(t, err)
			a.set(func() { a.refused = nil })
			pass(2 * time.Second)
			l = acquire(t, p, "z")
			assert.Equal(t, "a", l.Container.ID, "it is asked again")
			_, err = p.Release(t.Context(), l.Ref(), true)
			require.NoError(t, err)
		}
	})
}

func TestSlotsOfAClientThatDiedAreFreeAfterTheTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		for i := range 4 {
			c := f.add(fmt.Sprint("c", i), "t", 4)
			c.resets = 200 * time.Millisecond
		}
		p := open(t, f, pool.Config{})
		for i := range 16 {
			acquire(t, p, fmt.Sprint("dead", i))
		}
		pass(time.Minute + 5*time.Second)
		assert.Equal(t, 16, p.Stats()[0].Available)
		_, err := p.Lookup(t.Context(), "t", "dead3")
		assert.Equal(t, slots.KindLeaseExpired, kind(err))
		p.Forget("t", "dead3")
		held, err := p.Lookup(t.Context(), "t", "dead3")
		require.NoError(t, err)
		assert.Empty(t, held)
	})
}

func TestARestartFindsEveryLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 4)
		f.add("b", "t", 4)
		f.add("other", "unknown", 4)
		before := open(t, f, pool.Config{})
		var leases []pool.Lease
		for i := range 6 {
			l, err := before.Acquire(t.Context(), pool.Request{
				Template: "t", Trajectory: fmt.Sprint(i), Labels: map[string]string{"run": "7"}, Further: i%2 == 1,
			})
			require.NoError(t, err)
			leases = append(leases, l)
		}
		require.NoError(t, before.Close())
		after := open(t, f, pool.Config{})
		found, err := after.List(t.Context(), pool.Filter{Labels: map[string]string{"run": "7"}})
		require.NoError(t, err)
		require.Len(t, found, 6)
		for _, want := range leases {
			held, err := after.Lookup(t.Context(), "t", want.Slot.Trajectory)
			require.NoError(t, err)
			require.Len(t, held, 1)
			assert.Equal(t, want, held[0])
		}
		assert.Equal(t, 2, after.Stats()[0].Available)
	})
}

func TestTwoOrchestratorsShareTheContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 4)
		f.add("b", "t", 4)
		one, two := open(t, f, pool.Config{}), open(t, f, pool.Config{})
		taken := map[string]pool.Ref{}
		for i := range 8 {
			p := one
			if i%2 == 1 {
				p = two // whose view is old each time
			}
			l := acquire(t, p, fmt.Sprint(i))
			key := l.Container.ID + l.Slot.SlotID
			assert.NotContains(t, taken, key)
			taken[key] = l.Ref()
		}
		waits := ask(t.Context(), two, pool.Request{Trajectory: "w", Wait: time.Minute})
		for _, ref := range taken { // all by the first, which gave half of them
			_, err := one.Release(t.Context(), ref, true)
			require.NoError(t, err)
		}
		pass(2 * time.Second)
		require.True(t, waits.done.Load(), "what the other has freed is found")
		require.NoError(t, waits.err)
		assert.Equal(t, 7, one.Stats()[0].Available)
		_, err := two.Lookup(t.Context(), "t", "1")
		assert.Equal(t, slots.KindSlotLost, kind(err))
		assert.NotEqual(t, taken["aslot_0"], acquire(t, two, "1").Ref())
	})
}

func TestALeaseThatAnotherHasReleasedIsNotHandedOutAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 1)
		f.add("b", "t", 2)
		one, two := open(t, f, pool.Config{}), open(t, f, pool.Config{})
		l := acquire(t, one, "x")
		_, err := two.Release(t.Context(), l.Ref(), true)
		require.NoError(t, err)
		stolen := acquire(t, two, "y")
		require.Equal(t, l.Slot.SlotID+l.Container.ID, stolen.Slot.SlotID+stolen.Container.ID)
		again := acquire(t, one, "x") // its view says that x holds a's slot
		assert.Equal(t, "b", again.Container.ID)
	})
}

func TestALeaseThatRunsOutWhileItsContainerIsSilentIsNotHandedOutAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		c := f.add("a", "t", 1)
		p := open(t, f, pool.Config{})
		_, err := p.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "x", TTL: time.Second})
		require.NoError(t, err)
		time.Sleep(900 * time.Millisecond)
		c.set(func() { c.takes, c.cut = 300*time.Millisecond, true })
		lease, err := p.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "x", TTL: time.Second})
		assert.Equal(t, slots.KindPoolExhausted, kind(err), "got %v", lease)
	})
}

func TestCloseRefusesThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 1)
		p := open(t, f, pool.Config{})
		l := acquire(t, p, "x")
		waits := ask(t.Context(), p, pool.Request{Trajectory: "w", Wait: time.Hour})
		var tasks sync.WaitGroup
		tasks.Go(func() { assert.NoError(t, p.Close()) })
		tasks.Wait()
		synctest.Wait()
		assert.Equal(t, slots.KindDraining, kind(waits.err))
		_, err := p.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "late"})
		assert.Equal(t, slots.KindDraining, kind(err))
		_, err = p.Release(t.Context(), l.Ref(), true)
		assert.Equal(t, slots.KindDraining, kind(err))
	})
}
