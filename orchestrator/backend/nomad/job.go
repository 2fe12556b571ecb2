package nomad

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/hashicorp/nomad/api"

	"berth/jobs"
	"berth/orchestrator/backend"
	"berth/slots"
)

// job is a job as Nomad has it, as far as that is known. The backend's mutex
// guards it.
type job struct {
	read    bool // the rest is as Nomad has it: no change has been heard of since
	checked bool // it is made of what its containers are to be made of from now on
	exists  bool
	count   int
	index   uint64 // for compare-and-set
	spec    string // what it says that it was made of

	made *jobs.Template // that it was made of, as far as it tells; nil: it does not
}

// learn takes in what was read; nil: there is no such job.
func (j *job) learn(now *api.Job) {
	j.read, j.exists, j.count = true, false, 0
	if now == nil {
		j.index, j.checked, j.made = 0, false, nil
		return
	}
	if now.JobModifyIndex != nil {
		j.index = *now.JobModifyIndex
	}
	j.exists = now.Stop == nil || !*now.Stop
	j.checked = j.checked && j.exists
	for _, group := range now.TaskGroups {
		if group.Name != nil && *group.Name == jobs.Group && group.Count != nil && j.exists {
			j.count = *group.Count
		}
	}
	j.spec, j.made = now.Meta[jobs.MetaSpec], nil
	if made, err := jobs.TemplateOf(now); err == nil && j.exists {
		j.made = &made
	}
}

// know reads the job, unless what is known of it holds.
func (p *pool) know(ctx context.Context) error {
	p.b.mu.Lock()
	read := p.known.read
	p.b.mu.Unlock()
	if read {
		return nil
	}
	return p.readJob(ctx)
}

// readJob reads what the job is like.
func (p *pool) readJob(ctx context.Context) error {
	now, _, err := p.b.client.Jobs().Info(p.job, new(api.QueryOptions).WithContext(ctx))
	if err != nil && statusOf(err) != http.StatusNotFound {
		return fmt.Errorf("read job %s: %w", p.job, err)
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	p.known.learn(now)
	return nil
}

// adoptedLocked is the spec of a container that was found.
func (p *pool) adoptedLocked(id string) backend.Spec {
	spec := p.spec.Clone()
	var made backend.Spec
	plain := spec.Clone()
	plain.Env = nil
	if json.Unmarshal([]byte(p.known.spec), &made) == nil && made.Slots > 0 && !made.Equal(plain) {
		spec = made
	}
	spec.ID = id
	return spec
}

// ensure registers the job, or a new version of it, when a container is wanted
// and it is not made of what that is to be. The environment is no part of that:
// what is started from now on reads it from the variable, and what runs goes on
// as it is.
func (p *pool) ensure(ctx context.Context) error {
	p.b.mu.Lock()
	spec, exists, wanted := p.spec.Clone(), p.known.exists, len(p.waiting) > 0 && !p.known.checked
	p.b.mu.Unlock()
	if !wanted && !exists {
		return nil
	}
	version, err := p.ensureSecret(ctx, spec.Env)
	if err != nil || !wanted {
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
	p.known.checked = p.known.exists && p.known.spec == text
	known := p.known
	if !known.exists {
		known.count = p.needLocked()
	}
	p.b.mu.Unlock()
	if known.checked {
		return nil
	}
	known.spec = text
	return p.register(ctx, spec, known, version)
}

// register has the job made of the spec, with the version of the environment,
// unless it has another index by now. What the spec does not say stays as it
// runs: somebody may have deployed another image since this orchestrator was
// told one.
func (p *pool) register(ctx context.Context, spec backend.Spec, as job, env string) error {
	t := p.b.config.Job
	if as.made != nil {
		t = *as.made
	}
	made, err := jobs.Sandboxd(p.b.template(t, p.job, spec, as.count, map[string]string{
		jobs.MetaTemplate: spec.Template, jobs.MetaSpec: as.spec, jobs.MetaEnv: env,
	}))
	if err != nil {
		p.b.mu.Lock()
		defer p.b.mu.Unlock()
		for _, c := range slices.Clone(p.waiting) {
			p.giveUpLocked(c, slots.Errorf(slots.KindBadRequest, "start container %s: %w", c.spec.ID, err))
		}
		return nil
	}
	answer, _, err := p.b.client.Jobs().EnforceRegister(made, as.index, new(api.WriteOptions).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("register job %s: %w", p.job, err)
	}
	p.b.config.Logger.Info("job registered", "job", p.job, "count", as.count, "warnings", answer.Warnings)
	as.read, as.exists, as.index = true, true, answer.JobModifyIndex
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	as.checked = p.spec.Equal(spec)
	p.known, p.trouble.room = as, ""
	return nil
}

// template is what the job of the spec is made of, with all that the spec does
// not say of t.
func (b *Backend) template(t jobs.Template, job string, spec backend.Spec, count int, meta map[string]string) jobs.Template {
	t.Namespace, t.Region = cmp.Or(t.Namespace, b.config.API.Namespace), cmp.Or(t.Region, b.config.API.Region)
	t.Job, t.Count, t.Slots, t.Isolation, t.NoNetwork, t.Meta = job, count, spec.Slots, spec.Isolation, !spec.Network, meta
	t.Longest, t.SlotMemory, t.SlotPids = spec.MaxTimeout, spec.Limits.MemoryBytes, spec.Limits.Pids
	t.SlotCPUs, t.SlotDisk = spec.Limits.CPUs, spec.Limits.DiskBytes
	return t
}
