package jobs

import (
	"cmp"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"berth/slots"
)

// pidsOfItsOwn is what a container needs besides its slots.
const pidsOfItsOwn = 512

// VariablePath is where the variable of the job is. Nomad lets the job's own
// tasks read it without any policy.
func VariablePath(job string) string { return "nomad/jobs/" + job }

// ClaimsPath is what the paths of the variables begin with that say which
// container each of the job's allocations is.
func ClaimsPath(job string) string { return VariablePath(job) + "/containers/" }

// LostAfter is how long Nomad waits for a machine that it does not hear of,
// before it gives up what runs there.
const LostAfter = 10 * time.Minute

// Sandboxd makes the job of a pool.
func Sandboxd(t Template) (*api.Job, error) {
	t, err := t.Complete()
	if err != nil {
		return nil, fmt.Errorf("make job of pool: %w", err)
	}
	needs, err := constraints(t)
	if err != nil {
		return nil, fmt.Errorf("make job of pool: %w", err)
	}
	job := blank(t.Job, "service", t)
	job.Meta = maps.Clone(t.Meta)
	group := &api.TaskGroup{
		Name: new(Group), Count: &t.Count,
		Networks: []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: Port}}}},
		// Leases, results and workspaces outlive a crash of the agent, not the
		// allocation: it is started again in its place first.
		RestartPolicy: &api.RestartPolicy{Attempts: new(3), Interval: new(10 * time.Minute), Delay: new(time.Second), Mode: new("fail")},
		ReschedulePolicy: &api.ReschedulePolicy{
			Delay: new(5 * time.Second), DelayFunction: new("exponential"), MaxDelay: new(5 * time.Minute), Unlimited: new(true),
		},
		// Leases outlive a client that its servers do not hear of for a while.
		Disconnect: &api.DisconnectStrategy{LostAfter: new(LostAfter), Replace: new(false), Reconcile: new(api.ReconcileOptionKeepOriginal)},
		Update:     t.update(t.Drain),
		// A machine that is drained keeps what has leases until they end, or to the
		// deadline: the orchestrator stops what has none. With any number above 0
		// Nomad would stop so many at once, leased or not.
		Migrate: &api.MigrateStrategy{
			MaxParallel: new(0), HealthCheck: new("checks"), MinHealthyTime: new(3 * time.Second), HealthyDeadline: new(3 * time.Minute),
		},
		Spreads:       []*api.Spread{{Attribute: "${node.unique.id}", Weight: new(int8(100))}},
		EphemeralDisk: &api.EphemeralDisk{SizeMB: &t.DiskMB},
		Constraints:   needs,
		Tasks:         []*api.Task{task(t)},
	}
	job.TaskGroups = []*api.TaskGroup{group}
	return job, nil
}

// update is how a new version is rolled out: one canary goes first, and Nomad
// takes the version back that has not got well in time. Where nothing is pulled
// that is told soon; what is replaced may drain for long before its place is
// free.
func (t Template) update(drain time.Duration) *api.UpdateStrategy {
	healthy, progress := time.Minute, 2*time.Minute
	if t.Driver == Docker {
		healthy, progress = 3*time.Minute, 10*time.Minute
	}
	return &api.UpdateStrategy{
		MaxParallel: new(1), Canary: new(1), HealthCheck: new("checks"), MinHealthyTime: new(3 * time.Second),
		HealthyDeadline: &healthy, ProgressDeadline: new(drain + progress), AutoRevert: new(true), AutoPromote: new(true),
	}
}

// A container that is told to stop hears of it after a delay, has its time to
// drain, and a margin before it is killed.
const (
	shutdownDelay = 2 * time.Second
	defaultDrain  = 25 * time.Second
	killMargin    = 5 * time.Second
)

// Ending is for how long after it was told to stop a container serves the
// leases that it has, at least.
func (t Template) Ending() time.Duration {
	or(&t.Drain, defaultDrain)
	return shutdownDelay + t.Drain
}

// ClientsAllow is how long Nomad's clients wait at most for what they were told
// to stop, where their max_kill_timeout does not say more. Then they kill it.
const ClientsAllow = 30 * time.Second

// KillTimeout is how long they are asked to wait.
func (t Template) KillTimeout() time.Duration {
	or(&t.Drain, defaultDrain)
	return t.Drain + killMargin
}

