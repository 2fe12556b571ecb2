package nomad

import (
	"context"
	"fmt"
	"strings"
	"time"

	"berth/jobs"
)

// findPause is the least time between two readings for those who ask for
// containers that are not known, so that IDs which nobody has given cost Nomad
// no more than that.
const findPause = time.Second

// sought is one reading of Nomad for all who have asked for containers before
// it began.
type sought struct {
	ids  map[string]bool
	done chan struct{} // closed when it has ended
	err  error         // why nothing is known by it; set before done is closed
}

// Find reports whether the container is up. Another orchestrator may have
// started it and given its leases away before anything told of that here: so
// before one is said not to be up that was never heard of, claims and
// allocations are read. List and Watch tell of what was found. The error is that
// nobody can say: Nomad did not answer, or ctx has ended.
func (b *Backend) Find(ctx context.Context, id string) (up bool, err error) {
	b.mu.Lock()
	_, up = b.feed.Get(id)
	if up || b.ended[id].reason != "" {
		b.mu.Unlock()
		return up, nil
	}
	r := b.sought
	if r == nil {
		r = &sought{ids: map[string]bool{}, done: make(chan struct{})}
		b.sought = r
		nudge(b.seeks)
	}
	r.ids[id] = true
	b.mu.Unlock()
	select {
	case <-r.done:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-b.life.Done():
		return false, errClosed
	}
	if r.err != nil {
		return false, r.err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, up = b.feed.Get(id); up || b.ended[id].reason != "" {
		return up, nil
	}
	for _, p := range b.pools {
		if a := p.allocs[p.claimedForLocked(id)]; a != nil {
			return false, fmt.Errorf("allocation %s is claimed for it and not known well enough", a.id)
		}
	}
	return false, nil
}

// seek reads for those who ask, until the backend is closed.
func (b *Backend) seek() {
	for {
		select {
		case <-b.life.Done():
			return
		case <-b.seeks:
		}
		b.mu.Lock()
		r := b.sought
		b.sought = nil // who asks from now on may know of what is newer than this reading
		b.mu.Unlock()
		for _, job := range b.jobs() {
			b.mu.Lock()
			p := b.pools[job]
			b.mu.Unlock()
			if r.err = p.seek(b.life, r.ids); r.err != nil {
				break
			}
		}
		close(r.done)
		pause(b.life, findPause)
	}
}

// seekTimeout bounds one reading of a pool.
const seekTimeout = 10 * time.Second

// seek reads the pool's claims, and its allocations when one that is not known
// is claimed for one of the containers.
func (p *pool) seek(ctx context.Context, ids map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, seekTimeout)
	defer cancel()
	if _, err := p.readVariables(ctx, 0, 0); err != nil {
		return err
	}
	p.b.mu.Lock()
	unknown := false
	for id := range ids {
		if allocID := p.claimedForLocked(id); allocID != "" && p.allocs[allocID] == nil {
			unknown = true
		}
	}
	p.b.mu.Unlock()
	if !unknown {
		return nil
	}
	_, err := p.list(ctx)
	return err
}

// claimedForLocked is the allocation that is claimed for the container; "": none.
func (p *pool) claimedForLocked(id string) string {
	for path, v := range p.variables {
		if !strings.HasPrefix(path, jobs.ClaimsPath(p.job)) {
			continue
		}
		for allocID, of := range v.Items {
			if of == id {
				return allocID
			}
		}
	}
	return ""
}
