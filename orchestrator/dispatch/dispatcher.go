package dispatch

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"berth/sandboxd/api"
	"berth/slots"
)

// Remote is one container. *client.Client is one. Its methods end soon after
// their context does.
type Remote interface {
	// Execute runs one call. What its error says by Executed is true.
	Execute(ctx context.Context, call api.Call) (api.Result, error)
	// BatchStream runs the calls, queued in their order, and yields each
	// result, whose Index is the place of its call, when it is there. An error
	// is the last that it yields, and is that of all calls without result. Of
	// the calls of one slot none starts before an earlier one, also when a
	// broken connection is taken up again.
	BatchStream(ctx context.Context, calls []api.Call) iter.Seq2[api.Result, error]
	// Result fails with slots.KindNotFound while the container does not have
	// the execution.
	Result(ctx context.Context, executionID string) (result api.Result, state string, err error)
	// Cancel ends an execution. It fails like Result.
	Cancel(ctx context.Context, executionID string) (result api.Result, state string, err error)
}

// Config bounds a Dispatcher. Zero fields mean the default.
type Config struct {
	MaxBatch    int           // calls of one request; default 256
	MaxBytes    int64         // of the args of one request; a call with more goes alone; default 256 KiB
	MaxInFlight int           // calls that were submitted and have no answer yet; further ones wait; default 4096
	MaxPerLease int           // of them on one lease; default 256
	MaxHold     time.Duration // that a call is collected at most; default 50 ms
}

func (c Config) withDefaults() Config {
	c.MaxBatch = cmp.Or(c.MaxBatch, 256)
	c.MaxBytes = cmp.Or(c.MaxBytes, 256<<10)
	c.MaxInFlight = cmp.Or(c.MaxInFlight, 4096)
	c.MaxPerLease = cmp.Or(c.MaxPerLease, 256)
	c.MaxHold = cmp.Or(c.MaxHold, 50*time.Millisecond)
	return c
}

// Dispatcher sends calls to one container. All methods may be called at once.
type Dispatcher struct {
	remote Remote
	config Config
	life   context.Context //nolint:containedctx // the dispatcher's own, which Abort ends
	kill   context.CancelCauseFunc
	work   sync.WaitGroup // every goroutine of the dispatcher

	// mu guards all below and what Pending says. The remote is never called
	// under it.
	mu         sync.Mutex
	term       context.Context //nolint:containedctx // of the requests from here on: a part of life that Cut ends
	endTerm    context.CancelCauseFunc
	outside    []*Pending // without a place, in the order in which they came
	places     int        // taken, of Config.MaxInFlight
	lanes      map[laneKey]*lane
	ready      []*lane // whose calls may be sent, longest wait first
	readyCalls int     // of the ready lanes
	waiting    int     // calls of all lanes that were not sent
	sent       int     // calls that were sent and have no answer
	usual      time.Duration
	gathering  bool // somebody is in gatherLocked, and sends what is ready
	timer      *time.Timer
	refusal    *slots.Error  // of further calls; nil: they are taken
	ended      bool          // by Abort
	drained    chan struct{} // closed when refusal is set and no place is taken
	requests   uint64
	calls      uint64
}

// New makes a Dispatcher for the container.
func New(remote Remote, config Config) *Dispatcher {
	life, kill := context.WithCancelCause(context.Background())
	d := &Dispatcher{
		remote: remote, config: config.withDefaults(), life: life, kill: kill,
		lanes: map[laneKey]*lane{}, usual: usualAtFirst, drained: make(chan struct{}),
	}
	d.term, d.endTerm = context.WithCancelCause(life)
	d.timer = time.AfterFunc(time.Hour, d.tick)
	d.timer.Stop()
	return d
}

// Do runs one call and waits for what comes of it, see Submit and Wait.
func (d *Dispatcher) Do(ctx context.Context, call Call) (Answer, error) {
	p, err := d.newPending(call)
	if err == nil {
		p.direct = true
		err = d.submit(ctx, p)
	}
	if err != nil {
		return Answer{Result: api.Result{ExecutionID: call.ExecutionID}}, err
	}
	if p.direct {
		d.carryOwn(ctx, p.batch)
	}
	return p.Wait(ctx)
}

// Stream is Do for a call whose caller looks on while it runs. When it is the
// call's turn, carry carries it, on this goroutine and with a ctx that ends
// with ctx and with Abort; it answers for the call as Remote.Execute does. A
// call whose ctx ends before it has its result is one whose caller has gone.
func (d *Dispatcher) Stream(ctx context.Context, call Call, carry func(ctx context.Context, p *Pending) (api.Result, error)) (Answer, error) {
	p, err := d.newPending(call)
	if err == nil {
		p.carry, p.turn = carry, make(chan struct{})
		err = d.submit(ctx, p)
	}
	if err != nil {
		return Answer{Result: api.Result{ExecutionID: call.ExecutionID}}, err
	}
	select {
	case <-p.turn:
	case <-p.done: // by Abort
	case <-ctx.Done():
	}
	if d.carries(ctx, p) {
		d.carryOwn(ctx, p.batch)
	}
	return p.Wait(ctx)
}

