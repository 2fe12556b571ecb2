package keeper

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/sandboxd/execution"
	"berth/slots"
)

// beside starts Run on a goroutine of its own and gives its execution, which
// has ended by then unless it had to queue.
func beside(h *harness, c api.Call) <-chan *execution.Execution {
	ended := make(chan *execution.Execution, 1)
	go func() { ended <- h.Run(context.Background(), c) }()
	synctest.Wait()
	return ended
}

func TestACallOfAnIdleSlotRunsOnItsCallersGoroutine(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		start := time.Now()
		e := h.Run(t.Context(), call("sleep 3s"))
		assert.Equal(t, 3*time.Second, time.Since(start))
		select {
		case <-e.Done():
		default:
			t.Fatal("it has not ended")
		}
		assert.True(t, e.Result().Success)
		assert.Equal(t, slots.StateAvailable, h.state(0))
		assert.True(t, h.run(call("true")).Success, "the runner goes on")
	})
}

func TestACallOfABusySlotWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		first := beside(h, call("sleep 10s"))
		assert.Equal(t, slots.StateExecuting, h.state(0))
		second, third := h.Run(t.Context(), call("sleep 1s")), h.Submit(t.Context(), call("true"))
		assert.False(t, second.Started())
		require.True(t, (<-first).Result().Success)
		require.NoError(t, third.Wait(t.Context()))
		assert.True(t, second.Result().Success)
		assert.Equal(t, []string{"sleep 10s", "sleep 1s", "true"}, h.box(0).commands())
	})
}

func TestAResetEndsACallOnItsCallersGoroutine(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		running := beside(h, call("sleep 1h"))
		_, err := h.Reset(t.Context(), "slot_0", nil)
		require.NoError(t, err)
		assert.Equal(t, slots.KindInterrupted, (<-running).Result().Metadata.ErrorKind)
		assert.Equal(t, 1, h.box(0).swaps())
		assert.True(t, h.Run(t.Context(), call("true")).Result().Success)
	})
}

func TestDrainWaitsForACallOnItsCallersGoroutine(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		running := beside(h, call("sleep 10s"))
		start := time.Now()
		require.NoError(t, h.Drain(t.Context()))
		assert.Equal(t, 10*time.Second, time.Since(start))
		assert.True(t, (<-running).Result().Success)
		assert.Equal(t, slots.KindDraining, h.Run(t.Context(), call("late")).Result().Metadata.ErrorKind)
	})
}

func TestACallThatRunsDirectlyIsNotCancelledByItsTwin(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		c := call("sleep 2s")
		c.ExecutionID = "twin"
		running := beside(h, c)
		gone, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("the twin is gone"))
		require.Error(t, h.Submit(t.Context(), c).Wait(gone))
		assert.True(t, (<-running).Result().Success)
	})
}
