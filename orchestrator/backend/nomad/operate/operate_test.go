package operate_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator/backend/nomad/operate"
	"berth/orchestrator/config"
)

func TestRunningJobGivesBackTheTemplateThatItWasMadeOf(t *testing.T) {
	for _, with := range []jobs.Template{
		{Job: "berth-t", Count: 2},
		template(),
		{
			Job: "berth-t", Namespace: "n", Region: "r", Datacenters: []string{"a", "b"}, NodePool: "p", Priority: 70, Image: "i:1", Runtime: "runsc",
			Seccomp: "/s.json", Args: []string{"--keep", "1m"}, Writable: true, Count: 7, Slots: 30, Isolation: "ns,net=loopback-only", NoNetwork: true,
			Longest: 90 * time.Second, Drain: time.Minute, SlotMemory: 1 << 30, SlotPids: 99, SlotCPUs: 1.5, SlotDisk: 5, Cores: 4, MemoryMB: 19, MemoryMaxMB: 20,
			DiskMB: 11, Meta: map[string]string{jobs.MetaSpec: "{}"},
		},
		{Job: "berth-t", Driver: jobs.Exec, Command: "/x/sandboxd", CPU: 77},
	} {
		d := newDouble(t)
		text, err := json.Marshal(pool(t, with)) // as it comes over the wire
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &d.job))
		d.job.ID = new("berth-t")
		got, found, err := d.operator().Running(t.Context(), "berth-t")
		require.NoError(t, err)
		require.True(t, found)
		want, err := json.Marshal(pool(t, with))
		require.NoError(t, err)
		again, err := json.Marshal(pool(t, got.Template))
		require.NoError(t, err)
		assert.JSONEq(t, string(want), string(again))
	}
}

func TestRunningSaysWhatIsNoPool(t *testing.T) {
	d := newDouble(t)
	o := d.operator()
	_, found, err := o.Running(t.Context(), "berth-t")
	require.NoError(t, err)
	assert.False(t, found)

	d.job = pool(t, template())
	d.job.Stop, d.job.JobModifyIndex = new(true), new(uint64(6))
	stopped, found, err := o.Running(t.Context(), "berth-t")
	require.NoError(t, err)
	assert.False(t, found, "one that was stopped is made anew")
	assert.EqualValues(t, 6, stopped.ModifyIndex, "in its place")
	index, err := o.Index(t.Context(), "berth-t")
	require.NoError(t, err)
	assert.EqualValues(t, 6, index)
	index, err = o.Index(t.Context(), "berth-none")
	require.NoError(t, err)
	assert.Zero(t, index)

	d.job.Stop = new(false)
	d.job.TaskGroups[0].Tasks[0].Env["SANDBOXD_SLOTS"] = "many"
	_, _, err = o.Running(t.Context(), "berth-t")
	require.ErrorContains(t, err, "SANDBOXD_SLOTS")
	d.job.TaskGroups[0].Name = new("web")
	_, _, err = o.Running(t.Context(), "berth-t")
	require.ErrorContains(t, err, "not a pool's")
}

