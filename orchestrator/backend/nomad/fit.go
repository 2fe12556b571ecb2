package nomad

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"berth/jobs"
	"berth/orchestrator/backend"
	"berth/slots"
)

// run brings the job to what is wanted, again and again.
func (p *pool) run(ctx context.Context) {
	wait := time.Duration(0)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.nudge:
		case <-timer.C:
		}
		again, err := p.fit(ctx)
		if err != nil && ctx.Err() == nil {
			wait = min(max(2*wait, p.b.config.Retry), 50*p.b.config.Retry)
			p.b.config.Logger.Warn("cannot bring the job to what is wanted", "job", p.job, "error", err)
			p.b.mu.Lock()
			p.trouble = err.Error()
			p.read = false // it may have been the index
			p.failForGoodLocked(err)
			p.b.mu.Unlock()
			pause(ctx, wait)
			nudge(p.nudge)
			continue
		}
		wait = 0
		timer.Reset(cmp.Or(again, time.Hour))
	}
}

// failForGoodLocked ends the starts that wait, when it does not help to ask
// again.
func (p *pool) failForGoodLocked(err error) {
	switch statusOf(err) {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden:
	default:
		return
	}
	for _, c := range slices.Clone(p.waiting) {
		p.giveUpLocked(c, slots.Errorf(slots.KindInternal, "start container %s: %w", c.spec.ID, err))
	}
}

// fit does once what there is to do, and returns when there will be more; 0:
// when something happens.
func (p *pool) fit(ctx context.Context) (again time.Duration, err error) {
	p.b.mu.Lock()
	again = p.rotateLocked(time.Now())
	if p.floor >= 0 {
		left := time.Until(p.shrunkAt.Add(believed * p.b.config.Blocked))
		if left <= 0 {
			p.floor, left = -1, 0
		}
		again = soonest(again, left)
	}
	if !p.leadsLocked() {
		p.b.mu.Unlock()
		return again, nil // until the lock is ours, which nudges
	}
	wanted, checked, until := len(p.waiting) > 0, p.checked, p.duty.until
	p.b.mu.Unlock()
	// Nothing that is begun now is to have an effect when another one leads.
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	if wanted && !checked {
		if err := p.ensure(ctx); err != nil {
			return 0, err
		}
	}
	if err := p.know(ctx); err != nil {
		return 0, err
	}
	if err := p.claim(ctx); err != nil {
		return 0, err
	}
	if err := p.moveOn(ctx); err != nil {
		return 0, err
	}
	soon, err := p.scale(ctx)
	if err == nil {
		p.b.mu.Lock()
		p.trouble = ""
		p.b.mu.Unlock()
	}
	return soonest(again, soon), err
}

// believed is for how many times Config.Blocked a lowered count is believed to
// be on its way, when nothing tells that it has come to be.
const believed = 10

// soonest is the shorter of two times, where 0 is none.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// know reads the job, unless what is known of it holds.
func (p *pool) know(ctx context.Context) error {
	p.b.mu.Lock()
	read := p.read
	p.b.mu.Unlock()
	if read {
		return nil
	}
	return p.readJob(ctx)
}

