package pool

import (
	"context"
	"time"

	"berth/sandboxd/api"
	"berth/slots"
)

// statusDraining is api.Health's status of a container that shuts down.
const statusDraining = "draining"

// Pauses of a watcher that waits for something particular.
const (
	soon  = 100 * time.Millisecond // when a slot is about to change, or callers wait
	slack = 5 * time.Millisecond   // after a lease's end, for the container to notice
)

// watch looks at the container until it is gone.
func (c *container) watch(ctx context.Context) {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-c.gone:
			return
		case <-ctx.Done():
			return
		case <-next.C:
		case <-c.wake:
		}
		if wait := c.resting(); wait > 0 {
			next.Reset(wait)
			continue
		}
		c.probe(ctx)
		next.Reset(c.pause())
	}
}

// resting is how long the container is to be left alone.
func (c *container) resting() time.Duration {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	return time.Until(c.restOver)
}

// pause is how long until the next look.
func (c *container) pause() time.Duration {
	p := c.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	now, wait := time.Now(), p.owner.cfg.ProbeEvery
	if c.silent {
		return wait
	}
	if p.queue.len() > 0 || c.leaving() {
		wait = min(wait, soon)
	}
	for _, s := range c.slots {
		if s.lease != nil && now.Before(s.until) {
			wait = min(wait, s.until.Sub(now)+slack)
		} else if s.unsettled() {
			wait = min(wait, soon)
		}
	}
	return wait
}

// unsettled reports whether the slot is about to change by itself.
func (s *slot) unsettled() bool {
	return s.lease != nil && !time.Now().Before(s.until) || s.owed != nil ||
		s.state == slots.StateStarting || s.state == slots.StateResetting
}

// probe looks at the container once.
func (c *container) probe(ctx context.Context) {
	p := c.pool
	ctx, cancel := context.WithTimeout(ctx, p.owner.cfg.ProbeTimeout)
	defer cancel()
	remote := c.link()
	health, err := remote.Health(ctx)
	if err != nil {
		p.missed(c, err)
		return
	}
	p.mu.Lock()
	due, began := c.dueLocked(health), p.clock
	p.mu.Unlock()
	var list []api.Slot
	if due {
		if list, err = remote.Slots(ctx); err != nil {
			p.missed(c, err)
			return
		}
	}
	p.answered(c, health, list, began)
}

// dueLocked reports whether the slots are to be read: our view is old, or does
// not agree with the counts, or something waits to be found in them.
func (c *container) dueLocked(h api.Health) bool {
	cfg := c.pool.owner.cfg
	if c.readAt.IsZero() || c.stale || c.silent || c.leaving() || len(c.doubts) > 0 || c.pool.queue.len() > 0 {
		return true
	}
	if time.Since(c.readAt) >= cfg.SyncEvery || h.Leased != c.leased {
		return true
	}
	quarantined := 0
	for _, s := range c.slots {
		if s.unsettled() {
			return true
		}
		if s.state == slots.StateQuarantined {
			quarantined++
		}
	}
	return quarantined > 0 || h.Quarantined > 0
}

// answered notes that the container is well, with its slots if they were read.
func (p *pool) answered(c *container, health api.Health, list []api.Slot, began uint64) {
	p.mu.Lock()
	c.closing, c.closesAt = health.Status == statusDraining, health.DrainDeadline
	now := time.Now()
	back := c.silent
	c.misses, c.misread, c.silent, c.seen = 0, nil, false, now
	ended := endings{}
	if list != nil {
		p.mergeLocked(c, list, began, ended)
		c.firstReadLocked()
		c.readAt = now
		if !now.Before(c.restOver) {
			c.stale = false
		}
		p.mendLocked(c, now)
		p.closeLocked(c)
		p.finishDrainLocked(c, now)
	}
	c.placeLocked()
	p.matchLocked()
	p.mu.Unlock()
	p.tell(ended)
	if back {
		p.owner.cfg.Log.Info("container answers again", "container", c.id)
	}
}

// missed notes that a look has failed. One failure changes nothing; several in
// a row keep new leases away; a silence that outlasts the leases loses them.
func (p *pool) missed(c *container, cause error) {
	if p.owner.ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	now := time.Now()
	c.misses++
	c.misread = cause
	news := c.misses >= p.owner.cfg.Misses && !c.silent && !c.ends()
	ended := endings{}
	if c.misses >= p.owner.cfg.Misses {
		c.silent = true
		c.firstReadLocked()
		p.outlastLocked(c, now, ended)
	}
	p.giveUpLocked(c, now, describe(c, now))
	c.placeLocked()
	p.mu.Unlock()
	p.tell(ended)
	if news {
		p.owner.cfg.Log.Warn("container does not answer", "container", c.id, "error", cause)
		p.owner.rescale()
	}
}

