package execution

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/process"
)

// counts is what a Registry holds of finished executions.
type counts struct {
	results, outputs   int
	bytes, outputBytes int64
	spills             int
}

func countsOf(r *Registry) counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return counts{r.finished.Len(), r.withOutputs.Len(), r.bytes, r.held.bytes, r.held.spills}
}

func TestResultsAreKeptForTheirTimeAndNoLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := open(t, Config{Keep: 10 * time.Minute})
		runOne(t, r, "first", "1")
		time.Sleep(4 * time.Minute)
		runOne(t, r, "second", "2")
		long := begin(t, r, "long")
		require.NoError(t, long.Start())

		time.Sleep(6*time.Minute - time.Nanosecond)
		synctest.Wait()
		assert.Equal(t, 3, r.Len())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		_, ok := r.Get("first")
		assert.False(t, ok, "ten minutes are over")
		_, ok = r.Get("second")
		assert.True(t, ok)

		time.Sleep(4 * time.Minute)
		synctest.Wait()
		assert.Equal(t, 1, r.Len(), "what runs is never forgotten")
		long.Finish(ran("3"))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		assert.Zero(t, r.Len())
		begin(t, r, "first")
	})
}

func TestWhatNeverStartedIsForgottenInTimeToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := open(t, Config{Keep: time.Minute})
		for range 3 {
			begin(t, r, "x").Finish(api.Refused("x", slots.Errorf(slots.KindQueueTimeout, "busy")))
		}
		assert.Equal(t, 1, countsOf(r).results, "a new try takes the place of the old")
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Zero(t, r.Len())
		assert.Zero(t, countsOf(r))
	})
}

func TestTheOldestResultsGoWhenThereAreTooManyBytes(t *testing.T) {
	r := open(t, Config{KeepBytes: 100 << 10})
	output := strings.Repeat("x", 9<<10)
	for i := range 30 {
		runOne(t, r, fmt.Sprint(i), output)
	}
	assert.LessOrEqual(t, countsOf(r).bytes, int64(100<<10))
	assert.Equal(t, 9, r.Len())
	for i := range 30 {
		_, ok := r.Get(fmt.Sprint(i))
		assert.Equal(t, i >= 21, ok, "result %d", i)
	}
}

func TestTheNewestResultStaysWhateverItsSize(t *testing.T) {
	r := open(t, Config{KeepBytes: 16 << 10})
	runOne(t, r, "small", "")
	runOne(t, r, "large", strings.Repeat("x", 100<<10))
	_, ok := r.Get("large")
	assert.True(t, ok)
	assert.Equal(t, 1, r.Len())
}

func TestF27ManyFinishedResultsAreBounded(t *testing.T) {
	const keep = 4 << 20
	results := 100_000
	if testing.Short() {
		results = 20_000
	}
	r := open(t, Config{KeepBytes: keep, Journal: t.TempDir()})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range results {
		e, _, err := r.Begin(t.Context(), fmt.Sprintf("execution-%d", i), printA)
		require.NoError(t, err)
		require.NoError(t, e.Start())
		e.Finish(ran("ok"))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	growth := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	assert.LessOrEqual(t, growth, int64(2*keep), "%d results take %d bytes", r.Len(), growth)
	assert.Greater(t, r.Len(), 1000)
	assert.LessOrEqual(t, sizeOnDisk(t, r.journal.dir), int64(keep))
}

// withOutput finishes an execution whose stdout is n bytes, spilled if spill.
func withOutput(t *testing.T, r *Registry, id string, n int, spill bool) *process.Capture {
	t.Helper()
	e := begin(t, r, id)
	config := process.CaptureConfig{Window: n + 1}
	if spill {
		config = process.CaptureConfig{Window: 4, Spill: func() (process.Spill, error) {
			return os.Create(filepath.Join(t.TempDir(), "spill"))
		}}
	}
	stdout := process.NewCapture(config)
	e.Attach(stdout, process.NewCapture(process.CaptureConfig{}))
	require.NoError(t, e.Start())
	_, err := stdout.Write(make([]byte, n))
	require.NoError(t, err)
	e.Finish(ran(""))
	return stdout
}

func TestOutputsAreReleasedEarlierThanResults(t *testing.T) {
	r := open(t, Config{KeepBytes: 400 << 10})
	var outs []*process.Capture
	for i := range 20 {
		outs = append(outs, withOutput(t, r, fmt.Sprint(i), 10<<10, false))
	}
	assert.Equal(t, 20, r.Len(), "all results are kept")
	assert.LessOrEqual(t, countsOf(r).outputBytes, int64(100<<10))
	assert.Zero(t, outs[0].Kept())
	assert.NotZero(t, outs[19].Kept())
	_, err := outs[0].Next(t.Context(), 0, 0)
	assert.Equal(t, &process.GapError{From: 0, To: 10 << 10}, err)
}

func TestOpenSpillFilesAreBounded(t *testing.T) {
	r := open(t, Config{})
	var outs []*process.Capture
	for i := range maxSpills + 10 {
		outs = append(outs, withOutput(t, r, fmt.Sprint(i), 100, true))
	}
	assert.Equal(t, maxSpills, countsOf(r).spills)
	for i, out := range outs {
		_, err := out.Next(t.Context(), 40, 0) // neither head nor tail
		assert.Equal(t, i < 10, err != nil, "output %d", i)
	}
	require.NoError(t, r.Close())
	_, err := outs[20].Next(t.Context(), 40, 0)
	require.Error(t, err, "close releases all")
	assert.Zero(t, countsOf(r))
}

func TestForgettingReleasesTheOutputs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := open(t, Config{Keep: time.Minute})
		out := withOutput(t, r, "x", 100, false)
		assert.NotZero(t, out.Kept())
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Zero(t, out.Kept())
		assert.Zero(t, countsOf(r))
	})
}

