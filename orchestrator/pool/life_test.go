package pool_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/pool"
	"berth/slots"
)

// scaled is a template whose containers are started by the pool.
func scaled(least, most int) pool.Template {
	return pool.Template{Name: "t", Slots: 2, MinContainers: least, MaxContainers: most, TTL: time.Minute, IdleAfter: time.Minute}
}

// stays waits and returns how the one pool stands then.
func stays(p *pool.Pools, d time.Duration) pool.Stats {
	pass(d)
	return p.Stats()[0]
}

func TestReleaseIsDoneOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		c := f.add("a", "t", 1)
		c.resets = time.Second
		p := open(t, f, pool.Config{})
		l := acquire(t, p, "x")
		var tasks sync.WaitGroup
		for range 3 { // at once, and after
			tasks.Go(func() {
				receipt, err := p.Release(t.Context(), l.Ref(), true)
				assert.True(t, err == nil && receipt.Clean, "%v", err)
			})
		}
		tasks.Wait()
		assert.Equal(t, 1, c.count("release"))
		receipt, err := p.Release(t.Context(), l.Ref(), true)
		require.NoError(t, err)
		assert.True(t, receipt.Clean)
		assert.Equal(t, uint64(1), receipt.Generation)
		assert.Equal(t, receipt.Generation, p.Containers()[0].Slots[0].Generation, "known before anybody looks")

		next := acquire(t, p, "y")
		_, err = p.Release(t.Context(), l.Ref(), true)
		require.NoError(t, err, "it is over, whoever has the slot now")
		assert.Equal(t, 1, c.leased(), "the next tenant is not disturbed")
		forged := next.Ref()
		forged.Token++
		_, err = p.Release(t.Context(), forged, true)
		assert.Equal(t, slots.KindFenced, kind(err))
		forged.SlotID = "slot_9"
		_, err = p.Release(t.Context(), forged, true)
		assert.Equal(t, slots.KindNotFound, kind(err))
		forged.Container = "nowhere"
		_, err = p.Release(t.Context(), forged, true)
		assert.Equal(t, slots.KindSlotLost, kind(err))
	})
}

func TestASlotThatCannotBeResetServesNobodyUntilItCan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		c := f.add("a", "t", 2)
		p := open(t, f, pool.Config{ResetTries: 10})
		l := acquire(t, p, "x")
		assert.Equal(t, map[slots.State]int{slots.StateAvailable: 1, pool.StateLeased: 1}, stays(p, time.Second).ByState)
		c.set(func() { c.dirty = true })
		_, err := p.Release(t.Context(), l.Ref(), true)
		assert.Equal(t, slots.KindResetFailed, kind(err))
		s := stays(p, 3*time.Second)
		assert.Equal(t, 1, s.ByState[slots.StateQuarantined])
		assert.Equal(t, 1, s.Available)
		assert.Positive(t, c.count("reset"), "it is tried again")
		c.set(func() { c.dirty = false })
		assert.Equal(t, 2, stays(p, time.Minute).Available)
	})
}

func TestARepairThatFailsLeavesTheReceipt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		c := f.add("a", "t", 1)
		p := open(t, f, pool.Config{})
		receipt, err := p.Release(t.Context(), acquire(t, p, "x").Ref(), true)
		require.NoError(t, err)
		c.set(func() { c.dirty, c.slots[0].state = true, slots.StateQuarantined })
		stays(p, 10*time.Second)
		require.Positive(t, c.count("reset"), "a repair was tried")
		assert.Equal(t, receipt, p.Containers()[0].Slots[0].Receipt)
	})
}

func TestAContainerOfHopelessSlotsIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		p := open(t, f, pool.Config{Templates: []pool.Template{scaled(1, 1)}, ResetTries: 2})
		stays(p, time.Second)
		c := f.all()[0]
		c.set(func() { c.dirty = true })
		_, err := p.Release(t.Context(), acquire(t, p, "x").Ref(), true)
		assert.Equal(t, slots.KindResetFailed, kind(err))
		s := stays(p, time.Minute)
		assert.Equal(t, []string{c.known.ID}, f.ended())
		assert.Equal(t, 2, s.Available)
	})
}

