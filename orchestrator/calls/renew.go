package calls

import (
	"context"
	"maps"
	"sync"
	"time"

	"berth/orchestrator/pool"
	"berth/slots"
)

// uses are the leases that trajectories called on since they were renewed.
type uses struct {
	mu     sync.Mutex // guards what is below; no container is asked under it
	byRef  map[pool.Ref]*use
	pace   time.Duration        // between two looks at what is due
	hurry  chan struct{}        // holds a token when a lease came that wants another pace
	doubts map[string]time.Time // when trajectories heard that their lease is over
}

// use is one lease in use.
type use struct {
	running int           // calls under way
	called  bool          // since it was renewed
	renewed time.Time     // granted or renewed last, or earlier
	every   time.Duration // between two renewals
}

func (u *uses) doubt(trajectory string, ref pool.Ref) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.doubts[trajectory] = time.Now()
	delete(u.byRef, ref)
}

func (u *uses) doubted(trajectory string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, ok := u.doubts[trajectory]
	return ok
}

func (u *uses) trust(trajectory string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.doubts, trajectory)
}

// Renewing a lease with every call would cost as much as the call. So it is
// renewed when a tenth of its time has passed since the last renewal, beside
// the calls; only one that little time is left of is renewed before a call.
const (
	renewParts = 10
	shortParts = 5
)

// use notes that the lease is in use until done is called.
func (c *Carrier) use(ctx context.Context, lease pool.Lease) (done func(), err error) {
	ref, ttl := lease.Ref(), lease.Slot.TTL
	u := c.uses.begin(ref, lease.Slot.ExpiresAt.Add(-ttl), min(c.every(), ttl/renewParts))
	done = func() { c.uses.end(u) }
	if c.uses.left(u, ttl) > ttl/shortParts {
		return done, nil
	}
	if err := c.renew(ctx, ref, u); err != nil && over(err) {
		done()
		return nil, err
	}
	return done, nil // if it did not come through, the call may
}

// over reports whether the error says that the lease is no more.
func over(err error) bool {
	switch slots.AsError(err).Kind {
	case slots.KindSlotLost, slots.KindLeaseExpired, slots.KindFenced:
		return true
	default:
		return false
	}
}

// every is how long a lease in use goes without being renewed, unless it is a
// short one.
func (c *Carrier) every() time.Duration { return min(c.config.Idle/renewParts, time.Minute) }

func (u *uses) begin(ref pool.Ref, granted time.Time, every time.Duration) *use {
	u.mu.Lock()
	defer u.mu.Unlock()
	one := u.byRef[ref]
	if one == nil {
		one = &use{renewed: granted}
		u.byRef[ref] = one
	}
	if one.every != every {
		one.every = every // its holder may have renewed it with another TTL
		if every < u.pace {
			select {
			case u.hurry <- struct{}{}:
			default:
			}
		}
	}
	one.running++
	one.called = true
	return one
}

func (u *uses) end(one *use) {
	u.mu.Lock()
	defer u.mu.Unlock()
	one.running--
	one.called = true
}

func (u *uses) left(one *use, ttl time.Duration) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	return time.Until(one.renewed.Add(ttl))
}

func (c *Carrier) renew(ctx context.Context, ref pool.Ref, one *use) error {
	now := time.Now()
	_, err := c.pools.Renew(ctx, ref, 0)
	if err != nil {
		return err
	}
	c.uses.mu.Lock()
	defer c.uses.mu.Unlock()
	one.renewed = now
	return nil
}

// atOnce is how many renewals are under way at once.
const atOnce = 32

// Run renews the leases of trajectories that call, until ctx ends.
func (c *Carrier) Run(ctx context.Context) {
	next := time.NewTimer(c.uses.look(c.every()))
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.uses.hurry:
			next.Reset(c.uses.look(c.every())) // shorter each time, so a look is never put off for long
			continue
		case <-next.C:
		}
		room := make(chan struct{}, atOnce)
		var renewals sync.WaitGroup
		for ref, one := range c.uses.due(time.Now(), c.config.Idle) {
			room <- struct{}{}
			renewals.Go(func() {
				defer func() { <-room }()
				if err := c.renew(ctx, ref, one); err != nil && ctx.Err() == nil {
					// The trajectory hears it with its next call.
					c.log.Debug("lease was not renewed", "lease", ref.String(), "error", err)
				}
			})
		}
		renewals.Wait()
		next.Reset(c.uses.look(c.every()))
	}
}

// look is how long until the next look at what is due: at most every, and as
// long as the most urgent lease allows.
func (u *uses) look(every time.Duration) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, one := range u.byRef {
		every = min(every, one.every)
	}
	u.pace = max(every, time.Millisecond)
	return u.pace
}

// due takes those that are to be renewed, and forgets those that are not used.
func (u *uses) due(now time.Time, idle time.Duration) map[pool.Ref]*use {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.doubts, func(_ string, since time.Time) bool { return now.Sub(since) > idle })
	due := map[pool.Ref]*use{}
	for ref, one := range u.byRef {
		switch {
		case one.running == 0 && !one.called:
			delete(u.byRef, ref)
		case now.Sub(one.renewed) >= one.every:
			one.called = false
			due[ref] = one
		}
	}
	return due
}
