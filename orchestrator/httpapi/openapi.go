package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/labstack/echo/v4"

	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
	"berth/slots"
)

// about is what the description of a route says beside its path: it is made of
// the types that the handler reads and answers, so that it cannot tell another
// story.
type about struct {
	text     string       // one sentence
	query    []string     // names in queries
	body     reflect.Type // of its JSON; nil: it reads none
	optional bool         // the body may be missing
	raw      string       // content type of a body that is not JSON
	answer   reflect.Type // of its JSON; nil: it is not JSON
	or       reflect.Type // of another JSON answer
	kind     string       // content type of an answer that is not JSON
	stream   reflect.Type // of the events that it answers when asked to
	status   []int        // when all went well; none: 200
	key      keyed        // what it does with headerKey

	socket    bool      // it becomes a WebSocket; body and answer are what its text messages hold
	organized organized // how it names the organisation that it is about
}

// organized is how a request names the organisation that it is about.
type organized int

const (
	unorganized organized = iota // it is about none: no token of organisations is good for it
	byHeader                     // poolapi.HeaderOrganization
	byPath
)

// is is the type for an about.
func is[T any]() reflect.Type { return reflect.TypeFor[T]() }

// queries are the names in queries.
var queries = map[string]object{
	"template":      {"schema": object{"type": "string"}, "description": "Of that template only."},
	"trajectory":    {"schema": object{"type": "string"}, "description": "Of that trajectory only."},
	"container":     {"schema": object{"type": "string"}, "description": "In that container only."},
	"label":         {"schema": object{"type": "array", "items": object{"type": "string"}}, "description": "NAME=VALUE: with that label only."},
	"wait_s":        {"schema": object{"type": "number", "minimum": 0}, "description": "How long to wait for the end, in seconds; 0: not at all."},
	"stream":        {"schema": object{"enum": []string{"stdout", "stderr"}}, "description": "Which stream; stdout is the default."},
	"offset":        {"schema": object{"type": "integer", "minimum": 0}, "description": "Of the first byte."},
	"length":        {"schema": object{"type": "integer", "minimum": 0}, "description": "Bytes at most."},
	"stdout_offset": {"schema": object{"type": "integer", "minimum": 0}, "description": "Bytes of stdout that the client has."},
	"stderr_offset": {"schema": object{"type": "integer", "minimum": 0}, "description": "Bytes of stderr that the client has."},
	"tar":           {"schema": object{"type": "string"}, "description": "1 or gz: the tree as an archive."},
	"limit":         {"schema": object{"type": "integer", "minimum": 1, "maximum": 1000}, "description": "At most so many."},
	"after":         {"schema": object{"type": "string"}, "description": "The id of the last one that is known."},
	"sandbox_type":  {"schema": object{"enum": []string{"local", "isolated", "e2b"}}, "description": "Of that type only."},
	"reveal":        {"schema": object{"type": "boolean"}, "description": "Show the values, to operators."},
	"cols":          {"schema": object{"type": "integer", "minimum": 1, "maximum": api.MaxWindow, "default": api.DefaultColumns}, "description": "Width of the window, in characters."},
	"rows":          {"schema": object{"type": "integer", "minimum": 1, "maximum": api.MaxWindow, "default": api.DefaultRows}, "description": "Height of the window, in characters."},
	"term":          {"schema": object{"type": "string"}, "description": "What kind of terminal the client's is, for TERM."},
	"command":       {"schema": object{"type": "string"}, "description": "For bash to run; an interactive bash without it."},
	"cwd":           {"schema": object{"type": "string"}, "description": "Where it begins; the workspace without it."},
	"untar":         {"schema": object{"type": "string"}, "description": "1: the body is an archive to unpack there."},
}

// object is a JSON object.
type object = map[string]any

// callResult is the form of what callAnswer writes.
type callResult struct {
	Success  bool         `json:"success"`
	Output   string       `json:"output"`
	Error    string       `json:"error"`
	UniqID   *string      `json:"uniq_id"`
	Metadata api.Metadata `json:"metadata"`
}

// The bodies of the reference's artifact routes: the container's, but the
// trajectory says which slot.
type (
	trajectoryRead struct {
		TrajectoryID string `json:"trajectory_id"`
		api.ReadRequest
	}
	trajectoryList struct {
		TrajectoryID string `json:"trajectory_id"`
		api.ListRequest
	}
	trajectoryArchive struct {
		TrajectoryID string `json:"trajectory_id"`
		api.ArchiveRequest
	}
)

