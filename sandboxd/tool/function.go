package tool

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/sandbox"
)

// function runs the source of a Python or JavaScript function with JSON
// arguments: see api.FunctionArgs and api.FunctionResult. The source runs in a
// process of its own, in which nothing of an earlier run is left; interpreters
// that stand ready in the slot make that a matter of milliseconds.
type function struct {
	environments Environments
	home         string
}

// Name is "function".
func (function) Name() string { return api.FunctionTool }

// Run runs the function. A function that fails is a result; an error is a call
// that could not be carried out.
func (f function) Run(ctx context.Context, s Slot, c Call) api.Result {
	a, err := functionArgs(c.Args)
	if err != nil {
		return refused(err)
	}
	if a.Directory != "" && f.home == "" {
		return refused(slots.Errorf(slots.KindBadRequest, `argument "directory" is for a container that has a home: this one has none, or cannot share it among uids`))
	}
	dir, done, err := f.use(a.Environment)
	if err != nil {
		return refused(err)
	}
	defer done()
	key := make([]byte, frameKey)
	rand.Read(key)
	body, err := jobOf(a, dir, f.home).text(key)
	if err != nil {
		return refused(err)
	}
	result := newFrame(key)
	exit, state, err := s.Job(ctx, sandbox.Job{
		Interpreter: interpreterOf(a, dir), Body: body, Stdout: c.Stdout, Stderr: c.Stderr, Result: result, Whole: result.whole,
	})
	if err != nil {
		if e := slots.AsError(err); notStarted(e) {
			return c.functionDone(a, api.Result{}, api.FunctionResult{Error: spawnError(a, e)})
		}
		return c.failed(ctx, err)
	}
	answer, framed := result.answer()
	if framed {
		// What the process did after its result does not count.
		exit.Outcome, exit.Code, exit.Signal = slots.OutcomeExited, 0, ""
	}
	r := c.process(ctx, exit)
	r.Metadata.Details["warm"] = state.Warm
	r.Metadata.Details["sandboxed"] = !c.Isolation.Unsafe
	r.Metadata.Details["network_isolated"] = offline(c.Isolation)
	if framed {
		return c.functionDone(a, r, api.FunctionResult{FuncReturn: answer.Return, AgentState: answer.State, Error: answer.Error})
	}
	return c.functionDone(a, r, api.FunctionResult{Error: c.unanswered(ctx, a, exit, result.damaged())})
}

// use is the directory of the environment; "" is the image's own interpreter.
func (f function) use(key string) (dir string, done func(), err error) {
	if key == "" {
		return "", func() {}, nil
	}
	if f.environments == nil {
		return "", nil, slots.Errorf(slots.KindNotFound, "there is no environment %s in this container", key)
	}
	return f.environments.Use(key)
}

// functionDone puts the function's result into that of its process.
func (c Call) functionDone(a api.FunctionArgs, r api.Result, f api.FunctionResult) api.Result {
	f.Stdout, f.Stderr = pieces(c.Stdout.Text().String), pieces(c.Stderr.Text().String)
	if f.Error != nil {
		f.Status = api.FunctionFailed
		f.Text = f.Error.Sentence(a.Name)
	} else {
		f.Status = api.FunctionSuccess
		f.Text, f.Truncated = cutReturn(textOf(f.FuncReturn, a.SourceType), a.ReturnCharLimit)
	}
	encoded, err := json.Marshal(f)
	if err != nil {
		return refused(slots.Errorf(slots.KindInternal, "encode result of function: %w", err).WithExecuted(slots.ExecutedYes))
	}
	r.Function, r.Success, r.Output, r.Error = encoded, f.Error == nil, f.Text, ""
	if f.Error != nil {
		r.Output, r.Error = "", f.Text
	}
	return r
}

// pieces is the text as a list: nothing, or one.
func pieces(text string) []string {
	if text == "" {
		return []string{}
	}
	return []string{text}
}

