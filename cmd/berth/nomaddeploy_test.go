package main

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator"
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
		case func(r *http.Request) any:
			_ = json.NewEncoder(w).Encode(answer(r))
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
				assert.Contains(t, errs, "NOMAD_TOKEN")
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
	assert.Equal(t, exitConfig, status)
	assert.Contains(t, errs, "as it was told")
	assert.Contains(t, errs, "NOMAD_TOKEN")
}

func TestNomadDeployThatIsNotFollowedToItsEndSaysSo(t *testing.T) {
	answers := func(deployment any) map[string]any {
		return map[string]any{
			"PUT job/berth-default/plan": object{"JobModifyIndex": 0}, "PUT validate/job": object{},
			"GET var/nomad/jobs/berth-default": object{"Items": object{"token": "t"}},
			"PUT jobs":                         object{"EvalID": "e", "JobModifyIndex": 9},
			"GET evaluation/e":                 object{"Status": "complete", "DeploymentID": "d"},
			"GET deployment/d":                 deployment,
		}
	}
	const goesOn = "it goes on all the same, unless `nomad deployment fail d` ends it; \"berth nomad status --job berth-default\" says how far it is"
	nomadDouble(t, answers(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))) // Nomad breaks off
	status, out, errs := runMain(t.Context(), "nomad", "deploy", "sandboxd")
	assert.Equal(t, exitUnreachable, status, errs)
	assert.Contains(t, errs, goesOn)
	assert.NotContains(t, errs, "name one by")
	assert.True(t, json.Valid([]byte(out)), "what was registered is told all the same: %s", out)

	waits := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-t.Context().Done() })
	nomadDouble(t, answers(waits))
	status, _, errs = runMain(t.Context(), "nomad", "deploy", "sandboxd", "--timeout", "1s")
	assert.Equal(t, exitFailed, status, errs)
	assert.Contains(t, errs, "1s have passed: "+goesOn)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	nomadDouble(t, answers(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cancel()
		waits(w, r)
	})))
	status, _, errs = runMain(ctx, "nomad", "deploy", "sandboxd")
	assert.Equal(t, exitInterrupted, status, errs)
	assert.Contains(t, errs, "interrupted: ")
	assert.Contains(t, errs, goesOn)
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
}

// rendered is the job as Nomad tells of one that runs.
func rendered(t *testing.T, args ...string) object {
	t.Helper()
	status, out, errs := runMain(t.Context(), append([]string{"nomad", "render", "--json"}, args...)...)
	require.Zero(t, status, errs)
	var made object
	require.NoError(t, json.Unmarshal([]byte(out), &made))
	job := made["Job"].(object)
	job["JobModifyIndex"] = 8
	return job
}

// deployed is a Nomad on which the jobs run, and those that are registered.
func deployed(t *testing.T, jobs ...object) (registered func() []object) {
	t.Helper()
	return deployedWith(t, nil, jobs...)
}

