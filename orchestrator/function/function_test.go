package function

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
	"berth/orchestrator/config"
	"berth/orchestrator/dispatch"
	"berth/orchestrator/pool"
	"berth/orchestrator/poolapi"
	"berth/orchestrator/strip"
	"berth/sandboxd/api"
	"berth/slots"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == strip.Role {
		os.Exit(strip.Main(os.Args[2]))
	}
	os.Exit(m.Run())
}

// fleet is a place of a few slots that records what is done there.
type fleet struct {
	n        int
	mu       sync.Mutex
	free     []string // slots
	tokens   uint64
	owner    map[string]string // of a slot that was not reset since: the organisation
	leaks    []string
	released int
	calls    []api.FunctionArgs
	ensured  []api.EnvironmentSpec
	anew     []bool // whether each was to be built anew
	sent     []api.Call
	failure  *api.EnvironmentFailure
	fail     func(lease pool.Lease) error // of a call
	gate     chan struct{}                // a call waits for it
}

func newFleet(n int) *fleet {
	f := &fleet{n: n, owner: map[string]string{}}
	for i := range n {
		f.free = append(f.free, fmt.Sprintf("slot_%d", i))
	}
	return f
}

func (f *fleet) Acquire(ctx context.Context, want pool.Request) (pool.Lease, error) {
	for until := time.Now().Add(want.Wait); ; {
		f.mu.Lock()
		if len(f.free) > 0 {
			break
		}
		f.mu.Unlock()
		if !time.Now().Before(until) {
			return pool.Lease{}, slots.Errorf(slots.KindPoolExhausted, "no slot")
		}
		select {
		case <-ctx.Done():
			return pool.Lease{}, slots.Errorf(slots.KindInterrupted, "gone")
		case <-time.After(time.Millisecond):
		}
	}
	defer f.mu.Unlock()
	id := f.free[0]
	f.free = f.free[1:]
	f.tokens++
	organization := want.Labels["organization"]
	if had := f.owner[id]; had != "" {
		f.leaks = append(f.leaks, had+" to "+organization)
	}
	f.owner[id] = organization + " " + want.Labels["fingerprint"]
	return pool.Lease{Container: backend.Container{ID: "c"}, Slot: slots.Lease{
		SlotID: id, Token: f.tokens, Trajectory: want.Trajectory, TTL: want.TTL, ExpiresAt: time.Now().Add(want.TTL),
	}}, nil
}

func (f *fleet) Waiting(string) int { return 0 } // its users wait in Acquire, and all are runs

func (f *fleet) Renew(_ context.Context, ref pool.Ref, ttl time.Duration) (pool.Lease, error) {
	return pool.Lease{Container: backend.Container{ID: "c"}, Slot: slots.Lease{SlotID: ref.SlotID, Token: ref.Token, TTL: ttl, ExpiresAt: time.Now().Add(ttl)}}, nil
}

func (f *fleet) Release(_ context.Context, ref pool.Ref, reset bool) (*slots.Receipt, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if reset {
		f.owner[ref.SlotID] = ""
	}
	f.released++
	f.free = append(f.free, ref.SlotID)
	return &slots.Receipt{}, nil
}

func (f *fleet) Do(_ context.Context, lease pool.Lease, call dispatch.Call) (dispatch.Answer, error) {
	f.mu.Lock()
	fail, gate := f.fail, f.gate
	var args api.FunctionArgs
	if err := json.Unmarshal(call.Args, &args); err != nil {
		f.mu.Unlock()
		return dispatch.Answer{}, err
	}
	f.calls, f.sent = append(f.calls, args), append(f.sent, call.Call)
	f.mu.Unlock()
	if gate != nil {
		<-gate
	}
	if fail != nil {
		if err := fail(lease); err != nil {
			return dispatch.Answer{}, err
		}
	}
	return dispatch.Answer{Result: api.Result{Function: json.RawMessage(`{"status":"success","func_return":123456789012345678901234567890,"text":"1","stdout":[],"stderr":[]}`)}}, nil
}

