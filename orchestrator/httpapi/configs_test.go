package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/config"
	"berth/orchestrator/poolapi"
)

// configured makes a Server with settings of organisations.
func configured(t *testing.T) (*Server, *bytes.Buffer) {
	t.Helper()
	keys, err := config.ParseKeys(config.NewKey())
	require.NoError(t, err)
	store, err := config.Open(t.Context(), config.Config{Path: filepath.Join(t.TempDir(), "config.db"), Keys: keys})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, store.Close()) })
	plain, log := newServer(t, Config{})
	deps := plain.Deps
	deps.Configs, deps.Metrics = store, NewMetrics()
	return New(deps, Config{Token: "trainer", OperatorToken: "operator", Template: "t"}), log
}

// ask sends one request and reads the answer.
func ask[T any](t *testing.T, s *Server, token, organization, method, path, body string) (int, T, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	if organization != "" {
		r.Header.Set(poolapi.HeaderOrganization, organization)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	var v T
	if w.Code == http.StatusOK {
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &v), w.Body.String())
	}
	return w.Code, v, w.Body.String()
}

func TestSandboxConfigsOverHTTP(t *testing.T) {
	s, _ := configured(t)
	const base = "/v1/sandbox-config"
	code, made, _ := ask[poolapi.SandboxConfig](t, s, "trainer", "", "POST", base, `{"type":"e2b","config":{"timeout_s":60}}`)
	require.Equal(t, 200, code)
	assert.Equal(t, "default", made.OrganizationID)
	assert.JSONEq(t, `{"timeout_s":60,"pip_requirements":[],"npm_requirements":[]}`, string(made.Config))
	for _, of := range []string{"e2b", "isolated"} {
		_, same, _ := ask[poolapi.SandboxConfig](t, s, "trainer", "", "POST", base+"/"+of+"/default", "")
		assert.Equal(t, made, same)
	}
	_, local, _ := ask[poolapi.SandboxConfig](t, s, "trainer", "", "POST", base+"/local", `{"sandbox_dir":"/srv"}`)
	assert.Equal(t, poolapi.SandboxLocal, local.Type)
	_, list, _ := ask[poolapi.SandboxConfigs](t, s, "trainer", "", "GET", base+"?limit=1", "")
	assert.Equal(t, []poolapi.SandboxConfig{made}, list.SandboxConfigs)
	_, list, _ = ask[poolapi.SandboxConfigs](t, s, "trainer", "", "GET", base+"?after="+list.After, "")
	assert.Equal(t, []poolapi.SandboxConfig{local}, list.SandboxConfigs)
	_, list, _ = ask[poolapi.SandboxConfigs](t, s, "trainer", "", "GET", base+"?sandbox_type=e2b", "")
	assert.Equal(t, []poolapi.SandboxConfig{made}, list.SandboxConfigs)
	_, patched, _ := ask[poolapi.SandboxConfig](t, s, "trainer", "", "PATCH", base+"/"+made.ID, `{"config":{"template":"gpu"}}`)
	assert.JSONEq(t, `{"template":"gpu","timeout_s":60,"pip_requirements":[],"npm_requirements":[]}`, string(patched.Config))
	_, got, _ := ask[poolapi.SandboxConfig](t, s, "trainer", "", "GET", base+"/"+made.ID, "")
	assert.Equal(t, patched, got)

	for _, c := range []struct {
		organization, method, path, body string
		status                           int
		text                             string
	}{
		{"", "POST", base, `{"config":{}}`, 400, "type is missing"},
		{"", "POST", base, `{"type":"docker","config":{}}`, 400, "type must be"},
		{"", "POST", base, `{"type":"local","config":{},"more":1}`, 400, "unknown field"},
		{"", "POST", base, `nonsense`, 400, ""},
		{"", "POST", base + "/local", `{"template":"x"}`, 400, "unknown field"},
		{"", "PATCH", base + "/" + made.ID, `{"type":"local","config":{}}`, 400, "Mismatched type for sandbox config update"},
		{"", "GET", base + "?limit=0", "", 400, "limit must be"},
		{"", "GET", base + "?limit=x", "", 400, "limit must be"},
		{"", "GET", base + "?limit=1&limit=2", "", 400, "limit wants one value"},
		{"", "GET", base + "?color=red", "", 400, "unknown parameter"},
		{"globex", "GET", base + "/" + made.ID, "", 404, "no sandbox config"},
		{"globex", "PATCH", base + "/" + made.ID, `{"config":{}}`, 404, "no sandbox config"},
		{"globex", "DELETE", base + "/" + made.ID, "", 404, "no sandbox config"},
		{"globex", "GET", base + "?after=" + made.ID, "", 404, "no sandbox config"},
		{"../x", "GET", base, "", 400, "names no organization"},
	} {
		code, _, text := ask[any](t, s, "trainer", c.organization, c.method, c.path, c.body)
		assert.Equal(t, c.status, code, "%s %s: %s", c.method, c.path, text)
		assert.Contains(t, text, c.text)
	}
	code, gone, _ := ask[poolapi.Deleted](t, s, "trainer", "", "DELETE", base+"/"+made.ID, "")
	assert.Equal(t, 200, code)
	assert.Equal(t, poolapi.Deleted{ID: made.ID, Deleted: true}, gone)
	code, _, _ = ask[any](t, s, "trainer", "", "GET", base+"/"+made.ID, "")
	assert.Equal(t, 404, code)
}

