package nomad

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// attendant keeps the lock of a pool and hears of its variables, by turns: a
// query waits until the lock is due, so that both take one connection and two
// requests for each renewal.
type attendant struct {
	p       *pool
	index   uint64        // of the variables that are known
	due     time.Time     // when there is something to do about the lock
	reading time.Duration // pause after variables could not be read
	locking time.Duration // pause after the lock could not be taken or renewed
}

// attend is an attendant at work, until ctx ends.
func (p *pool) attend(ctx context.Context) {
	a := attendant{p: p, index: 1, due: time.Now(), reading: p.b.config.Retry, locking: p.b.config.Retry}
	for ctx.Err() == nil {
		if !time.Now().Before(a.due) {
			a.due = time.Now().Add(a.lock(ctx))
			continue
		}
		a.hear(ctx)
		if p.dutyMoved() {
			a.due = time.Now()
		}
	}
}

// hear learns what other orchestrators and operators write, until the lock is
// due.
func (a *attendant) hear(ctx context.Context) {
	c := a.p.b.config
	// A server that does not answer must not cost the lock.
	bounded, cancel := context.WithDeadline(ctx, a.due)
	defer cancel()
	wait := max(waitFor(time.Until(a.due)), time.Millisecond)
	over := time.Now().Add(wait)
	next, err := a.p.readVariables(bounded, a.index, wait)
	switch {
	case bounded.Err() != nil: // it was broken off
	case err == nil && next <= a.index && !time.Now().Before(over): // nothing has happened
		a.due = time.Now()
	case err != nil:
		c.Logger.Warn("cannot read variables", "job", a.p.job, "error", err)
		pause(bounded, a.reading)
		a.reading = min(2*a.reading, 50*c.Retry)
		return
	case next <= a.index: // nothing new, or an older state
		pause(bounded, c.Retry)
	}
	if err == nil {
		a.index, a.reading = max(next, 1), c.Retry
	}
}

// waitFor is how long Nomad is asked to wait so that it answers within d: it
// adds up to a sixteenth of its own, and is told milliseconds.
func waitFor(d time.Duration) time.Duration { return (d * 15 / 16).Truncate(time.Millisecond) }

// lock takes or renews the lock, and returns when to look after it again.
func (a *attendant) lock(ctx context.Context) time.Duration {
	p, c := a.p, a.p.b.config
	p.b.mu.Lock()
	held := p.duty.id != ""
	p.b.mu.Unlock()
	if held {
		return a.renew(ctx)
	}
	err := p.takeDuty(ctx)
	switch {
	case err == nil:
		a.locking = c.Retry
		return renewAfter(c.lease())
	case errors.Is(err, errHeld):
		a.locking = c.Retry
		p.b.mu.Lock()
		p.trouble.request = "" // it was about taking the lock, or of when it was ours
		p.b.mu.Unlock()
		return c.LockTTL // as long as a holder that has died can have it
	case ctx.Err() != nil:
		return 0
	}
	c.Logger.Warn("cannot take the lock of the job", "job", p.job, "error", err)
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	p.trouble.request = err.Error()
	p.failForGoodLocked(err)
	return a.later()
}

// renewAfter is when a lock is renewed. What is left of its lease is for trying
// again.
func renewAfter(lease time.Duration) time.Duration { return lease * 4 / 5 }

// renew renews the lock, or loses it.
func (a *attendant) renew(ctx context.Context) time.Duration {
	p, c := a.p, a.p.b.config
	err := p.renewDuty(ctx, time.Now())
	p.b.mu.Lock()
	left := time.Until(p.duty.until)
	p.b.mu.Unlock()
	status := statusOf(err)
	switch {
	case err == nil:
		a.locking = c.Retry
		return renewAfter(c.lease())
	case ctx.Err() != nil:
		return 0
	case left <= 0 || status >= 400 && status < 500 && status != http.StatusTooManyRequests:
		p.loseDuty(err)
		a.locking = c.Retry
		return c.Retry
	}
	c.Logger.Debug("cannot renew the lock of the job", "job", p.job, "error", err)
	return min(a.later(), left)
}

// later is the next pause after a request about the lock that failed.
func (a *attendant) later() time.Duration {
	wait := a.locking
	a.locking = min(2*wait, 50*a.p.b.config.Retry)
	return wait
}
