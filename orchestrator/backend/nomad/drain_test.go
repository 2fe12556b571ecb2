package nomad_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
)

func TestADrainOfANodeIsToldWithItsDeadline(t *testing.T) {
	d := newDouble(t)
	b := open(t, d.config(t))
	one := start(t, b, "c-0")[0]
	d.do(func() { d.mine = "node-1" })
	start(t, b, "c-1")
	heard := next(t, b)
	heard()
	heard()
	by := time.Now().Add(time.Hour).Truncate(time.Second)
	d.do(func() { d.drain("node-0", by) })
	e := heard()
	assert.Equal(t, backend.Up, e.Kind)
	assert.Equal(t, "c-0", e.Container.ID, "the other node is not drained")
	assert.True(t, e.Container.Draining)
	assert.True(t, by.Equal(e.Container.Deadline), "%v", e.Container.Deadline)
	again := open(t, d.config(t))
	assert.Equal(t, unversioned(t, b), unversioned(t, again), "who comes later reads the same")

	d.do(func() { d.undrain("node-0") })
	one.Version = 3
	assert.Equal(t, backend.Event{Kind: backend.Up, Container: one}, heard())
	d.do(func() { d.drain("node-0", time.Time{}) })
	e = heard()
	assert.True(t, e.Container.Draining)
	assert.Zero(t, e.Container.Deadline)
}

func TestADrainWhoseEventWasLostIsReadFromTheList(t *testing.T) {
	d := newDouble(t)
	c := d.config(t)
	c.Relist = 30 * time.Millisecond
	b := open(t, c)
	start(t, b, "c-0")
	d.do(func() {
		d.silent = true
		d.drain("node-0", time.Time{})
	})
	require.Eventually(t, func() bool { return list(t, b)[0].Draining }, patience, time.Millisecond)
	d.do(func() { d.undrain("node-0") })
	require.Eventually(t, func() bool { return !list(t, b)[0].Draining }, patience, time.Millisecond)
}

func TestNothingIsStartedOnANodeThatIsDrained(t *testing.T) {
	d := newDouble(t)
	c := d.config(t)
	c.Spare = patience
	b := open(t, c)
	start(t, b, "c-0", "c-1", "c-2")
	require.NoError(t, b.Stop(t.Context(), "c-1", 0)) // leaves an allocation that nobody has
	require.Eventually(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.counted(job)) == 3
	}, patience, time.Millisecond)
	d.do(func() {
		d.mine = "node-1"
		d.drain("node-0", time.Time{})
	})
	fresh := start(t, b, "c-3")[0]
	assert.False(t, fresh.Draining)
	d.mu.Lock()
	assert.Equal(t, "node-1", d.allocs[d.allocOf(fresh)].NodeID)
	onOld := 0
	for _, a := range d.counted(job) {
		if a.NodeID == "node-0" {
			onOld++
		}
	}
	d.mu.Unlock()
	assert.Equal(t, 2, onOld, "what nobody had was moved, what is claimed was not")
	assert.Len(t, list(t, b), 3)
	for _, id := range []string{"c-0", "c-2"} {
		require.NoError(t, b.Stop(t.Context(), id, 0))
	}
	assert.Equal(t, []backend.Container{fresh}, list(t, b))
}

func TestAtTheDeadlineOfADrainWhatIsLeftGoes(t *testing.T) {
	d := newDouble(t)
	d.stopping = 500 * time.Millisecond
	b := open(t, d.config(t))
	start(t, b, "c-0")
	heard := next(t, b)
	heard()
	by := time.Now().Add(2 * time.Second)
	d.do(func() {
		d.mine = "node-1"
		d.drain("node-0", by)
	})
	for {
		e := heard()
		assert.True(t, e.Container.Draining)
		if e.Kind == backend.Down {
			break
		}
	}
	assert.False(t, time.Now().Before(by))
}

func TestWithoutNodeReadDrainsAreHeardOfLate(t *testing.T) {
	d := newDouble(t)
	d.blinds = true
	b := open(t, d.config(t))
	start(t, b, "c-0")
	d.do(func() { d.drain("node-0", time.Time{}) })
	start(t, b, "c-1")
	assert.False(t, list(t, b)[0].Draining)
	assert.Equal(t, 1, d.asked("GET nodes"), "it is asked once")
	all := list(t, b)
	d.do(func() {
		d.stopping = patience
		d.stop(d.allocs[d.allocOf(all[0])])
	})
	require.Eventually(t, func() bool { return list(t, b)[0].Draining }, patience, time.Millisecond, "it was told to stop")
	left := time.Until(list(t, b)[0].Deadline)
	assert.Greater(t, left, 20*time.Second)
	assert.Less(t, left, time.Minute, "and Nomad kills it then")
	require.NoError(t, b.Close())
}
