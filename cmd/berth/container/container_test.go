package container

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/cmd/berth/rollout/rollouttest"
)

func TestMain(m *testing.M) { rollouttest.Main(m) }

func TestAContainerRunsWithATokenThatOnlyWeCanRead(t *testing.T) {
	c, err := Start(t.Context(), Config{Binary: rollouttest.Binary(t), Slots: 2})
	require.NoError(t, err)
	defer func() { assert.NoError(t, c.Close()) }()
	assert.Positive(t, c.PID)
	assert.Positive(t, c.Startup)
	group, err := syscall.Getpgid(c.PID)
	require.NoError(t, err)
	assert.Equal(t, c.PID, group, "an interrupt from the terminal is ours alone")

	token := filepath.Join(c.dir, "token")
	stat, err := os.Stat(token)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), stat.Mode().Perm())
	text, err := os.ReadFile(token)
	require.NoError(t, err)
	assert.Equal(t, c.Token, string(text))
	assert.NotContains(t, strings.Join(c.cmd.Args, " "), c.Token, "arguments are public")

	resp, err := http.Get(c.URL + "/slots")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, http.StatusUnauthorized, resp.StatusCode)
}

func TestAContainerThatEndsBadlyIsAnErrorWithTheEndOfItsLog(t *testing.T) {
	c, err := Start(t.Context(), Config{Binary: rollouttest.Binary(t), Slots: 1, Args: []string{"--status", "3"}})
	require.NoError(t, err)
	err = c.Close()
	require.ErrorContains(t, err, "container ended: exit status 3")
	require.ErrorContains(t, err, "told to end with 3")
	assert.NotContains(t, err.Error(), "first line", "only the end of a long log is shown")
	assert.NoDirExists(t, c.dir)
}

func TestAContainerThatDiesMeanwhileIsAnError(t *testing.T) {
	c, err := Start(t.Context(), Config{Binary: rollouttest.Binary(t), Slots: 1})
	require.NoError(t, err)
	require.NoError(t, c.cmd.Process.Kill())
	<-c.exited
	require.ErrorContains(t, c.Close(), "signal: killed")
	assert.NoDirExists(t, c.dir)
}

func TestAContainerThatIsDumpedSaysOnItsLogWhatItWasDoing(t *testing.T) {
	c, err := Start(t.Context(), Config{Binary: rollouttest.Binary(t), Slots: 1})
	require.NoError(t, err)
	require.NoError(t, c.Dump())
	text, err := os.ReadFile(c.log())
	require.NoError(t, err)
	assert.Contains(t, string(text), "rollouttest.serve(")
	require.NoError(t, c.Close(), "it was told to")
	assert.NoDirExists(t, c.dir)

	c, err = Start(t.Context(), Config{Binary: rollouttest.Binary(t), Slots: 1})
	require.NoError(t, err)
	require.NoError(t, c.cmd.Process.Kill())
	<-c.exited
	require.ErrorContains(t, c.Dump(), "it did not say what it was doing")
	require.NoError(t, c.Close())
}

func TestAContainerThatDoesNotStartIsAnErrorAndLeavesNothing(t *testing.T) {
	binary := rollouttest.Binary(t)
	_, err := Start(t.Context(), Config{Binary: binary, Slots: 1, Args: []string{"--refuse"}})
	require.ErrorContains(t, err, "ended before it was ready")
	require.ErrorContains(t, err, "wanted ns, got landlock")
	_, err = Start(t.Context(), Config{Binary: "/does/not/exist", Slots: 1})
	require.ErrorContains(t, err, "start container")
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestTwoContainersRunSideBySide(t *testing.T) {
	binary := rollouttest.Binary(t)
	first, err := Start(t.Context(), Config{Binary: binary, Slots: 1})
	require.NoError(t, err)
	second, err := Start(t.Context(), Config{Binary: binary, Slots: 1})
	require.NoError(t, err)
	assert.NotEqual(t, first.URL, second.URL)
	assert.NotEqual(t, first.Token, second.Token)
	assert.NoError(t, first.Close())
	assert.NoError(t, second.Close())
}
