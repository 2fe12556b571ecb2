package jobs

import (
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Files are the jobs for people, by the name of the file in this folder.
func Files() (map[string]File, error) {
	t := Template{Job: "berth-default", Count: 2}
	out := map[string]File{}
	for name, build := range map[string]func(Template) (File, error){
		"sandboxd.nomad.hcl": SandboxdFile, "orchestrator.nomad.hcl": OrchestratorFile, "prepull.nomad.hcl": PrepullFile,
	} {
		file, err := build(t)
		if err != nil {
			return nil, err
		}
		out[name] = file
	}
	return out, nil
}

// SandboxdFile is the job of a pool for people.
func SandboxdFile(t Template) (File, error) {
	job, err := Sandboxd(t)
	f := File{
		Job: job,
		About: []string{
			"A pool of sandboxd containers. An orchestrator registers this job by itself and",
			"scales it; run it by hand to see it first, or to change it for good.",
			"",
			"Its secret is a variable of Nomad that the tasks of the job may read:",
			"",
			"  nomad var put " + VariablePath(t.Job) + " token=$(openssl rand -hex 32) env=''",
		},
		Comments: map[string]string{
			"group.update":              "One container of a new version goes first; it is taken back when it does\nnot get well.",
			"group.disconnect":          "Leases outlive a client that its servers do not hear of for a while.",
			"group.restart":             "Leases, results and workspaces outlive a crash of the agent, not the\nallocation: it is started again in its place first.",
			"group.task.service":        "A container that drains is alive, and not ready. The service is the task's:\na group's is registered before a client that was started again takes up its\ntasks, and it kills them when no server takes the registration then.",
			"group.task.shutdown_delay": "It is taken out of the service first, then it is told to end.",
			"group.task.template":       "The agent alone reads these. A new token comes by signal, without a restart.",
			"group.ephemeral_disk":      "Workspaces, results and leases; they go with the container.",
			"group.spread":              "One machine that is lost takes few containers along.",
			"group.task.kill_timeout":   "Leases end first, or have SANDBOXD_DRAIN_TIMEOUT. A client allows 30 s\nunless its max_kill_timeout says more.",
		},
	}
	f.Variables = []Variable{
		{"count", "group.count", "containers"},
		{"slots", "group.task.env.SANDBOXD_SLOTS", "slots of each container"},
		{"memory_max", "group.task.resources.memory_max", "MB that a container may use while its machine has them to spare, where the scheduler allows memory oversubscription; 0: no more than memory"},
	}
	if t.Driver == Docker || t.Driver == "" {
		f.Variables = append(
			f.Variables,
			Variable{"image", "group.task.config.image", "image that holds sandboxd"},
			Variable{"runtime", "group.task.config.runtime", "of the engine: runsc, kata; empty for its own"},
			Variable{"security_opt", "group.task.config.security_opt", "the seccomp profile of images/ lies on the client's disk"},
		)
	} else {
		f.Variables = append(f.Variables, Variable{"sandboxd", "group.task.config.command", "program on the client's disk"})
	}
	return f, err
}

// OrchestratorFile is the job of the control plane for people, of the template
// that its pool has.
func OrchestratorFile(t Template) (File, error) {
	job, err := Orchestrator(t)
	image := Variable{"image", "group.task.config.image", "image that holds orchestrator"}
	if t.Driver != Docker && t.Driver != "" {
		image = Variable{"orchestrator", "group.task.config.command", "program on the client's disk"}
	}
	return File{
		Job: job,
		About: []string{
			"The orchestrator. It reaches Nomad by the socket that every task has, with the",
			"identity of this job, which needs a policy:",
			"",
			"  nomad acl policy apply -namespace default -job berth-orchestrator berth jobs/orchestrator.policy.hcl",
			"  nomad var put nomad/jobs/berth-orchestrator token=$(openssl rand -hex 32)",
		},
		Comments: map[string]string{
			"group.task.template": "The token of trainers.",
			"group.task.identity": "What the policy is given to.",
			"group.task.service":  "The task's, not the group's: see the job of a pool.",
		},
		Variables: []Variable{image},
	}, err
}

// ordinary is the user and group that the image of the orchestrator runs as.
const ordinary = 65532

// Orchestrator makes the job of the control plane for a pool of the template.
func Orchestrator(t Template) (*api.Job, error) {
	t, err := t.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("make job of orchestrator: %w", err)
	}
	t.Args = nil // they are sandboxd's
	const id, name = "berth-orchestrator", "orchestrator"
	job := blank(id, "service", t)
	one := &api.Task{
		Name: name, Driver: string(t.Driver), KillTimeout: new(t.Drain), KillSignal: "SIGTERM", ShutdownDelay: shutdownDelay,
		Services: []*api.Service{service(id)}, // see task
		Env: map[string]string{
			"NOMAD_ADDR":               "unix://${NOMAD_SECRETS_DIR}/api.sock",
			"ORCHESTRATOR_BACKEND":     "nomad",
			"ORCHESTRATOR_NOMAD_IMAGE": t.Image,
			"ORCHESTRATOR_SLOTS":       strconv.Itoa(t.Slots),
			"ORCHESTRATOR_LISTEN":      "0.0.0.0:${NOMAD_PORT_http}",
			"ORCHESTRATOR_TOKEN_FILE":  "${NOMAD_SECRETS_DIR}/token",
			"ORCHESTRATOR_DATA_DIR":    "${NOMAD_ALLOC_DIR}/data",
			"ORCHESTRATOR_LOG_JSON":    "true",
		},
		Config:     config(t),
		Identities: []*api.WorkloadIdentity{{Name: "default", Env: true}},
		Templates: []*api.Template{{
			DestPath:     new("secrets/token"),
			EmbeddedTmpl: new(fmt.Sprintf("{{ with nomadVar %q }}{{ .%s }}{{ end }}", VariablePath(id), Secret)),
			ChangeMode:   new("restart"), Perms: new("0600"),
		}},
		Resources: &api.Resources{CPU: new(500), MemoryMB: new(256)},
	}
	if t.Driver != Docker {
		one.Config = map[string]any{"command": "/usr/local/bin/orchestrator", "args": []string{"serve"}}
		one.Env["ORCHESTRATOR_NOMAD_DRIVER"], one.Env["ORCHESTRATOR_SANDBOXD"] = string(t.Driver), t.Command
		delete(one.Env, "ORCHESTRATOR_NOMAD_IMAGE")
	} else {
		one.Config["image"] = "berth/orchestrator:local"
		one.Templates[0].Uid, one.Templates[0].Gid = new(ordinary), new(ordinary)
		one.Config["security_opt"] = []string{"no-new-privileges"}
		one.Config["cap_drop"] = []string{"all"}
		delete(one.Config, "runtime")
	}
	job.TaskGroups = []*api.TaskGroup{{
		Name: new(name), Count: new(1),
		Networks:         []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: Port}}}},
		RestartPolicy:    &api.RestartPolicy{Attempts: new(3), Interval: new(5 * time.Minute), Delay: new(2 * time.Second), Mode: new("fail")},
		ReschedulePolicy: &api.ReschedulePolicy{Delay: new(5 * time.Second), DelayFunction: new("exponential"), MaxDelay: new(5 * time.Minute), Unlimited: new(true)},
		Update: &api.UpdateStrategy{
			MaxParallel: new(1), Canary: new(1), HealthCheck: new("checks"), MinHealthyTime: new(3 * time.Second),
			HealthyDeadline: new(3 * time.Minute), ProgressDeadline: new(10 * time.Minute), AutoRevert: new(true), AutoPromote: new(true),
		},
		Constraints: []*api.Constraint{{LTarget: "${attr.kernel.name}", Operand: "=", RTarget: "linux"}},
		Tasks:       []*api.Task{one},
	}}
	return job, nil
}

