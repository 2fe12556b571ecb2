package keeper

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/sandbox"
)

// fakeTerminal ends with its context, or after it was written to.
type fakeTerminal struct {
	ctx   context.Context //nolint:containedctx // it stands for what runs
	end   context.CancelFunc
	typed chan struct{}
	done  chan struct{}
	exit  slots.Exit
}

func (f *fakeSandbox) Terminal(ctx context.Context, c sandbox.TerminalCommand) (sandbox.Terminal, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.resetting || f.closed {
		f.violate("terminal while resetting %t, closed %t", f.resetting, f.closed)
	}
	if c.Argv[0] == "missing" {
		return nil, slots.Errorf(slots.KindNotFound, "no such program")
	}
	t := &fakeTerminal{typed: make(chan struct{}, 1), done: make(chan struct{})}
	t.ctx, t.end = context.WithCancel(ctx)
	go func() { // ends with ctx
		defer close(t.done)
		select {
		case <-t.ctx.Done():
			t.exit = slots.Exit{Outcome: slots.OutcomeCancelled, Code: 137}
		case <-t.typed:
			t.exit = slots.Exit{Outcome: slots.OutcomeExited, Code: 3}
		}
	}()
	return t, nil
}

func (t *fakeTerminal) Read([]byte) (int, error) {
	<-t.done
	return 0, io.EOF
}

func (t *fakeTerminal) Write(p []byte) (int, error) {
	t.typed <- struct{}{}
	return len(p), nil
}

func (*fakeTerminal) Resize(uint16, uint16) error { return nil }

func (t *fakeTerminal) Wait() (slots.Exit, error) {
	<-t.done
	return t.exit, nil
}

func (t *fakeTerminal) Close() error {
	t.end()
	<-t.done
	return nil
}

var anyCommand = sandbox.TerminalCommand{Argv: []string{"bash"}}

func TestTerminalsAreBounded(t *testing.T) {
	bubble(t, Config{Slots: 2, TerminalsMax: 2}, func(h *harness) {
		ctx := h.t.Context()
		first, err := h.Terminal(ctx, "slot_0", nil, anyCommand)
		require.NoError(t, err)
		second, err := h.Terminal(ctx, "slot_0", nil, anyCommand)
		require.NoError(t, err)
		_, err = h.Terminal(ctx, "slot_0", nil, anyCommand)
		assert.Equal(t, slots.KindConflict, slots.AsError(err).Kind)
		other, err := h.Terminal(ctx, "slot_1", nil, anyCommand)
		require.NoError(t, err, "of each slot for itself")
		_, err = first.Write([]byte("exit\r"))
		require.NoError(t, err)
		exit, err := first.Wait()
		require.NoError(t, err)
		assert.Equal(t, 3, exit.Code)
		third, err := h.Terminal(ctx, "slot_0", nil, anyCommand)
		require.NoError(t, err, "one that has ended counts no more, though nobody has closed it")
		for _, tty := range []sandbox.Terminal{first, second, third, other} {
			require.NoError(t, tty.Close())
		}
		for range 5 {
			_, err = h.Terminal(ctx, "slot_0", nil, sandbox.TerminalCommand{Argv: []string{"missing"}})
			require.Equal(t, slots.KindNotFound, slots.AsError(err).Kind, "nor does one that never was")
		}
	})
}

func TestATerminalIsRefusedWithTheReason(t *testing.T) {
	bubble(t, Config{Slots: 1}, func(h *harness) {
		_, err := h.Terminal(h.t.Context(), "slot_9", nil, anyCommand)
		assert.Equal(t, slots.KindNotFound, slots.AsError(err).Kind)
		lease, err := h.Acquire("slot_0", api.LeaseRequest{Trajectory: "a", TTLSeconds: 60})
		require.NoError(t, err)
		_, err = h.Terminal(h.t.Context(), "slot_0", new(lease.Token+1), anyCommand)
		assert.Equal(t, slots.KindFenced, slots.AsError(err).Kind)
		tty, err := h.Terminal(h.t.Context(), "slot_0", &lease.Token, anyCommand)
		require.NoError(t, err)
		time.Sleep(61 * time.Second)
		_, err = tty.Wait()
		assert.Equal(t, slots.KindLeaseExpired, slots.AsError(err).Kind, "it ends with the lease")
		require.NoError(t, tty.Close())
	})
}

func TestAResetEndsTheTerminalsOfItsSlot(t *testing.T) {
	bubble(t, Config{Slots: 1}, func(h *harness) {
		tty, err := h.Terminal(h.t.Context(), "slot_0", nil, anyCommand)
		require.NoError(t, err)
		receipt, err := h.Reset(h.t.Context(), "slot_0", nil)
		require.NoError(t, err)
		assert.Less(t, receipt.MS, float64(opsGrace.Milliseconds()), "it waits for them, and they go at once")
		_, err = tty.Wait()
		assert.Equal(t, slots.KindInterrupted, slots.AsError(err).Kind)
		assert.Equal(t, slots.ExecutedMaybe, slots.AsError(err).Executed)
	})
}

func TestADrainGivesTerminalsItsTime(t *testing.T) {
	bubble(t, Config{Slots: 1}, func(h *harness) {
		tty, err := h.Terminal(h.t.Context(), "slot_0", nil, anyCommand)
		require.NoError(t, err)
		within, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		began := time.Now()
		require.ErrorIs(t, h.Drain(within), context.DeadlineExceeded)
		assert.Equal(t, 10*time.Second, time.Since(began))
		_, err = tty.Wait()
		assert.Equal(t, slots.KindDraining, slots.AsError(err).Kind)
		_, err = h.Terminal(h.t.Context(), "slot_0", nil, anyCommand)
		assert.Equal(t, slots.KindDraining, slots.AsError(err).Kind)
	})
}
