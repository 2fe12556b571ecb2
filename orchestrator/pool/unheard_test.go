package pool_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/pool"
	"berth/slots"
)

func TestAMachineThatIsNotHeardOfForAWhileLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		one, idle := f.add("a", "t", 2), f.add("b", "t", 2)
		_, all := seats(t, f, 2, pool.Config{Templates: []pool.Template{fixed()}})
		held := acquire(t, all[0], "x")
		require.Equal(t, "a", held.Container.ID)
		by := time.Now().Add(time.Hour).Truncate(time.Second)
		f.unhear("a", true, by)
		f.unhear("b", true, by)
		pass(20 * time.Second)
		for _, p := range all {
			_, err := p.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "y"})
			assert.Equal(t, slots.KindPoolExhausted, kind(err), "nothing is to begin there")
			assert.Equal(t, map[pool.ContainerState]int{pool.ContainerUnheard: 2}, p.Stats()[0].Containers)
			assert.Equal(t, 0, p.Stats()[0].Available)
			renewed, err := p.Renew(t.Context(), held.Ref(), 0)
			require.NoError(t, err, "its lease goes on")
			assert.True(t, renewed.Container.Draining, "its holder is told")
			assert.True(t, renewed.Container.Unheard, "and why")
			assert.Equal(t, by, renewed.Container.Deadline)
		}
		assert.Equal(t, 1, one.leased(), "nobody takes its free slot")
		assert.Equal(t, 0, idle.leased())
		require.Empty(t, f.ended())

		f.unhear("a", false, time.Time{})
		f.unhear("b", false, time.Time{})
		pass(time.Second)
		assert.Equal(t, "a", acquire(t, all[1], "y").Container.ID)
		assert.Equal(t, "b", acquire(t, all[0], "z").Container.ID)
		again := acquire(t, all[0], "x")
		assert.Equal(t, held.Ref(), again.Ref())
		assert.False(t, again.Container.Draining)
		assert.False(t, again.Container.Unheard)
		assert.Zero(t, again.Container.Deadline)
		for _, name := range []string{"x", "y", "z"} {
			_, err := all[0].Release(t.Context(), acquire(t, all[0], name).Ref(), true)
			require.NoError(t, err)
		}
		pass(time.Minute)
		assert.Empty(t, f.ended())
	})
}

func TestCallersThatWaitGetAContainerInPlaceOfOneThatIsNotHeardOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		some := fixed()
		some.MinContainers, some.MaxContainers, some.IdleAfter, some.ShrinkCooldown, some.TTL = 1, 2, time.Second, time.Second, time.Hour
		f.add("a", "t", 2)
		_, all := seats(t, f, 1, pool.Config{Templates: []pool.Template{some}})
		f.unhear("a", true, time.Time{})
		pass(time.Second)
		l, err := all[0].Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "x", Wait: time.Minute})
		require.NoError(t, err)
		assert.NotEqual(t, "a", l.Container.ID)
		pass(5 * time.Minute)
		assert.Empty(t, f.ended(), "it does not count as idle")
		assert.Equal(t, 1, all[0].Stats()[0].Containers[pool.ContainerUnheard])
		_, err = all[0].Release(t.Context(), l.Ref(), true)
		require.NoError(t, err)
		pass(time.Millisecond)
		f.unhear("a", false, time.Time{})
		pass(5 * time.Minute)
		assert.Len(t, f.ended(), 1, "now one is too many")
	})
}

func TestAPoolAtItsMaximumReplacesWhatIsNotHeardOfForThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		some := fixed()
		some.MinContainers, some.MaxContainers, some.TTL = 2, 2, time.Hour
		f.add("a", "t", 2)
		f.add("b", "t", 2)
		_, all := seats(t, f, 1, pool.Config{Templates: []pool.Template{some}})
		held := acquire(t, all[0], "x")
		require.Equal(t, "a", held.Container.ID)
		f.unhear("a", true, time.Now().Add(10*time.Minute))
		pass(time.Minute)
		assert.Len(t, all[0].Containers(), 2, "nobody waits")
		for _, name := range []string{"y", "z"} {
			require.Equal(t, "b", acquire(t, all[0], name).Container.ID)
		}
		l, err := all[0].Acquire(t.Context(), pool.Request{Template: "t", Trajectory: "w", Wait: time.Minute})
		require.NoError(t, err, "it is not the maximum that serves")
		assert.NotContains(t, []string{"a", "b"}, l.Container.ID)
		pass(5 * time.Minute)
		assert.Len(t, all[0].Containers(), 3, "of those that serve there are two, the most")
		assert.Empty(t, f.ended())

		f.unhear("a", false, time.Time{})
		pass(time.Minute)
		again := acquire(t, all[0], "x")
		assert.Equal(t, held.Ref(), again.Ref(), "no lease is lost to what is too many now")
		assert.Empty(t, f.ended())
		for _, name := range []string{"w", "x"} {
			_, err = all[0].Release(t.Context(), acquire(t, all[0], name).Ref(), true)
			require.NoError(t, err)
		}
		pass(time.Minute)
		assert.Len(t, f.ended(), 1, "one is too many")
	})
}

func TestWhatIsDrainedWhileItIsNotHeardOfIsDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.add("a", "t", 2)
		p := open(t, f, pool.Config{})
		pass(time.Second)
		f.unhear("a", true, time.Time{})
		require.NoError(t, p.Drain(t.Context(), "a", 0))
		pass(5 * time.Second)
		assert.Equal(t, []string{"a"}, f.ended())
	})
}
