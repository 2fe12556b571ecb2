package nomadtest_test

import (
	"os/exec"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator/backend/nomad/nomadtest"
	"berth/slots/sandbox/sandboxtest"
)

// berth runs the command for people on the cluster, and returns what it says.
func berth(t *testing.T, a *nomadtest.Agent, words ...string) (said string, status int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program(t, "berth"), append([]string{"nomad"}, words...)...)
	cmd.Env = a.Command().Env
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		require.NoError(t, err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// The order that is documented for other slots is that the orchestrator is told
// first: it finds its own job in what is deployed then.
func TestBerthDeploysOtherSlotsAndNoFewerContainers(t *testing.T) {
	t.Parallel()
	a := nomadtest.Start(t, nomadtest.Config{})
	deploy := func(name string, words ...string) {
		t.Helper()
		said, status := berth(t, a, append([]string{"deploy", name}, words...)...)
		require.Zero(t, status, "%s %v: %s", name, words, said)
	}
	with := []string{
		"--driver", "raw_exec", "--sandboxd", sandboxtest.Agent(t), "--isolation-require", "none",
		"--count", "2", "--slots", "2", "--cpu", "100", "--memory", "128", "--disk", "50",
	}
	deploy("sandboxd", with...)
	deploy("orchestrator", append(with, "--orchestrator", program(t, "orchestrator"))...)
	pool := func() *api.Job {
		t.Helper()
		job, _, err := a.Client.Jobs().Info("berth-default", nil)
		require.NoError(t, err)
		return job
	}
	require.Eventually(t, func() bool { return pool().Meta[jobs.MetaSpec] != "" }, patience, 50*time.Millisecond, "the orchestrator has made it its own")

	deploy("orchestrator", "--slots", "5")
	deploy("sandboxd", "--slots", "5")
	job := pool()
	assert.Contains(t, job.Meta[jobs.MetaSpec], `"Slots":5`)
	assert.Equal(t, "5", job.TaskGroups[0].Tasks[0].Env["SANDBOXD_SLOTS"])

	before := *pool().Version
	said, status := berth(t, a, "deploy", "sandboxd", "--count", "1")
	assert.Equal(t, 1, status, said)
	assert.Contains(t, said, "runs 2 containers")
	assert.Equal(t, before, *pool().Version, "nothing was registered")
	assert.Equal(t, 2, *pool().TaskGroups[0].Count)

	// An upgrade that no machine has room for.
	said, status = berth(t, a, "deploy", "sandboxd", "--memory", "9999999")
	assert.Equal(t, 1, status, said)
	assert.Contains(t, said, `there is no room for its next version`)
	assert.Contains(t, said, `Dimension "memory" exhausted`)
	assert.Equal(t, before, *pool().Version, "nothing was registered")
	said, status = berth(t, a, "deploy", "sandboxd", "--memory", "9999999", "--force", "--timeout", "2s")
	assert.Equal(t, 1, status, said)
	deployment, _, err := a.Client.Jobs().LatestDeployment("berth-default", nil)
	require.NoError(t, err)
	ends := "nomad deployment fail " + deployment.ID[:8]
	assert.Contains(t, said, "unless `"+ends+"` ends it")
	said, _ = berth(t, a, "status", "--json=false")
	assert.Contains(t, said, "for room for 1 of 1 canaries")
	assert.Contains(t, said, "`"+ends+"` ends it")
	_, _, err = a.Client.Deployments().Fail(deployment.ID, nil)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return *pool().TaskGroups[0].Tasks[0].Resources.MemoryMB == 128
	}, patience, 50*time.Millisecond, "it is as it was")

	// A program that says why it does not start.
	said, status = berth(t, a, "deploy", "sandboxd", "--job", "berth-other", "--driver", "raw_exec", "--sandboxd", "/bin/ls", "--count", "1",
		"--cpu", "50", "--memory", "32", "--disk", "50", "--timeout", "20s")
	assert.Equal(t, 1, status, said)
	assert.Contains(t, said, "(it said last: ")
	assert.Contains(t, said, "nomad alloc logs -stderr")
}
