package function

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"

	"berth/orchestrator/pool"
	"berth/slots"
)

// Leases are where slots come from. A *pool.Pools is one.
type Leases interface {
	Acquire(ctx context.Context, want pool.Request) (pool.Lease, error)
	Renew(ctx context.Context, ref pool.Ref, ttl time.Duration) (pool.Lease, error)
	Release(ctx context.Context, ref pool.Ref, reset bool) (*slots.Receipt, error)
	Waiting(template string) int // acquires that wait for a free slot
}

// tenant is whom a slot serves: another one never finds it as the first left
// it.
type tenant struct{ template, organization, fingerprint string }

// held is a slot of a tenant.
type held struct {
	tenant tenant
	lease  pool.Lease
	keep   time.Duration // after each use
	reused bool
	rest   *time.Timer // ends the rest of an idle one
}

// warm are the slots that runs have, and those that are kept for the next run
// of the same tenant.
type warm struct {
	leases Leases
	wait   time.Duration   // for a free slot
	ctx    context.Context //nolint:containedctx // of everything that outlives the run that caused it
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	ending context.Context //nolint:containedctx // of runs that wait for a slot
	end    context.CancelFunc

	mu      sync.Mutex // guards what is below; nothing is asked under it
	idle    map[tenant][]*held
	waiting []*waiter      // the one who came first at the beginning
	look    *time.Timer    // for others who wait, while there are idle slots
	leaving map[string]int // releases under way, by template
	closed  bool
}

func newWarm(leases Leases, wait time.Duration) *warm {
	ctx, cancel := context.WithCancel(context.Background())
	ending, end := context.WithCancel(ctx)
	return &warm{leases: leases, wait: wait, ctx: ctx, cancel: cancel, ending: ending, end: end, idle: map[tenant][]*held{}, leaving: map[string]int{}}
}

// slack is how much longer a lease lasts than it should be needed: for what is
// around a run.
const slack = time.Minute

// want is which slot a run needs.
type want struct {
	tenant tenant
	keep   time.Duration
	run    time.Duration // how long it may take
	fresh  bool          // not one that served before
}

// get is a slot for a run. put gives it back.
func (w *warm) get(ctx context.Context, want want) (*held, error) {
	for !want.fresh && ctx.Err() == nil {
		h := w.takeIdle(want.tenant)
		if h == nil {
			break
		}
		if w.fits(ctx, h, want) {
			return h, nil
		}
	}
	h, err := w.acquire(ctx, want, 0)
	if err == nil || slots.AsError(err).Kind != slots.KindPoolExhausted {
		return h, err
	}
	return w.await(ctx, want)
}

// takeIdle takes the slot that was used last.
func (w *warm) takeIdle(t tenant) *held {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.takeIdleLocked(t)
}

func (w *warm) takeIdleLocked(t tenant) *held {
	list := w.idle[t]
	if len(list) == 0 {
		return nil
	}
	h := list[len(list)-1]
	w.dropLocked(h)
	h.reused = true
	return h
}

func (w *warm) dropLocked(h *held) bool {
	list := w.idle[h.tenant]
	for i, one := range list {
		if one == h {
			h.rest.Stop()
			w.idle[h.tenant] = append(list[:i:i], list[i+1:]...)
			if len(list) == 1 {
				delete(w.idle, h.tenant)
			}
			return true
		}
	}
	return false
}

// fits makes the slot that another run has left what this one wants, and
// reports whether it is that.
func (w *warm) fits(ctx context.Context, h *held, want want) bool {
	h.keep = want.keep
	return w.lasts(ctx, h, want.run+slack)
}

// lasts has the lease hold for so long, and reports whether it does. If not,
// the slot is not the caller's any more.
func (w *warm) lasts(ctx context.Context, h *held, d time.Duration) bool {
	if time.Until(h.lease.Slot.ExpiresAt) >= d {
		return true
	}
	renewed, err := w.leases.Renew(ctx, h.lease.Ref(), min(d+h.keep, pool.MaxTTL))
	switch {
	case err == nil:
		h.lease = renewed
		return true
	case ctx.Err() != nil:
		w.put(h, true) // it is the caller that has gone
	default:
		w.release(h)
	}
	return false
}

// hold renews the lease while something goes on for which nobody knows how long
// it takes, until the function that it returns is called.
func (w *warm) hold(ctx context.Context, h *held, d time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	lease, ended := h.lease, make(chan struct{})
	go func() { // ends with stop
		defer close(ended)
		tick := time.NewTicker(slack / 4)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if time.Until(lease.Slot.ExpiresAt) >= d {
				continue
			}
			// Whether it still holds, who asks next is told.
			if renewed, err := w.leases.Renew(ctx, lease.Ref(), min(d+h.keep, pool.MaxTTL)); err == nil {
				lease = renewed
			}
		}
	}()
	return func() {
		cancel()
		<-ended
		h.lease = lease
	}
}

// acquire gets a slot of the pool, which is pristine.
func (w *warm) acquire(ctx context.Context, want want, wait time.Duration) (*held, error) {
	lease, err := w.leases.Acquire(ctx, pool.Request{
		Template: want.tenant.template, Trajectory: "tools/" + want.tenant.organization + "/" + uuid.NewString(),
		Labels: map[string]string{"organization": want.tenant.organization, "fingerprint": want.tenant.fingerprint},
		TTL:    min(want.keep+want.run+slack, pool.MaxTTL), Wait: wait,
	})
	if err != nil {
		return nil, err
	}
	return &held{tenant: want.tenant, lease: lease, keep: want.keep}, nil
}

