package sandboxd_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/need"
)

// fn is one run of a function, in short.
type fn struct {
	source  string // of a function f
	args    string // a JSON object
	schema  string
	args2   string // the schema by which nested objects get attributes
	script  bool   // JavaScript
	env     map[string]*string
	agent   *api.FunctionAgent
	tool    string
	limit   int
	timeout float64
}

// runIn runs it on the slot.
func (f fn) runIn(t *testing.T, a *agenttest.Agent, slot string) (api.FunctionResult, api.Result) {
	t.Helper()
	if f.timeout == 0 {
		f.timeout = 60
	}
	args := api.FunctionArgs{
		Name: "f", ToolID: f.tool, SourceCode: f.source, SourceType: api.SourcePython, Env: f.env, Agent: f.agent, ReturnCharLimit: f.limit,
		JSONSchema: json.RawMessage(f.schema), ArgsJSONSchema: json.RawMessage(f.args2),
	}
	if f.script {
		args.SourceType = api.SourceJavaScript
		if f.schema == "" {
			args.JSONSchema = json.RawMessage(`{}`)
		}
	}
	if f.args != "" {
		require.NoError(t, json.Unmarshal([]byte(f.args), &args.Args))
	}
	text, err := json.Marshal(args)
	require.NoError(t, err)
	r, err := a.Execute(t.Context(), api.Call{SlotID: slot, Tool: api.FunctionTool, Args: text, Timeout: api.Seconds(f.timeout)})
	require.NoError(t, err)
	result, err := r.FunctionResult()
	require.NoError(t, err)
	require.NotNil(t, result, "%+v", r)
	assert.Equal(t, result.Status == api.FunctionSuccess, r.Success)
	return *result, r
}

func (f fn) run(t *testing.T, a *agenttest.Agent) api.FunctionResult {
	t.Helper()
	r, _ := f.runIn(t, a, "slot_0")
	return r
}

// returns runs it and returns what it returned, which has to be something.
func (f fn) returns(t *testing.T, a *agenttest.Agent) string {
	t.Helper()
	r := f.run(t, a)
	require.Nil(t, r.Error, "%s\n%+v", f.source, r.Error)
	return string(r.FuncReturn)
}

// fails runs it and returns its error, which there has to be.
func (f fn) fails(t *testing.T, a *agenttest.Agent) (api.FunctionError, api.FunctionResult) {
	t.Helper()
	r := f.run(t, a)
	require.NotNil(t, r.Error, "%s\n%s", f.source, r.FuncReturn)
	assert.Equal(t, "null", string(r.FuncReturn))
	assert.Equal(t, "null", string(r.AgentState))
	return *r.Error, r
}

// py is the source of a function f without parameters.
func py(body string) string {
	return "def f():\n    " + strings.ReplaceAll(body, "\n", "\n    ") + "\n"
}

func TestAFunctionsArgumentsAreData(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	a := best(t, agenttest.Options{})
	const kinds = "def f(a, b=2, *, c=3):\n    return [a, b, c, type(a).__name__]"
	for _, x := range []struct{ name, source, args, want string }{
		{"as they are", kinds, `{"a":"true","c":[1,{"x":null}]}`, `["true",2,[1,{"x":null}],"str"]`},
		{"a string for a list is not run", kinds, `{"a":"__import__('os').system('touch ran')"}`, `["__import__('os').system('touch ran')",2,3,"str"]`},
		{"quotes and code in names of arguments", "def f(**k):\n    return k", `{"x=1)\nimport os":"'\"\n"}`, `{"x=1)\nimport os":"'\"\n"}`},
		{"unknown ones are left out", kinds, `{"a":1.0,"unknown":9}`, `[1.0,2,3,"float"]`},
		{"unless it takes any", "def f(a, **rest):\n    return [a, rest]", `{"a":1,"b":2,"self":3}`, `[1,{"b":2,"self":3}]`},
		{"positional-only ones", "def f(a, b=5, /, c=0):\n    return [a, b, c]", `{"a":1,"c":2}`, `[1,5,2]`},
		{"of a decorated function", "import functools\ndef d(g):\n    @functools.wraps(g)\n    def w(*a, **k):\n        return g(*a, **k)\n    return w\n@d\ndef f(a):\n    return a", `{"a":1,"z":2}`, `1`},
		{"big numbers", "def f(n):\n    return n + 1", `{"n":` + strings.Repeat("9", 5000) + `}`, `1` + strings.Repeat("0", 5000)},
		{"unicode", "def f(ä):\n    return ä", `{"ä":"\ud83d\ude00é"}`, `"😀é"`},
		{"a callable object", "class F:\n    def __call__(self, a):\n        return a\nf = F()", `{"a":1,"b":2}`, `1`},
	} {
		got := fn{source: x.source, args: x.args}.returns(t, a)
		if x.name == "big numbers" { // larger than any that a test library reads
			assert.Equal(t, x.want, got)
			continue
		}
		assert.JSONEq(t, x.want, got, x.name)
	}
	assert.NotEqual(t, true, bash(t, a, "test -e ran")["success"], "an argument was run")
	e, r := fn{source: kinds}.fails(t, a)
	assert.Equal(t, "TypeError", e.Name)
	assert.Contains(t, r.Text, "Error executing function f: TypeError: f() missing 1 required positional argument: 'a'")
}

