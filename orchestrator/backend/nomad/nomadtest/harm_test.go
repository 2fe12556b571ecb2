package nomadtest_test

import (
	"crypto/rand"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator/backend/nomad/nomadtest"
)

// ids are the containers of the pool.
func (o *orchestrator) ids(t *testing.T) []string {
	t.Helper()
	all, err := o.Containers(t.Context())
	require.NoError(t, err)
	var out []string
	for _, c := range all {
		out = append(out, c.ID)
	}
	return out
}

// settled waits until so many containers are ready, none of them among gone.
func (o *orchestrator) settled(t *testing.T, n int, gone ...string) {
	t.Helper()
	o.await(t, "other containers", func() bool {
		all, err := o.Containers(t.Context())
		ready := 0
		for _, c := range all {
			if c.State == "ready" && !slices.Contains(gone, c.ID) {
				ready++
			}
		}
		return err == nil && ready == n && len(all) == n
	})
}

// Every one of them happens while trajectories lease slots, call and give them
// back; the checks of load hold all the time.
func TestNothingThatHappensToAClusterDoesHarm(t *testing.T) {
	a := nomadtest.Start(t, nomadtest.Config{})
	b := nomadtest.Start(t, nomadtest.Config{Servers: []string{a.RPC}})
	o := serve(t, a.URL, "--containers", "2", "--max-containers", "2", "--slots", "3")
	o.settled(t, 2)
	t.Run("an allocation is stopped", func(t *testing.T) { stopped(t, a, o) })
	t.Run("the secret is rotated", func(t *testing.T) { rotated(t, a, o) })
	t.Run("nomad is started again", func(t *testing.T) { restarted(t, a, b, o) })
	t.Run("another version goes first as a canary", func(t *testing.T) { updated(t, a, o) })
	t.Run("a machine is drained", func(t *testing.T) { drained(t, a, b, o) })
}

func stopped(t *testing.T, a *nomadtest.Agent, o *orchestrator) {
	t.Helper()
	l := begin(t, o.Client, 5)
	l.progress(t, 5)
	one := allocations(t, a)[0]
	gone := containerOf(t, a, one.ID)
	_, err := a.Client.Allocations().Stop(&api.Allocation{ID: one.ID}, nil)
	require.NoError(t, err)
	o.settled(t, 2, gone)
	l.progress(t, 10)
	harmless(t, l.end(t), gone)
}

func rotated(t *testing.T, a *nomadtest.Agent, o *orchestrator) {
	t.Helper()
	l := begin(t, o.Client, 5)
	l.progress(t, 5)
	before := o.ids(t)
	v, _, err := a.Client.Variables().Read(jobs.VariablePath(job), nil)
	require.NoError(t, err)
	v.Items[jobs.Secret] = rand.Text() + rand.Text()
	_, _, err = a.Client.Variables().CheckedUpdate(v, nil)
	require.NoError(t, err)
	o.await(t, "the new tokens", func() bool {
		text, err := os.ReadFile(o.log)
		return err == nil && strings.Contains(string(text), "secret rotated")
	})
	l.progress(t, 20)
	harmless(t, l.end(t))
	assert.Equal(t, before, o.ids(t), "no container was started anew")
}

func restarted(t *testing.T, a, b *nomadtest.Agent, o *orchestrator) {
	t.Helper()
	l := begin(t, o.Client, 5)
	l.progress(t, 5)
	before := o.ids(t)
	a.Kill()
	b.Kill()
	l.progress(t, 10) // the slots need no scheduler
	a.Run()
	b.Run()
	a.Wait()
	b.Wait()
	l.progress(t, 10)
	harmless(t, l.end(t))
	assert.Equal(t, before, o.ids(t), "all containers are found again")
	require.Eventually(t, func() bool { return len(allocations(t, a)) == 2 }, patience, 100*time.Millisecond)
}

func updated(t *testing.T, a *nomadtest.Agent, o *orchestrator) {
	t.Helper()
	l := begin(t, o.Client, 5)
	l.progress(t, 5)
	before := o.ids(t)
	next, _, err := a.Client.Jobs().Info(job, nil)
	require.NoError(t, err)
	next.TaskGroups[0].Tasks[0].Env["SANDBOXD_PIDS"] = "600"
	registered, _, err := a.Client.Jobs().EnforceRegister(next, *next.JobModifyIndex, nil)
	require.NoError(t, err)
	o.await(t, "the deployment", func() bool {
		d, _, err := a.Client.Jobs().LatestDeployment(job, nil)
		return err == nil && d != nil && d.JobSpecModifyIndex >= registered.JobModifyIndex && d.Status == api.DeploymentStatusSuccessful
	})
	o.settled(t, 2, before...)
	l.progress(t, 10)
	harmless(t, l.end(t), before...)
}

func drained(t *testing.T, a, b *nomadtest.Agent, o *orchestrator) {
	t.Helper()
	l := begin(t, o.Client, 5)
	l.progress(t, 5)
	var gone []string
	node := b.NodeID()
	for _, one := range allocations(t, a) {
		if one.NodeID == node {
			gone = append(gone, containerOf(t, a, one.ID))
		}
	}
	require.NotEmpty(t, gone, "they are spread over the machines")
	_, err := a.Client.Nodes().UpdateDrain(node, &api.DrainSpec{Deadline: time.Minute}, false, nil)
	require.NoError(t, err)
	o.settled(t, 2, gone...)
	l.progress(t, 10)
	harmless(t, l.end(t), gone...)
	for _, one := range allocations(t, a) {
		assert.NotEqual(t, node, one.NodeID, "%s stays", one.Name)
	}
}
