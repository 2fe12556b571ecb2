package dispatch_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"
	"time"

	"berth/orchestrator/dispatch"
	"berth/sandboxd/api"
	"berth/slots"
)

// container is a simulated container behind a simulated connection. It keeps
// what the agent promises: a FIFO per slot, at most one run per execution_id,
// batches queued in their order, and a call whose last waiter leaves before
// its start is cancelled. The waiters of a connection that breaks leave last
// call first, so that none starts before one that is sent again. The zero value answers at once.
type container struct {
	latency time.Duration                           // of a request, one way
	unread  func(n int) time.Duration               // how long request n lies in its socket; nil: not at all
	cut     func(try int, first string) (lines int) // of its answer after which the connection breaks that asks for first, and others, for the try-th time; nil or < 0: it does not
	refuse  func(ids []string) error                // answers a request as a whole; nil: none
	garble  func(r *api.Result) bool                // changes a line of a batch; false: it is not sent
	observe func(call api.Call) string              // is the output of the call's run

	mu         sync.Mutex
	connection int
	runs       map[string]*run
	turns      map[string]chan struct{} // by slot: closed when its last run is over
	requests   [][]string               // ids, in the order in which they were handled
	started    []string                 // ids
	cancels    int                      // requests to cancel
}

// run is one execution.
type run struct {
	call    api.Call
	started bool
	ended   bool
	waiters int
	stop    chan struct{} // closed by a cancel
	stopped bool
	done    chan struct{}
	result  api.Result
}

// call makes a call that runs for so many milliseconds.
func call(slot, id string, ms int) dispatch.Call {
	return dispatch.Call{Call: api.Call{SlotID: slot, ExecutionID: id, Tool: "bash", Args: json.RawMessage(fmt.Sprint(ms))}}
}

func leased(c dispatch.Call, token uint64) dispatch.Call {
	c.Token = &token
	return c
}

func (c *container) submit(call api.Call) *run {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs == nil {
		c.runs, c.turns = map[string]*run{}, map[string]chan struct{}{}
	}
	if old := c.runs[call.ExecutionID]; old != nil && (old.started || !old.stopped) {
		old.waiters++
		return old
	}
	r := &run{call: call, waiters: 1, stop: make(chan struct{}), done: make(chan struct{})}
	c.runs[call.ExecutionID] = r
	before, turn := c.turns[call.SlotID], make(chan struct{})
	c.turns[call.SlotID] = turn
	go func() { // ends with its run
		defer close(turn)
		queued := time.Now()
		if before != nil {
			select {
			case <-before:
			case <-r.stop:
				c.end(r, cancelled(r))
				<-before
				return
			}
		}
		c.run(r, time.Since(queued))
	}()
	return r
}

func cancelled(r *run) api.Result {
	return api.Refused(r.call.ExecutionID, slots.Errorf(slots.KindInterrupted, "cancelled before its start").WithExecuted(slots.ExecutedNever))
}

func (c *container) run(r *run, queued time.Duration) {
	c.mu.Lock()
	if r.stopped {
		c.mu.Unlock()
		c.end(r, cancelled(r))
		return
	}
	r.started = true
	c.started = append(c.started, r.call.ExecutionID)
	c.mu.Unlock()
	var ms float64
	_ = json.Unmarshal(r.call.Args, &ms) // other args take no time
	timer := time.NewTimer(time.Duration(ms * float64(time.Millisecond)))
	defer timer.Stop()
	outcome := slots.OutcomeExited
	select {
	case <-timer.C:
	case <-r.stop:
		outcome = slots.OutcomeCancelled
	}
	result := api.Result{Success: outcome == slots.OutcomeExited, ExecutionID: r.call.ExecutionID, Output: r.call.ExecutionID}
	result.Metadata.QueueMS = float64(queued) / float64(time.Millisecond)
	result.Metadata.Receipt = &api.Receipt{Outcome: outcome, DurationMS: ms}
	if c.observe != nil {
		result.Output = c.observe(r.call)
	}
	c.end(r, result)
}

func (c *container) end(r *run, result api.Result) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.result, r.ended = result, true
	close(r.done)
}

func (c *container) stopLocked(r *run) {
	if !r.stopped && !r.ended {
		r.stopped = true
		close(r.stop)
	}
}

// leave takes a waiter off.
func (c *container) leave(r *run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.waiters--; r.waiters == 0 && !r.started {
		c.stopLocked(r)
	}
}

func pass(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("call container: %w", context.Cause(ctx))
	}
}