// deployedWith is deployed, on a Nomad that has more answers.
func deployedWith(t *testing.T, more map[string]any, jobs ...object) (registered func() []object) {
	t.Helper()
	var mu sync.Mutex
	var all []object
	answers := map[string]any{
		"PUT validate/job": object{},
		"PUT jobs": func(r *http.Request) any {
			var request object
			if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, request["Job"].(object))
			return object{"EvalID": "", "JobModifyIndex": 9}
		},
	}
	for _, job := range jobs {
		answers["GET job/"+job["ID"].(string)] = job
	}
	for _, id := range []string{"berth-default", "berth-orchestrator", "berth-big"} {
		answers["PUT job/"+id+"/plan"] = object{"Diff": object{"Type": "Edited"}, "JobModifyIndex": 8}
		answers["GET var/nomad/jobs/"+id] = object{"Path": "nomad/jobs/" + id, "Items": object{"token": "t", "config_keys": "k"}}
	}
	maps.Copy(answers, more)
	nomadDouble(t, answers)
	return func() []object {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

// environmentOf is that of the job's only task.
func environmentOf(job object) object {
	return job["TaskGroups"].([]any)[0].(object)["Tasks"].([]any)[0].(object)["Env"].(object)
}

func TestNomadDeployLeavesNoPoolWithLessIsolationUnsaid(t *testing.T) {
	registered := deployed(t, rendered(t, "sandboxd", "--count", "5"), rendered(t, "orchestrator"))
	run := func(args ...string) (int, string) {
		status, _, errs := runMain(t.Context(), append([]string{"nomad"}, args...)...)
		return status, errs
	}
	const command = "`berth nomad deploy orchestrator --isolation-require ns --slots 9` first"
	status, errs := run("deploy", "sandboxd", "--isolation-require", "ns", "--slots", "9")
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, errs, command)
	assert.Contains(t, errs, `--isolation-require "", not ns`)
	assert.Contains(t, errs, "--force")
	assert.Empty(t, registered())
	status, errs = run("plan", "sandboxd", "--isolation-require", "ns", "--slots", "9")
	assert.Equal(t, exitChanges, status)
	assert.Contains(t, errs, command)

	status, errs = run("deploy", "sandboxd", "--isolation-require", "ns", "--slots", "9", "--force")
	require.Zero(t, status, errs)
	assert.Contains(t, errs, command)
	require.Len(t, registered(), 1)
	forced := registered()[0]
	forced["JobModifyIndex"] = 8

	registered = deployed(t, forced, rendered(t, "orchestrator"))
	status, errs = run("deploy", "sandboxd", "--image", "new:2")
	assert.Equal(t, exitFailed, status, "what was forced is still to be taken back")
	assert.Contains(t, errs, "--image new:2 --isolation-require ns --slots 9")
	assert.Empty(t, registered())

	registered = deployed(t, forced, rendered(t, "orchestrator", "--isolation-require", "ns", "--slots", "9"))
	status, errs = run("deploy", "sandboxd", "--image", "new:2")
	require.Zero(t, status, errs)
	assert.Contains(t, errs, "`berth nomad deploy orchestrator --image new:2` changes them")
	assert.Len(t, registered(), 1)

	deployed(t, rendered(t, "sandboxd"), rendered(t, "orchestrator"))
	for _, args := range [][]string{
		{"--isolation-require", "landlock"},                 // as sandboxd's default
		{"--job", "berth-big", "--isolation-require", "ns"}, // the orchestrator has another pool
		{"--count", "2"},
	} {
		status, errs = run(append([]string{"deploy", "sandboxd"}, args...)...)
		require.Zero(t, status, errs)
		assert.NotContains(t, errs, "deploy orchestrator", "%v", args)
	}
	status, errs = run("deploy", "sandboxd", "--count", "7")
	require.Zero(t, status, errs)
	assert.Contains(t, errs, "deploy orchestrator --count 7")

	of := rendered(t, "sandboxd")
	of["Meta"] = object{"berth_spec": "{}"}
	registered = deployed(t, of)
	status, errs = run("deploy", "sandboxd", "--isolation-require", "ns")
	assert.Equal(t, exitFailed, status, "somebody has registered it")
	assert.Contains(t, errs, "registers its own again")
	assert.Empty(t, registered())
}

func TestNomadDeployRegistersTheJobThatTheOrchestratorAsksFor(t *testing.T) {
	pool := rendered(t, "sandboxd", "--isolation-require", "uid")
	pool["Meta"] = object{"berth_template": "default", "berth_spec": `{"Slots":8}`, "berth_env": "v1"}
	own := rendered(t, "orchestrator", "--slots", "5", "--isolation-require", "uid")
	var environ []string
	for name, value := range environmentOf(own) {
		environ = append(environ, name+"="+value.(string))
	}
	config, err := orchestrator.Parse(nil, environ, io.Discard)
	require.NoError(t, err)
	asked, err := config.Templates[0].Spec("").Meta()
	require.NoError(t, err)

	registered := deployed(t, pool, own)
	status, _, errs := runMain(t.Context(), "nomad", "deploy", "sandboxd", "--slots", "5")
	require.Zero(t, status, errs)
	status, _, errs = runMain(t.Context(), "nomad", "deploy", "sandboxd", "--slots", "6", "--force")
	require.Zero(t, status, errs)
	status, _, errs = runMain(t.Context(), "nomad", "deploy", "sandboxd", "--image", "new:2", "--force")
	require.Zero(t, status, errs)
	require.Len(t, registered(), 3)
	assert.Equal(t, object{"berth_template": "default", "berth_spec": asked, "berth_env": "v1"}, registered()[0]["Meta"], "it registers none beside it")
	assert.Equal(t, object{"berth_template": "default", "berth_env": "v1"}, registered()[1]["Meta"], "it finds that this is not what it asked for")
	assert.Equal(t, pool["Meta"], registered()[2]["Meta"], "as it was")

	delete(pool["Meta"].(object), "berth_env")
	registered = deployed(t, pool, own)
	status, _, errs = runMain(t.Context(), "nomad", "deploy", "sandboxd", "--slots", "5")
	require.Zero(t, status, errs)
	assert.NotContains(t, registered()[0]["Meta"], "berth_spec", "it says no environment for the orchestrator")
}