func TestAFunctionsSourceRunsInAFreshMain(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	a := best(t, agenttest.Options{})
	const dirty = `
import builtins, json, os, sys, random, signal, decimal
builtins.leak = json.leak = 1
json.loads = None
sys.path.append('/leak')
sys.modules['leak'] = sys
os.environ['LEAK'] = '1'
os.umask(0o777)
signal.signal(signal.SIGTERM, lambda *a: None)
fd = os.open('/dev/null', 0)
os.chdir('/')
sys.setrecursionlimit(99)
random.seed(1)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
def f():
    global counted
    counted = 1
    return __name__
`
	const look = `
import json, os, sys, signal, random
def f():
    import __main__
    return [
        __name__, __main__.f is f, 'counted' in globals(), hasattr(json, 'leak'), json.loads is None, '/leak' in sys.path, 'leak' in sys.modules,
        os.environ.get('LEAK'), os.umask(0o22), signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, sorted(map(int, os.listdir('/proc/self/fd')))[:-1],
        os.getcwd() == os.environ['HOME'], sys.getrecursionlimit(), len(signal.pthread_sigmask(signal.SIG_BLOCK, [])), hasattr(__builtins__, 'leak'), sys.argv,
    ]
`
	const clean = `["__main__",true,false,false,false,false,false,null,18,true,[0,1,2,3],true,1000,0,false,["f"]]`
	assert.JSONEq(t, clean, fn{source: look}.returns(t, a))
	for range 3 {
		assert.JSONEq(t, `"__main__"`, fn{source: dirty}.returns(t, a))
		assert.JSONEq(t, clean, fn{source: look}.returns(t, a))
	}
	numbers := map[string]bool{}
	for range 5 {
		numbers[fn{source: "import random, os\ndef f():\n    return [random.random(), os.urandom(4).hex()]"}.returns(t, a)] = true
	}
	assert.Len(t, numbers, 5, "each run has random numbers of its own")
	const main = "ran = False\nif __name__ == '__main__':\n    ran = True\n" + `
import dataclasses, pickle, inspect
@dataclasses.dataclass
class P:
    x: int
def f():
    return [ran, pickle.loads(pickle.dumps(P(1))) == P(1), inspect.getsource(P).count('class P')]`
	assert.JSONEq(t, `[true,true,1]`, fn{source: main}.returns(t, a))
}

func TestWhatASlotLeavesIsNotImportedByTheServer(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	a := best(t, agenttest.Options{})
	const bad = "raise SystemExit('subverted')"
	for _, name := range []string{"json.py", "inspect.py", "asyncio.py", "sitecustomize.py", "usercustomize.py", "helper.py"} {
		code := bad
		if name == "helper.py" {
			code = "x = 7"
		}
		require.Equal(t, true, bash(t, a, "printf %s \""+code+"\" >"+name)["success"])
	}
	got := fn{source: "import json, asyncio\ndef f():\n    import helper\n    return helper.x", env: map[string]*string{"PYTHONSTARTUP": new("json.py")}}.returns(t, a)
	assert.Equal(t, "7", got, "and what is in the workspace can be imported")
	require.Equal(t, true, bash(t, a, "mkdir lib && echo y=8 > lib/other.py")["success"])
	assert.Equal(t, "8", fn{source: "import other\ndef f():\n    return other.y", env: map[string]*string{"PYTHONPATH": new("lib")}}.returns(t, a))
}

