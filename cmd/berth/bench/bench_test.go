package bench

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
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

// measureAll measures the rows once, shortly, with the real programs, and
// returns the tables.
func measureAll(t *testing.T, rows []measurement, orchestrator string) string {
	t.Helper()
	var names []string
	for _, m := range rows {
		names = append(names, regexp.QuoteMeta(m.what))
	}
	var out, progress strings.Builder
	err := Run(t.Context(), Config{
		Binary: sandboxtest.Agent(t), Orchestrator: orchestrator, Runs: 3, Executions: 64, Starts: 1, Progress: &progress,
		Only: regexp.MustCompile("^(" + strings.Join(names, "|") + ")$"),
		// Tests of other packages run beside this one, and agents on one
		// machine need uids of their own.
		Args: []string{"--first-uid", "700000"},
	}, &out)
	for text, facility := range map[string]string{
		"exit status 78": "landlock", "the bar is for level ns": "userns", "by ulimit -n": "descriptors",
	} {
		if err != nil && strings.Contains(err.Error(), text) {
			need.Facility(t, facility, err)
		}
	}
	require.NoError(t, err, out.String())
	t.Log(out.String())
	if strings.Contains(out.String(), exec.ErrNotFound.Error()) {
		facility := "python3"
		if strings.Contains(out.String(), "nodejs") { // what there is to install
			facility = "node"
		}
		need.Facility(t, facility, errors.New(out.String()))
	}
	for _, m := range rows {
		assert.Contains(t, out.String(), "| "+m.what)
		assert.Contains(t, progress.String(), "measuring "+m.what)
	}
	if os.Geteuid() == 0 {
		assert.NotContains(t, out.String(), "not measured")
	}
	assert.Equal(t, 1, strings.Count(out.String(), "| what"), "there is one table")
	return out.String()
}

func TestEveryBarIsMeasuredAgainstARealContainer(t *testing.T) {
	if testing.Short() {
		t.Skip("needs time: it runs 300 MB of output and a thousand executions")
	}
	out := measureAll(t, measurements(), "")
	assert.Regexp(t, `zombies.*\| 0 / 0 / 0 .*\| met`, out)
}

func TestEveryBarOfFunctionsIsMeasuredAgainstARealContainer(t *testing.T) {
	for _, m := range functionMeasurements() {
		t.Run(m.what, func(t *testing.T) { measureAll(t, []measurement{m}, "") })
	}
}

func TestEveryBarOfToolsIsMeasuredAgainstARealPool(t *testing.T) {
	out := measureAll(t, toolMeasurements(), orchestrator(t))
	assert.Regexp(t, `secrets in answers.*\| 0 \([1-9][0-9]+ answers, [1-9][0-9]+ files, 2 crashes\) .*\| met`, out)
	assert.Regexp(t, `pip requirements.*\(p99 0\.[0-9]+ of 3 runs; the build [1-9][0-9]+ ms`, out, "a build takes longer than a look")
}

func TestToolsThatSlotsCannotRunAreToldWithTheirMend(t *testing.T) {
	var out strings.Builder
	require.NoError(t, Run(t.Context(), Config{
		Binary: sandboxtest.Agent(t), Orchestrator: orchestrator(t), Runs: 3,
		Only: regexp.MustCompile("Python function|TypeScript|secrets"),
		Args: []string{"--first-uid", "700000", "--isolation-require", "none", "--env", "PATH=/nowhere"},
	}, &out))
	for _, mend := range []string{
		"slots find no python3 (apt-get install python3)", "slots find no node (apt-get install nodejs)", "no tool has run (apt-get install python3)",
	} {
		assert.Contains(t, out.String(), mend)
	}
	assert.Equal(t, 5, strings.Count(out.String(), "| not measured |"))
}

func TestEveryBarIsMeasuredAgainstARealPool(t *testing.T) {
	if testing.Short() {
		t.Skip("needs time: it runs thousands of executions")
	}
	out := measureAll(t, poolMeasurements(), orchestrator(t))
	assert.NotContains(t, out, "isolation none", "the containers say what they have")
	assert.Regexp(t, `calls in flight.*: errors.*\| 0 \(.*\| met`, out)
}

// orchestrator builds the binary of the pool.
func orchestrator(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "orchestrator")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", path, "berth/cmd/orchestrator")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)
	return path
}

func TestAPoolThatCannotBeMeasuredSaysWhy(t *testing.T) {
	for orchestrator, why := range map[string]string{
		"":                "no orchestrator to measure is named",
		"/does/not/exist": "no such file or directory",
		"/bin/false":      "it ended before it was ready",
	} {
		var out strings.Builder
		err := Run(t.Context(), Config{Binary: rollouttest.Binary(t), Orchestrator: orchestrator, Only: regexp.MustCompile("^pool|^acquire")}, &out)
		require.ErrorContains(t, err, why)
		assert.Equal(t, 5, strings.Count(out.String(), "| not measured |"))
		assert.Equal(t, 5, strings.Count(out.String(), why), "every row says it")
		assert.Equal(t, 1, strings.Count(out.String(), "| what"), "there is one table")
	}
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
	err := Run(t.Context(), Config{Binary: "/does/not/exist", Only: regexp.MustCompile("^batch|^static")}, &out)
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