func TestNomadDeployLowersNoCountUnderLeases(t *testing.T) {
	for _, jobs := range [][]object{
		{rendered(t, "sandboxd", "--count", "3"), rendered(t, "orchestrator", "--count", "1")},
		{rendered(t, "sandboxd", "--count", "3")}, // whoever scales it
	} {
		registered := deployed(t, jobs...)
		status, _, errs := runMain(t.Context(), "nomad", "deploy", "sandboxd", "--count", "1")
		assert.Equal(t, exitFailed, status)
		assert.Contains(t, errs, "job berth-default runs 3 containers, and 1 would end their leases")
		assert.Contains(t, errs, "`berth nomad deploy orchestrator --count 1`")
		assert.Contains(t, errs, "--force")
		assert.Empty(t, registered())
		status, _, errs = runMain(t.Context(), "nomad", "plan", "sandboxd", "--count", "1")
		assert.Equal(t, exitChanges, status)
		assert.Contains(t, errs, "a deploy would be refused: job berth-default runs 3")

		for _, more := range [][]string{{"--count", "1", "--force"}, {"--count", "3"}, {"--count", "4"}, {"--memory", "130"}} {
			status, _, errs = runMain(t.Context(), append([]string{"nomad", "deploy", "sandboxd"}, more...)...)
			require.Zero(t, status, "%v: %s", more, errs)
		}
		assert.Len(t, registered(), 4)
	}
}

// What was read is what is replaced: the orchestrator may scale between that
// and any later look.
func TestNomadDeployReplacesTheJobThatItHasRead(t *testing.T) {
	for name, id := range map[string]string{"sandboxd": "berth-default", "orchestrator": "berth-orchestrator", "prepull": "berth-prepull"} {
		var enforced object
		nomadDouble(t, map[string]any{
			"GET job/" + id:           rendered(t, name), // index 8
			"PUT job/" + id + "/plan": object{"JobModifyIndex": 12},
			"PUT validate/job":        object{},
			"GET var/nomad/jobs/" + id: object{
				"Path": "nomad/jobs/" + id, "Items": object{"token": "t", "config_keys": "k"},
			},
			"PUT jobs": func(r *http.Request) any {
				if err := json.NewDecoder(r.Body).Decode(&enforced); err != nil {
					t.Error(err)
				}
				return object{"EvalID": "", "JobModifyIndex": 13}
			},
		})
		status, _, errs := runMain(t.Context(), "nomad", "deploy", name, "--datacenter", "a")
		require.Zero(t, status, errs)
		assert.Equal(t, true, enforced["EnforceIndex"], name)
		assert.InDelta(t, 8, enforced["JobModifyIndex"], 0, name)
	}
}

