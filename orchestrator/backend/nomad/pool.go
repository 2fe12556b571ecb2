package nomad

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"berth/orchestrator/backend"
	"berth/slots"
)

// pool is one job and what is known of it. Its fields are guarded by the
// backend's mutex, but those that never change.
type pool struct {
	b     *Backend
	job   string
	nudge chan struct{} // has room for one: there may be something to do

	spec    backend.Spec // of its containers, without an ID
	known   job
	fall    fall
	surplus time.Time // since when the count is higher than is needed
	trouble trouble

	deployment string // that is under way, or ""
	deployed   uint64 // index of the last news of deployments
	listed     uint64 // index of the last list of allocations
	allocs     map[string]*alloc
	over       map[string]uint64 // allocations that have ended, and by which index
	released   map[string]bool   // allocations that are claimed in a variable, and that nobody wants
	waiting    []*container      // that have no allocation yet, in their order

	variables map[string]*api.Variable // by path
	secret    string                   // in use
	next      string                   // that will be, when it is another
	nextAt    time.Time

	duty   duty
	demand demand
	tells  chan struct{} // has room for one: there may be a demand to write
}

// templatePattern are the names of templates that a job's ID can hold.
var templatePattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,40}$`)

// jobID is the job of the template.
func (b *Backend) jobID(template string) string {
	if !templatePattern.MatchString(template) {
		sum := sha256.Sum256([]byte(template))
		template = "x-" + hex.EncodeToString(sum[:8])
	}
	return b.config.Prefix + "-" + template
}

func (b *Backend) newPool(spec backend.Spec) *pool {
	spec.ID = ""
	return &pool{
		b: b, job: b.jobID(spec.Template), nudge: make(chan struct{}, 1), tells: make(chan struct{}, 1), spec: spec.Clone(),
		allocs: map[string]*alloc{}, over: map[string]uint64{}, variables: map[string]*api.Variable{}, released: map[string]bool{},
	}
}

// jobs are the IDs of all jobs, sorted.
func (b *Backend) jobs() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []string
	for job := range b.pools {
		all = append(all, job)
	}
	slices.Sort(all)
	return all
}

// wantLocked notes what containers are to be made of from now on.
func (p *pool) wantLocked(spec backend.Spec) {
	spec.ID = ""
	if !p.spec.Equal(spec) {
		p.spec, p.known.checked = spec.Clone(), false
	}
}

// giveUpLocked forgets a container that never came up.
func (p *pool) giveUpLocked(c *container, err error) {
	p.waiting = slices.DeleteFunc(p.waiting, func(w *container) bool { return w == c })
	delete(p.b.all, c.spec.ID)
	c.err = err
	close(c.begun)
	close(c.over)
	nudge(p.nudge)
}

// upLocked is a container whose claim to the allocation is written.
func (p *pool) upLocked(c *container, a *alloc) {
	p.waiting = slices.DeleteFunc(p.waiting, func(w *container) bool { return w == c })
	c.alloc, c.up, p.trouble.words = a.id, true, ""
	p.tellLocked(c)
	close(c.begun)
}

// tellLocked says what is known of a container that is up. Of one that is being
// stopped there is only its end to tell.
func (p *pool) tellLocked(c *container) {
	if c.ending() {
		return
	}
	a := p.allocs[c.alloc]
	secret := p.secret
	if a.rotated && p.next != "" {
		secret = p.next
	}
	draining, deadline := p.b.leavesLocked(a)
	p.b.feed.Up(backend.Container{
		Draining: draining, Unheard: a.unheard(), Deadline: deadline, Wish: p.wishLocked(c),
		ID: c.spec.ID, Template: c.spec.Template, URL: a.url, Token: tokenOf(secret, a.id), Slots: c.spec.Slots, Started: a.created, Rank: a.index,
	})
}

// downLocked is a container that has ended.
func (p *pool) downLocked(c *container, reason string) {
	if c.ending() {
		reason = "stopped"
	}
	delete(p.b.all, c.spec.ID)
	p.b.ended[c.spec.ID] = end{reason, time.Now()}
	p.b.feed.Down(c.spec.ID, reason)
	close(c.over)
	nudge(p.nudge)
}

// ofAllocLocked is the container that has the allocation, or nil.
func (p *pool) ofAllocLocked(id string) *container {
	for _, c := range p.b.all {
		if c.pool == p && c.up && c.alloc == id {
			return c
		}
	}
	return nil
}

// applyLocked takes in what is newer about an allocation. fresh tells of a
// change, and not of what has been so for a while.
func (p *pool) applyLocked(a *alloc, fresh bool) {
	if at, ended := p.over[a.id]; ended && a.modify <= at {
		return // a list that is older than the stream, or what is told once more after it
	}
	old := p.allocs[a.id]
	if old != nil {
		if a.modify < old.modify {
			return
		}
		a.ready, a.probed, a.rotated = old.ready, old.probed, old.rotated
		a.moves, a.moved = a.moves || old.moves, old.moved
		if a.unheard() && old.unheard() {
			a.modified = old.modified
		}
	}
	if !a.ended() {
		p.allocs[a.id] = a
		delete(p.over, a.id)
		p.probeLocked(a)
		p.adoptLocked(a)
		return
	}
	_, known := p.over[a.id] // Nomad writes what failed anew when it is to be replaced
	p.over[a.id] = a.modify
	delete(p.allocs, a.id)
	delete(p.released, a.id)
	if c := p.ofAllocLocked(a.id); c != nil {
		p.downLocked(c, "allocation "+a.client+": "+a.words)
		return
	}
	if fresh && !known && a.client == api.AllocClientStatusFailed && a.desired == api.AllocDesiredStatusRun {
		p.trouble.told(a.words)
		if len(p.waiting) > 0 {
			c := p.waiting[0]
			p.giveUpLocked(c, slots.Errorf(slots.KindInternal, "start container %s: %s", c.spec.ID, a.words))
		}
	}
	nudge(p.nudge)
}

// adoptLocked looks up whose the allocation is by now.
func (p *pool) adoptLocked(a *alloc) {
	id := p.claimLocked(a.id)
	if id == "" || p.released[a.id] || a.url == "" || p.secret == "" || p.b.ended[id].reason != "" {
		return
	}
	c := p.b.all[id]
	switch {
	case c == nil:
		c = newContainer(p, p.adoptedLocked(id))
		p.b.all[id] = c
		p.upLocked(c, a)
	case c.pool == p && !c.up:
		p.upLocked(c, a)
	case c.alloc == a.id:
		p.tellLocked(c)
	}
}

// goneLocked ends what was not among the allocations that were listed at the
// index.
func (p *pool) goneLocked(seen map[string]bool, index uint64) {
	for id, a := range p.allocs {
		if seen[id] || a.modify > index {
			continue
		}
		delete(p.allocs, id)
		if c := p.ofAllocLocked(id); c != nil {
			p.downLocked(c, "allocation is gone")
		}
	}
	maps.DeleteFunc(p.over, func(id string, at uint64) bool { return !seen[id] && at <= index })
}

// probeLocked asks an allocation that runs until it answers, once at a time.
func (p *pool) probeLocked(a *alloc) {
	if a.ready || a.probed || a.url == "" || a.client != api.AllocClientStatusRunning || p.b.closed {
		return
	}
	a.probed = true
	id, url := a.id, a.url
	p.b.work.Go(func() {
		for p.asks(id) && !answers(p.b.life, p.b.http, url) {
			pause(p.b.life, p.b.config.Look)
		}
		p.b.mu.Lock()
		defer p.b.mu.Unlock()
		if a := p.allocs[id]; a != nil {
			a.ready, a.probed = p.b.life.Err() == nil && a.client == api.AllocClientStatusRunning, false
			p.probeLocked(a)
		}
		nudge(p.nudge)
	})
}

// asks reports whether it is still of interest that the allocation answers.
func (p *pool) asks(id string) bool {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	a := p.allocs[id]
	return p.b.life.Err() == nil && a != nil && a.client == api.AllocClientStatusRunning
}

// pause waits, but not longer than ctx.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
