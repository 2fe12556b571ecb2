package execution

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"time"

	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/process"
)

// errEnded is the cause with which an execution's context ends at Finish.
var errEnded = errors.New("execution has ended")

// run is one execution as all its handles share it.
type run struct {
	registry    *Registry
	id          string
	fingerprint [32]byte
	ctx         context.Context //nolint:containedctx // it is the execution's life, not a caller's
	cancel      context.CancelCauseFunc
	attached    chan struct{} // closed by the first Attach, or by Finish
	done        chan struct{} // closed when result is set

	// All below is guarded by the registry's mutex.
	waiters        int
	started        bool
	finishing      bool // Finish was called
	finished       bool // result is set
	hasOutputs     bool // attached is closed
	stdout, stderr *process.Capture
	answer         []byte // the result's JSON
	finishedAt     time.Time
	size           int64         // what it counts against KeepBytes
	place          *list.Element // in Registry.finished
	outputs        outputs       // what its captures hold since it finished
}

func newRun(r *Registry, id string, fingerprint [32]byte) *run {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &run{
		registry: r, id: id, fingerprint: fingerprint, ctx: ctx, cancel: cancel,
		attached: make(chan struct{}), done: make(chan struct{}),
	}
}

// voidLocked reports whether the run never started and never will, so that
// its id is free for another try.
func (r *run) voidLocked() bool { return !r.started && (r.finished || r.ctx.Err() != nil) }

// Execution is a handle on one execution: the one of who runs it, or of
// somebody who joined it or asks for it.
type Execution struct {
	run      *run
	fresh    bool
	awaiting bool // counted among those who wait since Begin; guarded by the registry's mutex
}

// Refused makes an execution that has ended with the result before it was
// begun. No Registry knows it: neither its id nor its result is kept.
func Refused(result api.Result) *Execution {
	e := &Execution{run: newRun(&Registry{}, result.ExecutionID, [32]byte{}), fresh: true}
	e.Finish(result)
	return e
}

// ID is the execution_id.
func (e *Execution) ID() string { return e.run.id }

// Fresh reports whether this handle's Begin made the execution: its holder
// must run it and call Finish.
func (e *Execution) Fresh() bool { return e.fresh }

// Context is the execution's own context. Cancel ends it with its cause,
// Finish ends it too; the end of a caller's context does so by Wait only.
func (e *Execution) Context() context.Context { return e.run.ctx }

// Cancel ends the execution's context with the cause. It is up to who runs
// the execution to finish it then. Only the first cause counts.
func (e *Execution) Cancel(cause error) { e.run.cancel(cause) }

// Attach makes the live output known to followers. It is called at most once,
// before Start. Finish closes both captures; they are released when the
// execution is forgotten, or earlier when too much output is held.
func (e *Execution) Attach(stdout, stderr *process.Capture) {
	r := e.run
	r.registry.mu.Lock()
	defer r.registry.mu.Unlock()
	if r.hasOutputs {
		return
	}
	r.stdout, r.stderr, r.hasOutputs = stdout, stderr, true
	close(r.attached)
}

// Attached is closed once Outputs has its final answer: after Attach, or
// after Finish of an execution that has no output.
func (e *Execution) Attached() <-chan struct{} { return e.run.attached }

// Outputs returns the live output, nil where there is none: not attached yet,
// or answered from the journal.
func (e *Execution) Outputs() (stdout, stderr *process.Capture) {
	e.run.registry.mu.Lock()
	defer e.run.registry.mu.Unlock()
	return e.run.stdout, e.run.stderr
}

// Start marks the point after which the execution may have had an effect: it
// is in the journal when Start returns nil. It fails with KindInterrupted
// when the execution was cancelled before, and with KindInternal when the
// journal cannot be written or Start was called before; nothing has run then
// and nothing may be run.
func (e *Execution) Start() error {
	r := e.run
	if err := r.claimStart(); err != nil {
		return err
	}
	err := r.registry.record(record{event: eventStarted, at: time.Now(), fingerprint: r.fingerprint, id: r.id})
	if err == nil {
		return nil
	}
	r.registry.mu.Lock()
	r.started = false
	r.registry.mu.Unlock()
	refusal := slots.Errorf(slots.KindInternal, "start execution: %w", err).WithExecuted(slots.ExecutedNever)
	refusal.Retryable = true
	return refusal
}

