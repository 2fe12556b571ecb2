package function

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"berth/orchestrator/config"
	"berth/orchestrator/dispatch"
	"berth/orchestrator/pool"
	"berth/orchestrator/poolapi"
	"berth/orchestrator/strip"
	"berth/sandboxd/api"
	"berth/slots"
)

// Place is where runs of one type of sandbox go.
type Place struct {
	Leases   Leases
	Calls    Calls
	Template string // of configs that name none
	Home     string // of local sandboxes: the organization's own directory, on this host; "": there is none
}

// Calls carry calls to slots. A *calls.Carrier with an Ensure is one.
type Calls interface {
	Do(ctx context.Context, lease pool.Lease, call dispatch.Call) (dispatch.Answer, error)
	// Ensure has the container of the lease build the environment, if it is not
	// there or to be built anew. Packages that cannot be installed are an
	// answer with a Failure.
	// progress, if it is not nil, is called with each line that a build has to
	// say.
	Ensure(ctx context.Context, lease pool.Lease, spec api.EnvironmentSpec, recreate bool, progress func(line string)) (api.EnvironmentResult, error)
}

// Config is how a Runner behaves. Zero fields mean the default.
type Config struct {
	Isolated *Place // nil: there is no pool
	// Local is the place of an organization's local sandboxes, the same one each
	// time; nil: nothing runs on this host.
	Local   func(ctx context.Context, organization string) (*Place, error)
	Environ []string        // of this process, for local sandboxes
	Strip   *strip.Stripper // of TypeScript and JavaScript

	Timeout time.Duration // of a run that names none; default 3 minutes
	Longest time.Duration // timeout that a run may name; default 1 hour
	Wait    time.Duration // for a free slot; default 5 minutes
}

// Runner runs function tools. All methods may be called at once.
type Runner struct {
	store  *config.Store
	config Config

	mu     sync.Mutex // guards what follows
	warm   map[*Place]*warm
	closed bool
	ended  bool                // nobody waits for a slot any more
	built  map[string]struct{} // environments that are known to be there, by container and key
	closer sync.Once
}

// New makes a Runner over the settings. Close ends it.
func New(store *config.Store, c Config) *Runner {
	c.Timeout = cmp.Or(c.Timeout, 3*time.Minute)
	c.Longest = cmp.Or(c.Longest, time.Hour)
	c.Wait = cmp.Or(c.Wait, 5*time.Minute)
	return &Runner{store: store, config: c, warm: map[*Place]*warm{}, built: map[string]struct{}{}}
}

// warmAt are the slots of a place that runs have or have had.
func (r *Runner) warmAt(place *Place) (*warm, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errClosed
	}
	w := r.warm[place]
	if w == nil {
		w = newWarm(place.Leases, r.config.Wait)
		r.warm[place] = w
		if r.ended {
			w.end()
		}
	}
	return w, nil
}

// EndQueues refuses runs that wait for a slot, now and from now on, with
// slots.KindDraining. Those that have one, or find one at once, go on.
func (r *Runner) EndQueues() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	for _, w := range r.warm {
		w.end()
	}
}

// Close gives back the slots that are kept, and waits for that.
func (r *Runner) Close() error {
	r.closer.Do(func() {
		r.mu.Lock()
		r.closed = true
		all := slices.Collect(maps.Values(r.warm))
		r.mu.Unlock()
		for _, w := range all {
			w.close()
		}
	})
	return nil
}

// plan is a run whose request was found good.
type plan struct {
	route
	run     *poolapi.ToolRun
	args    map[string]json.RawMessage
	env     map[string]*string
	spec    api.EnvironmentSpec
	key     string // of spec
	timeout time.Duration
	id      string

	progress func(line string) // of the build of the environment; nil: nobody listens
}

// Run runs the tool for the organisation. A tool that fails is a result; the
// error says what is wrong with the request, or that no slot could be had.
// progress, if it is not nil, is called with each line that the build of the
// environment has to say, until Run returns.
func (r *Runner) Run(ctx context.Context, organization string, run *poolapi.ToolRun, progress func(line string)) (poolapi.ToolResult, error) {
	began := time.Now()
	p, err := r.plan(ctx, organization, run)
	if err != nil {
		return poolapi.ToolResult{}, err
	}
	p.progress = progress
	result := poolapi.ToolResult{
		Fingerprint: p.fingerprint, ExecutionID: p.id, Sandbox: poolapi.ToolPlace{Type: p.of},
	}
	source, failure, err := r.source(ctx, organization, run)
	if failure == nil && err == nil {
		for try := 0; ; try++ {
			var again bool
			failure, again, err = r.attempt(ctx, p, source, &result)
			if !again || try > 0 {
				break
			}
		}
	}
	if err != nil {
		return poolapi.ToolResult{}, err
	}
	if failure != nil {
		result.FunctionResult = failed(run.Tool.Name, *failure)
	}
	result.Timings.Total = milliseconds(time.Since(began))
	return result, nil
}

