package pool_test

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

// keeping is a seat of a fleet that keeps what operators want for all.
type keeping struct {
	*seat
	refuse error
	lag    time.Duration // until it answers
}

func (k *keeping) Wish(ctx context.Context, id string, change func(backend.Wish) backend.Wish) (backend.Container, error) {
	if k.refuse != nil {
		return backend.Container{}, k.refuse
	}
	known, ok := k.become(id, func(c *backend.Container) { c.Wish = change(c.Wish) })
	if !ok {
		return backend.Container{}, slots.Errorf(slots.KindNotFound, "container %s is gone", id)
	}
	return known, sleep(ctx, k.lag)
}

// become changes what is told of a container from now on.
func (f *fleet) become(id string, change func(*backend.Container)) (known backend.Container, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	if c == nil {
		return backend.Container{}, false
	}
	change(&c.known)
	c.known.Version++
	f.tellLocked(backend.Event{Kind: backend.Up, Container: c.known})
	return c.known, true
}

// join is one more orchestrator of the fleet, which does not lead.
func join(t *testing.T, f *fleet, template pool.Template) (*keeping, *pool.Pools) {
	t.Helper()
	k := &keeping{seat: &seat{fleet: f}}
	p, err := pool.New(k, f.connect, pool.Config{Templates: []pool.Template{template}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	require.NoError(t, p.Ready(t.Context()))
	return k, p
}

func TestADrainEndsInTimeWhicheverOrchestratorIsAskedAndWhoeverLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		c := f.add("a", "t", 2)
		first, leads := join(t, f, fixed())
		first.leads.Store(true)
		_, asked := join(t, f, fixed())
		third, other := join(t, f, fixed())
		pass(2 * time.Second)
		kept, short := acquire(t, leads, "kept"), acquire(t, leads, "short")
		waits := ask(t.Context(), leads, pool.Request{Trajectory: "waits", Wait: time.Hour}) // would take any slot that comes free
		began := time.Now()
		require.NoError(t, asked.Drain(t.Context(), "a", time.Minute))
		pass(time.Second)
		for _, p := range []*pool.Pools{leads, asked, other} {
			require.Equal(t, pool.ContainerDraining, p.Containers()[0].State)
			assert.WithinDuration(t, began.Add(time.Minute), p.Containers()[0].Container.Deadline, 0)
		}
		told, err := leads.Renew(t.Context(), kept.Ref(), time.Hour)
		require.NoError(t, err)
		assert.WithinDuration(t, began.Add(time.Minute), told.Container.Deadline, 0, "its holder hears by when")
		_, err = leads.Release(t.Context(), short.Ref(), true)
		require.NoError(t, err)
		pass(10 * time.Second)
		assert.False(t, waits.done.Load(), "who leads gives it away no more")

		require.NoError(t, other.Drain(t.Context(), "a", 40*time.Second), "51 s after the first was asked")
		require.NoError(t, leads.Drain(t.Context(), "a", time.Hour), "nobody makes it longer")
		require.NoError(t, asked.Close(), "who was asked goes away")
		first.leads.Store(false)
		require.NoError(t, leads.Close(), "and so does who led")
		third.leads.Store(true)
		pass(time.Until(began.Add(50 * time.Second)))
		assert.Empty(t, f.ended())
		assert.Equal(t, 2, c.leased(), "one of them keeps the slot from everybody")
		pass(2 * time.Second)
		assert.Equal(t, []string{"a"}, f.ended())
	})
}

func TestADrainOutlastsAllOrchestrators(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 1)
		_, p := join(t, f, fixed())
		acquire(t, p, "x")
		require.NoError(t, p.Drain(t.Context(), "a", time.Minute))
		require.NoError(t, p.Close())
		time.Sleep(2 * time.Minute)
		last, next := join(t, f, fixed())
		pass(time.Second)
		assert.Equal(t, pool.ContainerDraining, next.Containers()[0].State)
		assert.Empty(t, f.ended(), "nobody leads")
		last.leads.Store(true)
		pass(2 * time.Second)
		assert.Equal(t, []string{"a"}, f.ended())
	})
}

