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
	return k.submit(ctx, &job{call: call})
}

// Follow is Submit for who reads the output while the call runs.
func (k *Keeper) Follow(ctx context.Context, call api.Call) *execution.Execution {
	return k.submit(ctx, &job{call: call, live: true})
}

// Run is Submit for who does nothing but wait then. Where the slot is idle the
// call runs on the caller's goroutine, and has finished when Run returns:
// handing it over to another one takes longer than reading a file.
func (k *Keeper) Run(ctx context.Context, call api.Call) *execution.Execution {
	return k.submit(ctx, &job{call: call, direct: true})
}

func (k *Keeper) submit(ctx context.Context, j *job) *execution.Execution {
	call := &j.call
	exec, fresh, err := k.Registry.Begin(ctx, call.ExecutionID, execution.Fingerprint(*call))
	if err != nil {
		// The id stands for another call or cannot stand for any, or the
		// caller has gone.
		r := api.Refused(call.ExecutionID, err)
		r.Metadata.Isolation = &k.cfg.Isolation
		k.Observer.ExecutionEnded(k.toolName(call.Tool), &r)
		return execution.Refused(r)
	}
	if !fresh {
		return exec
	}
	j.exec, j.queued = exec, time.Now()
	s, err := k.admit(j) //nolint:contextcheck // an execution has a context of its own
	if err != nil {
		k.refuse(s, j, err)
		return exec
	}
	if j.direct {
		defer k.runners.Done()
		s.execute(k.ctx, j) //nolint:contextcheck // the caller's end does not end it
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
	k.Observer.ExecutionEnded(k.toolName(j.call.Tool), &r)
	j.exec.Finish(r)
}

// toolName is the name under which calls of the tool are counted.
func (k *Keeper) toolName(name string) string {
	if _, err := k.Tools.Get(name); err != nil {
		return unknownTool
	}
	return name
}