func (r *run) claimStart() error {
	r.registry.mu.Lock()
	defer r.registry.mu.Unlock()
	if r.started || r.finishing {
		return slots.Errorf(slots.KindInternal, "start execution: it was started or finished before").WithExecuted(slots.ExecutedNever)
	}
	if r.ctx.Err() != nil {
		return slots.Errorf(slots.KindInterrupted, "execution was cancelled before it started: %w", context.Cause(r.ctx)).
			WithExecuted(slots.ExecutedNever)
	}
	r.started = true
	return nil
}

// Started reports whether Start was called with success.
func (e *Execution) Started() bool {
	e.run.registry.mu.Lock()
	defer e.run.registry.mu.Unlock()
	return e.run.started
}

// Finish sets the result, under the execution's id, journals it and wakes all
// who wait. Only the first call counts. The result must not be changed
// afterwards. One that cannot be encoded becomes KindInternal.
//
// An execution that never started is not journaled: its result can be asked
// for, and the next Begin of its id makes a fresh execution.
func (e *Execution) Finish(result api.Result) {
	r := e.run
	started, first := r.claimFinish()
	if !first {
		return
	}
	result.ExecutionID = r.id
	encoded := encode(result)
	now := time.Now()
	if started {
		// A result that is not on disk still answers from memory; a crash
		// turns it into an interruption, which is true enough.
		_ = r.registry.record(record{event: eventFinished, at: now, fingerprint: r.fingerprint, id: r.id, result: encoded})
	}
	r.registry.retain(r, encoded, now)
	close(r.done)
	r.cancel(errEnded)
}

// encode is the result's JSON, made once for the journal and for every answer.
func encode(result api.Result) []byte {
	text, err := result.Encode()
	if err != nil {
		// A refusal holds nothing that could not be encoded.
		text, _ = api.Refused(result.ExecutionID, slots.Errorf(slots.KindInternal, "encode result: %w", err)).Encode()
	}
	return text
}

func (r *run) claimFinish() (started, first bool) {
	r.registry.mu.Lock()
	defer r.registry.mu.Unlock()
	first = !r.finishing
	r.finishing = true
	return r.started, first
}

// Done is closed when the result is there.
func (e *Execution) Done() <-chan struct{} { return e.run.done }

// Answer is the JSON of the result, valid after Done and read only. It is
// marked as replayed unless this handle's Begin made the execution.
func (e *Execution) Answer() []byte {
	if e.fresh {
		return e.run.encoded()
	}
	return encode(e.Result())
}

// Result is what Answer encodes. Numbers among its details are float64.
func (e *Execution) Result() api.Result {
	var result api.Result
	if err := json.Unmarshal(e.run.encoded(), &result); err != nil {
		result = api.Refused(e.run.id, slots.Errorf(slots.KindInternal, "decode stored result: %w", err))
	}
	result.Metadata.Replayed = !e.fresh
	return result
}

func (r *run) encoded() []byte {
	r.registry.mu.Lock()
	defer r.registry.mu.Unlock()
	return r.answer
}

// Wait returns nil when the result is there. When ctx ends first it returns
// ctx's cause; if nobody else waits and the execution has not started, it is
// cancelled with that cause. Who has a handle from Begin waits from then on:
// its Wait must be called.
func (e *Execution) Wait(ctx context.Context) error {
	r := e.run
	r.registry.mu.Lock()
	if !e.awaiting {
		r.waiters++
	}
	e.awaiting = false
	r.registry.mu.Unlock()
	var cause error
	select {
	case <-r.done:
	case <-ctx.Done():
		cause = context.Cause(ctx)
	}
	r.leave(cause)
	return cause
}

// leave takes one waiter off. The last one that leaves for a cause cancels
// the run, unless it has started: Start holds the same mutex, so it is one or
// the other.
func (r *run) leave(cause error) {
	r.registry.mu.Lock()
	defer r.registry.mu.Unlock()
	r.waiters--
	if cause != nil && r.waiters == 0 && !r.started {
		r.cancel(cause)
	}
}
