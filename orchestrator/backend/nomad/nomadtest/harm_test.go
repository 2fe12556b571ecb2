package nomadtest_test

import (
	"crypto/rand"
	"encoding/json"
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
	"berth/orchestrator/poolapi"
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

// tokenGrace is how long agents take the tokens of the secret before.
const tokenGrace = 10 * time.Second

// Every one of them happens while trajectories lease slots, call and give them
// back; the checks of load hold all the time.
func TestNothingThatHappensToAClusterDoesHarm(t *testing.T) {
	a := nomadtest.Start(t, nomadtest.Config{})
	b := nomadtest.Start(t, nomadtest.Config{Servers: []string{a.RPC}})
	o := serve(t, a.URL, "--containers", "2", "--max-containers", "2", "--slots", "3", "--sandboxd-arg", "--token-grace="+tokenGrace.String())
	o.settled(t, 2)
	t.Run("an allocation is stopped", func(t *testing.T) { stopped(t, a, o) })
	t.Run("the secret is rotated", func(t *testing.T) { rotated(t, a, o) })
	t.Run("nomad is started again", func(t *testing.T) { restarted(t, a, b, o) })
	t.Run("another version goes first as a canary", func(t *testing.T) { updated(t, a, o) })
	t.Run("a machine is drained", func(t *testing.T) { drained(t, a, o) })
}

// holding is a lease that somebody has while its container is about to end.
type holding struct {
	o     *orchestrator
	lease poolapi.Lease
}

// hold takes a slot and leaves something in it.
func hold(t *testing.T, o *orchestrator) *holding {
	t.Helper()
	lease, err := o.Acquire(t.Context(), poolapi.LeaseRequest{Trajectory: "held by " + t.Name(), WaitS: 60, TTLSeconds: 600})
	require.NoError(t, err)
	h := &holding{o, lease}
	h.run(t, "echo kept > f")
	return h
}

func (h *holding) run(t *testing.T, command string) string {
	t.Helper()
	args, err := json.Marshal(map[string]string{"command": command})
	require.NoError(t, err)
	result, err := h.o.Execute(t.Context(), h.lease.ID, poolapi.Call{Tool: "bash", Args: args})
	require.NoError(t, err)
	assert.True(t, result.Success, result.Error)
	return result.Output
}

// warned waits until the holder is told that the container is going to end,
// asserts that there is time until then, and that the slot is served. Then the
// slot is given back.
func (h *holding) warned(t *testing.T) {
	t.Helper()
	h.o.await(t, "a warning", func() bool {
		told, err := h.o.Renew(t.Context(), h.lease.ID, 0)
		require.NoError(t, err)
		h.lease = told
		return told.Draining && !told.Deadline.IsZero()
	})
	left := time.Until(h.lease.Deadline)
	t.Logf("held in %s, which ends in %v", h.lease.Container, left.Round(time.Second))
	assert.Positive(t, left)
	time.Sleep(min(left/4, 5*time.Second)) // the agent was told to end by then
	assert.Equal(t, "kept", h.run(t, "cat f"))
	_, err := h.o.Release(t.Context(), h.lease.ID)
	require.NoError(t, err)
}

// allocationOf is the allocation that a container is.
func allocationOf(t *testing.T, a *nomadtest.Agent, container string) *api.AllocationListStub {
	t.Helper()
	for _, one := range allocations(t, a) {
		v, _, err := a.Client.Variables().Peek(jobs.VariablePath(job)+"/containers/"+one.ID[:1], nil)
		require.NoError(t, err)
		if v != nil && v.Items[one.ID] == container {
			return one
		}
	}
	require.Fail(t, "no allocation", "of %s", container)
	return nil
}

func stopped(t *testing.T, a *nomadtest.Agent, o *orchestrator) {
	t.Helper()
	l := begin(t, o.Client, 5)
	l.progress(t, 5)
	held := hold(t, o)
	_, err := a.Client.Allocations().Stop(&api.Allocation{ID: allocationOf(t, a, held.lease.Container).ID}, nil)
	require.NoError(t, err)
	held.warned(t)
	o.settled(t, 2, held.lease.Container)
	l.progress(t, 10)
	harmless(t, l.end(t))
	assert.Len(t, allocations(t, a), 2, "one in its place, and no other")
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
	time.Sleep(tokenGrace) // the old ones are good for no longer
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
	assert.Len(t, allocations(t, a), 2)
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
	harmless(t, l.end(t))
}

func drained(t *testing.T, a *nomadtest.Agent, o *orchestrator) {
	t.Helper()
	l := begin(t, o.Client, 5)
	l.progress(t, 5)
	held := hold(t, o)
	node := allocationOf(t, a, held.lease.Container).NodeID
	_, err := a.Client.Nodes().UpdateDrain(node, &api.DrainSpec{Deadline: 2 * time.Minute}, false, nil)
	require.NoError(t, err)
	held.warned(t)
	o.settled(t, 2, held.lease.Container)
	l.progress(t, 10)
	harmless(t, l.end(t))
	for _, one := range allocations(t, a) {
		assert.NotEqual(t, node, one.NodeID, "%s stays", one.Name)
	}
}

func TestTheDutyMovesWhenTheOrchestratorThatHasItIsKilled(t *testing.T) {
	t.Parallel()
	const (
		scales = "this orchestrator scales the job"
		ttl    = 24 * time.Second // 22 s are the least
	)
	a := nomadtest.Start(t, nomadtest.Config{})
	size := []string{"--containers", "1", "--max-containers", "2", "--slots", "2", "--nomad-lock-ttl", ttl.String()}
	first := serve(t, a.URL, size...)
	first.settled(t, 1)
	require.Equal(t, 1, first.said(t, scales))
	second := serve(t, a.URL, size...)
	second.settled(t, 1)
	assert.Equal(t, first.ids(t), second.ids(t))
	l := begin(t, second.Client, 2)
	l.progress(t, 5)
	assert.Zero(t, second.said(t, scales), "one is enough")
	first.kill(t)
	began := time.Now()
	l.progress(t, 5) // what is there is served meanwhile
	queue := begin(t, second.Client, 3)
	second.await(t, "the duty", func() bool { return second.said(t, scales) > 0 })
	took := time.Since(began)
	t.Log("another scales after", took)
	assert.LessOrEqual(t, took, ttl)
	second.settled(t, 2) // and grows again
	assert.Equal(t, 1, second.said(t, scales))
	queue.progress(t, 10) // who waited there has slots
	l.progress(t, 10)
	harmless(t, queue.end(t))
	harmless(t, l.end(t))
}
