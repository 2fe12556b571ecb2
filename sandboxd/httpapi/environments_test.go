package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots"
)

// fakeEnvironments has what ensure says.
type fakeEnvironments struct {
	ensure func(ctx context.Context, recreate bool, progress func(string)) (api.EnvironmentResult, error)

	mu      sync.Mutex
	asked   []api.EnvironmentSpec
	deleted []string
}

func (f *fakeEnvironments) Ensure(ctx context.Context, spec api.EnvironmentSpec, recreate bool, progress func(string)) (api.EnvironmentResult, error) {
	f.mu.Lock()
	f.asked = append(f.asked, spec)
	f.mu.Unlock()
	return f.ensure(ctx, recreate, progress)
}

func (*fakeEnvironments) List() api.Environments {
	return api.Environments{Environments: []api.Environment{{Key: "k", State: api.EnvironmentReady, SizeBytes: 7}}, SizeBytes: 7, MaxBytes: 9}
}

func (f *fakeEnvironments) Delete(key string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deleted = append(f.deleted, key)
	if key == "used" {
		return slots.Errorf(slots.KindConflict, "in use")
	}
	return nil
}

// environment is a spec with its route.
func environmentOf(t *testing.T, name string) (route, body string) {
	t.Helper()
	spec := api.EnvironmentSpec{Language: api.LanguagePython, Requirements: []api.Requirement{{Name: name}}}
	key, err := spec.Key()
	require.NoError(t, err)
	text, err := json.Marshal(spec)
	require.NoError(t, err)
	return api.EnvironmentRoute(key), string(text)
}

func built(cached bool) api.EnvironmentResult {
	return api.EnvironmentResult{Environment: &api.Environment{Key: "k", State: api.EnvironmentReady}, Cached: cached}
}

func TestAnEnvironmentIsAnsweredWholeOrAsItIsBuilt(t *testing.T) {
	c := start(t, Config{Token: testToken, KeepAlive: 5 * time.Millisecond})
	release := make(chan struct{})
	c.environments.ensure = func(_ context.Context, recreate bool, progress func(string)) (api.EnvironmentResult, error) {
		assert.True(t, recreate)
		if progress != nil {
			progress("Collecting a")
			<-release
			progress("done")
		}
		return built(false), nil
	}
	route, body := environmentOf(t, "a")
	a := c.ask(t, http.MethodPut, route+"?recreate=true", body)
	require.Equal(t, 200, a.code, a.body)
	var got api.EnvironmentResult
	a.decode(t, &got)
	assert.Equal(t, built(false), got)

	time.AfterFunc(50*time.Millisecond, func() { close(release) })
	a = c.ask(t, http.MethodPut, route+"?recreate=true", body, "Accept: "+api.TypeNDJSON)
	require.Equal(t, 200, a.code)
	var names []string
	pings := 0
	var last api.EnvironmentEvent
	for line := range strings.Lines(a.body) {
		last = api.EnvironmentEvent{}
		require.NoError(t, json.Unmarshal([]byte(line), &last), line)
		if last.Event == api.EventPing { // as many as fit between the others
			pings++
			continue
		}
		names = append(names, string(last.Event))
	}
	assert.Equal(t, []string{"progress", "progress", "result"}, names, "%s", a.body)
	assert.Positive(t, pings)
	require.NotNil(t, last.EnvironmentResult, "the result is the last line: %s", a.body)
	assert.Equal(t, built(false), *last.EnvironmentResult)
}

