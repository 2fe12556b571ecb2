package nomad

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"berth/jobs"
)

// itemEnvVersion names the version of the environment that the item beside it
// has. The job says which it was registered with, where people can read it,
// instead of anything that is made of the values.
const itemEnvVersion = "env_version"

// itemNothing stands in a variable that has nothing to say.
const itemNothing = "nothing"

// readVariables waits until the pool's variables are newer than the index, but
// not much longer than wait, and takes them in. An index of 0 does not wait.
func (p *pool) readVariables(ctx context.Context, after uint64, wait time.Duration) (index uint64, err error) {
	prefix := jobs.VariablePath(p.job)
	q := &api.QueryOptions{WaitIndex: after, WaitTime: wait}
	all, meta, err := p.b.client.Variables().PrefixList(prefix, q.WithContext(ctx))
	if err != nil {
		return 0, fmt.Errorf("list variables below %s: %w", prefix, err)
	}
	seen := map[string]bool{}
	for _, one := range all {
		if one.Path == p.dutyPath() {
			if err := p.readDuty(ctx, one); err != nil {
				return 0, err
			}
		}
		if one.Path != prefix && one.Path != p.demandPath() && !strings.HasPrefix(one.Path, p.wishesPrefix()) && !strings.HasPrefix(one.Path, jobs.ClaimsPath(p.job)) {
			continue
		}
		seen[one.Path] = true
		p.b.mu.Lock()
		known := p.variables[one.Path]
		p.b.mu.Unlock()
		if known != nil && known.ModifyIndex >= one.ModifyIndex {
			continue
		}
		v, _, err := p.b.client.Variables().Peek(one.Path, new(api.QueryOptions).WithContext(ctx))
		if err != nil {
			return 0, fmt.Errorf("read variable %s: %w", one.Path, err)
		}
		if v != nil {
			p.b.mu.Lock()
			p.storeLocked(v)
			p.b.mu.Unlock()
		}
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	maps.DeleteFunc(p.variables, func(path string, v *api.Variable) bool { return !seen[path] && v.ModifyIndex <= meta.LastIndex })
	return meta.LastIndex, nil
}

// storeLocked takes in a variable as it is stored.
func (p *pool) storeLocked(v *api.Variable) {
	if known := p.variables[v.Path]; known != nil && known.ModifyIndex > v.ModifyIndex {
		return
	}
	p.variables[v.Path] = v
	if v.Path == p.demandPath() {
		p.heardDemandLocked(v)
		return
	}
	ofAll := v.Path == jobs.VariablePath(p.job)
	if ofAll {
		switch secret := v.Items[jobs.Secret]; {
		case secret == "":
		case p.secret == "":
			p.secret = secret
		case secret != p.secret && secret != p.next:
			p.next, p.nextAt = secret, time.Now().Add(p.b.config.Rotate/10)
			for _, a := range p.allocs {
				a.rotated = false
			}
		case secret == p.secret:
			p.next = ""
		}
	}
	for id, a := range p.allocs {
		if ofAll || strings.HasSuffix(v.Path, "/"+id[:1]) { // claims and wishes are spread
			p.adoptLocked(a)
		}
	}
	nudge(p.nudge)
}

// rotateLocked has the agents asked whether they take the tokens of the next
// secret, when it is time, and returns how long it is until then; 0: there is
// none.
func (p *pool) rotateLocked(now time.Time) time.Duration {
	if p.next == "" {
		return 0
	}
	if left := p.nextAt.Sub(now); left > 0 {
		return left
	}
	p.nextAt = now.Add(max(p.b.config.Look, p.b.config.Rotate/10))
	next, ask := p.next, map[string]string{}
	for _, c := range p.b.all {
		if a := p.allocs[c.alloc]; c.pool == p && c.up && a != nil && !a.rotated {
			ask[a.id] = a.url
		}
	}
	p.b.work.Go(func() {
		for id, url := range ask {
			if takes(p.b.life, p.b.http, url, tokenOf(next, id)) {
				p.rotated(id, next)
			}
		}
		p.rotatedAll(next)
	})
	return p.nextAt.Sub(now)
}

// rotated is an agent that takes the token of the next secret. The one before
// is good for a while only, so that it is used no more.
func (p *pool) rotated(allocID, next string) {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	a := p.allocs[allocID]
	if a == nil || p.next != next {
		return
	}
	a.rotated = true
	if c := p.ofAllocLocked(allocID); c != nil {
		p.tellLocked(c)
	}
}

// rotatedAll forgets the secret before when no agent needs it any more.
func (p *pool) rotatedAll(next string) {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if p.next != next {
		return
	}
	for _, c := range p.b.all {
		if a := p.allocs[c.alloc]; c.pool == p && c.up && a != nil && !a.rotated {
			return
		}
	}
	p.secret, p.next = p.next, ""
	for _, a := range p.allocs {
		a.rotated = false
	}
	p.b.config.Logger.Info("secret rotated", "job", p.job)
}

// draft is what is to become of a variable: a copy of its items, and the index
// that they are of.
type draft struct {
	path  string
	index uint64 // 0: there is no such variable yet
	items map[string]string
}

// draftLocked begins to change a variable as it is known. Items and index are
// taken at once, so that no write by another orchestrator falls between them.
func (p *pool) draftLocked(path string) draft {
	d := draft{path: path, items: map[string]string{}}
	if v := p.variables[path]; v != nil {
		d.index = v.ModifyIndex
		maps.Copy(d.items, v.Items)
	}
	return d
}

// write stores a variable if nobody has since it was drafted, and takes in what
// is stored then. It is false when somebody has.
func (p *pool) write(ctx context.Context, d draft) (written bool, err error) {
	path, items := d.path, d.items
	if len(items) == 0 { // Nomad takes no variable without items
		items = map[string]string{itemNothing: "-"}
	}
	v := &api.Variable{Path: path, Items: items, ModifyIndex: d.index}
	stored, _, err := p.b.client.Variables().CheckedUpdate(v, new(api.WriteOptions).WithContext(ctx))
	conflict, lost := errors.AsType[api.ErrCASConflict](err)
	switch {
	case lost && conflict.Conflict.Items == nil: // who may not read is not shown them
		return false, fmt.Errorf("write variable %s: Permission denied to read what is there: %w", path, err)
	case lost:
		stored = conflict.Conflict
	case err != nil:
		return false, fmt.Errorf("write variable %s: %w", path, err)
	default:
		stored.Items = items
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	p.storeLocked(stored)
	return !lost, nil
}

// ensureSecret makes sure that the job's variable has a secret and the
// environment, and returns the version of that.
func (p *pool) ensureSecret(ctx context.Context, env map[string]string) (version string, err error) {
	pairs := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		pairs = append(pairs, name+"="+env[name])
	}
	text := strings.Join(pairs, "\n")
	for {
		p.b.mu.Lock()
		secret := p.draftLocked(jobs.VariablePath(p.job))
		p.b.mu.Unlock()
		items := secret.items
		same := items[jobs.Secret] != "" && items[jobs.EnvItem] == text
		if same && items[itemEnvVersion] != "" {
			return items[itemEnvVersion], nil
		}
		items[jobs.Secret] = cmp.Or(items[jobs.Secret], rand.Text()+rand.Text())
		items[jobs.EnvItem], items[itemEnvVersion] = text, strings.ToLower(rand.Text()[:8])
		if _, err := p.write(ctx, secret); err != nil {
			return "", err
		}
	}
}
