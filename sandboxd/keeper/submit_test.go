package keeper

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/sandboxd/execution"
	"berth/slots"
)

func TestCallsOfASlotRunOneAfterAnotherInTheOrderOfTheirSubmits(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		var want []string
		var running []*execution.Execution
		for i := range 50 {
			command := fmt.Sprintf("sleep %dms", 1+i%7)
			want = append(want, command)
			running = append(running, h.Submit(t.Context(), call(command)))
		}
		for _, e := range running {
			r, err := waited(t.Context(), e)
			require.NoError(t, err)
			assert.True(t, r.Success, r.Error)
		}
		assert.Equal(t, want, h.box(0).commands())
	})
}

func TestSlotsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	bubble(t, Config{Slots: 8}, func(h *harness) {
		t := h.t
		start := time.Now()
		var running []*execution.Execution
		for i := range 8 {
			c := call("sleep 1s")
			c.SlotID = fmt.Sprintf("slot_%d", i)
			running = append(running, h.Submit(t.Context(), c))
		}
		for _, e := range running {
			<-e.Done()
		}
		assert.Equal(t, time.Second, time.Since(start))
	})
}

func TestWaitingIsReportedAndDoesNotCountAgainstTheTimeout(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		h.Submit(t.Context(), call("sleep 10s"))
		c := call("sleep 2s")
		c.Timeout = api.Seconds(3)
		r := h.run(c)
		require.True(t, r.Success, r.Error)
		assert.InDelta(t, 10_000, r.Metadata.QueueMS, 1e-6)

		c = call("sleep 5s")
		c.Timeout = api.Seconds(0.5)
		start := time.Now()
		r = h.run(c)
		assert.Equal(t, 500*time.Millisecond, time.Since(start))
		assert.Equal(t, "Command timed out after 0.5s", r.Error)
		assert.Equal(t, slots.OutcomeTimedOut, r.Metadata.Outcome)
		assert.True(t, h.run(call("true")).Success, "the slot is usable afterwards")
	})
}

func TestTheDefaultTimeoutEndsACallThatNamesNone(t *testing.T) {
	t.Parallel()
	bubble(t, Config{DefaultTimeout: 7 * time.Second}, func(h *harness) {
		t := h.t
		start := time.Now()
		assert.Equal(t, "Command timed out after 7s", h.run(call("sleep 1h")).Error)
		assert.Equal(t, 7*time.Second, time.Since(start))
	})
}

func TestARefusedCallIsAFinishedExecutionWithAReason(t *testing.T) {
	t.Parallel()
	bubble(t, Config{Slots: 2, MaxTimeout: time.Minute}, func(h *harness) {
		t := h.t
		lease := h.lease(t, "a", time.Hour)
		cases := map[string]struct {
			change func(*api.Call)
			text   string
			kind   slots.Kind
		}{
			"slot":         {func(c *api.Call) { c.SlotID = "slot_9" }, "Unknown slot: slot_9", slots.KindNotFound},
			"empty slot":   {func(c *api.Call) { c.SlotID = "" }, "Unknown slot: ", slots.KindNotFound},
			"tool":         {func(c *api.Call) { c.Tool = "rm" }, "Unknown tool: rm", slots.KindBadRequest},
			"timeout":      {func(c *api.Call) { c.Timeout = api.Seconds(-1) }, "timeout must be above 0 seconds, got -1", slots.KindBadRequest},
			"long timeout": {func(c *api.Call) { c.Timeout = api.Seconds(61) }, "timeout of 61 seconds is above the maximum of 60", slots.KindBadRequest},
			"no token":     {func(c *api.Call) { c.Token = nil }, "slot slot_0 is leased: the call carries no token", slots.KindFenced},
			"wrong token":  {func(c *api.Call) { c.Token = new(uint64(99)) }, "token 99 does not hold slot slot_0", slots.KindFenced},
			"id": {
				func(c *api.Call) { c.ExecutionID = strings.Repeat("x", 1<<20) },
				"execution_id must have at most 256 bytes, got 1048576", slots.KindBadRequest,
			},
		}
		for name, tc := range cases {
			c := call("true")
			c.Token = &lease.Token
			tc.change(&c)
			e := h.Submit(t.Context(), c)
			select {
			case <-e.Done():
			default:
				t.Fatal(name + ": not finished when Submit returned")
			}
			r := e.Result()
			assert.False(t, r.Success, name)
			assert.Equal(t, tc.text, r.Error, name)
			assert.Equal(t, tc.kind, r.Metadata.ErrorKind, name)
			assert.Equal(t, slots.ExecutedNever, r.Metadata.Executed, name)
			assert.NotNil(t, r.Metadata.Isolation, name)
			assert.NotEmpty(t, r.ExecutionID, name)
		}
		assert.Empty(t, h.box(0).commands())
	})
}