func TestAFunctionIsGivenWhatItDeclares(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	a := best(t, agenttest.Options{})
	agent := &api.FunctionAgent{ID: "agent-1", ProjectID: "project-1", State: json.RawMessage(`{"id":"agent-1"}`)}
	assert.JSONEq(t, `["agent-1","agent-1"]`, fn{source: "def f(agent_id, agent_state):\n    return [agent_id, agent_state.id]", args: `{"agent_id":"forged"}`, agent: agent}.returns(t, a))
	assert.JSONEq(t, `["agent-1","agent-1"]`, fn{source: "def f(*, agent_id, agent_state):\n    return [agent_id, agent_state.id]", agent: agent}.returns(t, a))
	assert.JSONEq(t, `[null,null]`, fn{source: "def f(agent_state, *, agent_id=5):\n    return [agent_id, agent_state]"}.returns(t, a))
	assert.JSONEq(t, `{"a":1}`, fn{source: "def f(**k):\n    return k", args: `{"a":1}`, agent: agent}.returns(t, a))

	const ids = "import os\ndef f():\n    return [os.environ.get('LETTA_' + n) for n in ('AGENT_ID', 'PROJECT_ID', 'TOOL_ID')] + [client]"
	forged := map[string]*string{"LETTA_AGENT_ID": new("x"), "LETTA_PROJECT_ID": new("x"), "LETTA_TOOL_ID": nil}
	assert.JSONEq(t, `["agent-1","project-1","tool-1",null]`, fn{source: ids, env: forged, agent: agent, tool: "tool-1"}.returns(t, a))
	assert.JSONEq(t, `[null,null,null,null]`, fn{source: ids, env: forged}.returns(t, a))

	for version, word := range map[string]string{"new": "api_key", "old": "token"} {
		require.Equal(t, true, bash(t, a, "rm -rf letta_client; mkdir letta_client; printf 'class Letta:\\n    def __init__(self, *, "+word+", base_url=None):\\n        self.what = [\""+word+"\", "+word+", base_url]\\n' > letta_client/__init__.py")["success"])
		key := map[string]*string{"LETTA_API_KEY": new("secret"), "LETTA_BASE_URL": new("http://x")}
		assert.JSONEq(t, `["`+word+`","secret","http://x"]`, fn{source: "def f():\n    return client.what", env: key}.returns(t, a), version)
		assert.JSONEq(t, `true`, fn{source: "def f():\n    return client is None"}.returns(t, a))
	}
}

func TestAFunctionsEnvironment(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	a := best(t, agenttest.Options{})
	const all = "import os, subprocess\ndef f():\n    return [os.environ.get(n) for n in ('A', 'EMPTY', 'USER', 'PYTHONWARNINGS', 'NO_COLOR', 'TERM', 'PYTHONUNBUFFERED', 'VIRTUAL_ENV')] + [subprocess.check_output(['sh', '-c', 'echo $A']).decode()]"
	env := map[string]*string{"A": new("a"), "EMPTY": new(""), "USER": nil, "TERM": new("xterm"), "NO_COLOR": nil, "TZ": new("Asia/Tokyo")}
	assert.JSONEq(t, `["a","",null,"ignore","1","dumb","1",null,"a\n"]`, fn{source: all, env: env}.returns(t, a))
	assert.JSONEq(t, `[null,null,"slot","ignore","1","dumb","1",null,"\n"]`, fn{source: all}.returns(t, a))
	many := map[string]*string{}
	for i := range 2000 {
		many[fmt.Sprintf("V%d", i)] = new(fmt.Sprint(i))
	}
	assert.Equal(t, "2000", fn{source: "import os\ndef f():\n    return sum(os.environ.get('V%d' % i) == str(i) for i in range(2000))", env: many}.returns(t, a))
}

func TestAFunctionThatReturnsACoroutineIsAwaited(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	a := best(t, agenttest.Options{})
	assert.Equal(t, "3", fn{source: "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 3"}.returns(t, a))
	assert.Equal(t, "4", fn{source: "async def g():\n    return 4\nf = lambda: g()"}.returns(t, a))
	assert.Equal(t, "5", fn{source: "class C:\n    async def f(self):\n        return 0\ndef f():\n    return 5"}.returns(t, a))
	e, _ := fn{source: "async def f():\n    raise KeyError('x')"}.fails(t, a)
	assert.Equal(t, "KeyError", e.Name)
}

