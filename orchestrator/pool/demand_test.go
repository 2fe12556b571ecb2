package pool_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
	"berth/orchestrator/pool"
)

// asking is a seat that tells how many callers wait elsewhere.
type asking struct {
	*seat
	waiting *atomic.Pointer[backend.Demand] // at the one that does not lead
}

func (a *asking) Ask(_ string, here backend.Demand) {
	if !a.leads.Load() {
		a.waiting.Store(&here)
	}
}

func (a *asking) Duty(template string) backend.Duty {
	duty := a.seat.Duty(template)
	if d := a.waiting.Load(); d != nil && duty.Held {
		duty.Demand = []backend.Demand{*d}
	}
	return duty
}

func TestCallersWhoWaitElsewhereHaveThePoolGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, waiting := newFleet(), &atomic.Pointer[backend.Demand]{}
		f.startTakes = 3 * time.Second
		var pools []*pool.Pools
		for i := range 2 {
			s := &asking{seat: &seat{fleet: f}, waiting: waiting}
			s.leads.Store(i == 0)
			p, err := pool.New(s, f.connect, pool.Config{Templates: []pool.Template{scaled(0, 4)}})
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, p.Close()) })
			require.NoError(t, p.Ready(t.Context()))
			pools = append(pools, p)
		}
		pass(10 * time.Second)
		assert.Zero(t, f.starts(), "nobody waits")
		var callers []*asked
		for i := range 3 {
			callers = append(callers, ask(t.Context(), pools[1], pool.Request{Trajectory: fmt.Sprint(i), Wait: time.Hour}))
		}
		pass(1100 * time.Millisecond)
		assert.Equal(t, 3, waiting.Load().Waiting)
		assert.Equal(t, 2, f.starts(), "for three callers, with two slots each")
		pass(10 * time.Second)
		for _, c := range callers {
			assert.True(t, c.done.Load())
			require.NoError(t, c.err)
		}
		assert.Zero(t, waiting.Load().Waiting)
		assert.Equal(t, 2, f.starts(), "and no more")

		// Who has read the last container that came is believed at once.
		for i := range 4 {
			c := ask(t.Context(), pools[1], pool.Request{Trajectory: fmt.Sprint("more", i), Wait: time.Hour})
			pass(100 * time.Millisecond)
			if i%2 == 0 {
				assert.True(t, c.done.Load(), "one slot is free")
				continue
			}
			pass(2 * time.Second) // who scales reads of the leases of others once a second
			assert.Equal(t, 3+i/2, f.starts())
			for range 100 {
				if !c.done.Load() {
					pass(100 * time.Millisecond)
				}
			}
			assert.True(t, c.done.Load())
		}
	})
}
