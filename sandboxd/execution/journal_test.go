package execution

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
)

// writeJournal makes a segment of the records.
func writeJournal(tb testing.TB, dir string, number uint64, records ...record) {
	tb.Helper()
	var content []byte
	for _, r := range records {
		content = r.appendTo(content)
	}
	require.NoError(tb, os.WriteFile((&journal{dir: dir}).path(number), content, 0o600))
}

// segmentsOf lists the journal's files, oldest first.
func segmentsOf(tb testing.TB, dir string) []string {
	tb.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"+segmentSuffix))
	require.NoError(tb, err)
	return names
}

func sizeOnDisk(tb testing.TB, dir string) (total int64) {
	tb.Helper()
	require.NoError(tb, filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			var status fs.FileInfo
			if status, err = entry.Info(); err == nil {
				total += status.Size()
			}
		}
		return err
	}))
	return total
}

func TestAFinishedExecutionIsReplayedAfterARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "on the way")
	r := open(t, Config{Journal: dir})
	e := begin(t, r, "x")
	require.NoError(t, e.Start())
	e.Finish(ran("héllo\x00\n"))
	want, err := json.Marshal(e.Result())
	require.NoError(t, err)
	// No Close: the process was killed.

	r = open(t, Config{Journal: dir})
	assert.Equal(t, Recovery{Finished: 1}, r.Recovery())
	again, fresh, err := r.Begin(t.Context(), "x", printA)
	require.NoError(t, err)
	require.False(t, fresh)
	got, err := waited(t.Context(), again)
	require.NoError(t, err)
	assert.True(t, got.Metadata.Replayed)
	got.Metadata.Replayed = false
	text, err := json.Marshal(got)
	require.NoError(t, err)
	assert.Equal(t, string(want), string(text), "byte for byte")

	_, _, err = r.Begin(t.Context(), "x", printB)
	requireKind(t, slots.KindConflict, err)
}

func TestAStartedExecutionIsInterruptedAfterARestartAndStaysSo(t *testing.T) {
	dir := t.TempDir()
	r := open(t, Config{Journal: dir})
	require.NoError(t, begin(t, r, "x").Start())
	begin(t, r, "queued only")
	for range 3 {
		r = open(t, Config{Journal: dir})
		e, fresh, err := r.Begin(t.Context(), "x", printA)
		require.NoError(t, err)
		require.False(t, fresh)
		got, err := waited(t.Context(), e)
		require.NoError(t, err)
		assert.False(t, got.Success)
		assert.Equal(t, "x", got.ExecutionID)
		assert.Equal(t, slots.KindInterrupted, got.Metadata.ErrorKind)
		assert.Equal(t, slots.ExecutedMaybe, got.Metadata.Executed)
		require.Error(t, e.Start())
		_, ok := r.Get("queued only")
		assert.False(t, ok, "it had no effect, so it can be begun")
	}
}

// TestS16ACrashAtAnyByteNeverLiesAndNeverRunsTwice cuts a journal at every
// byte and checks each execution against what had been promised by then.
func TestS16ACrashAtAnyByteNeverLiesAndNeverRunsTwice(t *testing.T) {
	dir := t.TempDir()
	r := open(t, Config{Journal: dir})
	type promise struct{ started, finished int } // journal lengths at which Start and Finish returned
	promises := map[string]*promise{}
	length := func() int { return int(sizeOnDisk(t, dir)) }
	// Starts and ends interleave.
	var running []*Execution
	for i := range 6 {
		id := fmt.Sprint("id-", i)
		e := begin(t, r, id)
		require.NoError(t, e.Start())
		promises[id] = &promise{length(), 1 << 30}
		if running = append(running, e); i%2 == 1 {
			done := running[0]
			running = running[1:]
			done.Finish(ran("output of " + done.ID()))
			promises[done.ID()].finished = length()
		}
	}
	segments := segmentsOf(t, dir)
	require.Len(t, segments, 1)
	whole, err := os.ReadFile(segments[0])
	require.NoError(t, err)

	for cut := range len(whole) + 1 {
		crashed := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(crashed, filepath.Base(segments[0])), whole[:cut], 0o600))
		r, err := Open(Config{Journal: crashed})
		require.NoError(t, err)
		for id, p := range promises {
			e, fresh, err := r.Begin(t.Context(), id, printA)
			require.NoError(t, err)
			switch {
			case cut >= p.finished:
				require.False(t, fresh)
				require.Equal(t, "output of "+id, e.Result().Output, "cut at %d", cut)
			case cut >= p.started:
				require.False(t, fresh, "%s was started: cut at %d", id, cut)
				require.Equal(t, slots.KindInterrupted, e.Result().Metadata.ErrorKind)
			default:
				require.True(t, fresh, "Start had not returned: cut at %d", cut)
				require.NoError(t, e.Start())
				e.Finish(ran("anew"))
			}
		}
		require.NoError(t, r.Close())
		// What was added behind a torn tail is found as well.
		r, err = Open(Config{Journal: crashed})
		require.NoError(t, err)
		require.Equal(t, len(promises), r.Len(), "cut at %d", cut)
		require.NoError(t, r.Close())
	}
}

