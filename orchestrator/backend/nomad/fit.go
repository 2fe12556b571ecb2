package nomad

import (
	"cmp"
	"context"
	"time"
)

// run brings the job to what is wanted, again and again.
func (p *pool) run(ctx context.Context) {
	wait := time.Duration(0)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.nudge:
		case <-timer.C:
		}
		again, err := p.fit(ctx)
		if err != nil && ctx.Err() == nil {
			wait = min(max(2*wait, p.b.config.Retry), 50*p.b.config.Retry)
			p.b.config.Logger.Warn("cannot bring the job to what is wanted", "job", p.job, "error", err)
			p.b.mu.Lock()
			p.trouble.request = err.Error()
			p.known.read = false // it may have been the index
			p.failForGoodLocked(err)
			p.b.mu.Unlock()
			pause(ctx, wait)
			nudge(p.nudge)
			continue
		}
		wait = 0
		timer.Reset(cmp.Or(again, time.Hour))
	}
}

// fit does once what there is to do, and returns when there will be more; 0:
// when something happens.
func (p *pool) fit(ctx context.Context) (again time.Duration, err error) {
	p.b.mu.Lock()
	now := time.Now()
	again = soonest(p.rotateLocked(now), p.fall.expire(now, believed*p.b.config.Blocked))
	leads, until := p.leadsLocked(), p.duty.until
	p.b.mu.Unlock()
	if !leads {
		return again, nil // until the lock is ours, which nudges
	}
	// Nothing that is begun now is to have an effect when another one leads.
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	for _, do := range []func(context.Context) error{p.ensure, p.know, p.claim, p.moveOn} {
		if err := do(ctx); err != nil {
			return 0, err
		}
	}
	soon, err := p.scale(ctx)
	if err != nil {
		return 0, err
	}
	p.b.mu.Lock()
	p.trouble.request = ""
	p.b.mu.Unlock()
	return soonest(again, soon), nil
}

// soonest is the shorter of two times, where 0 is none.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}