func TestAFailedInstallIsAResultAndAnythingElseAnError(t *testing.T) {
	c := start(t, Config{Token: testToken})
	route, body := environmentOf(t, "a")
	failure := &api.EnvironmentFailure{Kind: api.KindInstall, Reason: api.InstallNotFound, Requirement: "a", Message: "no package fits a", Output: "ERROR"}
	c.environments.ensure = func(context.Context, bool, func(string)) (api.EnvironmentResult, error) {
		return api.EnvironmentResult{Failure: failure}, nil
	}
	a := c.ask(t, http.MethodPut, route, body)
	require.Equal(t, 200, a.code)
	var got api.EnvironmentResult
	a.decode(t, &got)
	assert.Equal(t, failure, got.Failure)

	c.environments.ensure = func(context.Context, bool, func(string)) (api.EnvironmentResult, error) {
		return api.EnvironmentResult{}, slots.Errorf(slots.KindDraining, "container is shutting down")
	}
	assert.Equal(t, 503, c.ask(t, http.MethodPut, route, body).code)
	a = c.ask(t, http.MethodPut, route, body, "Accept: "+api.TypeNDJSON)
	var last api.EnvironmentEvent
	a.decode(t, &last)
	assert.Equal(t, slots.KindDraining, last.Error.Kind)
}

func TestRequestsForEnvironmentsAreChecked(t *testing.T) {
	c := start(t, Config{Token: testToken})
	c.environments.ensure = func(context.Context, bool, func(string)) (api.EnvironmentResult, error) { return built(true), nil }
	route, body := environmentOf(t, "a")
	other, _ := environmentOf(t, "b")
	for name, r := range map[string][2]string{
		"another key":     {other, body},
		"no key":          {"/v1/environments/x", body},
		"no spec":         {route, ""},
		"no object":       {route, "[]"},
		"a strange field": {route, `{"language":"python","requirements":[],"shell":"x"}`},
		"a hostile name":  {route, `{"language":"python","requirements":[{"name":"--index-url=x"}]}`},
		"nothing":         {route, `{"language":"python","requirements":[]}`},
		"recreate maybe":  {route + "?recreate=maybe", body},
	} {
		a := c.ask(t, http.MethodPut, r[0], r[1])
		assert.Equal(t, 400, a.code, "%s: %s", name, a.body)
	}
	assert.Empty(t, c.environments.asked)
	for _, m := range []string{http.MethodPut, http.MethodDelete} {
		assert.Equal(t, 401, c.ask(t, m, route, body, "Authorization: ").code)
	}
	assert.Equal(t, 401, c.ask(t, http.MethodGet, "/v1/environments", "", "Authorization: ").code)
	assert.Equal(t, 200, c.ask(t, http.MethodPut, route, body).code)
}

func TestEnvironmentsAreListedCountedAndDeleted(t *testing.T) {
	c := start(t, Config{Token: testToken})
	var all api.Environments
	c.ask(t, http.MethodGet, "/v1/environments", "").decode(t, &all)
	assert.Equal(t, (&fakeEnvironments{}).List(), all)
	assert.Equal(t, 200, c.ask(t, http.MethodDelete, "/v1/environments/k", "").code)
	assert.Equal(t, 409, c.ask(t, http.MethodDelete, "/v1/environments/used", "").code)
	assert.Equal(t, []string{"k", "used"}, c.environments.deleted)
	c.server.Metrics.EnvironmentBuilt("python", "not_found", time.Second)
	c.server.Metrics.EnvironmentEvicted()
	text := c.ask(t, http.MethodGet, "/metrics", "").body
	for _, want := range []string{
		"berth_environments 1\n", "berth_environments_bytes 7\n", "berth_environments_evicted_total 1\n",
		`berth_environment_build_seconds_count{language="python",outcome="not_found"} 1`,
	} {
		assert.Contains(t, text, want)
	}
}

func TestAClientThatLeavesEndsItsWaitAlone(t *testing.T) {
	c := start(t, Config{Token: testToken})
	left := make(chan error, 1)
	begun := make(chan struct{})
	c.environments.ensure = func(ctx context.Context, _ bool, _ func(string)) (api.EnvironmentResult, error) {
		close(begun)
		<-ctx.Done()
		left <- ctx.Err()
		return api.EnvironmentResult{}, ctx.Err()
	}
	route, body := environmentOf(t, "a")
	ctx, cancel := context.WithCancel(t.Context())
	got := c.later(ctx, http.MethodPut, route, body, "Accept: "+api.TypeNDJSON)
	<-begun
	cancel()
	assert.Equal(t, 0, (<-got).code)
	require.Error(t, <-left)
	assert.Equal(t, 200, c.ask(t, http.MethodGet, "/health", "").code)
}
