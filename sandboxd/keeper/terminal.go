package keeper

import (
	"context"
	"errors"

	"berth/slots"
	"berth/slots/sandbox"
)

// Terminal starts a process on a terminal in the slot, beside its executions
// and not behind them, and returns when it runs. It waits for a reset that is
// under way, and for nothing else: a slot that has Config.TerminalsMax open is
// KindConflict. The end of ctx ends it; so does a reset of the slot, the end of
// its lease and the end of a drain, which Wait then names as its error.
func (k *Keeper) Terminal(ctx context.Context, slotID string, token *uint64, c sandbox.TerminalCommand) (sandbox.Terminal, error) {
	s, err := k.slot(slotID)
	if err != nil {
		return nil, err
	}
	select {
	case s.seats <- struct{}{}:
	default:
		return nil, slots.Errorf(slots.KindConflict, "slot %s has %d terminals open, which is all it may have", slotID, cap(s.seats))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	o := &op{cancel: cancel, done: make(chan struct{}), terminal: true}
	box, err := s.enter(ctx, token, o)
	if err != nil {
		<-s.seats
		cancel(nil)
		return nil, err
	}
	tty, err := box.Terminal(ctx, c)
	end := func() {
		cancel(nil)
		s.leave(o)
		<-s.seats
	}
	if err != nil {
		cause, typed := errors.AsType[*slots.Error](context.Cause(ctx))
		end()
		if typed {
			return nil, cause.WithExecuted(slots.ExecutedMaybe)
		}
		return nil, err
	}
	t := &seat{Terminal: tty, ended: make(chan struct{})}
	go func() { // ends with the terminal
		defer close(t.ended)
		t.exit, t.err = tty.Wait()
		if cause, typed := errors.AsType[*slots.Error](context.Cause(ctx)); typed && (t.err != nil || t.exit.Outcome == slots.OutcomeCancelled) {
			t.err = cause.WithExecuted(slots.ExecutedMaybe)
		}
		end()
	}()
	return t, nil
}

// seat is a terminal that its slot knows of. It leaves the slot when it has
// ended, whether anybody reads the rest of it or not.
type seat struct {
	sandbox.Terminal
	ended chan struct{} // closed after exit and err are set
	exit  slots.Exit
	err   error
}

// Wait is sandbox.Terminal's.
func (t *seat) Wait() (slots.Exit, error) {
	<-t.ended
	return t.exit, t.err
}

// Close is sandbox.Terminal's.
func (t *seat) Close() error {
	err := t.Terminal.Close()
	<-t.ended
	return err
}