func (f *fleet) Ensure(_ context.Context, _ pool.Lease, spec api.EnvironmentSpec, anew bool, _ func(string)) (api.EnvironmentResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ensured, f.anew = append(f.ensured, spec), append(f.anew, anew)
	return api.EnvironmentResult{Failure: f.failure}, nil
}

func (f *fleet) last() api.FunctionArgs {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[len(f.calls)-1]
}

func runner(t *testing.T, isolated, local *fleet) (*Runner, *config.Store) {
	t.Helper()
	keys, err := config.ParseKeys(config.NewKey())
	require.NoError(t, err)
	store, err := config.Open(t.Context(), config.Config{Path: filepath.Join(t.TempDir(), "config.db"), Keys: keys})
	require.NoError(t, err)
	c := Config{Environ: []string{"HOST=1", "SHARED=host"}, Wait: 30 * time.Second, Strip: strip.New(strip.Config{})}
	if isolated != nil {
		c.Isolated = &Place{Leases: isolated, Calls: isolated, Template: "main"}
	}
	if local != nil {
		place := &Place{Leases: local, Calls: local, Template: "local", Home: filepath.Join(t.TempDir(), "home")}
		c.Local = func(context.Context, string) (*Place, error) { return place, nil }
	}
	r := New(store, c)
	t.Cleanup(func() {
		assert.NoError(t, r.Close())
		assert.NoError(t, store.Close())
		for _, f := range []*fleet{isolated, local} {
			if f != nil {
				assert.Empty(t, f.leaks, "a slot came to somebody else without a reset")
				assert.Len(t, f.free, f.n, "all slots are given back")
			}
		}
	})
	return r, store
}

func python(source string) *poolapi.ToolRun {
	return &poolapi.ToolRun{Tool: poolapi.Tool{Name: "f", SourceCode: source, SourceType: "python"}}
}

func TestArgumentsAreCoercedByTheSchemaOrRefusedByName(t *testing.T) {
	const schema = `{"name":"f","parameters":{"type":"object","properties":{"i":{"type":"integer"},"n":{"type":"number"},"b":{"type":"boolean"},
		"s":{"type":"string"},"a":{"type":"array","items":{"type":"integer"}},"o":{"type":"object","properties":{"x":{"type":"integer"}}},
		"m":{"type":["integer","null"]},"u":{"anyOf":[{"type":"integer"},{"type":"string"}]}}}}`
	for _, c := range []struct{ name, give, want string }{
		{"i", `"42"`, `42`},
		{"i", `42`, `42`},
		{"i", `42.0`, `42`},
		{"i", `1e2`, `100`},
		{"i", `"123456789012345678901234567890"`, `123456789012345678901234567890`},
		{"i", `123456789012345678901234567890`, `123456789012345678901234567890`},
		{"n", `"1.50"`, `1.50`},
		{"n", `7`, `7`},
		{"b", `"True"`, `true`},
		{"b", `"false"`, `false`},
		{"s", `"true"`, `"true"`},
		{"s", `"__import__('os').system('id')"`, `"__import__('os').system('id')"`},
		{"s", `5`, `"5"`},
		{"a", `"[1, 2]"`, `[1,2]`},
		{"a", `["1",2]`, `[1,2]`},
		{"o", `{"y":1,"x":"2"}`, `{"x":2,"y":1}`},
		{"m", `null`, `null`},
		{"m", `"3"`, `3`},
		{"u", `"3"`, `"3"`},
		{"other", `"3"`, `"3"`},
	} {
		got, err := coerceArgs(json.RawMessage(schema), map[string]json.RawMessage{c.name: json.RawMessage(c.give)})
		require.NoError(t, err, c.give)
		assert.Equal(t, c.want, string(got[c.name]), c.give)
	}
	for name, give := range map[string]string{
		"i": `"secret"`, "n": `"NaN"`, "b": `"yes"`, "a": `"__import__('os')"`, "o": `[1]`, "s": `{}`, "u": `[]`,
	} {
		_, err := coerceArgs(json.RawMessage(schema), map[string]json.RawMessage{name: json.RawMessage(give)})
		require.ErrorContains(t, err, `argument "`+name+`" must be`, give)
		assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind)
		assert.NotContains(t, err.Error(), "secret")
	}
	for _, give := range []string{`1.5`, `true`, `"1.5"`, `""`, `[]`} {
		_, err := coerceArgs(json.RawMessage(schema), map[string]json.RawMessage{"i": json.RawMessage(give)})
		require.Error(t, err, give)
	}
}