func TestARefusalDoesNotUseTheExecutionIDUp(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		c := call("once")
		c.ExecutionID, c.Token = "id", new(uint64(1))
		assert.Equal(t, slots.KindFenced, h.run(c).Metadata.ErrorKind)
		lease := h.lease(t, "a", time.Hour)
		c.Token = &lease.Token
		assert.True(t, h.run(c).Success)
		assert.Equal(t, []string{"once"}, h.box(0).commands())
	})
}

func TestADuplicateJoinsAndOtherContentUnderTheIDIsRefused(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		c := call("sleep 5s")
		c.ExecutionID = "id"
		first, second := h.Submit(t.Context(), c), h.Submit(t.Context(), c)
		assert.True(t, first.Fresh())
		assert.False(t, second.Fresh())
		other := call("sleep 6s")
		other.ExecutionID = "id"
		r := h.run(other)
		assert.Equal(t, slots.KindConflict, r.Metadata.ErrorKind)
		assert.Equal(t, "id", r.ExecutionID)
		r, err := waited(t.Context(), second)
		require.NoError(t, err)
		assert.True(t, r.Success)
		assert.True(t, r.Metadata.Replayed)
		assert.True(t, h.run(c).Metadata.Replayed, "also when it is over")
		assert.Equal(t, []string{"sleep 5s"}, h.box(0).commands())
	})
}

func TestAResultIsAnsweredAgainAfterTheLeaseButToItsTokenOnly(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		lease := h.lease(t, "a", time.Minute)
		c := call("secret")
		c.ExecutionID, c.Token = "id", &lease.Token
		require.True(t, h.run(c).Success)
		_, err := h.Release(t.Context(), "slot_0", lease.Token, true)
		require.NoError(t, err)
		r := h.run(c)
		assert.True(t, r.Success)
		assert.True(t, r.Metadata.Replayed)

		next := h.lease(t, "b", time.Minute)
		c.Token = &next.Token
		assert.Equal(t, slots.KindConflict, h.run(c).Metadata.ErrorKind)
		assert.Equal(t, []string{"secret"}, h.box(0).commands())
	})
}

func TestACallThatWaitsEndsWhenItsCallerGoesAway(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		busy := h.Submit(t.Context(), call("sleep 10s"))
		ctx, cancel := context.WithCancelCause(t.Context())
		waiting := h.Submit(ctx, call("never"))
		go func() {
			time.Sleep(time.Second)
			cancel(errors.New("client has gone"))
		}()
		start := time.Now()
		err := waiting.Wait(ctx)
		require.EqualError(t, err, "client has gone")
		<-waiting.Done()
		assert.Equal(t, time.Second, time.Since(start), "it ends at once, not when its turn comes")
		r := waiting.Result()
		assert.Equal(t, slots.KindInterrupted, r.Metadata.ErrorKind)
		assert.Equal(t, slots.ExecutedNever, r.Metadata.Executed)
		assert.Zero(t, h.Health().Queued)
		<-busy.Done()
		assert.True(t, h.run(call("after")).Success)
		assert.Equal(t, []string{"sleep 10s", "after"}, h.box(0).commands())
	})
}

func TestACallThatRunsIsCancelledWithItsCause(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		e := h.Submit(t.Context(), call("sleep 20s"))
		synctest.Wait()
		e.Cancel(errors.New("asked for"))
		r, err := waited(t.Context(), e)
		require.NoError(t, err)
		assert.Equal(t, slots.OutcomeCancelled, r.Metadata.Outcome)
		assert.Empty(t, r.Metadata.ErrorKind, "the client wanted it")
		assert.Equal(t, "Command was cancelled", r.Error)
	})
}

func TestF24_AQueueThatIsFullRefusesAtOnce(t *testing.T) {
	t.Parallel()
	bubble(t, Config{QueueMax: 10}, func(h *harness) {
		t := h.t
		busy := h.Submit(t.Context(), call("sleep 10s"))
		synctest.Wait()
		refused := 0
		for i := range 10_000 {
			e := h.Submit(t.Context(), call(fmt.Sprintf("n %d", i)))
			select {
			case <-e.Done():
				refused++
				assert.Equal(t, slots.KindQueueTimeout, e.Result().Metadata.ErrorKind)
				assert.True(t, *e.Result().Metadata.Retryable)
			default:
			}
		}
		assert.Equal(t, 9_990, refused)
		assert.Equal(t, 10, h.Health().Queued)
		<-busy.Done()
	})
}

