package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// nomadDouble answers as Nomad does what it is told to, by method and path.
func nomadDouble(t *testing.T, answers map[string]any) (asked func() []string) {
	t.Helper()
	var mu sync.Mutex
	var all []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.Method + " " + strings.TrimPrefix(r.URL.Path, "/v1/")
		mu.Lock()
		all = append(all, name)
		mu.Unlock()
		switch answer := answers[name].(type) {
		case nil:
			http.Error(w, "not found", http.StatusNotFound)
		case int:
			http.Error(w, "as it was told", answer)
		case http.Handler:
			answer.ServeHTTP(w, r)
		default:
			w.Header().Set("X-Nomad-Index", "7")
			_ = json.NewEncoder(w).Encode(answer) // whoever asked may have left
		}
	}))
	t.Cleanup(func() {
		server.CloseClientConnections() // queries may wait for long
		server.Close()
	})
	t.Setenv("NOMAD_ADDR", server.URL)
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

type object = map[string]any

func TestNomadPlanEndsAsNomadsOwn(t *testing.T) {
	for name, c := range map[string]struct {
		plan   any
		status int
		prints string
	}{
		"nothing":    {object{"Diff": object{"Type": "None"}}, 0, "No changes."},
		"a change":   {object{"Diff": object{"Type": "Added", "ID": "berth-default"}, "JobModifyIndex": 3}, 1, `+ Job: "berth-default"`},
		"allocation": {object{"Diff": object{"Type": "None"}, "Annotations": object{"DesiredTGUpdates": object{"sandboxd": object{"Place": 2}}}}, 1, "All tasks can be placed."},
		"refused":    {http.StatusForbidden, 255, ""},
	} {
		t.Run(name, func(t *testing.T) {
			nomadDouble(t, map[string]any{"PUT job/berth-default/plan": c.plan})
			status, out, errs := runMain(t.Context(), "nomad", "plan", "sandboxd", "--json=false")
			assert.Equal(t, c.status, status, errs)
			assert.Contains(t, out, c.prints)
			if c.status == 255 {
				assert.Contains(t, errs, "as it was told")
			}
			status, out, _ = runMain(t.Context(), "nomad", "plan", "sandboxd")
			assert.Equal(t, c.status, status)
			assert.Equal(t, c.status != 255, json.Valid([]byte(out)), "elsewhere than on a terminal it is JSON")
		})
	}
}

