package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/poolapi"
	"berth/slots"
)

// echoes is Tools that only tell for whom they were asked.
type echoes struct {
	runs  int
	began chan struct{} // closed by a run that then waits for ended, unless it is nil
	ended chan struct{}
}

func (e *echoes) Run(_ context.Context, organization string, _ *poolapi.ToolRun, _ func(string)) (poolapi.ToolResult, error) {
	e.runs++
	if e.began != nil {
		close(e.began)
		<-e.ended
		return poolapi.ToolResult{}, slots.Errorf(slots.KindDraining, "the queue has ended")
	}
	return poolapi.ToolResult{ExecutionID: organization}, nil
}

func (e *echoes) Recreate(_ context.Context, organization string) (poolapi.SandboxConfig, error) {
	return poolapi.SandboxConfig{OrganizationID: organization}, nil
}

func (e *echoes) EndQueues() {
	if e.ended != nil {
		close(e.ended)
	}
}

// bounded is a Server with tokens that are bound to organizations.
func bounded(t *testing.T) (*Server, *echoes) {
	t.Helper()
	made, _ := configured(t)
	deps, tools := made.Deps, &echoes{}
	deps.Metrics, deps.Tools = NewMetrics(), tools
	return New(deps, Config{Token: "trainer", OperatorToken: "operator", MetricsToken: "looks-on", Template: "t", Bound: []BoundToken{
		{Token: "acme's", Organizations: []string{"acme"}},
		{Token: "two", Organizations: []string{"globex", "default"}},
	}}), tools
}

func TestATokenSpeaksForItsOrganizationsAlone(t *testing.T) {
	s, _ := bounded(t)
	const theirs, run = "/v1/sandbox-config", `{"tool":{"name":"f","source_code":"x","source_type":"python"}}`
	for _, c := range []struct {
		token, organization, method, path, body string
		status                                  int
	}{
		{"acme's", "acme", "GET", theirs, "", 200},
		{"acme's", "acme", "POST", theirs + "/isolated/default", "", 200},
		{"acme's", "acme", "POST", "/v1/tools/run", run, 200},
		{"acme's", "globex", "GET", theirs, "", 403},
		{"acme's", "globex", "POST", theirs + "/isolated/default", "", 403},
		{"acme's", "globex", "POST", "/v1/tools/run", run, 403},
		{"acme's", "globex", "POST", theirs + "/local/recreate-venv", "", 403},
		{"acme's", "", "POST", "/v1/tools/run", run, 403}, // it is for the default one
		{"acme's", "ACME", "GET", theirs, "", 403},
		{"acme's", "acme,globex", "GET", theirs, "", 400},
		{"acme's", "../x", "GET", theirs, "", 400},
		{"acme's", "", "GET", "/v1/organizations/acme", "", 200},
		{"acme's", "acme", "GET", "/v1/organizations/globex", "", 403},
		{"acme's", "acme", "PATCH", "/v1/organizations/acme", `{"privileged_tools":true}`, 403},
		{"two", "", "POST", "/v1/tools/run", run, 200},
		{"two", "globex", "POST", "/v1/tools/run", run, 200},
		{"two", "acme", "POST", "/v1/tools/run", run, 403},
		{"trainer", "acme", "POST", "/v1/tools/run", run, 200},
		{"operator", "globex", "POST", "/v1/tools/run", run, 200},
		{"none", "acme", "POST", "/v1/tools/run", run, 403},
	} {
		code, _, text := ask[json.RawMessage](t, s, c.token, c.organization, c.method, c.path, c.body)
		assert.Equal(t, c.status, code, "%+v: %s", c, text)
		if code == 403 && c.token != "none" {
			assert.Contains(t, text, `"kind":"denied"`, "%+v", c)
		}
	}
	_, result, _ := ask[poolapi.ToolResult](t, s, "two", "globex", "POST", "/v1/tools/run", run)
	assert.Equal(t, "globex", result.ExecutionID, "it runs for whom it was asked")
}

// TestNoRouteForgetsWhoseATokenIs asks every route there is, so that one that
// is added later is held to it as well: slots, leases, containers, metrics and
// events show what others do, and belong to no organization.
func TestNoRouteForgetsWhoseATokenIs(t *testing.T) {
	s, tools := bounded(t)
	own := 0
	for _, r := range s.routes() {
		path := strings.NewReplacer(":lease", "c:slot_0:1", ":id", "c", ":config", "c", ":variable", "v", ":organization", "globex", "*", "f").Replace(r.path)
		for _, organization := range []string{"globex", "acme"} {
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // nothing is waited for
			request := httptest.NewRequestWithContext(ctx, r.method, strings.Replace(path, "organizations/globex", "organizations/"+organization, 1), strings.NewReader("{}"))
			request.Header.Set("Authorization", "Bearer acme's")
			request.Header.Set(poolapi.HeaderOrganization, organization)
			w := httptest.NewRecorder()
			s.ServeHTTP(w, request)
			denied := w.Code == http.StatusForbidden
			switch {
			case r.role == anybody:
				assert.False(t, denied, "%s %s", r.method, r.path)
			case r.role == operator || r.about.organized == unorganized || organization == "globex":
				assert.True(t, denied, "%s %s for %s: %d %s", r.method, r.path, organization, w.Code, w.Body)
			default:
				assert.False(t, denied, "%s %s: %s", r.method, r.path, w.Body)
				own++
			}
		}
	}
	assert.Greater(t, own, 10)
	assert.Positive(t, tools.runs)
}

// TestTheTokenOfMetricsOpensMetricsAlone asks every route there is, too.
func TestTheTokenOfMetricsOpensMetricsAlone(t *testing.T) {
	s, tools := bounded(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // nothing is waited for
	asked := 0
	for _, r := range s.routes() {
		path := strings.NewReplacer(":lease", "c:slot_0:1", ":id", "c", ":config", "c", ":variable", "v", ":organization", "acme", "*", "f").Replace(r.path)
		request := httptest.NewRequestWithContext(ctx, r.method, path, strings.NewReader("{}"))
		request.Header.Set("Authorization", "Bearer looks-on")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, request)
		if r.role == anybody || r.path == "/metrics" {
			assert.Equal(t, http.StatusOK, w.Code, "%s %s", r.method, r.path)
			continue
		}
		assert.Equal(t, http.StatusForbidden, w.Code, "%s %s: %s", r.method, r.path, w.Body)
		assert.Contains(t, w.Body.String(), "for metrics alone", "%s %s", r.method, r.path)
		asked++
	}
	assert.Greater(t, asked, 30)
	assert.Zero(t, tools.runs)
	code, _, _ := ask[json.RawMessage](t, s, "looks-on", "", "GET", "/nowhere", "")
	assert.Equal(t, http.StatusForbidden, code, "it learns no routes")
}

func TestAKeyOfOneOrganizationIsNotAnotherOnes(t *testing.T) {
	s, tools := bounded(t)
	run := func(token, organization string) (int, string) {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/tools/run", strings.NewReader(`{"tool":{"name":"f","source_code":"x","source_type":"python"}}`))
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set(poolapi.HeaderOrganization, organization)
		r.Header.Set(poolapi.HeaderKey, "one-key")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	for range 2 {
		for token, organization := range map[string]string{"acme's": "acme", "two": "globex"} {
			code, text := run(token, organization)
			require.Equal(t, 200, code, text)
			assert.Contains(t, text, organization)
		}
	}
	assert.Equal(t, 2, tools.runs, "each was done once")
	code, _ := run("two", "acme")
	assert.Equal(t, 403, code, "an answer that is kept is no way around it")
}
