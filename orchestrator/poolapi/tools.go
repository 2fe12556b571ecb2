package poolapi

import (
	"encoding/json"

	"berth/sandboxd/api"
)

// Tool is a function tool: the source text of a function, and what it needs.
type Tool struct {
	ID              string            `json:"id,omitempty"`
	Name            string            `json:"name"` // of the function in the source
	SourceCode      string            `json:"source_code"`
	SourceType      string            `json:"source_type"`                // python, typescript or javascript
	JSONSchema      json.RawMessage   `json:"json_schema,omitempty"`      // of its parameters; TypeScript requires it
	ArgsJSONSchema  json.RawMessage   `json:"args_json_schema,omitempty"` // then nested objects arrive with attributes
	PipRequirements []api.Requirement `json:"pip_requirements,omitempty"`
	NpmRequirements []api.Requirement `json:"npm_requirements,omitempty"`
	ReturnCharLimit int               `json:"return_char_limit,omitempty"` // of ToolResult.Text, in code points; default 50000
}

// ToolAgent is for whom a tool runs.
type ToolAgent struct {
	ID            string             `json:"id"`
	ProjectID     string             `json:"project_id,omitempty"`
	Secrets       map[string]*string `json:"secrets,omitempty"` // more of its environment
	State         json.RawMessage    `json:"state,omitempty"`
	StateEncoding string             `json:"state_encoding,omitempty"` // json, the default, or pickle+base64
	ReturnState   bool               `json:"return_state,omitempty"`
}

// ToolSandbox says where a tool is to run. Absent means auto.
type ToolSandbox struct {
	Type     SandboxType     `json:"type,omitempty"` // auto, local, isolated or e2b
	ConfigID string          `json:"config_id,omitempty"`
	Config   json.RawMessage `json:"config,omitempty"`   // settings to use instead of the stored ones
	Reuse    *bool           `json:"reuse,omitempty"`    // absent means true: a slot that served the same before
	Recreate bool            `json:"recreate,omitempty"` // build the environment anew
}

// SandboxAuto leaves it to the organisation where its tools run.
const SandboxAuto SandboxType = "auto"

// ToolRun is the body of POST /v1/tools/run. Of environments, later ones win:
// the sandbox config's variables, SandboxEnv, the agent's secrets, Env; null
// removes a variable. The answer is a ToolResult.
type ToolRun struct {
	Tool       Tool                       `json:"tool"`
	Args       map[string]json.RawMessage `json:"args,omitempty"`
	Agent      *ToolAgent                 `json:"agent,omitempty"`
	SandboxEnv map[string]*string         `json:"sandbox_env,omitempty"`
	Env        map[string]*string         `json:"env,omitempty"`
	Sandbox    *ToolSandbox               `json:"sandbox,omitempty"`
	TimeoutS   api.Timeout                `json:"timeout_s,omitzero"` // default 180
}

// ToolResult is what came of a ToolRun: also of a tool that failed, whose
// Status is error.
type ToolResult struct {
	api.FunctionResult
	Fingerprint string      `json:"sandbox_config_fingerprint"`
	Sandbox     ToolPlace   `json:"sandbox"`
	Timings     ToolTimings `json:"timings_ms"`
	ExecutionID string      `json:"execution_id"`
}

// ToolEvent is one event of a streamed answer to POST /v1/tools/run: progress
// and pings, and one result as the last.
type ToolEvent struct {
	Event  api.EventName `json:"event"`
	Text   string        `json:"text,omitempty"`   // of progress: a line of the build of its environment
	Result *ToolResult   `json:"result,omitempty"` // of result, or Error
	Error  *api.Fault    `json:"error,omitempty"`  // why there was no run
}

// ToolPlace is where a tool ran.
type ToolPlace struct {
	Type      SandboxType `json:"type"`
	Container string      `json:"container"`
	SlotID    string      `json:"slot_id"`
	Reused    bool        `json:"reused"`     // the slot had served the same organisation and config
	EnvCached bool        `json:"env_cached"` // its environment was there
}

// ToolTimings is where the time of a ToolRun went, in milliseconds.
type ToolTimings struct {
	Queue float64 `json:"queue"` // until it had its slot, and its turn there
	Env   float64 `json:"env"`   // until its environment was there
	Spawn float64 `json:"spawn"`
	Run   float64 `json:"run"`
	Total float64 `json:"total"`
}
