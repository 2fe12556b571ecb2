package orchestrator_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator"
	"berth/orchestrator/client"
	"berth/orchestrator/config"
	"berth/orchestrator/poolapi"
	"berth/slots"
	"berth/slots/sandbox/sandboxtest"
)

// askForSettings asks every route of settings for a good answer and for a
// refusal.
func (i *instance) askForSettings(asOperator string) {
	i.t.Helper()
	const base = "/v1/sandbox-config"
	for _, of := range []string{"local", "isolated", "e2b"} {
		assert.Equal(i.t, 200, i.post(base+"/"+of+"/default", nil).status)
	}
	one := base + "/" + i.post(base+"/isolated/default", nil).object()["id"].(string)
	variable := base + "/environment-variable/" + i.post(one+"/environment-variable", object{"key": "K", "value": "v"}).object()["id"].(string)
	for _, r := range []struct {
		method, path string
		body         any
		status       int
		header       string
	}{
		{"POST", base, object{"type": "isolated", "config": object{"timeout_s": 7}}, 200, ""},
		{"POST", base, object{"config": object{}}, 400, ""},
		{"POST", base + "/local", object{"use_venv": true}, 200, ""},
		{"GET", base, nil, 200, ""},
		{"GET", base + "?limit=1", nil, 200, ""},
		{"GET", one, nil, 200, ""},
		{"GET", one, nil, 404, poolapi.HeaderOrganization + ": globex"},
		{"PATCH", one, object{"config": object{"timeout_s": 8}}, 200, ""},
		{"POST", one + "/environment-variable", object{"key": "-", "value": "v"}, 400, ""},
		{"GET", one + "/environment-variable", nil, 200, ""},
		{"GET", one + "/environment-variable?reveal=true", nil, 200, asOperator},
		{"GET", one + "/environment-variable?reveal=true", nil, 403, ""},
		{"PATCH", variable, object{"value": "w"}, 200, ""},
		{"DELETE", variable, nil, 200, ""},
		{"DELETE", one, nil, 200, ""},
		{"POST", base + "/local/recreate-venv", nil, 403, ""},
		{"POST", "/v1/tools/run", object{"tool": object{"name": "f", "source_code": "function f( {", "source_type": "typescript", "json_schema": object{}}}, 200, ""},
		{"POST", "/v1/tools/run", object{"tool": object{"name": "f", "source_code": "function f() {}", "source_type": "typescript"}}, 400, ""},
		{"GET", "/v1/organizations/acme", nil, 200, ""},
		{"PATCH", "/v1/organizations/acme", object{"privileged_tools": true}, 200, asOperator},
		{"PATCH", "/v1/organizations/acme", object{"privileged_tools": true}, 403, ""},
		{"POST", base + "/local/recreate-venv", nil, 200, poolapi.HeaderOrganization + ": acme"},
	} {
		answer := i.do(r.method, r.path, r.body, r.header)
		assert.Equal(i.t, r.status, answer.status, "%s %s: %s", r.method, r.path, answer.body)
	}
}

func TestSettingsOutliveTheOrchestratorAndNobodyLogsThem(t *testing.T) {
	const planted = "hunter2-hunter2"
	dir := sandboxtest.DataDir(t)
	keys := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(keys, []byte(orchestrator.NewKey()), 0o600))
	i := start(t, dir, "--containers", "1", "--config-key-file", keys)
	o := i.connect(i.url, operatorToken).Organization("acme")
	c, err := o.DefaultSandbox(t.Context(), poolapi.SandboxE2B)
	require.NoError(t, err)
	_, err = o.PutVariable(t.Context(), c.ID, poolapi.EnvironmentVariableRequest{Key: "K", Value: planted})
	require.NoError(t, err)
	c, err = o.PatchSandbox(t.Context(), c.ID, poolapi.SandboxConfigRequest{Config: json.RawMessage(`{"timeout_s":9}`)})
	require.NoError(t, err)
	_, err = o.Patch(t.Context(), poolapi.OrganizationPatch{PrivilegedTools: new(bool)})
	require.NoError(t, err)
	_, err = i.connect(i.url, trainerToken).Organization("acme").Variables(t.Context(), c.ID, client.Page{}, true)
	assert.Equal(t, slots.KindDenied, kindOf(err))
	list, err := o.Variables(t.Context(), c.ID, client.Page{Limit: 1}, true)
	require.NoError(t, err)
	require.Len(t, list.EnvironmentVariables, 1)
	assert.Equal(t, planted, list.EnvironmentVariables[0].Value)
	i.stop()
	assert.NotContains(t, i.log.String(), planted)

	i = start(t, dir, "--containers", "1", "--config-key-file", keys)
	again := i.connect(i.url, operatorToken).Organization("acme")
	got, err := again.Sandbox(t.Context(), c.ID)
	require.NoError(t, err)
	assert.Equal(t, c, got)
	list, err = again.Variables(t.Context(), c.ID, client.Page{}, true)
	require.NoError(t, err)
	assert.Equal(t, planted, list.EnvironmentVariables[0].Value)
	require.NoError(t, again.DeleteSandbox(t.Context(), c.ID))
	all, err := again.Sandboxes(t.Context(), "", client.Page{})
	require.NoError(t, err)
	assert.Empty(t, all.SandboxConfigs)
	assert.NotContains(t, i.log.String(), planted)
}

