package orchestrator_test

import (
	"encoding/json"
	"maps"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/poolapi"
	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

// TestNothingOfARunIsSaidElsewhere plants a text wherever a run has room for
// one, has runs end in every way, and then searches all that the orchestrator
// and its containers have said.
func TestNothingOfARunIsSaidElsewhere(t *testing.T) {
	const planted = "hunter2-hunter2"
	i := start(t, sandboxtest.DataDir(t), "--containers", "1", "--log-level", "trace")
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
	answers := map[string]reply{
		"ran":           run(tool(python, "python"), nil),
		"wrong type":    run(tool(python, "python"), object{"args": object{"n": planted}}),
		"wrong value":   run(tool(python, "python"), object{"env": object{"A": planted + "\x00"}}),
		"wrong form":    run(tool(python, "python"), object{"env": []string{planted}}),
		"wrong timeout": run(tool(python, "python"), object{"timeout_s": planted[:4]}),
		"no TypeScript": run(tool("function f( { "+planted, "typescript"), nil),
		"no JSON":       i.do("POST", "/v1/tools/run", `{"env":{"A":"`+planted),
		"unknown field": run(tool(python, "python"), object{"more": planted}),
	}
	for how, answer := range answers {
		assert.NotContains(t, string(answer.body), planted, how)
	}
	assert.Equal(t, 400, answers["wrong type"].status)
	assert.Contains(t, string(answers["wrong type"].body), `argument \"n\" must be an integer`)
	var failed poolapi.ToolResult
	require.NoError(t, json.Unmarshal(answers["no TypeScript"].body, &failed))
	assert.Equal(t, "error", failed.Status)
	said := map[string]string{"log": i.log.String()}
	for _, path := range []string{"/metrics", "/status", "/v1/containers", "/v1/leases", "/v1/pools", "/v1/sandbox-config", "/v1/sandbox-config/" + c.ID + "/environment-variable"} {
		said[path] = string(i.get(path, asOperator).body)
	}
	i.stop()
	said["log at the end"] = i.log.String()
	for where, text := range said {
		assert.NotContains(t, text, planted, where)
	}
}

func TestToolsRunInTheirSlots(t *testing.T) {
	for _, program := range []string{"python3", "node"} {
		_, err := exec.LookPath(program)
		need.Facility(t, program, err)
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
