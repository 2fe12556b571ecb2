package holder_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots/holder"
)

func TestNoTimeOfAProcessGoesUncounted(t *testing.T) {
	h := spawn(t, startSpawner(t), plain(t))
	var over atomic.Bool
	defer over.Store(true)
	for range 6 { // so that the holder waits for its turn once the process runs
		go func() {
			for !over.Load() { //nolint:revive // it is to take time
			}
		}()
	}
	for range 15 {
		p, err := h.Start(holder.Request{Argv: []string{"sleep", "0.03"}, Files: []int{-1}, Output: func(holder.Passed) {}})
		require.NoError(t, err)
		exit, err := p.Wait(t.Context())
		require.NoError(t, err)
		assert.GreaterOrEqual(t, exit.Run, 30*time.Millisecond)
	}
}
