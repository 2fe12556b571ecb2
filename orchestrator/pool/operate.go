package pool

import (
	"context"
	"time"

	"berth/slots"
)

// Cordon keeps new leases away from the container, or lets them come again.
// Those that it has are served on. It is this orchestrator's own decision and
// ends with it.
func (p *Pools) Cordon(id string, on bool) error {
	c, err := p.operable(id)
	if err != nil {
		return err
	}
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	c.cordoned = on
	c.placeLocked()
	c.pool.matchLocked()
	c.look()
	return nil
}

// Drain gives the container no new leases and stops it when its last lease has
// ended; after within, unless that is 0, also if it has some, whose holders
// hear slots.KindSlotLost. It returns at once. Another call may only shorten
// the time.
func (p *Pools) Drain(id string, within time.Duration) error {
	c, err := p.operable(id)
	if err != nil {
		return err
	}
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	c.pool.drainLocked(c, within)
	return nil
}

// Recycle drains the container and starts another one in its place now, also
// where that makes one more than the template allows while both are there.
func (p *Pools) Recycle(id string, within time.Duration) error {
	c, err := p.operable(id)
	if err != nil {
		return err
	}
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	if !c.draining && c.pool.duty.Held { // else it is on another one to see that there are enough
		c.pool.startLocked(1, time.Now())
	}
	c.pool.drainLocked(c, within)
	return nil
}

func (p *Pools) operable(id string) (*container, error) {
	if c := p.container(id); c != nil {
		return c, nil
	}
	return nil, slots.Errorf(slots.KindNotFound, "container %.80s is not known", id)
}

func (p *pool) drainLocked(c *container, within time.Duration) {
	c.draining = true
	if at := time.Now().Add(within); within > 0 && (c.cutAt.IsZero() || at.Before(c.cutAt)) {
		c.cutAt = at
	}
	c.placeLocked()
	c.look()
	p.owner.rescale()
}

// finishDrainLocked stops a draining container that was just seen to have no
// lease, or whose time is over.
func (p *pool) finishDrainLocked(c *container, now time.Time) {
	if c.leaving() && (c.cut(now) || c.leased == 0 && c.asked == 0 && c.closed()) {
		p.stopLocked(c, "it was drained")
	}
}

// cut reports whether a drain has waited long enough.
func (c *container) cut(now time.Time) bool { return !c.cutAt.IsZero() && !now.Before(c.cutAt) }

// stopLocked has the fleet stop the container, once at a time, if that is on
// this orchestrator to do.
func (p *pool) stopLocked(c *container, reason string) {
	if c.stopping || c.removed || !p.duty.Held {
		return
	}
	c.stopping = p.owner.spawn(func(ctx context.Context) {
		err := p.leads()
		if err == nil {
			err = p.owner.fleet.Stop(ctx, c.id, p.owner.cfg.StopGrace)
		}
		if err == nil {
			p.fallen(c.id)
			p.drop(c, reason)
			return
		}
		p.owner.cfg.Log.Error("container not stopped", "container", c.id, "error", err)
		pause(ctx, time.Second)
		p.mu.Lock()
		c.stopping = false
		p.mu.Unlock()
		c.look()
	})
}

// mendLocked tries to bring quarantined slots back by resetting them, and
// replaces a container where that has not helped for half of the slots. It is
// for one orchestrator to do.
func (p *pool) mendLocked(c *container, now time.Time) {
	if !p.duty.Held {
		return
	}
	hopeless := 0
	for _, s := range c.slots {
		if s.state != slots.StateQuarantined || s.lease != nil || s.release != nil {
			continue
		}
		switch {
		case s.resets >= p.owner.cfg.ResetTries:
			hopeless++
		case !s.resetting && !now.Before(s.resetAt):
			s.resetting = p.owner.spawn(func(ctx context.Context) { p.repair(ctx, s) })
		}
	}
	if hopeless > 0 && 2*hopeless >= len(c.slots) && p.template.MaxContainers > 0 && !c.draining {
		p.owner.cfg.Log.Error("container is replaced: its slots cannot be reset", "container", c.id, "slots", hopeless)
		p.drainLocked(c, 0)
	}
}

// repair resets a quarantined slot once.
func (p *pool) repair(ctx context.Context, s *slot) {
	ctx, cancel := context.WithTimeout(ctx, p.owner.cfg.ReleaseTimeout)
	defer cancel()
	p.mu.Lock()
	remote := s.in.remote
	p.mu.Unlock()
	receipt, err := remote.Reset(ctx, s.id, nil)
	p.mu.Lock()
	defer p.mu.Unlock()
	s.resetting = false
	if len(receipt.Checks) > 0 { // else nothing was proven, and what is known still is
		s.receipt, s.receiptFor = &receipt, 0
	}
	if err != nil {
		s.resetAt = time.Now().Add(time.Second << min(s.resets, 6))
		s.resets++
	}
	s.in.look()
}
