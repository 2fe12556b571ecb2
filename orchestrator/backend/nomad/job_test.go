package nomad_test

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
)

// items are those of the variable that the job's tasks read.
func (d *double) items() map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.variables[jobs.VariablePath(job)].Items
}

func TestAnotherEnvironmentIsForWhatStartsFromNowOn(t *testing.T) {
	d := newDouble(t)
	first := open(t, d.config(t))
	kept := start(t, first, "c-0")[0]
	require.NoError(t, first.Close())
	c := d.config(t)
	c.Pools[0].Env = map[string]string{"KEY": "other"}
	b := open(t, c)
	require.Eventually(t, func() bool { return d.items()[jobs.EnvItem] == "KEY=other" }, patience, time.Millisecond, "before a container is wanted: Nomad may replace one")
	alloc, registered := d.allocOf(kept), d.asked("PUT jobs")
	s := c.Pools[0].Clone()
	s.ID = "c-1"
	_, err := b.Start(t.Context(), s)
	require.NoError(t, err)
	assert.Equal(t, registered, d.asked("PUT jobs"), "what runs is not replaced")
	assert.Equal(t, 2, d.count())
	assert.Equal(t, alloc, d.allocOf(kept))
}

func TestAnotherSpecKeepsWhatSomebodyHasDeployed(t *testing.T) {
	d := newDouble(t)
	b := open(t, d.config(t))
	start(t, b, "c-0")
	at := api.DefaultConfig()
	at.Address = d.server.URL
	operator, err := api.NewClient(at)
	require.NoError(t, err)
	next, _, err := operator.Jobs().Info(job, nil)
	require.NoError(t, err)
	task := next.TaskGroups[0].Tasks[0]
	task.Config["command"], task.Resources.MemoryMB = "/srv/sandboxd-v2", new(4096)
	task.Env["SANDBOXD_PIDS"] = "100"
	_, _, err = operator.Jobs().EnforceRegister(next, *next.JobModifyIndex, nil)
	require.NoError(t, err)

	s := spec("c-1")
	s.Slots, s.Limits.Pids = 3, 700
	_, err = b.Start(t.Context(), s)
	require.NoError(t, err)
	now, _, err := operator.Jobs().Info(job, nil)
	require.NoError(t, err)
	made, err := jobs.TemplateOf(now)
	require.NoError(t, err)
	assert.Equal(t, "/srv/sandboxd-v2", made.Command)
	assert.Equal(t, 4096, made.MemoryMB)
	assert.Equal(t, 2, made.Count)
	assert.Equal(t, 3, made.Slots)
	assert.EqualValues(t, 700, made.SlotPids, "what the orchestrator was told is as it was told")
}
