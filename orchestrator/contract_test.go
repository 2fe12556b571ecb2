package orchestrator_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots/sandbox/sandboxtest"
)

// contract is what an instance says of itself in /openapi.json. Every answer
// that a test gets is held against it.
type contract struct {
	paths   map[string]map[string]any // by path and method in lower case
	schemas any                       // the components

	mu       sync.Mutex
	resolved map[string]*jsonschema.Resolved // by method, path and status
	seen     map[string]bool                 // method, path and status that were held against it
}

func newContract(t testing.TB, text []byte) *contract {
	t.Helper()
	// References are within the description; a schema of its own has them among
	// its definitions.
	text = []byte(strings.ReplaceAll(string(text), "#/components/schemas/", "#/$defs/"))
	var whole struct {
		Paths      map[string]map[string]any
		Components struct{ Schemas any }
	}
	require.NoError(t, json.Unmarshal(text, &whole))
	return &contract{paths: whole.Paths, schemas: whole.Components.Schemas, resolved: map[string]*jsonschema.Resolved{}, seen: map[string]bool{}}
}

// template is the path of the description that the path of a request meets.
func (c *contract) template(path string) string {
	path, _, _ = strings.Cut(path, "?")
	parts := strings.Split(path, "/")
	best := ""
next:
	for template := range c.paths {
		want := strings.Split(template, "/")
		for n, part := range want {
			switch {
			case part == "{path}":
				return template
			case n >= len(parts), !strings.HasPrefix(part, "{") && part != parts[n]:
				continue next
			}
		}
		if len(want) == len(parts) && (best == "" || strings.Count(template, "{") < strings.Count(best, "{")) {
			best = template
		}
	}
	return best
}

// holds says how the answer breaks the contract.
func (c *contract) holds(method, path string, status int, contentType string, body []byte) error {
	template := c.template(path)
	operation, _ := c.paths[template][strings.ToLower(method)].(map[string]any)
	if operation == nil {
		return nil // there is no such route
	}
	key := fmt.Sprint(method, " ", template, " ", status)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[key] = true
	responses := operation["responses"].(map[string]any)
	response, _ := responses[fmt.Sprint(status)].(map[string]any)
	if response == nil {
		if status < 400 {
			return fmt.Errorf("%s is not described", key)
		}
		response = responses["default"].(map[string]any)
	}
	content, _ := response["content"].(map[string]any)
	if len(content) == 0 {
		if len(body) > 0 {
			return fmt.Errorf("%s has a body: %s", key, body)
		}
		return nil
	}
	kind, _, _ := strings.Cut(contentType, ";")
	for name, form := range content {
		if named, _, _ := strings.Cut(name, ";"); named != kind && named != "*/*" {
			continue
		}
		if form.(map[string]any)["schema"] == nil || kind != "application/json" {
			return nil
		}
		return c.validate(key, form.(map[string]any)["schema"], body)
	}
	return fmt.Errorf("%s answers %s, which is not described", key, contentType)
}

func (c *contract) validate(key string, schema any, body []byte) error {
	if c.resolved[key] == nil {
		text, err := json.Marshal(object{"allOf": []any{schema}, "$defs": c.schemas})
		if err != nil {
			return err
		}
		var made jsonschema.Schema
		if err := json.Unmarshal(text, &made); err != nil {
			return err
		}
		if c.resolved[key], err = made.Resolve(nil); err != nil {
			return err
		}
	}
	var answer any
	if err := json.Unmarshal(body, &answer); err != nil {
		return err
	}
	if err := c.resolved[key].Validate(answer); err != nil {
		return fmt.Errorf("%s: %w: %s", key, err, body)
	}
	return nil
}

func TestTheDescriptionIsOneThatToolsRead(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "1")
	text := i.get("/openapi.json", "Authorization: ").body
	description, err := openapi3.NewLoader().LoadFromData(text)
	require.NoError(t, err)
	require.NoError(t, description.Validate(t.Context()))
}