func TestAFlippedByteNeverGivesAWrongResult(t *testing.T) {
	whole := record{event: eventStarted, at: time.Now(), fingerprint: printA, id: "x"}.appendTo(nil)
	whole = record{event: eventFinished, at: time.Now(), fingerprint: printA, id: "x", result: []byte(`{"output":"right"}`)}.appendTo(whole)
	for i := range whole {
		dir := t.TempDir()
		broken := bytes.Clone(whole)
		broken[i] ^= 0x40
		require.NoError(t, os.WriteFile((&journal{dir: dir}).path(1), broken, 0o600))
		r, err := Open(Config{Journal: dir})
		require.NoError(t, err)
		if e, ok := r.Get("x"); ok {
			assert.Equal(t, slots.KindInterrupted, e.Result().Metadata.ErrorKind, "byte %d", i)
		}
		assert.NotZero(t, r.Recovery().TornBytes)
		require.NoError(t, r.Close())
	}
}

func TestTheLastRecordOfAnIDHolds(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	started := func(id string) record { return record{event: eventStarted, at: now, fingerprint: printA, id: id} }
	finished := func(id, output string) record {
		return record{event: eventFinished, at: now, fingerprint: printA, id: id, result: []byte(`{"output":"` + output + `"}`)}
	}
	writeJournal(t, dir, 9, started("a"), finished("a", "1"), started("b"), finished("b", "1"), started("c"))
	writeJournal(t, dir, 10, started("a"), started("b"), finished("b", "2"), started("c"), finished("c", "1"))
	r := open(t, Config{Journal: dir})
	output := func(id string) string {
		e, ok := r.Get(id)
		require.True(t, ok)
		return e.Result().Output + string(e.Result().Metadata.ErrorKind)
	}
	assert.Equal(t, "interrupted", output("a"), "it was run again and did not end")
	assert.Equal(t, "2", output("b"))
	assert.Equal(t, "1", output("c"))
}

func TestRecordsTravelUnchanged(t *testing.T) {
	for _, r := range []record{
		{event: eventStarted, id: "x"},
		{event: eventStarted, id: strings.Repeat("é", 128), fingerprint: printB},
		{event: eventFinished, id: "a\x00b", result: []byte(strings.Repeat("{}", 1<<20))},
	} {
		r.at = time.UnixMilli(1_700_000_000_123)
		frame := r.appendTo([]byte("before"))
		got, rest, ok := cutRecord(append(frame[6:], "after"...))
		require.True(t, ok)
		assert.Equal(t, "after", string(rest))
		assert.Equal(t, string(r.result), string(got.result))
		r.result, got.result = nil, nil
		assert.Equal(t, r, got)
	}
}

func FuzzCutRecordReadsWholeRecordsOnly(f *testing.F) {
	f.Add(record{event: eventStarted, id: "x"}.appendTo(nil))
	f.Add(record{event: eventFinished, id: "x", result: []byte("{}")}.appendTo(nil))
	f.Add(binary.LittleEndian.AppendUint64(nil, 1<<63))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, rest, ok := cutRecord(b)
		if !ok {
			return
		}
		assert.Equal(t, string(b), string(r.appendTo(nil))+string(rest))
	})
}

func FuzzOpenTakesAnyJournal(f *testing.F) {
	f.Add(record{event: eventStarted, id: "x"}.appendTo(nil))
	f.Add(record{event: eventFinished, at: time.Now(), id: "x", result: []byte("no json")}.appendTo(nil))
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile((&journal{dir: dir}).path(1), content, 0o600))
		r, err := Open(Config{Journal: dir})
		require.NoError(t, err)
		_, _, _ = r.Begin(t.Context(), "x", printA)
		if e, ok := r.Get("x"); ok && e.run.finished {
			_ = e.Result()
		}
		require.NoError(t, r.Close())
	})
}

func TestAStoredResultThatIsNoJSONIsAnInternalError(t *testing.T) {
	dir := t.TempDir()
	writeJournal(t, dir, 1, record{event: eventFinished, at: time.Now(), fingerprint: printA, id: "x", result: []byte("{")})
	r := open(t, Config{Journal: dir})
	e, ok := r.Get("x")
	require.True(t, ok)
	assert.Equal(t, slots.KindInternal, e.Result().Metadata.ErrorKind)
}