func TestALostHolderLeavesTheSlotUsable(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		r := h.run(call("lost"))
		assert.Equal(t, slots.KindSlotLost, r.Metadata.ErrorKind)
		assert.Equal(t, slots.ExecutedMaybe, r.Metadata.Executed)
		assert.Equal(t, slots.StateAvailable, h.state(0))
		assert.True(t, h.run(call("true")).Success)
	})
}

func TestAToolThatPanicsAnswersAndTheSlotGoesOn(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		r := h.run(call("panic"))
		assert.Equal(t, slots.KindInternal, r.Metadata.ErrorKind)
		// The fake has counted itself out while it panicked.
		assert.True(t, h.run(call("true")).Success)
	})
}

func TestALongOutputNamesItsFileAndAnEndlessOneIsStopped(t *testing.T) {
	t.Parallel()
	spill := t.TempDir()
	bubble(t, Config{OutputLimit: 1 << 20}, func(h *harness) {
		t := h.t
		h.box(0).set(func(f *fakeSandbox) { f.spill = spill })
		c := call("flood 200000")
		c.ExecutionID = "../etc/passwd"
		r := h.run(c)
		require.True(t, r.Success, r.Error)
		assert.Regexp(t, `^/spill/[0-9a-f]{32}\.stdout$`, r.Metadata.Details["stdout_path"])
		assert.NotContains(t, r.Metadata.Details, "stdout_path_bytes", "all is there")
		assert.NotContains(t, r.Metadata.Details, "stderr_path")
		assert.True(t, r.Metadata.Truncated)
		assert.EqualValues(t, 200_000, r.Metadata.StdoutBytes)

		r = h.run(call("flood 999000000"))
		assert.Equal(t, slots.OutcomeOutputLimited, r.Metadata.Outcome)
		assert.Less(t, r.Metadata.StdoutBytes, int64(2<<20))
	})
}

func TestAResultSaysWhenItsOutputIsNotKeptAsAWhole(t *testing.T) {
	t.Parallel()
	spill := t.TempDir()
	bubble(t, Config{SpillMax: 150_000}, func(h *harness) {
		t := h.t
		r := h.run(call("flood 200000"))
		require.True(t, r.Success, r.Error)
		assert.NotContains(t, r.Metadata.Details, "stdout_path", "there is none")
		assert.EqualValues(t, 0, r.Metadata.Details["stdout_path_bytes"])
		assert.Equal(t, "file cannot be had", r.Metadata.Details["stdout_path_error"])

		h.box(0).set(func(f *fakeSandbox) { f.spill = spill })
		r = h.run(call("flood 200000"))
		assert.Contains(t, r.Metadata.Details, "stdout_path")
		assert.EqualValues(t, 150_000, r.Metadata.Details["stdout_path_bytes"])
		assert.NotContains(t, r.Metadata.Details, "stdout_path_error", "it is the bound")

		h.box(0).set(func(f *fakeSandbox) { f.spill = spill + "/gone" })
		r = h.run(call("flood 200000"))
		assert.Equal(t, "no such file or directory", r.Metadata.Details["stdout_path_error"], "and not of which")
		assert.NotContains(t, h.run(call("flood 100")).Metadata.Details, "stdout_path_bytes")
	})
}

func TestResultsCarryTheGenerationAndTheIsolation(t *testing.T) {
	t.Parallel()
	isolation := slots.NewIsolation(slots.Axes{slots.AxisKill: "walk", slots.AxisPids: "rlimit"})
	bubble(t, Config{Isolation: isolation}, func(h *harness) {
		t := h.t
		first := h.run(call("true"))
		assert.EqualValues(t, 0, first.Metadata.Generation)
		_, err := h.Reset(t.Context(), "slot_0", nil)
		require.NoError(t, err)
		second := h.run(call("true"))
		assert.EqualValues(t, 1, second.Metadata.Generation)
		assert.Equal(t, isolation, *second.Metadata.Isolation)
		assert.Equal(t, isolation, *first.Metadata.Isolation)
	})
}

func TestOutputCanBeFollowedWhileTheCallRuns(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		e := h.Submit(t.Context(), call("flood 1500"))
		<-e.Attached()
		stdout, _ := e.Outputs()
		chunk, err := stdout.Next(t.Context(), 0, 10)
		require.NoError(t, err)
		assert.Equal(t, "xxxxxxxxxx", string(chunk))
		<-e.Done()
	})
}

func TestSpillNamesAreFileNames(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "run-1.a_B", spillName("run-1.a_B"))
	for _, id := range []string{"", ".", "..", ".hidden", "a/b", "a\x00", "a b", "ä", strings.Repeat("x", 65)} {
		assert.Regexp(t, "^[0-9a-f]{32}$", spillName(id), id)
	}
}
