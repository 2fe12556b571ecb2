package jobs

import (
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"
)

// IDs of the jobs that are no pool's, and what those of pools begin with.
const (
	OrchestratorJob = "berth-orchestrator"
	PrepullJob      = "berth-prepull"
	PoolPrefix      = "berth-" // before the template's name
)

// OrchestratorGroup is the group and the task of the orchestrator's job.
const OrchestratorGroup = "orchestrator"

// at is what Nomad's own commands are told of the region and the namespace.
func at(t Template) string {
	text := ""
	if t.Region != "" {
		text = "-region " + t.Region + " "
	}
	if t.Namespace != "" {
		text += "-namespace " + t.Namespace + " "
	}
	return text
}

// OrchestratorFile is the job of the control plane for people, of the template
// that its pool has.
func OrchestratorFile(t Template) (File, error) {
	job, err := Orchestrator(t)
	image := Variable{"image", "group.task.config.image", "image that holds orchestrator"}
	if t.Driver != Docker && t.Driver != "" {
		image = Variable{"orchestrator", "group.task.config.command", "program on the client's disk"}
	}
	namespace, policy := "default", "jobs/orchestrator.policy.hcl"
	if t.Namespace != "" {
		namespace, policy = t.Namespace, "policy.hcl # berth nomad render policy --namespace "+t.Namespace
	}
	return File{
		Job: job,
		About: []string{
			"The orchestrator. It reaches Nomad by the socket that every task has, with the",
			"identity of this job, which needs a policy:",
			"",
			"  nomad acl policy apply -namespace " + namespace + " -job " + OrchestratorJob + " berth " + policy,
			"  nomad var put " + at(t) + VariablePath(OrchestratorJob) + " token=$(openssl rand -hex 32) " + ConfigKeys + "=$(openssl rand -base64 32)",
		},
		Comments: map[string]string{
			"group.task.env":      "What begins with ORCHESTRATOR_ is a flag of orchestrator serve. The pool's job\nis made of these, in the namespace of this job.",
			"group.task.template": "The token of trainers; where the variable has the items, that of metrics, and the\nkeys that seal the variables of function tools.",
			"group.task.identity": "What the policy is given to.",
			"group.task.service":  "The task's, not the group's: see the job of a pool.",
			"group.spread":        "One machine that is lost takes one of several along.",
		},
		Variables: []Variable{
			image,
			{"orchestrators", "group.count", "how many serve the pool side by side; all calls of a trajectory go to the same one, and without a volume (berth nomad render orchestrator --config-volume) each has configurations of function tools of its own, in its allocation's directory"},
		},
	}, err
}

// ordinary is the user and group that the image of the orchestrator runs as.
const ordinary = 65532

// Orchestrator makes the job of the control plane for a pool of the template.
// What the job of the pool is made of stands in the orchestrator's environment;
// namespace, region, node pool, datacenters and priority are those of both
// jobs. The error is that the template makes no pool, or none that an
// orchestrator could name: its job is PoolPrefix and 1 to 40 letters, digits,
// - and _.
func Orchestrator(t Template) (*api.Job, error) {
	t, err := t.Complete()
	if err != nil {
		return nil, fmt.Errorf("make job of orchestrator: %w", err)
	}
	env, err := poolEnvironment(t)
	if err != nil {
		return nil, fmt.Errorf("make job of orchestrator: %w", err)
	}
	job := blank(OrchestratorJob, "service", t)
	env["NOMAD_ADDR"] = "unix://${NOMAD_SECRETS_DIR}/api.sock"
	env["ORCHESTRATOR_BACKEND"] = "nomad"
	env["ORCHESTRATOR_LISTEN"] = "0.0.0.0:${NOMAD_PORT_http}"
	env["ORCHESTRATOR_TOKEN_FILE"] = "${NOMAD_SECRETS_DIR}/token"
	env["ORCHESTRATOR_METRICS_TOKEN_FILE"] = "${NOMAD_SECRETS_DIR}/metrics"
	env["ORCHESTRATOR_CONFIG_KEY_FILE"] = "${NOMAD_SECRETS_DIR}/config-keys"
	env["ORCHESTRATOR_DATA_DIR"] = "${NOMAD_ALLOC_DIR}/data"
	env["ORCHESTRATOR_DRAIN_TIMEOUT"] = seconds(defaultDrain)
	env["ORCHESTRATOR_LOG_JSON"] = "true"
	one := &api.Task{
		Name: OrchestratorGroup, Driver: string(t.Driver), KillTimeout: new(defaultDrain + killMargin), KillSignal: "SIGTERM", ShutdownDelay: shutdownDelay,
		Services: []*api.Service{service(OrchestratorJob)}, // see task
		Env:      env,
		Identity: &api.WorkloadIdentity{Name: "default", Env: true},
		Templates: []*api.Template{{
			DestPath:     new("secrets/token"),
			EmbeddedTmpl: new(fmt.Sprintf("{{ with nomadVar %q }}{{ .%s }}{{ end }}", VariablePath(OrchestratorJob), Secret)),
			ChangeMode:   new("restart"), Perms: new("0600"),
		}, metricsToken(OrchestratorJob), {
			DestPath: new("secrets/config-keys"), EmbeddedTmpl: new(optional(OrchestratorJob, ConfigKeys)),
			ChangeMode: new("restart"), Perms: new("0600"),
		}},
		Resources: &api.Resources{CPU: new(500), MemoryMB: new(256)},
	}
	// It reads its tokens at its start alone.
	one.Templates[1].ChangeMode, one.Templates[1].ChangeSignal = new("restart"), nil
	if t.Driver == Docker {
		t.Args, t.Slots, t.SlotPids, t.Writable = nil, defaultSlots, defaultPids, false // those are the pool's
		one.Config = config(t)
		one.Config["image"] = "berth/orchestrator:local"
		one.Config["security_opt"] = []string{"no-new-privileges"}
		one.Config["cap_drop"] = []string{"all"}
		delete(one.Config, "runtime")
		for _, secret := range one.Templates {
			secret.Uid, secret.Gid = new(ordinary), new(ordinary)
		}
	} else {
		one.Config = map[string]any{"command": "/usr/local/bin/orchestrator", "args": []string{"serve"}}
	}
	job.TaskGroups = []*api.TaskGroup{{
		Name: new(OrchestratorGroup), Count: new(1),
		Networks:         []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: Port}}}},
		RestartPolicy:    &api.RestartPolicy{Attempts: new(3), Interval: new(5 * time.Minute), Delay: new(2 * time.Second), Mode: new("fail")},
		ReschedulePolicy: &api.ReschedulePolicy{Delay: new(5 * time.Second), DelayFunction: new("exponential"), MaxDelay: new(5 * time.Minute), Unlimited: new(true)},
		// One after the other, so that with several some serve all the time.
		Update: t.update(defaultDrain),
		Migrate: &api.MigrateStrategy{
			MaxParallel: new(1), HealthCheck: new("checks"), MinHealthyTime: new(3 * time.Second), HealthyDeadline: new(3 * time.Minute),
		},
		Spreads:     []*api.Spread{{Attribute: "${node.unique.id}", Weight: new(int8(100))}},
		Constraints: []*api.Constraint{{LTarget: "${attr.kernel.name}", Operand: "=", RTarget: "linux"}},
		Tasks:       []*api.Task{one},
	}}
	return job, nil
}