// Recreate builds the environment of the organisation's local sandbox anew. A
// build runs what packages bring along: like a tool, it runs on the host for
// organisations that are privileged, and is slots.KindDenied for all others.
func (r *Runner) Recreate(ctx context.Context, organization string) (poolapi.SandboxConfig, error) {
	owner, err := r.store.Organization(ctx, organization)
	if err != nil {
		return poolapi.SandboxConfig{}, err
	}
	if !owner.PrivilegedTools {
		return poolapi.SandboxConfig{}, slots.Errorf(slots.KindDenied, "organization %s is not privileged: it has no local sandbox", organization)
	}
	c, err := r.store.Default(ctx, organization, poolapi.SandboxLocal)
	if err != nil {
		return c, err
	}
	place, err := r.place(ctx, poolapi.SandboxLocal, organization)
	if err != nil {
		return c, err
	}
	to := route{
		of: poolapi.SandboxLocal, place: place, configID: c.ID, fingerprint: c.Fingerprint, recreate: true,
		tenant: tenant{place.Template, organization, c.Fingerprint},
	}
	if err := to.read(c.Config); err != nil {
		return c, err
	}
	stored, err := r.store.Environment(ctx, organization, c.ID)
	if err != nil {
		return c, err
	}
	p := &plan{route: to, run: &poolapi.ToolRun{Tool: poolapi.Tool{Name: "(none)"}}}
	p.spec = api.EnvironmentSpec{Language: api.LanguagePython, Requirements: to.pip, Index: index(stored)}
	if p.key, err = p.spec.Key(); err != nil || p.key == "" {
		return c, err
	}
	w, err := r.warmAt(place)
	if err != nil {
		return c, err
	}
	h, err := w.get(ctx, want{tenant: to.tenant, keep: to.keep, run: r.config.Timeout})
	if err != nil {
		return c, err
	}
	failure, _, err := r.ensure(ctx, place, h, p)
	w.put(h, err == nil)
	if failure != nil {
		err = slots.Errorf(slots.KindBadRequest, "%s", failure.Message)
	}
	return c, err
}

// failed is the result of a tool that did not run.
func failed(tool string, f api.FunctionError) api.FunctionResult {
	null := json.RawMessage("null")
	return api.FunctionResult{
		Status: api.FunctionFailed, FuncReturn: null, AgentState: null, Text: f.Sentence(tool), Error: &f, Stdout: []string{}, Stderr: []string{},
	}
}

// plan checks the request, and finds what it needs.
func (r *Runner) plan(ctx context.Context, organization string, run *poolapi.ToolRun) (*plan, error) {
	if err := check(run); err != nil {
		return nil, err
	}
	timeout, err := run.TimeoutS.Duration(r.config.Timeout, r.config.Longest)
	if err != nil {
		return nil, slots.Errorf(slots.KindBadRequest, "timeout_s: %w", err)
	}
	schema := run.Tool.JSONSchema
	if len(schema) == 0 || string(schema) == "null" {
		schema = run.Tool.ArgsJSONSchema
	}
	args, err := coerceArgs(schema, run.Args)
	if err != nil {
		return nil, err
	}
	where, err := r.route(ctx, organization, run.Sandbox)
	if err != nil {
		return nil, err
	}
	stored, err := r.store.Environment(ctx, organization, where.configID)
	if err != nil {
		return nil, err
	}
	var host []string
	if where.of == poolapi.SandboxLocal {
		host = r.config.Environ
	}
	env, err := layers(host, stored, run)
	if err != nil {
		return nil, err
	}
	p := &plan{route: where, run: run, args: args, env: env, timeout: timeout, id: uuid.NewString()}
	p.spec = api.EnvironmentSpec{Language: api.LanguagePython, Index: index(stored)}
	theirs, tools := where.pip, run.Tool.PipRequirements
	if run.Tool.SourceType != api.SourcePython {
		p.spec.Language, theirs, tools = api.LanguageNode, where.npm, run.Tool.NpmRequirements
	}
	if p.spec.Requirements, err = merged(p.spec.Language, theirs, tools); err != nil {
		return nil, err
	}
	p.key, err = p.spec.Key()
	return p, err
}

