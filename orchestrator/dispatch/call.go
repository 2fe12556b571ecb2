package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"berth/sandboxd/api"
	"berth/slots"
)

// Call is one call and what becomes of it when its caller goes away.
type Call struct {
	api.Call           // an empty ExecutionID is made up
	CancelStarted bool // cancel it in the container then, even if it has started
}

// Answer is what came of a call. Result holds at least the ExecutionID, also
// beside an error.
type Answer struct {
	Result api.Result
	Timing Timing
}

// Timing says where a call's time went; the parts add up to the whole.
type Timing struct {
	Queue    time.Duration // waited for its turn, here and in the container
	Dispatch time.Duration // collected here for a batch
	Spawn    time.Duration // making its process
	Run      time.Duration // its process ran; 0: there was none
	Transfer time.Duration // on the way, and what else the container did
}

// Pending is a call that was submitted.
type Pending struct {
	d        *Dispatcher
	call     Call
	size     int64         // bytes of its args
	admitted chan struct{} // closed when it has a place
	done     chan struct{} // closed when answer and err are final

	submitted time.Time
	direct    bool          // its submitter may carry it; then, has to
	carry     carrier       // how its submitter carries it; nil: as the others
	turn      chan struct{} // of a call with carry: closed when that is its submitter's to do

	// Guarded by the dispatcher's mutex until done is closed.
	lane    *lane     // nil: has no place yet
	batch   *batch    // nil: not sent
	gone    bool      // nobody waits for it
	ready   time.Time // it could be sent from here on
	sent    time.Time
	settled bool
	answer  Answer
	err     error
}

// carrier carries one call to its container and returns what came of it, as
// Remote.Execute does.
type carrier func(ctx context.Context, p *Pending) (api.Result, error)

func (d *Dispatcher) newPending(call Call) (*Pending, error) {
	// One call that cannot be encoded would spoil its whole batch.
	if len(call.Args) > 0 && !json.Valid(call.Args) {
		return nil, slots.Errorf(slots.KindBadRequest, "args must be JSON")
	}
	if call.ExecutionID == "" {
		call.ExecutionID = uuid.NewString()
	}
	return &Pending{
		d: d, call: call, size: int64(len(call.Args)), submitted: time.Now(),
		admitted: make(chan struct{}), done: make(chan struct{}),
		answer: Answer{Result: api.Result{ExecutionID: call.ExecutionID}},
	}, nil
}

// Timing is the call's timing if it ended now with the result, for its carrier
// to tell. nil: without one.
func (p *Pending) Timing(result *api.Result) Timing { return p.timing(result, time.Now()) }

// Wait returns what came of the call. The error is a *slots.Error that says
// why it could not be carried out; when the container said so, the result
// holds it as well.
//
// When ctx ends first the caller is gone: a call that was not sent never runs,
// and the error says so. One that was sent may have run. The error is then
// ctx's cause if that is a *slots.Error, and otherwise KindQueueTimeout for a
// deadline of a call that was not sent, KindInterrupted for all else.
func (p *Pending) Wait(ctx context.Context) (Answer, error) {
	select {
	case <-p.done:
		return p.answer, p.err
	default:
	}
	select {
	case <-p.done:
		return p.answer, p.err
	case <-ctx.Done():
		return p.d.leave(ctx, p)
	}
}

// leave takes the caller of p off.
func (d *Dispatcher) leave(ctx context.Context, p *Pending) (Answer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case p.settled:
	case p.batch == nil:
		d.giveUpLocked(ctx, p)
	default:
		if !p.gone {
			p.gone = true
			d.unwantedLocked(p)
		}
		return Answer{Result: api.Result{ExecutionID: p.call.ExecutionID}, Timing: p.timing(nil, time.Now())}, gone(ctx, slots.ExecutedMaybe)
	}
	return p.answer, p.err
}

// giveUpLocked ends a call that was not sent and has lost its caller.
func (d *Dispatcher) giveUpLocked(ctx context.Context, p *Pending) {
	now := time.Now()
	d.takeOutLocked(p)
	d.settleLocked(p, nil, gone(ctx, slots.ExecutedNever), now)
	d.pumpLocked(now)
}

// gone is the error for a caller whose context has ended.
func gone(ctx context.Context, executed slots.Executed) *slots.Error {
	cause := context.Cause(ctx)
	if e, ok := errors.AsType[*slots.Error](cause); ok {
		return e.WithExecuted(executed)
	}
	kind := slots.KindInterrupted
	if executed == slots.ExecutedNever && errors.Is(cause, context.DeadlineExceeded) {
		kind = slots.KindQueueTimeout
	}
	return slots.Errorf(kind, "wait for container: %w", cause).WithExecuted(executed)
}

// settleLocked makes the outcome final and gives the place of a call that had
// one to the next. A nil result keeps the execution id alone.
func (d *Dispatcher) settleLocked(p *Pending, result *api.Result, err error, now time.Time) {
	p.settled = true
	p.answer.Timing = p.timing(result, now)
	if result != nil {
		p.answer.Result = *result
		p.answer.Result.Index = nil // of a batch that the caller does not know
	}
	p.err = err
	close(p.done)
	if p.lane != nil {
		d.vacateLocked(now)
	}
}

// timing splits the time until now. What the container tells of its part is
// believed as far as it fits into the time since the call was sent.
func (p *Pending) timing(result *api.Result, now time.Time) Timing {
	switch {
	case p.ready.IsZero():
		return Timing{Queue: now.Sub(p.submitted)}
	case p.sent.IsZero():
		return Timing{Queue: p.ready.Sub(p.submitted), Dispatch: now.Sub(p.ready)}
	}
	t := Timing{Queue: p.ready.Sub(p.submitted), Dispatch: p.sent.Sub(p.ready), Transfer: now.Sub(p.sent)}
	// A replay tells of the run that it repeats, which was no part of this time.
	if result == nil || result.Metadata.Replayed {
		return t
	}
	m := result.Metadata
	take := func(ms float64) time.Duration {
		// As numbers, because a wrong one may be too large for a Duration.
		part := time.Duration(min(max(ms*float64(time.Millisecond), 0), float64(t.Transfer)))
		t.Transfer -= part
		return part
	}
	t.Queue += take(m.QueueMS)
	if m.Receipt != nil {
		t.Spawn, t.Run = take(m.SpawnMS), take(m.DurationMS)
	}
	return t
}

// takeOutLocked removes a call that was not sent from where it waits.
func (d *Dispatcher) takeOutLocked(p *Pending) {
	same := func(x *Pending) bool { return x == p }
	l := p.lane
	if l == nil {
		d.outside = slices.DeleteFunc(d.outside, same)
		return
	}
	l.waiting = slices.DeleteFunc(l.waiting, same)
	d.waiting--
	if l.sent > 0 {
		return
	}
	d.readyCalls--
	if len(l.waiting) == 0 {
		d.ready = slices.DeleteFunc(d.ready, func(x *lane) bool { return x == l })
		delete(d.lanes, l.key)
	}
}
