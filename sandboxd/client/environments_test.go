package client

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots"
)

// fakeEnvironments answers by the first requirement's name.
type fakeEnvironments struct{ recreated int }

func (f *fakeEnvironments) Ensure(_ context.Context, spec api.EnvironmentSpec, recreate bool, progress func(string)) (api.EnvironmentResult, error) {
	if recreate {
		f.recreated++
	}
	switch spec.Requirements[0].Name {
	case "lacking":
		return api.EnvironmentResult{Failure: &api.EnvironmentFailure{Kind: api.KindInstall, Reason: api.InstallNotFound, Requirement: "lacking"}}, nil
	case "draining":
		return api.EnvironmentResult{}, slots.Errorf(slots.KindDraining, "container is shutting down")
	}
	progress("one")
	progress("two")
	return api.EnvironmentResult{Environment: &api.Environment{Key: "k"}, BuildMS: 2}, nil
}

func (*fakeEnvironments) List() api.Environments {
	return api.Environments{Environments: []api.Environment{{Key: "k"}}, MaxBytes: 5}
}

func (*fakeEnvironments) Delete(key string) error {
	return slots.Errorf(slots.KindNotFound, "no environment %s", key)
}

func TestEnvironmentsAreBuiltListedAndDeletedThroughTheClient(t *testing.T) {
	f := start(t)
	of := func(names ...string) api.EnvironmentSpec {
		s := api.EnvironmentSpec{Language: api.LanguagePython}
		for _, n := range names {
			s.Requirements = append(s.Requirements, api.Requirement{Name: n})
		}
		return s
	}
	var said []string
	r, err := f.EnsureEnvironment(t.Context(), of("a"), EnsureOptions{Progress: func(line string) { said = append(said, line) }})
	require.NoError(t, err)
	assert.Equal(t, "k", r.Environment.Key)
	assert.Equal(t, []string{"one", "two"}, said)
	_, err = f.EnsureEnvironment(t.Context(), of("a"), EnsureOptions{Recreate: true})
	require.NoError(t, err)
	assert.Equal(t, 1, f.environments.recreated)

	r, err = f.EnsureEnvironment(t.Context(), of("lacking"), EnsureOptions{})
	require.NoError(t, err, "packages that are not there are a result")
	assert.Equal(t, "lacking", r.Failure.Requirement)
	_, err = f.EnsureEnvironment(t.Context(), of("draining"), EnsureOptions{})
	assert.Equal(t, slots.KindDraining, slots.AsError(err).Kind)
	_, err = f.EnsureEnvironment(t.Context(), of("--index-url=x"), EnsureOptions{})
	assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind)
	r, err = f.EnsureEnvironment(t.Context(), of(), EnsureOptions{})
	require.NoError(t, err)
	assert.True(t, r.Cached)
	assert.Empty(t, r.Environment.Key)

	all, err := f.Environments(t.Context())
	require.NoError(t, err)
	assert.Equal(t, (&fakeEnvironments{}).List(), all)
	assert.Equal(t, slots.KindNotFound, slots.AsError(f.DeleteEnvironment(t.Context(), "k")).Kind)
}