// Submit takes a call. Calls of one lease run in the order in which Submit
// took them. It waits only for a place among Config.MaxInFlight calls, until
// ctx ends, which is all that it uses ctx for. A call that is not taken never
// runs: its error is that of Wait, KindBadRequest for arguments that are no
// JSON, KindDraining after Close, and the cause of Abort.
//
// Somebody has to Wait for the call, or it runs for nobody.
func (d *Dispatcher) Submit(ctx context.Context, call Call) (*Pending, error) {
	p, err := d.newPending(call)
	if err == nil {
		err = d.submit(ctx, p)
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// submit has the call taken. Where its submitter may carry it alone, p.direct
// then says whether it has to.
func (d *Dispatcher) submit(ctx context.Context, p *Pending) error {
	if ctx.Err() != nil {
		return gone(ctx, slots.ExecutedNever)
	}
	placed, err := d.take(p)
	if placed || err != nil {
		return err
	}
	select {
	case <-p.admitted:
	case <-p.done: // by Abort
	case <-ctx.Done():
		d.mu.Lock()
		defer d.mu.Unlock()
		if p.lane == nil && !p.settled {
			d.takeOutLocked(p)
			return gone(ctx, slots.ExecutedNever)
		}
	}
	return nil
}

// take gives the call a place, or puts it behind those that wait for one.
func (d *Dispatcher) take(p *Pending) (placed bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refusal != nil {
		return false, d.refusal.WithExecuted(slots.ExecutedNever)
	}
	if d.places >= d.config.MaxInFlight || !d.roomLocked(p) {
		p.direct = false
		d.outside = append(d.outside, p)
		return false, nil
	}
	d.places++
	d.enqueueLocked(p, p.submitted)
	d.gatherLocked(p.submitted)
	p.direct = p.direct && p.batch != nil && p.batch.own
	return true, nil
}

// roomLocked reports whether the lease of the call may have one more.
func (d *Dispatcher) roomLocked(p *Pending) bool {
	l := d.lanes[keyOf(p.call.Call)]
	return l == nil || len(l.waiting)+l.sent < d.config.MaxPerLease
}

// vacateLocked gives a place that became free to who waits longest for one,
// and may have it. As one leaves and one comes, nobody else waits who could
// have come.
func (d *Dispatcher) vacateLocked(now time.Time) {
	if i := slices.IndexFunc(d.outside, d.roomLocked); i >= 0 {
		p := d.outside[i]
		d.outside = slices.Delete(d.outside, i, i+1)
		close(p.admitted)
		d.enqueueLocked(p, now)
		return
	}
	d.places--
	d.drainedLocked()
}

func (d *Dispatcher) drainedLocked() {
	if d.refusal == nil || d.places > 0 {
		return
	}
	select {
	case <-d.drained:
	default:
		close(d.drained)
	}
}

// Close takes no more calls and waits for the answers of those that it has.
// When ctx ends first, it ends them like Abort, with KindDraining, and returns
// ctx's cause.
func (d *Dispatcher) Close(ctx context.Context) error {
	draining := slots.Errorf(slots.KindDraining, "container takes no more calls")
	d.mu.Lock()
	if d.refusal == nil {
		d.refusal = draining
	}
	d.drainedLocked()
	d.mu.Unlock()
	var err error
	select {
	case <-d.drained:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	d.Abort(draining)
	return err
}

// Abort ends every call with the cause, which says of those that were sent
// that they may have been executed, and of the others and all later ones that
// they never were. It returns when nothing of the dispatcher is left at work.
// Only the first cause counts.
func (d *Dispatcher) Abort(cause *slots.Error) {
	d.mu.Lock()
	if !d.ended {
		d.endLocked(cause)
	}
	d.mu.Unlock()
	d.work.Wait()
}

func (d *Dispatcher) endLocked(cause *slots.Error) {
	d.ended, d.refusal = true, cause
	d.refuseLocked(cause)
	d.kill(cause)
}

// Cut ends every call that is there now as Abort does. Later ones are taken as
// before: it is for a container that is silent and may be heard again.
func (d *Dispatcher) Cut(cause *slots.Error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return
	}
	d.refuseLocked(cause)
	d.endTerm(cause.WithExecuted(slots.ExecutedMaybe))
	d.term, d.endTerm = context.WithCancelCause(d.life)
}

// refuseLocked ends the calls that were not sent.
func (d *Dispatcher) refuseLocked(cause *slots.Error) {
	now := time.Now()
	d.timer.Stop()
	never := cause.WithExecuted(slots.ExecutedNever)
	outside := d.outside
	d.outside, d.ready, d.readyCalls, d.waiting = nil, nil, 0, 0
	for _, p := range outside {
		d.settleLocked(p, nil, never, now)
	}
	for key, l := range d.lanes {
		waiting := l.waiting
		l.waiting = nil
		for _, p := range waiting {
			d.settleLocked(p, nil, never, now)
		}
		if l.sent == 0 {
			delete(d.lanes, key)
		}
	}
}

// Stats is what a Dispatcher did and does.
type Stats struct {
	Requests uint64 // to the container, with calls
	Calls    uint64 // that they held
	Waiting  int    // calls that were taken and not sent
	Sent     int    // calls that were sent and have no answer
	Outside  int    // callers that wait for a place
}

// Stats returns the numbers of now.
func (d *Dispatcher) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return Stats{Requests: d.requests, Calls: d.calls, Waiting: d.waiting, Sent: d.sent, Outside: len(d.outside)}
}