func TestEnvironmentsAreLayered(t *testing.T) {
	f, l := newFleet(2), newFleet(2)
	r, store := runner(t, f, l)
	c, err := store.Default(t.Context(), "acme", "isolated")
	require.NoError(t, err)
	for _, key := range []string{"A", "B", "C", "D", "GONE", "LETTA_TOOL_ID", "TERM"} {
		_, err := store.PutVariable(t.Context(), "acme", c.ID, poolapi.EnvironmentVariableRequest{Key: key, Value: "config"})
		require.NoError(t, err)
	}
	run := python("x")
	run.Tool.ID = "tool-1"
	run.SandboxEnv = map[string]*string{"B": new("sandbox"), "C": new("sandbox"), "D": new("sandbox"), "LETTA_PROJECT_ID": new("forged")}
	run.Agent = &poolapi.ToolAgent{ID: "agent-1", Secrets: map[string]*string{"C": new("agent"), "D": new("agent")}}
	run.Env = map[string]*string{"D": new(""), "GONE": nil, "LETTA_AGENT_ID": new("forged"), "TERM": new("xterm")}
	_, err = r.Run(t.Context(), "acme", run, nil)
	require.NoError(t, err)
	env := f.last().Env
	for key, want := range map[string]string{
		"A": "config", "B": "sandbox", "C": "agent", "D": "", "LETTA_AGENT_ID": "agent-1", "LETTA_TOOL_ID": "tool-1",
		"PYTHONWARNINGS": "ignore", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUNBUFFERED": "1",
	} {
		require.NotNil(t, env[key], key)
		assert.Equal(t, want, *env[key], key)
	}
	for _, key := range []string{"GONE", "LETTA_PROJECT_ID"} {
		value, there := env[key]
		assert.True(t, there && value == nil, key)
	}
	assert.NotContains(t, env, "HOST", "an isolated sandbox sees nothing of the host's")

	yes := true
	_, err = store.PatchOrganization(t.Context(), "acme", poolapi.OrganizationPatch{PrivilegedTools: &yes})
	require.NoError(t, err)
	local := python("x")
	local.Env = map[string]*string{"SHARED": new("mine")}
	_, err = r.Run(t.Context(), "acme", local, nil)
	require.NoError(t, err)
	assert.Equal(t, "1", *l.last().Env["HOST"])
	assert.Equal(t, "mine", *l.last().Env["SHARED"])
	assert.NotContains(t, l.last().Env, "A", "that is another config's")

	local.Env = map[string]*string{"A-B": new("hunter2")}
	_, err = r.Run(t.Context(), "acme", local, nil)
	require.ErrorContains(t, err, "A-B")
	assert.NotContains(t, err.Error(), "hunter2")
}

func TestRunsGoWhereTheirOrganizationMayRunThem(t *testing.T) {
	f, l := newFleet(2), newFleet(2)
	r, store := runner(t, f, l)
	yes := true
	_, err := store.PatchOrganization(t.Context(), "trusted", poolapi.OrganizationPatch{PrivilegedTools: &yes})
	require.NoError(t, err)
	for _, c := range []struct {
		organization string
		asked, want  poolapi.SandboxType
	}{
		{"acme", "", "isolated"},
		{"acme", "auto", "isolated"},
		{"acme", "local", "isolated"},
		{"acme", "e2b", "isolated"},
		{"trusted", "", "local"},
		{"trusted", "local", "local"},
		{"trusted", "isolated", "isolated"},
		{"trusted", "e2b", "isolated"},
	} {
		run := python("x")
		run.Sandbox = &poolapi.ToolSandbox{Type: c.asked}
		got, err := r.Run(t.Context(), c.organization, run, nil)
		require.NoError(t, err)
		assert.Equal(t, c.want, got.Sandbox.Type, "%s asks for %q", c.organization, c.asked)
		assert.Equal(t, "123456789012345678901234567890", string(got.FuncReturn))
	}
	foreign, err := store.Default(t.Context(), "trusted", "isolated")
	require.NoError(t, err)
	run := python("x")
	run.Sandbox = &poolapi.ToolSandbox{ConfigID: foreign.ID}
	_, err = r.Run(t.Context(), "acme", run, nil)
	assert.Equal(t, slots.KindNotFound, slots.AsError(err).Kind)
	run.Sandbox.Type = "local"
	_, err = r.Run(t.Context(), "trusted", run, nil)
	assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind)
}

