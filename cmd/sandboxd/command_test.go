package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

func TestEveryWayToCallIt(t *testing.T) {
	for _, c := range []struct {
		args           []string
		environ        []string
		status         int
		stdout, stderr string
	}{
		{args: []string{"version"}, status: 0, stdout: version},
		{args: []string{"help"}, status: 0, stdout: "sandboxd serve [flags]"},
		{args: []string{"-h"}, status: 0, stdout: "sandboxd probe"},
		{args: []string{"--help"}, status: 0, stdout: "Without a command, flags are those of serve."},
		{args: []string{"serve", "--help"}, status: 0, stdout: "Exit statuses:"},
		{args: []string{"probe", "--help"}, status: 0, stdout: "--isolation-attempt"},
		{args: []string{"dance"}, status: 64, stderr: `unknown command "dance"`},
		{args: []string{"serve", "--nothing"}, status: 64, stderr: "sandboxd serve: usage: "},
		{args: []string{"--slots", "none"}, status: 64, stderr: "--slots: want a number"},
		{args: []string{"serve", "dance"}, status: 64, stderr: `unexpected argument "dance"`},
		{args: []string{"probe", "--slots", "-1"}, status: 64, stderr: "sandboxd probe: usage: "},
		{args: nil, environ: []string{"SANDBOXD_NOTHING=x"}, status: 64, stderr: "unknown variable SANDBOXD_NOTHING"},
		{args: []string{"serve", "--listen", "0.0.0.0:0"}, status: 64, stderr: "--insecure-no-auth"},
	} {
		var stdout, stderr bytes.Buffer
		status := Main(t.Context(), c.args, c.environ, &stdout, &stderr)
		assert.Equal(t, c.status, status, "%v: %s", c.args, &stderr)
		assert.Contains(t, stdout.String(), c.stdout, "%v", c.args)
		assert.Contains(t, stderr.String(), c.stderr, "%v", c.args)
		if status == 0 {
			assert.Empty(t, stderr.String())
		} else {
			assert.Empty(t, stdout.String(), "what is wrong goes to the standard error")
		}
	}
}

func TestProbeSaysWhatTheMachineGives(t *testing.T) {
	agent := sandboxtest.Agent(t)
	out, err := exec.CommandContext(t.Context(), agent, "probe", "--json", "--isolation-attempt", "none").Output()
	require.NoError(t, err)
	var report struct {
		Isolation slots.Isolation `json:"isolation"`
		Required  string          `json:"required"`
		Refusal   string          `json:"refusal"`
	}
	require.NoError(t, json.Unmarshal(out, &report), "%s", out)
	assert.Equal(t, slots.LevelNone, report.Isolation.Level)
	assert.True(t, report.Isolation.Unsafe)
	assert.Equal(t, "landlock", report.Required)
	assert.Contains(t, report.Refusal, "axis fs: wanted landlock, got shared")
	assert.Contains(t, report.Refusal, "mend: ")
	out, err = exec.CommandContext(t.Context(), agent, "probe", "--isolation-attempt", "none").Output()
	require.NoError(t, err, "it answers what was asked")
	assert.Contains(t, string(out), "serve would refuse")
	out, err = exec.CommandContext(t.Context(), agent, "probe", "--isolation-require", "none").Output()
	require.NoError(t, err)
	assert.NotContains(t, string(out), "serve would refuse")
	for _, word := range []string{"level", "mechanism", "kernel", "axis", "attack"} {
		assert.Contains(t, string(out), word)
	}
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "berth-probe-*"))
	require.NoError(t, err)
	for _, dir := range left {
		entries, err := os.ReadDir(dir)
		assert.True(t, err != nil || len(entries) > 0, "%s was left behind", dir)
	}
}

// Service managers start programs with a strict umask.
func TestAUmaskCostsNoIsolation(t *testing.T) {
	if os.Geteuid() != 0 {
		need.Facility(t, "root", errors.New("slots have uids of their own where the agent may give them"))
	}
	reached := func(umask string) (got slots.Isolation) {
		probe := exec.CommandContext(t.Context(), "/bin/sh", "-c", `umask `+umask+` && exec "$@"`, "sh",
			sandboxtest.Agent(t), "probe", "--json", "--isolation-attempt", "uid+landlock", "--data-dir", sandboxtest.DataDir(t))
		out, err := probe.Output()
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(out, &struct {
			Isolation *slots.Isolation `json:"isolation"`
		}{&got}), "%s", out)
		return got
	}
	assert.Equal(t, reached("022").Level, reached("077").Level)
}

func TestAServerThatCannotStartTellsItOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	out, err := exec.CommandContext(t.Context(), sandboxtest.Agent(t), "serve", "--listen", "127.0.0.1:0", "--data-dir", file, "--log-json").CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, 1, exit.ExitCode())
	var line struct {
		Message string `json:"@message"`
		Error   string `json:"error"`
	}
	require.NoError(t, json.Unmarshal(bytes.TrimSpace(out), &line), "one line of JSON: %s", out)
	assert.Equal(t, "ended", line.Message)
	assert.Contains(t, line.Error, "data directory")
}
