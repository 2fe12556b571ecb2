package keeper

import (
	"context"
	"errors"
	"time"

	"berth/sandboxd/api"
	"berth/sandboxd/execution"
	"berth/slots"
)

// Submit takes the call into its slot's queue and returns its execution. It
// does not wait for anything: calls of one goroutine run in the order of their
// Submits. A call that is refused comes back as an execution that has
// finished, and a call whose id was seen before as the execution of that id,
// whatever became of its slot and its lease since.
//
// ctx bounds Submit only. Whoever waits for the execution ties it to a
// context by waiting.
func (k *Keeper) Submit(ctx context.Context, call api.Call) *execution.Execution {
	exec, fresh, err := k.Registry.Begin(ctx, call.ExecutionID, execution.Fingerprint(call))
	if err != nil {
		return k.turnedAway(call, err)
	}
	if !fresh {
		return exec
	}
	j := &job{exec: exec, call: call, queued: time.Now()}
	s, err := k.admit(j)
	if err != nil {
		k.refuse(s, j, err)
	}
	return exec
}

// admit puts the job into its slot's queue. The slot is nil when there is
// none.
func (k *Keeper) admit(j *job) (*slot, error) {
	s, err := k.slot(j.call.SlotID)
	if err != nil {
		return nil, err
	}
	if j.tool, err = k.Tools.Get(j.call.Tool); err != nil {
		return s, err
	}
	j.limit, err = j.call.Timeout.Duration(k.cfg.DefaultTimeout, k.cfg.MaxTimeout)
	if err != nil {
		return s, slots.Errorf(slots.KindBadRequest, "%w", err)
	}
	return s, s.enqueue(j)
}

// refuse ends a job that has not started and never will. The registry keeps
// no such execution from being made again under its id.
func (k *Keeper) refuse(s *slot, j *job, cause error) {
	if j.unhook != nil {
		j.unhook()
	}
	e, ok := errors.AsType[*slots.Error](cause)
	if !ok {
		e = slots.Errorf(slots.KindInterrupted, "call was cancelled before it started: %w", cause)
	}
	k.finish(s, j, api.Refused("", e.WithExecuted(slots.ExecutedNever)), time.Since(j.queued))
}

// finish gives the job's execution its result.
func (k *Keeper) finish(s *slot, j *job, r api.Result, waited time.Duration) {
	r.ExecutionID = j.exec.ID()
	r.Metadata.QueueMS = float64(waited) / float64(time.Millisecond)
	r.Metadata.Isolation = &k.cfg.Isolation
	if s != nil {
		s.mu.Lock()
		r.Metadata.Generation = s.record.Generation
		s.mu.Unlock()
	}
	name := unknownTool
	if j.tool != nil {
		name = j.tool.Name()
	}
	k.ended(name, &r)
	j.exec.Finish(r)
}

// turnedAway is the execution of a call that the registry did not take: its
// id stands for another call or cannot stand for any, or its caller has gone.
// It lives in a registry of its own, because the id that it answers to may be
// somebody else's.
func (k *Keeper) turnedAway(call api.Call, err error) *execution.Execution {
	ctx := context.Background()
	exec, fresh, failed := k.strays.Begin(ctx, call.ExecutionID, execution.Fingerprint(call))
	if failed != nil || !fresh {
		if exec, _, failed = k.strays.Begin(ctx, "", execution.Fingerprint(call)); failed != nil {
			panic("a registry that is never closed refuses a new id: " + failed.Error())
		}
	}
	k.refuse(nil, &job{exec: exec, call: call, queued: time.Now()}, err)
	return exec
}