func TestAReleaseThatDidNotArriveIsMadeUpFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		c := f.add("a", "t", 1)
		p := open(t, f, pool.Config{})
		l := acquire(t, p, "x")
		c.set(func() { c.cut = true })
		_, err := p.Release(t.Context(), l.Ref(), true)
		assert.Equal(t, slots.KindContainerUnreachable, kind(err))
		held, err := p.Lookup(t.Context(), "t", "x")
		require.NoError(t, err)
		assert.Empty(t, held, "it is given up all the same")
		c.set(func() { c.cut = false })
		assert.Equal(t, 1, stays(p, 2*time.Second).Available)
		assert.Zero(t, c.leased(), "long before its TTL")
	})
}

func TestOneFailedLookChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		c := f.add("a", "t", 2)
		p := open(t, f, pool.Config{})
		l := acquire(t, p, "x")
		c.set(func() { c.cut = true })
		s := stays(p, 1500*time.Millisecond)
		assert.Equal(t, 1, s.Available, "one failed look")
		s = stays(p, 2*time.Second)
		assert.Equal(t, 0, s.Available, "three")
		assert.Equal(t, 1, s.Containers[pool.ContainerUnreachable])
		assert.Equal(t, 1, s.Acquired)
		held, err := p.Lookup(t.Context(), "t", "x")
		require.NoError(t, err)
		require.Len(t, held, 1, "the lease is not lost")
		assert.Equal(t, l.Ref(), acquire(t, p, "x").Ref(), "and still the trajectory's")
		waits := ask(t.Context(), p, pool.Request{Trajectory: "w", Wait: time.Hour})
		c.set(func() { c.cut = false })
		s = stays(p, 2*time.Second)
		assert.True(t, waits.done.Load())
		require.NoError(t, waits.err)
		assert.Equal(t, 2, s.Acquired)
	})
}

func TestASilentContainerIsLostWithItsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		p := open(t, f, pool.Config{Templates: []pool.Template{scaled(1, 1)}, LostAfter: 2 * time.Minute})
		stays(p, time.Second)
		c := f.all()[0]
		l := acquire(t, p, "x")
		gone := p.Gone(l.Container.ID)
		c.set(func() { c.cut = true })
		stays(p, 50*time.Second)
		require.NoError(t, p.Lost(l.Ref(), slots.ExecutedMaybe), "its lease may hold")
		stays(p, 15*time.Second)
		err := p.Lost(l.Ref(), slots.ExecutedMaybe)
		assert.Equal(t, slots.KindSlotLost, kind(err))
		assert.Equal(t, slots.ExecutedMaybe, slots.AsError(err).Executed)
		_, err = p.Renew(t.Context(), l.Ref(), 0)
		assert.Equal(t, slots.KindSlotLost, kind(err))
		assert.Equal(t, slots.ExecutedNever, slots.AsError(err).Executed)
		_, err = p.Lookup(t.Context(), "t", "x")
		assert.Equal(t, slots.KindSlotLost, kind(err))
		select {
		case <-gone:
			require.Fail(t, "it is given up too early")
		default:
		}
		s := stays(p, time.Minute)
		<-gone
		assert.Equal(t, []string{c.known.ID}, f.ended())
		assert.Equal(t, 2, s.Available, "another one took its place")
		assert.NotEqual(t, c.known.ID, acquire(t, p, "x").Container.ID)
	})
}