func TestAResultReadBackIsKeptForTheRestOfItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		r := open(t, Config{Journal: dir, Keep: 10 * time.Minute})
		runOne(t, r, "old", "")
		time.Sleep(7 * time.Minute)
		runOne(t, r, "young", "")
		interrupted := begin(t, r, "cut")
		require.NoError(t, interrupted.Start())
		require.NoError(t, r.Close())

		time.Sleep(time.Minute)
		r = open(t, Config{Journal: dir, Keep: 10 * time.Minute})
		assert.Equal(t, Recovery{Finished: 2, Interrupted: 1}, r.Recovery())
		assert.Equal(t, 3, r.Len())
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		_, ok := r.Get("old")
		assert.False(t, ok)
		time.Sleep(7 * time.Minute)
		synctest.Wait()
		_, ok = r.Get("young")
		assert.False(t, ok)
		_, ok = r.Get("cut")
		assert.True(t, ok, "an interruption counts from the restart")
		require.NoError(t, r.Close())

		time.Sleep(time.Minute)
		r = open(t, Config{Journal: dir, Keep: 10 * time.Minute})
		assert.Zero(t, r.Len())
	})
}

func TestS15AClockThatWentBackKeepsResultsNoLongerThanTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		writeJournal(t, dir, 1,
			record{event: eventFinished, at: time.Now().Add(24 * time.Hour), fingerprint: printA, id: "future", result: []byte(`{"output":"x"}`)},
			record{event: eventFinished, at: time.Now().Add(-24 * time.Hour), fingerprint: printA, id: "past", result: []byte(`{}`)})
		r := open(t, Config{Journal: dir})
		_, ok := r.Get("past")
		assert.False(t, ok)
		e, ok := r.Get("future")
		require.True(t, ok)
		assert.Equal(t, "x", e.Result().Output)
		time.Sleep(DefaultKeep)
		synctest.Wait()
		assert.Zero(t, r.Len())
	})
}

func TestWhatIsCountedIsWhatIsHeld(t *testing.T) {
	const runs = 5000
	for _, output := range []string{"", "a few bytes"} {
		r := open(t, Config{KeepBytes: 1 << 40})
		before := heap()
		for i := range runs {
			e := begin(t, r, fmt.Sprintf("%036d", i))
			// The functions stand for the call, its arguments and its slot, which
			// must not be held with the output.
			args := make([]byte, 64<<10)
			hold := process.CaptureConfig{
				Spill:   func() (process.Spill, error) { return nil, errors.New(string(args)) },
				OnLimit: func() { args[0]++ },
			}
			stdout, stderr := process.NewCapture(hold), process.NewCapture(hold)
			e.Attach(stdout, stderr)
			require.NoError(t, e.Start())
			_, _ = stdout.Write([]byte(output))
			e.Finish(ran(output))
		}
		held := heap() - before
		assert.Less(t, held, r.bytes+r.held.bytes, "%d bytes each", held/runs)
		assert.Equal(t, runs, r.Len())
	}
}

// heap is how many bytes of memory are in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
