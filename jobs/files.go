package jobs

import (
	"fmt"
	"maps"
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
			"A pool of sandboxd containers. An orchestrator registers this job by itself, of",
			"its own settings, and scales it; run it by hand to see it first. What is changed",
			"here by hand the orchestrator and each deploy replace: what they have no flag for",
			"is a setting of the orchestrator, by berth nomad deploy orchestrator --serve.",
			"",
			"Its secret is a variable of Nomad that the tasks of the job may read:",
			"",
			"  nomad var put " + at(t) + VariablePath(t.Job) + " token=$(openssl rand -hex 32) env=''",
		},
		Comments: map[string]string{
			"group.update":              "One container of a new version goes first; it is taken back when it does\nnot get well.",
			"group.disconnect":          "Leases outlive a client that its servers do not hear of for a while.",
			"group.restart":             "Leases, results and workspaces outlive a crash of the agent, not the\nallocation: it is started again in its place first.",
			"group.task.service":        "A container that drains is alive, and not ready. The service is the task's:\na group's is registered before a client that was started again takes up its\ntasks, and it kills them when no server takes the registration then.",
			"group.task.shutdown_delay": "It is taken out of the service first, then it is told to end.",
			"group.task.template":       "The agent alone reads these. A new token comes by signal, without a restart.\nThe one of metrics is there where the variable has an item metrics.",
			"group.ephemeral_disk":      "Workspaces, results and leases; they go with the container.",
			"group.spread":              "One machine that is lost takes few containers along.",
			"group.task.kill_timeout":   "Leases end first, or have SANDBOXD_DRAIN_TIMEOUT. A client allows 30 s\nunless its max_kill_timeout says more.",
		},
	}
	if t.Driver == Docker || t.Driver == "" {
		f.Comments["group.task.config.runtime"] = "Another one than the engine's own takes a constraint as well, so that it is\nno variable: berth nomad render sandboxd --runtime runsc."
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
			Variable{"security_opt", "group.task.config.security_opt", "the seccomp profile of images/ lies on the client's disk"},
		)
	} else {
		f.Variables = append(f.Variables, Variable{"sandboxd", "group.task.config.command", "program on the client's disk"})
	}
	return f, err
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
	t, err := t.Complete()
	t.Driver = Docker
	if err != nil {
		return nil, fmt.Errorf("make job that fetches the image: %w", err)
	}
	job := blank(PrepullJob, "sysbatch", t)
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
