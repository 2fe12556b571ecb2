package main

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator"
	"berth/orchestrator/config"
	"berth/orchestrator/poolapi"
)

func TestEveryWayToCallIt(t *testing.T) {
	for _, c := range []struct {
		args           []string
		environ        []string
		status         int
		stdout, stderr string
	}{
		{args: []string{"version"}, status: 0, stdout: version},
		{args: []string{"help"}, status: 0, stdout: "orchestrator serve [flags]"},
		{args: []string{"-h"}, status: 0, stdout: "Without a command, flags are those of serve."},
		{args: []string{"serve", "--help"}, status: 0, stdout: "Exit statuses:"},
		{args: []string{"dance"}, status: 64, stderr: `unknown command "dance"`},
		{args: []string{"serve", "--nothing"}, status: 64, stderr: "orchestrator serve: usage: "},
		{args: []string{"--slots", "none"}, status: 64, stderr: "want a number"},
		{args: nil, environ: []string{"ORCHESTRATOR_NOTHING=x"}, status: 64, stderr: "unknown variable ORCHESTRATOR_NOTHING"},
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

func TestAServerThatCannotStartTellsIt(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	nowhere := filepath.Join(t.TempDir(), "nothing")
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for _, c := range []struct {
		args   []string
		status int
	}{
		{[]string{"--listen", ln.Addr().String(), "--data-dir", t.TempDir()}, exitFailed},
		{[]string{"--listen", "127.0.0.1:0", "--data-dir", t.TempDir(), "--sandboxd", nowhere}, exitConfig},
		{[]string{"--listen", "127.0.0.1:0", "--data-dir", t.TempDir(), "--token-file", nowhere}, exitConfig},
		{[]string{"--listen", "127.0.0.1:0", "--data-dir", t.TempDir(), "--token-file", empty}, exitConfig},
		{[]string{"--listen", "127.0.0.1:0", "--data-dir", empty, "--sandboxd", "/bin/true"}, exitConfig},
	} {
		var stdout, stderr bytes.Buffer
		assert.Equal(t, c.status, Main(t.Context(), c.args, nil, &stdout, &stderr), "%v: %s", c.args, &stderr)
		assert.Contains(t, stderr.String(), "ended: error=")
	}
}

// Who would not find what organizations have set does not serve.
func TestAServerWithoutItsSettingsDoesNotStart(t *testing.T) {
	dir := t.TempDir()
	file, keys := filepath.Join(dir, "config.db"), filepath.Join(dir, "keys")
	write := func(key string) {
		require.NoError(t, os.WriteFile(keys, []byte(key), 0o600))
	}
	right := orchestrator.NewKey()
	write(right)
	opened, err := config.ReadKeys(keys)
	require.NoError(t, err)
	s, err := config.Open(t.Context(), config.Config{Path: file, Keys: opened})
	require.NoError(t, err)
	c, err := s.Default(t.Context(), "acme", "local")
	require.NoError(t, err)
	_, err = s.PutVariable(t.Context(), "acme", c.ID, poolapi.EnvironmentVariableRequest{Key: "K", Value: "v"})
	require.NoError(t, err)
	require.NoError(t, s.Close())

	gone := filepath.Join(dir, "not mounted", "config.db")
	for _, c := range []struct{ name, file, key, words string }{
		{"another key", file, orchestrator.NewKey(), "sealed with another key"},
		{"no key", file, "", "sealed with another key"},
		{"no directory", gone, right, "no such file or directory"},
	} {
		write(c.key)
		var stdout, stderr bytes.Buffer
		args := []string{"--listen", "127.0.0.1:0", "--data-dir", t.TempDir(), "--config-db", c.file, "--config-key-file", keys}
		assert.Equal(t, exitConfig, Main(t.Context(), args, nil, &stdout, &stderr), "%s: %s", c.name, &stderr)
		assert.Contains(t, stderr.String(), c.words, c.name)
		assert.Contains(t, stderr.String(), c.file, c.name)
	}
	assert.NoDirExists(t, filepath.Dir(gone), "nothing was made in its place")
}
