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

// wishOld is after how long what was wanted of a container that nothing is
// known of is forgotten: one that is new may not be known yet.
const wishOld = 10 * time.Minute

// kept is what an item says, by its container's ID.
type kept struct {
	backend.Wish
	At time.Time `json:"at"` // when it was written, by its writer's clock
}

// wishesPath is the variable that holds what operators want of the job's
// containers.
func (p *pool) wishesPath() string { return jobs.VariablePath(p.job) + "/wishes" }

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
	for kept := false; !kept; {
		b.mu.Lock()
		c := b.all[id]
		if c == nil || !c.up {
			b.mu.Unlock()
			break
		}
		p := c.pool
		was := p.wishLocked(id)
		wish := change(was)
		wish.By = wish.By.Round(0).UTC() // as it is read again
		all := p.wishesLocked(time.Now())
		b.mu.Unlock()
		kept = wish == was
		if kept {
			continue
		}
		var err error
		if kept, err = p.keep(ctx, all, id, wish); err != nil {
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
func (p *pool) keep(ctx context.Context, all draft, id string, wish backend.Wish) (written bool, err error) {
	text, err := json.Marshal(kept{wish, time.Now().UTC()})
	if err != nil {
		return false, err
	}
	all.items[id] = string(text)
	written, err = p.write(ctx, all)
	if err != nil && ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	return written, err
}

// wishLocked is what operators want of the container. What cannot be read is
// nothing.
func (p *pool) wishLocked(id string) backend.Wish {
	v := p.variables[p.wishesPath()]
	if v == nil || v.Items[id] == "" {
		return backend.Wish{}
	}
	one, err := readWish(v.Items[id])
	if err != nil {
		p.b.config.Logger.Debug("what is wanted of a container cannot be read", "container", id, "error", err)
	}
	return one.Wish
}

func readWish(text string) (kept, error) {
	var one kept
	if err := json.Unmarshal([]byte(text), &one); err != nil {
		return kept{}, err
	}
	one.By = one.By.UTC()
	return one, nil
}

// wishesLocked are the items of the variable without those of containers that
// are gone.
func (p *pool) wishesLocked(now time.Time) draft {
	all := p.draftLocked(p.wishesPath())
	claimed := map[string]bool{}
	for id := range p.allocs {
		claimed[p.claimLocked(id)] = true
	}
	maps.DeleteFunc(all.items, func(id, text string) bool {
		one, err := readWish(text)
		return !claimed[id] && (err != nil || now.Sub(one.At) > wishOld)
	})
	return all
}
