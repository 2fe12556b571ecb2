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

// doomed is a fleet whose first container ends before its start returns.
type doomed struct {
	*fleet
	first string
}

func (d *doomed) Start(ctx context.Context, spec backend.Spec) (backend.Container, error) {
	c, err := d.fleet.Start(ctx, spec)
	if err == nil && d.first == "" {
		d.first = c.ID
		time.Sleep(time.Second) // it is told that the container is up
		d.kill(c.ID, "crashed")
		time.Sleep(time.Second) // and that it is down
	}
	return c, err
}

func TestAContainerThatEndsBeforeItsStartReturnsStaysGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &doomed{fleet: newFleet()}
		p, err := pool.New(d, d.connect, pool.Config{Templates: []pool.Template{scaled(1, 1)}})
		require.NoError(t, err)
		defer func() { assert.NoError(t, p.Close()) }()
		pass(30 * time.Second)
		views := p.Containers()
		require.Len(t, views, 1)
		assert.NotEqual(t, d.first, views[0].Container.ID)
		assert.Equal(t, pool.ContainerReady, views[0].State)
	})
}

func TestOnceTheQueuesAreEndedNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 1)
		p := open(t, f, pool.Config{})
		held := acquire(t, p, "x")
		waits := ask(t.Context(), p, pool.Request{Trajectory: "w", Wait: time.Hour})
		require.False(t, waits.done.Load())
		p.EndQueues()
		p.EndQueues()
		late := ask(t.Context(), p, pool.Request{Trajectory: "late", Wait: time.Hour})
		for _, a := range []*asked{waits, late} {
			require.True(t, a.done.Load())
			assert.Equal(t, slots.KindDraining, kind(a.err))
			assert.True(t, slots.AsError(a.err).Retryable)
		}
		_, err := p.Release(t.Context(), held.Ref(), true)
		require.NoError(t, err, "what needs no wait is done")
		assert.Equal(t, 1, p.Stats()[0].Available)
	})
}

func TestOnceTheQueuesAreEndedNobodyWaitsForTheView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		c := f.add("a", "t", 1)
		c.takes = time.Hour
		p, err := pool.New(f, f.connect, pool.Config{Templates: []pool.Template{fixed()}})
		require.NoError(t, err)
		defer func() { assert.NoError(t, p.Close()) }()
		waits := ask(t.Context(), p, pool.Request{Trajectory: "w"})
		require.False(t, waits.done.Load())
		p.EndQueues()
		synctest.Wait()
		require.True(t, waits.done.Load())
		assert.Equal(t, slots.KindDraining, kind(waits.err))
	})
}

func TestWhoIsSentAwayHearsWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 1)
		p := open(t, f, pool.Config{})
		acquire(t, p, "x")
		ctx, cut := context.WithCancelCause(t.Context())
		waits := ask(ctx, p, pool.Request{Trajectory: "w", Wait: time.Hour})
		cut(slots.Errorf(slots.KindDraining, "it ends"))
		synctest.Wait()
		require.True(t, waits.done.Load())
		assert.Equal(t, slots.KindDraining, kind(waits.err))
		assert.Equal(t, slots.ExecutedNever, slots.AsError(waits.err).Executed)
	})
}

func TestAfterARestartTheGrantThatWasHeardCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		a := f.add("a", "t", 1)
		f.add("b", "t", 2)
		before := open(t, f, pool.Config{})
		a.set(func() {
			a.lag = map[string]time.Duration{"acquire": time.Second}
			a.mute = func() bool { a.mute, a.cut = nil, true; return true }
		})
		heard, err := before.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "x", Wait: time.Minute})
		require.NoError(t, err)
		require.Equal(t, "b", heard.Container.ID, "the answer of a was lost")
		require.NoError(t, before.Close())
		a.set(func() { a.lag, a.cut = nil, false })
		require.Equal(t, 1, a.leased(), "nobody could give it back")
		after := open(t, f, pool.Config{})
		assert.Equal(t, heard.Ref(), acquire(t, after, "x").Ref())
		held, err := after.Lookup(t.Context(), "t", "x")
		require.NoError(t, err)
		require.Len(t, held, 2)
		assert.Equal(t, heard.Ref(), held[0].Ref())
	})
}