func TestPlanTellsWhatWouldChangeAndWhy(t *testing.T) {
	d := newDouble(t)
	d.plan = api.JobPlanResponse{
		JobModifyIndex: 9, Warnings: "mind the gap",
		Diff: &api.JobDiff{Type: "Edited", ID: "berth-t", TaskGroups: []*api.TaskGroupDiff{{
			Type: "Edited", Name: "sandboxd", Fields: []*api.FieldDiff{{Type: "Edited", Name: "Count", Old: "2", New: "3", Annotations: []string{"forces create"}}},
			Tasks: []*api.TaskDiff{{
				Type: "Edited", Name: "sandboxd", Annotations: []string{"forces create/destroy update"},
				Objects: []*api.ObjectDiff{{Type: "Edited", Name: "Config", Fields: []*api.FieldDiff{
					{Type: "Added", Name: "image", New: "b"}, {Type: "Deleted", Name: "init", Old: "true"}, {Type: "None", Name: "same", Old: "x", New: "x"},
				}}},
			}},
		}}},
		Annotations: &api.PlanAnnotations{DesiredTGUpdates: map[string]*api.DesiredUpdates{"sandboxd": {Place: 1, DestructiveUpdate: 2, Ignore: 5}}},
		FailedTGAllocs: map[string]*api.AllocationMetric{"sandboxd": {
			NodesEvaluated: 3, CoalescedFailures: 1, DimensionExhausted: map[string]int{"memory": 2}, ConstraintFiltered: map[string]int{"${attr.kernel.name} = linux": 1},
		}},
	}
	p, err := d.operator().Plan(t.Context(), pool(t, template()))
	require.NoError(t, err)
	assert.True(t, p.Changes())
	assert.EqualValues(t, 9, p.ModifyIndex)
	var out strings.Builder
	require.NoError(t, p.Write(&out))
	assert.Equal(t, `+/- Job: "berth-t"
+/- Task group: "sandboxd" (1 create, 2 create/destroy update)
    +/- Count: "2" => "3" (forces create)
  +/- Task: "sandboxd" (forces create/destroy update)
      +/- Config {
        + image: "b"
        - init: "true"
      }

NOT to be placed: Task Group "sandboxd" (failed to place 2 allocations): Constraint "${attr.kernel.name} = linux": 1 nodes excluded by filter, Dimension "memory" exhausted on 2 nodes
Warnings: mind the gap
`, out.String())

	d.plan = api.JobPlanResponse{Diff: &api.JobDiff{Type: "None"}, Annotations: &api.PlanAnnotations{DesiredTGUpdates: map[string]*api.DesiredUpdates{"sandboxd": {Ignore: 5, InPlaceUpdate: 2}}}}
	p, err = d.operator().Plan(t.Context(), pool(t, template()))
	require.NoError(t, err)
	assert.False(t, p.Changes())

	d.fault = func(*http.Request) (int, string) { return http.StatusForbidden, "Permission denied" }
	_, err = d.operator().Plan(t.Context(), pool(t, template()))
	require.ErrorContains(t, err, "plan job berth-t: Unexpected response code: 403 (Permission denied)")
}

// running is a deployment on its way.
func running(healthy int) api.Deployment {
	return api.Deployment{ID: "deployment", Status: "running", TaskGroups: map[string]*api.DeploymentState{"sandboxd": {DesiredTotal: 2, HealthyAllocs: healthy}}}
}

func TestDeployMakesTheSecretAndFollowsUntilItIsHealthy(t *testing.T) {
	d := newDouble(t)
	done := running(2)
	done.Status, done.StatusDescription = "successful", "Deployment completed successfully"
	d.evaluation = []api.Evaluation{{Status: "pending"}, {Status: "complete", DeploymentID: "deployment"}}
	d.deployments = []api.Deployment{running(0), running(0), running(1), done}
	var told steps
	got, err := d.operator().Deploy(t.Context(), pool(t, template()), 0, operate.Options{}, told.add)
	require.NoError(t, err)
	assert.Equal(t, operate.Deployed{
		Job: "berth-t", Version: 1, ModifyIndex: 5, Variable: "nomad/jobs/berth-t", Evaluation: "eval", Deployment: "deployment",
		Status: "successful", Words: "Deployment completed successfully", Warnings: "mind the gap",
	}, got)
	assert.Equal(t, steps{
		"made secrets in variable nomad/jobs/berth-t", "registered job berth-t, version 1", "warnings: mind the gap",
		"deployment deployme running: sandboxd: 0 of 2 healthy, 0 unhealthy", "deployment deployme running: sandboxd: 1 of 2 healthy, 0 unhealthy",
		"deployment deployme successful: sandboxd: 2 of 2 healthy, 0 unhealthy",
	}, told, "each step is told once")
	items := d.variables["nomad/jobs/berth-t"].Items
	assert.GreaterOrEqual(t, len(items["token"]), 40)
	assert.Contains(t, items, "env")

	got, err = d.operator().Deploy(t.Context(), pool(t, template()), 5, operate.Options{Detach: true}, told.add)
	require.NoError(t, err)
	assert.Equal(t, "registered", got.Status, "it does not wait when it is told so")
	assert.Empty(t, got.Variable)
	assert.Equal(t, items, d.variables["nomad/jobs/berth-t"].Items, "the secret that is there stays")
}