// PrepullFile is a job that has every machine fetch the image of the template
// before a pool needs it.
func PrepullFile(t Template) (File, error) {
	job, err := Prepull(t)
	return File{
		Job:       job,
		About:     []string{"Has every machine fetch the image, so that no scale-out waits for it."},
		Variables: []Variable{{"image", "group.task.config.image", "image to fetch"}},
	}, err
}

// Prepull makes the job that has every machine fetch the image of the template.
func Prepull(t Template) (*api.Job, error) {
	t, err := t.withDefaults()
	t.Driver = Docker
	if err != nil {
		return nil, fmt.Errorf("make job that fetches the image: %w", err)
	}
	job := blank("berth-prepull", "sysbatch", t)
	settings := maps.Clone(config(t))
	settings["args"] = []string{"version"}
	for _, name := range []string{"ports", "runtime", "security_opt", "pids_limit", "init", "mount"} {
		delete(settings, name)
	}
	settings["cap_drop"] = []string{"all"}
	job.TaskGroups = []*api.TaskGroup{{
		Name:          new("prepull"),
		RestartPolicy: &api.RestartPolicy{Attempts: new(2), Interval: new(5 * time.Minute), Delay: new(15 * time.Second), Mode: new("fail")},
		EphemeralDisk: &api.EphemeralDisk{SizeMB: new(16)},
		Constraints:   []*api.Constraint{{LTarget: "${attr.kernel.name}", Operand: "=", RTarget: "linux"}},
		Tasks: []*api.Task{{
			Name: "prepull", Driver: string(Docker), Config: settings,
			Resources: &api.Resources{CPU: new(50), MemoryMB: new(64)},
			LogConfig: &api.LogConfig{MaxFiles: new(1), MaxFileSizeMB: new(1)},
		}},
	}}
	return job, nil
}