func TestNomadDeployChangesOnlyWhatFlagsSay(t *testing.T) {
	running := object{}
	status, out, errs := runMain(t.Context(), "nomad", "render", "sandboxd", "--json", "--image", "old:1", "--slots", "30", "--memory", "100", "--datacenter", "a")
	require.Zero(t, status, errs)
	require.NoError(t, json.Unmarshal([]byte(out), &running))
	job := running["Job"].(object)
	job["JobModifyIndex"] = 8
	asked := nomadDouble(t, map[string]any{
		"GET job/berth-default":      job,
		"PUT job/berth-default/plan": object{"Diff": object{"Type": "Edited"}, "JobModifyIndex": 8},
		"PUT validate/job":           object{},
		"GET var/nomad/jobs/berth-default": object{
			"Path": "nomad/jobs/berth-default", "Items": object{"token": "t"},
		},
		"PUT jobs":            object{"EvalID": "e", "JobModifyIndex": 9},
		"GET evaluation/e":    object{"Status": "complete", "DeploymentID": "d"},
		"GET deployment/d":    object{"ID": "d", "Status": "successful"},
		"GET job/berth-other": http.StatusForbidden,
	})
	status, out, errs = runMain(t.Context(), "nomad", "deploy", "sandboxd", "--image", "new:2")
	require.Zero(t, status, errs)
	assert.Contains(t, asked(), "PUT jobs")
	var done struct {
		Status      string `json:"status"`
		ModifyIndex int    `json:"job_modify_index"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &done))
	assert.Equal(t, "successful", done.Status)
	assert.Equal(t, 9, done.ModifyIndex)
	assert.Contains(t, errs, "registered job berth-default")

	status, _, errs = runMain(t.Context(), "nomad", "deploy", "sandboxd", "--job", "berth-other")
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, errs, "as it was told")
}

func TestNomadJobKeepsWhatRunsBehindItsFlags(t *testing.T) {
	var j, was nomadJob
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	j.flags(flags)
	require.NoError(t, flags.Parse([]string{"--image", "new:2", "--datacenter", "b,c", "--memory", "50"}))
	was.template.Image, was.template.Slots, was.template.Count, was.template.MemoryMB, was.template.MemoryMaxMB = "old:1", 30, 7, 100, 200
	was.template.Datacenters, was.template.Driver = []string{"a"}, "exec"
	was.template.Meta = map[string]string{"berth_spec": "{}"}
	require.NoError(t, j.adopt(was.template, flags))
	assert.Equal(t, "new:2", j.template.Image)
	assert.Equal(t, []string{"b", "c"}, j.template.Datacenters)
	assert.Equal(t, 30, j.template.Slots)
	assert.Equal(t, 7, j.template.Count)
	assert.Equal(t, 50, j.template.MemoryMB)
	assert.Zero(t, j.template.MemoryMaxMB)
	assert.Equal(t, "exec", j.driver)
	assert.Contains(t, j.template.Meta, "berth_spec", "the orchestrator knows its job again")

	require.NoError(t, flags.Parse([]string{"--slots", "4"}))
	require.NoError(t, j.adopt(was.template, flags))
	assert.Equal(t, 4, j.template.Slots)
	assert.NotContains(t, j.template.Meta, "berth_spec", "this is not what it asked for")
	assert.Contains(t, was.template.Meta, "berth_spec")
}

func TestNomadCommandsSayWhatIsWrong(t *testing.T) {
	t.Setenv("NOMAD_ADDR", "http://127.0.0.1:1")
	t.Setenv("BERTH_URL", "http://127.0.0.1:1")
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"plan", "nginx"}, exitUsage, "unknown job"},
		{[]string{"plan", "sandboxd"}, 255, "connection refused"},
		{[]string{"deploy", "sandboxd"}, exitUnreachable, "NOMAD_ADDR"},
		{[]string{"deploy", "prepull", "--timeout", "0s"}, exitUsage, "--timeout"},
		{[]string{"deploy", "sandboxd", "--driver", "qemu"}, exitUnreachable, "NOMAD_ADDR"},
		{[]string{"deploy", "orchestrator", "--driver", "qemu"}, exitUsage, "driver"},
		{[]string{"status"}, exitUnreachable, "NOMAD_ADDR"},
		{[]string{"rotate"}, exitUnreachable, "NOMAD_ADDR"},
		{[]string{"drain"}, exitUsage, "--node"},
		{[]string{"drain", "a", "--node", "b"}, exitUsage, "--node"},
		{[]string{"drain", "a", "--within", "-1s"}, exitUsage, "--within"},
		{[]string{"drain", "abcdef"}, exitUnreachable, "NOMAD_ADDR"},
	} {
		status, out, errs := runMain(t.Context(), append([]string{"nomad"}, c.args...)...)
		assert.Equal(t, c.status, status, "%v: %s", c.args, errs)
		assert.Contains(t, errs, c.says, "%v", c.args)
		assert.Empty(t, out)
	}
}

func TestNomadDrainAsksTheOrchestratorFirst(t *testing.T) {
	alloc := object{"ID": "aaaabbbb-0", "Name": "berth-default.sandboxd[0]", "JobID": "berth-default", "ClientStatus": "running", "DesiredStatus": "run"}
	asked := nomadDouble(t, map[string]any{
		"GET allocations": []any{alloc},
		"GET vars":        []any{object{"Path": "nomad/jobs/berth-default/containers/a"}},
		"GET var/nomad/jobs/berth-default/containers/a": object{"Items": object{"aaaabbbb-0": "default-1"}},
		"PUT allocation/aaaabbbb-0/stop":                object{},
		"GET allocation/aaaabbbb-0":                     object{"ID": "aaaabbbb-0", "ClientStatus": "complete"},
		"GET job/berth-default":                         object{"ID": "berth-default", "Status": "running"},
		"GET job/berth-default/evaluations":             []any{},
	})
	t.Setenv("BERTH_URL", "http://127.0.0.1:1")
	status, _, errs := runMain(t.Context(), "nomad", "drain", "default-1")
	assert.Equal(t, exitUnreachable, status)
	assert.Contains(t, errs, "--force")
	assert.NotContains(t, asked(), "PUT allocation/aaaabbbb-0/stop", "who holds leases there is not asked")
	status, out, errs := runMain(t.Context(), "nomad", "drain", "aaaa", "--force", "--json=false")
	require.Zero(t, status, errs)
	assert.Contains(t, asked(), "PUT allocation/aaaabbbb-0/stop")
	assert.Equal(t, "allocation aaaabbbb is gone\n", out)

	status, out, errs = runMain(t.Context(), "nomad", "status", "--json=false")
	require.Zero(t, status, errs)
	assert.Contains(t, out, "orchestrator  no answer")
	assert.Regexp(t, `0 +aaaabbbb +.*running +default-1`, out)
}