func TestASilentContainerIsKeptAsLongAsALeaseMayHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		p := open(t, f, pool.Config{Templates: []pool.Template{scaled(1, 1)}, LostAfter: 5 * time.Second})
		stays(p, time.Second)
		c := f.all()[0]
		l := acquire(t, p, "x")
		c.set(func() { c.cut = true })
		stays(p, 50*time.Second)
		assert.Empty(t, f.ended())
		c.set(func() { c.cut = false })
		stays(p, 2*time.Second)
		_, err := p.Renew(t.Context(), l.Ref(), 0)
		require.NoError(t, err)
		c.set(func() { c.cut = true })
		stays(p, 65*time.Second)
		assert.Equal(t, []string{c.known.ID}, f.ended())
	})
}

func TestAReleaseThatIsHeardLateTakesNothingFromTheNextTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		c := f.add("a", "t", 2)
		p := open(t, f, pool.Config{})
		x := acquire(t, p, "x")
		c.set(func() { c.lag = map[string]time.Duration{"release": time.Second} })
		var tasks sync.WaitGroup
		tasks.Go(func() {
			_, err := p.Release(t.Context(), x.Ref(), true)
			assert.NoError(t, err)
		})
		synctest.Wait()
		y := acquire(t, p, "y")
		require.Equal(t, x.Slot.SlotID, y.Slot.SlotID, "the container knows that it is free before we do")
		tasks.Wait()
		held, err := p.Lookup(t.Context(), "t", "y")
		require.NoError(t, err)
		require.Len(t, held, 1)
		assert.Equal(t, y.Ref(), held[0].Ref())
		assert.Equal(t, 1, stays(p, 2*time.Second).Available)
		for _, s := range p.Containers()[0].Slots {
			assert.Nil(t, s.Receipt, "what x left says nothing about y")
		}
	})
}

func TestLeasesOfAContainerThatEndedAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		a := f.add("a", "t", 1)
		p := open(t, f, pool.Config{})
		l := acquire(t, p, "x")
		a.set(func() { a.takes = time.Second })
		waits := ask(t.Context(), p, pool.Request{Trajectory: "w", Wait: time.Hour})
		f.kill("a", "exit status 2")
		s := stays(p, 0)
		assert.Zero(t, s.Slots)
		_, err := p.Lookup(t.Context(), "t", "x")
		assert.Equal(t, slots.KindSlotLost, kind(err))
		require.ErrorContains(t, err, "exit status 2")
		assert.Equal(t, slots.KindSlotLost, kind(p.Lost(l.Ref(), slots.ExecutedMaybe)))
		<-p.Gone("a")
		assert.False(t, waits.done.Load())
		f.add("b", "t", 2)
		stays(p, time.Second)
		assert.True(t, waits.done.Load())
		require.NoError(t, waits.err)
		fresh := acquire(t, p, "x")
		assert.Equal(t, "b", fresh.Container.ID)
		_, err = p.Release(t.Context(), fresh.Ref(), true)
		require.NoError(t, err)
		held, err := p.Lookup(t.Context(), "t", "x")
		require.NoError(t, err, "it heard of the loss when it acquired")
		assert.Empty(t, held)
	})
}

func TestNoAcquireIsLostWhenItsContainerDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		a := f.add("a", "t", 4)
		p := open(t, f, pool.Config{})
		a.set(func() { a.takes = time.Second })
		var waiting []*asked
		for i := range 4 {
			waiting = append(waiting, ask(t.Context(), p, pool.Request{Trajectory: fmt.Sprint(i), Wait: time.Hour}))
		}
		f.kill("a", "crashed") // while it is being asked
		stays(p, 5*time.Second)
		f.add("b", "t", 3)
		stays(p, time.Second)
		for i, w := range waiting {
			assert.Equal(t, i < 3, w.done.Load(), "waiter %d keeps its place", i)
			require.NoError(t, w.err)
		}
	})
}

func TestCordonDrainAndRecycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		p := open(t, f, pool.Config{Templates: []pool.Template{scaled(1, 1)}})
		stays(p, time.Second)
		old := f.all()[0].known.ID
		l := acquire(t, p, "x")
		require.NoError(t, p.Cordon(t.Context(), old, true))
		_, err := p.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "y"})
		assert.Equal(t, slots.KindPoolExhausted, kind(err))
		assert.Equal(t, pool.ContainerCordoned, p.Containers()[0].State)
		_, err = p.Renew(t.Context(), l.Ref(), time.Hour)
		require.NoError(t, err)
		require.NoError(t, p.Cordon(t.Context(), old, false))
		_, err = p.Release(t.Context(), acquire(t, p, "y").Ref(), true)
		require.NoError(t, err)

		require.NoError(t, p.Recycle(t.Context(), old, 0))
		s := stays(p, time.Minute)
		assert.Empty(t, f.ended(), "x still works there")
		assert.Equal(t, map[pool.ContainerState]int{pool.ContainerDraining: 1, pool.ContainerReady: 1}, s.Containers)
		fresh := acquire(t, p, "z").Container.ID
		assert.NotEqual(t, old, fresh)
		_, err = p.Release(t.Context(), l.Ref(), true)
		require.NoError(t, err)
		stays(p, 2*time.Second)
		assert.Equal(t, []string{old}, f.ended())

		require.NoError(t, p.Drain(t.Context(), fresh, 10*time.Second))
		stays(p, 15*time.Second)
		assert.Equal(t, []string{old, fresh}, f.ended(), "its time is over, and z's slot lost")
		_, err = p.Lookup(t.Context(), "t", "z")
		assert.Equal(t, slots.KindSlotLost, kind(err))
		for _, do := range []error{p.Cordon(t.Context(), old, true), p.Drain(t.Context(), old, 0), p.Recycle(t.Context(), old, 0)} {
			assert.Equal(t, slots.KindNotFound, kind(do))
		}
		assert.Equal(t, 2, stays(p, time.Second).Available, "the minimum is kept")
	})
}

func TestThePoolGrowsWithItsQueueAndShrinksWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.startTakes = 3 * time.Second
		p := open(t, f, pool.Config{Templates: []pool.Template{scaled(0, 3)}})
		assert.Zero(t, stays(p, time.Minute).Slots, "nobody needs one")
		_, err := p.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "now"})
		assert.Equal(t, slots.KindPoolExhausted, kind(err))
		assert.Equal(t, 1, stays(p, time.Second).Starting, "who does not wait is wanted as well")
		var waiting []*asked
		for i := range 8 {
			waiting = append(waiting, ask(t.Context(), p, pool.Request{Trajectory: fmt.Sprint(i), Wait: time.Hour}))
		}
		s := stays(p, 10*time.Second)
		assert.Equal(t, 3, f.starts(), "never above the maximum")
		assert.Equal(t, 6, s.Acquired)
		assert.Equal(t, 2, s.Queue)
		assert.Equal(t, 2, p.Waiting(s.Template))
		assert.Zero(t, p.Waiting("nowhere"))
		held, err := p.List(t.Context(), pool.Filter{})
		require.NoError(t, err)
		require.Len(t, held, 6)
		for _, l := range held {
			_, err := p.Release(t.Context(), l.Ref(), true)
			require.NoError(t, err)
		}
		s = stays(p, 30*time.Second)
		assert.True(t, waiting[7].done.Load())
		assert.Equal(t, 2, s.Acquired)
		assert.Equal(t, 3, s.Containers[pool.ContainerReady])
		s = stays(p, 5*time.Minute)
		assert.Len(t, f.ended(), 3, "their TTL is over, and all are idle")
		assert.Zero(t, s.Slots)
	})
}

