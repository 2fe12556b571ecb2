package pool

import (
	"context"
	"time"

	"berth/orchestrator/backend"
	"berth/slots"
)

// Cordon keeps new leases away from the container, or lets them come again.
// Those that it has are served on.
//
// Cordon, Drain and Recycle hold for all orchestrators that share the
// container, whichever is asked, and outlast them all, where the fleet keeps
// what operators want. Elsewhere they end with these Pools.
func (p *Pools) Cordon(ctx context.Context, id string, on bool) error {
	return p.wish(ctx, id, func(w backend.Wish) backend.Wish {
		w.Cordoned = on
		return w
	})
}

// Drain gives the container no new leases and has it stopped when its last
// lease has ended; after within, unless that is 0, also if it has some, whose
// holders hear slots.KindSlotLost. It returns at once. Another call may only
// shorten the time. While nobody has the duty to stop containers none is
// stopped; who takes it goes on with what it finds.
func (p *Pools) Drain(ctx context.Context, id string, within time.Duration) error {
	return p.wish(ctx, id, drained(within))
}

// Recycle drains the container and has another one started in its place now,
// also where that makes one more than the template allows while both are
// there. When the orchestrator that has the duty dies at this moment, another
// one is started when the pool needs it.
func (p *Pools) Recycle(ctx context.Context, id string, within time.Duration) error {
	drain := drained(within)
	return p.wish(ctx, id, func(w backend.Wish) backend.Wish {
		w.Replaced = w.Replaced || !w.Drained
		return drain(w)
	})
}

// drained makes a wish one for a drain, which may have begun.
func drained(within time.Duration) func(backend.Wish) backend.Wish {
	var by time.Time
	if within > 0 {
		by = time.Now().Add(within)
	}
	return func(w backend.Wish) backend.Wish {
		w.Drained, w.By = true, backend.Sooner(w.By, by)
		return w
	}
}

// wish changes what is wanted of a container, for all who share it.
func (p *Pools) wish(ctx context.Context, id string, change func(backend.Wish) backend.Wish) error {
	c := p.container(id)
	if c == nil {
		return slots.Errorf(slots.KindNotFound, "container %.80s is not known", id)
	}
	var kept backend.Container
	keeps, ok := p.fleet.(keeper)
	if ok {
		var err error
		if kept, err = keeps.Wish(ctx, id, change); err != nil {
			return err
		}
	}
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	known := c.known
	if ok { // the rest of it comes by the fleet's Watch
		known.Wish, known.Version = kept.Wish, kept.Version
	} else {
		known.Wish = change(known.Wish)
	}
	c.pool.learnLocked(c, known)
	return nil
}

// wishedLocked acts on what is wanted of the container by now.
func (p *pool) wishedLocked(c *container) {
	w := c.known.Wish
	if w.Replaced && !c.replaced {
		c.replaced = true
		if p.duty.Held { // else it is on another one
			p.startLocked(1, time.Now())
		}
	}
	if w.Drained && !c.draining {
		p.drainLocked(c)
	}
}

func (p *pool) drainLocked(c *container) {
	c.draining = true
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
func (c *container) cut(now time.Time) bool {
	by := c.known.Wish.By
	return c.draining && !by.IsZero() && !now.Before(by)
}

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
		p.drainLocked(c)
	}
}

// repair resets a quarantined slot once.
func (p *pool) repair(ctx context.Context, s *slot) {
	ctx, cancel := context.WithTimeout(ctx, p.owner.cfg.ReleaseTimeout)
	defer cancel()
	remote := s.in.link()
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
