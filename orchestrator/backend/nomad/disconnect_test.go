package nomad_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator/backend"
	"berth/slots"
)

func TestAMachineThatIsNotHeardOfKeepsItsContainers(t *testing.T) {
	d := newDouble(t)
	b := open(t, d.config(t))
	one := start(t, b, "c-0")[0]
	d.do(func() { d.mine = "node-1" })
	two := start(t, b, "c-1")[0]
	heard := next(t, b)
	heard()
	heard()
	began := time.Now()
	d.do(func() { d.disconnect("node-0") })
	e := heard()
	assert.Equal(t, backend.Up, e.Kind, "its leases go on")
	assert.Equal(t, "c-0", e.Container.ID)
	assert.True(t, e.Container.Unheard, "nobody is to begin anything there")
	assert.False(t, e.Container.Draining, "nor to end anything")
	assert.WithinDuration(t, began.Add(jobs.LostAfter), e.Container.Deadline, 5*time.Second, "it is given up then")
	by := e.Container.Deadline
	again := open(t, d.config(t))
	assert.Equal(t, unversioned(t, b), unversioned(t, again), "who comes later reads the same")
	require.NoError(t, again.Close())

	pause(t.Context(), 1100*time.Millisecond) // times are told in seconds
	d.do(func() {
		touched := *d.allocs[d.allocOf(one)]
		d.put(&touched)
	})
	pause(t.Context(), 200*time.Millisecond)
	assert.Equal(t, by, list(t, b)[0].Deadline, "a scaling touches it, and gives it no more time")

	d.do(func() { d.reconnect("node-0") })
	e = heard()
	for e.Container.Unheard {
		e = heard()
	}
	one.Version = 3
	assert.Equal(t, backend.Event{Kind: backend.Up, Container: one}, e, "it is as before")

	d.do(func() { d.disconnect("node-0") })
	assert.True(t, heard().Container.Unheard)
	d.do(func() { d.lost(d.allocOf(one)) })
	e = heard()
	assert.Equal(t, backend.Down, e.Kind)
	assert.Equal(t, "c-0", e.Container.ID)
	assert.Contains(t, e.Reason, api.AllocClientStatusLost)
	assert.Equal(t, []backend.Container{two}, list(t, b))
}

func TestNothingIsClaimedWhereNomadDoesNotHear(t *testing.T) {
	d := newDouble(t)
	d.room = 4
	c := d.config(t)
	c.Spare = patience
	b := open(t, c)
	start(t, b, "c-0")
	d.do(func() { d.mine = "node-1" })
	d.byHand(t, 3) // two that nobody has
	d.do(func() {
		d.mine = "node-0"
		d.disconnect("node-1")
	})
	require.Eventually(t, func() bool { return b.Unheard() == 2 }, patience, time.Millisecond)
	fresh := start(t, b, "c-1")[0]
	assert.False(t, fresh.Unheard)
	assert.Equal(t, 3, fresh.Rank)
	assert.Equal(t, 4, d.count(), "what is not heard of has its place in it")
	_, err := b.Start(t.Context(), spec("c-2"))
	assert.Equal(t, slots.KindPoolExhausted, slots.AsError(err).Kind, "it does not wait for what may never come back: %v", err)

	d.do(func() { d.reconnect("node-1") })
	all := start(t, b, "c-3", "c-4")
	assert.ElementsMatch(t, []int{1, 2}, []int{all[0].Rank, all[1].Rank}, "what is back is there to be used")
	assert.Len(t, list(t, b), 4)
}

func TestACountIsNotLoweredWhileAMachineIsNotHeardOf(t *testing.T) {
	d := newDouble(t)
	c := d.config(t)
	c.Spare = 50 * time.Millisecond
	b := open(t, c)
	start(t, b, "c-0")
	d.do(func() { d.mine = "node-1" })
	start(t, b, "c-1", "c-2")
	heard := next(t, b)
	for range 3 {
		heard()
	}
	d.do(func() { d.disconnect("node-0") })
	require.True(t, heard().Container.Unheard)
	require.NoError(t, b.Stop(t.Context(), "c-2", 0))
	pause(t.Context(), 300*time.Millisecond)
	assert.Empty(t, d.lowered(), "Nomad would stop nothing now, and one from the top when the machine is back")
	d.do(func() { d.reconnect("node-0") })
	require.Eventually(t, func() bool { return d.count() == 2 }, patience, time.Millisecond)
	assert.Equal(t, []int{2}, d.lowered())
	assert.Len(t, list(t, b), 2)
}

func TestWhatIsAboveTheCountIsNotClaimed(t *testing.T) {
	d := newDouble(t)
	c := d.config(t)
	c.Spare = 300 * time.Millisecond
	b := open(t, c)
	start(t, b, "c-0")
	d.do(func() { d.mine = "node-1" })
	d.byHand(t, 2)
	var refuse atomic.Bool
	lowered := make(chan struct{})
	d.do(func() {
		d.fault = func(r *http.Request) (int, string) {
			switch {
			case r.Method != http.MethodPut || !strings.HasSuffix(r.URL.Path, "/scale"):
			case refuse.Load():
				return http.StatusBadGateway, "not now"
			default: // at the moment at which Nomad lowers the count it does not hear of c-0
				refuse.Store(true)
				d.do(func() { d.disconnect("node-0") })
				close(lowered)
			}
			return 0, ""
		}
	})
	<-lowered
	require.Eventually(t, func() bool { return d.count() == 1 && list(t, b)[0].Unheard }, patience, time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := b.Start(ctx, spec("c-1"))
	require.Error(t, err, "it would have the allocation that Nomad stops when it hears of c-0")
	refuse.Store(false)
	d.do(func() { d.fault = nil })
	start(t, b, "c-2")
	assert.Equal(t, 2, d.count())
	d.do(func() { d.reconnect("node-0") })
	require.Eventually(t, func() bool { return !list(t, b)[0].Unheard }, patience, time.Millisecond)
	assert.Len(t, list(t, b), 2)
}

func TestWhatIsStoppedUnheardEndsWhenItsMachineIsBack(t *testing.T) {
	d := newDouble(t)
	b := open(t, d.config(t))
	start(t, b, "c-0")
	d.do(func() { d.mine = "node-1" })
	start(t, b, "c-1")
	d.do(func() { d.disconnect("node-0") })
	require.Eventually(t, func() bool { return list(t, b)[0].Unheard }, patience, time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := b.Stop(ctx, "c-0", 0)
	assert.Equal(t, slots.KindInterrupted, slots.AsError(err).Kind)
	assert.Equal(t, 1, d.asked(http.MethodPut+" allocation"), "Nomad is told once")
	d.do(func() { d.reconnect("node-0") })
	require.NoError(t, b.Stop(t.Context(), "c-0", 0))
	assert.Equal(t, "c-1", list(t, b)[0].ID)
	start(t, b, "c-2")
	assert.Equal(t, 2, d.count())
}