func TestAFunctionsResultIsJSON(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	a := best(t, agenttest.Options{})
	for _, x := range []struct{ value, want string }{
		{"None", `null`},
		{"(1, [2, (3,)])", `[1,[2,[3]]]`},
		{"{1: True, None: 1.5, 2.5: None, True: 'x'}", `{"1":"x","null":1.5,"2.5":null}`},
		{"{3}", `"{3}"`},
		{"b'a\\xff'", `"b'a\\xff'"`},
		{"__import__('datetime').date(2024, 2, 29)", `"2024-02-29"`},
		{"__import__('decimal').Decimal('1.10')", `"1.10"`},
		{"[float('nan'), float('inf'), -float('inf'), 1e308, -0.0]", `["NaN","Infinity","-Infinity",1e308,-0.0]`},
		{"2**4000", "!" + "exact"},
		{"'\\ud83d\\ude00\\udc00'", `"😀�"`},
		{"__import__('enum').IntEnum('E', 'A')(1)", `1`},
		{"__import__('collections').namedtuple('N', 'a b')(1, 2)", `[1,2]`},
		{"__import__('dataclasses').make_dataclass('D', [('x', object)])({'y': (1, b'')})", `{"x":{"y":[1,"b''"]}}`},
		{"type('C', (), {'__str__': lambda s: 'mine'})()", `"mine"`},
		{"type('S', (str,), {})('s')", `"s"`},
		{"type('L', (list,), {})([1])", `[1]`},
		{"(lambda x: [x, x])([1])", `[[1],[1]]`},
		{"int", `"<class 'int'>"`},
		{"'<&>\\u2028'", `"<&>\u2028"`},
		{"''", `""`},
	} {
		got := fn{source: py("return " + x.value)}.returns(t, a)
		if x.want == "!exact" {
			assert.Len(t, got, 1205)
			continue
		}
		assert.JSONEq(t, x.want, got, x.value)
	}
	for value, message := range map[string]string{
		"x = []\nx.append({'a': x})\nreturn x":                  "contains itself",
		"x = 1\nfor _ in range(600): x = [x]\nreturn x":         "nested deeper",
		"x = 1\nfor _ in range(100000): x = {'a': x}\nreturn x": "nested deeper",
		"return type('C', (), {'__str__': lambda s: 1/0})()":    "division by zero",
		"return 'x' * (17 << 20)":                               "bytes (max",
	} {
		e, _ := fn{source: py(value)}.fails(t, a)
		assert.Equal(t, api.FunctionException, e.Kind)
		assert.Contains(t, e.Message, message)
	}
	assert.Len(t, fn{source: py("return 'x' * (9 << 20)")}.returns(t, a), 9<<20+2)
}

func TestAModelsFieldsAreReturned(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	a := best(t, agenttest.Options{})
	if r := (fn{source: py("import pydantic")}).run(t, a); r.Error != nil {
		need.Facility(t, "pydantic", fmt.Errorf("%s", r.Error.Message))
	}
	const models = `
from pydantic import BaseModel
import datetime
class B(BaseModel):
    d: datetime.date
    t: tuple
class A(BaseModel):
    b: B
    n: int = 3
def f():
    return [A(b=B(d='2024-02-29', t=(1, 2)))]
`
	for range 3 {
		assert.JSONEq(t, `[{"b":{"d":"2024-02-29","t":[1,2]},"n":3}]`, fn{source: models}.returns(t, a))
	}
	assert.JSONEq(t, `{"x":1}`, fn{source: "try:\n    from pydantic.v1 import BaseModel\nexcept ImportError:\n    from pydantic import BaseModel\nclass M(BaseModel):\n    x: int\ndef f():\n    return M(x=1)"}.returns(t, a))
	assert.Equal(t, "false", fn{source: py("import sys\nreturn 'pydantic' in sys.modules and 0")}.returns(t, newServer(t, a)), "it is not imported for a result that needs none")
}

