package sandboxd_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/slots/need"
)

func TestAJavaScriptFunctionIsCalledByItsSchema(t *testing.T) {
	t.Parallel()
	need.Program(t, "node")
	a := best(t, agenttest.Options{})
	const schema = `{"name":"f","parameters":{"type":"object","properties":{"z":{},"a":{},"m":{}},"required":["m"]}}`
	const echo = "function f(...all) { return all.map((x) => x === undefined ? 'gap' : x) }"
	for args, want := range map[string]string{
		`{"m":1,"z":2,"a":3}`:             `[1,2,3]`,
		`{"m":1,"a":3}`:                   `[1,"gap",3]`,
		`{"a":3}`:                         `["gap","gap",3]`,
		`{"m":1,"unknown":2}`:             `[1]`,
		`{}`:                              `[]`,
		`{"m":null,"z":{"x":["\u2028"]}}`: `[null,{"x":["\u2028"]}]`,
		`{"m":"'; process.exit(9); '"}`:   `["'; process.exit(9); '"]`,
	} {
		assert.JSONEq(t, want, fn{script: true, source: echo, schema: schema, args: args}.returns(t, a), args)
	}
	flat := `{"properties":{"b":{},"a":{}},"required":[]}`
	assert.JSONEq(t, `[2,1]`, fn{script: true, source: echo, schema: flat, args: `{"a":1,"b":2}`}.returns(t, a))
	for _, source := range []string{
		"async function f() { await null; return 7 }", "const f = () => 7", "exports.f = () => 7", "module.exports = () => 7", "exports.default = async () => 7",
		"module.exports = { f() { return 7 } }", "class F {}; var f = () => Promise.resolve(7) // a comment", "const path = require('path');\nfunction f() { return path.join('a', 'b').length + 4 }",
		"function f() { return import('fs').then((m) => m.readFileSync ? 7 : 0) }",
	} {
		assert.Equal(t, "7", fn{script: true, source: source}.returns(t, a), source)
	}
}

func TestAJavaScriptResultIsJSON(t *testing.T) {
	t.Parallel()
	need.Program(t, "node")
	a := best(t, agenttest.Options{})
	for value, want := range map[string]string{
		"undefined": `null`, "null": `null`, "[NaN, -Infinity, 1e21, -0]": `["NaN","-Infinity",1e21,0]`, "2n ** 70n": `1180591620717411303424`,
		"{ a: undefined, f() {}, b: [undefined, () => 1] }": `{"b":[null,null]}`, "new Map([['a', new Set([1])]])": `{"a":[1]}`,
		"new Date(0)": `"1970-01-01T00:00:00.000Z"`, "new Uint8Array([1, 2])": `[1,2]`, "{ toJSON() { return 5n } }": `5`, "'\\ud83d'": `"�"`, "Object(3)": `3`,
	} {
		assert.JSONEq(t, want, fn{script: true, source: "const f = () => (" + value + ")"}.returns(t, a), value)
	}
	// Strict parsers refuse a lone surrogate, also as an escape.
	value := `['\ud800x', {'\udc00\ud800': '\ud83d\ude00'}, '\\ud800 \\\ud800 \u2028']`
	assert.Equal(t, `["�x",{"��":"😀"},"\\ud800 \\� \u2028"]`, fn{script: true, source: "const f = () => (" + value + ")"}.returns(t, a))
	for body, message := range map[string]string{
		"const x = {}; x.x = x; return x":                            "contains itself",
		"let x = 1; for (let i = 0; i < 600; i++) x = [x]; return x": "nested deeper",
		"return 'x'.repeat(17 << 20)":                                "bytes (max",
	} {
		e, _ := fn{script: true, source: "function f() { " + body + " }"}.fails(t, a)
		assert.Contains(t, e.Message, message)
	}
	assert.Equal(t, "null", fn{script: true, source: "const f = () => {}"}.run(t, a).Text)
}

