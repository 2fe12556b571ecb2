package orchestrator_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

// TestNothingOfARunIsSaidElsewhere plants a text wherever a run has room for
// one, has runs end in every way, and then searches all that the orchestrator
// and its containers have said.
func TestNothingOfARunIsSaidElsewhere(t *testing.T) {
	const planted = "hunter2-hunter2"
	for _, program := range []string{"python3", "node"} {
		need.Program(t, program)
	}
	dir := sandboxtest.DataDir(t)
	i := start(t, dir, "--containers", "1", "--log-level", "trace")
	asOperator := "Authorization: Bearer " + operatorToken
	o := i.connect(i.url, operatorToken).Organization("default")
	c, err := o.DefaultSandbox(t.Context(), poolapi.SandboxIsolated)
	require.NoError(t, err)
	_, err = o.PutVariable(t.Context(), c.ID, poolapi.EnvironmentVariableRequest{Key: "STORED", Value: planted})
	require.NoError(t, err)
	tool := func(source, kind string) object {
		return object{"name": "f", "source_code": source, "source_type": kind, "json_schema": object{"properties": object{"x": object{"type": "string"}, "n": object{"type": "integer"}}}}
	}
	run := func(tool, change object) reply {
		body := object{
			"tool": tool, "args": object{"x": planted}, "env": object{"ENV": planted}, "sandbox_env": object{"SANDBOX": planted},
			"agent": object{"id": "a", "secrets": object{"AGENT": planted}, "state": object{"x": planted}}, "timeout_s": 20,
		}
		maps.Copy(body, change)
		return i.post("/v1/tools/run", body)
	}
	python := "def f(x):\n    return 1 # " + planted
	ran := map[string]reply{
		"Python":     run(tool(python, "python"), nil),
		"TypeScript": run(tool("export const f = (n: number, x: string) => { console.log(1); return x.length } // "+planted, "typescript"), nil),
		"JavaScript": run(tool("function f(n, x) { return process.env.STORED.length } // "+planted, "javascript"), nil),
	}
	failing := map[string]reply{
		"raised":             run(tool("def f(x):\n    raise ValueError(len(x))", "python"), nil),
		"threw":              run(tool("function f(n, x) { throw new Error(x.length) }", "javascript"), nil),
		"exited":             run(tool("import os\ndef f(x):\n    os._exit(3)", "python"), nil),
		"crashed":            run(tool("import os\ndef f(x):\n    os.abort()", "python"), nil),
		"crashed JavaScript": run(tool("function f(n, x) { process.abort() }", "javascript"), nil),
		"timed out":          run(tool("import time\ndef f(x):\n    time.sleep(60)", "python"), object{"timeout_s": 1}),
		"no package":         run(tool(python, "python"), object{"sandbox": object{"config": object{"pip_requirements": []object{{"name": "berth-has-no-such-package"}}}}, "env": object{"PIP_NO_INDEX": planted}}),
		"no TypeScript":      run(tool("function f( { "+planted, "typescript"), nil),
		"too deep":           run(tool("/* "+planted+" */ x = "+strings.Repeat("[", 1_000_000), "typescript"), nil),
	}
	answers := map[string]reply{
		"wrong type":    run(tool(python, "python"), object{"args": object{"n": planted}}),
		"wrong value":   run(tool(python, "python"), object{"env": object{"A": planted + "\x00"}}),
		"wrong form":    run(tool(python, "python"), object{"env": []string{planted}}),
		"wrong timeout": run(tool(python, "python"), object{"timeout_s": planted[:4]}),
		"no JSON":       i.do("POST", "/v1/tools/run", `{"env":{"A":"`+planted),
		"unknown field": run(tool(python, "python"), object{"more": planted}),
	}
	for how, answer := range answers {
		assert.Equal(t, 400, answer.status, "%s: %s", how, answer.body)
		assert.NotContains(t, string(answer.body), planted, how)
	}
	kinds := map[string]api.FunctionErrorKind{
		"raised": api.FunctionException, "threw": api.FunctionException, "exited": api.FunctionExit, "crashed": api.FunctionSignal,
		"crashed JavaScript": api.FunctionSignal, "timed out": api.FunctionTimeout, "no package": api.FunctionInstall, "no TypeScript": api.FunctionException,
		"too deep": api.FunctionException,
	}
	for status, all := range map[string]map[string]reply{"success": ran, "error": failing} {
		for how, answer := range all {
			var got poolapi.ToolResult
			require.Equal(t, 200, answer.status, "%s: %s", how, answer.body)
			require.NoError(t, json.Unmarshal(answer.body, &got))
			assert.Equal(t, status, got.Status, "%s: %s", how, answer.body)
			if got.Error != nil {
				assert.Equal(t, kinds[how], got.Error.Kind, "%s: %s", how, answer.body)
			}
			assert.NotContains(t, string(answer.body), planted, how)
		}
	}
	assert.Contains(t, string(answers["wrong type"].body), `argument \"n\" must be an integer`)
	said := map[string]string{"log": i.log.String()}
	for _, path := range []string{"/metrics", "/status", "/v1/containers", "/v1/leases", "/v1/pools", "/v1/sandbox-config", "/v1/sandbox-config/" + c.ID + "/environment-variable"} {
		said[path] = string(i.get(path, asOperator).body)
	}
	i.stop()
	said["log at the end"] = i.log.String()
	files := 0
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path) // logs of containers, journals, dumps, settings
		said[path] = string(text)
		files++
		return err
	}))
	assert.Greater(t, files, 3)
	for where, text := range said {
		assert.NotContains(t, text, planted, where)
	}
}