// newServer ends what stands ready in the slot.
func newServer(t *testing.T, a *agenttest.Agent) *agenttest.Agent {
	t.Helper()
	r, err := a.Reset(t.Context(), "slot_0", nil)
	require.NoError(t, err)
	require.True(t, r.Clean)
	return a
}

func TestNestedArgumentsHaveAttributesByTheirSchema(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	a := best(t, agenttest.Options{})
	const schema = `{"type":"object","properties":{"o":{"$ref":"#/$defs/O"},"l":{"type":"array","items":{"$ref":"#/$defs/O"}},"m":{"anyOf":[{"$ref":"#/$defs/O"},{"type":"null"}]}},
		"$defs":{"O":{"type":"object","properties":{"x":{"type":"integer"},"items":{},"d":{"default":[7]},"none":{}},"required":["x"]}}}`
	x := fn{
		source: "def f(o, l, m=None, s=''):\n    return [o.x, o['x'], o.items, l[0].x, l[0].d, l[0].none, m.x, s, 'x' in o, o.get('zz', 4), dict(m), l]",
		args:   `{"o":{"x":1,"items":"i"},"l":[{"x":2}],"m":{"x":3},"s":"a"}`, args2: schema,
	}
	assert.JSONEq(t, `[1,1,"i",2,[7],null,3,"a",true,4,{"x":3,"d":[7]},[{"x":2,"d":[7]}]]`, x.returns(t, a))
	x.args2 = ""
	e, _ := x.fails(t, a)
	assert.Equal(t, "AttributeError", e.Name, "without a schema a dict is a dict")
}

func TestAnAgentsStateGoesInAndComesOut(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	a := best(t, agenttest.Options{})
	state := func() *api.FunctionAgent {
		return &api.FunctionAgent{ID: "a1", ReturnState: true, State: json.RawMessage(`{"memory":{"blocks":[{"label":"human","value":"old","limit":5}]},"n":12345678901234567890}`)}
	}
	const source = `
def f(agent_state):
    m = agent_state.memory
    m.update_block_value(label="human", value=m.get_block("human").value + "er")
    m.set_block({"label": "new", "value": "v"})
    m.get_blocks()[1].value += "!"
    return [agent_state.id, m.list_block_labels(), len(m.get_blocks())]
`
	r := fn{source: source, agent: state()}.run(t, a)
	require.Nil(t, r.Error)
	assert.JSONEq(t, `["a1",["human","new"],2]`, string(r.FuncReturn))
	assert.JSONEq(t, `{"id":"a1","memory":{"blocks":[{"label":"human","value":"older","limit":5},{"label":"new","value":"v!"}]},"n":12345678901234567890}`, string(r.AgentState))
	assert.Contains(t, string(r.AgentState), "12345678901234567890")

	quiet := state()
	quiet.ReturnState = false
	assert.Equal(t, "null", string(fn{source: source, agent: quiet}.run(t, a).AgentState), "nobody asked for it")
	assert.Equal(t, "null", string(fn{source: py("return 1"), agent: state()}.run(t, a).AgentState), "it is not declared")
	e, _ := fn{source: "def f(agent_state):\n    agent_state.n = 1\n    raise ValueError('x')", agent: state()}.fails(t, a)
	assert.Equal(t, "ValueError", e.Name)
	e, _ = fn{source: "def f(agent_state):\n    agent_state.memory.get_block('nope')", agent: state()}.fails(t, a)
	assert.Contains(t, e.Message, "nope does not exist")
	e, _ = fn{source: "def f(agent_state):\n    agent_state.memory.update_block_value(label='human', value=3)", agent: state()}.fails(t, a)
	assert.Contains(t, e.Message, "must be a string")

	made := fn{source: py("import pickle, base64\nreturn base64.b64encode(pickle.dumps({'x': (1, 2)})).decode()")}.returns(t, a)
	pickled := &api.FunctionAgent{ID: "a1", State: json.RawMessage(made), StateEncoding: api.StatePickle, ReturnState: true}
	r = fn{source: "def f(agent_state):\n    agent_state['y'] = 3\n    return agent_state['x'][1]", agent: pickled}.run(t, a)
	require.Nil(t, r.Error)
	assert.Equal(t, "2", string(r.FuncReturn))
	pickled.State = r.AgentState
	assert.JSONEq(t, `{"x":[1,2],"y":3}`, fn{source: "def f(agent_state):\n    return agent_state", agent: pickled}.returns(t, a))
	pickled.State = json.RawMessage(`"bm9uc2Vuc2U="`)
	e, _ = fn{source: "def f(agent_state):\n    return 1", agent: pickled}.fails(t, a)
	assert.Equal(t, api.FunctionException, e.Kind)
	assert.Equal(t, "1", fn{source: py("return 1"), agent: pickled}.returns(t, a), "it is not opened for who does not want it")
}

