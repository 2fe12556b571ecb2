package orchestrator

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
)

func parse(args []string, environ ...string) (Config, error) {
	return Parse(args, environ, &bytes.Buffer{})
}

// file writes a file of settings.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "settings")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestParseGivesTheDocumentedDefaults(t *testing.T) {
	c, err := parse(nil, "OTHER=x")
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1:9001", c.Listen)
	assert.Equal(t, "local", c.Backend)
	assert.True(t, filepath.IsAbs(c.DataDir))
	assert.Equal(t, []time.Duration{30 * time.Minute, 5 * time.Minute, 30 * time.Second}, []time.Duration{c.TrajectoryIdle, c.TrajectoryWait, c.DrainTimeout})
	assert.Equal(t, int64(64<<20), c.MaxBody)
	assert.Equal(t, 8192, c.MaxConns)
	require.Len(t, c.Templates, 1)
	m := c.Templates[0]
	assert.Equal(t, "default", m.Name)
	assert.Equal(t, []int{2, 2, 8, 0}, []int{m.MinContainers, m.MaxContainers, m.Slots, m.FreeMargin})
	assert.Equal(t, []time.Duration{5 * time.Minute, 5 * time.Minute, time.Hour}, []time.Duration{m.TTL, m.IdleAfter, m.MaxTimeout})
	assert.True(t, m.Network)
	assert.False(t, c.InsecureNoAuth || c.LogJSON || c.Keep)
}

func TestFlagsWinOverVariablesAndThoseOverTheFile(t *testing.T) {
	path := file(t, "slots: 3\ncontainers: 4\nmemory: 2G\n")
	for _, c := range []struct {
		args    []string
		environ []string
		slots   int
	}{
		{[]string{"--config", path}, nil, 3},
		{nil, []string{"ORCHESTRATOR_CONFIG=" + path}, 3},
		{[]string{"--config", path}, []string{"ORCHESTRATOR_SLOTS=5", "ORCHESTRATOR_CONFIG=/nowhere"}, 5},
		{[]string{"--config", path, "--slots", "7"}, []string{"ORCHESTRATOR_SLOTS=5"}, 7},
		{[]string{"-slots=7", "--config=" + path}, nil, 7},
	} {
		got, err := parse(c.args, c.environ...)
		require.NoError(t, err)
		assert.Equal(t, c.slots, got.Templates[0].Slots, "%v", c)
		assert.Equal(t, 4, got.Templates[0].MinContainers)
		assert.Equal(t, int64(2<<30), got.Templates[0].Limits.MemoryBytes)
	}
}

func TestAFileMayBeYAMLOrJSONAndHoldMorePools(t *testing.T) {
	yaml := `
# comment
data-dir: /d
keep: true
network: off
max-timeout: 90
cpus: 0.5
sandboxd-arg: [--first-uid, "70000"]
env:
  A: "1"
  B: two
templates:
  - template: big
    slots: 16
    containers: 0
    max-containers: 3
    env: [C=3]
`
	json := "{\n\t" + `"data-dir": "/d", "keep": true, "network": "off", "max-timeout": 90, "cpus": 0.5,
	"sandboxd-arg": ["--first-uid", "70000"], "env": {"A": "1", "B": "two"},
	"templates": [{"template": "big", "slots": 16, "containers": 0, "max-containers": 3, "env": ["C=3"]}]}`
	var all []Config
	for _, text := range []string{yaml, json} {
		c, err := parse([]string{"--config", file(t, text)})
		require.NoError(t, err)
		all = append(all, c)
	}
	assert.Equal(t, all[0], all[1])
	c := all[0]
	assert.Equal(t, "/d", c.DataDir)
	assert.True(t, c.Keep)
	assert.Equal(t, []string{"--first-uid", "70000"}, c.SandboxdArgs)
	require.Len(t, c.Templates, 2)
	assert.Equal(t, map[string]string{"A": "1", "B": "two"}, c.Templates[0].Env)
	assert.False(t, c.Templates[0].Network)
	assert.Equal(t, 90*time.Second, c.Templates[0].MaxTimeout)
	big := c.Templates[1]
	assert.Equal(t, "big", big.Name)
	assert.Equal(t, []int{16, 0, 3}, []int{big.Slots, big.MinContainers, big.MaxContainers})
	assert.Equal(t, map[string]string{"C": "3"}, big.Env)
	assert.True(t, big.Network, "each has the defaults of its own")
	for _, empty := range []string{"", "\n# nothing\n", "{}"} {
		_, err := parse([]string{"--config", file(t, empty)})
		assert.NoError(t, err)
	}
}