func TestAContainerThatDoesNotStartIsTriedLessAndLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.refuse = slots.Errorf(slots.KindInternal, "no such program")
		p := open(t, f, pool.Config{Templates: []pool.Template{scaled(1, 1)}})
		waits := ask(t.Context(), p, pool.Request{Trajectory: "x", Wait: time.Hour})
		stays(p, 10*time.Minute)
		assert.Less(t, f.starts(), 20)
		assert.Greater(t, f.starts(), 10)
		f.mu.Lock()
		f.refuse = nil
		f.mu.Unlock()
		stays(p, 2*time.Minute)
		assert.True(t, waits.done.Load())
		assert.NoError(t, waits.err)
	})
}

func TestRenewKeepsALeaseAndTellsWhenItIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 1)
		p := open(t, f, pool.Config{})
		l := acquire(t, p, "x")
		for range 5 {
			stays(p, 50*time.Second)
			renewed, err := p.Renew(t.Context(), l.Ref(), 0)
			require.NoError(t, err)
			assert.Equal(t, time.Minute, renewed.Slot.TTL)
		}
		stays(p, 61*time.Second)
		_, err := p.Renew(t.Context(), l.Ref(), 0)
		assert.Contains(t, []slots.Kind{slots.KindFenced, slots.KindLeaseExpired}, kind(err))
		_, err = p.Renew(t.Context(), l.Ref(), -1)
		assert.Equal(t, slots.KindBadRequest, kind(err))
		_, err = p.Renew(t.Context(), pool.Ref{Container: "b", SlotID: "slot_0", Token: 1}, 0)
		assert.Equal(t, slots.KindSlotLost, kind(err))
	})
}

func TestManyLeasesAreReleasedByLabel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 30)
		p := open(t, f, pool.Config{})
		for i := range 30 {
			_, err := p.Acquire(t.Context(), pool.Request{
				Template: "t", Trajectory: fmt.Sprint(i), Labels: map[string]string{"run": fmt.Sprint(i % 3), "team": "r"},
			})
			require.NoError(t, err)
		}
		some, err := p.List(t.Context(), pool.Filter{Labels: map[string]string{"run": "1"}})
		require.NoError(t, err)
		require.Len(t, some, 10)
		assert.Equal(t, "slot_4", some[1].Slot.SlotID, "slot_10 comes after it")
		assert.Equal(t, map[string]string{"run": "1", "team": "r"}, some[0].Slot.Labels, "ours are not shown")
		released, err := p.ReleaseAll(t.Context(), pool.Filter{Labels: map[string]string{"run": "1", "team": "r"}}, true)
		require.NoError(t, err)
		assert.Len(t, released, 10)
		assert.True(t, released[9].Receipt.Clean)
		for _, f := range []pool.Filter{{Labels: map[string]string{"run": "1"}}, {Labels: map[string]string{"nope": ""}}, {Template: "u"}, {Container: "b"}} {
			none, err := p.List(t.Context(), f)
			require.NoError(t, err)
			assert.Empty(t, none)
		}
		one, err := p.List(t.Context(), pool.Filter{Trajectory: "3", Container: "a"})
		require.NoError(t, err)
		assert.Len(t, one, 1)
		_, err = p.ReleaseAll(t.Context(), pool.Filter{}, true)
		assert.Equal(t, slots.KindBadRequest, kind(err), "everything at once is too easily asked for")
		assert.Equal(t, 20, p.Stats()[0].Acquired)
	})
}

func TestAContainerThatComesBackElsewhereIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		a := f.add("a", "t", 2)
		p := open(t, f, pool.Config{})
		l := acquire(t, p, "x")
		moved := newContainer("a", "t", 0)
		moved.known, moved.slots = a.known, a.slots
		moved.known.URL = "sim://elsewhere"
		a.set(func() { a.dead = true })
		f.mu.Lock()
		f.containers["a"] = moved
		f.mu.Unlock()
		f.announce("a")
		synctest.Wait()
		again := acquire(t, p, "x")
		assert.Equal(t, l.Ref(), again.Ref())
		assert.Equal(t, "sim://elsewhere", again.Container.URL)
		assert.Equal(t, 1, stays(p, time.Second).Available)
	})
}
