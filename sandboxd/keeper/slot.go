package keeper

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"berth/sandboxd/api"
	"berth/sandboxd/execution"
	"berth/sandboxd/tool"
	"berth/slots"
)

// slot is one slot as the keeper sees it.
type slot struct {
	k      *Keeper
	id     string
	wake   chan struct{} // holds a token when the runner has something to look at
	opened chan struct{} // closed when the first open and its reset are over
	room   chan struct{} // one token per Do call at work
	seats  chan struct{} // one token per terminal

	// mu guards what follows. The sandbox, the registry and the logger are
	// never called under it. The store is, so that nothing is answered that is
	// not on record.
	mu       sync.Mutex
	record   Record
	state    slots.State
	reason   string // why the slot is quarantined
	sandbox  Sandbox
	queue    []*job
	running  *job          // in the runner, or direct
	reset    *reset        // wanted or under way; nil: none
	proof    slots.Receipt // of the last reset since the last lease ended
	ops      []*op
	timer    *time.Timer // ends the lease; nil without one
	draining bool        // takes no more work
	left     bool        // Do calls that are still at work are not waited for
}

// job is a call that waits in a queue or runs.
type job struct {
	exec   *execution.Execution
	call   api.Call
	tool   tool.Tool
	limit  time.Duration
	queued time.Time
	live   bool        // its output is read while it runs
	direct bool        // may run, and once admitted does run, on its caller's goroutine
	unhook func() bool // stops the watch over cancellation before the start; nil: never queued
}

func newSlot(k *Keeper, id string, record Record) *slot {
	record.Tenancy.SlotID = id
	record.Tenancy.Resume(time.Now())
	return &slot{
		k: k, id: id, record: record, state: slots.StateStarting,
		wake: make(chan struct{}, 1), opened: make(chan struct{}), room: make(chan struct{}, k.cfg.OpsMax),
		seats: make(chan struct{}, k.cfg.TerminalsMax),
	}
}

// run is the slot's runner.
func (s *slot) run(ctx context.Context) {
	s.open(ctx)
	for s.step(ctx) {
	}
}

// step does the one thing that is due next; false when the slot is drained.
func (s *slot) step(ctx context.Context) bool {
	s.mu.Lock()
	switch {
	case s.running != nil: // direct
		s.mu.Unlock()
		<-s.wake
	case s.reset != nil:
		r := s.reset
		s.mu.Unlock()
		s.swap(ctx, r)
	case s.draining && (s.left || len(s.ops) == 0):
		s.become(slots.StateDraining)
		s.mu.Unlock()
		return false
	case len(s.queue) > 0:
		j := s.queue[0]
		s.queue[0] = nil
		s.queue = s.queue[1:]
		s.startLocked(j)
		s.mu.Unlock()
		s.execute(ctx, j)
	default:
		s.mu.Unlock()
		<-s.wake
	}
	return true
}

// poke makes the runner look. It never blocks.
func (s *slot) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// open makes the sandbox when the slot starts, with the files that it had, and
// resets it when the record says so: the last agent may have died between a
// release and its reset, or a lease may have run out while nobody watched. A
// slot whose files have not outlived the last agent begins empty, and nobody's:
// its tenant must hear of it.
func (s *slot) open(ctx context.Context) {
	defer close(s.opened)
	files := !s.record.ResetDue && !s.record.Tenancy.Expired(time.Now())
	box, err := s.k.Open(ctx, s.id, s.record.Generation, files)
	lost := files && err != nil && slots.AsError(err).Kind == slots.KindSlotLost
	if lost {
		s.k.log.Warn("slot lost its files", "slot", s.id, "error", err)
		box, err = s.k.Open(ctx, s.id, s.record.Generation, false)
	}
	s.mu.Lock()
	if err != nil {
		jobs := s.quarantineLocked("open: " + err.Error())
		refusal := s.quarantineErrorLocked()
		s.mu.Unlock()
		s.k.log.Error("slot quarantined", "slot", s.id, "error", err)
		s.refuseAll(jobs, refusal)
		return
	}
	s.sandbox = box
	s.become(slots.StateAvailable)
	if s.draining {
		s.mu.Unlock()
		return
	}
	if lost || s.record.Tenancy.Expired(time.Now()) {
		err = s.endLeaseLocked()
	}
	if s.record.ResetDue && s.reset == nil {
		s.reset = newReset()
	}
	r := s.reset
	s.armLocked()
	s.mu.Unlock()
	s.unsaved(err)
	if r != nil {
		s.swap(ctx, r)
	}
}

// become moves the slot to another state. A move that the rules do not allow
// is a bug of this package.
func (s *slot) become(next slots.State) {
	if s.state == next {
		return
	}
	if !s.state.CanBecome(next) {
		panic(fmt.Sprintf("slot %s cannot go from %s to %s", s.id, s.state, next))
	}
	s.state = next
}

// saveLocked puts the record on disk.
func (s *slot) saveLocked() error { return s.k.Store.Save(s.id, s.record) }

