package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// withVolume is a Nomad on which the jobs run, which answers so whoever asks for
// the machines that have a volume.
func withVolume(t *testing.T, answer any, jobs ...object) (registered func() []object) {
	t.Helper()
	return deployedWith(t, map[string]any{"GET nodes": answer}, jobs...)
}

func machines(names ...string) []object {
	all := []object{}
	for _, name := range names {
		all = append(all, object{"Name": name, "Datacenter": "dc1", "NodePool": "default", "Status": "ready"})
	}
	return all
}

func TestNomadDeployKeepsConfigurationsOnTheVolumeOfOneMachine(t *testing.T) {
	for name, c := range map[string]struct {
		machines any
		says     []string
	}{
		"none has it":   {machines(), []string{"no machine", "host volume berth-configs", "nomad volume create"}},
		"two have it":   {machines("m1", "m2"), []string{"m1, m2", "have a host volume berth-configs each", "--node-pool"}},
		"one has it":    {machines("m1"), nil},
		"nobody is let": {http.StatusForbidden, nil},
	} {
		registered := withVolume(t, c.machines, rendered(t, "orchestrator"))
		status, _, errs := runMain(t.Context(), "nomad", "deploy", "orchestrator", "--config-volume", "berth-configs")
		planned, _, words := runMain(t.Context(), "nomad", "plan", "orchestrator", "--config-volume", "berth-configs")
		assert.Equal(t, exitChanges, planned, name)
		for _, want := range c.says {
			assert.Contains(t, errs, want, name)
			assert.Contains(t, words, want, name)
		}
		if c.says == nil {
			require.Zero(t, status, "%s: %s", name, errs)
			assert.NotContains(t, words, "would be refused", name)
			assert.Equal(t, c.machines == http.StatusForbidden, strings.Contains(errs, "which machines have the volume berth-configs cannot be told"), name)
			require.Len(t, registered(), 1, name)
			continue
		}
		assert.Equal(t, exitFailed, status, name)
		assert.Contains(t, words, "a deploy would be refused: ", name)
		assert.Empty(t, registered(), name)
		status, _, errs = runMain(t.Context(), "nomad", "deploy", "orchestrator", "--config-volume", "berth-configs", "--force")
		require.Zero(t, status, errs)
		assert.Len(t, registered(), 1, name)
	}
}

func TestNomadDeployLeavesNoConfigurationsBehindUnsaid(t *testing.T) {
	running := rendered(t, "orchestrator", "--config-volume", "berth-configs", "--driver", "exec")
	registered := withVolume(t, machines("m1"), running)
	status, _, errs := runMain(t.Context(), "nomad", "deploy", "orchestrator", "--slots", "9")
	require.Zero(t, status, errs)
	require.Len(t, registered(), 1)
	group := registered()[0]["TaskGroups"].([]any)[0].(object)
	assert.Equal(t, "berth-configs", group["Volumes"].(object)["configs"].(object)["Source"], "it stays")
	assert.Equal(t, environmentOf(running)["ORCHESTRATOR_CONFIG_DB"], environmentOf(registered()[0])["ORCHESTRATOR_CONFIG_DB"])

	for _, other := range []string{"", "elsewhere"} {
		status, _, errs = runMain(t.Context(), "nomad", "deploy", "orchestrator", "--config-volume", other)
		assert.Equal(t, exitFailed, status, other)
		assert.Contains(t, errs, "volume berth-configs, and would be left there")
	}
	status, _, errs = runMain(t.Context(), "nomad", "deploy", "orchestrator", "--config-volume", "", "--force")
	require.Zero(t, status, errs)
	require.Len(t, registered(), 2)
	assert.NotContains(t, environmentOf(registered()[1]), "ORCHESTRATOR_CONFIG_DB")
	assert.Nil(t, registered()[1]["TaskGroups"].([]any)[0].(object)["Volumes"])
}

func TestNomadRenderSaysWhereConfigurationsAre(t *testing.T) {
	for _, c := range []struct {
		says string
		args []string
	}{
		{"--config-volume: the driver raw_exec mounts no volume", []string{"--config-volume", "v", "--driver", "raw_exec"}},
		{"--config-volume: the volume has the file", []string{"--config-volume", "v", "--serve", "config-db=/x/config.db"}},
		{"--config-volume: volume", []string{"--config-volume", "a b"}},
		{"--config-key-file, which seals", []string{"--serve", "config-plaintext=true"}},
		{"--config-key-file, which seals", []string{"--serve", "config-plaintext=true", "--serve", "config-key-file="}},
		{"the orchestrator's job says it", []string{"--serve", "config-key-file=/x"}},
	} {
		status, _, errs := runMain(t.Context(), append([]string{"nomad", "render", "orchestrator"}, c.args...)...)
		assert.Equal(t, exitUsage, status, "%v", c.args)
		assert.Contains(t, errs, c.says, "%v", c.args)
	}
	status, out, errs := runMain(t.Context(), "nomad", "render", "orchestrator", "--driver", "raw_exec", "--config-volume", "v", "--serve", "config-db=/x/config.db")
	require.Zero(t, status, errs)
	assert.Contains(t, out, `source = "v"`)
	assert.Regexp(t, `ORCHESTRATOR_CONFIG_DB += "/x/config.db"`, out)
	assert.NotContains(t, out, "volume_mount")
}