// TestAnAgentsStateIsThePlatformsOwnModel has the platform's package lie beside
// the function, as far as the state needs it.
func TestAnAgentsStateIsThePlatformsOwnModel(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	a := best(t, agenttest.Options{})
	require.Equal(t, true, bash(t, a, `mkdir -p letta/schemas && touch letta/__init__.py letta/schemas/__init__.py && cat > letta/schemas/agent.py <<'END'
class AgentState:
    @classmethod
    def model_validate(cls, state):
        if 'id' not in state:
            raise ValueError('id: Field required')
        made = cls()
        made.id, made.n = state['id'], int(state['n'])
        return made
    def model_dump(self, mode):
        assert mode == 'json'
        return {'id': self.id, 'n': self.n, 'dumped': True}
END`)["success"])
	const source = "def f(agent_state):\n    agent_state.n += 1\n    return [type(agent_state).__module__, agent_state.n]"
	agent := &api.FunctionAgent{ID: "a", ReturnState: true, State: json.RawMessage(`{"id":"a","n":"41"}`)}
	r := fn{source: source, agent: agent}.run(t, a)
	require.Nil(t, r.Error, "%+v", r.Error)
	assert.JSONEq(t, `["letta.schemas.agent",42]`, string(r.FuncReturn), "it is validated into the model, which makes 41 of a text")
	assert.JSONEq(t, `{"id":"a","n":42,"dumped":true}`, string(r.AgentState))
	agent.State = json.RawMessage(`{"n":1}`)
	r = fn{source: source, agent: agent}.run(t, a)
	require.Nil(t, r.Error, "%+v", r.Error)
	assert.Contains(t, string(r.FuncReturn), ",2]", "what is of another form is not kept from the function")
	assert.NotContains(t, string(r.FuncReturn), "letta.")
	assert.JSONEq(t, `{"id":"a","n":2,"memory":{"blocks":[]}}`, string(r.AgentState))
}

func TestAFunctionsErrorSaysWhatItWas(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	a := best(t, agenttest.Options{})
	for _, x := range []struct {
		source, text string
		kind         api.FunctionErrorKind
	}{
		{py("raise ValueError('bad: thing')"), "Error executing function f: ValueError: bad: thing", api.FunctionException},
		{py("raise KeyError"), "Error executing function f: KeyError", api.FunctionException},
		{py("assert 0"), "Error executing function f: AssertionError", api.FunctionException},
		{"import nonsense_xyz", "Error executing function f: ModuleNotFoundError: No module named 'nonsense_xyz'", api.FunctionException},
		{"def f(:", "Error executing function f: SyntaxError: invalid syntax (<tool f>, line 1)", api.FunctionException},
		{"x = 1", "Error executing function f: NameError: the source defines no function 'f'", api.FunctionException},
		{py("class E(Exception):\n    def __str__(self): raise self\nraise E"), "Error executing function f: E: <no message: str() of the exception raised>", api.FunctionException},
		{py("raise KeyboardInterrupt"), "Error executing function f: KeyboardInterrupt", api.FunctionException},
		{py("raise SystemExit(3)"), "Error executing function f: ProcessExit: exit code 3", api.FunctionExit},
		{py("import sys\nsys.exit()"), "Error executing function f: ProcessExit: exit code 0", api.FunctionExit},
		{"import sys\nsys.exit('words')", "Error executing function f: ProcessExit: exit code 1", api.FunctionExit},
		{py("import os\nos._exit(3)"), "Error executing function f: ProcessExit: exit code 3", api.FunctionExit},
		{py("import os\nos._exit(0)"), "Error executing function f: ProcessExit: exit code 0", api.FunctionExit},
		{py("import os\nos.kill(os.getpid(), 9)"), "Error executing function f: Killed: signal 9 (SIGKILL)", api.FunctionSignal},
		{py("import os\nos.abort()"), "Error executing function f: Killed: signal 6 (SIGABRT)", api.FunctionSignal},
		{py("x = lambda: x()\nx()"), "Error executing function f: RecursionError: maximum recursion depth exceeded", api.FunctionException},
	} {
		e, r := fn{source: x.source}.fails(t, a)
		assert.Equal(t, x.kind, e.Kind, x.source)
		assert.Equal(t, x.text, r.Text, x.source)
	}
	e, r := fn{source: py("def inner():\n    raise ValueError('é' * 5000)\ninner()")}.fails(t, a)
	assert.Len(t, []rune(r.Text), 1000)
	assert.Len(t, []rune(e.Message), 1000)
	assert.Contains(t, e.Traceback, `File "<tool f>", line 3, in inner`)
	assert.Contains(t, e.Traceback, "raise ValueError")
	assert.NotContains(t, e.Traceback, "berth")
	_, r = fn{source: "import sys\nsys.exit('words')"}.fails(t, a)
	assert.Equal(t, []string{"words"}, r.Stderr)
}

