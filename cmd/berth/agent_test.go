package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAgentRunsWithATokenThatOnlyWeCanRead(t *testing.T) {
	a, err := startAgent(t.Context(), standIn(t), 2, nil)
	require.NoError(t, err)
	defer func() { assert.NoError(t, a.Close()) }()

	token := filepath.Join(a.dir, "token")
	stat, err := os.Stat(token)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), stat.Mode().Perm())
	text, err := os.ReadFile(token)
	require.NoError(t, err)
	assert.Equal(t, a.token, string(text))
	assert.NotContains(t, strings.Join(a.cmd.Args, " "), a.token, "arguments are public")

	resp, err := http.Get(a.url + "/slots")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, http.StatusUnauthorized, resp.StatusCode)
}

func TestAgentThatEndsBadlyIsAnErrorWithTheEndOfItsLog(t *testing.T) {
	a, err := startAgent(t.Context(), standIn(t), 1, []string{"--status", "3"})
	require.NoError(t, err)
	err = a.Close()
	require.ErrorContains(t, err, "agent ended: exit status 3")
	require.ErrorContains(t, err, "told to end with 3")
	assert.NotContains(t, err.Error(), "first line", "only the end of a long log is shown")
	assert.NoDirExists(t, a.dir)
}

func TestAgentThatDiesMeanwhileIsAnError(t *testing.T) {
	a, err := startAgent(t.Context(), standIn(t), 1, nil)
	require.NoError(t, err)
	require.NoError(t, a.cmd.Process.Kill())
	<-a.exited
	require.ErrorContains(t, a.Close(), "signal: killed")
	assert.NoDirExists(t, a.dir)
}

func TestTwoAgentsRunSideBySide(t *testing.T) {
	binary := standIn(t)
	first, err := startAgent(t.Context(), binary, 1, nil)
	require.NoError(t, err)
	second, err := startAgent(t.Context(), binary, 1, nil)
	require.NoError(t, err)
	assert.NotEqual(t, first.url, second.url)
	assert.NotEqual(t, first.token, second.token)
	assert.NoError(t, first.Close())
	assert.NoError(t, second.Close())
}
