package dispatch

import (
	"context"
	"runtime"
	"slices"
	"time"

	"berth/sandboxd/api"
)

const (
	// few is how many calls may be under way beside which each next one is sent
	// at once. It is about as many as keep a small machine busy. As many calls
	// as are under way beyond these are worth a request of their own.
	few = 4
	// patience is the part of the usual time of a call that it may be collected
	// for: one of so many.
	patience = 3
	// usualAtFirst is taken for the usual time until calls have shown theirs.
	usualAtFirst = 8 * time.Millisecond
	// usualWeight and usualDrift are how fast the usual time follows a shorter
	// and a longer one. The ratio makes it stand where one call of five is
	// shorter: many slow calls must not make quick ones wait.
	usualWeight = 4
	usualDrift  = 16
)

// laneKey names a lease on a slot. A slot's next lease has another token, and
// waits for nothing that is left of the last one.
type laneKey struct {
	slotID string
	token  uint64
	leased bool
}

func keyOf(call api.Call) laneKey {
	k := laneKey{slotID: call.SlotID}
	if call.Token != nil {
		k.token, k.leased = *call.Token, true
	}
	return k
}

// lane holds the calls of one lease in their order. Its calls are sent only
// while none of those that were sent before is without answer, except beside
// them in the same batch: that is what keeps the order.
type lane struct {
	key     laneKey
	waiting []*Pending
	sent    int       // calls without answer, all of one batch
	since   time.Time // the first that waits could be sent
}

// enqueueLocked puts a call that has a place into its lane.
func (d *Dispatcher) enqueueLocked(p *Pending, now time.Time) {
	key := keyOf(p.call.Call)
	l := d.lanes[key]
	if l == nil {
		l = &lane{key: key}
		d.lanes[key] = l
	}
	p.lane = l
	l.waiting = append(l.waiting, p)
	d.waiting++
	if l.sent > 0 {
		return
	}
	p.ready = now
	d.readyCalls++
	if len(l.waiting) == 1 {
		l.since = now
		d.ready = append(d.ready, l)
	}
}

// reopenLocked lets the next calls of a lane go once the last of a batch is
// answered.
func (d *Dispatcher) reopenLocked(l *lane, now time.Time) {
	if len(l.waiting) == 0 {
		delete(d.lanes, l.key)
		return
	}
	l.since = now
	for _, p := range l.waiting {
		p.ready = now
	}
	d.ready = append(d.ready, l)
	d.readyCalls += len(l.waiting)
}

// gatherLocked is pumpLocked, but lets every goroutine go first that could: on
// a busy machine those are handlers of requests that have come meanwhile, and
// carriers of answers that make room for more. What they make ready goes in the
// same request. On an idle machine there are none, and it costs nothing.
func (d *Dispatcher) gatherLocked(now time.Time) {
	if d.gathering {
		return
	}
	if d.sent > 0 && d.readyCalls > 0 {
		d.gathering = true
		d.mu.Unlock()
		runtime.Gosched()
		d.mu.Lock()
		d.gathering = false
	}
	d.pumpLocked(now)
}

// pumpLocked sends what is ready, all of it or nothing. It is called after
// every change of what is ready or under way.
func (d *Dispatcher) pumpLocked(now time.Time) {
	if d.readyCalls == 0 {
		return
	}
	left := d.holdLocked() - now.Sub(d.ready[0].since)
	if left > 0 && d.readyCalls < d.sent-few {
		d.timer.Reset(left)
		return
	}
	for len(d.ready) > 0 {
		b := d.formLocked(now)
		p := b.calls[0]
		if b.own = p.carry != nil || len(b.calls) == 1 && p.direct; b.own {
			d.work.Add(1) // of its submitter, who is in take now, or waits for its turn
			if p.carry != nil {
				close(p.turn)
			}
			continue
		}
		d.work.Go(func() { d.carry(b) })
	}
}

// tick is for who has waited long enough.
func (d *Dispatcher) tick() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pumpLocked(time.Now())
}

// holdLocked is how long a call may be collected now.
func (d *Dispatcher) holdLocked() time.Duration { return min(d.usual/patience, d.config.MaxHold) }

// observeLocked learns from the time that a call took in the container.
func (d *Dispatcher) observeLocked(took time.Duration) {
	if took < d.usual {
		d.usual -= (d.usual - took) / usualWeight
		return
	}
	// One call of an hour is one call that was longer, no more.
	d.usual += min(took-d.usual, d.usual+time.Millisecond) / usualDrift
}

// formLocked takes a batch of what is ready: whole lanes as far as they fit,
// those first that wait longest.
func (d *Dispatcher) formLocked(now time.Time) *batch {
	ctx, cancel := context.WithCancelCause(d.term)
	b := &batch{ctx: ctx, cancel: cancel, done: make(chan struct{})}
	var bytes int64
	d.ready = slices.DeleteFunc(d.ready, func(l *lane) bool {
		n := 0
		for _, p := range l.waiting {
			if len(b.calls) > 0 && (len(b.calls) >= d.config.MaxBatch || bytes+p.size > d.config.MaxBytes || p.carry != nil || b.calls[0].carry != nil) {
				break
			}
			bytes += p.size
			p.batch, p.sent = b, now
			b.calls = append(b.calls, p)
			n++
		}
		if n == 0 {
			return false
		}
		d.readyCalls -= len(l.waiting)
		l.waiting = slices.Delete(l.waiting, 0, n)
		l.sent = n
		return true
	})
	n := len(b.calls)
	b.left, b.wanted = n, n
	d.waiting -= n
	d.sent += n
	d.requests++
	d.calls += uint64(n)
	return b
}