func TestTheJournalStaysWithinItsBound(t *testing.T) {
	const keep = 64 << 10
	dir := t.TempDir()
	r := open(t, Config{Journal: dir, KeepBytes: keep})
	long := begin(t, r, "long")
	require.NoError(t, long.Start())
	for i := range 400 {
		runOne(t, r, fmt.Sprint(i), strings.Repeat("x", i*7%2000))
		require.LessOrEqual(t, sizeOnDisk(t, dir), int64(keep))
		require.LessOrEqual(t, len(segmentsOf(t, dir)), 2*segmentsPerJournal)
	}
	assert.Equal(t, r.journal.total, sizeOnDisk(t, dir))
	require.NoError(t, r.JournalErr())

	// Killed now: what runs since long ago is known all the same.
	crashed := open(t, Config{Journal: dir, KeepBytes: keep})
	e, ok := crashed.Get("long")
	require.True(t, ok)
	assert.Equal(t, slots.KindInterrupted, e.Result().Metadata.ErrorKind)
	assert.Equal(t, 1, crashed.Recovery().Interrupted)
	assert.Greater(t, crashed.Recovery().Finished, 20, "most of the bound is used")
	_, ok = crashed.Get("399")
	assert.True(t, ok)
}

func TestAnEndIsNeverForgottenBeforeItsStart(t *testing.T) {
	dir := t.TempDir()
	r := open(t, Config{Journal: dir, KeepBytes: MinKeepBytes})
	for i := range 200 {
		runOne(t, r, fmt.Sprint(i), strings.Repeat("x", 100))
		crashed, err := Open(Config{Journal: copyOf(t, dir), KeepBytes: MinKeepBytes})
		require.NoError(t, err)
		require.Zero(t, crashed.Recovery().Interrupted, "after %d", i)
		require.NoError(t, crashed.Close())
	}
}

func copyOf(tb testing.TB, dir string) string {
	tb.Helper()
	target := filepath.Join(tb.TempDir(), "copy")
	require.NoError(tb, os.CopyFS(target, os.DirFS(dir)))
	return target
}

func TestAResultAboveTheBoundIsAnsweredFromMemoryOnly(t *testing.T) {
	dir := t.TempDir()
	r := open(t, Config{Journal: dir, KeepBytes: MinKeepBytes})
	runOne(t, r, "x", strings.Repeat("x", 2*MinKeepBytes))
	require.Error(t, r.JournalErr())
	e, ok := r.Get("x")
	require.True(t, ok)
	assert.Len(t, e.Result().Output, 2*MinKeepBytes)
	r = open(t, Config{Journal: dir, KeepBytes: MinKeepBytes})
	e, ok = r.Get("x")
	require.True(t, ok)
	assert.Equal(t, slots.KindInterrupted, e.Result().Metadata.ErrorKind, "never run again")
}

func TestOldSegmentsGoWithTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		r := open(t, Config{Journal: dir, KeepBytes: 64 << 10, Keep: time.Minute})
		long := begin(t, r, "long")
		require.NoError(t, long.Start())
		for i := range 20 {
			runOne(t, r, fmt.Sprint(i), strings.Repeat("x", 2000))
		}
		assert.Greater(t, len(segmentsOf(t, dir)), 4)
		time.Sleep(2 * time.Minute)
		runOne(t, r, "later", "")
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Len(t, segmentsOf(t, dir), 1)
		require.NoError(t, r.JournalErr())
		crashed := open(t, Config{Journal: copyOf(t, dir)})
		e, ok := crashed.Get("long")
		require.True(t, ok, "what still runs was carried over")
		assert.Equal(t, slots.KindInterrupted, e.Result().Metadata.ErrorKind)
	})
}

func TestManyRestartsLeaveNoHeapOfFiles(t *testing.T) {
	dir := t.TempDir()
	for i := range 40 {
		r := open(t, Config{Journal: dir, KeepBytes: MinKeepBytes})
		runOne(t, r, fmt.Sprint(i), strings.Repeat("x", 1000))
		require.NoError(t, r.Close())
		require.LessOrEqual(t, sizeOnDisk(t, dir), int64(MinKeepBytes))
	}
	assert.Less(t, len(segmentsOf(t, dir)), 15)
	for range 5 {
		require.NoError(t, open(t, Config{Journal: dir, KeepBytes: MinKeepBytes}).Close())
	}
	assert.Less(t, len(segmentsOf(t, dir)), 15, "a start without executions writes nothing")
}

