package execution

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/process"
)

var (
	printA = [32]byte{'a'}
	printB = [32]byte{'b'}
)

// open opens a Registry that is closed with the test.
func open(tb testing.TB, config Config) *Registry {
	tb.Helper()
	r, err := Open(config)
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = r.Close() })
	return r
}

// begin begins an execution that must be fresh.
func begin(tb testing.TB, r *Registry, id string) *Execution {
	tb.Helper()
	e, fresh, err := r.Begin(tb.Context(), id, printA)
	require.NoError(tb, err)
	require.True(tb, fresh)
	require.True(tb, e.Fresh())
	return e
}

// waited is the execution's result once it is there.
func waited(ctx context.Context, e *Execution) (api.Result, error) {
	if err := e.Wait(ctx); err != nil {
		return api.Result{}, err
	}
	return e.Result(), nil
}

// ran is the result of a command that printed output.
func ran(output string) api.Result {
	return api.Result{
		Success: true, Output: output,
		Metadata: api.Metadata{
			Receipt: &api.Receipt{Outcome: slots.OutcomeExited, StdoutBytes: int64(len(output))},
			Details: map[string]any{"sandboxed": true},
		},
	}
}

// runOne runs a whole execution.
func runOne(tb testing.TB, r *Registry, id, output string) {
	tb.Helper()
	e := begin(tb, r, id)
	require.NoError(tb, e.Start())
	e.Finish(ran(output))
}

// requireKind asserts that err is a *slots.Error of the kind, about a call that
// never ran.
func requireKind(tb testing.TB, kind slots.Kind, err error) {
	tb.Helper()
	require.Error(tb, err)
	found := slots.AsError(err)
	require.Equal(tb, kind, found.Kind, err)
	require.Equal(tb, slots.ExecutedNever, found.Executed)
}

func TestAnExecutionGoesFromBeginToItsResult(t *testing.T) {
	r := open(t, Config{})
	e := begin(t, r, "x")
	assert.Equal(t, "x", e.ID())
	assert.False(t, e.Started())
	assert.NoError(t, e.Context().Err())
	require.NoError(t, e.Start())
	assert.True(t, e.Started())
	select {
	case <-e.Done():
		t.Fatal("done before Finish")
	default:
	}
	e.Finish(ran("hello"))
	<-e.Done()
	got, err := waited(t.Context(), e)
	require.NoError(t, err)
	want := ran("hello")
	want.ExecutionID = "x"
	assert.Equal(t, want, got)
	assert.Equal(t, want, e.Result())
	assert.Error(t, e.Context().Err(), "its context ends with it")
}

func TestAnEmptyIDBecomesANewOne(t *testing.T) {
	r := open(t, Config{})
	a, b := begin(t, r, ""), begin(t, r, "")
	assert.NotEqual(t, a.ID(), b.ID())
	assert.NoError(t, uuid.Validate(a.ID()))
}

func TestF26AnIDIsRefusedWhenItIsTooLongOrNotUTF8(t *testing.T) {
	r := open(t, Config{})
	for _, id := range []string{strings.Repeat("x", 257), strings.Repeat("x", 1<<20), "a\xffb"} {
		_, _, err := r.Begin(t.Context(), id, printA)
		requireKind(t, slots.KindBadRequest, err)
		assert.Less(t, len(err.Error()), 200)
	}
	assert.Zero(t, r.Len())
	for _, id := range []string{strings.Repeat("x", 256), "é", "a\x00b\nc", "../..", " "} {
		runOne(t, r, id, id)
		e, ok := r.Get(id)
		require.True(t, ok)
		assert.Equal(t, id, e.Result().Output)
	}
}

func TestS20ARetryWhileItRunsJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := open(t, Config{})
		e := begin(t, r, "x")
		require.NoError(t, e.Start())
		joined, fresh, err := r.Begin(t.Context(), "x", printA)
		require.NoError(t, err)
		assert.False(t, fresh)
		assert.False(t, joined.Fresh())
		var got api.Result
		var wg sync.WaitGroup
		wg.Go(func() { got, err = waited(t.Context(), joined) })
		synctest.Wait()
		e.Finish(ran("once"))
		wg.Wait()
		require.NoError(t, err)
		assert.Equal(t, "once", got.Output)
		assert.True(t, got.Metadata.Replayed)
		assert.False(t, e.Result().Metadata.Replayed, "who ran it sees no replay")
	})
}

