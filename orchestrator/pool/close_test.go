package pool_test

import (
	"fmt"
	"math/rand/v2"
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

// seat is one orchestrator's view of a fleet that it shares: all of it, and
// whether it leads.
type seat struct {
	*fleet
	leads atomic.Bool
}

func (s *seat) Duty(string) backend.Duty { return backend.Duty{Held: s.leads.Load(), Shared: true} }

// seats are n orchestrators over one fleet, of which the first leads.
func seats(t *testing.T, f *fleet, n int, cfg pool.Config) (all []*seat, pools []*pool.Pools) {
	t.Helper()
	for range n {
		s := &seat{fleet: f}
		s.leads.Store(len(all) == 0)
		p, err := pool.New(s, f.connect, cfg)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, p.Close()) })
		require.NoError(t, p.Ready(t.Context()))
		all, pools = append(all, s), append(pools, p)
	}
	pass(2 * time.Second)
	return all, pools
}

func TestAMachineThatIsDrainedGetsNoLeaseAndKeepsThoseItHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 2)
		p := open(t, f, pool.Config{})
		pass(time.Second)
		held, other := acquire(t, p, "x"), acquire(t, p, "y")
		assert.False(t, held.Container.Draining)
		by := time.Now().Add(time.Hour).Truncate(time.Second)
		f.drain("a", true, by)
		pass(time.Millisecond)
		_, err := p.Release(t.Context(), other.Ref(), true)
		require.NoError(t, err)
		_, err = p.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "z"})
		assert.Equal(t, slots.KindPoolExhausted, kind(err), "what comes free on it is not given out")
		assert.Equal(t, map[pool.ContainerState]int{pool.ContainerDraining: 1}, p.Stats()[0].Containers)

		renewed, err := p.Renew(t.Context(), held.Ref(), 0)
		require.NoError(t, err)
		again := acquire(t, p, "x")
		listed, err := p.List(t.Context(), pool.Filter{Trajectory: "x"})
		require.NoError(t, err)
		for _, l := range []pool.Lease{renewed, again, listed[0]} {
			assert.True(t, l.Container.Draining, "its holder is told")
			assert.Equal(t, by, l.Container.Deadline)
		}
		known, _ := p.Known("a")
		assert.True(t, known.Draining)
		assert.Equal(t, by, known.Deadline)
		assert.Equal(t, by, p.Containers()[0].Container.Deadline)
		pass(30 * time.Second)
		assert.Empty(t, f.ended(), "it has a lease")

		_, err = p.Release(t.Context(), held.Ref(), true)
		require.NoError(t, err)
		pass(time.Second)
		assert.Equal(t, []string{"a"}, f.ended(), "it is empty")
	})
}

func TestHoldersHearFromTheContainerItselfUntilWhenItServesThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		one := f.add("a", "t", 2)
		p := open(t, f, pool.Config{})
		held := acquire(t, p, "x")
		by := time.Now().Add(25 * time.Second)
		one.set(func() { one.drains, one.drainsBy = true, by })
		pass(2 * time.Second)
		renewed, err := p.Renew(t.Context(), held.Ref(), 0)
		require.NoError(t, err)
		assert.True(t, renewed.Container.Draining)
		assert.WithinDuration(t, by, renewed.Container.Deadline, 0)
		f.drain("a", true, by.Add(-time.Second))
		pass(time.Millisecond)
		known, _ := p.Known("a")
		assert.WithinDuration(t, by.Add(-time.Second), known.Deadline, 0, "the first of all deadlines")
		f.drain("a", true, by.Add(time.Minute))
		pass(time.Millisecond)
		known, _ = p.Known("a")
		assert.WithinDuration(t, by, known.Deadline, 0)
		_, err = p.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "z"})
		assert.Equal(t, slots.KindPoolExhausted, kind(err))
		assert.Empty(t, f.ended(), "it has a lease")
	})
}

func TestADrainOfAMachineThatIsTakenBackGoesOnOnceSlotsWereTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		full := f.add("a", "t", 1)
		_, all := seats(t, f, 2, pool.Config{Templates: []pool.Template{fixed()}})
		held := acquire(t, all[0], "x")
		f.add("b", "t", 3)
		pass(2 * time.Second)
		other := acquire(t, all[0], "y")
		require.Equal(t, "b", other.Container.ID)
		f.drain("a", true, time.Time{})
		f.drain("b", true, time.Time{})
		pass(time.Second)
		assert.Equal(t, 1, full.leased())
		leases, err := all[1].List(t.Context(), pool.Filter{})
		require.NoError(t, err)
		assert.Len(t, leases, 2, "what keeps the free slots is nobody's lease")
		assert.Equal(t, 2, all[1].Stats()[0].Acquired)
		assert.Equal(t, 2, all[1].Stats()[0].ByState[slots.StateDraining])
		assert.Equal(t, 2, all[1].Stats()[0].Containers[pool.ContainerDraining])

		f.drain("a", false, time.Time{})
		f.drain("b", false, time.Time{})
		pass(2 * time.Second)
		_, err = all[0].Release(t.Context(), held.Ref(), true)
		require.NoError(t, err)
		pass(2 * time.Second)
		assert.Equal(t, "a", acquire(t, all[1], "z").Container.ID, "nothing was begun with it")
		_, err = all[0].Release(t.Context(), other.Ref(), true)
		require.NoError(t, err)
		pass(time.Second)
		assert.Equal(t, []string{"b"}, f.ended(), "somebody may have been about to stop it")
	})
}