func TestNomadDeployOfTheOrchestratorKeepsWhatNoFlagSays(t *testing.T) {
	running := rendered(t, "orchestrator", "--driver", "raw_exec", "--sandboxd", "/opt/sandboxd", "--orchestrator", "/opt/orchestrator",
		"--orchestrators", "2", "--job", "berth-big", "--slots", "30", "--node-pool", "gpu", "--isolation-require", "uid", "--cores", "4")
	environmentOf(running)["ORCHESTRATOR_MAX_CONTAINERS"] = "50"
	registered := deployed(t, running)
	status, _, errs := runMain(t.Context(), "nomad", "deploy", "orchestrator", "--isolation-require", "ns", "--cpu", "700")
	require.Zero(t, status, errs)
	require.Len(t, registered(), 1)
	now := registered()[0]
	env := environmentOf(now)
	for name, want := range map[string]any{
		"ORCHESTRATOR_ISOLATION_REQUIRE": "ns", "ORCHESTRATOR_NOMAD_CPU": "700", "ORCHESTRATOR_NOMAD_CORES": nil,
		"ORCHESTRATOR_SLOTS": "30", "ORCHESTRATOR_TEMPLATE": "big", "ORCHESTRATOR_SANDBOXD": "/opt/sandboxd",
		"ORCHESTRATOR_NOMAD_NODE_POOL": "gpu", "ORCHESTRATOR_MAX_CONTAINERS": "50",
	} {
		assert.Equal(t, want, env[name], name)
	}
	group := now["TaskGroups"].([]any)[0].(object)
	assert.InDelta(t, 2, group["Count"], 0)
	assert.Equal(t, "/opt/orchestrator", group["Tasks"].([]any)[0].(object)["Config"].(object)["command"])

	status, _, errs = runMain(t.Context(), "nomad", "deploy", "orchestrator", "--driver", "docker", "--orchestrators", "1")
	require.Zero(t, status, errs)
	group = registered()[1]["TaskGroups"].([]any)[0].(object)
	assert.InDelta(t, 1, group["Count"], 0)
	assert.Equal(t, "berth/orchestrator:local", group["Tasks"].([]any)[0].(object)["Config"].(object)["image"], "the program of one driver is no image of another")

	environmentOf(running)["ORCHESTRATOR_SLOTS"] = "many"
	status, _, errs = runMain(t.Context(), "nomad", "deploy", "orchestrator")
	assert.Equal(t, exitFailed, status)
	assert.Contains(t, errs, "ORCHESTRATOR_SLOTS")
}

func TestNomadDeployLeavesNoPoolWithoutItsOrchestratorUnsaid(t *testing.T) {
	registered := deployed(t, rendered(t, "sandboxd"), rendered(t, "orchestrator"))
	status, _, errs := runMain(t.Context(), "nomad", "deploy", "orchestrator", "--job", "berth-big")
	assert.Equal(t, exitFailed, status)
	for _, want := range []string{"serves job berth-default", "--namespace", "templates:", "--config", "--force"} {
		assert.Contains(t, errs, want)
	}
	assert.Empty(t, registered())
	status, _, errs = runMain(t.Context(), "nomad", "plan", "orchestrator", "--job", "berth-big")
	assert.Equal(t, exitChanges, status)
	assert.Contains(t, errs, "a deploy would be refused: the orchestrator serves job berth-default")

	for _, more := range [][]string{{"--job", "berth-big", "--force"}, {"--job", "berth-default"}, {"--slots", "9"}} {
		status, _, errs = runMain(t.Context(), append([]string{"nomad", "deploy", "orchestrator"}, more...)...)
		require.Zero(t, status, "%v: %s", more, errs)
	}
	require.Len(t, registered(), 3)
	assert.Equal(t, "big", environmentOf(registered()[0])["ORCHESTRATOR_TEMPLATE"])

	deployed(t, rendered(t, "sandboxd", "--job", "berth-big"))
	status, _, errs = runMain(t.Context(), "nomad", "deploy", "orchestrator", "--job", "berth-big")
	require.Zero(t, status, "the first abandons none: %s", errs)
}

func TestNomadDeployGivesTheFirstOrchestratorThePoolAsItIs(t *testing.T) {
	registered := deployed(t, rendered(t, "sandboxd", "--isolation-require", "ns", "--slots", "30", "--count", "5"))
	status, _, errs := runMain(t.Context(), "nomad", "deploy", "orchestrator", "--slots", "9")
	require.Zero(t, status, errs)
	require.Len(t, registered(), 1)
	env := environmentOf(registered()[0])
	assert.Equal(t, "ns", env["ORCHESTRATOR_ISOLATION_REQUIRE"])
	assert.Equal(t, "5", env["ORCHESTRATOR_CONTAINERS"])
	assert.Equal(t, "9", env["ORCHESTRATOR_SLOTS"])
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
		{[]string{"deploy", "sandboxd", "--driver", "qemu"}, exitUsage, "--driver"},
		{[]string{"plan", "prepull", "--slots", "4"}, exitUsage, "--slots"},
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

func TestNomadDeploySaysWhichContainersHaveAnotherEnvironment(t *testing.T) {
	for given, said := range map[string]bool{"env=A=b": true, "max-containers=4": false} {
		deployed(t, rendered(t, "sandboxd"), rendered(t, "orchestrator"))
		_, _, errs := runMain(t.Context(), "nomad", "deploy", "orchestrator", "--detach", "--serve", given)
		assert.Equal(t, said, strings.Contains(errs, "drain --recycle CONTAINER"), "%s: %s", given, errs)
	}
}