func TestDeployGivesTheOrchestratorsVariableWhatItLacks(t *testing.T) {
	d := newDouble(t)
	job, err := jobs.Orchestrator(template())
	require.NoError(t, err)
	path := jobs.VariablePath(jobs.OrchestratorJob)
	items := func() api.VariableItems { return d.variables[path].Items }
	deploy := func() operate.Deployed {
		t.Helper()
		d.job, d.evaluation = nil, []api.Evaluation{{Status: "complete"}}
		got, err := d.operator().Deploy(t.Context(), job, 0, operate.Options{Detach: true}, func(string, ...any) {})
		require.NoError(t, err)
		return got
	}
	assert.Equal(t, path, deploy().Variable)
	keys, err := config.ParseKeys(items()[jobs.ConfigKeys])
	require.NoError(t, err, "they are as a file of keys has them")
	assert.False(t, keys.Empty())
	assert.GreaterOrEqual(t, len(items()[jobs.Secret]), 40)

	made := maps.Clone(items())
	assert.Empty(t, deploy().Variable)
	assert.Equal(t, made, items(), "those that are there stay")

	d.variables[path].Items = api.VariableItems{jobs.Secret: "t", jobs.Metrics: "m", "ours": "", jobs.ConfigKeys: ""}
	conflicts := 1
	d.fault = func(r *http.Request) (int, string) { // somebody writes it meanwhile
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, path) && conflicts > 0 {
			conflicts--
			d.variables[path].ModifyIndex++
			d.variables[path].Items["other"] = "o"
		}
		return 0, ""
	}
	assert.Equal(t, path, deploy().Variable)
	key := items()[jobs.ConfigKeys]
	assert.Len(t, key, 44)
	assert.Equal(t, api.VariableItems{jobs.Secret: "t", jobs.Metrics: "m", "ours": "", "other": "o", jobs.ConfigKeys: key}, items())
}

func TestMachinesWithAVolumeAreThoseThatMayHaveTheJob(t *testing.T) {
	d := newDouble(t)
	d.nodes = []*api.NodeListStub{
		{Name: "b", Datacenter: "dc1", NodePool: "default", Status: "ready"},
		{Name: "a", Datacenter: "dc2", NodePool: "default", Status: "disconnected"},
		{Name: "c", Datacenter: "dc1", NodePool: "default", Status: "down"},
		{Name: "d", Datacenter: "east", NodePool: "gpu", Status: "ready"},
	}
	asked := ""
	d.fault = func(r *http.Request) (int, string) {
		asked = r.URL.Query().Get("filter")
		return 0, ""
	}
	for want, with := range map[string]jobs.Template{
		"a b": {Datacenters: []string{"*"}}, "b": {Datacenters: []string{"dc1"}, NodePool: "default"}, "a": {Datacenters: []string{"dc[2-9]", "x"}},
		"d": {Datacenters: []string{"*"}, NodePool: "gpu"}, "a b d": {Datacenters: []string{"*"}, NodePool: "all"}, "": {Datacenters: []string{"*"}, NodePool: "x"},
	} {
		have, err := d.operator().WithVolume(t.Context(), "berth.configs", with)
		require.NoError(t, err)
		assert.Equal(t, want, strings.Join(have, " "))
		assert.Equal(t, `"berth.configs" in HostVolumes`, asked)
	}
	d.fault = func(*http.Request) (int, string) { return http.StatusForbidden, "Permission denied" }
	_, err := d.operator().WithVolume(t.Context(), "v", jobs.Template{})
	require.ErrorContains(t, err, "Permission denied")
}