// blank is what all jobs begin with.
func blank(id, kind string, t Template) *api.Job {
	job := &api.Job{ID: &id, Name: &id, Type: &kind, Datacenters: t.Datacenters}
	for at, value := range map[**string]string{&job.Namespace: t.Namespace, &job.Region: t.Region, &job.NodePool: t.NodePool} {
		if value != "" {
			*at = &value
		}
	}
	if t.Priority > 0 {
		job.Priority = &t.Priority
	}
	return job
}

// DefaultIsolation is what sandboxd requires when a template says nothing.
const DefaultIsolation = "landlock"

// constraints are what a machine must have for the isolation that is asked for,
// as far as Nomad knows: what else it takes sandboxd finds out by doing.
func constraints(t Template) ([]*api.Constraint, error) {
	want, err := slots.ParseRequirement(cmp.Or(t.Isolation, DefaultIsolation))
	if err != nil {
		return nil, fmt.Errorf("isolation: %w", err)
	}
	all := []*api.Constraint{{LTarget: "${attr.kernel.name}", Operand: "=", RTarget: "linux"}}
	if needsLandlock(want) {
		all = append(all, &api.Constraint{LTarget: "${attr.kernel.landlock}", Operand: "is_set"})
	}
	if t.Driver == Docker && needsCgroups(want) { // those of v1 are read-only in a container
		all = append(all, &api.Constraint{LTarget: "${attr.os.cgroups.version}", Operand: "=", RTarget: "2"})
	}
	if t.Driver == Docker && t.Runtime != "" {
		all = append(all, &api.Constraint{LTarget: "${attr.driver.docker.runtimes}", Operand: "set_contains", RTarget: t.Runtime})
	}
	return all, nil
}

// needsLandlock reports whether it takes Landlock to be sure of the
// requirement. Namespaces do without it.
func needsLandlock(want slots.Requirement) bool {
	if want.Level >= slots.LevelNS {
		return false
	}
	fs := want.Axes[slots.AxisFS]
	return want.Level == slots.LevelLandlock || want.Level == slots.LevelUIDLandlock || fs == "landlock" || fs == "dac+landlock" || want.Axes[slots.AxisProc] == "landlock-scope"
}

// needsCgroups reports whether the requirement takes a cgroup for each slot.
// What is killed by its namespace is killed as well.
func needsCgroups(want slots.Requirement) bool {
	for _, axis := range []slots.Axis{slots.AxisPids, slots.AxisMemory, slots.AxisCPU} {
		if want.Axes[axis] == "cgroup" {
			return true
		}
	}
	return want.Level == slots.LevelNSCgroup || want.Level < slots.LevelNS && want.Axes[slots.AxisKill] == "cgroup"
}

// service registers the port with Nomad. Liveness and readiness are asked
// apart: a container that drains is alive and takes no more. The name is that of a
// host, which a job's need not be.
func service(name string) *api.Service {
	return &api.Service{
		Name: strings.Trim(strings.ReplaceAll(name, "_", "-"), "-"), Provider: "nomad", PortLabel: Port,
		Checks: []api.ServiceCheck{
			{
				Name: "alive", Type: "http", Path: "/livez", Interval: 10 * time.Second, Timeout: 5 * time.Second,
				CheckRestart: &api.CheckRestart{Limit: 6, Grace: new(time.Minute)},
			},
			{Name: "ready", Type: "http", Path: "/readyz", Interval: 2 * time.Second, Timeout: 2 * time.Second},
		},
	}
}

// task is the sandboxd of a container.
func task(t Template) *api.Task {
	one := &api.Task{
		Name: Group, Driver: string(t.Driver), KillTimeout: new(t.KillTimeout()), KillSignal: "SIGTERM", ShutdownDelay: shutdownDelay,
		// The service is the task's, not the group's: a client that is started again
		// registers a group's before it takes up its tasks, and kills them when no
		// server takes the registration at that moment.
		Services: []*api.Service{service(t.Job)},
		Env:      environment(t), Config: config(t), Templates: secrets(t),
		Resources: &api.Resources{MemoryMB: &t.MemoryMB, MemoryMaxMB: &t.MemoryMaxMB},
		LogConfig: &api.LogConfig{MaxFiles: new(3), MaxFileSizeMB: new(10)},
	}
	if t.Cores > 0 {
		one.Resources.Cores = &t.Cores
	} else {
		one.Resources.CPU = &t.CPU
	}
	return one
}