func TestASlotIsUsedAgainBySameOrganizationAndFingerprintAlone(t *testing.T) {
	f := newFleet(1)
	r, store := runner(t, f, nil)
	do := func(organization string, sandbox *poolapi.ToolSandbox) poolapi.ToolResult {
		t.Helper()
		run := python("x")
		run.Sandbox = sandbox
		got, err := r.Run(t.Context(), organization, run, nil)
		require.NoError(t, err)
		return got
	}
	no := false
	first := do("acme", nil)
	assert.False(t, first.Sandbox.Reused)
	assert.True(t, do("acme", nil).Sandbox.Reused)
	assert.True(t, do("acme", &poolapi.ToolSandbox{Config: json.RawMessage(`{}`)}).Sandbox.Reused, "it is the same config")
	c, err := store.Default(t.Context(), "acme", "isolated")
	require.NoError(t, err)
	assert.Equal(t, c.Fingerprint, first.Fingerprint)
	_, err = store.PutVariable(t.Context(), "acme", c.ID, poolapi.EnvironmentVariableRequest{Key: "A", Value: "b"})
	require.NoError(t, err)
	assert.True(t, do("acme", nil).Sandbox.Reused, "variables need no other slot")
	assert.Zero(t, f.released)
	other := do("acme", &poolapi.ToolSandbox{Config: json.RawMessage(`{"timeout_s":5}`)})
	assert.False(t, other.Sandbox.Reused)
	assert.NotEqual(t, first.Fingerprint, other.Fingerprint)
	assert.False(t, do("globex", nil).Sandbox.Reused, "its only slot was another's: it is reset")
	assert.True(t, do("globex", nil).Sandbox.Reused)
	assert.False(t, do("globex", &poolapi.ToolSandbox{Reuse: &no}).Sandbox.Reused)
}

func TestManyTenantsShareFewSlotsAndNothingLeaks(t *testing.T) {
	f := newFleet(3)
	r, _ := runner(t, f, nil)
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			_, err := r.Run(context.Background(), fmt.Sprintf("org-%d", i%7), python("x"), nil)
			assert.NoError(t, err)
		})
	}
	all.Wait()
	assert.Len(t, f.calls, 60)
}

func TestAnIdleSlotIsGivenBackWhenItsTimeIsOver(t *testing.T) {
	f := newFleet(1)
	r, _ := runner(t, f, nil)
	run := python("x")
	run.Sandbox = &poolapi.ToolSandbox{Config: json.RawMessage(`{"timeout_s":1}`)}
	_, err := r.Run(t.Context(), "acme", run, nil)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.released == 1
	}, 30*time.Second, 10*time.Millisecond)
}

func TestARunSurvivesTheLossOfAWarmSlot(t *testing.T) {
	f := newFleet(2)
	r, _ := runner(t, f, nil)
	_, err := r.Run(t.Context(), "acme", python("x"), nil)
	require.NoError(t, err)
	f.fail = func(lease pool.Lease) error {
		if lease.Slot.Token == 1 {
			return slots.Errorf(slots.KindLeaseExpired, "it is over")
		}
		return nil
	}
	got, err := r.Run(t.Context(), "acme", python("x"), nil)
	require.NoError(t, err)
	assert.False(t, got.Sandbox.Reused)
	f.fail = func(pool.Lease) error { return slots.Errorf(slots.KindContainerUnreachable, "no answer") }
	_, err = r.Run(t.Context(), "acme", python("x"), nil)
	assert.Equal(t, slots.KindContainerUnreachable, slots.AsError(err).Kind, "what may have run is not run again")
}