func TestDeployThatFailsHasNomadsWords(t *testing.T) {
	failed := running(0)
	failed.Status, failed.StatusDescription = "failed", "Failed due to unhealthy allocations"
	broken := &api.AllocationListStub{ID: "0123456789", NodeName: "n1", JobVersion: 1, ClientStatus: "failed", TaskStates: map[string]*api.TaskState{
		"sandboxd": {Events: []*api.TaskEvent{{Type: api.TaskDriverFailure, DisplayMessage: "image not found"}, {Type: api.TaskNotRestarting, DisplayMessage: "Exceeded"}}},
	}}
	unset := func(status, namespace string) *api.AllocationListStub {
		return &api.AllocationListStub{ID: "eeeeffff-1", Namespace: namespace, JobVersion: 1, ClientStatus: "failed", TaskStates: map[string]*api.TaskState{
			"sandboxd": {Events: []*api.TaskEvent{{Type: api.TaskTerminated, DisplayMessage: "Exit Code: " + status, Details: map[string]string{"exit_code": status}}}},
		}}
	}
	older := &api.AllocationListStub{ID: "abcdefghij", JobVersion: 0, ClientStatus: "failed"}
	full := map[string]*api.AllocationMetric{"sandboxd": {}}
	for name, c := range map[string]struct {
		set  func(d *double)
		kind string
		want []string
	}{
		"unhealthy": {func(d *double) { d.deployments = []api.Deployment{running(0), failed} }, "service", []string{
			"deployment deployme failed: Failed due to unhealthy allocations", "allocation 01234567 on n1: image not found",
		}},
		"no room": {func(d *double) {
			d.evaluation = []api.Evaluation{{Status: "blocked", DeploymentID: "deployment", FailedTGAllocs: full}}
			d.deployments = []api.Deployment{failed}
		}, "service", []string{"Failed due to", "No nodes were eligible"}},
		"no decision": {func(d *double) {
			d.evaluation = []api.Evaluation{{Status: "failed", StatusDescription: "maximum attempts reached"}}
		}, "service", []string{
			"evaluation failed: maximum attempts reached",
		}},
		"one that ends": {func(d *double) { d.evaluation = []api.Evaluation{{Status: "complete"}} }, "sysbatch", []string{"1 of 1 allocations failed", "image not found"}},
		"no machine": {func(d *double) {
			d.evaluation, d.allocs = []api.Evaluation{{Status: "complete"}}, []*api.AllocationListStub{older}
		}, "sysbatch", []string{"no machine that takes work is in its datacenters"}},
		"settings": {func(d *double) {
			d.deployments, d.allocs = []api.Deployment{failed}, []*api.AllocationListStub{unset("64", ""), unset("78", "ml"), broken}
		}, "service", []string{
			"Exit Code: 64 (why: nomad alloc logs -stderr eeeeffff)", "Exit Code: 78 (why: nomad alloc logs -stderr -namespace ml eeeeffff)", "image not found",
		}},
		"a program that says why": {func(d *double) {
			d.deployments, d.allocs = []api.Deployment{failed}, []*api.AllocationListStub{unset("1", "")}
			d.logs = map[string]string{"eeeeffff-1 sandboxd stderr": `{"@level":"info","@message":"begins"}` + "\n" + `{"@message":"ended","error":"403 (Permission denied)"}` + "\n"}
		}, "service", []string{"Exit Code: 1 (it said last: ended: 403 (Permission denied); more: nomad alloc logs -stderr eeeeffff)"}},
		"a program that says much": {func(d *double) {
			d.deployments, d.allocs = []api.Deployment{failed}, []*api.AllocationListStub{unset("137", "")}
			d.logs = map[string]string{"eeeeffff-1 sandboxd stderr": "first\n" + strings.Repeat("x", 1<<12) + "\n\n"}
		}, "service", []string{"(it said last: " + strings.Repeat("x", 1000) + "…; more: nomad alloc logs"}},
		"one that was told to end": {func(d *double) {
			d.deployments, d.allocs = []api.Deployment{failed}, []*api.AllocationListStub{unset("0", "")}
		}, "service", []string{"Exit Code: 0"}},
		"lost connection": {func(d *double) {
			d.fault = func(r *http.Request) (int, string) {
				if strings.HasPrefix(r.URL.Path, "/v1/deployment/") {
					return http.StatusForbidden, "Permission denied"
				}
				return 0, ""
			}
		}, "service", []string{"follow job berth-t", "Permission denied"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDouble(t)
			d.evaluation = []api.Evaluation{{Status: "complete", DeploymentID: "deployment"}}
			d.allocs = []*api.AllocationListStub{broken, older}
			c.set(d)
			job := pool(t, template())
			job.Type = &c.kind
			var told steps
			got, err := d.operator().Deploy(t.Context(), job, 0, operate.Options{}, told.add)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
			assert.NotContains(t, err.Error(), "image not found (why")
			assert.NotContains(t, err.Error(), "Code: 0 (")
			assert.NotContains(t, err.Error(), "abcdefgh", "what failed before is another matter")
			assert.EqualValues(t, 5, got.ModifyIndex, "it tells what it has done all the same")
		})
	}
}

