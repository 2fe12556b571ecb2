package operate

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"berth/jobs"
	"berth/slots"
)

// Running is the job of a pool.
type Running struct {
	Template    jobs.Template // that it was made of, as far as it tells
	ModifyIndex uint64        // for Deploy; 0: there is no such job, also none that was stopped
}

// Running reads the job of a pool, so that a new version of it changes what is
// meant to change. There is none when it does not run.
func (o *Operator) Running(ctx context.Context, job string) (r Running, found bool, err error) {
	running, err := o.job(ctx, job)
	if err != nil || running == nil {
		return Running{}, false, err
	}
	r.ModifyIndex = value(running.JobModifyIndex)
	if value(running.Stop) {
		return r, false, nil
	}
	if r.Template, err = templateOf(running); err != nil {
		return Running{}, false, fmt.Errorf("read job %s: %w", job, err)
	}
	return r, true, nil
}

// Index is the ModifyIndex of a job, also of one that was stopped; 0: there is
// none.
func (o *Operator) Index(ctx context.Context, job string) (uint64, error) {
	running, err := o.job(ctx, job)
	if err != nil || running == nil {
		return 0, err
	}
	return value(running.JobModifyIndex), nil
}

// job reads a job; nil: there is none.
func (o *Operator) job(ctx context.Context, id string) (*api.Job, error) {
	job, _, err := o.client.Jobs().Info(id, new(api.QueryOptions).WithContext(ctx))
	if missing(err) {
		return nil, nil //nolint:nilnil // there is none, and that is no error
	}
	if err != nil {
		return nil, fmt.Errorf("read job %s: %w", id, err)
	}
	return job, nil
}

// reader reads settings of a job and keeps the first that cannot be read.
type reader struct {
	env map[string]string
	err error
}

func read[T any](r *reader, name string, parse func(string) (T, error)) T {
	text, found := r.env[name]
	if !found {
		return *new(T)
	}
	v, err := parse(text)
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("%s: %w", name, err)
	}
	return v
}

func float(s string) (float64, error) { return strconv.ParseFloat(s, 64) }
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// templateOf turns jobs.Sandboxd around.
func templateOf(job *api.Job) (jobs.Template, error) {
	t := jobs.Template{
		Job: *job.ID, Namespace: value(job.Namespace), Region: value(job.Region), NodePool: value(job.NodePool),
		Datacenters: job.Datacenters, Priority: value(job.Priority), Meta: maps.Clone(job.Meta),
	}
	if len(job.TaskGroups) != 1 || value(job.TaskGroups[0].Name) != jobs.Group || len(job.TaskGroups[0].Tasks) != 1 {
		return t, fmt.Errorf("it is not a pool's: want one group %s with one task; name a pool's by --job", jobs.Group)
	}
	group := job.TaskGroups[0]
	task := group.Tasks[0]
	t.Count, t.Driver = value(group.Count), jobs.Driver(task.Driver)
	if group.EphemeralDisk != nil {
		t.DiskMB = value(group.EphemeralDisk.SizeMB)
	}
	if r := task.Resources; r != nil {
		t.MemoryMB, t.MemoryMaxMB, t.Cores = value(r.MemoryMB), value(r.MemoryMaxMB), value(r.Cores)
		if t.Cores == 0 {
			t.CPU = value(r.CPU)
		}
	}
	text := func(name string) string { s, _ := task.Config[name].(string); return s }
	t.Image, t.Runtime, t.Command = text("image"), text("runtime"), text("command")
	if readonly, ok := task.Config["readonly_rootfs"].(bool); ok {
		t.Writable = !readonly
	}
	for _, option := range texts(task.Config["security_opt"]) {
		if len(option) > len("seccomp=") && option[:len("seccomp=")] == "seccomp=" {
			t.Seccomp = option[len("seccomp="):]
		}
	}
	if args := texts(task.Config["args"]); len(args) > 1 {
		t.Args = args[1:]
	}
	r := reader{env: task.Env}
	t.Slots = read(&r, "SANDBOXD_SLOTS", strconv.Atoi)
	t.Isolation = task.Env["SANDBOXD_ISOLATION_REQUIRE"]
	t.NoNetwork = task.Env["SANDBOXD_NETWORK"] == "off"
	t.Longest = read(&r, "SANDBOXD_MAX_TIMEOUT", slots.ParseDuration)
	t.Drain = read(&r, "SANDBOXD_DRAIN_TIMEOUT", slots.ParseDuration)
	t.SlotPids = read(&r, "SANDBOXD_PIDS", slots.ParseSize)
	t.SlotMemory = read(&r, "SANDBOXD_MEMORY", slots.ParseSize)
	t.SlotDisk = read(&r, "SANDBOXD_DISK", slots.ParseSize)
	t.SlotCPUs = read(&r, "SANDBOXD_CPUS", float)
	return t, r.err
}

// texts reads a list of texts, as it is made and as it comes over the wire.
func texts(v any) []string {
	switch v := v.(type) {
	case []string:
		return v
	case []any:
		var all []string
		for _, one := range v {
			if s, ok := one.(string); ok {
				all = append(all, s)
			}
		}
		return all
	}
	return nil
}
