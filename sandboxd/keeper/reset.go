package keeper

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/slots"
)

// reset is one reset that is wanted or under way. Everybody who asks for one
// meanwhile waits for the same.
type reset struct {
	done    chan struct{}
	receipt slots.Receipt // valid, like err, once done is closed
	err     error
}

func newReset() *reset { return &reset{done: make(chan struct{})} }

// wait returns the reset's end, or ctx's. The reset goes on either way.
func (r *reset) wait(ctx context.Context) (slots.Receipt, error) {
	select {
	case <-r.done:
		return r.receipt, r.err
	case <-ctx.Done():
		return slots.Receipt{}, fmt.Errorf("wait for reset: %w", context.Cause(ctx))
	}
}

// Reset makes the slot pristine and returns the proof. What runs in the slot
// ends as interrupted, what waits is refused, and a reset that is under way is
// joined. A quarantined slot becomes usable when the reset succeeds. The error
// is that of the token, KindDraining, or KindResetFailed with a receipt that
// says what could not be proven. A reset goes on when ctx ends.
func (k *Keeper) Reset(ctx context.Context, slotID string, token *uint64) (slots.Receipt, error) {
	s, err := k.slot(slotID)
	if err != nil {
		return slots.Receipt{}, err
	}
	s.mu.Lock()
	err = s.record.Tenancy.Check(time.Now(), token)
	if err == nil && s.draining {
		err = errDraining()
	}
	if err != nil {
		s.mu.Unlock()
		return slots.Receipt{}, err
	}
	r, end := s.wantResetLocked(slots.Errorf(slots.KindInterrupted, "slot %s was reset", s.id))
	s.mu.Unlock()
	end()
	return r.wait(ctx)
}

// wantResetLocked asks the runner for a reset. The caller lets go of the mutex
// and calls end, which tells everybody in the slot why they are ended. No call
// starts in the slot from now on until the reset is done.
func (s *slot) wantResetLocked(cause *slots.Error) (r *reset, end func()) {
	if s.reset == nil {
		s.reset = newReset()
		s.poke()
	}
	jobs, running, ops := s.flushLocked(), s.running, slices.Clone(s.ops)
	return s.reset, func() {
		if running != nil {
			running.exec.Cancel(cause)
		}
		for _, o := range ops {
			o.cancel(cause)
		}
		s.refuseAll(jobs, cause)
	}
}

// swap does the reset. It runs in the runner, so nothing else does.
func (s *slot) swap(ctx context.Context, r *reset) {
	start := time.Now()
	s.mu.Lock()
	s.become(slots.StateResetting)
	s.record.ResetDue = true
	// The reset itself needs no record. If the agent dies before its end,
	// whatever asked for it is on record or was not answered.
	unsaved := s.saveLocked()
	ops, box := slices.Clone(s.ops), s.sandbox
	s.mu.Unlock()
	s.unsaved(unsaved)

	awaitOps(ops)
	ctx, cancel := context.WithTimeout(ctx, s.k.cfg.ResetTimeout)
	defer cancel()
	box, receipt, err := s.renew(ctx, box)
	took := time.Since(start)
	receipt.MS = float64(took) / float64(time.Millisecond)

	jobs, unsaved := s.renewed(r, box, receipt, err)
	s.unsaved(unsaved)
	if err != nil {
		s.k.log.Error("slot quarantined", "slot", s.id, "error", err)
	}
	s.k.Observer.ResetEnded(err == nil, took)
	s.refuseAll(jobs, r.err)
	close(r.done)
}

// renewed puts the end of a reset in force: the slot is usable again, or it is
// quarantined and what waits has to be refused.
func (s *slot) renewed(r *reset, box Sandbox, receipt slots.Receipt, err error) (jobs []*job, unsaved error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sandbox, s.reset = box, nil
	s.record.Generation = max(s.record.Generation, receipt.Generation)
	receipt.Generation = s.record.Generation
	r.receipt, s.proof = receipt, receipt
	if err == nil {
		s.record.ResetDue, s.reason = false, ""
		s.become(slots.StateAvailable)
	} else {
		jobs = s.quarantineLocked(err.Error())
		r.err = s.quarantineErrorLocked()
	}
	return jobs, s.saveLocked()
}

// renew resets the sandbox, which is opened first if that failed before.
func (s *slot) renew(ctx context.Context, box Sandbox) (Sandbox, slots.Receipt, error) {
	if box == nil {
		opened, err := s.k.Open(ctx, s.id, s.record.Generation, false)
		if err != nil {
			return nil, slots.Receipt{}, fmt.Errorf("open: %w", err)
		}
		box = opened
	}
	receipt, err := box.Reset(ctx)
	if err != nil {
		receipt.Clean = false
		return box, receipt, fmt.Errorf("reset: %w", err)
	}
	if !receipt.Clean {
		return box, receipt, fmt.Errorf("reset is not clean: %s", unproven(receipt.Checks))
	}
	return box, receipt, nil
}

// unproven names the checks that failed.
func unproven(checks []slots.Check) string {
	var failed []string
	for _, c := range checks {
		if c.OK {
			continue
		}
		text := c.Name
		if c.Note != "" {
			text += " (" + c.Note + ")"
		}
		failed = append(failed, text)
	}
	return strings.Join(failed, ", ")
}

// awaitOps waits until the cancelled Do calls have returned, but not for ever.
func awaitOps(ops []*op) {
	patience := time.NewTimer(opsGrace)
	defer patience.Stop()
	for _, o := range ops {
		select {
		case <-o.done:
		case <-patience.C:
			return
		}
	}
}
