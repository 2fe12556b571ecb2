package nomad

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/hashicorp/nomad/api"

	"berth/jobs"
	"berth/orchestrator/backend"
)

// node is a machine, as far as it matters here: whether it is drained.
type node struct {
	ID            string
	ModifyIndex   uint64
	DrainStrategy *struct{ ForceDeadline time.Time } // nil: it is not; no deadline: the zero time
}

// whole is the time without what is lost of it on some ways and not on others.
func whole(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return time.Unix(t.Unix(), 0)
}

// listNodes reads which machines are drained. An orchestrator that may not know
// of machines learns of a drain when it ends its containers.
func (b *Backend) listNodes(ctx context.Context) error {
	b.mu.Lock()
	blind := b.blind
	b.mu.Unlock()
	if blind {
		return nil
	}
	// A filter cannot ask for a drain itself, but what is drained takes no work.
	q := &api.QueryOptions{Filter: `SchedulingEligibility == "ineligible"`}
	drained, meta, err := b.client.Nodes().List(q.WithContext(ctx))
	if statusOf(err) == http.StatusForbidden {
		b.config.Logger.Warn("machines cannot be read, so that their drains are known late: the policy lacks node read")
		b.mu.Lock()
		defer b.mu.Unlock()
		b.blind = true
		return nil
	}
	if err != nil {
		return fmt.Errorf("list machines that are drained: %w", err)
	}
	there := map[string]bool{}
	for _, stub := range drained {
		if !stub.Drain {
			continue
		}
		there[stub.ID] = true
		if b.knows(stub) {
			continue
		}
		one, _, err := b.client.Nodes().Info(stub.ID, new(api.QueryOptions).WithContext(ctx))
		if statusOf(err) == http.StatusNotFound {
			continue
		}
		if err != nil {
			return fmt.Errorf("read machine %s: %w", stub.ID, err)
		}
		known := node{ID: one.ID, ModifyIndex: one.ModifyIndex}
		if one.DrainStrategy != nil {
			known.DrainStrategy = &struct{ ForceDeadline time.Time }{one.DrainStrategy.ForceDeadline}
		}
		b.mu.Lock()
		b.nodeLocked(known)
		b.mu.Unlock()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, known := range b.nodes {
		if !there[id] && known.ModifyIndex <= meta.LastIndex {
			b.nodeLocked(node{ID: id, ModifyIndex: meta.LastIndex})
		}
	}
	return nil
}

// knows reports whether nothing is new about the machine.
func (b *Backend) knows(stub *api.NodeListStub) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.nodes[stub.ID].ModifyIndex >= stub.ModifyIndex
}

// hearNode takes in an event about a machine. It is read here because the
// client's way of it leaves out what a drain is like.
func (b *Backend) hearNode(e api.Event) error {
	text, err := json.Marshal(e.Payload["Node"])
	if err != nil {
		return unreadable(e, err)
	}
	var one *node
	if err := json.Unmarshal(text, &one); err != nil || one == nil {
		return unreadable(e, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nodeLocked(*one)
	return nil
}

// nodeLocked takes in what is newer about a machine, and tells of the
// containers that are on it.
func (b *Backend) nodeLocked(now node) {
	if now.ModifyIndex < b.nodes[now.ID].ModifyIndex {
		return
	}
	if now.DrainStrategy == nil {
		delete(b.nodes, now.ID)
	} else {
		b.nodes[now.ID] = now
	}
	for _, c := range b.all {
		if a := c.pool.allocs[c.alloc]; c.up && a != nil && a.node == now.ID {
			c.pool.tellLocked(c)
		}
	}
	for _, p := range b.pools {
		nudge(p.nudge)
	}
}

// leavesLocked reports whether the allocation is to end, because it was told to
// or its machine is drained, and when it does all the same. One that Nomad does
// not hear of is not to end, but has a deadline: it is lost then.
func (b *Backend) leavesLocked(a *alloc) (leaves bool, deadline time.Time) {
	drained, ok := b.nodes[a.node]
	if ok {
		deadline = whole(drained.DrainStrategy.ForceDeadline)
	}
	if a.desired != api.AllocDesiredStatusRun {
		return true, backend.Sooner(deadline, whole(a.modified.Add(b.config.Job.Ending())))
	}
	if a.unheard() {
		deadline = backend.Sooner(deadline, whole(a.modified.Add(jobs.LostAfter)))
	}
	return ok || a.moves, deadline
}

// unheard reports whether Nomad does not hear of the allocation's machine. It
// goes on there, if the machine does, and Nomad waits for it: it puts nothing in
// its place, and does not count it when a count is lowered.
func (a *alloc) unheard() bool { return a.client == api.AllocClientStatusUnknown }

// moveOn stops what nobody has claimed on a machine that is drained, so that
// Nomad places it on another one: nothing else would before the deadline.
func (p *pool) moveOn(ctx context.Context) error {
	p.b.mu.Lock()
	var idle []*alloc
	for _, a := range p.allocs {
		_, drained := p.b.nodes[a.node]
		if drained && a.counted() && !a.moved && p.idleLocked(a) {
			idle = append(idle, a)
		}
	}
	p.b.mu.Unlock()
	for _, a := range idle {
		if err := p.stopAlloc(ctx, a.id); err != nil {
			return err
		}
		p.b.mu.Lock()
		if known := p.allocs[a.id]; known != nil {
			known.moved = true
		}
		p.b.mu.Unlock()
	}
	return nil
}
