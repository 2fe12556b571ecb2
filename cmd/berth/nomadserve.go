package main

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"berth/jobs"
	"berth/orchestrator"
)

// settingName is the name of a flag of "orchestrator serve".
var settingName = regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)

// settingFlags are the flags of ours that say the same as one of "orchestrator
// serve", by its name.
func settingFlags() map[string]string {
	return map[string]string{
		"template": "job", "containers": "count", "slots": "slots", "isolation-require": "isolation-require", "sandboxd": "sandboxd",
		"nomad-driver": "driver", "nomad-image": "image", "nomad-runtime": "runtime", "nomad-node-pool": "node-pool", "nomad-datacenter": "datacenter",
		"nomad-cores": "cores", "nomad-cpu": "cpu", "nomad-memory": "memory", "nomad-memory-max": "memory-max", "nomad-disk": "disk",
	}
}

// settingsOfTheJob are what the orchestrator's job needs to be as they are, or
// that would name what its allocation does not have.
func settingsOfTheJob() []string {
	return []string{"backend", "config", "config-key-file", "data-dir", "drain-timeout", "listen", "log-json", "metrics-token-file", "nomad-jobs", "token-file"}
}

// settingVariable is the environment variable of a setting.
func settingVariable(name string) string {
	return "ORCHESTRATOR_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// served are the variables that --serve gives, by name; "" takes one away. Those
// that hold several things are given once for each.
func served(given []string) (map[string]string, error) {
	values := map[string][]string{}
	for _, one := range given {
		name, value, ok := strings.Cut(one, "=")
		flag, ours := settingFlags()[name]
		switch {
		case !ok || !settingName.MatchString(name):
			return nil, usagef("--serve %.80q: want NAME=VALUE, as max-containers=8", one)
		case ours:
			return nil, usagef("--serve %s: give it by --%s", name, flag)
		case slices.Contains(settingsOfTheJob(), name) && value != "":
			return nil, usagef("--serve %s: the orchestrator's job says it", name)
		case strings.Contains(value, "${"):
			return nil, usagef("--serve %s: Nomad may put a value of its own in the place of ${…}, and there is no other way to write it: leave it out", name)
		case len(values[name]) > 0 && name != "env" && name != "sandboxd-arg":
			return nil, usagef("--serve %s: it is given twice", name)
		}
		values[name] = append(values[name], value)
	}
	all := map[string]string{}
	for name, several := range values {
		all[settingVariable(name)] = strings.Join(several, "\n")
	}
	return all, nil
}

// orchestratorFile makes the orchestrator's job: of the pool's template, of what
// is to stay of the environment of one that runs, and of --serve.
func (j *nomadJob) orchestratorFile(given *pflag.FlagSet) (jobs.File, error) {
	settings, err := served(j.serve)
	if err != nil {
		return jobs.File{}, err
	}
	file, err := jobs.OrchestratorFile(j.template)
	if err != nil {
		return jobs.File{}, usagef("%v", err)
	}
	if len(settings) > 0 || given.Changed("count") && len(j.more) > 0 {
		if file, err = j.withSettings(file, settings); err != nil {
			return jobs.File{}, usagef("%v", err)
		}
	} else {
		maps.Copy(file.Job.TaskGroups[0].Tasks[0].Env, j.more)
	}
	if j.volume != "" {
		if err := file.KeepConfigs(j.volume); err != nil {
			return jobs.File{}, usagef("--config-volume: %v", err)
		}
	}
	group := file.Job.TaskGroups[0]
	group.Count = &j.orchestrators
	if j.orchestrator != "" {
		runs := "image"
		if j.template.Driver != jobs.Docker {
			runs = "command"
		}
		group.Tasks[0].Config[runs] = j.orchestrator
	}
	return file, nil
}

// withSettings is the orchestrator's job once more, with the settings. Some of
// them are the pool's, whose job is to be made of what the orchestrator takes
// them for. The error is the orchestrator's own.
func (j *nomadJob) withSettings(file jobs.File, settings map[string]string) (jobs.File, error) {
	own := file.Job.TaskGroups[0].Tasks[0].Env
	env := maps.Clone(own)
	maps.Copy(env, j.more)
	maps.Copy(env, settings)
	for name, value := range settings {
		if value == "" {
			delete(env, name)
			if own[name] != "" && !jobs.OfPool(name) { // the job's own counts again
				env[name] = own[name]
			}
		}
	}
	var environ []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if name != "ORCHESTRATOR_CONFIG" { // a file on the machines of Nomad, not here
			environ = append(environ, name+"="+env[name])
		}
	}
	config, err := orchestrator.Parse(nil, environ, io.Discard)
	if err != nil {
		return jobs.File{}, fmt.Errorf("what \"orchestrator serve\" says of its settings: %w", err)
	}
	t, err := config.PoolJob()
	if err != nil {
		return jobs.File{}, err
	}
	t.Namespace, t.Region, t.Meta = j.template.Namespace, j.template.Region, j.template.Meta
	if file, err = jobs.OrchestratorFile(t); err != nil {
		return jobs.File{}, err
	}
	j.template = t
	for name, value := range env {
		if !jobs.OfPool(name) {
			file.Job.TaskGroups[0].Tasks[0].Env[name] = value
		}
	}
	return file, nil
}