// metricsToken is the file of the token that opens the metrics of the job's
// tasks. It is empty when there is none.
func metricsToken(job string) *api.Template {
	return &api.Template{
		DestPath: new("secrets/metrics"), EmbeddedTmpl: new(optional(job, Metrics)),
		ChangeMode: new("signal"), ChangeSignal: new("SIGHUP"), Perms: new("0600"), Splay: new(time.Second),
	}
}

// optional is the text of an item of the job's variable; "": it has none.
func optional(job, item string) string {
	return fmt.Sprintf("{{ with nomadVar %q }}{{ with .%s.Value }}{{ . }}{{ end }}{{ end }}", VariablePath(job), item)
}

// secrets are the files and variables that only the agent may see. Every
// allocation has a token of its own, so that one that leaks opens one
// container; a new secret reaches the agents by signal.
func secrets(t Template) []*api.Template {
	open := fmt.Sprintf("{{ with nomadVar %q }}", VariablePath(t.Job))
	return []*api.Template{
		{
			DestPath:     new("secrets/token"),
			EmbeddedTmpl: new(open + `{{ hmacSHA256Hex (env "NOMAD_ALLOC_ID") .` + Secret + `.Value }}{{ end }}`),
			ChangeMode:   new("signal"), ChangeSignal: new("SIGHUP"), Perms: new("0600"), Splay: new(time.Second),
		},
		{
			DestPath:     new("secrets/env"),
			EmbeddedTmpl: new(open + `{{ with .` + EnvItem + `.Value }}SANDBOXD_ENV={{ . | toJSON }}{{ end }}{{ end }}`),
			ChangeMode:   new("noop"), Perms: new("0600"), Envvars: new(true),
		},
		metricsToken(t.Job),
	}
}

// environment is sandboxd's settings. Those that are its defaults are named as
// well: the job says all of it.
func environment(t Template) map[string]string {
	env := map[string]string{
		"SANDBOXD_LISTEN":             "${NOMAD_IP_http}:${NOMAD_PORT_http}",
		"SANDBOXD_TOKEN_FILE":         "${NOMAD_SECRETS_DIR}/token",
		"SANDBOXD_METRICS_TOKEN_FILE": "${NOMAD_SECRETS_DIR}/metrics",
		"SANDBOXD_SLOTS":              strconv.Itoa(t.Slots),
		"SANDBOXD_NETWORK":            map[bool]string{true: "off", false: "on"}[t.NoNetwork],
		"SANDBOXD_MAX_TIMEOUT":        seconds(t.Longest),
		"SANDBOXD_DRAIN_TIMEOUT":      seconds(t.Drain),
		"SANDBOXD_DRAIN_LEASES":       "on", // they go with the allocation
		"SANDBOXD_PIDS":               strconv.FormatInt(t.SlotPids, 10),
		"SANDBOXD_MEMORY":             strconv.FormatInt(t.SlotMemory, 10),
		"SANDBOXD_DISK":               strconv.FormatInt(t.SlotDisk, 10),
		"SANDBOXD_CPUS":               strconv.FormatFloat(t.SlotCPUs, 'f', -1, 64),
		"SANDBOXD_LOG_JSON":           "true",
	}
	if t.Driver == Docker { // the machine's address is not the container's
		env["SANDBOXD_LISTEN"] = "0.0.0.0:${NOMAD_PORT_http}"
	}
	if t.Isolation != "" {
		env["SANDBOXD_ISOLATION_REQUIRE"] = t.Isolation
	}
	return env
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s" }

// config is what the driver is told.
func config(t Template) map[string]any {
	args := append([]string{"serve"}, t.Args...)
	if t.Driver != Docker {
		return map[string]any{"command": t.Command, "args": args}
	}
	return map[string]any{
		"image": t.Image, "args": args, "ports": []string{Port}, "runtime": t.Runtime,
		"init": true, "readonly_rootfs": !t.Writable, "pids_limit": t.SlotPids*int64(t.Slots) + pidsOfItsOwn,
		// Namespaces for the slots take no capability, only this profile.
		"security_opt": []string{"no-new-privileges", "apparmor=unconfined", "seccomp=" + t.Seccomp},
		"cap_drop":     []string{"audit_write", "mknod", "net_bind_service", "net_raw"},
		"mount": []map[string]any{{
			"type": "tmpfs", "target": "/tmp", "readonly": false, "tmpfs_options": []map[string]any{{"size": 64 << 20}},
		}},
	}
}
