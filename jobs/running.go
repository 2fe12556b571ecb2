package jobs

import (
	"fmt"
	"maps"
	"strconv"

	"github.com/hashicorp/nomad/api"

	"berth/slots"
)

// envReader reads settings of a job and keeps the first that cannot be read.
type envReader struct {
	env map[string]string
	err error
}

func read[T any](r *envReader, name string, parse func(string) (T, error)) T {
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

// TemplateOf turns Sandboxd around: it is what the job of a pool was made of, as
// far as the job tells. The error is that it is no pool's, or that a setting
// cannot be read.
func TemplateOf(job *api.Job) (Template, error) {
	t := Template{
		Job: *job.ID, Namespace: value(job.Namespace), Region: value(job.Region), NodePool: value(job.NodePool),
		Datacenters: job.Datacenters, Priority: value(job.Priority), Meta: maps.Clone(job.Meta),
	}
	if len(job.TaskGroups) != 1 || value(job.TaskGroups[0].Name) != Group || len(job.TaskGroups[0].Tasks) != 1 {
		return t, fmt.Errorf("it is not a pool's: want one group %s with one task; name a pool's by --job", Group)
	}
	group := job.TaskGroups[0]
	task := group.Tasks[0]
	t.Count, t.Driver = value(group.Count), Driver(task.Driver)
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
	r := envReader{env: task.Env}
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
