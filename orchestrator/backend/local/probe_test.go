package local_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
	"berth/orchestrator/backend/local"
	"berth/slots/sandbox/sandboxtest"
)

// counting is a config whose program notes what it is called for. probes
// counts the probes.
func counting(t *testing.T) (c local.Config, probes func() int) {
	t.Helper()
	c = config(t)
	noted := filepath.Join(t.TempDir(), "calls")
	c.Binary = script(t, "echo $1 >> "+noted+"; exec "+sandboxtest.Agent(t)+` "$@" --isolation-attempt basic`)
	return c, func() int {
		text, err := os.ReadFile(noted)
		if !os.IsNotExist(err) {
			require.NoError(t, err)
		}
		return strings.Count(string(text), "probe\n")
	}
}

// expected is what containers like spec are started of.
func expected(isolation string) backend.Spec {
	s := spec("")
	s.Isolation = isolation
	return s
}

func TestWhatContainersAreGoingToRequireIsProbedOnce(t *testing.T) {
	c, probes := counting(t)
	c.Expect = []backend.Spec{expected("basic"), expected("none")}
	open(t, c)
	assert.Equal(t, 1, probes(), "of nothing there is nothing to find out")
	entries, err := os.ReadDir(c.Dir)
	require.NoError(t, err)
	assert.Empty(t, entries)
}

func TestWhatAContainerProvesIsNotProbed(t *testing.T) {
	c, probes := counting(t)
	c.Keep = true
	c.Expect = []backend.Spec{expected("basic")}
	first := open(t, c)
	s := spec("a")
	s.Isolation = "basic"
	start(t, first, s)
	require.NoError(t, first.Close())
	assert.Equal(t, 1, probes())

	second := open(t, c)
	assert.Len(t, list(t, second), 1)
	require.NoError(t, second.Close())
	assert.Equal(t, 1, probes(), "it runs, and says what it has")

	c.Expect = []backend.Spec{expected("ns")}
	_, err := local.Open(t.Context(), c)
	require.ErrorContains(t, err, "no container of t can start: isolation ns is required, this machine gives basic")
	assert.Equal(t, 2, probes(), "it has less")

	c.Keep, c.Expect = false, nil
	open(t, c) // and its end is that of the container
}

func TestAProbeThatFailsIsLeftToTheContainers(t *testing.T) {
	c := config(t)
	c.Binary = script(t, `echo "out of paper" >&2; exit 1`)
	c.Expect = []backend.Spec{expected("")}
	var log strings.Builder
	c.Logger = hclog.New(&hclog.LoggerOptions{Output: &log})
	open(t, c)
	assert.Contains(t, log.String(), "cannot probe isolation")
	assert.Contains(t, log.String(), "exit status 1")
}

func TestAnOpenThatIsInterruptedDoesNotWaitForTheProbe(t *testing.T) {
	c := config(t)
	started := filepath.Join(t.TempDir(), "started")
	c.Binary = script(t, "echo > "+started+"; exec sleep 1000")
	c.Expect = []backend.Spec{expected("landlock")}
	ctx, cancel := context.WithCancel(soon(t))
	ended := make(chan error, 1)
	go func() {
		_, err := local.Open(ctx, c)
		ended <- err
	}()
	require.Eventually(t, func() bool {
		_, err := os.Stat(started)
		return err == nil
	}, patience, 10*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}
