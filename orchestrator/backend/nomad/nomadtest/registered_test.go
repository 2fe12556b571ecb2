package nomadtest_test

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator/backend/nomad/nomadtest"
	"berth/slots/sandbox/sandboxtest"
)

// Nomad itself tells the orchestrators their namespace, runs them side by side,
// and takes what they register.
func TestOrchestratorsOfAJobRegisterThePoolThatItSays(t *testing.T) {
	t.Parallel()
	a := nomadtest.Start(t, nomadtest.Config{Memory: true})
	_, err := a.Client.Namespaces().Register(&api.Namespace{Name: "ml"}, nil)
	require.NoError(t, err)
	a.Client.SetNamespace("ml")
	of := jobs.Template{
		Job: "berth-big", Namespace: "ml", NodePool: "default", Datacenters: []string{"dc1"}, Priority: 60, Driver: jobs.RawExec, Command: sandboxtest.Agent(t),
		Count: 1, Slots: 3, Isolation: "none", NoNetwork: true, CPU: 300, MemoryMB: 200, MemoryMaxMB: 400, DiskMB: 100, Drain: 5 * time.Second, SlotPids: 99,
	}
	job, err := jobs.Orchestrator(of)
	require.NoError(t, err)
	group := job.TaskGroups[0]
	group.Count = new(2)
	group.Tasks[0].Config["command"] = program(t, "orchestrator")
	_, _, err = a.Client.Variables().Create(&api.Variable{Path: jobs.VariablePath(jobs.OrchestratorJob), Items: map[string]string{jobs.Secret: "t"}}, nil)
	require.NoError(t, err)
	registered, _, err := a.Client.Jobs().Register(job, nil)
	require.NoError(t, err)
	assert.Empty(t, registered.Warnings)

	require.Eventually(t, func() bool {
		d, _, err := a.Client.Jobs().LatestDeployment(jobs.OrchestratorJob, nil)
		return err == nil && d != nil && d.Status == api.DeploymentStatusSuccessful && d.TaskGroups[jobs.OrchestratorGroup].HealthyAllocs == 2
	}, patience, 100*time.Millisecond, "two that are ready")
	services, _, err := a.Client.Services().Get(jobs.OrchestratorJob, nil)
	require.NoError(t, err)
	assert.Len(t, services, 2)
	var pool *api.Job
	require.Eventually(t, func() bool {
		pool, _, err = a.Client.Jobs().Info(of.Job, nil)
		return err == nil && *pool.TaskGroups[0].Count == of.Count
	}, patience, 100*time.Millisecond, "a pool in the orchestrators' namespace")

	of.Meta = pool.Meta
	want, err := jobs.Sandboxd(of)
	require.NoError(t, err)
	plan, _, err := a.Client.Jobs().Plan(want, true, nil)
	require.NoError(t, err)
	assert.Equal(t, "None", plan.Diff.Type, "%+v", plan.Diff)
}