// await waits for a slot of the pool, or for one that this tenant's runs give
// back, whichever comes first.
func (w *warm) await(ctx context.Context, want want) (*held, error) {
	me := &waiter{want: want, since: time.Now(), given: make(chan *held, 1)}
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil, errClosed
	}
	if !want.fresh {
		// One may have come to rest since the look for it.
		if h := w.takeIdleLocked(want.tenant); h != nil {
			w.mu.Unlock()
			return w.orAnother(ctx, h, want)
		}
	}
	w.waiting = append(w.waiting, me)
	asking, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(w.ending, stop)() //nolint:contextcheck // it is about all who wait
	type answer struct {
		h   *held
		err error
	}
	acquired := make(chan answer, 1)
	w.tasks.Go(func() {
		h, err := w.acquire(asking, want, w.wait)
		acquired <- answer{h, err}
	})
	w.mu.Unlock()
	// Only now: from here on nobody lets a slot rest that could be released.
	w.evict(me)
	var got answer
	select {
	case got = <-acquired:
	case h := <-me.given:
		stop()
		if late := <-acquired; late.err == nil {
			w.put(late.h, true)
		}
		return w.orAnother(ctx, h, want)
	}
	w.mu.Lock()
	w.leaveLocked(me)
	w.mu.Unlock()
	select {
	case h := <-me.given: // both came
		if got.err != nil {
			return w.orAnother(ctx, h, want)
		}
		w.put(h, true)
	default:
	}
	if got.err != nil && ctx.Err() == nil && w.ending.Err() != nil {
		return nil, errClosed
	}
	return got.h, got.err
}

// orAnother is the slot that another run has left, or, when that is not ours any
// more, the next one.
func (w *warm) orAnother(ctx context.Context, h *held, want want) (*held, error) {
	if w.fits(ctx, h, want) {
		return h, nil
	}
	return w.get(ctx, want)
}

var errClosed = slots.Errorf(slots.KindDraining, "orchestrator is shutting down")

// put gives the slot back after a run. It is kept if it is well and nobody else
// waits for a slot of its pool.
func (w *warm) put(h *held, well bool) {
	waiting := 0
	if well {
		waiting = w.leases.Waiting(h.tenant.template)
	}
	w.mu.Lock()
	if w.othersLocked(h.tenant.template, waiting) > 0 {
		well = false // the pool gives it to who came first, runs among them
	}
	if well && !w.closed {
		next, wanted := w.nextLocked(h)
		if next != nil {
			w.leaveLocked(next)
			h.reused = true
			next.given <- h
			w.mu.Unlock()
			return
		}
		well = !wanted
	}
	if !well || w.closed {
		w.mu.Unlock()
		w.release(h)
		return
	}
	h.rest = time.AfterFunc(h.keep, func() {
		w.mu.Lock()
		mine := w.dropLocked(h)
		w.mu.Unlock()
		if mine {
			w.release(h)
		}
	})
	w.idle[h.tenant] = append(w.idle[h.tenant], h)
	if w.look == nil {
		w.look = time.AfterFunc(yielding, w.yield)
	}
	ref, needed := h.lease.Ref(), h.keep+slack/2
	short := time.Until(h.lease.Slot.ExpiresAt) < needed
	if short {
		w.tasks.Go(func() { w.prolong(h, ref, needed) })
	}
	w.mu.Unlock()
}

// prolong has the lease of an idle slot last as long as it is kept.
func (w *warm) prolong(h *held, ref pool.Ref, ttl time.Duration) {
	lease, err := w.leases.Renew(w.ctx, ref, min(ttl, pool.MaxTTL))
	if err != nil {
		return // the next run renews it, or finds that it is over
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.idle[h.tenant] {
		if one == h {
			h.lease = lease
		}
	}
}

// drain releases the idle slots that serve the organisation under another
// fingerprint.
func (w *warm) drain(t tenant) {
	w.mu.Lock()
	var old []*held
	for other, list := range maps.All(w.idle) {
		if other.organization == t.organization && other.template == t.template && other.fingerprint != t.fingerprint {
			old = append(old, list...)
		}
	}
	for _, h := range old {
		w.dropLocked(h)
	}
	w.mu.Unlock()
	for _, h := range old {
		w.release(h)
	}
}

// release has the container make the slot pristine, which it proves, or set it
// aside. It does not wait for that: the pool gives it to nobody before.
func (w *warm) release(h *held) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return // the lease ends by itself, and the container resets the slot
	}
	template := h.tenant.template
	w.leaving[template]++
	w.tasks.Go(func() {
		_, _ = w.leases.Release(w.ctx, h.lease.Ref(), true) // the pool notes what came of it
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.leaving[template]--; w.leaving[template] == 0 {
			delete(w.leaving, template)
		}
	})
}

// close gives back what is kept.
func (w *warm) close() {
	w.mu.Lock()
	var all []*held
	for _, list := range w.idle {
		all = append(all, list...)
	}
	for _, h := range all {
		w.dropLocked(h)
	}
	w.mu.Unlock()
	for _, h := range all {
		w.release(h)
	}
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.tasks.Wait()
	w.cancel()
}