// The modules that show source are not there until somebody asks for them, and
// are in the server from then on: each is asked for on a slot of its own, twice.
func TestAFunctionsSourceIsShownWhereverItIsAskedFor(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	const shown = "raise ValueError(1) # shown"
	asks := []string{
		"import traceback\ntry:\n    " + shown + "\nexcept ValueError:\n    return traceback.format_exc()",
		"import inspect\nreturn inspect.getsource(f)\n" + shown,
		"import linecache\nreturn linecache.getline('<tool f>', 4)\n" + shown,
		"import linecache, sys, tokenize\nassert sys.modules['linecache'].tokenize is tokenize\nreturn linecache.getlines('<tool f>')[4]\n" + shown,
		"from logging import Formatter\nimport sys\ntry:\n    " + shown + "\nexcept ValueError:\n    return Formatter().formatException(sys.exc_info())",
		shown,
		"try:\n    1 / 0\nexcept ZeroDivisionError:\n    " + shown,
		"import os, sys\nsys.path.clear()\nopen('traceback.py', 'w').write('1/0')\nsys.path.append(os.getcwd())\n" + shown,
	}
	a := best(t, agenttest.Options{Slots: len(asks) + 1})
	for n, ask := range asks {
		for again := range 2 {
			r, _ := fn{source: py(ask)}.runIn(t, a, fmt.Sprintf("slot_%d", n))
			text := string(r.FuncReturn)
			if r.Error != nil {
				assert.Equal(t, "ValueError", r.Error.Name, "%s: %+v", ask, r.Error)
				text = r.Error.Traceback
			}
			assert.Contains(t, text, shown, "%s, run %d", ask, again)
		}
	}
	const noDescriptor = "import os\ntry:\n    while True: os.dup(0)\nexcept OSError:\n    raise ValueError(1)"
	r, _ := fn{source: py(noDescriptor)}.runIn(t, a, fmt.Sprintf("slot_%d", len(asks)))
	require.NotNil(t, r.Error)
	for _, part := range []string{"Traceback (most recent call last):", `File "<tool f>", line 4, in f`, "OSError: ", "During handling", `line 6, in f`, "ValueError: 1"} {
		assert.Contains(t, r.Error.Traceback, part, "nothing could be imported")
	}
}

func TestAFunctionsReturnIsCutByCodePoints(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	a := best(t, agenttest.Options{})
	r := fn{source: py("return 'é' * 11"), limit: 10}.run(t, a)
	assert.True(t, r.Truncated)
	assert.Equal(t, strings.Repeat("é", 10)+"… [NOTE: function output was truncated since it exceeded the character limit (11 > 10)]", r.Text)
	assert.Equal(t, `"`+strings.Repeat("é", 11)+`"`, string(r.FuncReturn), "data are not cut")
	r = fn{source: py("return 'é' * 10"), limit: 10}.run(t, a)
	assert.False(t, r.Truncated)
	assert.Equal(t, strings.Repeat("é", 10), r.Text)
	r = fn{source: py("return 'x' * 50001")}.run(t, a)
	assert.Contains(t, r.Text, "(50001 > 50000)")
	assert.Equal(t, "None", fn{source: py("pass")}.run(t, a).Text)
	assert.Equal(t, "[1, true]", fn{source: py("return (1, True)")}.run(t, a).Text)
}

