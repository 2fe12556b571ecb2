package bench

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/cmd/berth/rollout/rollouttest"
	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

func TestMain(m *testing.M) { rollouttest.Main(m) }

func TestEveryBarIsMeasuredAgainstARealContainer(t *testing.T) {
	if testing.Short() {
		t.Skip("needs time: it runs 300 MB of output and a thousand executions")
	}
	var out, progress strings.Builder
	err := Run(t.Context(), Config{
		Binary: sandboxtest.Agent(t), Runs: 3, Executions: 64, Starts: 1, Progress: &progress,
		// Tests of other packages run beside this one, and agents on one
		// machine need uids of their own.
		Args: []string{"--first-uid", "700000"},
	}, &out)
	if err != nil && strings.Contains(err.Error(), "exit status 78") {
		need.Facility(t, "landlock", err)
	}
	if err != nil && strings.Contains(err.Error(), "the bar is for level ns") {
		need.Facility(t, "userns", err)
	}
	require.NoError(t, err, out.String())
	t.Log(out.String())
	for _, m := range measurements() {
		assert.Contains(t, out.String(), "| "+m.what)
		assert.Contains(t, progress.String(), "measuring "+m.what)
	}
	if os.Geteuid() == 0 {
		assert.NotContains(t, out.String(), "not measured")
	}
	assert.Regexp(t, `zombies.*\| 0 / 0 / 0 .*\| met`, out.String())
}

// standIn measures rows of a container that has no isolation, streams
// nothing and proves nothing.
func standIn(ctx context.Context, t *testing.T, only string) (string, error) {
	t.Helper()
	var out strings.Builder
	err := Run(ctx, Config{Binary: rollouttest.Binary(t), Runs: 2, Executions: 4, Starts: 1, Only: regexp.MustCompile(only)}, &out)
	return out.String(), err
}

func TestOnlyTheRowsThatAreAskedForAreMeasured(t *testing.T) {
	out, err := standIn(t.Context(), t, "^(read_file|batch|start to)")
	require.NoError(t, err)
	assert.Contains(t, out, "isolation none")
	assert.Contains(t, out, "p50 of 2 runs, 4 executions in a row")
	assert.Regexp(t, `\| batch .* ms\)`, out)
	assert.Regexp(t, `\| read_file .* ms\)`, out)
	assert.Regexp(t, `\| start to ready .*of 1 starts`, out)
	assert.Equal(t, 2+3, strings.Count(out, "\n|"), "a head of two lines, and the rows")
}

func TestARowThatCannotBeMeasuredSaysWhy(t *testing.T) {
	for only, why := range map[string]string{
		"^bash -c true": "the bar is for level ns or better, this machine gave none",
		"^first byte":   "the stream brought no output",
		"^reset":        "the slot was not proven clean",
		"^idle":         "found 0 holders of 16 slots",
		"^executions":   "without go_goroutines",
		"^static":       "the binary is not",
	} {
		t.Run(only, func(t *testing.T) {
			out, err := standIn(t.Context(), t, only)
			require.ErrorContains(t, err, why)
			assert.Regexp(t, `\| not measured +\|`, out)
			assert.Contains(t, out, why)
		})
	}
}

func TestAContainerThatDoesNotStartIsToldInEveryRowOfIt(t *testing.T) {
	var out strings.Builder
	err := Run(t.Context(), Config{Binary: "/does/not/exist", Only: regexp.MustCompile("batch|static")}, &out)
	require.ErrorIs(t, err, fs.ErrNotExist)
	assert.Equal(t, 2, strings.Count(out.String(), "| not measured |"))
}

func TestAnInterruptedRunPrintsWhatItHas(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	cancel(enough)
	out, err := standIn(ctx, t, "batch")
	require.ErrorIs(t, err, enough)
	assert.Contains(t, out, "| what")
	assert.NotContains(t, out, "| batch")
}

func TestDefaultsAreThoseOfTheBars(t *testing.T) {
	c := Config{}.withDefaults()
	assert.Equal(t, 300, c.Runs)
	assert.Equal(t, 50_000, c.Executions)
	assert.Equal(t, 10, c.Starts)
}
