package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"berth/slots"
)

// Reset puts the spare in the sandbox's place and proves that nothing of the
// last tenant is left: every process of it has ended, its cgroup is empty,
// its files are out of sight, and what stands there now is new and empty. How
// much was written does not matter: deleting happens behind. A receipt that
// is not clean says which check failed; the slot must then not be used.
func (s *Sandbox) Reset(ctx context.Context) (slots.Receipt, error) {
	s.resetting.Lock()
	defer s.resetting.Unlock()
	began := time.Now()
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return slots.Receipt{Generation: s.Generation()}, slots.Errorf(slots.KindSlotLost, "the slot is closed").WithExecuted(slots.ExecutedNever)
	}
	next, err := s.takeSpare(ctx)
	if err != nil {
		return slots.Receipt{Generation: s.Generation()}, slots.Errorf(slots.KindResetFailed, "reset %s: %w", s.slot, err)
	}
	// From here on it is done whether or not anybody still waits: half a reset
	// would cost the slot.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeDeadline)
	defer cancel()
	// Asked before anybody can reach it: a file that comes right after the swap
	// is the next tenant's own.
	empty, answers := next.empty(), next.works(ctx)
	s.lockSettled()
	old := s.current
	s.current = next
	s.generation++
	generation := s.generation
	s.shell = nil
	idle := s.coolLocked()
	s.mu.Unlock()
	endWarm(idle)

	receipt := slots.Receipt{Generation: generation}
	check := func(name string, err error) { receipt.Checks = append(receipt.Checks, checked(name, err)) }
	check("files replaced", s.host.layout.point(s.slot, next.place()))
	receipt.Checks = append(receipt.Checks, old.end(ctx)...)
	check("files out of sight", s.host.layout.discard(old.name))
	check("nothing mounted", old.unmounted())
	check("files empty", empty)
	check("holder answers", answers)

	receipt.Clean = true
	for _, c := range receipt.Checks {
		receipt.Clean = receipt.Clean && c.OK
	}
	old.retire(receipt.Clean)
	s.makeSpare(sparePause)
	s.host.disposal.Go(func() { s.host.emptyTrash(s.host.ctx) })
	receipt.MS = float64(time.Since(began)) / float64(time.Millisecond)
	return receipt, nil
}

// checked is the outcome of one check, in words for the receipt.
func checked(name string, err error) slots.Check {
	if err != nil {
		return slots.Check{Name: name, Note: err.Error()}
	}
	return slots.Check{Name: name, OK: true}
}

// takeSpare waits for the spare, or makes one if that failed or its holder
// has ended.
func (s *Sandbox) takeSpare(ctx context.Context) (*instance, error) {
	s.mu.Lock()
	spare, needed := s.spare, s.spareNeeded
	s.mu.Unlock()
	needed(true)
	select {
	case i, ok := <-spare:
		if !ok {
			break
		}
		if i.works(ctx) == nil {
			return i, nil
		}
		if err := i.dispose(context.WithoutCancel(ctx)); err != nil {
			return nil, err
		}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return s.host.newInstance(ctx, s.host.how)
}

// unmounted proves that no mount of the instance shows in the agent's own
// namespace.
func (i *instance) unmounted() error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if at := i.host.layout.instance(i.name); strings.Contains(string(text), at+"/") {
		return fmt.Errorf("a mount below %s is visible", at)
	}
	return nil
}

// empty proves that the instance's directories hold nothing yet.
func (i *instance) empty() error {
	for _, d := range []string{"workspace", "tmp", "vartmp", "run/output"} {
		entries, err := os.ReadDir(i.dir(d))
		if err != nil {
			return err
		}
		if len(entries) > 0 {
			return fmt.Errorf("%s holds %s", d, entries[0].Name())
		}
	}
	return nil
}
