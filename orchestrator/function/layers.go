package function

import (
	"maps"
	"strings"

	"berth/orchestrator/config"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
)

// The variables that say for whom a tool runs.
const (
	variableAgent   = "LETTA_AGENT_ID"
	variableProject = "LETTA_PROJECT_ID"
	variableTool    = "LETTA_TOOL_ID"
)

// forced is what no caller changes.
var forced = map[string]string{"PYTHONWARNINGS": "ignore", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUNBUFFERED": "1"}

// layers is the environment of a run: what stands later wins, and a null takes
// a variable away from the slot's own environment, too. host is that of this
// process for a local sandbox, nil else.
func layers(host []string, stored map[string]config.Secret, run *poolapi.ToolRun) (map[string]*string, error) {
	env := map[string]*string{}
	for _, pair := range host {
		if name, value, ok := strings.Cut(pair, "="); ok && config.CheckVariable(name, value) == nil {
			env[name] = &value
		}
	}
	for name, value := range stored {
		text := value.Reveal()
		env[name] = &text
	}
	given := []map[string]*string{run.SandboxEnv, nil, run.Env}
	agent, project := "", ""
	if run.Agent != nil {
		given[1], agent, project = run.Agent.Secrets, run.Agent.ID, run.Agent.ProjectID
	}
	for _, layer := range given {
		for name, value := range layer {
			text := ""
			if value != nil {
				text = *value
			}
			if err := config.CheckVariable(name, text); err != nil {
				return nil, err
			}
		}
		maps.Copy(env, layer)
	}
	for name, id := range map[string]string{variableAgent: agent, variableProject: project, variableTool: run.Tool.ID} {
		env[name] = nil // whatever a caller set is not so
		if id != "" {
			env[name] = &id
		}
	}
	for name, value := range forced {
		env[name] = &value
	}
	return env, nil
}

// index is where packages come from, as the variables of a sandbox config say
// it to the tools that install.
func index(stored map[string]config.Secret) api.Index {
	get := func(names ...string) string {
		for _, name := range names {
			if v := stored[name].Reveal(); v != "" {
				return v
			}
		}
		return ""
	}
	none := strings.ToLower(get("PIP_NO_INDEX"))
	return api.Index{
		IndexURL: get("PIP_INDEX_URL"), ExtraIndexURLs: strings.Fields(get("PIP_EXTRA_INDEX_URL")),
		FindLinks: strings.Fields(get("PIP_FIND_LINKS")), NoIndex: none == "1" || none == "true" || none == "yes" || none == "on",
		NPMRegistry: get("NPM_CONFIG_REGISTRY", "npm_config_registry"),
	}
}

// merged is the sandbox's requirements with the tool's, which replace those of
// the same name. The error names what cannot be.
func merged(language string, sandbox, tool []api.Requirement) ([]api.Requirement, error) {
	ours, err := (api.EnvironmentSpec{Language: language, Requirements: tool}).Normalized()
	if err != nil {
		return nil, err
	}
	theirs, err := (api.EnvironmentSpec{Language: language, Requirements: sandbox}).Normalized()
	if err != nil {
		return nil, err
	}
	plain := func(name string) string {
		name, _, _ = strings.Cut(name, "[") // without its extras
		return name
	}
	replaced := map[string]bool{}
	for _, r := range ours.Requirements {
		replaced[plain(r.Name)] = true
	}
	all := ours.Requirements
	for _, r := range theirs.Requirements {
		if !replaced[plain(r.Name)] {
			all = append(all, r)
		}
	}
	return all, nil
}