// unsaved reports a record that could not be saved where the slot goes on
// nevertheless.
func (s *slot) unsaved(err error) {
	if err != nil {
		s.k.log.Error("slot not saved", "slot", s.id, "error", err)
	}
}

// quarantineLocked sets the slot aside. The caller refuses what it took out
// of the queue.
func (s *slot) quarantineLocked(reason string) []*job {
	s.become(slots.StateQuarantined)
	s.reason = reason
	return s.flushLocked()
}

// quarantine is the reason why the slot is set aside, nil when it is not.
func (s *slot) quarantine() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.quarantineErrorLocked()
}

func (s *slot) quarantineErrorLocked() error {
	if s.state != slots.StateQuarantined {
		return nil
	}
	return slots.Errorf(slots.KindResetFailed, "slot %s is quarantined: %s", s.id, s.reason)
}

// usableLocked says why the slot takes no call with the token, nil when it
// takes it.
func (s *slot) usableLocked(token *uint64) error {
	if s.draining || s.retiredLocked() {
		return errDraining()
	}
	if err := s.quarantineErrorLocked(); err != nil {
		return err
	}
	return s.record.Tenancy.Check(time.Now(), token)
}

// startableLocked reports whether a call may start at once.
func (s *slot) startableLocked() bool {
	return s.state == slots.StateAvailable && s.running == nil && len(s.queue) == 0 && s.reset == nil
}

func (s *slot) startLocked(j *job) {
	s.running = j
	s.become(slots.StateExecuting)
}

// endLocked lets the slot go on after the job that ran.
func (s *slot) endLocked() {
	s.running = nil
	s.become(slots.StateAvailable)
	if len(s.queue) > 0 || s.reset != nil || s.draining {
		s.poke()
	}
}

// enqueue starts a direct job on a slot that is idle; any other one it puts
// behind those that wait. The execution may be cancelled from then on, and
// leaves the queue when it is.
func (s *slot) enqueue(j *job) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usableLocked(j.call.Token); err != nil {
		return err
	}
	j.direct = j.direct && s.startableLocked()
	if j.direct {
		s.startLocked(j)
		s.k.runners.Add(1) // never from zero: the slot's runner is there
		return nil
	}
	if len(s.queue) >= s.k.cfg.QueueMax {
		return slots.Errorf(slots.KindQueueTimeout, "slot %s has %d calls waiting already", s.id, len(s.queue))
	}
	ctx := j.exec.Context()
	j.unhook = context.AfterFunc(ctx, func() { s.drop(j, context.Cause(ctx)) })
	s.queue = append(s.queue, j)
	s.poke()
	return nil
}

// drop ends a job that was cancelled while it waited.
func (s *slot) drop(j *job, cause error) {
	s.mu.Lock()
	i := slices.Index(s.queue, j)
	if i >= 0 {
		s.queue = slices.Delete(s.queue, i, i+1)
	}
	s.mu.Unlock()
	if i >= 0 {
		s.k.refuse(s, j, cause)
	}
}

// flushLocked empties the queue. The caller refuses the jobs after it has let
// go of the mutex.
func (s *slot) flushLocked() []*job {
	jobs := s.queue
	s.queue = nil
	return jobs
}

// refuseAll is refuse for what flushLocked gave.
func (s *slot) refuseAll(jobs []*job, cause error) {
	for _, j := range jobs {
		s.k.refuse(s, j, cause)
	}
}

// retire drains the slot, unless somebody has a lease of it.
func (s *slot) retire() (leased bool) {
	s.mu.Lock()
	retired := s.retiredLocked()
	s.mu.Unlock()
	if retired {
		s.drain()
	}
	return !retired
}

// retiredLocked reports whether the keeper drains and nobody has a lease of
// the slot: none is given any more.
func (s *slot) retiredLocked() bool {
	l := s.record.Tenancy.Lease
	return s.k.draining.Load() && (l == nil || l.Labels[api.LabelClosing] != "" || s.record.Tenancy.Expired(time.Now()))
}

// drain lets the slot take no more work.
func (s *slot) drain() {
	s.mu.Lock()
	s.draining = true
	jobs := s.flushLocked()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.poke()
	s.mu.Unlock()
	s.refuseAll(jobs, errDraining())
}

// cut ends what runs in the slot.
func (s *slot) cut() {
	s.mu.Lock()
	s.left = true
	s.poke()
	j := s.running
	ops := slices.Clone(s.ops)
	s.mu.Unlock()
	if j != nil {
		j.exec.Cancel(errDraining())
	}
	for _, o := range ops {
		o.cancel(errDraining())
	}
}

// close ends the sandbox, after the runner has returned.
func (s *slot) close() error {
	s.cut()
	s.mu.Lock()
	box := s.sandbox
	s.sandbox = nil
	s.become(slots.StateClosed)
	s.mu.Unlock()
	if box == nil {
		return nil
	}
	if err := box.Close(); err != nil {
		return fmt.Errorf("close slot %s: %w", s.id, err)
	}
	return nil
}
