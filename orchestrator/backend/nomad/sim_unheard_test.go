package nomad_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/pool"
)

// taken is how many slots have a lease, whoever has it.
func (a *agent) taken() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.slots {
		if a.slots[i].Lease != nil {
			n++
		}
	}
	return n
}

func TestAMachineThatIsBackServesAsBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		for i := range 3 {
			w.seats = append(w.seats, w.open(fmt.Sprintf("o-%d", i)))
		}
		t.Cleanup(func() {
			for _, o := range w.seats {
				o.close(t)
			}
		})
		w.acquire(t.Context(), w.seats[0], time.Minute)
		held := w.held["tr-1"]
		require.NotEmpty(t, held.Container.ID)
		time.Sleep(10 * time.Second)
		one := w.agent(held.Container.URL)
		node := ""
		w.d.do(func() {
			for _, a := range w.d.counted(job) {
				if urlOf(a) == held.Container.URL {
					node = a.NodeID
				}
			}
			w.d.disconnect(node)
		})
		time.Sleep(time.Minute)
		for _, o := range w.seats {
			states := map[bool]pool.ContainerState{}
			for _, c := range o.pools.Containers() {
				states[c.Container.ID == held.Container.ID] = c.State
			}
			assert.Equal(t, map[bool]pool.ContainerState{true: pool.ContainerUnheard, false: pool.ContainerReady}, states,
				"%s knows, and another is started, so that slots are free", o.name)
		}
		assert.Equal(t, 1, one.taken(), "nobody takes its free slots")
		w.check()

		w.d.do(func() { w.d.reconnect(node) })
		time.Sleep(2 * time.Second)
		for i, o := range w.seats[1:] {
			w.acquire(t.Context(), o, time.Minute)
			assert.Equal(t, held.Container.ID, w.held[fmt.Sprintf("tr-%d", i+2)].Container.ID, "its free slots are given again")
		}
		for _, name := range w.holders() {
			w.release(w.any(), name)
		}
		assert.Equal(t, 0, one.taken())
		assert.False(t, one.told)
	})
}