func TestACordonHoldsForAllUntilAnyoneTakesItBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 1)
		_, one := join(t, f, fixed())
		_, other := join(t, f, fixed())
		pass(time.Second)
		require.NoError(t, one.Cordon(t.Context(), "a", true))
		pass(time.Second)
		_, later := join(t, f, fixed())
		pass(time.Second)
		for _, p := range []*pool.Pools{one, other, later} {
			assert.Equal(t, pool.ContainerCordoned, p.Containers()[0].State)
			_, err := p.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "x"})
			assert.Equal(t, slots.KindPoolExhausted, kind(err))
		}
		waits := ask(t.Context(), one, pool.Request{Trajectory: "x", Wait: time.Hour})
		require.NoError(t, later.Cordon(t.Context(), "a", false))
		pass(time.Second)
		assert.True(t, waits.done.Load())
		require.NoError(t, waits.err)
		f.announce("a")
		pass(time.Second)
		assert.Equal(t, pool.ContainerReady, other.Containers()[0].State)
	})
}

func TestARecycleStartsOneContainerWhicheverOrchestratorIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 1)
		some := scaled(0, 1)
		some.IdleAfter = time.Hour
		first, leads := join(t, f, some)
		first.leads.Store(true)
		_, asked := join(t, f, some)
		pass(2 * time.Second)
		held := acquire(t, leads, "x")
		for range 2 {
			require.NoError(t, asked.Recycle(t.Context(), "a", 0))
			f.announce("a")
			pass(5 * time.Second)
			assert.Equal(t, 1, f.starts(), "once, though there are as many as there may be")
		}
		require.NoError(t, leads.Close())
		last, next := join(t, f, some)
		last.leads.Store(true)
		pass(5 * time.Second)
		assert.Equal(t, 1, f.starts(), "who leads next finds that it was done")
		_, err := next.Release(t.Context(), held.Ref(), true)
		require.NoError(t, err)
		pass(5 * time.Second)
		assert.Equal(t, []string{"a"}, f.ended())
	})
}

func TestWhatCannotBeKeptForAllIsNotDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 1)
		who, p := join(t, f, fixed())
		who.refuse = slots.Errorf(slots.KindInternal, "no route to host")
		for _, err := range []error{p.Cordon(t.Context(), "a", true), p.Drain(t.Context(), "a", 0), p.Recycle(t.Context(), "a", 0)} {
			require.ErrorContains(t, err, "no route to host")
		}
		pass(time.Second)
		assert.Equal(t, pool.ContainerReady, p.Containers()[0].State)
	})
}

func TestALateAnswerIsNoNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 1)
		f.add("b", "t", 1)
		first, leads := join(t, f, fixed())
		first.leads.Store(true)
		_, other := join(t, f, fixed())
		pass(2 * time.Second)
		acquire(t, leads, "x") // is served by a
		first.lag = 5 * time.Second
		late := make(chan error, 2)
		go func() { late <- leads.Drain(t.Context(), "a", 0) }()
		go func() { late <- leads.Cordon(t.Context(), "b", true) }()
		pass(time.Second)
		require.NoError(t, other.Drain(t.Context(), "a", 10*time.Second))
		require.NoError(t, other.Cordon(t.Context(), "b", false))
		require.NoError(t, <-late)
		require.NoError(t, <-late)
		pass(time.Second)
		all := leads.Containers()
		require.Len(t, all, 2)
		assert.Equal(t, pool.ContainerReady, all[1].State, "somebody has taken that back")
		pass(10 * time.Second)
		assert.Equal(t, []string{"a"}, f.ended(), "the deadline holds")
	})
}

func TestAStartThatReturnsLateDoesNotBringBackAnOldAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.startLag = 5 * time.Second
		who, p := join(t, f, scaled(1, 1))
		who.leads.Store(true)
		pass(3 * time.Second)
		require.Len(t, p.Containers(), 1, "it was heard of")
		id := p.Containers()[0].Container.ID
		_, ok := f.become(id, func(c *backend.Container) { c.URL = "sim://moved" })
		require.True(t, ok)
		pass(10 * time.Second)
		known, ok := p.Known(id)
		require.True(t, ok)
		assert.Equal(t, "sim://moved", known.URL)
	})
}
