package function

import (
	"slices"
	"time"
)

// waiter is a run that waits for a slot: of the pool, or one that a run of the
// same tenant gives back.
type waiter struct {
	want
	since    time.Time
	promised time.Time // when a slot was last released for it
	given    chan *held
}

// Between tenants who wait for the slots of one pool. To give a slot to another
// one takes a reset and the start of an interpreter; to give it to the same one
// again and again would leave the others without.
const (
	overtaking = 200 * time.Millisecond // for so long runs of the same tenant go before those who came earlier
	promising  = 5 * time.Second        // what was released for one who waits reaches him by then, or never
)

// yielding is how often it is asked who waits beside the runs, while slots rest.
const yielding = 250 * time.Millisecond

// evict releases a slot that is of no use to the run: its reset makes room.
func (w *warm) evict(wanted *waiter) {
	w.mu.Lock()
	oldest := w.dropOldestLocked(func(t tenant) bool {
		return t.template == wanted.tenant.template && (t != wanted.tenant || wanted.fresh)
	})
	if oldest != nil {
		wanted.promised = time.Now()
	}
	w.mu.Unlock()
	if oldest != nil {
		w.release(oldest)
	}
}

// yield releases idle slots for those who wait for one of the same pool, and
// are no runs: they came when it was full, and could wait for as long as slots
// rest.
func (w *warm) yield() {
	wanted := map[string]int{} // by template
	w.mu.Lock()
	if w.closed || len(w.idle) == 0 {
		w.look = nil
		w.mu.Unlock()
		return
	}
	w.look = time.AfterFunc(yielding, w.yield)
	for t := range w.idle {
		wanted[t.template] = 0
	}
	w.mu.Unlock()
	for template := range wanted {
		wanted[template] = w.leases.Waiting(template)
	}
	var out []*held
	w.mu.Lock()
	for template, n := range wanted {
		for range w.othersLocked(template, n) {
			if oldest := w.dropOldestLocked(func(t tenant) bool { return t.template == template }); oldest != nil {
				out = append(out, oldest)
			}
		}
	}
	w.mu.Unlock()
	for _, h := range out {
		w.release(h)
	}
}

// othersLocked is how many of those who wait for a slot of the pool are no runs,
// and have none on its way to them.
func (w *warm) othersLocked(template string, waiting int) int {
	for _, one := range w.waiting {
		if one.tenant.template == template {
			waiting--
		}
	}
	return max(0, waiting-w.leaving[template])
}

// dropOldestLocked takes the slot that was idle longest out of those of such
// tenants. It is nil when they have none.
func (w *warm) dropOldestLocked(of func(tenant) bool) *held {
	var oldest *held
	for t, list := range w.idle {
		if of(t) && (oldest == nil || list[0].lease.Slot.ExpiresAt.Before(oldest.lease.Slot.ExpiresAt)) {
			oldest = list[0]
		}
	}
	if oldest != nil {
		w.dropLocked(oldest)
	}
	return oldest
}

// leaveLocked ends the wait, if it has not ended.
func (w *warm) leaveLocked(who *waiter) {
	if i := slices.Index(w.waiting, who); i >= 0 {
		w.waiting = slices.Delete(w.waiting, i, i+1)
	}
}

// nextLocked is who gets the slot as it is. It is nobody when the slot has to
// go back to its pool, which it does for the one who waits there longest, and
// nobody when nobody waits.
func (w *warm) nextLocked(h *held) (next *waiter, wanted bool) {
	var other *waiter
	now := time.Now()
	for _, one := range w.waiting {
		switch {
		case one.tenant.template != h.tenant.template:
		case one.tenant == h.tenant && !one.fresh:
			if next == nil {
				next = one
			}
		case other == nil && now.Sub(one.promised) > promising:
			other = one
		}
		wanted = wanted || one.tenant.template == h.tenant.template
	}
	if other != nil && (next == nil || other.since.Before(next.since) && now.Sub(other.since) >= overtaking) {
		other.promised = now
		return nil, true
	}
	return next, wanted
}
