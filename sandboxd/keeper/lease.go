package keeper

import (
	"context"
	"time"

	"berth/sandboxd/api"
	"berth/slots"
)

// Acquire leases the slot. It does not wait: a slot that is leased, busy,
// resetting or not what the caller expected is KindConflict, a quarantined one
// KindResetFailed.
func (k *Keeper) Acquire(slotID string, want api.LeaseRequest) (slots.Lease, error) {
	s, err := k.slot(slotID)
	if err != nil {
		return slots.Lease{}, err
	}
	ttl, err := k.ttl(want.TTLSeconds, k.cfg.DefaultTTL)
	if err != nil {
		return slots.Lease{}, err
	}
	return s.acquire(want, ttl)
}

// AcquireAny leases any free slot. KindPoolExhausted when there is none.
func (k *Keeper) AcquireAny(want api.LeaseRequest) (slots.Lease, error) {
	ttl, err := k.ttl(want.TTLSeconds, k.cfg.DefaultTTL)
	if err != nil {
		return slots.Lease{}, err
	}
	want.ExpectedToken = nil
	// Each search begins one further, so that the slots take turns.
	first := int(k.next.Add(1) - 1)
	for i := range k.slots {
		s := k.slots[(first+i)%len(k.slots)]
		if !s.free() {
			continue
		}
		lease, err := s.acquire(want, ttl)
		if err != nil && slots.AsError(err).Kind == slots.KindConflict {
			continue
		}
		return lease, err
	}
	if k.draining.Load() {
		return slots.Lease{}, errDraining()
	}
	return slots.Lease{}, slots.Errorf(slots.KindPoolExhausted, "no slot is free")
}

// free reports whether acquire could succeed now.
func (s *slot) free() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record.Tenancy.Lease == nil && s.idleLocked()
}

func (s *slot) idleLocked() bool {
	return !s.draining && !s.k.draining.Load() && s.state == slots.StateAvailable && s.reset == nil && len(s.queue) == 0 && len(s.ops) == 0
}

func (s *slot) acquire(want api.LeaseRequest, ttl time.Duration) (slots.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining || s.k.draining.Load() {
		return slots.Lease{}, errDraining()
	}
	if err := s.quarantineErrorLocked(); err != nil {
		return slots.Lease{}, err
	}
	tenancy := s.record.Tenancy
	if want.ExpectedToken != nil {
		if err := tenancy.Expect(*want.ExpectedToken); err != nil {
			return slots.Lease{}, err
		}
	}
	lease, err := tenancy.Acquire(time.Now(), want.Trajectory, ttl, want.Labels)
	if err != nil {
		return slots.Lease{}, err
	}
	if !s.idleLocked() {
		return slots.Lease{}, slots.Errorf(slots.KindConflict, "slot %s is busy: %s", s.id, s.state)
	}
	if err := s.replaceLocked(tenancy, s.record.ResetDue); err != nil {
		return slots.Lease{}, err
	}
	s.armLocked()
	return lease, nil
}

