package tool

import (
	_ "embed"
	"encoding/json"
	"maps"
	"path"
	"slices"

	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/sandbox"
)

// The programs that run functions. Their text goes to each interpreter through
// a pipe of the agent's: what a slot does to its files changes nothing of it.
var (
	//go:embed runner/boot.py
	pythonBoot string
	//go:embed runner/runner.py
	pythonRunner []byte
	//go:embed runner/boot.js
	scriptBoot string
	//go:embed runner/runner.js
	scriptRunner []byte
)

// interpreterOf is what runs the function with the packages of dir, an
// environment's; "": the image's own.
func interpreterOf(a api.FunctionArgs, dir string) sandbox.Interpreter {
	if a.SourceType == api.SourceJavaScript {
		// The packages are found by the job: one interpreter does for all.
		return sandbox.Interpreter{Key: "node", Source: scriptRunner, Once: []string{"node", "--no-warnings", "-e", scriptBoot}, Primed: true}
	}
	python := "python3"
	if dir != "" {
		python = path.Join(dir, "bin", "python3")
	}
	// Isolated: nothing that a slot can write is imported by the server. Output
	// is not buffered, so that what was printed is there when a run is killed.
	argv := []string{python, "-I", "-u", "-X", "utf8", "-W", "ignore", "-c", pythonBoot}
	return sandbox.Interpreter{
		Key: python, Source: pythonRunner,
		Serve: append(slices.Clip(argv), "serve", "3"), Once: append(slices.Clip(argv), "once", "4"),
	}
}

// functionJob is what the runner reads.
type functionJob struct {
	Name           string                     `json:"name"`
	SourceCode     string                     `json:"source_code"`
	Args           map[string]json.RawMessage `json:"args,omitempty"`
	JSONSchema     json.RawMessage            `json:"json_schema,omitempty"`
	ArgsJSONSchema json.RawMessage            `json:"args_json_schema,omitempty"`
	Env            map[string]*string         `json:"env"`                 // over the slot's own; null removes
	Directory      string                     `json:"directory,omitempty"` // where it runs, made if it is not there; "": the workspace
	Bin            string                     `json:"bin,omitempty"`       // goes before PATH
	Modules        string                     `json:"modules,omitempty"`   // goes before NODE_PATH
	Agent          *api.FunctionAgent         `json:"agent,omitempty"`
}

// forced are the variables that nobody's choice replaces.
var forced = map[string]string{"PYTHONWARNINGS": "ignore", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUNBUFFERED": "1"}

func jobOf(a api.FunctionArgs, dir, home string) functionJob {
	j := functionJob{
		Name: a.Name, SourceCode: a.SourceCode, Args: a.Args, JSONSchema: a.JSONSchema, ArgsJSONSchema: a.ArgsJSONSchema,
		Env: map[string]*string{}, Agent: a.Agent,
	}
	maps.Copy(j.Env, a.Env)
	agent := api.FunctionAgent{}
	if a.Agent != nil {
		agent = *a.Agent
	}
	// What is not known is removed: a function must not take a caller's word
	// for whom it runs.
	for name, value := range map[string]string{
		"LETTA_AGENT_ID": agent.ID, "LETTA_PROJECT_ID": agent.ProjectID, "LETTA_TOOL_ID": a.ToolID,
	} {
		j.Env[name] = nil
		if value != "" {
			j.Env[name] = &value
		}
	}
	if home != "" {
		j.Directory = path.Join(home, a.Directory)
		j.Env["PWD"] = &j.Directory
	}
	if dir != "" {
		if a.SourceType == api.SourcePython {
			j.Env["VIRTUAL_ENV"], j.Bin = &dir, path.Join(dir, "bin")
		} else {
			j.Modules = path.Join(dir, "node_modules")
			j.Bin = path.Join(j.Modules, ".bin")
		}
	}
	for name, value := range forced {
		j.Env[name] = &value
	}
	return j
}

// text is the key of the answer, and JSON.
func (j functionJob) text(key []byte) ([]byte, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return nil, slots.Errorf(slots.KindBadRequest, "arguments of the function: %w", err)
	}
	return append(slices.Clip(key), text...), nil
}
