package orchestrator

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"

	"berth/jobs"
	"berth/orchestrator/backend"
	"berth/orchestrator/backend/local"
	"berth/orchestrator/backend/nomad"
)

// Names of the backends.
const (
	backendLocal = "local"
	backendNomad = "nomad"
)

// fleet is a backend that can be closed.
type fleet interface {
	backend.Backend
	io.Closer
}

// nomadSettings makes the flags of the nomad backend. How Nomad is reached
// stands in its own variables.
func nomadSettings(flags *flag.FlagSet, c *nomad.Config) {
	t := &c.Job
	flags.StringVar(&c.Prefix, "nomad-jobs", "berth", "what the names of the jobs begin with: the job of a pool is berth-NAME")
	add(flags, word{(*string)(&t.Driver), []string{string(jobs.Docker), string(jobs.Exec), string(jobs.RawExec)}}, "nomad-driver", string(jobs.Docker), "docker, or one that runs --sandboxd of the machine: exec raw_exec")
	flags.StringVar(&t.Image, "nomad-image", "berth/sandboxd:local", "image that holds sandboxd")
	flags.StringVar(&t.Runtime, "nomad-runtime", "", "runtime of the container engine, as runsc; without it the engine's own")
	flags.StringVar(&t.Seccomp, "nomad-seccomp", "/etc/berth/seccomp-slots.json", "where the machines have the seccomp profile")
	flags.StringVar(&t.NodePool, "nomad-node-pool", "", "node pool of the jobs")
	flags.Var(list{&t.Datacenters}, "nomad-datacenter", "datacenter of the jobs; may be repeated; without it all")
	add(flags, integer{&t.Cores, 0, 1 << 10}, "nomad-cores", "0", "whole CPUs of each container; 0: --nomad-cpu counts")
	add(flags, integer{&t.CPU, 1, 1 << 24}, "nomad-cpu", "1000", "MHz of each container")
	add(flags, integer{&t.MemoryMB, 10, 1 << 24}, "nomad-memory", "1024", "MB of memory of each container")
	add(flags, integer{&t.MemoryMaxMB, 0, 1 << 24}, "nomad-memory-max", "0", "MB that it may use while the machine has them to spare, where the scheduler allows memory oversubscription; 0: no more than --nomad-memory")
	add(flags, integer{&t.DiskMB, 10, 1 << 24}, "nomad-disk", "2048", "MB of disk of each container")
	add(flags, integer{&t.Priority, 0, 1<<15 - 1}, "nomad-priority", "0", "priority of the jobs; 0: Nomad's default")
	add(flags, duration{&t.Drain}, "nomad-drain", "25s", "how long a container that is stopped serves its leases; above 25s clients need a higher max_kill_timeout")
	flags.BoolVar(&t.Writable, "nomad-writable", false, "the image's files may be written to")
	add(flags, duration{&c.LockTTL}, "nomad-lock-ttl", nomad.DefaultLockTTL.String(), "when the one of several orchestrators that scales a job dies, another one does within this time; below 33s Nomad is asked more than once in 5s")
	add(flags, duration{&c.LockDelay}, "nomad-lock-delay", "1s", "how long Nomad keeps a lock that has ended by itself from everybody; a part of --nomad-lock-ttl")
	flags.StringVar(&c.Name, "nomad-name", "", "what this orchestrator is called beside others; without it by its host and process")
	flags.BoolVar(&c.Purge, "nomad-purge", false, "take the jobs away at the end; without it their containers go on, and the next start finds them")
}

// checkNomad refuses settings that make no job.
func (c *Config) checkNomad() error {
	if c.Backend != backendNomad {
		return nil
	}
	for _, t := range c.Templates {
		spec := t.Spec(t.Name + "-0")
		if _, err := c.nomad().Template(spec); err != nil {
			return fmt.Errorf("template %q: %w", t.Name, err)
		}
	}
	return nil
}

// nomad is the Config of the nomad backend.
func (c *Config) nomad() nomad.Config {
	n := c.Nomad
	n.Job.Command, n.Job.Args = c.Sandboxd, c.SandboxdArgs
	n.Pools = c.specs()
	return n
}

// PoolJob is what the nomad backend makes the job of the first template of. The
// error is that it makes none.
func (c *Config) PoolJob() (jobs.Template, error) {
	first := c.Templates[0]
	t, err := c.nomad().Template(first.Spec(first.Name + "-0"))
	t.Count, t.Meta = first.MinContainers, nil
	return t, err
}

// specs is what containers are going to be started of, their IDs apart.
func (c *Config) specs() []backend.Spec {
	specs := make([]backend.Spec, 0, len(c.Templates))
	for _, t := range c.Templates {
		specs = append(specs, t.Spec(""))
	}
	return specs
}

// openBackend opens what runs the containers.
func (c *Config) openBackend(ctx context.Context, logger hclog.Logger) (fleet, error) {
	if c.Backend == backendNomad {
		n := c.nomad()
		n.Logger = logger
		b, err := nomad.Open(ctx, n)
		if nomad.Forbidden(err) {
			return nil, impossible(ctx, fmt.Errorf("%w; an orchestrator that is a job needs its policy: %s; another one a token in NOMAD_TOKEN", err, jobs.ApplyPolicy(os.Getenv("NOMAD_NAMESPACE"))))
		}
		if err != nil {
			return nil, err
		}
		return b, nil
	}
	b, err := local.Open(ctx, local.Config{
		Dir: filepath.Join(c.DataDir, "containers"), Binary: c.Sandboxd, Args: append(c.hidden(), c.SandboxdArgs...), Keep: c.Keep,
		Grace: c.DrainTimeout, Logger: logger, Expect: c.specs(),
	})
	if err != nil {
		return nil, impossible(ctx, err) // no program, no directory, no isolation
	}
	return b, nil
}