// Renew makes the lease last longer; ttl 0 is the TTL that it has.
func (k *Keeper) Renew(slotID string, want api.LeaseRenewal) (slots.Lease, error) {
	s, err := k.slot(slotID)
	if err != nil {
		return slots.Lease{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	byDefault := k.cfg.DefaultTTL
	tenancy := s.record.Tenancy
	if tenancy.Lease != nil {
		// A copy: the old one stays what it is until the new one is on record.
		held := *tenancy.Lease
		tenancy.Lease = &held
		byDefault = held.TTL
	}
	ttl, err := k.ttl(want.TTLSeconds, byDefault)
	if err != nil {
		return slots.Lease{}, err
	}
	lease, err := tenancy.Renew(time.Now(), want.Token, ttl)
	if err != nil {
		return slots.Lease{}, err
	}
	if err := s.replaceLocked(tenancy, s.record.ResetDue); err != nil {
		return slots.Lease{}, err
	}
	s.armLocked()
	return lease, nil
}

// Release ends the lease and, unless reset is false, resets the slot and
// returns the proof. The lease is gone even if the reset fails. Releasing once
// more with the same token changes nothing: it joins the reset that is under
// way, or returns the proof of the one that was done since, which is not clean
// when there was none. It is fenced when another lease was given since.
func (k *Keeper) Release(ctx context.Context, slotID string, token uint64, reset bool) (slots.Receipt, error) {
	s, err := k.slot(slotID)
	if err != nil {
		return slots.Receipt{}, err
	}
	s.mu.Lock()
	held := s.record.Tenancy.Lease != nil
	if err := s.releaseLocked(token, reset); err != nil {
		s.mu.Unlock()
		return slots.Receipt{}, err
	}
	r, end := s.reset, func() {}
	switch {
	case !reset:
		r = nil
	case held && s.draining:
		// The next start does it, before it gives the slot away.
		r, err = nil, errDraining()
	case held:
		r, end = s.wantResetLocked(slots.Errorf(slots.KindInterrupted, "lease of slot %s was released", s.id))
	case r == nil:
		err = s.quarantineErrorLocked()
	}
	proof := s.proof
	proof.Generation = s.record.Generation
	s.mu.Unlock()
	if r == nil {
		return proof, err
	}
	end()
	return r.wait(ctx)
}

// releaseLocked takes the lease of the token away and puts that on record,
// together with the reset that it calls for.
func (s *slot) releaseLocked(token uint64, resetDue bool) error {
	tenancy := s.record.Tenancy
	held := tenancy.Lease != nil
	if err := tenancy.Release(token); err != nil || !held {
		return err
	}
	if err := s.replaceLocked(tenancy, s.record.ResetDue || resetDue); err != nil {
		return err
	}
	s.proof = slots.Receipt{}
	// A reset ends all; without one, who had the lease must not go on typing.
	for _, o := range s.ops {
		if o.terminal {
			o.cancel(slots.Errorf(slots.KindInterrupted, "lease of slot %s was released", s.id))
		}
	}
	s.armLocked()
	s.k.leaseEnded()
	return nil
}

// Leases lists the leases that hold, in the order of the slots.
func (k *Keeper) Leases() []slots.Lease {
	leases := []slots.Lease{}
	for _, s := range k.slots {
		s.mu.Lock()
		if l := s.record.Tenancy.Lease; l != nil && !s.record.Tenancy.Expired(time.Now()) {
			leases = append(leases, *l)
		}
		s.mu.Unlock()
	}
	return leases
}

// ttl reads a number of seconds; 0 means the default.
func (k *Keeper) ttl(seconds float64, byDefault time.Duration) (time.Duration, error) {
	if seconds == 0 {
		return byDefault, nil
	}
	if fits := seconds > 0 && seconds <= k.cfg.MaxTTL.Seconds(); !fits {
		return 0, slots.Errorf(slots.KindBadRequest, "ttl_s must be above 0 and at most %g, got %g", k.cfg.MaxTTL.Seconds(), seconds)
	}
	return max(time.Millisecond, time.Duration(seconds*float64(time.Second))), nil
}

// replaceLocked puts another tenancy in force once it is on record.
func (s *slot) replaceLocked(t slots.Tenancy, resetDue bool) error {
	old := s.record
	s.record.Tenancy, s.record.ResetDue = t, resetDue
	if err := s.saveLocked(); err != nil {
		s.record = old
		return slots.Errorf(slots.KindInternal, "save lease: %w", err).WithExecuted(slots.ExecutedNever)
	}
	return nil
}

// armLocked sets the timer to the end of the lease.
func (s *slot) armLocked() {
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	if l := s.record.Tenancy.Lease; l != nil && !s.draining {
		s.timer = time.AfterFunc(time.Until(l.ExpiresAt), s.expire)
	}
}

// expire ends a lease whose time is over and resets the slot.
func (s *slot) expire() {
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		return
	}
	if !s.record.Tenancy.Expired(time.Now()) {
		// It was renewed while this timer fired.
		s.armLocked()
		s.mu.Unlock()
		return
	}
	token := s.record.Tenancy.Lease.Token
	unsaved := s.endLeaseLocked()
	_, end := s.wantResetLocked(slots.Errorf(slots.KindLeaseExpired, "lease %d of slot %s has expired", token, s.id))
	s.mu.Unlock()
	s.unsaved(unsaved)
	s.k.log.Info("lease expired", "slot", s.id, "lease", token)
	end()
}

// endLeaseLocked takes the slot from its tenant. The lease is over even if
// that cannot be saved: an expired lease that is read again is expired again.
func (s *slot) endLeaseLocked() error {
	s.record.Tenancy.Lease = nil
	s.record.ResetDue = true
	s.proof = slots.Receipt{}
	s.k.leaseEnded()
	return s.saveLocked()
}

// leaseEnded lets Retire look. It never blocks.
func (k *Keeper) leaseEnded() {
	select {
	case k.over <- struct{}{}:
	default:
	}
}
