package nomad

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"berth/jobs"
	"berth/orchestrator/backend"
	"berth/slots"
)

// wishTimeout bounds how long what an operator wants may take to be written.
const wishTimeout = 10 * time.Second

// kept is what an item says, by its container's allocation.
type kept struct {
	backend.Wish
	ID string `json:"id"` // of the container: the allocation may have been another's before
}

// wishesPrefix is what the paths of all variables of wishes begin with.
func (p *pool) wishesPrefix() string { return jobs.VariablePath(p.job) + "/wishes/" }

// wishesPath is the variable that has what operators want of the allocation's
// container.
func (p *pool) wishesPath(allocID string) string { return p.wishesPrefix() + allocID[:1] }

// Wish changes what operators want of a container, for all orchestrators: it
// is written where each of them hears of it, and stays until the container is
// gone. change may be called several times, also with what it has returned, and
// has to leave that as it is: who asks again after an error must not change it
// further. The answer is the container as it is known from then on, which may
// be newer than the change. The error is slots.KindNotFound where no such
// container is up, and slots.KindInternal when Nomad did not take it.
func (b *Backend) Wish(ctx context.Context, id string, change func(backend.Wish) backend.Wish) (backend.Container, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, wishTimeout, fmt.Errorf("nomad has not answered in %v", wishTimeout))
	defer cancel()
	for done := false; !done; {
		b.mu.Lock()
		c := b.all[id]
		if c == nil || !c.up {
			b.mu.Unlock()
			break
		}
		p := c.pool
		was := p.wishLocked(c)
		wish := change(was)
		wish.By = wish.By.Round(0).UTC() // as it is read again
		all, alloc := p.wishesLocked(p.wishesPath(c.alloc)), c.alloc
		b.mu.Unlock()
		done = wish == was
		if done {
			continue
		}
		var err error
		if done, err = p.keep(ctx, all, alloc, kept{wish, id}); err != nil {
			return backend.Container{}, slots.Errorf(slots.KindInternal, "keep what is wanted of container %s: %w", id, err)
		}
	}
	if up, ok := b.feed.Get(id); ok { // by the feed alone one can tell what is newer
		return up, nil
	}
	return backend.Container{}, slots.Errorf(slots.KindNotFound, "container %.80s is not up", id)
}

// keep writes all wishes with another one. It is false when somebody has written
// since: there is another state to change then.
func (p *pool) keep(ctx context.Context, all draft, allocID string, one kept) (written bool, err error) {
	text, err := json.Marshal(one)
	if err != nil {
		return false, err
	}
	all.items[allocID] = string(text)
	if one.Wish == (backend.Wish{}) {
		delete(all.items, allocID)
	}
	written, err = p.write(ctx, all)
	if err != nil && ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	return written, err
}

// wishLocked is what operators want of a container that is up. What cannot be
// read is nothing.
func (p *pool) wishLocked(c *container) backend.Wish {
	v := p.variables[p.wishesPath(c.alloc)]
	if v == nil || v.Items[c.alloc] == "" {
		return backend.Wish{}
	}
	var one kept
	if err := json.Unmarshal([]byte(v.Items[c.alloc]), &one); err != nil {
		p.b.config.Logger.Debug("what is wanted of a container cannot be read", "container", c.spec.ID, "error", err)
		return backend.Wish{}
	}
	if one.ID != c.spec.ID {
		return backend.Wish{}
	}
	one.By = one.By.UTC()
	return one.Wish
}

// wishesLocked is the variable without what was wanted of containers that are
// gone.
func (p *pool) wishesLocked(path string) draft {
	all := p.draftLocked(path)
	maps.DeleteFunc(all.items, func(allocID, _ string) bool {
		_, over := p.over[allocID]
		return over || p.allocs[allocID] == nil && all.index <= p.listed
	})
	return all
}