func TestToolsRunInTheirSlots(t *testing.T) {
	for _, program := range []string{"python3", "node"} {
		need.Program(t, program)
	}
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	parameters := object{"properties": object{"a": object{"type": "integer"}, "b": object{"type": "integer"}}, "required": []string{"a"}}
	for _, c := range []struct{ kind, source, want string }{
		{"python", "def f(a, b=2):\n    return {'sum': a + b, 'big': 2**70}", `{"sum":42,"big":1180591620717411303424}`},
		{"python", "async def f(a):\n    return (a, float('nan'))", `[40,"NaN"]`},
		{"typescript", "import {\n  basename,\n} from 'path';\nenum Kind { Sum = 'sum' }\nexport async function f(a: number, b?: number): Promise<unknown> {\n  return { [Kind.Sum]: a + (b ?? 2), of: basename('/x/y') };\n}", `{"sum":42,"of":"y"}`},
		{"typescript", "export default (a: number) => a + 2", `42`},
		{"javascript", "import { basename } from 'path'\nexport function f(a) { return basename('/x/' + a) }", `"40"`},
		{"javascript", "module.exports = { f: (a, b) => [a, b === undefined] }", `[40,true]`},
	} {
		for range 2 { // the second one finds what the first has left warm
			var got poolapi.ToolResult
			answer := i.post("/v1/tools/run", object{
				"tool": object{"name": "f", "source_code": c.source, "source_type": c.kind, "json_schema": parameters},
				"args": object{"a": "40"}, "timeout_s": 60,
			})
			require.Equal(t, 200, answer.status, "%s", answer.body)
			require.NoError(t, json.Unmarshal(answer.body, &got))
			assert.Equal(t, "success", got.Status, "%s: %s", c.source, answer.body)
			assert.JSONEq(t, c.want, string(got.FuncReturn), c.source)
		}
	}
}

func TestATokenOfOneOrganizationReachesNothingOfAnother(t *testing.T) {
	need.Program(t, "python3")
	tokens := filepath.Join(t.TempDir(), "tokens")
	require.NoError(t, os.WriteFile(tokens, []byte("acme token-of-acme\nglobex token-of-globex\n"), 0o600))
	i := start(t, sandboxtest.DataDir(t), "--containers", "1", "--organization-token-file", tokens)
	theirs := i.connect(i.url, "token-of-globex").Organization("globex")
	c, err := theirs.DefaultSandbox(t.Context(), poolapi.SandboxIsolated)
	require.NoError(t, err)
	_, err = theirs.PutVariable(t.Context(), c.ID, poolapi.EnvironmentVariableRequest{Key: "KEY", Value: "hunter2-hunter2"})
	require.NoError(t, err)

	me := i.connect(i.url, "token-of-acme")
	as := me.Organization("globex")
	tool := poolapi.ToolRun{Tool: poolapi.Tool{Name: "f", SourceType: "python", SourceCode: "import os\ndef f():\n    return os.environ.get('KEY')"}}
	ran, err := theirs.RunTool(t.Context(), tool)
	require.NoError(t, err)
	assert.Equal(t, `"hunter2-hunter2"`, string(ran.FuncReturn))
	ran, err = me.Organization("acme").RunTool(t.Context(), tool)
	require.NoError(t, err)
	assert.Equal(t, "null", string(ran.FuncReturn))
	for what, err := range map[string]error{
		"run":    second(as.RunTool(t.Context(), tool)),
		"config": second(as.Sandbox(t.Context(), c.ID)),
		"list":   second(as.Sandboxes(t.Context(), "", client.Page{})),
		"values": second(as.Variables(t.Context(), c.ID, client.Page{}, true)),
		"leases": second(me.Leases(t.Context(), client.Filter{})),
		"pools":  second(me.Pools(t.Context())),
	} {
		assert.Equal(t, slots.KindDenied, kindOf(err), "%s: %v", what, err)
	}
	_, err = me.Organization("acme").Sandbox(t.Context(), c.ID)
	assert.Equal(t, slots.KindNotFound, kindOf(err))
}

