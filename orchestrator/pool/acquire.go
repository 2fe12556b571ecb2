package pool

import (
	"context"
	"crypto/rand"
	"maps"
	"time"

	"berth/sandboxd/api"
	"berth/slots"
)

// Acquire gets a slot for the trajectory. One that holds a slot of the
// template already gets that one back, renewed, and while one acquire of a
// trajectory waits, another joins it; both unless Further is set.
//
// Who finds no free slot waits its turn; when the wait is over the error is a
// slots.KindPoolExhausted whose cause is a *QueueError. When ctx ends, the
// caller leaves the queue and what was won for it is given back.
func (p *Pools) Acquire(ctx context.Context, want Request) (Lease, error) {
	pool, err := p.pool(want.Template)
	if err != nil {
		return Lease{}, err
	}
	if err := checkRequest(want, p.cfg.MaxWait); err != nil {
		return Lease{}, err
	}
	if err := p.Ready(ctx); err != nil {
		return Lease{}, err
	}
	start := time.Now()
	lease, err := pool.acquire(ctx, want, start)
	p.cfg.Observer.Acquired(want.Template, time.Since(start), err)
	return lease, err
}

func checkRequest(want Request, maxWait time.Duration) error {
	if want.Wait < 0 || want.Wait > maxWait {
		return slots.Errorf(slots.KindBadRequest, "wait must be 0 to %v, got %v", maxWait, want.Wait)
	}
	if err := checkTTL(want.TTL); err != nil {
		return err
	}
	if n := len(want.Trajectory); n == 0 || n > slots.MaxTrajectoryBytes {
		return slots.Errorf(slots.KindBadRequest, "trajectory must have 1 to %d bytes, got %d", slots.MaxTrajectoryBytes, n)
	}
	return checkLabels(want.Labels)
}

// checkTTL refuses what may be over before its holder hears of it. 0 means a
// default. The longest is for the container to say.
func checkTTL(ttl time.Duration) error {
	if ttl != 0 && ttl < MinTTL {
		return slots.Errorf(slots.KindBadRequest, "ttl must be at least %v, or 0 for the default, got %v", MinTTL, ttl)
	}
	return nil
}

func (p *pool) acquire(ctx context.Context, want Request, now time.Time) (Lease, error) {
	var w *waiter
	for {
		p.mu.Lock()
		var held *slot
		if want.Further {
			held = p.namedLocked(want, now)
		} else {
			w = p.asking[want.Trajectory]
			held = p.firstLocked(want.Trajectory, now)
		}
		if w != nil || held == nil {
			break
		}
		lease := leaseOf(held)
		p.mu.Unlock()
		if lease, ok, err := p.again(ctx, held, lease, want.TTL); ok {
			return lease, err
		}
	}
	if w != nil {
		w.callers++
		if until := now.Add(want.Wait); until.After(w.until) {
			w.until = until
		}
	} else {
		w = p.beginLocked(want, now)
	}
	p.mu.Unlock()

	select {
	case <-w.done:
	case <-ctx.Done():
		if !p.leave(w) {
			return Lease{}, left(ctx, "wait for a slot")
		}
	}
	return w.lease, w.err
}