// schemas makes the schemas of the types that a description speaks of. Each
// named type has one, to which all others refer.
type schemas struct {
	refs map[reflect.Type]*jsonschema.Schema
	all  map[string]*jsonschema.Schema
}

// anything fits whatever is sent.
func anything() *jsonschema.Schema { return &jsonschema.Schema{} }

func newSchemas() *schemas {
	return &schemas{
		all: map[string]*jsonschema.Schema{},
		refs: map[reflect.Type]*jsonschema.Schema{
			is[json.RawMessage](): anything(),
			is[[]byte]():          {Type: "string", ContentEncoding: "base64"},
			is[api.Timeout]():     {Types: []string{"number", "null"}, Description: "Seconds above 0; null means the default."},
			is[slots.Level]():     {Type: "string"},
			is[slots.Axes]():      {Type: "object", AdditionalProperties: &jsonschema.Schema{Type: "string"}},
		},
	}
}

// nameOf is the type's name in the description.
func nameOf(t reflect.Type) string {
	if t == is[slots.Receipt]() {
		return "ResetReceipt" // api.Receipt is a process's
	}
	return strings.ToUpper(t.Name()[:1]) + t.Name()[1:]
}

// ref is a reference to the schema of t, which it makes when there is none.
func (s *schemas) ref(t reflect.Type) (*jsonschema.Schema, error) {
	if have, ok := s.refs[t]; ok {
		return have, nil
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		if t.Elem().Kind() != reflect.Uint8 {
			if _, err := s.ref(t.Elem()); err != nil {
				return nil, err
			}
		}
		return jsonschema.ForType(t, &jsonschema.ForOptions{TypeSchemas: s.refs})
	case reflect.Struct:
	default:
		return jsonschema.ForType(t, &jsonschema.ForOptions{})
	}
	if !strings.HasPrefix(t.PkgPath(), "berth/") {
		if t.Name() != "" {
			return jsonschema.ForType(t, &jsonschema.ForOptions{})
		}
		if err := s.fields(t); err != nil {
			return nil, err
		}
		return jsonschema.ForType(t, &jsonschema.ForOptions{TypeSchemas: s.refs})
	}
	return s.define(t)
}

