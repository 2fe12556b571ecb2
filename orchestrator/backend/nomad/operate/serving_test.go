package operate_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
)

func TestServingGivesBackWhatTheOrchestratorsJobWasMadeOf(t *testing.T) {
	d := newDouble(t)
	o := d.operator()
	_, found, err := o.Serving(t.Context())
	require.NoError(t, err)
	assert.False(t, found)

	of := jobs.Template{Job: "berth-t", Namespace: "n", Driver: jobs.Exec, Command: "/x/sandboxd", Count: 7, Slots: 30, Isolation: "ns"}
	file, err := jobs.OrchestratorFile(of)
	require.NoError(t, err)
	require.NoError(t, file.KeepConfigs("berth-configs"))
	job := file.Job
	job.TaskGroups[0].Count = new(2)
	job.TaskGroups[0].Tasks[0].Env["ORCHESTRATOR_MAX_CONTAINERS"] = "9"
	text, err := json.Marshal(job) // as it comes over the wire
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &d.job))
	got, found, err := o.Serving(t.Context())
	require.NoError(t, err)
	require.True(t, found)
	want, err := of.Complete()
	require.NoError(t, err)
	assert.Equal(t, want, got.Template)
	assert.Equal(t, "/usr/local/bin/orchestrator", got.Runs)
	assert.Equal(t, 2, got.Count)
	assert.Equal(t, "9", got.More["ORCHESTRATOR_MAX_CONTAINERS"])
	assert.NotContains(t, got.More, "ORCHESTRATOR_SLOTS")
	assert.Equal(t, "berth-configs", got.Volume)
	assert.NotContains(t, got.More, "ORCHESTRATOR_CONFIG_DB", "the volume says it")

	d.job.TaskGroups[0].Tasks[0].Env["ORCHESTRATOR_SLOTS"] = "many"
	_, _, err = o.Serving(t.Context())
	require.ErrorContains(t, err, "ORCHESTRATOR_SLOTS")
	d.job.TaskGroups[0].Name = new("web")
	_, _, err = o.Serving(t.Context())
	require.ErrorContains(t, err, "not an orchestrator's")
	d.job.Stop, d.job.JobModifyIndex = new(true), new(uint64(6))
	got, found, err = o.Serving(t.Context())
	require.NoError(t, err)
	assert.False(t, found, "one that was stopped is made anew")
	assert.EqualValues(t, 6, got.ModifyIndex, "in its place")
}
