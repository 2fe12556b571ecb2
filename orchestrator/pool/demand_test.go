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
	waiting *atomic.Int64 // at the one that does not lead
}

func (a *asking) Ask(_ string, waiting int) {
	if !a.leads.Load() {
		a.waiting.Store(int64(waiting))
	}
}

func (a *asking) Duty(template string) backend.Duty {
	duty := a.seat.Duty(template)
	if duty.Held {
		duty.Demand = int(a.waiting.Load())
	}
	return duty
}

func TestCallersWhoWaitElsewhereHaveThePoolGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, waiting := newFleet(), &atomic.Int64{}
		f.startTakes = 3 * time.Second
		var pools []*pool.Pools
		for i := range 2 {
			s := &asking{seat: &seat{fleet: f}, waiting: waiting}
			s.leads.Store(i == 0)
			p, err := pool.New(s, f.connect, pool.Config{Templates: []pool.Template{scaled(0, 3)}})
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, p.Close()) })
			require.NoError(t, p.Ready(t.Context()))
			pools = append(pools, p)
		}
		pass(10 * time.Second)
		assert.Zero(t, f.started, "nobody waits")
		var callers []*asked
		for i := range 3 {
			callers = append(callers, ask(t.Context(), pools[1], pool.Request{Trajectory: fmt.Sprint(i), Wait: time.Hour}))
		}
		pass(1100 * time.Millisecond)
		assert.Equal(t, int64(3), waiting.Load())
		assert.Equal(t, 2, f.started, "for three callers, with two slots each")
		pass(10 * time.Second)
		for _, c := range callers {
			assert.True(t, c.done)
			require.NoError(t, c.err)
		}
		assert.Zero(t, waiting.Load())
		assert.Equal(t, 2, f.started, "and no more")
	})
}