func TestVariablesAreRevealedToOperatorsAloneAndNeverLogged(t *testing.T) {
	const planted = "hunter2-hunter2"
	s, log := configured(t)
	_, sandbox, _ := ask[poolapi.SandboxConfig](t, s, "trainer", "", "POST", "/v1/sandbox-config/isolated/default", "")
	all, one := "/v1/sandbox-config/"+sandbox.ID+"/environment-variable", "/v1/sandbox-config/environment-variable/"
	code, v, text := ask[poolapi.EnvironmentVariable](t, s, "trainer", "", "POST", all, `{"key":"TOKEN","value":"`+planted+`"}`)
	require.Equal(t, 200, code, text)
	assert.NotContains(t, text, planted)
	_, _, text = ask[any](t, s, "trainer", "", "GET", all, "")
	assert.Contains(t, text, `"value":"********"`)
	assert.NotContains(t, text, planted)
	code, _, text = ask[any](t, s, "trainer", "", "GET", all+"?reveal=true", "")
	assert.Equal(t, 403, code)
	assert.NotContains(t, text, planted)
	_, list, _ := ask[poolapi.EnvironmentVariables](t, s, "operator", "", "GET", all+"?reveal=true", "")
	require.Len(t, list.EnvironmentVariables, 1)
	assert.Equal(t, planted, list.EnvironmentVariables[0].Value)
	assert.True(t, list.EnvironmentVariables[0].Revealed)
	code, _, text = ask[any](t, s, "trainer", "", "PATCH", one+v.ID, `{"value":"`+planted+planted+`","key":"RENAMED"}`)
	assert.Equal(t, 200, code, text)
	assert.NotContains(t, text, planted)

	for _, c := range []struct {
		organization, method, path, body string
		status                           int
	}{
		{"", "POST", all, `{"key":"A-B","value":"` + planted + `"}`, 400},
		{"", "POST", all, `{"key":"A","value":"` + planted + `","x":1}`, 400},
		{"", "POST", all, `{"key":"A","value":"` + planted, 400},
		{"", "POST", all, `{"key":"A","value":["` + planted + `"]}`, 400},
		{"globex", "POST", all, `{"key":"A","value":"` + planted + `"}`, 404},
		{"globex", "PATCH", one + v.ID, `{"value":"` + planted + `"}`, 404},
		{"globex", "DELETE", one + v.ID, "", 404},
		{"", "GET", all + "?reveal=perhaps", "", 400},
	} {
		code, _, text := ask[any](t, s, "operator", c.organization, c.method, c.path, c.body)
		assert.Equal(t, c.status, code, "%s %s %s: %s", c.method, c.path, c.body, text)
		assert.NotContains(t, text, planted)
	}
	code, _, _ = ask[any](t, s, "trainer", "", "DELETE", one+v.ID, "")
	assert.Equal(t, 200, code)
	_, list, _ = ask[poolapi.EnvironmentVariables](t, s, "trainer", "", "GET", all, "")
	assert.Empty(t, list.EnvironmentVariables)

	_, _, metrics := ask[json.RawMessage](t, s, "operator", "", "GET", "/v1/pools", "")
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil)
	r.Header.Set("Authorization", "Bearer operator")
	s.ServeHTTP(w, r)
	for _, where := range []string{log.String(), metrics, w.Body.String()} {
		assert.NotContains(t, where, planted)
	}
	assert.Contains(t, w.Body.String(), "environment-variable")
}

func TestOrganizationsAreChangedByOperatorsAlone(t *testing.T) {
	s, log := configured(t)
	const path = "/v1/organizations/acme"
	_, o, _ := ask[poolapi.Organization](t, s, "trainer", "", "GET", path, "")
	assert.Equal(t, poolapi.Organization{ID: "acme"}, o)
	code, _, _ := ask[any](t, s, "trainer", "", "PATCH", path, `{"privileged_tools":true}`)
	assert.Equal(t, 403, code)
	for _, to := range []string{"true", "false"} {
		code, o, _ = ask[poolapi.Organization](t, s, "operator", "", "PATCH", path, `{"privileged_tools":`+to+`}`)
		assert.Equal(t, 200, code)
		assert.Equal(t, to == "true", o.PrivilegedTools, "it is settable both ways")
	}
	assert.Contains(t, log.String(), "organization changed")
	code, _, _ = ask[any](t, s, "operator", "", "PATCH", path, `{"privileged_tools":"yes"}`)
	assert.Equal(t, 400, code)
	code, _, _ = ask[any](t, s, "operator", "", "GET", "/v1/organizations/a%20b", "")
	assert.Equal(t, 400, code)
}

func TestTheDescriptionHasTheRoutesOfSettings(t *testing.T) {
	s, _ := configured(t)
	text, err := s.description()
	require.NoError(t, err)
	for _, r := range s.configRoutes() {
		assert.Contains(t, string(text), `"`+openPath(r.path)+`"`)
	}
	assert.Contains(t, string(text), poolapi.HeaderOrganization)
}
