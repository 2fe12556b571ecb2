package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator"
)

func TestNomadServeSettingsAreTheOrchestratorsOwn(t *testing.T) {
	for setting, says := range map[string]string{
		"max-containers":         "NAME=VALUE",
		"env=A=${q}":             "there is no other way to write it",
		"env=A=$${q}":            "there is no other way to write it",
		"--max-containers=8":     "NAME=VALUE",
		"ORCHESTRATOR_SLOTS=8":   "NAME=VALUE",
		"=8":                     "NAME=VALUE",
		"max-contain=8":          "unknown variable ORCHESTRATOR_MAX_CONTAIN",
		"help=true":              "unknown variable",
		"max-containers=many":    "ORCHESTRATOR_MAX_CONTAINERS: want a number",
		"max-containers=1":       "max", // below --count
		"idle-after=0":           "want a duration",
		"nomad-lock-ttl=5s":      "ttl of the lock",
		"slots=9":                "give it by --slots",
		"nomad-image=a:1":        "give it by --image",
		"template=big":           "give it by --job",
		"listen=:1":              "job says it",
		"token-file=/t":          "job says it",
		"config=/etc/berth.yaml": "job says it",
		"nomad-jobs=other":       "job says it",
	} {
		status, out, errs := runMain(t.Context(), "nomad", "render", "orchestrator", "--serve", setting)
		assert.Equal(t, exitUsage, status, setting)
		assert.Contains(t, errs, says, setting)
		assert.Empty(t, out)
	}
	for _, args := range []string{"orchestrator --serve idle-after=1m --serve idle-after=2m", "sandboxd --serve idle-after=1m", "policy --serve idle-after=1m"} {
		status, _, errs := runMain(t.Context(), append([]string{"nomad", "render"}, strings.Fields(args)...)...)
		assert.Equal(t, exitUsage, status, args)
		assert.Contains(t, errs, "--serve", args)
	}
}

// Each variable of the job is a flag of ours, the job's own, or the pool's.
func TestNomadServeRefusesWhatTheJobSaysElsewhere(t *testing.T) {
	_, _, env := orchestratorOf(t, "--driver", "docker", "--runtime", "runsc", "--node-pool", "gpu", "--isolation-require", "uid", "--memory-max", "3000")
	_, _, other := orchestratorOf(t, "--driver", "exec", "--sandboxd", "/s", "--cores", "2")
	for name := range other {
		env[name] = other[name]
	}
	free := map[string]bool{}
	for variable := range env {
		name, ours := strings.CutPrefix(variable, "ORCHESTRATOR_")
		if !ours {
			continue
		}
		if _, err := served([]string{strings.ToLower(strings.ReplaceAll(name, "_", "-")) + "=1"}); err == nil {
			assert.True(t, jobs.OfPool(variable), "%s would be the job's no longer", variable)
			free[variable] = true
		}
	}
	assert.NotContains(t, free, "ORCHESTRATOR_SLOTS")
	assert.Contains(t, free, "ORCHESTRATOR_PIDS", "there is no flag of it")
}

func TestNomadServeSettingsStandInTheJobAndStay(t *testing.T) {
	args := []string{"--serve", "max-containers=8", "--serve", "idle-after=10m", "--serve", "env=A=1,2", "--serve", "env=B=3", "--serve", "memory=512MiB", "--serve", "nomad-priority=70", "--serve", "max-timeout=90"}
	status, out, errs := runMain(t.Context(), append([]string{"nomad", "render", "orchestrator"}, args...)...)
	require.Zero(t, status, errs)
	assert.Regexp(t, `ORCHESTRATOR_MAX_CONTAINERS += "8"`, out)
	_, pool, env := orchestratorOf(t, args...)
	for name, want := range map[string]string{
		"ORCHESTRATOR_MAX_CONTAINERS": "8", "ORCHESTRATOR_IDLE_AFTER": "10m", "ORCHESTRATOR_ENV": "A=1,2\nB=3",
		"ORCHESTRATOR_MEMORY": "536870912", "ORCHESTRATOR_MAX_TIMEOUT": "90s", "ORCHESTRATOR_NOMAD_PRIORITY": "70",
		"ORCHESTRATOR_LISTEN": "0.0.0.0:${NOMAD_PORT_http}", "ORCHESTRATOR_SLOTS": "8",
	} {
		assert.Equal(t, want, env[name], name)
	}
	assert.Contains(t, pool, `"Priority":70`)

	running := rendered(t, append([]string{"orchestrator"}, args...)...)
	registered := deployed(t, running)
	for _, one := range []string{"--slots=30", "--serve=free-slots=2", "--serve=idle-after=", "--count=9"} {
		status, _, errs = runMain(t.Context(), "nomad", "deploy", "orchestrator", one)
		if one == "--count=9" {
			assert.Equal(t, exitUsage, status, "above max-containers: it would not start")
			assert.Contains(t, errs, "orchestrator serve")
			continue
		}
		require.Zero(t, status, errs)
	}
	require.Len(t, registered(), 3)
	slots, free, idle := environmentOf(registered()[0]), environmentOf(registered()[1]), environmentOf(registered()[2])
	assert.Equal(t, "30", slots["ORCHESTRATOR_SLOTS"])
	assert.Equal(t, "2", free["ORCHESTRATOR_FREE_SLOTS"])
	assert.NotContains(t, idle, "ORCHESTRATOR_IDLE_AFTER")
	for _, env := range []object{slots, free, idle} {
		assert.Equal(t, "8", env["ORCHESTRATOR_MAX_CONTAINERS"])
		assert.Equal(t, "A=1,2\nB=3", env["ORCHESTRATOR_ENV"])
		assert.Equal(t, "536870912", env["ORCHESTRATOR_MEMORY"])
	}
	delete(free, "ORCHESTRATOR_FREE_SLOTS")
	assert.Equal(t, environmentOf(running), free, "and nothing else")
}

func TestNomadServeFlagsAreSettings(t *testing.T) {
	var help strings.Builder
	_, err := orchestrator.Parse([]string{"--help"}, nil, &help)
	require.ErrorIs(t, err, orchestrator.ErrHelp)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(nomadJob).flags(flags)
	for name, flag := range settingFlags() {
		assert.Contains(t, help.String(), "--"+name+" ")
		assert.NotNil(t, flags.Lookup(flag), flag)
	}
	for _, name := range settingsOfTheJob() {
		assert.Contains(t, help.String(), "--"+name+" ")
	}
}

// A client that allows less kills what drains, and says so nowhere.
func TestNomadDeploySaysWhatTakesMoreThanClientsAllow(t *testing.T) {
	for drain, said := range map[string]bool{"25s": false, "5m": true} {
		registered := deployed(t)
		status, _, errs := runMain(t.Context(), "nomad", "deploy", "orchestrator", "--serve", "nomad-drain="+drain)
		require.Zero(t, status, errs)
		require.Len(t, registered(), 1)
		assert.Equal(t, said, strings.Contains(errs, "is to have 5m5s: clients kill it after 30s, unless their max_kill_timeout"), errs)
	}
}
