package pool

import (
	"context"
	"time"

	"berth/sandboxd/api"
	"berth/slots"
)

// release is one release that is under way. Everybody who asks for the same
// waits for it.
type release struct {
	token   uint64
	reset   bool
	done    chan struct{} // closed when receipt and err are there
	receipt *slots.Receipt
	err     error
}

// Release ends the lease and, if reset, makes the slot pristine; the receipt
// is the proof of that. Releasing twice is releasing once: the second call
// gets the receipt of the first, or none when that is no longer known. The
// error is slots.KindResetFailed when the slot could not be proven clean; the
// lease is over then and the slot serves nobody. A container that does not
// answer is asked again when it does. The release is carried through even if
// ctx ends.
func (p *Pools) Release(ctx context.Context, ref Ref, reset bool) (*slots.Receipt, error) {
	c, err := p.find(ctx, ref)
	if err != nil {
		return nil, err
	}
	return c.pool.release(ctx, c, ref, reset)
}

func (p *pool) release(ctx context.Context, c *container, ref Ref, reset bool) (*slots.Receipt, error) {
	p.mu.Lock()
	s, ok := c.slots[ref.SlotID]
	if !ok {
		read := !c.readAt.IsZero()
		p.mu.Unlock()
		if !read {
			return p.releaseUnknown(ctx, c, ref, 0, reset)
		}
		return nil, slots.Errorf(slots.KindNotFound, "container %s has no slot %.80s", c.id, ref.SlotID)
	}
	var r *release
	switch {
	case s.release != nil && s.release.token == ref.Token:
		r = s.release
	case s.lease != nil && s.lease.Token == ref.Token:
		r = p.releaseLocked(s, ref.Token, reset)
	case s.receipt != nil && s.receiptFor == ref.Token:
		defer p.mu.Unlock()
		return s.receipt, nil
	}
	known := s.token
	p.mu.Unlock()
	if r == nil {
		return p.releaseUnknown(ctx, c, ref, known, reset)
	}
	select {
	case <-r.done:
		return r.receipt, r.err
	case <-ctx.Done():
		return nil, left(ctx, "wait for the release").WithExecuted(slots.ExecutedMaybe)
	}
}

// releaseUnknown has the container judge a token that is not in our view.
func (p *pool) releaseUnknown(ctx context.Context, c *container, ref Ref, known uint64, reset bool) (*slots.Receipt, error) {
	remote := c.link()
	receipt, err := remote.Release(ctx, ref.SlotID, api.LeaseRelease{Token: ref.Token, Reset: &reset})
	c.look()
	if err != nil && slots.AsError(err).Kind == slots.KindFenced && ref.Token < known {
		return nil, nil // it was over before: somebody was given the slot since
	}
	return receipt, err
}

// releaseLocked begins to give the slot back. From now on its trajectory does
// not find it.
func (p *pool) releaseLocked(s *slot, token uint64, reset bool) *release {
	r := &release{token: token, reset: reset, done: make(chan struct{})}
	p.unindexLocked(s)
	s.touchLocked()
	s.in.changeLocked(s, func() { s.release, s.owed = r, nil })
	s.in.placeLocked()
	if !p.owner.spawn(func(ctx context.Context) { p.carry(ctx, s, r) }) {
		s.in.changeLocked(s, func() { s.release, s.owed = nil, r })
		r.err = errClosed()
		close(r.done)
	}
	return r
}

// carry has the container release the slot.
func (p *pool) carry(ctx context.Context, s *slot, r *release) {
	start := time.Now()
	remote := s.in.link()
	ctx, cancel := context.WithTimeout(ctx, p.owner.cfg.ReleaseTimeout)
	defer cancel()
	receipt, err := remote.Release(ctx, s.id, api.LeaseRelease{Token: r.token, Reset: &r.reset})

	p.mu.Lock()
	p.releasedLocked(s, r, receipt, err)
	p.mu.Unlock()
	close(r.done)
	p.owner.cfg.Observer.Released(p.template.Name, time.Since(start), r.err)
}

