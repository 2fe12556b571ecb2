package main

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
)

func TestNomadRenderPrintsTheFilesOfTheProject(t *testing.T) {
	for _, name := range []string{"sandboxd", "orchestrator", "prepull"} {
		status, out, errs := runMain(t.Context(), "nomad", "render", name)
		require.Zero(t, status, errs)
		file, err := os.ReadFile("../../jobs/" + name + ".nomad.hcl")
		require.NoError(t, err)
		assert.Equal(t, string(file), out)
	}
	status, out, errs := runMain(t.Context(), "nomad", "render", "policy")
	require.Zero(t, status, errs)
	assert.Equal(t, jobs.Policy, out)
}

func TestNomadRenderTakesItsFlagsAndPrintsJSON(t *testing.T) {
	status, out, errs := runMain(t.Context(), "nomad", "render", "sandboxd", "--json", "--driver", "raw_exec", "--job", "berth-big",
		"--slots", "30", "--sandboxd", "/opt/sandboxd", "--cores", "4", "--count", "7", "--datacenter", "a,b")
	require.Zero(t, status, errs)
	var job struct {
		Job struct {
			ID          string
			Datacenters []string
			TaskGroups  []struct {
				Count int
				Tasks []struct {
					Driver    string
					Config    map[string]any
					Env       map[string]string
					Resources struct{ Cores int }
				}
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &job))
	assert.Equal(t, "berth-big", job.Job.ID)
	assert.Equal(t, []string{"a", "b"}, job.Job.Datacenters)
	group := job.Job.TaskGroups[0]
	assert.Equal(t, 7, group.Count)
	assert.Equal(t, "raw_exec", group.Tasks[0].Driver)
	assert.Equal(t, "/opt/sandboxd", group.Tasks[0].Config["command"])
	assert.Equal(t, "30", group.Tasks[0].Env["SANDBOXD_SLOTS"])
	assert.Equal(t, 4, group.Tasks[0].Resources.Cores)
}

func TestNomadRenderRefusesWhatMakesNoJob(t *testing.T) {
	for _, args := range [][]string{
		{"nomad"},
		{"nomad", "render"},
		{"nomad", "render", "nginx"},
		{"nomad", "render", "sandboxd", "--driver", "qemu"},
		{"nomad", "render", "sandboxd", "--job", "a/b"},
		{"nomad", "render", "orchestrator", "--slots", "-1"},
	} {
		status, out, errs := runMain(t.Context(), args...)
		assert.Equal(t, exitUsage, status, "%v", args)
		assert.Empty(t, out)
		assert.NotEmpty(t, errs)
	}
	status, _, errs := runMain(t.Context(), "nomad", "render", "orchestrator", "--driver", "raw_exec")
	assert.Zero(t, status, errs)
}
