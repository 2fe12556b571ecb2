package poolapi

import (
	"encoding/json"
	"time"

	"berth/sandboxd/api"
)

// HeaderOrganization is the header that names the organisation that a request
// about function tools is for; without it that is DefaultOrganization.
const HeaderOrganization = "Berth-Organization"

// DefaultOrganization is whose a request is that names nobody.
const DefaultOrganization = "default"

// SandboxType is where function tools run.
type SandboxType string

// The types of sandboxes. On the way in, e2b is another name of isolated.
const (
	SandboxLocal    SandboxType = "local"    // on the orchestrator's host
	SandboxIsolated SandboxType = "isolated" // in a slot of the pool
	SandboxE2B      SandboxType = "e2b"
)

// LocalSettings is what can be set about a local sandbox.
type LocalSettings struct {
	SandboxDir      string            `json:"sandbox_dir,omitempty"` // the organization's own directory on the host, or below; its requirements.txt counts
	UseVenv         bool              `json:"use_venv"`              // kept; an environment is always built apart
	VenvName        string            `json:"venv_name"`             // default venv
	PipRequirements []api.Requirement `json:"pip_requirements"`      // default none
}

// IsolatedSettings is what can be set about an isolated sandbox.
type IsolatedSettings struct {
	Template        string            `json:"template,omitempty"` // of the pool; "": the one of trajectories
	TimeoutS        int64             `json:"timeout_s"`          // how long a slot is kept warm after a run; default 300
	PipRequirements []api.Requirement `json:"pip_requirements"`   // default none
	NpmRequirements []api.Requirement `json:"npm_requirements"`   // default none
}

// SandboxConfig is how the function tools of one organisation run in sandboxes
// of one type. Config is a LocalSettings or an IsolatedSettings with nothing
// left out that has a default.
type SandboxConfig struct {
	ID             string          `json:"id"`
	Type           SandboxType     `json:"type"`
	OrganizationID string          `json:"organization_id"`
	Config         json.RawMessage `json:"config"`
	Fingerprint    string          `json:"fingerprint"` // changes exactly when the config does
	CreatedAt      time.Time       `json:"created_at"`
	UpdatedAt      time.Time       `json:"updated_at"`
}

// SandboxConfigRequest is the body of POST and PATCH /v1/sandbox-config. The
// answer is the SandboxConfig.
type SandboxConfigRequest struct {
	Type   SandboxType     `json:"type,omitempty"` // required in a POST; in a PATCH it may only say what is so
	Config json.RawMessage `json:"config"`         // an object; null takes a setting back to its default
}

// SandboxConfigs answers GET /v1/sandbox-config, in the order in which they
// were made.
type SandboxConfigs struct {
	SandboxConfigs []SandboxConfig `json:"sandbox_configs"`
	After          string          `json:"after,omitempty"` // names the next page; absent on the last
}

// MaskedValue stands for the value of a variable that is not revealed.
const MaskedValue = "********"

// EnvironmentVariable is one variable of a sandbox config.
type EnvironmentVariable struct {
	ID              string    `json:"id"`
	SandboxConfigID string    `json:"sandbox_config_id"`
	OrganizationID  string    `json:"organization_id"`
	Key             string    `json:"key"`
	Value           string    `json:"value"` // MaskedValue unless Revealed
	Revealed        bool      `json:"revealed"`
	Description     string    `json:"description,omitempty"`
	CreatedAt       time.Time `json:"created_at"`
	UpdatedAt       time.Time `json:"updated_at"`
}

// EnvironmentVariableRequest is the body of POST
// /v1/sandbox-config/{id}/environment-variable, which makes the variable of
// that key or replaces it. The answer is the EnvironmentVariable, masked.
type EnvironmentVariableRequest struct {
	Key         string `json:"key"`
	Value       string `json:"value"`
	Description string `json:"description,omitempty"`
}

// EnvironmentVariablePatch is the body of PATCH
// /v1/sandbox-config/environment-variable/{id}: what is absent stays.
type EnvironmentVariablePatch struct {
	Key         *string `json:"key,omitempty"`
	Value       *string `json:"value,omitempty"`
	Description *string `json:"description,omitempty"`
}

// EnvironmentVariables answers GET
// /v1/sandbox-config/{id}/environment-variable, in the order in which they were
// made.
type EnvironmentVariables struct {
	EnvironmentVariables []EnvironmentVariable `json:"environment_variables"`
	After                string                `json:"after,omitempty"` // names the next page; absent on the last
}

// Deleted answers the deletion of what has an ID.
type Deleted struct {
	ID      string `json:"id"`
	Deleted bool   `json:"deleted"` // always true
}

// Organization is whose function tools are kept apart from everybody else's.
// There is one of every name; none is privileged until it is said.
type Organization struct {
	ID              string `json:"id"`
	PrivilegedTools bool   `json:"privileged_tools"` // its tools run on the orchestrator's host
}

// OrganizationPatch is the body of PATCH /v1/organizations/{id}: what is absent
// stays.
type OrganizationPatch struct {
	PrivilegedTools *bool `json:"privileged_tools,omitempty"`
}