// releasedLocked notes what came of a release.
func (p *pool) releasedLocked(s *slot, r *release, receipt *slots.Receipt, err error) {
	c, now := s.in, time.Now()
	p.clock++
	// The container may have given the slot to the next one before we heard
	// that it was free: then there is nothing to note but the end of the
	// release.
	next := s.lease != nil && s.lease.Token != r.token || s.token > r.token
	end := func(lease *slots.Lease, owed *release, state slots.State) {
		c.changeLocked(s, func() {
			if s.release == r {
				s.release = nil
			}
			if !next {
				s.lease, s.owed, s.state, s.changed = lease, owed, state, p.clock
			}
		})
	}
	over := func(state slots.State) { end(nil, nil, state) }
	r.receipt, r.err = receipt, err
	kind := slots.Kind("")
	if err != nil {
		kind = slots.AsError(err).Kind
	}
	switch {
	case c.removed:
		over(slots.StateClosed)
		if err != nil {
			r.err = slots.Errorf(slots.KindSlotLost, "container %s is gone, and slot %s with it", c.id, s.id)
		}
	case err == nil:
		c.seen = now
		if !next {
			s.receipt, s.receiptFor, s.resets = receipt, r.token, 0
			if receipt != nil {
				s.generation = receipt.Generation
			}
		}
		over(slots.StateAvailable)
	case kind == slots.KindResetFailed:
		over(slots.StateQuarantined)
		c.look() // it says why
	case kind == slots.KindFenced || kind == slots.KindDraining:
		// The lease is over all the same: it ended before, or the container
		// does the reset when it starts the next time.
		over(slots.StateStarting)
		r.receipt, r.err = nil, nil
		c.closing = c.closing || kind == slots.KindDraining
		c.look()
	default:
		end(s.lease, r, s.state)
		c.restLocked(now)
	}
	c.placeLocked()
	p.matchLocked()
}

// Renew makes the lease last longer; ttl is at least MinTTL, or 0 for the TTL
// that it has. A lease that is over is slots.KindLeaseExpired or
// slots.KindFenced, one whose container is gone slots.KindSlotLost.
func (p *Pools) Renew(ctx context.Context, ref Ref, ttl time.Duration) (Lease, error) {
	if err := checkTTL(ttl); err != nil {
		return Lease{}, err
	}
	c, err := p.find(ctx, ref)
	if err != nil {
		return Lease{}, err
	}
	return c.pool.renew(ctx, c, ref, ttl)
}

func (p *pool) renew(ctx context.Context, c *container, ref Ref, ttl time.Duration) (Lease, error) {
	remote := c.link()
	lease, err := remote.Renew(ctx, ref.SlotID, api.LeaseRenewal{Token: ref.Token, TTLSeconds: ttl.Seconds()})
	if err != nil {
		return Lease{}, p.notRenewed(c, ref, ttl, err)
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := c.slotLocked(ref.SlotID)
	renewed := Lease{
		Template: p.template.Name, Container: c.shown(), Slot: shown(lease), Further: lease.Labels[labelFurther] != "",
	}
	if c.removed || s.release != nil || s.owed != nil || lease.Token < s.token {
		return renewed, nil // it was released meanwhile, but this was the container's answer
	}
	s.touchLocked()
	if s.lease != nil && s.lease.Token == lease.Token {
		s.lease, s.until = &lease, now.Add(lease.TTL)
		return renewed, nil
	}
	p.holdLocked(s, lease, now)
	c.placeLocked()
	return renewed, nil
}

// notRenewed notes that a renewal failed, and says why.
func (p *pool) notRenewed(c *container, ref Ref, ttl time.Duration, err error) error {
	if lost := p.owner.Lost(ref, slots.ExecutedNever); lost != nil {
		return lost
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := c.slots[ref.SlotID]
	if ok && ttl > 0 && s.lease != nil && s.lease.Token == ref.Token && slots.AsError(err).Executed != slots.ExecutedNever {
		// It may have come through, and made the lease shorter.
		if at := time.Now().Add(ttl); at.Before(s.lease.ExpiresAt) {
			held := *s.lease
			held.ExpiresAt = at
			s.lease = &held
			s.touchLocked()
		}
	}
	c.look()
	return err
}

// Reset makes the slot of the lease pristine; the lease stays. It ends what
// runs in the slot.
func (p *Pools) Reset(ctx context.Context, ref Ref) (slots.Receipt, error) {
	c, err := p.find(ctx, ref)
	if err != nil {
		return slots.Receipt{}, err
	}
	remote := c.link()
	receipt, err := remote.Reset(ctx, ref.SlotID, &ref.Token)
	c.look()
	return receipt, err
}