// fields makes the schemas that t's fields need.
func (s *schemas) fields(t reflect.Type) error {
	for f := range t.Fields() {
		if f.Anonymous {
			under := f.Type
			if under.Kind() == reflect.Pointer {
				under = under.Elem()
			}
			if err := s.fields(under); err != nil {
				return err
			}
			continue
		}
		if f.Tag.Get("json") == "-" {
			continue
		}
		if _, err := s.ref(f.Type); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

// beside is all references but those to what t embeds: those fields are its own.
func (s *schemas) beside(t reflect.Type) map[reflect.Type]*jsonschema.Schema {
	refs := maps.Clone(s.refs)
	for f := range t.Fields() {
		if f.Anonymous && f.Type.Kind() == reflect.Pointer {
			delete(refs, f.Type.Elem())
		} else if f.Anonymous {
			delete(refs, f.Type)
		}
	}
	return refs
}

// define makes the schema of a type of ours.
func (s *schemas) define(t reflect.Type) (*jsonschema.Schema, error) {
	name := nameOf(t)
	if _, taken := s.all[name]; taken {
		return nil, fmt.Errorf("two types are called %s", name)
	}
	if err := s.fields(t); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	made, err := jsonschema.ForType(t, &jsonschema.ForOptions{TypeSchemas: s.beside(t)})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	mend(made)
	if err := s.adapt(t, made); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	s.all[name] = made
	s.refs[t] = &jsonschema.Schema{Ref: "#/components/schemas/" + name}
	return s.refs[t], nil
}

// mend has a pointer to a named type be that type: package jsonschema adds that
// it is null, which only one that is left out of the JSON ever is.
func mend(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if s.Ref != "" {
		s.Type, s.Types = "", nil
	}
	mend(s.Items)
	mend(s.AdditionalProperties)
	for _, p := range s.Properties {
		mend(p)
	}
}

// adapt says what a type's fields do not.
func (s *schemas) adapt(t reflect.Type, made *jsonschema.Schema) error {
	loose := func(required ...string) {
		made.AdditionalProperties, made.Required = nil, required
	}
	without := func(names ...string) {
		for _, name := range names {
			delete(made.Properties, name)
		}
		hidden := func(have string) bool { return slices.Contains(names, have) }
		made.Required = slices.DeleteFunc(made.Required, hidden)
		made.PropertyOrder = slices.DeleteFunc(made.PropertyOrder, hidden)
	}
	switch t {
	case is[poolapi.LeaseRequest](), is[poolapi.LeaseRenewal]():
		made.Properties["ttl_s"].Description = "Seconds: at least 1; 0 for the default."
	case is[api.Metadata]():
		// A process's receipt is there when one ran, and tools add what they want.
		loose("queue_ms", "generation")
	case is[callRequest]():
		loose("trajectory_id", "tool")
		made.Properties["tool"].AdditionalProperties, made.Properties["tool"].Required = nil, []string{"name"}
	case is[releaseRequest]():
		loose("trajectory_id")
	case is[trajectoryRead](), is[trajectoryList](), is[trajectoryArchive]():
		without("slot_id", "token")
		loose(slices.DeleteFunc(made.Required, func(name string) bool { return name != "trajectory_id" && name != "path" })...)
	case is[api.ReadRequest](), is[api.ListRequest](), is[api.ArchiveRequest]():
		without("slot_id", "token")
	case is[liveEvent]():
		row, err := s.ref(is[liveContainer]()) // they are encoded once for all who watch
		made.Properties["containers"].Items = row
		return err
	}
	return nil
}

// How the router and a description write what a path names.
var (
	pathParam = regexp.MustCompile(`:(\w+)`)
	openParam = regexp.MustCompile(`\{(\w+)\}`)
)

// openPath is the route's path as a description writes it.
func openPath(path string) string {
	return strings.ReplaceAll(pathParam.ReplaceAllString(path, "{$1}"), "*", "{path}")
}

// describe makes the description of the routes: OpenAPI 3.1.
func describe(routes []route) ([]byte, error) {
	s, paths := newSchemas(), map[string]object{}
	for _, r := range routes {
		operation, err := s.operation(r)
		if err != nil {
			return nil, slots.Errorf(slots.KindInternal, "describe %s %s: %w", r.method, r.path, err)
		}
		at := openPath(r.path)
		if paths[at] == nil {
			paths[at] = object{}
		}
		paths[at][strings.ToLower(r.method)] = operation
	}
	text, err := json.Marshal(object{
		"openapi": "3.1.0",
		"info": object{
			"title": "Berth orchestrator", "version": "1",
			"description": "Routes by trajectory, as clients of the reference know them, and by lease under /v1. A lease, a container and an execution are named by what an answer called them.",
		},
		"paths": paths,
		"components": object{
			"schemas": s.all,
			"securitySchemes": object{"token": object{
				"type": "http", "scheme": "bearer",
				"description": "Of trainers, of operators, or bound to organizations: one of those is good for the function tools of these organizations alone, and for everything else it is answered 403. Or of metrics: that is good for GET /metrics alone.",
			}},
		},
	})
	if err != nil {
		return nil, slots.Errorf(slots.KindInternal, "encode description: %w", err)
	}
	return text, nil
}

// operation describes one route.
func (s *schemas) operation(r route) (object, error) {
	a := r.about
	o := object{"summary": a.text}
	switch r.role {
	case trainer, scraper:
		o["security"] = []object{{"token": []string{}}}
	case operator:
		o["security"] = []object{{"token": []string{}}}
		o["description"] = "For operators."
	case anybody:
	}
	var parameters []object
	for _, name := range openParam.FindAllStringSubmatch(openPath(r.path), -1) {
		parameters = append(parameters, object{"name": name[1], "in": "path", "required": true, "schema": object{"type": "string"}})
	}
	for _, name := range a.query {
		p := object{"name": name, "in": "query"}
		maps.Copy(p, queries[name])
		parameters = append(parameters, p)
	}
	if a.organized == byHeader {
		parameters = append(parameters, object{
			"name": poolapi.HeaderOrganization, "in": "header", "schema": object{"type": "string", "default": poolapi.DefaultOrganization},
			"description": "Whose the request is. A token that is bound to organizations must be so to this one.",
		})
	}
	if a.key != keyIgnored {
		parameters = append(parameters, object{
			"name": headerKey, "in": "header", "schema": object{"type": "string", "minLength": 1, "maxLength": maxKey},
			"description": "Requests with the same key are one request, and have one answer; with another body they are a conflict.",
		})
	}
	if parameters != nil {
		o["parameters"] = parameters
	}
	switch {
	case a.raw != "":
		o["requestBody"] = object{"content": object{a.raw: object{}}}
	case a.socket:
		said, err := s.socket(a)
		if err != nil {
			return nil, err
		}
		o["x-websocket"] = said
	case a.body != nil:
		body, err := s.ref(a.body)
		if err != nil {
			return nil, err
		}
		o["requestBody"] = object{"required": !a.optional, "content": object{echo.MIMEApplicationJSON: object{"schema": body}}}
	}
	responses, err := s.responses(r)
	o["responses"] = responses
	return o, err
}

// socket describes the text messages of a WebSocket, which OpenAPI has no words
// for.
func (s *schemas) socket(a about) (object, error) {
	said, err := s.ref(a.body)
	if err != nil {
		return nil, err
	}
	heard, err := s.ref(a.answer)
	if err != nil {
		return nil, err
	}
	return object{"subprotocol": api.SubprotocolTerminal, "client": said, "server": heard}, nil
}

// responses describes the answers of one route.
func (s *schemas) responses(r route) (object, error) {
	a, content := r.about, object{}
	if a.kind != "" {
		content[a.kind] = object{}
	}
	var forms []*jsonschema.Schema
	for _, t := range []reflect.Type{a.answer, a.or} {
		if t == nil || a.socket {
			continue
		}
		form, err := s.ref(t)
		if err != nil {
			return nil, err
		}
		forms = append(forms, form)
	}
	if len(forms) > 0 {
		content[echo.MIMEApplicationJSON] = object{"schema": oneOf(forms)}
	}
	if a.stream != nil {
		event, err := s.ref(a.stream)
		if err != nil {
			return nil, err
		}
		content[api.TypeEventStream] = object{"schema": object{"type": "string", "description": "Server-sent events, whose data are each of this form.", "contentSchema": event}}
		if r.handlesLines() {
			content[api.TypeNDJSON] = object{"schema": object{"type": "string", "description": "Lines, each of this form.", "contentSchema": event}}
		}
	}
	well := object{"description": "All went well."}
	if len(content) > 0 && r.method != http.MethodHead {
		well["content"] = content
	}
	failed, err := s.failure(r.style)
	if err != nil {
		return nil, err
	}
	out := object{"default": object{"description": "It was refused, or failed: the kind says why.", "content": object{echo.MIMEApplicationJSON: object{"schema": failed}}}}
	if r.method == http.MethodHead {
		out["default"] = object{"description": "It was refused, or failed."}
	}
	for _, status := range r.statuses() {
		out[strconv.Itoa(status)] = well
	}
	return out, nil
}

// handlesLines reports whether the route's stream can be had as lines of JSON.
func (r route) handlesLines() bool { return r.about.stream != is[liveEvent]() }

// statuses are those of the route's answers when all went well.
func (r route) statuses() []int {
	if len(r.about.status) == 0 {
		return []int{http.StatusOK}
	}
	return r.about.status
}

// failure is the schema of what the style answers to a request that it refuses.
func (s *schemas) failure(st style) (*jsonschema.Schema, error) {
	types := map[style][]reflect.Type{
		styleOurs:      {is[api.ErrorAnswer](), is[poolapi.Exhausted]()},
		styleCall:      {is[callResult]()},
		styleArtifacts: {is[api.ArtifactFailure]()},
	}[st]
	forms := make([]*jsonschema.Schema, len(types))
	for i, t := range types {
		form, err := s.ref(t)
		if err != nil {
			return nil, err
		}
		forms[i] = form
	}
	return oneOf(forms), nil
}

// oneOf is the schema of what has one of the forms.
func oneOf(forms []*jsonschema.Schema) *jsonschema.Schema {
	if len(forms) == 1 {
		return forms[0]
	}
	return &jsonschema.Schema{AnyOf: forms}
}

// openapi answers GET /openapi.json.
func (s *Server) openapi(c echo.Context) error {
	text, err := s.description()
	if err != nil {
		return err
	}
	return s.answer(c, http.StatusOK, json.RawMessage(text))
}
