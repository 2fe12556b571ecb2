package function

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
	"berth/slots"
)

func TestEveryStoredVariableReachesARun(t *testing.T) {
	f := newFleet(1)
	r, store := runner(t, f, nil)
	c, err := store.Default(t.Context(), "acme", "isolated")
	require.NoError(t, err)
	const n = 120 // more than any page of a list has
	for i := range n {
		_, err := store.PutVariable(t.Context(), "acme", c.ID, poolapi.EnvironmentVariableRequest{Key: fmt.Sprintf("V%d", i), Value: fmt.Sprint(i)})
		require.NoError(t, err)
	}
	_, err = r.Run(t.Context(), "acme", python("x"), nil)
	require.NoError(t, err)
	env := f.last().Env
	for i := range n {
		if value := env[fmt.Sprintf("V%d", i)]; assert.NotNil(t, value, i) {
			assert.Equal(t, fmt.Sprint(i), *value)
		}
	}
}

func TestWhatARunSaysOfItselfReachesItsSlot(t *testing.T) {
	f := newFleet(1)
	r, _ := runner(t, f, nil)
	run := python("source")
	run.Tool.ID, run.Tool.ReturnCharLimit, run.TimeoutS = "tool-1", 7, api.Seconds(2.5)
	run.Tool.ArgsJSONSchema = json.RawMessage(`{"properties":{"n":{"type":"integer"}}}`)
	run.Args = map[string]json.RawMessage{"n": json.RawMessage(`"3"`), "other": json.RawMessage(`"3"`)}
	run.Agent = &poolapi.ToolAgent{ID: "a", ProjectID: "p", State: json.RawMessage(`"gASVAQ=="`), StateEncoding: "pickle+base64", ReturnState: true}
	got, err := r.Run(t.Context(), "acme", run, nil)
	require.NoError(t, err)
	sent, call := f.last(), f.sent[0]
	assert.Equal(t, []string{"f", "source", "python", "tool-1"}, []string{sent.Name, sent.SourceCode, sent.SourceType, sent.ToolID})
	assert.Equal(t, 7, sent.ReturnCharLimit)
	assert.JSONEq(t, `3`, string(sent.Args["n"]), "it is coerced by the only schema there is")
	assert.JSONEq(t, `"3"`, string(sent.Args["other"]))
	assert.Equal(t, string(run.Tool.ArgsJSONSchema), string(sent.ArgsJSONSchema))
	assert.Equal(t, &api.FunctionAgent{ID: "a", ProjectID: "p", State: run.Agent.State, StateEncoding: "pickle+base64", ReturnState: true}, sent.Agent, "a pickle passes through unopened")
	assert.Equal(t, got.ExecutionID, call.ExecutionID)
	limit, err := call.Timeout.Duration(0, 1<<62)
	require.NoError(t, err)
	assert.InEpsilon(t, 2.5, limit.Seconds(), 1e-9)

	_, err = r.Run(t.Context(), "acme", python("x"), nil)
	require.NoError(t, err)
	limit, err = f.sent[1].Timeout.Duration(0, 1<<62)
	require.NoError(t, err)
	assert.InEpsilon(t, 180, limit.Seconds(), 1e-9, "the timeout of a run that names none")
}

func TestWhoAsksForIsolationNeverGetsLess(t *testing.T) {
	local := newFleet(1)
	r, store := runner(t, nil, local)
	yes := true
	_, err := store.PatchOrganization(t.Context(), "trusted", poolapi.OrganizationPatch{PrivilegedTools: &yes})
	require.NoError(t, err)
	for _, c := range []struct {
		organization string
		asked        poolapi.SandboxType
		runs         bool
	}{
		{"trusted", "auto", true},
		{"trusted", "local", true},
		{"trusted", "isolated", false}, // there is no pool, and the host is no replacement
		{"trusted", "e2b", false},
		{"acme", "auto", false},
		{"acme", "local", false},
		{"acme", "isolated", false},
	} {
		run := python("x")
		run.Sandbox = &poolapi.ToolSandbox{Type: c.asked}
		got, err := r.Run(t.Context(), c.organization, run, nil)
		if c.runs {
			require.NoError(t, err)
			assert.Equal(t, poolapi.SandboxLocal, got.Sandbox.Type)
			continue
		}
		assert.Equal(t, slots.KindUnavailable, slots.AsError(err).Kind, "%+v: %v", c, err)
	}
	assert.Len(t, local.calls, 2)
}