// Two run side by side on a machine while one takes the other's place, or for
// good: what either was told the other knows at once, and so does the next.
func TestOrchestratorsShareOneFileOfSettings(t *testing.T) {
	shared := t.TempDir()
	keys := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(keys, []byte(orchestrator.NewKey()), 0o600))
	args := []string{"--containers", "0", "--max-containers", "1", "--config-db", filepath.Join(shared, "config.db"), "--config-key-file", keys}
	serving := func() (client.Organization, *daemon) {
		d := spawn(t, sandboxtest.DataDir(t), args...)
		return d.connect(d.url, "").Organization("acme"), d
	}
	one, first := serving()
	other, second := serving()
	mine, err := one.DefaultSandbox(t.Context(), poolapi.SandboxIsolated)
	require.NoError(t, err)
	theirs, err := other.DefaultSandbox(t.Context(), poolapi.SandboxIsolated)
	require.NoError(t, err)
	assert.Equal(t, mine, theirs, "it is not made twice")
	holds := func(o client.Organization, want map[string]string) {
		t.Helper()
		list, err := o.Variables(t.Context(), mine.ID, client.Page{Limit: 1000}, true)
		require.NoError(t, err)
		have := map[string]string{}
		for _, v := range list.EnvironmentVariables {
			have[v.Key] = v.Value
		}
		assert.Equal(t, want, have)
	}
	want := map[string]string{}
	var writers sync.WaitGroup // both at once, and none of it is lost or refused
	for name, o := range map[string]client.Organization{"ONE": one, "OTHER": other} {
		for n := range 20 {
			key := fmt.Sprintf("%s_%d", name, n)
			want[key] = "of " + key
			writers.Go(func() {
				_, err := o.PutVariable(t.Context(), mine.ID, poolapi.EnvironmentVariableRequest{Key: key, Value: "of " + key})
				assert.NoError(t, err)
			})
		}
	}
	writers.Wait()
	holds(one, want)
	holds(other, want)
	first.kill()
	holds(other, want)
	second.stop()
	third, _ := serving()
	holds(third, want)
}

func TestValuesAreResealedBesideAServer(t *testing.T) {
	dir := t.TempDir()
	keys, old, fresh := filepath.Join(dir, "keys"), orchestrator.NewKey(), orchestrator.NewKey()
	write := func(text string) { require.NoError(t, os.WriteFile(keys, []byte(text), 0o600)) }
	write(old)
	c, err := orchestrator.Parse([]string{"--data-dir", dir, "--config-key-file", keys}, nil, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(dir, "config", "config.db"), c.ConfigDB)
	n, err := orchestrator.Reseal(t.Context(), c)
	require.NoError(t, err)
	assert.Zero(t, n)
	first, err := config.ReadKeys(keys)
	require.NoError(t, err)
	s, err := config.Open(t.Context(), config.Config{Path: c.ConfigDB, Keys: first})
	require.NoError(t, err)
	sandbox, err := s.Default(t.Context(), "acme", "local")
	require.NoError(t, err)
	_, err = s.PutVariable(t.Context(), "acme", sandbox.ID, poolapi.EnvironmentVariableRequest{Key: "K", Value: "v"})
	require.NoError(t, err)
	write(fresh + "\n" + old)
	n, err = orchestrator.Reseal(t.Context(), c)
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	_, err = s.Environment(t.Context(), "acme", sandbox.ID)
	require.Error(t, err, "its keys are those of before")
	require.NoError(t, s.Close())

	c.ConfigKeys = ""
	_, err = orchestrator.Reseal(t.Context(), c)
	require.ErrorIs(t, err, orchestrator.ErrUsage)
	c.ConfigKeys = filepath.Join(dir, "none")
	_, err = orchestrator.Reseal(t.Context(), c)
	require.ErrorIs(t, err, orchestrator.ErrImpossible)
	_, err = orchestrator.Parse([]string{"--config-plaintext", "--config-key-file", keys}, nil, io.Discard)
	require.ErrorIs(t, err, orchestrator.ErrUsage)
	assert.False(t, bytes.Contains([]byte(c.String()), []byte(keys)))
}