// TestEveryRouteAnswersAsItIsDescribed asks every route for a good answer and
// for a refusal; that each meets the description is checked where every answer
// comes in.
func TestEveryRouteAnswersAsItIsDescribed(t *testing.T) {
	i := start(t, sandboxtest.DataDir(t), "--containers", "2")
	asOperator := "Authorization: Bearer " + operatorToken
	for _, path := range []string{"/", "/dashboard.js", "/dashboard.css", "/health", "/livez", "/readyz", "/openapi.json", "/status", "/metrics", "/v1/pools"} {
		assert.Equal(t, 200, i.get(path).status, path)
	}
	lease := i.acquire(object{"trajectory": "a", "labels": object{"x": "y"}})
	bash := object{"tool": "bash", "args": object{"command": "echo one; echo two >&2; ln -s f link; mkdir d"}, "execution_id": "e"}
	i.run("t", "echo x > f; exit 1")
	for _, r := range []struct {
		method, path string
		body         any
		status       int
		header       string
	}{
		{"PUT", path(lease, "/files/f"), "text", 201, ""},
		{"PUT", path(lease, "/files/f"), "text", 200, ""},
		{"PUT", path(lease, "/files/none?untar=1"), "no archive", 400, ""},
		{"GET", path(lease, "/files/f"), nil, 200, ""},
		{"GET", path(lease, "/files/f"), nil, 206, "Range: bytes=1-2"},
		{"HEAD", path(lease, "/files/f"), nil, 200, ""},
		{"HEAD", path(lease, "/files/nope"), nil, 404, ""},
		{"GET", path(lease, "/files/nope"), nil, 404, ""},
		{"POST", path(lease, "/execute"), bash, 200, ""},
		{"POST", path(lease, "/execute"), bash, 200, "Accept: application/x-ndjson"},
		{"POST", path(lease, "/execute"), object{"tool": "dance"}, 400, ""},
		{"POST", path(lease, "/batch"), object{"calls": []object{bash, {"tool": "dance"}, {}}}, 200, ""},
		{"POST", path(lease, "/batch"), object{"calls": []object{bash}}, 200, "Accept: text/event-stream"},
		{"POST", path(lease, "/batch"), "[]", 400, ""},
		{"GET", path(lease, "/executions/e"), nil, 200, ""},
		{"GET", path(lease, "/executions/none"), nil, 404, ""},
		{"GET", path(lease, "/terminal"), nil, 400, ""},
		{"GET", path(lease, "/executions/e/stream"), nil, 200, ""},
		{"GET", path(lease, "/executions/e/stream"), nil, 200, "Accept: application/x-ndjson"},
		{"GET", path(lease, "/executions/e/output"), nil, 200, ""},
		{"GET", path(lease, "/executions/e/output?stream=x"), nil, 400, ""},
		{"POST", path(lease, "/executions/e/cancel"), nil, 200, ""},
		{"DELETE", path(lease, "/executions/e"), nil, 200, ""},
		{"POST", path(lease, "/artifacts/read"), object{"path": "f", "include_sha256": true}, 200, ""},
		{"POST", path(lease, "/artifacts/list"), object{"recursive": true}, 200, ""},
		{"POST", path(lease, "/artifacts/archive"), object{}, 200, ""},
		{"POST", path(lease, "/artifacts/read"), object{"path": "nope"}, 404, ""},
		{"POST", path(lease, "/artifacts/list"), object{"path": "../.."}, 403, ""},
		{"POST", path(lease, "/artifacts/archive"), object{"format": "zip"}, 400, ""},
		{"POST", "/artifacts/read", object{"trajectory_id": "t", "path": "f"}, 200, ""},
		{"POST", "/artifacts/list", object{"trajectory_id": "t"}, 200, ""},
		{"POST", "/artifacts/archive", object{"trajectory_id": "t"}, 200, ""},
		{"POST", "/artifacts/read", object{"trajectory_id": "t", "path": "nope"}, 404, ""},
		{"POST", "/artifacts/list", object{"trajectory_id": "none"}, 200, ""},
		{"POST", "/execute", object{}, 400, ""},
		{"POST", "/release", object{}, 400, ""},
		{"GET", "/v1/containers", nil, 200, ""},
		{"GET", "/v1/leases?trajectory=a", nil, 200, ""},
		{"GET", "/v1/leases?what=a", nil, 400, ""},
		{"GET", path(lease, ""), nil, 200, ""},
		{"PUT", path(lease, ""), object{"ttl_s": 100}, 200, ""},
		{"PUT", path(lease, ""), object{"ttl_s": -1}, 400, ""},
		{"POST", path(lease, "/reset"), nil, 200, ""},
		{"DELETE", path(lease, ""), nil, 200, ""},
		{"POST", path(lease, "/execute"), object{"tool": "bash", "args": object{"command": "true"}}, 409, ""},
		{"GET", path(lease, ""), nil, 404, ""},
		{"POST", "/release", object{"trajectory_id": "t"}, 200, ""},
		{"POST", "/v1/leases", object{"trajectory": "b"}, 201, ""},
		{"POST", "/v1/leases", object{"trajectory": "b", "template": "none"}, 404, ""},
		{"DELETE", "/v1/leases?trajectory=b", nil, 200, ""},
		{"DELETE", "/v1/leases", nil, 400, ""},
		{"POST", "/v1/containers/none/cordon", nil, 404, asOperator},
		{"POST", "/v1/containers/" + lease["container"].(string) + "/cordon", object{"on": false}, 200, asOperator},
		{"POST", "/v1/containers/" + lease["container"].(string) + "/cordon", nil, 403, ""},
		{"POST", "/v1/containers/" + lease["container"].(string) + "/recycle", nil, 200, asOperator},
		{"POST", "/v1/containers/" + lease["container"].(string) + "/drain", object{"within_s": 60}, 0, asOperator},
		{"GET", "/v1/pools", nil, 401, "Authorization: "},
	} {
		answer := i.do(r.method, r.path, r.body, r.header)
		if r.status != 0 { // what is recycled may be gone by then
			assert.Equal(t, r.status, answer.status, "%s %s: %s", r.method, r.path, answer.body)
		}
	}
	for range 4 {
		i.acquire(object{"trajectory": "c", "further": true, "wait_s": 60})
	}
	full := i.post("/v1/leases", object{"trajectory": "d"})
	assert.Equal(t, 429, full.status)
	i.askForSettings(asOperator)
	i.contract.mu.Lock()
	defer i.contract.mu.Unlock()
	for path, methods := range i.contract.paths {
		for method := range methods {
			if path == "/v1/events" || strings.HasSuffix(path, "/terminal") {
				continue // it does not end; it is a WebSocket
			}
			good := false
			for status := http.StatusOK; status < http.StatusMultipleChoices; status++ {
				good = good || i.contract.seen[fmt.Sprint(strings.ToUpper(method), " ", path, " ", status)]
			}
			assert.True(t, good || strings.HasSuffix(path, "/drain"), "%s %s was not asked for a good answer", method, path)
		}
	}
}