// An orchestrator that needs more containers registers the job with a higher
// count while it is rolled out.
func TestDeployFollowsTheJobThatTheOrchestratorHasScaled(t *testing.T) {
	for name, c := range map[string]struct {
		change func(with *jobs.Template)
		follow bool
	}{
		"count": {func(with *jobs.Template) { with.Count, with.Meta = 3, map[string]string{jobs.MetaSpec: "{}"} }, true},
		"slots": {func(with *jobs.Template) { with.Count, with.Slots = 3, 9 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDouble(t)
			next := template()
			c.change(&next)
			cancelled := running(0)
			cancelled.Status, cancelled.StatusDescription = "cancelled", "Cancelled due to newer version of job"
			later := running(3)
			later.ID, later.JobVersion, later.Status = "later", 2, "successful"
			d.evaluation = []api.Evaluation{{Status: "complete", DeploymentID: "deployment"}}
			d.deployments = []api.Deployment{cancelled, later}
			d.fault = func(r *http.Request) (int, string) {
				if strings.HasPrefix(r.URL.Path, "/v1/deployment/") && *d.job.Version == 1 {
					raised := pool(t, next)
					raised.Version, raised.JobModifyIndex = new(uint64(2)), new(uint64(9))
					d.job = raised
				}
				return 0, ""
			}
			var told steps
			got, err := d.operator().Deploy(t.Context(), pool(t, template()), 0, operate.Options{}, told.add)
			if !c.follow {
				require.ErrorContains(t, err, "Cancelled due to newer version")
				assert.Equal(t, "cancelled", got.Status)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, "successful", got.Status)
			assert.Equal(t, "later", got.Deployment)
			assert.EqualValues(t, 2, got.Version)
			assert.Contains(t, told, "the orchestrator has scaled it meanwhile, as version 2")
		})
	}
}

func TestDeployRefusesWhatSomebodyElseHasChanged(t *testing.T) {
	d := newDouble(t)
	d.job = pool(t, template())
	d.job.JobModifyIndex = new(uint64(12))
	var told steps
	_, err := d.operator().Deploy(t.Context(), pool(t, template()), 11, operate.Options{}, told.add)
	require.ErrorIs(t, err, operate.ErrChanged)
	require.ErrorContains(t, err, "conflicting job modify index")
	assert.Zero(t, d.registered)
}

func TestDeployThatTakesTooLongTellsHowFarItIs(t *testing.T) {
	d := newDouble(t)
	d.evaluation = []api.Evaluation{{Status: "complete", DeploymentID: "deployment"}}
	d.deployments = []api.Deployment{running(1)}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	seen := 0
	_, err := d.operator().Deploy(ctx, pool(t, template()), 0, operate.Options{}, func(string, ...any) {
		if seen++; seen == 4 {
			cancel(context.DeadlineExceeded)
		}
	})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, operate.ErrGoesOn)
}

// Nomad would try a canary without room for ever, and scale nothing meanwhile.
func TestDeployRefusesWhatFindsNoRoom(t *testing.T) {
	full := api.JobPlanResponse{
		Diff: &api.JobDiff{Type: "Edited"}, FailedTGAllocs: map[string]*api.AllocationMetric{"sandboxd": {NodesEvaluated: 1, DimensionExhausted: map[string]int{"cpu": 1}}},
	}
	const words = `Task Group "sandboxd" (failed to place 1 allocation): Dimension "cpu" exhausted on 1 nodes`
	runs := func() *double {
		d := newDouble(t)
		d.job, d.plan = pool(t, template()), full
		d.job.JobModifyIndex = new(uint64(5))
		d.evaluation = []api.Evaluation{{Status: "blocked", DeploymentID: "0123456789", FailedTGAllocs: full.FailedTGAllocs}}
		return d
	}
	d := runs()
	var told steps
	_, err := d.operator().Deploy(t.Context(), pool(t, template()), 5, operate.Options{}, told.add)
	require.ErrorIs(t, err, operate.ErrNoRoom)
	require.ErrorContains(t, err, "job berth-t runs, and there is no room for its next version")
	require.ErrorContains(t, err, words)
	assert.Zero(t, d.registered)
	assert.Empty(t, d.variables)

	failed := running(0)
	failed.ID, failed.Status = "0123456789", "failed"
	d.deployments = []api.Deployment{failed}
	_, err = d.operator().Deploy(t.Context(), pool(t, template()), 5, operate.Options{Force: true}, told.add)
	require.ErrorContains(t, err, words)
	assert.Equal(t, 1, d.registered)
	assert.Contains(t, told, "no room yet: "+words+"; until there is, nothing else of the job is scaled, which `nomad deployment fail 01234567` ends")

	for name, change := range map[string]func(d *double, job *api.Job){
		"nothing runs":     func(d *double, _ *api.Job) { d.job.Stop = new(true) },
		"it is as it runs": func(d *double, _ *api.Job) { d.plan.Diff = &api.JobDiff{Type: "None"} },
		"it has no canary": func(_ *double, job *api.Job) { job.Type = new(api.JobTypeSysbatch) },
	} {
		d, job := runs(), pool(t, template())
		change(d, job)
		_, err := d.operator().Deploy(t.Context(), job, 5, operate.Options{Detach: true}, told.add)
		require.NoError(t, err, name)
		assert.Equal(t, 1, d.registered, name)
	}
}