func TestAJournalThatCannotBeWrittenRefusesTheStart(t *testing.T) {
	dir, log := t.TempDir(), new(bytes.Buffer)
	logger := hclog.New(&hclog.LoggerOptions{Output: log})
	r := open(t, Config{Journal: dir, Logger: logger})
	runOne(t, r, "before", "")
	assert.Empty(t, log.String(), "all is well")
	before := sizeOnDisk(t, dir)
	// The kernel refuses writes to a file that was opened for reading.
	writable := r.journal.file
	readOnly, err := os.Open(writable.Name())
	require.NoError(t, err)
	r.journal.file = readOnly

	e := begin(t, r, "x")
	err = e.Start()
	requireKind(t, slots.KindInternal, err)
	assert.True(t, slots.AsError(err).Retryable)
	assert.False(t, e.Started())
	require.Error(t, r.JournalErr())
	e.Finish(ran(""))
	assert.Regexp(t, `(?s)^[^\n]*\[ERROR\] journal is not written: [^\n]* error="write journal: .*\n$`, log.String())

	// The next record begins a new segment.
	log.Reset()
	runOne(t, r, "x", "second try")
	require.NoError(t, r.JournalErr())
	assert.Regexp(t, `^[^\n]*\[INFO\]  journal is written again\n$`, log.String(), "and no more is said of the next ones")
	require.NoError(t, writable.Close())
	assert.Len(t, segmentsOf(t, dir), 2)
	assert.Greater(t, sizeOnDisk(t, dir), before)
	log.Reset()
	r = open(t, Config{Journal: dir, Logger: logger})
	assert.Equal(t, Recovery{Finished: 2}, r.Recovery())
	assert.Contains(t, log.String(), "executions read back from the journal: finished=2 interrupted=0 bytes_torn=0")
}

func TestOpenSaysWhyAJournalCannotBeHad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := Open(Config{Journal: file})
	require.ErrorContains(t, err, "open executions: make journal directory:")

	dir := t.TempDir()
	require.NoError(t, os.Mkdir((&journal{dir: dir}).path(1), 0o700))
	_, err = Open(Config{Journal: dir})
	require.ErrorContains(t, err, "open executions: read journal:")

	_, err = Open(Config{Journal: t.TempDir(), KeepBytes: MinKeepBytes - 1})
	assert.ErrorContains(t, err, "below the minimum")
}

func TestForeignFilesInTheJournalAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"notes.txt", "x.journal", "-1.journal", ".journal"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("text"), 0o600))
	}
	r := open(t, Config{Journal: dir})
	runOne(t, r, "x", "")
	assert.Equal(t, Recovery{}, r.Recovery())
	content, err := os.ReadFile(filepath.Join(dir, "notes.txt"))
	require.NoError(t, err)
	assert.Equal(t, "text", string(content))
}

func TestOnlyTheAgentCanReadTheJournal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	r := open(t, Config{Journal: dir})
	runOne(t, r, "x", "secret")
	for path, mode := range map[string]fs.FileMode{dir: 0o700, segmentsOf(t, dir)[0]: 0o600} {
		status, err := os.Stat(path)
		require.NoError(t, err)
		assert.Equal(t, mode, status.Mode().Perm())
	}
}

// TestStressConcurrentExecutionsSurviveARestart runs many executions at once
// over a journal that rotates all the time.
func TestStressConcurrentExecutionsSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	r := open(t, Config{Journal: dir, KeepBytes: 256 << 10})
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 100 {
				id := fmt.Sprintf("%d-%d", worker, i)
				e, fresh, err := r.Begin(t.Context(), id, printA)
				if err == nil {
					err = e.Start()
				}
				if err != nil || !fresh {
					t.Errorf("start %s: fresh %t, %v", id, fresh, err)
					return
				}
				if i == 99 {
					return // runs when the process is killed
				}
				e.Finish(ran("output of " + id))
			}
		})
	}
	wg.Wait()
	crashed := open(t, Config{Journal: copyOf(t, dir), KeepBytes: 256 << 10})
	assert.Equal(t, 8, crashed.Recovery().Interrupted)
	assert.Zero(t, crashed.Recovery().TornBytes)
	for worker := range 8 {
		for i := range 100 {
			id := fmt.Sprintf("%d-%d", worker, i)
			e, ok := crashed.Get(id)
			switch {
			case i == 99:
				require.True(t, ok)
				assert.Equal(t, slots.KindInterrupted, e.Result().Metadata.ErrorKind)
			case ok:
				assert.Equal(t, "output of "+id, e.Result().Output)
			}
		}
	}
	require.NoError(t, errors.Join(r.Close(), crashed.Close()))
}
