package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"berth/slots"
)

// op is one Do call at work, or a terminal.
type op struct {
	cancel   context.CancelCauseFunc
	done     chan struct{}
	terminal bool // it belongs to the lease, and ends with it
}

// Do runs one workspace operation as the slot, beside its executions and not
// behind them. It waits for a reset that is under way and for its turn among
// at most Config.OpsMax. A reset of the slot ends it with KindInterrupted or
// KindLeaseExpired. The other errors are those of the token and the sandbox's.
func (k *Keeper) Do(ctx context.Context, slotID string, token *uint64, name string, args, reply any, in io.Reader, out io.Writer) error { //nolint:revive // the arguments of Sandbox.Do, on a slot
	s, err := k.slot(slotID)
	if err != nil {
		return err
	}
	select {
	case s.room <- struct{}{}:
		defer func() { <-s.room }()
	case <-ctx.Done():
		return notBegun(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	o := &op{cancel: cancel, done: make(chan struct{})}
	box, err := s.enter(ctx, token, o)
	if err != nil {
		return err
	}
	defer s.leave(o)
	err = box.Do(ctx, name, args, reply, in, out)
	if err == nil {
		return nil
	}
	if cause, ok := errors.AsType[*slots.Error](context.Cause(ctx)); ok {
		return cause.WithExecuted(slots.ExecutedMaybe)
	}
	return err
}

// enter admits the op once the slot is open and no reset is wanted.
func (s *slot) enter(ctx context.Context, token *uint64, o *op) (Sandbox, error) {
	for {
		s.mu.Lock()
		if err := s.usableLocked(token); err != nil {
			s.mu.Unlock()
			return nil, err
		}
		var wait <-chan struct{}
		switch {
		case s.state == slots.StateStarting:
			wait = s.opened
		case s.reset != nil:
			wait = s.reset.done
		default:
			s.ops = append(s.ops, o)
			box := s.sandbox
			s.mu.Unlock()
			return box, nil
		}
		s.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, notBegun(ctx)
		}
	}
}

// leave takes the op out again.
func (s *slot) leave(o *op) {
	s.mu.Lock()
	s.ops = slices.DeleteFunc(s.ops, func(x *op) bool { return x == o })
	if s.draining {
		s.poke()
	}
	s.mu.Unlock()
	close(o.done)
}

func notBegun(ctx context.Context) error {
	if e, ok := errors.AsType[*slots.Error](context.Cause(ctx)); ok {
		return e.WithExecuted(slots.ExecutedNever)
	}
	return slots.Errorf(slots.KindQueueTimeout, "%w", fmt.Errorf("wait for slot: %w", context.Cause(ctx)))
}