// What Nomad refuses leaves nothing behind.
func TestDeployMakesNoSecretOfAJobThatIsRefused(t *testing.T) {
	d := newDouble(t)
	d.fault = func(r *http.Request) (int, string) {
		if strings.HasSuffix(r.URL.Path, "/plan") || r.URL.Path == "/v1/jobs" {
			return http.StatusInternalServerError, `job "berth-t" is in nonexistent namespace "n"`
		}
		return 0, ""
	}
	_, err := d.operator().Deploy(t.Context(), pool(t, template()), 0, operate.Options{}, new(steps).add)
	require.ErrorContains(t, err, "nonexistent namespace")
	assert.Empty(t, d.variables)
}

func TestStatusShowsAllocationsAndWhoseTheyAre(t *testing.T) {
	d := newDouble(t)
	o := d.operator()
	_, err := o.Status(t.Context(), "berth-t")
	var none *operate.NotFoundError
	require.ErrorAs(t, err, &none)

	d.job = pool(t, template())
	d.job.Status, d.job.SubmitTime, d.job.Version = new("running"), new(int64(1e18)), new(uint64(3))
	d.deployments = []api.Deployment{running(1)}
	d.allocs = []*api.AllocationListStub{
		{ID: "bbbb", Name: "berth-t.sandboxd[1]", JobID: "berth-t", ClientStatus: "running", DesiredStatus: "run", NodeName: "n"},
		{ID: "aaaa", Name: "berth-t.sandboxd[0]", JobID: "berth-t", ClientStatus: "running", DesiredStatus: "run", AllocatedResources: &api.AllocatedResources{
			Shared: api.AllocatedSharedResources{Ports: []api.PortMapping{{Label: "http", Value: 8080, HostIP: "10.0.0.1"}}},
		}},
		{ID: "cccc", Name: "berth-t.sandboxd[0]", JobID: "berth-t", ClientStatus: "complete"},
	}
	d.variables["nomad/jobs/berth-t/containers/a"] = &api.Variable{Path: "nomad/jobs/berth-t/containers/a", Items: api.VariableItems{"aaaa": "t-1"}}
	d.blocked = []*api.Evaluation{{Status: "blocked", FailedTGAllocs: map[string]*api.AllocationMetric{"sandboxd": {NodesEvaluated: 1, DimensionExhausted: map[string]int{"cpu": 1}}}}}
	s, err := o.Status(t.Context(), "berth-t")
	require.NoError(t, err)
	assert.Equal(t, "running", s.Status)
	assert.Equal(t, 2, s.Count)
	assert.Equal(t, "/usr/local/bin/sandboxd", s.Image)
	assert.Equal(t, 1, s.Deployment.Healthy)
	require.Len(t, s.Allocations, 2, "what ended well is no longer of interest")
	assert.Equal(t, "aaaa", s.Allocations[0].ID)
	assert.Equal(t, "t-1", s.Allocations[0].Container)
	assert.Equal(t, "http://10.0.0.1:8080", s.Allocations[0].URL)
	assert.Equal(t, []string{`Task Group "sandboxd" (failed to place 1 allocation): Dimension "cpu" exhausted on 1 nodes`}, s.Unplaced)

	one, err := o.Find(t.Context(), "berth-t", "t-1")
	require.NoError(t, err)
	assert.Equal(t, "aaaa", one.ID)
	one, err = o.Find(t.Context(), "berth-t", "bbbb")
	require.NoError(t, err)
	require.NoError(t, o.Stop(t.Context(), one.ID))
	require.NoError(t, o.Gone(t.Context(), one.ID))
	_, err = o.Find(t.Context(), "berth-t", "bbbb")
	require.ErrorAs(t, err, &none)
	require.NoError(t, o.Gone(t.Context(), "dddd"), "what nobody knows is gone")
}

