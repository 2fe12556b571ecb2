package dispatch

import (
	"context"
	"errors"
	"time"

	"berth/sandboxd/api"
	"berth/slots"
)

// How often the container is asked again about calls that nobody wants.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = time.Second
)

var (
	errUnwanted = errors.New("nobody waits for the calls of this batch")
	errNotYet   = errors.New("container may yet start the call")
)

// batch is the calls of one request.
type batch struct {
	calls []*Pending
	done  chan struct{} // closed when the request is over
	own   bool          // its only call's submitter carries it
	again bool          // it was sent a second time, by carryOwn

	ctx    context.Context //nolint:containedctx // the request's own, which no caller's end ends
	cancel context.CancelCauseFunc

	// Guarded by the dispatcher's mutex.
	left   int  // calls without answer
	wanted int  // of them, those that somebody waits for or that are being cancelled
	over   bool // no more results come
}

// carry sends the batch and gives each caller its result.
func (d *Dispatcher) carry(b *batch) {
	defer b.cancel(nil)
	defer close(b.done)
	if len(b.calls) == 1 {
		d.carryOne(b)
		return
	}
	calls := make([]api.Call, len(b.calls))
	for i, p := range b.calls {
		calls[i] = p.call.Call
	}
	for result, err := range d.remote.BatchStream(b.ctx, calls) {
		if err != nil {
			d.broken(b, err)
			return
		}
		if i := result.Index; i == nil || *i < 0 || *i >= len(b.calls) {
			d.broken(b, slots.Errorf(slots.KindInternal, "container answered a call that was not sent"))
			return
		}
		d.answered(b, b.calls[*result.Index], result)
	}
	d.broken(b, slots.Errorf(slots.KindInternal, "container left calls without answer"))
}

// carryOne is for a call that is alone: the container starts it without a
// detour, and its answer comes in one piece.
func (d *Dispatcher) carryOne(b *batch) {
	result, err := d.remote.Execute(b.ctx, b.calls[0].call.Call)
	if err != nil && result.Metadata.ErrorKind == "" {
		d.broken(b, err)
		return
	}
	d.answered(b, b.calls[0], result)
}

// carryOwn is carryOne on the goroutine of who waits for the call: handing it
// over to another one and back takes longer than all else that is done here.
// When ctx ends, the request is cut off to let go of the caller, and sent again
// under the same id for those who come after the call.
func (d *Dispatcher) carryOwn(ctx context.Context, b *batch) {
	defer d.work.Done()
	cut := b.cancel
	stop := context.AfterFunc(ctx, func() { cut(errUnwanted) })
	result, err := d.executeOwn(b)
	answered := err == nil || result.Metadata.ErrorKind != ""
	switch {
	case answered:
		d.answered(b, b.calls[0], result)
	case stop():
		d.broken(b, err)
	default:
		// Nobody else has looked at the batch's context: this caller is yet to
		// leave.
		d.mu.Lock()
		b.ctx, b.cancel = context.WithCancelCause(d.term)
		d.mu.Unlock()
		b.again = true
		d.work.Go(func() { d.carry(b) })
		return
	}
	stop()
	close(b.done)
	b.cancel(nil)
}

// executeOwn runs a batch's only call in the way of its submitter.
func (d *Dispatcher) executeOwn(b *batch) (api.Result, error) {
	p := b.calls[0]
	if p.carry != nil {
		return p.carry(b.ctx, p)
	}
	return d.remote.Execute(b.ctx, p.call.Call)
}

// carries reports whether the submitter of a call with a carrier has to carry
// it now: it is its turn, and the caller has not gone. Without its caller such
// a call never runs.
func (d *Dispatcher) carries(ctx context.Context, p *Pending) bool {
	d.mu.Lock()
	if !p.settled && p.batch == nil {
		d.giveUpLocked(ctx, p)
	}
	b, settled := p.batch, p.settled
	d.mu.Unlock()
	switch {
	case settled:
		return false
	case ctx.Err() == nil:
		return true
	}
	d.broken(b, gone(ctx, slots.ExecutedNever))
	close(b.done)
	b.cancel(nil)
	d.work.Done()
	return false
}

// answered gives a call the result that came for it.
func (d *Dispatcher) answered(b *batch, p *Pending, result api.Result) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.settled {
		return
	}
	d.observeLocked(now.Sub(p.sent))
	d.returnLocked(b, p, &result, result.Err(), now)
	d.gatherLocked(now)
}

// broken ends the calls of a batch that got no result.
func (d *Dispatcher) broken(b *batch, err error) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	b.over = true
	err = d.verdictLocked(b, err)
	for _, p := range b.calls {
		if !p.settled {
			d.returnLocked(b, p, nil, err, now)
		}
	}
	d.pumpLocked(now)
}

// verdictLocked is the error for the calls of a batch that got no result.
func (d *Dispatcher) verdictLocked(b *batch, err error) error {
	e := slots.AsError(err)
	if d.ended {
		e = d.refusal.WithExecuted(slots.ExecutedMaybe)
	}
	if b.left < len(b.calls) && e.Executed == slots.ExecutedNever {
		// The container had them all when it answered the first. It is the
		// request that took the stream up again that never came there.
		e = e.WithExecuted(slots.ExecutedMaybe)
	}
	return e
}

// returnLocked takes a call off its batch and its lane.
func (d *Dispatcher) returnLocked(b *batch, p *Pending, result *api.Result, err error, now time.Time) {
	b.left--
	d.sent--
	l := p.lane
	if l.sent--; l.sent == 0 {
		d.reopenLocked(l, now)
	}
	d.settleLocked(p, result, err, now)
	if !p.gone {
		d.unwantLocked(b)
	}
}

// unwantedLocked does what is to be done about a call that was sent and has
// lost its caller.
func (d *Dispatcher) unwantedLocked(p *Pending) {
	b := p.batch
	if !p.call.CancelStarted {
		d.unwantLocked(b)
		return
	}
	d.work.Go(func() {
		d.insist(p.done, func() error {
			// What it cancels may be the one that was cut off, with the one
			// that was sent again still to come: only the answer is the end.
			if _, _, err := d.remote.Cancel(b.ctx, p.call.ExecutionID); err != nil {
				return err
			}
			return errNotYet
		})
		d.mu.Lock()
		defer d.mu.Unlock()
		d.unwantLocked(b)
	})
}

// unwantLocked takes one off those who want the batch. The last one closes its
// connection, by which the container cancels what has not started. It must
// have queued the calls by then: a request that it finds later could overtake
// the next ones of its leases. When it has the last call it has all of them. Of
// two requests for a call it may have only the one that was cut off: then the
// call must have started, after which no request starts it again.
func (d *Dispatcher) unwantLocked(b *batch) {
	b.wanted--
	if b.wanted > 0 || b.left == 0 || b.over {
		return
	}
	last := b.calls[len(b.calls)-1].call.ExecutionID
	d.work.Go(func() {
		if d.insist(b.done, func() error {
			result, state, err := d.remote.Result(b.ctx, last)
			if err == nil && b.again && (state == api.StateQueued || result.Metadata.Executed == slots.ExecutedNever) {
				return errNotYet
			}
			return err
		}) {
			b.cancel(errUnwanted)
		}
	})
}

// insist asks until that succeeds, ever more rarely; false when done comes
// first.
func (*Dispatcher) insist(done <-chan struct{}, ask func() error) bool {
	for pause := firstPause; ask() != nil; pause = min(2*pause, lastPause) {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-done:
			timer.Stop()
			return false
		}
	}
	return true
}