// Bounds of a request.
const (
	maxName   = 256
	maxReturn = 10_000_000 // code points
)

// sourceTypeScript is stripped here; slots do not know it.
const sourceTypeScript = strip.TypeScript

// check refuses what no slot has to be asked for.
func check(run *poolapi.ToolRun) error {
	t := run.Tool
	bad := func(format string, args ...any) error { return slots.Errorf(slots.KindBadRequest, format, args...) }
	hasSchema := len(t.JSONSchema) > 0 && string(t.JSONSchema) != "null"
	switch {
	case t.Name == "" || utf8.RuneCountInString(t.Name) > maxName:
		return bad("tool.name must have 1 to %d characters", maxName)
	case t.SourceCode == "":
		return bad("tool.source_code is missing")
	case !slices.Contains([]string{api.SourcePython, sourceTypeScript, api.SourceJavaScript}, t.SourceType):
		return bad("tool.source_type must be python, typescript or javascript, got %.40q", t.SourceType)
	case t.SourceType == sourceTypeScript && !hasSchema:
		return bad("TypeScript tools require an explicit json_schema parameter")
	case t.SourceType == api.SourceJavaScript && !hasSchema:
		return bad("JavaScript tools require an explicit json_schema parameter")
	case t.ReturnCharLimit < 0 || t.ReturnCharLimit > maxReturn:
		return bad("tool.return_char_limit must be 1 to %d, or 0 for the default", maxReturn)
	}
	if a := run.Agent; a != nil {
		if !slices.Contains([]string{"", api.StateJSON, api.StatePickle}, a.StateEncoding) {
			return bad("agent.state_encoding must be json or pickle+base64, got %.40q", a.StateEncoding)
		}
	}
	return nil
}

// source is what a slot runs. A source that cannot be stripped is a tool that
// fails.
func (r *Runner) source(ctx context.Context, organization string, run *poolapi.ToolRun) (string, *api.FunctionError, error) {
	if run.Tool.SourceType == api.SourcePython {
		return run.Tool.SourceCode, nil, nil
	}
	text, err := r.config.Strip.Strip(ctx, organization, run.Tool.SourceType, run.Tool.SourceCode)
	if wrong, ok := errors.AsType[*strip.Error](err); ok {
		return "", &api.FunctionError{Kind: api.FunctionException, Name: "SyntaxError", Message: wrong.Text}, nil
	}
	return text, nil, err
}

// attempt runs the tool in a slot. again: nothing was done, and a second
// attempt may go better.
func (r *Runner) attempt(ctx context.Context, p *plan, source string, result *poolapi.ToolResult) (failure *api.FunctionError, again bool, err error) {
	place := p.place
	w, err := r.warmAt(place)
	if err != nil {
		return nil, false, err
	}
	began := time.Now()
	w.drain(p.tenant)
	h, err := w.get(ctx, want{tenant: p.tenant, keep: p.keep, run: p.timeout, fresh: !p.reuse})
	if err != nil {
		return nil, false, err
	}
	well, ours := false, true
	defer func() {
		if ours {
			w.put(h, well && p.reuse)
		}
	}()
	result.Timings.Queue = milliseconds(time.Since(began))
	result.Sandbox.Container, result.Sandbox.SlotID, result.Sandbox.Reused = h.lease.Container.ID, h.lease.Slot.SlotID, h.reused
	began = time.Now()
	stop := w.hold(ctx, h, p.timeout+slack)
	failure, cached, err := r.ensure(ctx, place, h, p)
	stop()
	result.Timings.Env, result.Sandbox.EnvCached = milliseconds(time.Since(began)), cached
	if err != nil || failure != nil {
		well = failure != nil
		return failure, h.reused && gone(err), err
	}
	if ours = w.lasts(ctx, h, p.timeout+slack); !ours {
		return nil, true, slots.Errorf(slots.KindSlotLost, "lease ended before the run began").WithExecuted(slots.ExecutedNever)
	}
	args, err := json.Marshal(p.call(source))
	if err != nil {
		return nil, false, slots.Errorf(slots.KindBadRequest, "encode call: arguments are not JSON")
	}
	answer, err := place.Calls.Do(ctx, h.lease, dispatch.Call{
		Call:          api.Call{Tool: api.FunctionTool, Args: args, Timeout: api.Seconds(p.timeout.Seconds()), ExecutionID: p.id},
		CancelStarted: true, // nobody else hears of it
	})
	if err != nil {
		missing := slots.AsError(err).Kind == slots.KindNotFound && p.key != ""
		if missing {
			r.forget(h, p.key)
		}
		well = missing
		return nil, missing || h.reused && gone(err) && slots.AsError(err).Executed == slots.ExecutedNever, err
	}
	ran, err := answer.Result.FunctionResult()
	if err == nil && ran == nil {
		err = slots.Errorf(slots.KindInternal, "container %s does not run functions: its sandboxd is an older one", h.lease.Container.ID)
	}
	if err != nil {
		return nil, false, err
	}
	well = true
	result.FunctionResult = *ran
	t := answer.Timing
	result.Timings.Queue += milliseconds(t.Queue + t.Dispatch)
	result.Timings.Spawn, result.Timings.Run = milliseconds(t.Spawn), milliseconds(t.Run)
	return nil, false, nil
}