// Names and keys that may be put into code or paths.
var (
	scriptName = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[A-Za-z_$][A-Za-z0-9_$]{0,199}$`)
	})
	environmentKey = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	})
)

const maxName = 200 // characters of a function's name

// functionArgs reads and checks the arguments.
func functionArgs(raw json.RawMessage) (a api.FunctionArgs, err error) {
	p := parseArgs(raw)
	a.Name, a.SourceCode = p.need("name"), p.content("source_code")
	a.SourceType = p.need("source_type")
	a.ToolID, a.Environment = p.text("tool_id"), p.text("environment")
	a.Directory = p.text("directory")
	p.get("args", "an object", &a.Args)
	a.JSONSchema, a.ArgsJSONSchema = p.schema("json_schema"), p.schema("args_json_schema")
	a.Env = p.changes("env")
	a.ReturnCharLimit = p.count("return_char_limit", api.DefaultReturnChars, 1, 1<<31)
	a.Agent = p.agent("agent")
	p.maxOutput()
	switch {
	case p.err != nil:
	case a.Name == "" || len([]rune(a.Name)) > maxName:
		p.refuse("name", "must have 1 to %d characters", maxName)
	case a.SourceType == "typescript":
		p.refuse("source_type", "is typescript, which a slot does not run: send it stripped to javascript, as the orchestrator does")
	case a.SourceType != api.SourcePython && a.SourceType != api.SourceJavaScript:
		p.refuse("source_type", "must be one of %s, %s, not %.40q", api.SourcePython, api.SourceJavaScript, a.SourceType)
	case a.Environment != "" && !environmentKey().MatchString(a.Environment):
		p.refuse("environment", "is no key of an environment: %.40q", a.Environment)
	case a.Directory != "" && !filepath.IsLocal(a.Directory):
		p.refuse("directory", "must be a path below the home, not %.80q", a.Directory)
	case a.SourceType == api.SourceJavaScript && !scriptName().MatchString(a.Name):
		p.refuse("name", "is no name of a JavaScript function: %.40q", a.Name)
	case a.SourceType == api.SourceJavaScript && len(a.JSONSchema) == 0:
		p.err = slots.Errorf(slots.KindBadRequest, "TypeScript tools require an explicit json_schema parameter")
	}
	if p.err != nil {
		return a, p.err
	}
	return a, nil
}

// schema is an object, as it was sent: the order of its keys matters.
func (a *arguments) schema(name string) json.RawMessage {
	var fields map[string]json.RawMessage
	if !a.get(name, "an object", &fields) {
		return nil
	}
	return a.fields[name]
}

// changes is an object of strings, and of null for what is to be removed.
func (a *arguments) changes(name string) map[string]*string {
	var sent map[string]*string
	if !a.get(name, "an object of strings and nulls", &sent) {
		return nil
	}
	kept := make(map[string]json.RawMessage, len(sent))
	fields := map[string]json.RawMessage{}
	a.get(name, "an object of strings and nulls", &fields)
	for k, v := range sent {
		if kept[k] = fields[k]; v == nil {
			kept[k] = json.RawMessage(`""`)
		}
	}
	text, err := json.Marshal(kept)
	if err != nil {
		a.refuse(name, "cannot be read")
		return nil
	}
	checked := &arguments{fields: map[string]json.RawMessage{name: text}}
	checked.environment(name)
	if checked.err != nil && a.err == nil {
		a.err = checked.err
	}
	return sent
}

func (a *arguments) agent(name string) *api.FunctionAgent {
	var agent *api.FunctionAgent
	if !a.get(name, "an object with the fields of an agent", &agent) {
		return nil
	}
	switch agent.StateEncoding {
	case "", api.StateJSON:
	case api.StatePickle:
		var text *string
		if json.Unmarshal(agent.State, &text) != nil && len(agent.State) > 0 {
			a.refuse(name, "has a state of encoding %s that is %s, not a string", api.StatePickle, jsonType(agent.State))
		}
	default:
		a.refuse(name, "has the state_encoding %.40q, not %s or %s", agent.StateEncoding, api.StateJSON, api.StatePickle)
	}
	if strings.ContainsRune(agent.ID+agent.ProjectID, 0) {
		a.refuse(name, "has a NUL byte in its id or project_id")
	}
	return agent
}