func TestParseRefusesWhatItDoesNotUnderstand(t *testing.T) {
	for _, c := range []struct {
		args    []string
		environ []string
		file    string
		text    string
	}{
		{args: []string{"--nothing"}, text: "nothing"},
		{args: []string{"more"}, text: `unexpected argument "more"`},
		{args: []string{"--slots", "0"}, text: "want a number from 1 to 2000"},
		{args: []string{"--memory", "1.5G"}, text: "want a size"},
		{args: []string{"--max-timeout", "-1s"}, text: "want a duration above 0"},
		{args: []string{"--trajectory-idle", "48h"}, text: "trajectory-idle: want 1s to 24h"},
		{args: []string{"--trajectory-idle", "1ms"}, text: "trajectory-idle: want 1s to 24h"},
		{args: []string{"--trajectory-wait", "2h"}, text: "trajectory-wait: want at most 1h"},
		{args: []string{"--lease-ttl", "48h"}, text: "ttl: want 1s to 24h"},
		{file: "templates: [{template: x, lease-ttl: 48h}]", text: "ttl: want 1s to 24h"},
		{args: []string{"--cpus", "NaN"}, text: "want a number of 0 or more"},
		{args: []string{"--network", "yes"}, text: "want on or off"},
		{args: []string{"--env", "A"}, text: "want NAME=value"},
		{args: []string{"--backend", "cloud"}, text: "want one of local"},
		{args: []string{"--containers", "3", "--max-containers", "2"}, text: "min 3 is above max 2"},
		{args: []string{"--listen", "0.0.0.0:1"}, text: "--insecure-no-auth"},
		{args: []string{"--listen", "x"}, text: "listen"},
		{args: []string{"--operator-token-file", "/x"}, text: "needs --token-file"},
		{args: []string{"--metrics-token-file", "/x"}, text: "needs --token-file"},
		{args: []string{"--config", "/nowhere/at/all"}, text: "no such file"},
		{environ: []string{"ORCHESTRATOR_NOTHING=x"}, text: "unknown variable ORCHESTRATOR_NOTHING"},
		{environ: []string{"ORCHESTRATOR_SLOTS=x"}, text: "ORCHESTRATOR_SLOTS: "},
		{file: "nothing: 1", text: `line 1: unknown setting "nothing"`},
		{file: "config: /x", text: `unknown setting "config"`},
		{file: "slots: 1\nslots: 2", text: "line 2: slots is there twice"},
		{file: `{"slots": 1, "slots": 2}`, text: "slots is there twice"},
		{file: "slots: [1]", text: "slots has no usable value"},
		{file: "slots: {a: 1}", text: "slots has no usable value"},
		{file: "slots:", text: "slots has no usable value"},
		{file: "env: {A: {}}", text: "A: want a text"},
		{file: "env: [[x]]", text: "want a list of texts"},
		{file: "- slots", text: "want names with values"},
		{file: "slots: \"", text: "yaml: "},
		{file: "templates: {}", text: "templates must be a list"},
		{file: "templates: [{listen: x}]", text: `unknown setting "listen"`},
		{file: "templates: [{slots: 1}]", text: "name: want 1 to"},
		{file: "templates: [{template: default}]", text: `template "default" is there twice`},
		{file: "# " + strings.Repeat("x", maxFile), text: "larger than"},
	} {
		args := c.args
		if c.file != "" {
			args = append(args, "--config", file(t, c.file))
		}
		_, err := parse(args, c.environ...)
		require.ErrorIs(t, err, ErrUsage, "%v %.50s", c.args, c.file)
		assert.ErrorContains(t, err, c.text)
	}
}

func TestListsOfAVariableAreLines(t *testing.T) {
	c, err := parse([]string{"--env", "C=4", "--sandboxd-arg", "--z"}, "ORCHESTRATOR_ENV=A=1\nB=2 3\nC=3\n", "ORCHESTRATOR_SANDBOXD_ARG=--x\n--y")
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"A": "1", "B": "2 3", "C": "4"}, c.Templates[0].Env)
	assert.Equal(t, []string{"--x", "--y", "--z"}, c.SandboxdArgs)
}

func TestHelpListsEverySetting(t *testing.T) {
	var out bytes.Buffer
	_, err := Parse([]string{"--help"}, nil, &out)
	require.ErrorIs(t, err, ErrHelp)
	for _, text := range []string{"--listen", "(default 127.0.0.1:9001)", "--trajectory-idle", "(default 30m0s)", "(default 64MiB)", "(default on)", "templates:", "send all calls of a trajectory to\nthe same one", "Exit statuses:"} {
		assert.Contains(t, out.String(), text)
	}
}

func TestADescribedConfigHoldsNoSecret(t *testing.T) {
	c, err := parse([]string{
		"--token-file", "/where/secret1", "--operator-token-file", "/where/secret2", "--metrics-token-file", "/where/secret6", "--env", "KEY=secret3",
		"--sandboxd-arg", "--env=X=secret4", "--sandboxd-arg", "secret5",
	})
	require.NoError(t, err)
	for _, text := range []string{c.String(), fmt.Sprintf("%+v", c)} {
		assert.NotContains(t, text, "secret")
		assert.Contains(t, text, "KEY:(redacted)")
		assert.Contains(t, text, "127.0.0.1:9001")
	}
	assert.Equal(t, "secret3", c.Templates[0].Env["KEY"], "only what is shown")
}

func TestATokenOthersMayReadIsRefused(t *testing.T) {
	token, err := api.ReadToken("")
	require.NoError(t, err)
	assert.Empty(t, token)
	path := file(t, " token\n")
	token, err = api.ReadToken(path)
	require.NoError(t, err)
	assert.Equal(t, "token", token)
	require.NoError(t, os.Chmod(path, 0o644)) //nolint:gosec // that is the point
	_, err = api.ReadToken(path)
	require.ErrorContains(t, err, "chmod 600")
	_, err = api.ReadToken(file(t, " \n"))
	require.ErrorContains(t, err, "is empty")
	_, err = api.ReadToken(path + "-")
	assert.ErrorIs(t, err, os.ErrNotExist)
}
