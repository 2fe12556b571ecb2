package nomad

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"berth/jobs"
)

// claimsPath is the variable that has the allocation's claim.
func (p *pool) claimsPath(allocID string) string {
	return jobs.ClaimsPath(p.job) + allocID[:1]
}

// claimLocked is the ID of the container that the allocation is; "": of none.
func (p *pool) claimLocked(allocID string) string {
	if v := p.variables[p.claimsPath(allocID)]; v != nil {
		return v.Items[allocID]
	}
	return ""
}

// idleLocked reports whether the allocation is no container's, and nobody has
// claimed it for one.
func (p *pool) idleLocked(a *alloc) bool {
	return (p.released[a.id] || p.claimLocked(a.id) == "") && p.ofAllocLocked(a.id) == nil
}

// claim gives allocations that answer to starts that wait, and takes back the
// claims that nobody wants.
func (p *pool) claim(ctx context.Context) error {
	p.b.mu.Lock()
	claims, changed := p.claimsLocked()
	p.b.mu.Unlock()
	for path, held := range changed {
		written, err := p.write(ctx, held)
		if err != nil {
			return err
		}
		if !written {
			nudge(p.nudge) // what is stored is known now
			continue
		}
		p.b.mu.Lock()
		for id, c := range claims {
			if p.claimsPath(id) == path {
				p.claimedLocked(id, c)
			}
		}
		p.b.mu.Unlock()
	}
	return nil
}

// claimsLocked is which allocation is to be whose, and what becomes of the
// variables with that, by their paths.
func (p *pool) claimsLocked() (claims map[string]*container, changed map[string]draft) {
	claims, changed = map[string]*container{}, map[string]draft{}
	held := func(path string) draft {
		if _, ok := changed[path]; !ok {
			changed[path] = p.heldLocked(path)
		}
		return changed[path]
	}
	for id := range p.released {
		if p.claimLocked(id) != "" {
			held(p.claimsPath(id))
		}
	}
	free := p.freeLocked()
	for i, c := range p.waiting[:min(len(free), len(p.waiting))] {
		claims[free[i].id] = c
		held(p.claimsPath(free[i].id)).items[free[i].id] = c.spec.ID
	}
	return claims, changed
}

// freeLocked are the allocations that may be claimed: those of low index first,
// so that the top comes free again.
func (p *pool) freeLocked() (free []*alloc) {
	// What is above the count is not to stay: Nomad may have left it there because
	// it did not hear of another one, and stops it when it does.
	below := p.fall.below(p.known.count)
	for _, a := range p.allocs {
		if _, drained := p.b.nodes[a.node]; !drained && a.free(below) && p.idleLocked(a) {
			free = append(free, a)
		}
	}
	slices.SortFunc(free, func(a, b *alloc) int { return cmp.Or(cmp.Compare(a.index, b.index), strings.Compare(a.id, b.id)) })
	return free
}

// claimedLocked is a claim that was written. Whoever wanted the container may
// have left meanwhile, or the allocation have ended.
func (p *pool) claimedLocked(allocID string, c *container) {
	if p.b.all[c.spec.ID] == c {
		delete(p.released, allocID)
		if a := p.allocs[allocID]; a != nil && !c.up {
			p.upLocked(c, a)
		}
		return
	}
	if p.b.all[c.spec.ID] == nil {
		p.released[allocID] = true
		nudge(p.nudge)
	}
}

// heldLocked is what the variable of claims should hold: what it does without
// the claims to what has ended and what was given back.
func (p *pool) heldLocked(path string) draft {
	held := p.draftLocked(path)
	maps.DeleteFunc(held.items, func(allocID, id string) bool {
		gone := p.allocs[allocID] == nil && held.index < p.listed
		return gone || p.released[allocID] || p.b.ended[id].reason != ""
	})
	return held
}