func TestS20ARetryAfterTheEndIsReplayed(t *testing.T) {
	r := open(t, Config{})
	runOne(t, r, "x", "once")
	e, fresh, err := r.Begin(t.Context(), "x", printA)
	require.NoError(t, err)
	assert.False(t, fresh)
	got, err := waited(t.Context(), e)
	require.NoError(t, err)
	assert.Equal(t, "once", got.Output)
	assert.True(t, got.Metadata.Replayed)
	assert.Error(t, e.Start(), "a replay is not started again")
}

func TestS20OtherContentUnderTheSameIDIsAConflict(t *testing.T) {
	r := open(t, Config{})
	e := begin(t, r, "x")
	check := func() {
		_, _, err := r.Begin(t.Context(), "x", printB)
		requireKind(t, slots.KindConflict, err)
		assert.NotContains(t, err.Error(), "secret", "nothing of the result leaks")
	}
	check()
	require.NoError(t, e.Start())
	check()
	e.Finish(ran("secret"))
	check()
}

func TestBeginOfTheSameIDByManyIsFreshForOne(t *testing.T) {
	r := open(t, Config{Journal: t.TempDir()})
	const callers = 100
	var runs atomic.Int32
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			e, fresh, err := r.Begin(t.Context(), "x", printA)
			if !assert.NoError(t, err) {
				return
			}
			if fresh && assert.NoError(t, e.Start()) {
				runs.Add(1)
				e.Finish(ran("once"))
			}
			got, err := waited(t.Context(), e)
			if err != nil {
				t.Errorf("wait: %v", err)
				return
			}
			assert.Equal(t, "once", got.Output)
			assert.Equal(t, !fresh, got.Metadata.Replayed)
		})
	}
	wg.Wait()
	assert.EqualValues(t, 1, runs.Load())
	assert.Equal(t, 1, r.Len())
}

func TestResultsNeverLeakBetweenIDs(t *testing.T) {
	r := open(t, Config{Journal: t.TempDir()})
	var wg sync.WaitGroup
	for i := range 50 {
		for range 4 {
			wg.Go(func() {
				id := fmt.Sprint("id-", i)
				e, fresh, err := r.Begin(t.Context(), id, printA)
				if !assert.NoError(t, err) {
					return
				}
				if fresh && assert.NoError(t, e.Start()) {
					e.Finish(ran("output of " + id))
				}
				got, err := waited(t.Context(), e)
				if err != nil {
					t.Errorf("wait: %v", err)
					return
				}
				assert.Equal(t, "output of "+id, got.Output)
				assert.Equal(t, id, got.ExecutionID)
			})
		}
	}
	wg.Wait()
}

func TestOnlyTheFirstFinishCounts(t *testing.T) {
	r := open(t, Config{})
	e := begin(t, r, "x")
	require.NoError(t, e.Start())
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() { e.Finish(ran(fmt.Sprint(i))) })
	}
	wg.Wait()
	<-e.Done()
	first := e.Result().Output
	e.Finish(ran("late"))
	assert.Equal(t, first, e.Result().Output)
}

func TestStartIsRefusedTwiceAndAfterFinish(t *testing.T) {
	r := open(t, Config{})
	e := begin(t, r, "x")
	require.NoError(t, e.Start())
	requireKind(t, slots.KindInternal, e.Start())
	assert.True(t, e.Started())
	e = begin(t, r, "y")
	e.Finish(ran(""))
	requireKind(t, slots.KindInternal, e.Start())
}

func TestCancelBeforeStartRefusesTheStart(t *testing.T) {
	r := open(t, Config{})
	e := begin(t, r, "x")
	cause := errors.New("slot was reset")
	e.Cancel(cause)
	e.Cancel(errors.New("second"))
	assert.Equal(t, cause, context.Cause(e.Context()))
	err := e.Start()
	requireKind(t, slots.KindInterrupted, err)
	require.ErrorIs(t, err, cause)
	assert.False(t, e.Started())
}

func TestCancelAfterStartOnlyEndsTheContext(t *testing.T) {
	r := open(t, Config{})
	e := begin(t, r, "x")
	require.NoError(t, e.Start())
	cause := errors.New("asked for")
	e.Cancel(cause)
	assert.Equal(t, cause, context.Cause(e.Context()))
	e.Finish(ran("partial"))
	assert.Equal(t, "partial", e.Result().Output)
	_, fresh, err := r.Begin(t.Context(), "x", printA)
	require.NoError(t, err)
	assert.False(t, fresh, "it ran, so it is not run again")
}