func TestRequirementsOfAToolReplaceTheSandboxs(t *testing.T) {
	f := newFleet(1)
	r, store := runner(t, f, nil)
	_, err := store.Put(t.Context(), "acme", "isolated", json.RawMessage(`{"pip_requirements":[{"name":"My_Pkg","version":"1"},{"name":"other"}],"npm_requirements":[{"name":"left-pad"}]}`))
	require.NoError(t, err)
	c, err := store.Default(t.Context(), "acme", "isolated")
	require.NoError(t, err)
	_, err = store.PutVariable(t.Context(), "acme", c.ID, poolapi.EnvironmentVariableRequest{Key: "PIP_INDEX_URL", Value: "http://127.0.0.1:1/simple"})
	require.NoError(t, err)
	run := python("x")
	run.Tool.PipRequirements = []api.Requirement{{Name: "my.pkg", Version: "2"}}
	got, err := r.Run(t.Context(), "acme", run, nil)
	require.NoError(t, err)
	assert.False(t, got.Sandbox.EnvCached)
	require.Len(t, f.ensured, 1)
	assert.Equal(t, []api.Requirement{{Name: "my-pkg", Version: "==2"}, {Name: "other"}}, f.ensured[0].Requirements)
	assert.Equal(t, "http://127.0.0.1:1/simple", f.ensured[0].Index.IndexURL)
	key, err := f.ensured[0].Key()
	require.NoError(t, err)
	assert.Equal(t, key, f.last().Environment)
	got, err = r.Run(t.Context(), "acme", run, nil)
	require.NoError(t, err)
	assert.True(t, got.Sandbox.EnvCached)
	assert.Len(t, f.ensured, 1, "nobody is asked twice")

	gone := true
	f.fail = func(pool.Lease) error {
		if gone {
			gone = false
			return slots.Errorf(slots.KindNotFound, "no such environment")
		}
		return nil
	}
	_, err = r.Run(t.Context(), "acme", run, nil)
	require.NoError(t, err)
	assert.Len(t, f.ensured, 2, "one that was evicted is built again")

	run.Tool.PipRequirements = []api.Requirement{{Name: "x; rm -rf /"}}
	_, err = r.Run(t.Context(), "acme", run, nil)
	assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind)
	_, err = r.Run(t.Context(), "plain", python("x"), nil)
	require.NoError(t, err)
	assert.Len(t, f.ensured, 2, "without packages nothing is built")
}

func TestAnInstallThatFailsIsAResultAndLeaksNoSlot(t *testing.T) {
	f := newFleet(1)
	f.failure = &api.EnvironmentFailure{Kind: "install", Requirement: "nope==9", Message: "no such version"}
	r, _ := runner(t, f, nil)
	run := python("x")
	run.Tool.PipRequirements = []api.Requirement{{Name: "nope", Version: "9"}}
	for range 3 {
		got, err := r.Run(t.Context(), "acme", run, nil)
		require.NoError(t, err)
		assert.Equal(t, "error", got.Status)
		assert.Equal(t, api.FunctionInstall, got.Error.Kind)
		for _, part := range []string{"nope==9", "tool f", "isolated sandbox", "package version incompatibility", "Consider updating the package version or removing the version constraint"} {
			assert.Contains(t, got.Text, part)
		}
	}
	assert.Empty(t, f.calls)
}