func second[T any](_ T, err error) error { return err }

// TestASlotIsMadePristineForAnotherOrganization has one organization leave all
// that it can in the only slot there is, and the next one look for it.
func TestASlotIsMadePristineForAnotherOrganization(t *testing.T) {
	need.Program(t, "python3")
	i := start(t, sandboxtest.DataDir(t), "--containers", "1", "--slots", "1")
	c := i.connect(i.url, trainerToken)
	run := func(organization, body string) poolapi.ToolResult {
		t.Helper()
		r, err := c.Organization(organization).RunTool(t.Context(), poolapi.ToolRun{
			Tool: poolapi.Tool{Name: "f", SourceType: "python", SourceCode: "import os, sys\ndef f():\n" + body}, Env: map[string]*string{"OF": &organization},
		})
		require.NoError(t, err)
		require.Equal(t, "success", r.Status, "%s", r.Text)
		return r
	}
	const leave = "    open('left', 'w').close()\n    open('/tmp/left', 'w').close()\n    sys.modules['left'] = sys\n    return os.getppid()"
	const look = "    return [os.path.exists('left'), os.path.exists('/tmp/left'), 'left' in sys.modules, os.environ['OF']]"
	first := run("acme", leave)
	again := run("acme", look)
	assert.True(t, again.Sandbox.Reused)
	assert.JSONEq(t, `[true,true,false,"acme"]`, string(again.FuncReturn), "its files are kept for its next run, and nothing of the process is")
	for _, organization := range []string{"globex", "acme"} {
		other := run(organization, look)
		assert.Equal(t, first.Sandbox.SlotID, other.Sandbox.SlotID)
		assert.False(t, other.Sandbox.Reused)
		assert.JSONEq(t, `[false,false,false,"`+organization+`"]`, string(other.FuncReturn))
	}
}

// runningWith reports whether a process has the word among its arguments.
func runningWith(t *testing.T, word string) bool {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && strings.Contains(string(text), word) {
			return true
		}
	}
	return false
}

func TestARunEndsWithWhoeverAskedForIt(t *testing.T) {
	need.Program(t, "python3")
	i := start(t, sandboxtest.DataDir(t), "--containers", "1", "--slots", "1")
	o := i.connect(i.url, trainerToken).Organization("acme")
	word := fmt.Sprintf("87001.%d", os.Getpid())
	run := func(ctx context.Context, body string) (poolapi.ToolResult, error) {
		return o.RunTool(ctx, poolapi.ToolRun{Tool: poolapi.Tool{Name: "f", SourceType: "python", SourceCode: "import subprocess\ndef f():\n    " + body}})
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	ended := make(chan error, 1)
	go func() { // waited for below
		_, err := run(ctx, "subprocess.run(['sleep', '"+word+"'])")
		ended <- err
	}()
	require.Eventually(t, func() bool { return runningWith(t, word) }, patience, 20*time.Millisecond)
	leave()
	require.Error(t, <-ended)
	require.Eventually(t, func() bool { return !runningWith(t, word) }, patience, 20*time.Millisecond, "nobody hears of its result any more")
	got, err := run(t.Context(), "return 1")
	require.NoError(t, err, "and its slot is there for the next one")
	assert.Equal(t, "1", string(got.FuncReturn))
}