func TestWhatNeverStartedIsAnsweredButMayBeTriedAgain(t *testing.T) {
	dir := t.TempDir()
	r := open(t, Config{Journal: dir})
	e := begin(t, r, "x")
	e.Finish(api.Refused("x", slots.Errorf(slots.KindQueueTimeout, "slot was busy")))
	kept, ok := r.Get("x")
	require.True(t, ok)
	assert.Equal(t, slots.KindQueueTimeout, kept.Result().Metadata.ErrorKind)

	again, fresh, err := r.Begin(t.Context(), "x", printB)
	require.NoError(t, err)
	require.True(t, fresh)
	require.NoError(t, again.Start())
	again.Finish(ran("second try"))
	assert.Equal(t, slots.KindQueueTimeout, kept.Result().Metadata.ErrorKind, "who had joined keeps what they joined")
	assert.Equal(t, 1, r.Len())
	require.NoError(t, r.Close())

	r = open(t, Config{Journal: dir})
	kept, ok = r.Get("x")
	require.True(t, ok)
	assert.Equal(t, "second try", kept.Result().Output)
}

func TestACancelledExecutionNeverDisturbsTheNextOfItsID(t *testing.T) {
	r := open(t, Config{})
	old := begin(t, r, "x")
	old.Cancel(errors.New("client is gone"))
	next := begin(t, r, "x")
	require.Error(t, old.Start())
	require.NoError(t, next.Start())
	old.Finish(api.Refused("x", slots.Errorf(slots.KindInterrupted, "client is gone").WithExecuted(slots.ExecutedNever)))
	got, ok := r.Get("x")
	require.True(t, ok)
	next.Finish(ran("good"))
	<-got.Done()
	assert.Equal(t, "good", got.Result().Output)
	assert.Equal(t, 1, r.Len())
}

func TestS19TheLastWaiterThatLeavesCancelsWhatHasNotStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := open(t, Config{})
		e := begin(t, r, "x")
		joined, _, err := r.Begin(t.Context(), "x", printA)
		require.NoError(t, err)
		gone := [2]error{errors.New("first is gone"), errors.New("second is gone")}
		var wg sync.WaitGroup
		var cancels [2]context.CancelCauseFunc
		for i, handle := range []*Execution{e, joined} {
			ctx, cancel := context.WithCancelCause(t.Context())
			cancels[i] = cancel
			wg.Go(func() {
				err := handle.Wait(ctx)
				assert.Equal(t, gone[i], err)
			})
		}
		synctest.Wait()
		cancels[0](gone[0])
		synctest.Wait()
		require.NoError(t, e.Context().Err(), "somebody still waits")
		cancels[1](gone[1])
		wg.Wait()
		assert.Equal(t, gone[1], context.Cause(e.Context()))
		requireKind(t, slots.KindInterrupted, e.Start())
	})
}

func TestS19WaitersThatLeaveTogetherCancelToo(t *testing.T) {
	for range 50 {
		r := open(t, Config{})
		e := begin(t, r, "x")
		ctx, cancel := context.WithCancelCause(t.Context())
		var waiting, wg sync.WaitGroup
		for range 4 {
			waiting.Add(1)
			wg.Go(func() {
				waiting.Done()
				_ = e.Wait(ctx)
			})
		}
		waiting.Wait()
		cancel(errors.New("all gone"))
		wg.Wait()
		assert.Error(t, e.Context().Err())
	}
}

func TestS19WhoHasBegunWaitsFromThenOn(t *testing.T) {
	r := open(t, Config{})
	e := begin(t, r, "x")
	joined, _, err := r.Begin(t.Context(), "x", printA)
	require.NoError(t, err)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, e.Wait(gone))
	require.NoError(t, e.Context().Err(), "the other one has only not come to wait yet")
	require.Error(t, joined.Wait(gone))
	assert.Error(t, e.Context().Err())
}

func TestS19WaitersThatLeaveNeverCancelWhatHasStarted(t *testing.T) {
	r := open(t, Config{})
	e := begin(t, r, "x")
	require.NoError(t, e.Start())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := e.Wait(ctx)
	require.ErrorIs(t, err, context.Canceled)
	assert.NoError(t, e.Context().Err())
}