// readJob reads the count and the index of the job.
func (p *pool) readJob(ctx context.Context) error {
	job, _, err := p.b.client.Jobs().Info(p.job, new(api.QueryOptions).WithContext(ctx))
	if err != nil && statusOf(err) != http.StatusNotFound {
		return fmt.Errorf("read job %s: %w", p.job, err)
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	p.read, p.exists, p.count = true, false, 0
	if job == nil {
		p.modify, p.checked = 0, false
		return nil
	}
	if job.JobModifyIndex != nil {
		p.modify = *job.JobModifyIndex
	}
	p.exists = job.Stop == nil || !*job.Stop
	p.checked = p.checked && p.exists
	for _, group := range job.TaskGroups {
		if group.Name != nil && *group.Name == jobs.Group && group.Count != nil && p.exists {
			p.count = *group.Count
		}
	}
	p.made, p.madeEnv = job.Meta[jobs.MetaSpec], job.Meta[jobs.MetaEnv]
	return nil
}

// adoptedLocked is the spec of a container that was found.
func (p *pool) adoptedLocked(id string) backend.Spec {
	spec := p.spec.Clone()
	var made backend.Spec
	plain := spec.Clone()
	plain.Env = nil
	if json.Unmarshal([]byte(p.made), &made) == nil && made.Slots > 0 && !made.Equal(plain) {
		spec = made
	}
	spec.ID = id
	return spec
}

// ensure registers the job, or a new version of it, unless it is what is
// wanted already.
func (p *pool) ensure(ctx context.Context) error {
	p.b.mu.Lock()
	spec := p.spec.Clone()
	p.b.mu.Unlock()
	version, err := p.ensureSecret(ctx, spec.Env)
	if err != nil {
		return err
	}
	if err := p.readJob(ctx); err != nil {
		return err
	}
	text, err := spec.Meta()
	if err != nil {
		return err
	}
	p.b.mu.Lock()
	same := p.exists && p.made == text && p.madeEnv == version
	p.checked = same
	count, modify := p.count, p.modify
	if !p.exists {
		count = p.needLocked()
	}
	p.b.mu.Unlock()
	if same {
		return nil
	}
	job, err := jobs.Sandboxd(p.b.template(p.job, spec, count, map[string]string{
		jobs.MetaTemplate: spec.Template, jobs.MetaSpec: text, jobs.MetaEnv: version,
	}))
	if err != nil {
		p.b.mu.Lock()
		defer p.b.mu.Unlock()
		for _, c := range slices.Clone(p.waiting) {
			p.giveUpLocked(c, slots.Errorf(slots.KindBadRequest, "start container %s: %w", c.spec.ID, err))
		}
		return nil
	}
	answer, _, err := p.b.client.Jobs().EnforceRegister(job, modify, new(api.WriteOptions).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("register job %s: %w", p.job, err)
	}
	p.b.config.Logger.Info("job registered", "job", p.job, "count", count, "warnings", answer.Warnings)
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	p.exists, p.read, p.checked = true, true, p.spec.Equal(spec)
	p.count, p.modify, p.made, p.madeEnv = count, answer.JobModifyIndex, text, version
	p.unplaced = ""
	return nil
}

// template is what the job of the spec is made of.
func (b *Backend) template(job string, spec backend.Spec, count int, meta map[string]string) jobs.Template {
	t := b.config.Job
	t.Namespace, t.Region = cmp.Or(t.Namespace, b.config.API.Namespace), cmp.Or(t.Region, b.config.API.Region)
	t.Job, t.Count, t.Slots, t.Isolation, t.NoNetwork, t.Meta = job, count, spec.Slots, spec.Isolation, !spec.Network, meta
	t.Longest, t.SlotMemory, t.SlotPids = spec.MaxTimeout, spec.Limits.MemoryBytes, spec.Limits.Pids
	t.SlotCPUs, t.SlotDisk = spec.Limits.CPUs, spec.Limits.DiskBytes
	return t
}

// claim gives allocations that answer to starts that wait: those of low index
// first, so that the top comes free again.
func (p *pool) claim(ctx context.Context) error {
	p.b.mu.Lock()
	// What is above the count is not to stay: Nomad may have left it there because
	// it did not hear of another one, and stops it when it does.
	floor := p.count
	if p.floor >= 0 {
		floor = min(floor, p.floor)
	}
	var free []*alloc
	for _, a := range p.allocs {
		if _, drained := p.b.nodes[a.node]; !drained && a.free(floor) && p.takenLocked(a.id) == "" && p.ofAllocLocked(a.id) == nil {
			free = append(free, a)
		}
	}
	slices.SortFunc(free, func(a, b *alloc) int { return cmp.Or(cmp.Compare(a.index, b.index), strings.Compare(a.id, b.id)) })
	claims := map[string]*container{}
	changed := map[string]draft{}
	for id := range p.released {
		if path := p.claimsPath(id); p.claimLocked(id) != "" {
			changed[path] = p.heldLocked(path)
		}
	}
	for i, c := range p.waiting {
		if i == len(free) {
			break
		}
		claims[free[i].id] = c
		path := p.claimsPath(free[i].id)
		if _, ok := changed[path]; !ok {
			changed[path] = p.heldLocked(path)
		}
		changed[path].items[free[i].id] = c.spec.ID
	}
	p.b.mu.Unlock()
	for path, claimed := range changed {
		written, err := p.write(ctx, claimed)
		if err != nil {
			return err
		}
		p.b.mu.Lock()
		for id, c := range claims {
			if written && p.claimsPath(id) == path {
				p.claimedLocked(id, c)
			}
		}
		p.b.mu.Unlock()
		if !written {
			nudge(p.nudge) // what is stored is known now
		}
	}
	return nil
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

// takenLocked is the container that others have claimed the allocation for.
func (p *pool) takenLocked(allocID string) string {
	if p.released[allocID] {
		return ""
	}
	return p.claimLocked(allocID)
}

// heldLocked is what the variable of claims should hold: what it does without
// the claims to what has ended and what was given back.
func (p *pool) heldLocked(path string) draft {
	held := p.draftLocked(path)
	maps.DeleteFunc(held.items, func(allocID, id string) bool {
		gone := p.allocs[allocID] == nil && held.index < p.listed
		return gone || p.released[allocID] || p.b.ended[id] != ""
	})
	return held
}

// needLocked is how high the count has to be: above all that is claimed and
// not to end, and enough for the starts that wait. What Nomad was told to stop
// or to move it does not count any more, and has another one in its place.
func (p *pool) needLocked() int {
	top, n, held := 0, len(p.waiting), map[string]bool{}
	for _, c := range p.b.all {
		if c.pool != p || !c.up || !c.stopped.IsZero() {
			continue
		}
		a := p.allocs[c.alloc]
		if a != nil && (a.moves || !a.counted()) {
			continue
		}
		n++
		if a != nil {
			top = max(top, a.index+1)
			held[a.id] = true
		}
	}
	for _, a := range p.allocs {
		if a.unheard() && a.counted() && !held[a.id] {
			n++ // nobody can have it, and Nomad puts no other in its place
		}
	}
	return max(top, n)
}

// plan is what is to be done about the count.
type plan struct {
	need   int
	change bool
	above  []*container  // that end with the count
	alone  []*container  // that are stopped by themselves
	again  time.Duration // when to plan again; 0: when something happens
}

// planLocked plans what Nomad has to do.
func (p *pool) planLocked(now time.Time) plan {
	out := plan{need: p.needLocked()}
	wait := func(d time.Duration) { out.again = soonest(out.again, max(d, 0)) }
	for _, c := range p.b.all {
		a := p.allocs[c.alloc]
		if c.pool != p || !c.up || c.stopped.IsZero() || a == nil {
			continue
		}
		patient := c.stopped.Add(p.b.config.Blocked).Sub(now)
		switch {
		case !c.told && !a.counted(): // it ends without us
		case c.told && a.unheard(): // Nomad remembers it
		case c.told && (!a.counted() || patient > 0):
			wait(patient)
		case c.told, a.index < out.need, patient <= 0:
			out.alone = append(out.alone, c)
		default:
			out.above = append(out.above, c)
			wait(patient)
		}
	}
	if out.need >= p.count {
		p.surplus = time.Time{}
		out.change = out.need > p.count
		return out
	}
	if p.surplus.IsZero() {
		p.surplus = now
	}
	if left := p.surplus.Add(p.b.config.Spare).Sub(now); len(out.above) == 0 && left > 0 {
		wait(left)
		return out
	}
	if p.blockedLocked() {
		wait(p.b.config.Retry)
		return out
	}
	out.change = true
	return out
}

// blockedLocked reports whether Nomad might lower the count otherwise than
// from the top, or would not at all.
func (p *pool) blockedLocked() bool {
	indices := map[int]bool{}
	n := 0
	for _, a := range p.allocs {
		if !a.counted() {
			continue
		}
		if a.moves || a.unheard() || indices[a.index] || a.index < 0 {
			return true
		}
		indices[a.index] = true
		n++
	}
	return p.deployment != "" || n > p.count
}

// scale has Nomad raise or lower the count, and stop single allocations.
func (p *pool) scale(ctx context.Context) (again time.Duration, err error) {
	if err := p.know(ctx); err != nil {
		return 0, err
	}
	p.b.mu.Lock()
	p.unplacedLocked(time.Now())
	exists := p.exists
	do := p.planLocked(time.Now())
	if stops := do.change && do.need < p.count || len(do.alone) > 0; stops && exists {
		p.b.mu.Unlock()
		if err := p.confirm(ctx); err != nil {
			return 0, err
		}
		p.b.mu.Lock()
		do = p.planLocked(time.Now())
	}
	count, modify := p.count, p.modify
	if exists && do.change && do.need < count {
		p.floor, p.shrunk, p.shrunkAt = do.need, modify, time.Now()
	}
	if p.unplaced != "" && len(p.waiting) > 0 {
		do.again = soonest(do.again, p.b.config.Retry)
	}
	p.b.mu.Unlock()
	if !exists {
		return do.again, nil
	}
	for _, c := range do.alone {
		if err := p.stopAlone(ctx, c); err != nil {
			return 0, err
		}
	}
	if !do.change {
		return do.again, nil
	}
	request := &api.ScalingRequest{
		Count: new(int64(do.need)), Target: map[string]string{"Job": p.job, "Group": jobs.Group}, JobModifyIndex: modify,
		Message: fmt.Sprintf("from %d: %d are needed", count, do.need),
	}
	answer, _, err := p.b.client.Jobs().ScaleWithRequest(p.job, request, new(api.WriteOptions).WithContext(ctx))
	if isBlocked(err) && do.need > count {
		switch over, raised := p.raise(ctx, do.need, modify); {
		case isConflict(raised):
			err = raised
		case raised == nil && over != nil:
			answer, err = over, nil
		}
	}
	if status := statusOf(err); isConflict(err) || status >= 400 && status < 500 {
		p.b.mu.Lock()
		p.floor = -1 // it was refused; of any other failure nobody knows what came of it
		p.b.mu.Unlock()
	}
	switch {
	case isBlocked(err): // its end is told
		p.b.config.Logger.Debug("a deployment blocks scaling", "job", p.job, "count", do.need)
		return p.b.config.Blocked / 10, nil
	case isConflict(err):
		p.b.mu.Lock()
		p.read = false
		p.b.mu.Unlock()
		return p.b.config.Retry, nil
	case err != nil:
		return 0, fmt.Errorf("scale job %s to %d: %w", p.job, do.need, err)
	}
	p.b.config.Logger.Info("job scaled", "job", p.job, "from", count, "to", do.need)
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	p.count, p.modify, p.surplus = do.need, max(p.modify, answer.JobModifyIndex), time.Time{}
	for _, c := range do.above {
		c.told = true
	}
	return do.again, nil
}

// confirm reads all claims and the lock, before something is stopped: what was
// heard of them may be old. The error is errMoved when another may lead.
func (p *pool) confirm(ctx context.Context) error {
	if _, err := p.readVariables(ctx, 0, 0); err != nil {
		return err
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if p.duty.moved || !p.leadsLocked() {
		return errMoved
	}
	return nil
}

// Nomad's words, by which alone such refusals can be told from others. No job's
// ID can hold them, for they have spaces.
const (
	wordsBlocked  = "job scaling blocked due to active deployment"
	wordsConflict = api.RegisterEnforceIndexErrPrefix
)

// isBlocked reports whether Nomad does not scale the job because of a deployment.
func isBlocked(err error) bool { return says(err, http.StatusBadRequest, wordsBlocked) }

// isConflict reports whether somebody else has changed the job, so that nothing
// was done.
func isConflict(err error) bool { return says(err, http.StatusInternalServerError, wordsConflict) }

// says reports whether Nomad has answered with the status and the words.
func says(err error, status int, words string) bool {
	answer, ok := errors.AsType[api.UnexpectedResponseError](err)
	return ok && answer.StatusCode() == status && strings.Contains(answer.Body(), words)
}

// stopAlone has Nomad stop one allocation, and put another in its place.
func (p *pool) stopAlone(ctx context.Context, c *container) error {
	p.b.mu.Lock()
	id := c.alloc
	p.b.mu.Unlock()
	if err := p.stopAlloc(ctx, id); err != nil {
		return err
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	c.told, c.stopped = true, time.Now()
	return nil
}

func (p *pool) stopAlloc(ctx context.Context, id string) error {
	_, err := p.b.client.Allocations().Stop(&api.Allocation{ID: id}, new(api.QueryOptions).WithContext(ctx))
	if err != nil && statusOf(err) != http.StatusNotFound {
		return fmt.Errorf("stop allocation %s: %w", id, err)
	}
	return nil
}

// unplacedLocked ends the starts that Nomad has found no room for.
func (p *pool) unplacedLocked(now time.Time) {
	if p.unplaced == "" {
		return
	}
	coming := 0
	for _, a := range p.allocs {
		if a.counted() && !a.unheard() && p.ofAllocLocked(a.id) == nil {
			coming++
		}
	}
	for _, c := range slices.Clone(p.waiting[min(coming, len(p.waiting)):]) {
		if now.Sub(c.since) >= p.b.config.Unplaced {
			p.giveUpLocked(c, slots.Errorf(slots.KindPoolExhausted, "start container %s: %s", c.spec.ID, p.unplaced))
		}
	}
}