// gone reports whether the error says that the slot is not ours any more.
func gone(err error) bool {
	if err == nil {
		return false
	}
	switch slots.AsError(err).Kind {
	case slots.KindSlotLost, slots.KindLeaseExpired, slots.KindFenced:
		return true
	default:
		return false
	}
}

// call is the plan as the slot wants it.
func (p *plan) call(source string) api.FunctionArgs {
	t := p.run.Tool
	args := api.FunctionArgs{
		Name: t.Name, ToolID: t.ID, SourceCode: source, SourceType: t.SourceType, Args: p.args,
		JSONSchema: t.JSONSchema, ArgsJSONSchema: t.ArgsJSONSchema, Environment: p.key, Directory: p.directory, Env: p.env, ReturnCharLimit: t.ReturnCharLimit,
	}
	if t.SourceType == sourceTypeScript {
		args.SourceType = api.SourceJavaScript
	}
	if a := p.run.Agent; a != nil {
		args.Agent = &api.FunctionAgent{ID: a.ID, ProjectID: a.ProjectID, ReturnState: a.ReturnState}
		if t.SourceType == api.SourcePython { // the others get no state
			args.Agent.State, args.Agent.StateEncoding = a.State, a.StateEncoding
		}
	}
	return args
}

// ensure has the environment of the plan there. cached: nothing was built.
func (r *Runner) ensure(ctx context.Context, place *Place, h *held, p *plan) (failure *api.FunctionError, cached bool, err error) {
	if p.key == "" {
		return nil, true, nil
	}
	at := h.lease.Container.ID + " " + p.key
	r.mu.Lock()
	_, known := r.built[at]
	r.mu.Unlock()
	if known && !p.recreate {
		return nil, true, nil
	}
	made, err := place.Calls.Ensure(ctx, h.lease, p.spec, p.recreate, p.progress)
	if err != nil {
		return nil, false, err
	}
	if f := made.Failure; f != nil {
		return &api.FunctionError{Kind: api.FunctionInstall, Name: "InstallError", Message: installText(p, f), Traceback: f.Output}, false, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.built) >= maxBuilt {
		clear(r.built) // to ask again costs a request
	}
	r.built[at] = struct{}{}
	return nil, made.Cached, nil
}

// maxBuilt bounds what is remembered of environments.
const maxBuilt = 100_000

func (r *Runner) forget(h *held, key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.built, h.lease.Container.ID+" "+key)
}

// installText says what could not be installed, and what mends it.
func installText(p *plan, f *api.EnvironmentFailure) string {
	what := "its requirements"
	if f.Requirement != "" {
		what = "requirement " + f.Requirement
	}
	return fmt.Sprintf("Failed to install %s of tool %s in the %s sandbox: %s. This may be due to package version incompatibility. Consider updating the package version or removing the version constraint.",
		what, p.run.Tool.Name, p.of, f.Message)
}

// place is where the organization's runs go that are of the type.
func (r *Runner) place(ctx context.Context, of poolapi.SandboxType, organization string) (*Place, error) {
	switch {
	case of == poolapi.SandboxLocal && r.config.Local != nil:
		return r.config.Local(ctx, organization)
	case of == poolapi.SandboxIsolated && r.config.Isolated != nil:
		return r.config.Isolated, nil
	default:
		return nil, slots.Errorf(slots.KindUnavailable, "this orchestrator has no %s sandboxes", of)
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
