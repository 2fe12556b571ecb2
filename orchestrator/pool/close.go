package pool

import (
	"context"
	"crypto/rand"
	"time"

	"berth/sandboxd/api"
	"berth/slots"
)

// Where several orchestrators serve the same containers, one that drains a
// container keeps the others from it: it leases the free slots itself, under a
// label that all of them know. So the container decides who was first, as with
// every lease, and what has no slot left to give can be stopped without harm,
// whatever others know of it.
//
// Who reads such a lease drains the container as well. So a drain goes on when
// the orchestrator that began it is gone, and whose duty it is stops the
// container. It is for good, also when it began because the machine was
// drained and that was taken back: somebody may be about to stop it.
const (
	labelClosing = api.LabelClosing // the slot is kept from everybody
	closer       = "berth.closing"  // stands for the trajectory of such a lease
	closingTTL   = 10 * time.Minute
)

// closedLocked notes whether the lease keeps the slot from everybody.
func (s *slot) closedLocked(held slots.Lease) bool {
	if held.Labels[labelClosing] == "" {
		s.openLocked()
		return false
	}
	s.in.changeLocked(s, func() { s.lease, s.owed, s.closing = nil, nil, true })
	s.token = held.Token
	if !s.in.draining {
		s.in.draining = true // another orchestrator may have begun it
		s.in.pool.owner.rescale()
	}
	return true
}

// openLocked notes that nothing keeps the slot from everybody.
func (s *slot) openLocked() {
	if s.closing {
		s.in.changeLocked(s, func() { s.closing = false })
	}
}

// closed reports whether nobody can be given a slot of the container.
func (c *container) closed() bool {
	if !c.pool.duty.Shared || c.closing {
		return true
	}
	for _, s := range c.slots {
		if !s.closing && s.state != slots.StateQuarantined && s.state != slots.StateClosed {
			return false
		}
	}
	return len(c.slots) > 0
}

// closeLocked takes the free slots of a container that leaves.
func (p *pool) closeLocked(c *container) {
	if !p.duty.Shared || !c.leaving() || c.closes || c.closing || c.removed {
		return
	}
	if n := c.free - c.asked; n > 0 {
		c.closes = p.owner.spawn(func(ctx context.Context) { p.take(ctx, c, n) })
	}
}

// take leases up to n slots of the container, so that nobody else does.
func (p *pool) take(ctx context.Context, c *container, n int) {
	defer p.closesNoMore(c)
	for range n {
		remote := c.link()
		one, cancel := context.WithTimeout(ctx, p.owner.cfg.GrantTimeout)
		lease, err := remote.AcquireAny(one, api.LeaseRequest{
			Trajectory: closer, TTLSeconds: closingTTL.Seconds(), Labels: map[string]string{labelClosing: "1", labelGrant: rand.Text()},
		})
		cancel()
		if err != nil {
			return // somebody was first, or it is found when the slots are read again
		}
		p.mu.Lock()
		s := c.slotLocked(lease.SlotID)
		if s.token < lease.Token {
			s.touchLocked()
			if s.lease != nil {
				p.overLocked(s, time.Now())
			}
			s.closedLocked(lease)
			c.placeLocked()
		}
		p.mu.Unlock()
	}
}

// closesNoMore has the container looked at, now that its slots have changed.
func (p *pool) closesNoMore(c *container) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.closes, c.stale = false, true
	c.placeLocked()
	c.look()
}
