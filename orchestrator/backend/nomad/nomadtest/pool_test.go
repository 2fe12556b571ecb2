package nomadtest_test

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator/backend/nomad/nomadtest"
	"berth/orchestrator/poolapi"
)

// job is that of the template default.
const job = "berth-default"

// allocations lists the allocations of the job that are to run, by index.
func allocations(t *testing.T, a *nomadtest.Agent) []*api.AllocationListStub {
	t.Helper()
	all, _, err := a.Client.Allocations().List(&api.QueryOptions{Filter: `JobID == "` + job + `"`})
	require.NoError(t, err)
	var out []*api.AllocationListStub
	for _, one := range all {
		if one.DesiredStatus == api.AllocDesiredStatusRun && one.ClientStatus == api.AllocClientStatusRunning {
			out = append(out, one)
		}
	}
	return out
}

// containerOf is the container that an allocation is.
func containerOf(t *testing.T, a *nomadtest.Agent, alloc string) string {
	t.Helper()
	v, _, err := a.Client.Variables().Peek(jobs.VariablePath(job)+"/containers/"+alloc[:1], nil)
	require.NoError(t, err)
	require.NotNil(t, v)
	require.NotEmpty(t, v.Items[alloc])
	return v.Items[alloc]
}

func TestAPoolScalesOutUnderLoadAndInWithLeasesHeld(t *testing.T) {
	t.Parallel()
	a := nomadtest.Start(t, nomadtest.Config{})
	o := serve(t, a.URL, "--containers", "1", "--max-containers", "3", "--slots", "2", "--idle-after", "1s", "--shrink-cooldown", "1s")
	o.awaitContainers(t, 1)
	l := begin(t, o.Client, 5)
	o.awaitContainers(t, 3)
	l.progress(t, 20)
	losses := l.end(t)
	assert.Empty(t, losses)

	// What is held stays where it is, though two of three containers go.
	held, err := o.Acquire(t.Context(), poolapi.LeaseRequest{Trajectory: "held", TTLSeconds: 600})
	require.NoError(t, err)
	args := func(command string) poolapi.Call {
		return poolapi.Call{Tool: "bash", Args: []byte(`{"command": "` + command + `"}`)}
	}
	_, err = o.Execute(t.Context(), held.ID, args("echo kept > f"))
	require.NoError(t, err)
	few := begin(t, o.Client, 1)
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		if all, err := o.Containers(t.Context()); err == nil && len(all) == 1 {
			break
		}
		require.True(t, time.Now().Before(deadline), "it does not scale in")
	}
	assert.Empty(t, few.end(t))
	result, err := o.Execute(t.Context(), held.ID, args("cat f"))
	require.NoError(t, err)
	assert.Equal(t, "kept", result.Output)
	require.Eventually(t, func() bool { return len(allocations(t, a)) == 1 }, 3*time.Minute, 200*time.Millisecond, "Nomad's count falls as well")
	assert.Equal(t, held.Container, containerOf(t, a, allocations(t, a)[0].ID))
	_, err = o.Release(t.Context(), held.ID)
	require.NoError(t, err)
}
