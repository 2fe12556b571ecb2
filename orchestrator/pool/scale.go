package pool

import (
	"context"
	"crypto/rand"
	"strings"
	"time"

	"berth/orchestrator/autoscale"
	"berth/orchestrator/backend"
	"berth/slots"
)

// settling is how long a decision that should not wait does wait, so that many
// reasons make one.
const settling = 10 * time.Millisecond

// rescale makes the next decision come at once. It never blocks.
func (p *Pools) rescale() {
	select {
	case p.scaled <- struct{}{}:
	default:
	}
}

// scale decides about the number of containers again and again.
func (p *Pools) scale(ctx context.Context) {
	if p.Ready(ctx) != nil {
		return
	}
	tick := time.NewTicker(p.cfg.ScaleEvery)
	defer tick.Stop()
	for {
		for _, name := range p.names {
			p.pools[name].scale()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-p.scaled:
			pause(ctx, settling)
		}
	}
}

// scale decides once.
func (p *pool) scale() {
	now := time.Now()
	duty := p.owner.fleet.Duty(p.template.Name)
	p.mu.Lock()
	moved := p.dutyLocked(duty)
	here := backend.Demand{Containers: p.readLocked()}
	if !duty.Held {
		here.Waiting = p.queue.len() + p.refused
	}
	for trajectory, e := range p.ended {
		if now.Sub(e.at) > p.owner.cfg.Remember {
			delete(p.ended, trajectory)
		}
	}
	d := autoscale.Decision{}
	if duty.Held {
		d = autoscale.Decide(p.existLocked(now), p.template.policy(), now)
	}
	p.refused = 0
	if now.Before(p.trouble.Next) {
		d.Start = 0
	}
	p.startLocked(d.Start, now)
	for _, id := range d.Drain {
		p.shrank = now
		p.drainLocked(p.containers[id])
	}
	p.mu.Unlock()
	if asks, ok := p.owner.fleet.(asker); ok && duty.Shared {
		asks.Ask(p.template.Name, here)
	}
	if moved && duty.Shared {
		p.owner.cfg.Log.Info("duty to scale the pool", "template", p.template.Name, "held", duty.Held, "holder", duty.Holder)
	}
	if d.Start > 0 || len(d.Drain) > 0 {
		p.owner.cfg.Log.Info("pool scaled", "template", p.template.Name, "start", d.Start, "drain", d.Drain, "reason", d.Reason)
		p.owner.cfg.Observer.Scaled(p.template.Name, d.Start, len(d.Drain))
	}
}

// demandSettles is how long after a container has come others that have not read
// it yet may tell of callers whom it serves by now: they say at most once a second
// how many wait.
const demandSettles = 3 * time.Second

// readLocked is how many containers have been read, so that nobody waits who
// could have a slot of them.
func (p *pool) readLocked() (n int) {
	for _, c := range p.containers {
		if !c.readAt.IsZero() {
			n++
		}
	}
	return n
}

// existLocked is what there is, for a decision.
func (p *pool) existLocked(now time.Time) autoscale.Stats {
	s := autoscale.Stats{Starting: len(p.starting), Queue: p.queue.len() + p.refused, Grew: p.grew, Shrank: p.shrank}
	for _, d := range p.duty.Demand {
		if d.Containers >= len(p.containers) || now.Sub(p.came) >= demandSettles {
			s.Queue += d.Waiting
		}
	}
	for _, c := range p.containers {
		if c.leaving() {
			continue
		}
		one := autoscale.Container{ID: c.id, Slots: len(c.slots), Leased: c.leased + c.asked, Free: c.spare(), Empty: c.empty, Rank: c.known.Rank, Unheard: c.known.Unheard}
		if one.Leased > 0 || c.known.Unheard { // nothing is done to it before it is back
			one.Empty = time.Time{}
		}
		s.Containers = append(s.Containers, one)
	}
	return s
}

// spare is how many slots the container adds to those that are free. One that
// was not read yet, or not again since a request failed, is taken for good: a
// decision that lasts minutes should not hang on a moment.
func (c *container) spare() int {
	switch {
	case c.silent || c.closing || c.waits():
		return 0
	case c.readAt.IsZero():
		return c.known.Slots
	}
	return max(0, c.free-c.asked)
}

// leads is an error when it is not on this orchestrator any more to start and
// stop containers.
func (p *pool) leads() error {
	if d := p.owner.fleet.Duty(p.template.Name); !d.Held {
		return slots.Errorf(slots.KindConflict, "another orchestrator scales pool %s: %s", p.template.Name, d.Holder)
	}
	return nil
}

// startLocked starts containers.
func (p *pool) startLocked(n int, now time.Time) {
	for range n {
		id := p.template.Name + "-" + strings.ToLower(rand.Text()[:12])
		p.grew = now
		p.starting[id], p.starts[id] = true, false
		if !p.owner.spawn(func(ctx context.Context) { p.start(ctx, id) }) {
			delete(p.starting, id)
			delete(p.starts, id)
		}
	}
}

// start has the fleet start a container, and waits for it.
func (p *pool) start(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, p.owner.cfg.StartTimeout)
	defer cancel()
	err := p.leads()
	var started backend.Container
	if err == nil {
		started, err = p.owner.fleet.Start(ctx, p.template.Spec(id))
	}
	if err == nil {
		err = p.adopt(started)
	}
	p.mu.Lock()
	if err == nil && p.starts[id] {
		err = slots.Errorf(slots.KindContainerUnreachable, "it has ended already")
	}
	delete(p.starting, id)
	delete(p.starts, id)
	p.startedLocked(err, time.Now())
	p.mu.Unlock()
	if p.owner.ctx.Err() != nil {
		return
	}
	p.owner.cfg.Observer.Started(p.template.Name, err)
	if err != nil {
		p.owner.cfg.Log.Error("container not started", "container", id, "error", slots.AsError(err))
	}
}