// again gives a trajectory the lease that it has, renewed, but never made
// shorter: if the answer is lost, the holder goes by what it knows. It is not
// ok when the container does not know the lease any more, or was silent until
// the lease was over.
func (p *pool) again(ctx context.Context, s *slot, held Lease, ttl time.Duration) (lease Lease, ok bool, err error) {
	ttl = max(orDefault(ttl, held.Slot.TTL), time.Until(held.Slot.ExpiresAt))
	renewed, err := p.renew(ctx, s.in, held.Ref(), ttl)
	if err == nil {
		return renewed, true, nil
	}
	switch slots.AsError(err).Kind {
	case slots.KindFenced, slots.KindLeaseExpired, slots.KindSlotLost, slots.KindNotFound:
	case slots.KindContainerUnreachable:
		if time.Now().Before(held.Slot.ExpiresAt) {
			return held, true, nil // the trajectory's as long as nobody knows better
		}
	default:
		return Lease{}, true, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.lease != nil && s.lease.Token == held.Slot.Token && s.indexed {
		p.unindexLocked(s)
		s.in.look()
	}
	return Lease{}, false, nil
}

// beginLocked asks for a slot, or queues.
func (p *pool) beginLocked(want Request, now time.Time) *waiter {
	w := &waiter{
		want: want, number: p.queue.number(), since: now, until: now.Add(want.Wait), callers: 1, done: make(chan struct{}),
	}
	w.want.Labels = maps.Clone(want.Labels)
	w.want.TTL = orDefault(want.TTL, p.template.TTL)
	if !want.Further {
		p.asking[want.Trajectory] = w
	}
	if p.owner.ctx.Err() != nil {
		p.endLocked(w, nil, errClosed())
		return w
	}
	if p.queue.len() >= p.owner.cfg.QueueMax {
		p.endLocked(w, nil, p.exhaustedLocked(w, now))
		return w
	}
	p.queueLocked(w, now)
	return w
}

// queueLocked puts the waiter at its place in the queue and lets whoever is
// first go. A waiter whose time is over may only stay if it went at once.
func (p *pool) queueLocked(w *waiter, now time.Time) {
	p.queue.add(w)
	p.matchLocked()
	switch {
	case w.queued == nil:
	case p.owner.ended():
		p.endLocked(w, nil, errClosed())
	case !now.Before(w.until):
		p.endLocked(w, nil, p.exhaustedLocked(w, now))
	case w.bound == nil:
		w.bound = time.AfterFunc(w.until.Sub(now), func() { p.expireWait(w) })
		p.owner.rescale()
	}
}

// expireWait refuses a waiter whose time is over. One that is being served is
// refused when that fails.
func (p *pool) expireWait(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	switch {
	case w.over():
	case now.Before(w.until): // somebody joined who waits longer
		w.bound.Reset(w.until.Sub(now))
	case w.queued != nil:
		p.endLocked(w, nil, p.exhaustedLocked(w, now))
	}
}

// leave takes one caller from the waiter. It reports whether the waiter has
// ended, so that there is something to take along after all.
func (p *pool) leave(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.over() {
		return true
	}
	w.callers--
	if w.callers == 0 && w.queued != nil {
		p.endLocked(w, nil, slots.Errorf(slots.KindInterrupted, "everybody has left"))
	}
	return false
}

// endLocked answers the waiter's callers.
func (p *pool) endLocked(w *waiter, s *slot, err error) {
	if w.queued != nil {
		p.queue.remove(w)
	}
	if w.bound != nil {
		w.bound.Stop()
	}
	if p.asking[w.want.Trajectory] == w {
		delete(p.asking, w.want.Trajectory)
	}
	if err == nil {
		w.lease = leaseOf(s)
		p.waits.add(time.Since(w.since))
	}
	w.err = err
	close(w.done)
}

// matchLocked lets those who wait ask the containers with room, the first who
// came at the fullest.
func (p *pool) matchLocked() {
	for len(p.open) > 0 {
		w := p.queue.first()
		if w == nil {
			return
		}
		c := p.open[0]
		c.asked++
		c.placeLocked()
		p.queue.remove(w)
		if !p.owner.spawn(func(ctx context.Context) { p.grant(ctx, w, c) }) {
			c.asked--
			c.placeLocked()
			p.endLocked(w, nil, errClosed())
		}
	}
}

// grant asks the container for a slot for the waiter.
func (p *pool) grant(ctx context.Context, w *waiter, c *container) {
	p.mu.Lock()
	remote, name := c.remote, rand.Text()
	p.granting[name] = true
	p.mu.Unlock()
	want := api.LeaseRequest{
		Trajectory: w.want.Trajectory, TTLSeconds: w.want.TTL.Seconds(),
		Labels: make(map[string]string, len(w.want.Labels)+ownLabels),
	}
	maps.Copy(want.Labels, w.want.Labels)
	want.Labels[labelGrant] = name
	if w.want.Further {
		want.Labels[labelFurther] = "1"
	}
	if w.want.Key != "" {
		want.Labels[labelKey] = w.want.Key
	}
	ctx, cancel := context.WithTimeout(ctx, p.owner.cfg.GrantTimeout)
	defer cancel()
	began := time.Now()
	lease, err := remote.AcquireAny(ctx, want)

	p.mu.Lock()
	defer p.mu.Unlock()
	c.asked--
	delete(p.granting, name)
	switch {
	case c.removed:
		p.againLocked(w, time.Now())
	case err != nil:
		p.refusedLocked(w, c, name, err)
	default:
		p.grantedLocked(w, c, lease, began)
	}
	c.placeLocked()
	p.matchLocked()
}

// grantedLocked hands the lease over, or back when nobody wants it any more.
func (p *pool) grantedLocked(w *waiter, c *container, lease slots.Lease, began time.Time) {
	now := time.Now()
	c.failures, c.seen = 0, now
	s := c.slotLocked(lease.SlotID)
	s.touchLocked()
	if s.lease != nil && s.lease.Token > lease.Token || now.Sub(began) >= lease.TTL {
		// The answer took so long that the lease may be over already.
		p.againLocked(w, now)
		c.look()
		return
	}
	if s.lease != nil && s.lease.Token != lease.Token {
		p.overLocked(s, now)
	}
	p.holdLocked(s, lease, now)
	if w.callers == 0 || p.owner.ctx.Err() != nil {
		p.endLocked(w, nil, errClosed())
		// Nobody has seen the token, so nothing was done in the slot.
		p.releaseLocked(s, lease.Token, false)
		return
	}
	p.endLocked(w, s, nil)
}

// refusedLocked has the waiter try elsewhere, unless the request is at fault.
func (p *pool) refusedLocked(w *waiter, c *container, name string, err error) {
	e, now := slots.AsError(err), time.Now()
	switch {
	case e.Kind == slots.KindBadRequest || e.Kind == slots.KindTooLarge:
		p.endLocked(w, nil, err)
		return
	case e.Kind == slots.KindDraining:
		c.closing = true
	case e.Executed != slots.ExecutedNever:
		// It may have given a lease that nobody knows of.
		c.doubts[name] = now.Add(w.want.TTL + p.owner.cfg.GrantTimeout)
	}
	c.restLocked(now)
	c.placeLocked()
	p.againLocked(w, now)
}

// againLocked lets the waiter go on, or ends it.
func (p *pool) againLocked(w *waiter, now time.Time) {
	switch {
	case p.owner.ctx.Err() != nil:
		p.endLocked(w, nil, errClosed())
	case w.callers == 0:
		p.endLocked(w, nil, slots.Errorf(slots.KindInterrupted, "everybody has left"))
	default:
		p.queueLocked(w, now)
	}
}