// TestALargeSchemaIsReadOnce coerces many values by one schema that takes long
// to read: a million times it would take hours.
func TestALargeSchemaIsReadOnce(t *testing.T) {
	item := `{"type":"integer","description":"` + strings.Repeat("x", 1<<20) + `"}`
	many := "[" + strings.Repeat(`"7",`, 20_000) + "7]"
	got, err := coerceArgs(json.RawMessage(`{"properties":{"a":{"type":"array","items":`+item+`}}}`), map[string]json.RawMessage{"a": json.RawMessage(many)})
	require.NoError(t, err)
	assert.Equal(t, strings.ReplaceAll(many, `"`, ""), string(got["a"]))

	choices := `{"anyOf":[` + strings.Repeat(`{"type":"object"},`, 10_000) + `{"type":"null"}]}`
	_, err = coerceArgs(json.RawMessage(`{"properties":{"a":{"type":"array","items":`+choices+`}}}`), map[string]json.RawMessage{"a": json.RawMessage(many)})
	require.ErrorContains(t, err, `argument "a" must be`)
	assert.Less(t, len(err.Error()), 1<<20)
	_, err = coerceArgs(json.RawMessage(`{"properties":{"a":{"type":"array","items":`+strings.Replace(choices, `"null"`, `"integer"`, 1)+`}}}`), map[string]json.RawMessage{"a": json.RawMessage(many)})
	require.ErrorContains(t, err, "smaller, or its schema simpler")
}

func TestTheRequirementsFileOfALocalSandboxCounts(t *testing.T) {
	local := newFleet(1)
	r, store := runner(t, nil, local)
	yes := true
	_, err := store.PatchOrganization(t.Context(), "acme", poolapi.OrganizationPatch{PrivilegedTools: &yes})
	require.NoError(t, err)
	place, err := r.config.Local(t.Context(), "acme")
	require.NoError(t, err)
	below := filepath.Join(place.Home, "below")
	require.NoError(t, os.MkdirAll(below, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(place.Home, "requirements.txt"), []byte("elsewhere\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(below, "requirements.txt"), []byte("# ours\nfile==1\nConfig==1\ntool==1\n"), 0o600))
	run := python("x")
	run.Tool.PipRequirements = []api.Requirement{{Name: "tool", Version: "3"}}
	settings := func(more string) json.RawMessage {
		return json.RawMessage(fmt.Sprintf(`{"sandbox_dir":%q,"pip_requirements":[{"name":"config","version":"2"},{"name":"tool","version":"2"}]%s}`, below, more))
	}
	run.Sandbox = &poolapi.ToolSandbox{Type: poolapi.SandboxLocal, Config: settings("")}
	_, err = r.Run(t.Context(), "acme", run, nil)
	require.NoError(t, err)
	require.Len(t, local.ensured, 1)
	assert.Equal(t, []api.Requirement{{Name: "config", Version: "==2"}, {Name: "file", Version: "==1"}, {Name: "tool", Version: "==3"}}, sorted(local.ensured[0].Requirements),
		"the tool's go before the config's, those before the file's")
	assert.Equal(t, "below", local.last().Directory)
	key := local.last().Environment
	assert.NotEmpty(t, key)

	// What is kept for callers that set it changes nothing of the run.
	run.Sandbox.Config = settings(`,"use_venv":true,"venv_name":"mine"`)
	_, err = r.Run(t.Context(), "acme", run, nil)
	require.NoError(t, err)
	assert.Equal(t, key, local.last().Environment)
	assert.Equal(t, "below", local.last().Directory)
	assert.Len(t, local.ensured, 1)
}

func sorted(all []api.Requirement) []api.Requirement {
	return slices.SortedFunc(slices.Values(all), func(a, b api.Requirement) int { return strings.Compare(a.Name, b.Name) })
}

func TestAnEnvironmentIsBuiltAnewWhenThatIsAskedFor(t *testing.T) {
	f, local := newFleet(1), newFleet(1)
	r, store := runner(t, f, local)
	run := python("x")
	run.Tool.PipRequirements = []api.Requirement{{Name: "a"}}
	_, err := r.Run(t.Context(), "acme", run, nil)
	require.NoError(t, err)
	run.Sandbox = &poolapi.ToolSandbox{Recreate: true}
	_, err = r.Run(t.Context(), "acme", run, nil)
	require.NoError(t, err)
	assert.Equal(t, []bool{false, true}, f.anew)

	_, err = store.Put(t.Context(), "acme", "local", json.RawMessage(`{"pip_requirements":[{"name":"b","version":"1"}]}`))
	require.NoError(t, err)
	_, err = r.Recreate(t.Context(), "acme")
	assert.Equal(t, slots.KindDenied, slots.AsError(err).Kind, "what packages run when they are built is no less than a tool")
	assert.Empty(t, local.ensured)
	yes := true
	for _, organization := range []string{"acme", "plain"} {
		_, err = store.PatchOrganization(t.Context(), organization, poolapi.OrganizationPatch{PrivilegedTools: &yes})
		require.NoError(t, err)
	}
	_, err = r.Recreate(t.Context(), "plain")
	require.NoError(t, err)
	assert.Empty(t, local.ensured, "it requires nothing")
	c, err := r.Recreate(t.Context(), "acme")
	require.NoError(t, err)
	assert.Equal(t, poolapi.SandboxLocal, c.Type)
	assert.Equal(t, []bool{true}, local.anew)
	assert.Equal(t, []api.Requirement{{Name: "b", Version: "==1"}}, local.ensured[0].Requirements)
	local.failure = &api.EnvironmentFailure{Requirement: "b==1", Message: "no such version"}
	_, err = r.Recreate(t.Context(), "acme")
	require.ErrorContains(t, err, "no such version")
}