func TestStatusSaysWhatADeploymentWaitsFor(t *testing.T) {
	d := newDouble(t)
	d.job = pool(t, template())
	at := func(status string, placed []string, promoted bool) api.Deployment {
		v := running(1)
		v.ID, v.Status = "0123456789", status
		*v.TaskGroups["sandboxd"] = api.DeploymentState{DesiredTotal: 2, HealthyAllocs: 1, DesiredCanaries: 1, PlacedCanaries: placed, Promoted: promoted}
		return v
	}
	for want, v := range map[string]api.Deployment{
		"for room for 1 of 1 canaries, which go first":  at("running", nil, false),
		"until 1 canaries, which go first, are healthy": at("running", []string{"a"}, false),
		"until 1 more are healthy":                      at("running", []string{"a"}, true),
		"":                                              at("failed", nil, false),
	} {
		d.deployments = []api.Deployment{v}
		s, err := d.operator().Status(t.Context(), "berth-t")
		require.NoError(t, err)
		assert.Equal(t, want, s.Deployment.Waits)
		assert.Equal(t, map[bool]string{true: "nomad deployment fail 01234567"}[want != ""], s.Deployment.EndsBy)
	}
}

func TestStatusShowsTheLastOfEachIndexThatFailed(t *testing.T) {
	d := newDouble(t)
	d.job = pool(t, template())
	for i, status := range []string{"failed", "failed", "complete", "failed", "running"} {
		for index := range 2 {
			d.allocs = append(d.allocs, &api.AllocationListStub{
				ID: fmt.Sprintf("%d-%d", index, i), Name: fmt.Sprintf("berth-t.sandboxd[%d]", index), JobID: "berth-t", ClientStatus: status, CreateTime: int64(i),
			})
		}
	}
	s, err := d.operator().Status(t.Context(), "berth-t")
	require.NoError(t, err)
	var ids []string
	for _, a := range s.Allocations {
		ids = append(ids, a.ID)
	}
	assert.Equal(t, []string{"0-3", "0-4", "1-3", "1-4"}, ids)
	assert.Equal(t, 4, s.Failed)
}

func TestNodeIsFoundByNameOrTheBeginningOfItsID(t *testing.T) {
	d := newDouble(t)
	d.nodes = []*api.NodeListStub{{ID: "aaaa1111", Name: "one"}, {ID: "aaaa2222", Name: "two"}}
	d.allocs = []*api.AllocationListStub{{ID: "x", NodeID: "aaaa2222", ClientStatus: "running"}, {ID: "y", NodeID: "aaaa1111", ClientStatus: "running"}}
	o := d.operator()
	id, on, err := o.Node(t.Context(), "berth-t", "two")
	require.NoError(t, err)
	assert.Equal(t, "aaaa2222", id)
	require.Len(t, on, 1)
	assert.Equal(t, "x", on[0].ID)
	_, _, err = o.Node(t.Context(), "berth-t", "aaaa")
	require.ErrorContains(t, err, "it may be aaaa1111 or aaaa2222")
	_, _, err = o.Node(t.Context(), "berth-t", "three")
	var none *operate.NotFoundError
	require.ErrorAs(t, err, &none)
}

func TestRotateChangesTheSecretAlone(t *testing.T) {
	d := newDouble(t)
	o := d.operator()
	_, err := o.Rotate(t.Context(), "berth-t")
	var none *operate.NotFoundError
	require.ErrorAs(t, err, &none)
	const path = "nomad/jobs/berth-t"
	d.variables[path] = &api.Variable{Path: path, ModifyIndex: 3, Items: api.VariableItems{"token": "old", "env": "A=b", "env_version": "v"}}
	changed := 0
	d.fault = func(r *http.Request) (int, string) {
		if r.Method == http.MethodPut && changed == 0 { // somebody is faster
			changed++
			d.variables[path].Items["env"], d.variables[path].ModifyIndex = "A=c", 4
		}
		return 0, ""
	}
	_, err = o.Rotate(t.Context(), "berth-t")
	require.NoError(t, err)
	items := d.variables[path].Items
	assert.GreaterOrEqual(t, len(items["token"]), 40)
	assert.Equal(t, "A=c", items["env"], "what somebody else has written stays")
	assert.Equal(t, "v", items["env_version"])
}