// connect sends one request. The container handles it in any case, and streams
// the results, which a connection that breaks loses from some line on.
func (c *container) connect(ctx context.Context, try int, calls []api.Call) iter.Seq2[api.Result, error] {
	return func(yield func(api.Result, error) bool) {
		c.mu.Lock()
		n := c.connection
		c.connection++
		c.mu.Unlock()
		lines := -1
		if c.cut != nil {
			lines = c.cut(try, calls[0].ExecutionID)
		}
		delay := c.latency
		if c.unread != nil {
			delay += c.unread(n)
		}
		ctx, hangUp := context.WithCancel(ctx)
		defer hangUp()
		results := make(chan api.Result, len(calls))
		handled := make(chan error, 1)
		go func() { // ends with the connection and its runs
			_ = pass(context.WithoutCancel(ctx), delay)
			handled <- c.handle(ctx, calls, results)
		}()
		select {
		case err := <-handled:
			if err != nil {
				yield(api.Result{}, err)
				return
			}
		case <-ctx.Done():
			yield(api.Result{}, fmt.Errorf("call container: %w", context.Cause(ctx)))
			return
		}
		for got := range calls {
			if got == lines {
				break
			}
			select {
			case r := <-results:
				if !yield(r, pass(ctx, c.latency)) {
					return
				}
			case <-ctx.Done():
				yield(api.Result{}, fmt.Errorf("read answer: %w", context.Cause(ctx)))
				return
			}
		}
		if lines >= 0 {
			yield(api.Result{}, slots.Errorf(slots.KindContainerUnreachable, "read answer: connection reset"))
		}
	}
}

func (c *container) handle(ctx context.Context, calls []api.Call, results chan<- api.Result) error {
	ids := make([]string, len(calls))
	for i, call := range calls {
		ids[i] = call.ExecutionID
	}
	if c.refuse != nil {
		if err := c.refuse(ids); err != nil {
			return err
		}
	}
	c.mu.Lock()
	c.requests = append(c.requests, ids)
	c.mu.Unlock()
	runs := make([]*run, len(calls))
	for i, call := range calls {
		runs[i] = c.submit(call)
		go func() { // ends with the connection or its run
			select {
			case <-runs[i].done:
				result := runs[i].result
				result.Index = &i
				results <- result
			case <-ctx.Done():
			}
		}()
	}
	go func() { // ends with the connection
		<-ctx.Done()
		for _, r := range slices.Backward(runs) {
			c.leave(r)
		}
	}()
	return nil
}

// Execute is the client's.
func (c *container) Execute(ctx context.Context, call api.Call) (api.Result, error) {
	for result, err := range c.BatchStream(ctx, []api.Call{call}) {
		if err == nil {
			err = result.Err()
		}
		result.Index = nil
		return result, err
	}
	return api.Result{}, slots.Errorf(slots.KindInternal, "no answer")
}

// BatchStream takes a broken connection up again twice, as the client does.
func (c *container) BatchStream(ctx context.Context, calls []api.Call) iter.Seq2[api.Result, error] {
	return func(yield func(api.Result, error) bool) {
		left := make([]int, len(calls))
		for i := range calls {
			left[i] = i
		}
		for tried := 0; ; tried++ {
			sent := make([]api.Call, len(left))
			for i, place := range left {
				sent[i] = calls[place]
			}
			places := slices.Clone(left)
			var broken error
			for r, err := range c.connect(ctx, tried, sent) {
				if broken = err; err != nil {
					break
				}
				place := places[*r.Index]
				left = slices.DeleteFunc(left, func(p int) bool { return p == place })
				r.Index = &place
				if c.garble != nil && !c.garble(&r) {
					continue
				}
				if !yield(r, nil) {
					return
				}
			}
			if broken == nil || len(left) == 0 {
				return
			}
			if slots.AsError(broken).Kind != slots.KindContainerUnreachable || tried == 2 || pass(ctx, 50*time.Millisecond) != nil {
				yield(api.Result{}, broken)
				return
			}
		}
	}
}

// Result is the client's.
func (c *container) Result(ctx context.Context, id string) (api.Result, string, error) {
	if err := pass(ctx, 2*c.latency); err != nil {
		return api.Result{}, "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.runs[id]
	switch {
	case r == nil:
		return api.Result{}, "", slots.Errorf(slots.KindNotFound, "Unknown execution: %s", id)
	case r.ended:
		return r.result, "", nil
	case r.started:
		return api.Result{ExecutionID: id}, api.StateRunning, nil
	}
	return api.Result{ExecutionID: id}, api.StateQueued, nil
}

// Cancel is the client's.
func (c *container) Cancel(ctx context.Context, id string) (api.Result, string, error) {
	c.mu.Lock()
	c.cancels++
	if r := c.runs[id]; r != nil {
		c.stopLocked(r)
	}
	c.mu.Unlock()
	return c.Result(ctx, id)
}

// handled returns the ids of each request so far.
func (c *container) handled() [][]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.requests)
}

// ran returns the ids of the runs that have started, in their order.
func (c *container) ran() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.started)
}

// start submits a call whose outcome is told by the channel.
func start(ctx context.Context, t testing.TB, d *dispatch.Dispatcher, call dispatch.Call) <-chan outcome {
	t.Helper()
	p, err := d.Submit(ctx, call)
	if err != nil {
		t.Fatalf("submit %s: %v", call.ExecutionID, err)
	}
	return wait(ctx, p)
}

func wait(ctx context.Context, p *dispatch.Pending) <-chan outcome {
	told := make(chan outcome, 1)
	go func() { // ends with its call
		answer, err := p.Wait(ctx)
		told <- outcome{answer, slots.AsError(err), time.Now()}
	}()
	return told
}

type outcome struct {
	dispatch.Answer
	err *slots.Error
	at  time.Time
}