func TestAnOrchestratorThatDoesNotLeadStartsAndStopsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		some := fixed()
		some.MinContainers, some.MaxContainers, some.IdleAfter = 2, 5, time.Second
		who := &seat{fleet: f}
		p, err := pool.New(who, f.connect, pool.Config{Templates: []pool.Template{some}})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, p.Close()) })
		pass(10 * time.Second)
		assert.Empty(t, f.all(), "not even the least number")
		f.add("a", "t", 4)
		c := f.add("b", "t", 1)
		c.set(func() { c.dirty = true })
		pass(time.Second)
		acquire(t, p, "x")
		for i := range 10 {
			_ = ask(t.Context(), p, pool.Request{Trajectory: fmt.Sprint(i), Wait: time.Minute})
		}
		require.NoError(t, p.Recycle(t.Context(), "b", 0))
		f.drain("a", true, time.Time{})
		c.set(func() { c.cut = true })
		pass(5 * time.Minute)
		assert.Len(t, f.all(), 2)
		assert.Equal(t, 0, f.starts())
		assert.Empty(t, f.ended())
		assert.False(t, p.Stats()[0].Duty.Held)

		who.leads.Store(true)
		pass(10 * time.Second)
		assert.True(t, p.Stats()[0].Duty.Held)
		assert.Positive(t, f.starts())
		assert.NotEmpty(t, f.ended(), "and now that it leads it does all of it")
	})
}

func TestADrainByOneOrchestratorHoldsForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 2)
		who, all := seats(t, f, 3, pool.Config{Templates: []pool.Template{fixed()}})
		held := acquire(t, all[0], "x")
		require.NoError(t, all[1].Drain(t.Context(), "a", 0))
		pass(time.Second)
		for _, p := range all {
			_, err := p.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "y"})
			assert.Equal(t, slots.KindPoolExhausted, kind(err))
		}
		for range 30 { // longer than what keeps the slots lasts
			pass(40 * time.Second)
			_, err := all[0].Renew(t.Context(), held.Ref(), 0)
			require.NoError(t, err)
		}
		who[1].leads.Store(false)
		require.NoError(t, all[1].Close(), "who began it goes away")
		pass(6 * time.Second)
		for _, p := range []*pool.Pools{all[0], all[2]} {
			assert.Equal(t, map[pool.ContainerState]int{pool.ContainerDraining: 1}, p.Stats()[0].Containers)
		}
		who[0].leads.Store(false)
		_, err := all[0].Release(t.Context(), held.Ref(), true)
		require.NoError(t, err)
		pass(time.Minute)
		assert.Empty(t, f.ended(), "nobody leads")
		who[2].leads.Store(true)
		pass(5 * time.Second)
		assert.Equal(t, []string{"a"}, f.ended(), "who leads goes on with it")
	})
}

func TestNoStopTakesALeaseThatAnotherOrchestratorGave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		some := fixed()
		some.MinContainers, some.MaxContainers, some.IdleAfter, some.GrowCooldown, some.ShrinkCooldown = 1, 6, time.Millisecond, time.Millisecond, time.Millisecond
		some.TTL, some.FreeMargin = time.Hour, 2
		who, all := seats(t, f, 3, pool.Config{Templates: []pool.Template{some}, ScaleEvery: 20 * time.Millisecond})
		seed := rand.Uint64()
		t.Log("seed", seed)
		random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // of a test
		held := map[string]pool.Lease{}
		for i := range 3000 {
			p := all[random.IntN(len(all))]
			name := fmt.Sprint(i)
			switch {
			case len(held) > 12 || len(held) > 0 && random.IntN(2) == 0:
				for other, l := range held {
					delete(held, other)
					_, err := p.Release(t.Context(), l.Ref(), true)
					require.NoError(t, err, "its lease was there until now")
					break
				}
			default:
				l, err := p.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: name, Wait: 30 * time.Second})
				require.NoError(t, err)
				held[name] = l
			}
			if random.IntN(100) == 0 {
				for j := range who {
					who[j].leads.Store(false)
				}
				who[random.IntN(len(who))].leads.Store(true)
			}
			pass(time.Duration(random.IntN(60)) * time.Millisecond)
			for trajectory, l := range held {
				_, err := p.Renew(t.Context(), l.Ref(), 0)
				require.NoError(t, err, "lease of %s in %s", trajectory, l.Container.ID)
			}
		}
		assert.Greater(t, len(f.ended()), 20, "or nothing was tried")
		t.Log("containers stopped", len(f.ended()), "started", f.starts())
	})
}
