package pool

import (
	"context"
	"time"

	"berth/orchestrator/backend"
	"berth/slots"
)

// finder is a Fleet that may not have heard yet of a container that another
// orchestrator has started, and leases of which callers bring here.
type finder interface {
	// Find reports whether the container is up, by what holds when it is called
	// or later. Watch tells of it then. The error is that nobody can say.
	Find(ctx context.Context, id string) (up bool, err error)
}

// findTimeout bounds how long a caller waits for a container to be found.
const findTimeout = 5 * time.Second

// find finds the container of a lease. One that is not known here may be a new
// one of another orchestrator, so that only the fleet can say that it is gone.
func (p *Pools) find(ctx context.Context, ref Ref) (*container, error) {
	if err := p.Ready(ctx); err != nil {
		return nil, err
	}
	if c := p.container(ref.Container); c != nil {
		return c, nil
	}
	if finds, ok := p.fleet.(finder); ok {
		bounded, cancel := context.WithTimeout(ctx, findTimeout)
		defer cancel()
		up, err := finds.Find(bounded, ref.Container)
		if up && err == nil {
			var c *container
			if c, err = p.await(bounded, ref.Container); err == nil {
				return c, nil
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil, left(ctx, "look for the container")
		case err != nil:
			return nil, slots.Errorf(slots.KindContainerUnreachable, "container %.80s is not known here yet: %w", ref.Container, err).WithExecuted(slots.ExecutedNever)
		}
	}
	return nil, errGone(ref).WithExecuted(slots.ExecutedNever)
}

// await waits until a container that is up has been taken up here.
func (p *Pools) await(ctx context.Context, id string) (*container, error) {
	for {
		p.mu.RLock()
		c, came := p.containers[id], p.came
		p.mu.RUnlock()
		if c != nil {
			return c, nil
		}
		select {
		case <-came:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Locate is the container that the lease is in, whose slots have been read, or
// were found unreachable. The error is slots.KindSlotLost when it is gone or
// was not reached for longer than the lease lasts, and
// slots.KindContainerUnreachable when nobody can say that now.
func (p *Pools) Locate(ctx context.Context, ref Ref) (backend.Container, error) {
	c, err := p.find(ctx, ref)
	if err != nil {
		return backend.Container{}, err
	}
	select {
	case <-c.read:
	case <-c.gone:
	case <-ctx.Done():
		return backend.Container{}, left(ctx, "wait for the container to be read")
	}
	if err := p.Lost(ref, slots.ExecutedNever); err != nil {
		return backend.Container{}, err
	}
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	return c.shown(), nil
}