func TestBeginForACallerThatHasGoneBeginsNothing(t *testing.T) {
	r := open(t, Config{})
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	_, _, err := r.Begin(ctx, "x", printA)
	requireKind(t, slots.KindInterrupted, err)
	require.ErrorIs(t, err, gone)
	assert.Zero(t, r.Len())
}

func TestOutputsAreThereFromAttachOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := open(t, Config{})
		e := begin(t, r, "x")
		stdout, stderr := e.Outputs()
		assert.Nil(t, stdout)
		assert.Nil(t, stderr)
		var followed []byte
		var wg sync.WaitGroup
		wg.Go(func() {
			<-e.Attached()
			stdout, _ := e.Outputs()
			followed, _ = stdout.Next(t.Context(), 0, 0)
			_, err := stdout.Next(t.Context(), int64(len(followed)), 0)
			assert.Equal(t, io.EOF, err, "Finish ends the stream")
		})
		out, errs := process.NewCapture(process.CaptureConfig{}), process.NewCapture(process.CaptureConfig{})
		e.Attach(out, errs)
		e.Attach(nil, nil)
		require.NoError(t, e.Start())
		_, _ = out.Write([]byte("live"))
		synctest.Wait()
		e.Finish(ran("live"))
		wg.Wait()
		assert.Equal(t, "live", string(followed))
		stdout, stderr = e.Outputs()
		assert.Same(t, out, stdout)
		assert.Same(t, process.Silence(), stderr, "nothing was written to it")
		assert.Equal(t, "live", out.Text().String, "kept after the end")
	})
}

func TestAttachedIsClosedByFinishWithoutOutput(t *testing.T) {
	r := open(t, Config{})
	e := begin(t, r, "x")
	e.Finish(ran(""))
	<-e.Attached()
	e.Attach(process.NewCapture(process.CaptureConfig{}), nil)
	stdout, _ := e.Outputs()
	assert.Nil(t, stdout)
}

func TestAResultThatCannotBeEncodedBecomesAnInternalError(t *testing.T) {
	r := open(t, Config{Journal: t.TempDir()})
	e := begin(t, r, "x")
	require.NoError(t, e.Start())
	result := ran("x")
	result.Metadata.Details = map[string]any{"ratio": math.NaN()}
	e.Finish(result)
	assert.Equal(t, slots.KindInternal, e.Result().Metadata.ErrorKind)
	assert.Equal(t, slots.ExecutedMaybe, e.Result().Metadata.Executed)
}

func TestRefusedHasEndedAndIsKnownToNobodyElse(t *testing.T) {
	want := api.Refused("x", slots.Errorf(slots.KindConflict, "no"))
	e := Refused(want)
	<-e.Done()
	<-e.Attached()
	assert.Equal(t, "x", e.ID())
	got, err := waited(t.Context(), e)
	require.NoError(t, err)
	assert.Equal(t, want, got)
	require.Error(t, e.Start())
	stdout, stderr := e.Outputs()
	assert.Nil(t, stdout)
	assert.Nil(t, stderr)
}

func TestGetFindsWhatRunsAndWhatIsKept(t *testing.T) {
	r := open(t, Config{})
	_, ok := r.Get("x")
	assert.False(t, ok)
	e := begin(t, r, "x")
	found, ok := r.Get("x")
	require.True(t, ok)
	assert.False(t, found.Fresh())
	require.NoError(t, e.Start())
	assert.True(t, found.Started())
	e.Finish(ran("done"))
	<-found.Done()
	assert.True(t, found.Result().Metadata.Replayed)
}

func TestACloseRegistryTakesNothingNewAndLetsTheRestFinish(t *testing.T) {
	r := open(t, Config{Journal: t.TempDir()})
	runOne(t, r, "kept", "")
	e := begin(t, r, "x")
	require.NoError(t, e.Start())
	queued := begin(t, r, "y")
	require.NoError(t, r.Close())
	_, _, err := r.Begin(t.Context(), "z", printA)
	requireKind(t, slots.KindDraining, err)
	requireKind(t, slots.KindInternal, queued.Start())
	e.Finish(ran("still told"))
	assert.Equal(t, "still told", e.Result().Output)
	require.NoError(t, r.Close())
}