func TestAJavaScriptErrorSaysWhatItWas(t *testing.T) {
	t.Parallel()
	need.Program(t, "node")
	a := best(t, agenttest.Options{})
	for _, x := range []struct {
		source, text string
		kind         api.FunctionErrorKind
	}{
		{"function f() { throw new TypeError('bad') }", "Error executing function f: TypeError: bad", api.FunctionException},
		{"async function f() { throw 'text' }", "Error executing function f: Error: text", api.FunctionException},
		{"function f() { return new Promise(() => setTimeout(() => { throw new Error('later') })) }", "Error executing function f: Error: later", api.FunctionException},
		{"function f() { return new Promise(() => {}) }", "Error executing function f: Error: nothing is left to do, and the promise of the function was never settled", api.FunctionException},
		{"const x = 1", "Error executing function f: ReferenceError: the source defines no function 'f'", api.FunctionException},
		{"function f() { process.exit(3) }", "Error executing function f: ProcessExit: exit code 3", api.FunctionExit},
		{"function f() { process.kill(process.pid, 'SIGKILL') }", "Error executing function f: Killed: signal 9 (SIGKILL)", api.FunctionSignal},
		{"function f() { require('fs').writeSync(3, 'forged'); process.exit(0) }", "Function ran, but output is corrupted.", api.FunctionCorrupted},
		{"function f() { require('fs').closeSync(3) }", "Function ran, but output is corrupted.", api.FunctionCorrupted},
		{"import fs from 'fs'\nfunction f() {}", "Error executing function f: SyntaxError: Cannot use import statement outside a module (a slot runs scripts: have import and export turned into require and exports first)", api.FunctionException},
	} {
		e, r := fn{script: true, source: x.source}.fails(t, a)
		assert.Equal(t, x.kind, e.Kind, x.source)
		assert.Equal(t, x.text, r.Text, x.source)
	}
	e, _ := fn{script: true, source: "function inner() { throw new Error('x') }\nfunction f() { inner() }"}.fails(t, a)
	assert.Contains(t, e.Traceback, "at inner")
	assert.NotContains(t, e.Traceback, "berth-runner")
	began := time.Now()
	e, r := fn{script: true, source: "function f() { require('child_process').spawn('sleep', ['600'], { detached: true }).unref(); console.log('out'); while (true); }", timeout: 2}.fails(t, a)
	assert.Equal(t, api.FunctionTimeout, e.Kind)
	assert.Equal(t, []string{"out"}, r.Stdout)
	assert.Less(t, time.Since(began), 60*time.Second)
}

func TestAJavaScriptRunLeavesNothingToTheNext(t *testing.T) {
	t.Parallel()
	need.Program(t, "node")
	a := best(t, agenttest.Options{})
	env := map[string]*string{"A": new("a"), "USER": nil, "NODE_PATH": new("/workspace/lib")}
	const source = "function f() { const old = globalThis.leak; globalThis.leak = 1; JSON.stringify = null; require('fs').writeSync = null; return [old ?? null, process.env.A ?? null, process.env.USER ?? null, process.env.NO_COLOR, process.cwd() === process.env.HOME, typeof require] }"
	for range 3 {
		assert.JSONEq(t, `[null,"a",null,"1",true,"function"]`, fn{script: true, source: source, env: env}.returns(t, a))
	}
	assert.JSONEq(t, `[null,null,"slot","1",true,"function"]`, fn{script: true, source: source}.returns(t, a))
	require.Equal(t, true, bash(t, a, "mkdir -p lib/dep node_modules/near && echo 'exports.x = 1' > lib/dep/index.js && echo 'exports.x = 2' > node_modules/near/index.js")["success"])
	assert.Equal(t, "3", fn{script: true, source: "const f = () => require('dep').x + require('near').x", env: env}.returns(t, a))
}

func TestAJavaScriptFunctionIsWarm(t *testing.T) {
	t.Parallel()
	need.Program(t, "node")
	a := best(t, agenttest.Options{})
	for n := range 3 {
		got, r := fn{script: true, source: "const f = () => 1"}.runIn(t, a, "slot_0")
		assert.Equal(t, "1", string(got.FuncReturn))
		assert.Equal(t, n > 0, r.Metadata.Details["warm"])
		bash(t, a, "true")
	}
}