func TestTypeScriptIsStripped(t *testing.T) {
	f := newFleet(1)
	r, _ := runner(t, f, nil)
	run := &poolapi.ToolRun{Tool: poolapi.Tool{Name: "f", SourceType: "typescript", SourceCode: "import {\n  a,\n  b,\n} from 'x';\nimport type { T } from 'y';\nenum E { A = 1 }\nexport async function f(p: number, q?: T): Promise<E> { return a(b as any) ?? E.A }\n"}}
	_, err := r.Run(t.Context(), "acme", run, nil)
	require.ErrorContains(t, err, "TypeScript tools require an explicit json_schema parameter")
	run.Tool.JSONSchema = json.RawMessage(`{"type":"object","properties":{"q":{"type":"string"},"p":{"type":"number"}},"required":["p"]}`)
	run.Agent = &poolapi.ToolAgent{ID: "a", State: json.RawMessage(`{}`)}
	_, err = r.Run(t.Context(), "acme", run, nil)
	require.NoError(t, err)
	sent := f.last()
	assert.Equal(t, "javascript", sent.SourceType)
	assert.Contains(t, sent.SourceCode, "export")
	assert.NotContains(t, sent.SourceCode, ": number")
	assert.NotContains(t, sent.SourceCode, `"y"`)
	assert.Contains(t, sent.SourceCode, "async function f(p, q)")
	assert.Equal(t, string(run.Tool.JSONSchema), string(sent.JSONSchema), "its parameters are in their order")
	assert.Nil(t, sent.Agent.State)
	run.Tool.SourceCode = "function f( { secret"
	got, err := r.Run(t.Context(), "acme", run, nil)
	require.NoError(t, err)
	assert.Equal(t, "SyntaxError", got.Error.Name)
	assert.Contains(t, got.Text, "Error executing function f: SyntaxError: line 1")
	assert.Equal(t, "null", string(got.FuncReturn))
	assert.Equal(t, api.FunctionException, got.Error.Kind)
	assert.Regexp(t, "^line 1, ", got.Error.Message, "the sentence is the text alone, as of every other exception")
	run.Tool.Name = strings.Repeat("f", maxName)
	run.Tool.SourceCode = strings.Repeat("(", 1000) + strings.Repeat("\nlet x: = 1", 10) + strings.Repeat("a", 2000) + "😀"
	got, err = r.Run(t.Context(), "acme", run, nil)
	require.NoError(t, err)
	assert.LessOrEqual(t, len([]rune(got.Text)), 1000)
}

func TestARequestThatCannotBeIsRefused(t *testing.T) {
	f := newFleet(1)
	r, _ := runner(t, f, nil)
	for want, change := range map[string]func(*poolapi.ToolRun){
		"tool.name":         func(r *poolapi.ToolRun) { r.Tool.Name = "" },
		"tool.source_code":  func(r *poolapi.ToolRun) { r.Tool.SourceCode = "" },
		"tool.source_type":  func(r *poolapi.ToolRun) { r.Tool.SourceType = "ruby" },
		"return_char_limit": func(r *poolapi.ToolRun) { r.Tool.ReturnCharLimit = -1 },
		"timeout_s":         func(r *poolapi.ToolRun) { r.TimeoutS = api.Seconds(-1) },
		"type must be":      func(r *poolapi.ToolRun) { r.Sandbox = &poolapi.ToolSandbox{Type: "docker"} },
		"one of them": func(r *poolapi.ToolRun) {
			r.Sandbox = &poolapi.ToolSandbox{ConfigID: "x", Config: json.RawMessage(`{}`)}
		},
		"state_encoding":        func(r *poolapi.ToolRun) { r.Agent = &poolapi.ToolAgent{StateEncoding: "pickle"} },
		"no JSON schema":        func(r *poolapi.ToolRun) { r.Tool.JSONSchema = json.RawMessage(`[]`) },
		"names no organization": nil,
	} {
		run, who := python("x"), "acme"
		if change == nil {
			who = "../x"
		} else {
			change(run)
		}
		_, err := r.Run(t.Context(), who, run, nil)
		require.ErrorContains(t, err, want)
		assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind, want)
	}
	assert.Empty(t, f.calls)
}

func TestRequirementsFilesHoldNamesAndVersions(t *testing.T) {
	got, err := readRequirements(strings.NewReader("# ours\n\nhttpx[http2] >= 0.27, <1  # x\nnumpy\r\n"))
	require.NoError(t, err)
	assert.Equal(t, []api.Requirement{{Name: "httpx[http2]", Version: ">= 0.27, <1"}, {Name: "numpy"}}, got)
	for _, line := range []string{"-r other.txt", "--index-url http://x", "git+https://x/y", "a ; python_version < '3'", "./x"} {
		_, err := readRequirements(strings.NewReader("a\n" + line))
		require.ErrorContains(t, err, "line 2 of requirements.txt", line)
	}
}
