package rollout_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/cmd/berth/rollout"
	"berth/cmd/berth/rollout/rollouttest"
	"berth/orchestrator/client"
)

// serve starts the handler and returns a client of it.
func serve(t *testing.T, h http.Handler) rollout.Client {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return rollout.Client{URL: server.URL, HTTP: server.Client()}
}

func TestRolloutMendsEveryProgram(t *testing.T) {
	client := serve(t, rollouttest.Container{Dir: t.TempDir(), Slots: 8})
	var progress bytes.Buffer
	report, err := rollout.Run(t.Context(), client, rollout.Config{Progress: &progress})
	require.NoError(t, err)
	require.Len(t, report.Results, 8)
	assert.Zero(t, report.Failures(), progress.String())
	programs, slots := map[string]bool{}, map[string]bool{}
	for _, r := range report.Results {
		programs[r.Program], slots[r.Slot] = true, true
		assert.Equal(t, 10, r.Executions, r.Program)
		assert.Len(t, r.Latencies, 6, r.Program)
		assert.Contains(t, r.Diff, "+++ program.sh", r.Program)
	}
	assert.Len(t, programs, 8)
	assert.Len(t, slots, 8)
	assert.Equal(t, 8, strings.Count(progress.String(), "mended, diff -"))
}

func TestRolloutWithMoreTrajectoriesThanSlotsTakesTurns(t *testing.T) {
	client := serve(t, rollouttest.Container{Dir: t.TempDir(), Slots: 2})
	report, err := rollout.Run(t.Context(), client, rollout.Config{Trajectories: 9})
	require.NoError(t, err)
	assert.Len(t, report.Results, 9)
	assert.Zero(t, report.Failures())
}

func TestRolloutNoticesWhatTheContainerGetsWrong(t *testing.T) {
	bash := func(command string, change func(*rollout.Answer)) func(rollout.Call, *rollout.Answer) {
		return func(c rollout.Call, a *rollout.Answer) {
			if c.Args["command"] == command {
				change(a)
			}
		}
	}
	for name, c := range map[string]struct {
		spoil func(rollout.Call, *rollout.Answer)
		want  string
	}{
		"a failed test reported as passed": {bash("bash test.sh", func(a *rollout.Answer) { a.Success = true }), "see its tests fail"},
		"no exit code":                     {bash("bash test.sh", func(a *rollout.Answer) { a.Metadata = nil }), "see its tests fail"},
		"a faulty edit":                    {bash("sed -i.orig -f edit.sed program.sh", func(a *rollout.Answer) { a.Success = false }), "edit it"},
		"output lost": {func(c rollout.Call, a *rollout.Answer) {
			if a.Success && c.Tool == "bash" {
				a.Output = ""
			}
		}, "see its tests pass"},
		"a file changed on its way": {func(c rollout.Call, a *rollout.Answer) {
			if c.Tool == "read_file" {
				a.Output += "\n"
			}
		}, "read it: want the program as it was written"},
		"a refused upload": {func(c rollout.Call, a *rollout.Answer) {
			if c.Tool == "write_file" {
				*a = rollout.Answer{Error: "Content too large: 1 bytes (max 0)", ExecutionID: a.ExecutionID}
			}
		}, "Content too large: 1 bytes (max 0)"},
		"a file that survives the reset": {func(_ rollout.Call, a *rollout.Answer) {
			if a.Error == "File not found: program.sh" {
				a.Success, a.Error = true, ""
			}
		}, "give the slot back empty"},
		"answers mixed up": {func(_ rollout.Call, a *rollout.Answer) { a.ExecutionID = "other" }, "not that of its call"},
	} {
		t.Run(name, func(t *testing.T) {
			client := serve(t, rollouttest.Container{Dir: t.TempDir(), Slots: 1, Spoil: c.spoil})
			report, err := rollout.Run(t.Context(), client, rollout.Config{Trajectories: 1})
			require.NoError(t, err)
			require.Equal(t, 1, report.Failures())
			assert.ErrorContains(t, report.Results[0].Err, c.want)
		})
	}
}

func TestRolloutNeedsTheToken(t *testing.T) {
	client := serve(t, rollouttest.Container{Dir: t.TempDir(), Slots: 1, Token: "secret"})
	_, err := rollout.Run(t.Context(), client, rollout.Config{})
	require.ErrorContains(t, err, "401")
	client.Token = "secret"
	report, err := rollout.Run(t.Context(), client, rollout.Config{Trajectories: 1})
	require.NoError(t, err)
	assert.Zero(t, report.Failures())
}

func TestRolloutTakesNothingForJSONThatDoesNotCallItselfSo(t *testing.T) {
	client := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write([]byte(`{"slots":[{"slot_id":"slot_0"}],"status":"ok"}`))
	}))
	_, err := rollout.Run(t.Context(), client, rollout.Config{})
	require.ErrorContains(t, err, `content type "text/plain", want application/json`)
	_, err = client.Health(t.Context())
	require.ErrorContains(t, err, "want application/json")
}

func TestRolloutOfAContainerWithoutSlotsIsAnError(t *testing.T) {
	client := serve(t, rollouttest.Container{Dir: t.TempDir()})
	_, err := rollout.Run(t.Context(), client, rollout.Config{})
	require.ErrorContains(t, err, "no slots")
}

func TestRolloutThatIsCancelledReportsEveryTrajectoryAsFailed(t *testing.T) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	client := serve(t, rollouttest.Container{
		Dir: t.TempDir(), Slots: 1,
		Spoil: func(rollout.Call, *rollout.Answer) { cancel(cause) },
	})
	report, err := rollout.Run(ctx, client, rollout.Config{Trajectories: 3})
	require.NoError(t, err)
	assert.Equal(t, 3, report.Failures())
	for _, r := range report.Results {
		assert.Error(t, r.Err)
	}
}

func TestEveryProgramIsBrokenUntilItsEdit(t *testing.T) {
	programs, err := rollout.Programs()
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(programs), 8)
	for _, p := range programs {
		assert.NotEmpty(t, p.Source, p.Name)
		assert.NotEmpty(t, p.Edit, p.Name)
		assert.NotEmpty(t, p.Test, p.Name)
		for line := range strings.Lines(p.Cases) {
			assert.Contains(t, line, " => ", p.Name)
		}
	}
}

func TestRolloutOnAPoolThatNeverStartsIsAnError(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"containers":[]}`))
	}))
	t.Cleanup(server.Close)
	pool, err := client.New(client.Config{URL: server.URL})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = rollout.Run(t.Context(), rollout.Pool{Client: pool, Slots: 1, Within: 50 * time.Millisecond}, rollout.Config{})
	require.ErrorContains(t, err, "none of its slots is there after 50ms")
}