func TestAFunctionsOutputIsNotItsResult(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	a := best(t, agenttest.Options{})
	r := fn{source: py("import sys, os\nprint('out')\nsys.stderr.write('err')\nos.system('echo child')\nsys.stdout.buffer.write(b'\\xff\\x00')\nreturn 1")}.run(t, a)
	assert.Equal(t, []string{"out\nchild\n�\x00"}, r.Stdout)
	assert.Equal(t, []string{"err"}, r.Stderr)
	r = fn{source: py("print('x' * 3000000)\nreturn 2")}.run(t, a)
	require.Len(t, r.Stdout, 1)
	assert.Less(t, len(r.Stdout[0]), 60_000)
	assert.Equal(t, "2", string(r.FuncReturn))
	r = fn{source: py("return 1")}.run(t, a)
	assert.Equal(t, []string{}, r.Stdout)
}

func TestAFunctionCannotForgeAResult(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	a := best(t, agenttest.Options{})
	const corrupted = "Function ran, but output is corrupted."
	for name, source := range map[string]string{
		"a frame with a checksum of its own": py("import os, struct, hashlib\np = b'{\"return\": 666}'\nn = struct.pack('!Q', len(p))\nos.write(3, n + hashlib.sha256(n + p).digest() + p)\nos._exit(0)"),
		"a frame that is cut":                py("import os\nos.write(3, b'\\x00' * 20)\nos._exit(0)"),
		"nonsense before the result":         py("import os\nos.write(3, b'x')\nreturn 1"),
		"a length without end":               py("import os\nos.write(3, b'\\xff' * 100)\nos._exit(0)"),
		"much nonsense":                      py("import os\nfor _ in range(300): os.write(3, b'\\xff' * 100000)\nreturn 1"),
		"a closed descriptor":                py("import os\nos.close(3)\nreturn 1"),
	} {
		e, r := fn{source: source}.fails(t, a)
		assert.Equal(t, api.FunctionCorrupted, e.Kind, name)
		assert.Equal(t, corrupted, r.Text, name)
	}
	r := fn{source: py("print('{\"return\": 666}')\nreturn 1")}.run(t, a)
	assert.Equal(t, "1", string(r.FuncReturn))
}

func TestAFunctionCallThatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	for args, want := range map[string]string{
		`{}`: `argument "name" is missing`,
		`{"name":"f","source_code":"","source_type":"typescript"}`:                                                            "send it stripped to javascript",
		`{"name":"f","source_code":"","source_type":"ruby"}`:                                                                  "must be one of python, javascript",
		`{"name":"","source_code":"","source_type":"python"}`:                                                                 `"name" must have 1 to 200 characters`,
		`{"name":"f","source_code":"","source_type":"javascript"}`:                                                            "TypeScript tools require an explicit json_schema parameter",
		`{"name":"f;x","source_code":"","source_type":"javascript","json_schema":{}}`:                                         "is no name of a JavaScript function",
		`{"name":"f","source_code":"","source_type":"python","environment":"../x"}`:                                           "is no key of an environment",
		`{"name":"f","source_code":"","source_type":"python","env":{"A=":"x"}}`:                                               "contains \"=\"",
		`{"name":"f","source_code":"","source_type":"python","env":{"A":1}}`:                                                  "must be an object of strings and nulls",
		`{"name":"f","source_code":"","source_type":"python","args":[]}`:                                                      "must be an object, not a list",
		`{"name":"f","source_code":"","source_type":"python","return_char_limit":0}`:                                          "must be from 1",
		`{"name":"f","source_code":"","source_type":"python","agent":{"id":"x","state_encoding":"yaml"}}`:                     "not json or pickle+base64",
		`{"name":"f","source_code":"","source_type":"python","agent":{"id":"x","state":{},"state_encoding":"pickle+base64"}}`: "an object, not a string",
	} {
		_, err := a.Execute(t.Context(), api.Call{SlotID: "slot_0", Tool: api.FunctionTool, Args: json.RawMessage(args)})
		require.Error(t, err, args)
		assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind, args)
		assert.Contains(t, err.Error(), want, args)
	}
}