// firstReadLocked lets those who wait for the first reading go on.
func (c *container) firstReadLocked() {
	select {
	case <-c.read:
	default:
		close(c.read)
	}
}

// outlastLocked ends the leases that a silent container has ended by now.
func (p *pool) outlastLocked(c *container, now time.Time, ended endings) {
	for _, s := range c.slots {
		if s.lease == nil || now.Before(s.until) {
			continue
		}
		if s.release == nil && s.owed == nil {
			ended[slots.KindSlotLost]++
		}
		p.loseLocked(s, slots.Errorf(slots.KindSlotLost, "slot %s of container %s is lost: %s", s.id, c.id, describe(c, now)))
	}
}

// giveUpLocked stops a container that is silent for too long and whose leases
// are all over, so that another one takes its place; one that is drained has
// the time that the drain gave it.
func (p *pool) giveUpLocked(c *container, now time.Time, why string) {
	over := c.leased == 0 && now.Sub(c.seen) >= p.owner.cfg.LostAfter && p.template.MaxContainers > 0
	if c.silent && (over || c.cut(now)) {
		p.stopLocked(c, why)
	}
}

// endings counts leases that ended without being released here.
type endings map[slots.Kind]int

func (p *pool) tell(ended endings) {
	for kind, n := range ended {
		for range n {
			p.owner.cfg.Observer.Ended(p.template.Name, kind)
		}
	}
}

// mergeLocked brings the view of the container's slots up to what was read.
// What we have changed since the reading began is left as it is.
func (p *pool) mergeLocked(c *container, list []api.Slot, began uint64, ended endings) {
	there := make(map[string]bool, len(list))
	now := time.Now()
	for _, v := range list {
		there[v.SlotID] = true
		s := c.slotLocked(v.SlotID)
		if s.changed > began || s.release != nil {
			continue
		}
		p.mergeSlotLocked(s, v, now, ended)
	}
	for id, s := range c.slots {
		if there[id] || s.changed > began || s.release != nil {
			continue
		}
		if s.lease != nil {
			ended[slots.KindSlotLost]++
			p.loseLocked(s, slots.Errorf(slots.KindSlotLost, "container %s has no slot %s any more", c.id, id))
		}
		c.changeLocked(s, func() { s.state, s.owed = slots.StateClosed, nil })
		delete(c.slots, id)
	}
	for name, until := range c.doubts {
		if now.After(until) {
			delete(c.doubts, name)
		}
	}
}

func (p *pool) mergeSlotLocked(s *slot, v api.Slot, now time.Time, ended endings) {
	same := s.lease != nil && v.Lease != nil && s.lease.Token == v.Lease.Token
	if s.lease != nil && !same {
		ended[p.overLocked(s, now)]++
	}
	s.in.changeLocked(s, func() {
		s.state, s.generation, s.reason = v.State, v.Generation, v.Reason
		if v.State != slots.StateQuarantined {
			s.resets = 0
		}
		if s.owed != nil && (v.Lease == nil || v.Lease.Token != s.owed.token) {
			s.owed = nil // it ended by itself
		}
	})
	if v.Lease == nil {
		s.openLocked()
		return
	}
	if s.closedLocked(*v.Lease) {
		return
	}
	left := min(max(0, v.Lease.ExpiresAt.Sub(now)), v.Lease.TTL)
	name := v.Lease.Labels[labelGrant]
	switch _, doubted := s.in.doubts[name]; {
	case s.owed != nil:
		p.releaseLocked(s, v.Lease.Token, s.owed.reset)
	case doubted:
		// We won it and never heard: whoever asked was served elsewhere.
		delete(s.in.doubts, name)
		s.in.changeLocked(s, func() { s.lease, s.until = v.Lease, now.Add(left) })
		p.releaseLocked(s, v.Lease.Token, false)
	case p.granting[name]:
		// Its trajectory finds it when the grant's answer is here.
		s.in.changeLocked(s, func() { s.lease, s.until = v.Lease, now.Add(left) })
	case same && s.indexed:
		s.lease, s.until = v.Lease, now.Add(left)
	default:
		p.holdLocked(s, *v.Lease, now)
		s.until = now.Add(left)
	}
}

// overLocked ends a lease that the container does not have any more.
func (p *pool) overLocked(s *slot, now time.Time) slots.Kind {
	kind := slots.KindSlotLost
	if !now.Before(s.lease.ExpiresAt.Add(-time.Second)) {
		kind = slots.KindLeaseExpired
	}
	p.loseLocked(s, slots.Errorf(kind, "lease %d of slot %s of container %s is over", s.lease.Token, s.id, s.in.id))
	return kind
}
