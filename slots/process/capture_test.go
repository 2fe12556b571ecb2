package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// plainText is what Text promises, worked out from the whole stream.
func plainText(stream []byte, window int) Text {
	var runes []string // one per code point, wrong bytes as U+FFFD
	var sizes []int
	for b := stream; len(b) > 0; {
		r, size := utf8.DecodeRune(b)
		runes, sizes = append(runes, string(r)), append(sizes, size)
		b = b[size:]
	}
	if len(runes) <= window {
		return Text{String: strings.TrimRight(strings.Join(runes, ""), "\n"), Replaced: !utf8.Valid(stream)}
	}
	head, tail := (window+1)/2, len(runes)-window/2
	var headBytes, omitted int
	for i, size := range sizes {
		if i < head {
			headBytes += size
		} else if i < tail {
			omitted += size
		}
	}
	end := strings.TrimRight(strings.Join(runes[tail:], ""), "\n")
	return Text{
		String:    fmt.Sprintf("%s\n[... %d bytes omitted ...]\n%s", strings.Join(runes[:head], ""), omitted, end),
		Truncated: true,
		Replaced:  !utf8.Valid(stream[:headBytes]) || !utf8.Valid(stream[headBytes+omitted:]),
		Omitted:   int64(omitted),
		OmittedAt: int64(headBytes),
	}
}

// writeInPieces writes the stream by Writes of random lengths up to most.
func writeInPieces(tb testing.TB, c *Capture, stream []byte, random *rand.Rand, most int) {
	tb.Helper()
	for len(stream) > 0 {
		n := min(1+random.IntN(most), len(stream))
		written, err := c.Write(stream[:n])
		require.NoError(tb, err)
		require.Equal(tb, n, written)
		stream = stream[n:]
	}
}

func TestTextKeepsASmallStreamWhole(t *testing.T) {
	for name, c := range map[string]struct{ in, out string }{
		"nothing":               {"", ""},
		"one line":              {"hello\n", "hello"},
		"leading space stays":   {"  \n\tx\n", "  \n\tx"},
		"trailing newlines go":  {"a\n\n\n", "a"},
		"trailing spaces stay":  {"a  \n", "a  "},
		"carriage return stays": {"a\r\n", "a\r"},
		"NUL stays":             {"a\x00b", "a\x00b"},
		"escape codes stay":     {"\x1b[31mred\x1b[0m\n", "\x1b[31mred\x1b[0m"},
		"a real U+FFFD stays":   {"\uFFFD", "\uFFFD"},
	} {
		t.Run(name, func(t *testing.T) {
			capture := NewCapture(CaptureConfig{})
			_, err := capture.Write([]byte(c.in))
			require.NoError(t, err)
			assert.Equal(t, Text{String: c.out}, capture.Text())
			assert.Equal(t, c.in, string(capture.Bytes()))
			assert.EqualValues(t, len(c.in), capture.Total())
		})
	}
}

func TestTextShowsHeadAndTailOfALongStream(t *testing.T) {
	c := NewCapture(CaptureConfig{Window: 10})
	_, err := c.Write([]byte("0123456789abcdefghij\n\n"))
	require.NoError(t, err)
	text := c.Text()
	assert.Equal(t, "01234\n[... 12 bytes omitted ...]\nhij", text.String)
	assert.True(t, text.Truncated)
	assert.EqualValues(t, 12, text.Omitted)
	assert.EqualValues(t, 5, text.OmittedAt)
	assert.Equal(t, "01234hij\n\n", string(c.Bytes()))
}

func TestTextIsExactAtTheEdgeOfTheWindow(t *testing.T) {
	for _, window := range []int{1, 2, 3, 7, 100} {
		for _, letter := range []string{"a", "é", "€", "😀", "\xff"} {
			for _, n := range []int{window - 1, window, window + 1, 5 * window} {
				c := NewCapture(CaptureConfig{Window: window})
				stream := []byte(strings.Repeat(letter, n))
				writeInPieces(t, c, stream, rand.New(rand.NewPCG(1, 2)), 3)
				assert.Equal(t, plainText(stream, window), c.Text(), "%d of %q in %d", n, letter, window)
				assert.Equal(t, n > window, c.Text().Truncated)
			}
		}
	}
}

func TestF19CodePointsSplitByWritesStayWhole(t *testing.T) {
	stream := []byte(strings.Repeat("aé€😀", 40))
	for most := 1; most <= 5; most++ {
		c := NewCapture(CaptureConfig{Window: 31})
		writeInPieces(t, c, stream, rand.New(rand.NewPCG(3, uint64(most))), most)
		text := c.Text()
		assert.False(t, text.Replaced)
		assert.True(t, utf8.ValidString(text.String))
		assert.Equal(t, plainText(stream, 31), text)
	}
}

func TestF19WrongBytesAreReplacedAndReported(t *testing.T) {
	for in, out := range map[string]string{
		"a\xffb":       "a\uFFFDb",
		"\xe2\x82":     "\uFFFD\uFFFD", // the start of €
		"\xed\xa0\x80": "\uFFFD\uFFFD\uFFFD",
		"\xf0\x9f\x98": "\uFFFD\uFFFD\uFFFD",
		"ok\x80\n":     "ok\uFFFD",
	} {
		c := NewCapture(CaptureConfig{})
		_, err := c.Write([]byte(in))
		require.NoError(t, err)
		assert.Equal(t, Text{String: out, Replaced: true}, c.Text())
		assert.Equal(t, in, string(c.Bytes()), "the bytes are lossless")
	}
}

func TestTextAgreesWithTheWholeStreamHoweverItIsWritten(t *testing.T) {
	letters := []string{"a", "\n", "é", "€", "😀", "\xff", "\xe2\x82", "\x00"}
	random := rand.New(rand.NewPCG(5, 6))
	for round := range 400 {
		window := 1 + random.IntN(40)
		var stream []byte
		for range random.IntN(400) {
			stream = append(stream, letters[random.IntN(1+round%len(letters))]...)
		}
		c := NewCapture(CaptureConfig{Window: window})
		writeInPieces(t, c, stream, random, 1+random.IntN(64))
		require.Equal(t, plainText(stream, window), c.Text(), "window %d, stream %q", window, stream)
		require.EqualValues(t, len(stream), c.Total())
		want := plainText(stream, window)
		whole := append(stream[:want.OmittedAt:want.OmittedAt], stream[want.OmittedAt+want.Omitted:]...)
		require.Equal(t, string(whole), string(c.Bytes()))
	}
}

func FuzzTextAgreesWithTheWholeStream(f *testing.F) {
	f.Add([]byte("hello\nworld\n"), uint8(5), uint8(3))
	f.Add([]byte("\xe2\x82\xe2\x82\xac\xff"), uint8(2), uint8(1))
	f.Fuzz(func(t *testing.T, stream []byte, window, most uint8) {
		if window == 0 || most == 0 {
			t.Skip()
		}
		c := NewCapture(CaptureConfig{Window: int(window)})
		writeInPieces(t, c, stream, rand.New(rand.NewPCG(7, 8)), int(most))
		assert.Equal(t, plainText(stream, int(window)), c.Text())
	})
}

func TestWriteCopiesWhatItIsGiven(t *testing.T) {
	c := NewCapture(CaptureConfig{})
	p := []byte("before")
	_, err := c.Write(p)
	require.NoError(t, err)
	copy(p, "after!")
	assert.Equal(t, "before", c.Text().String)
}

func TestWriteAfterCloseIsRefused(t *testing.T) {
	c := NewCapture(CaptureConfig{})
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	_, err := c.Write([]byte("late"))
	require.ErrorIs(t, err, os.ErrClosed)
	assert.Zero(t, c.Total())
}

func TestLimitIsReportedOnceAndNothingIsLost(t *testing.T) {
	var calls atomic.Int32
	var c *Capture
	c = NewCapture(CaptureConfig{Limit: 10, OnLimit: func() {
		calls.Add(1)
		assert.EqualValues(t, 11, c.Total(), "no lock is held")
	}})
	for _, p := range []string{"0123456789", "a", "b", "c"} {
		_, err := c.Write([]byte(p))
		require.NoError(t, err)
	}
	assert.EqualValues(t, 1, calls.Load())
	assert.EqualValues(t, 13, c.Total())
	assert.Equal(t, "0123456789abc", c.Text().String)
}

func TestR11MemoryIsBoundWhateverIsWritten(t *testing.T) {
	c := NewCapture(CaptureConfig{})
	chunk := bytes.Repeat([]byte("yes it goes on and on and on.\n"), 2184) // about 64 KiB
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for written := 0; written < 300<<20; written += len(chunk) {
		_, err := c.Write(chunk)
		require.NoError(t, err)
	}
	runtime.ReadMemStats(&after)
	bound := uint64(DefaultWindow * maxRune)
	assert.LessOrEqual(t, after.TotalAlloc-before.TotalAlloc, 3*bound, "all that was ever allocated")
	assert.LessOrEqual(t, c.Kept(), int64(bound))
	text := c.Text()
	assert.True(t, text.Truncated)
	assert.True(t, strings.HasSuffix(text.String, "on and on."), "the end of the log is kept")
}

func TestASmallStreamTakesOneSmallAllocation(t *testing.T) {
	line := []byte("ok: 12 tests passed in 0.2 s\n")
	captures := make([]*Capture, 101)
	for i := range captures {
		captures[i] = NewCapture(CaptureConfig{})
	}
	i := 0
	allocations := testing.AllocsPerRun(100, func() {
		_, _ = captures[i].Write(line)
		i++
	})
	assert.LessOrEqual(t, allocations, 1.0)
	assert.LessOrEqual(t, captures[0].Kept(), int64(64))
}

// file makes a real spill file and remembers it.
func file(tb testing.TB, opened **os.File) func() (Spill, error) {
	tb.Helper()
	return func() (Spill, error) {
		f, err := os.Create(filepath.Join(tb.TempDir(), "spill"))
		*opened = f
		return f, err
	}
}

func TestSpillHoldsTheWholeStream(t *testing.T) {
	var f *os.File
	c := NewCapture(CaptureConfig{Window: 50, Spill: file(t, &f)})
	random := rand.New(rand.NewPCG(9, 10))
	stream := make([]byte, 5000)
	for i := range stream {
		stream[i] = byte(random.Uint32())
	}
	writeInPieces(t, c, stream[:50], random, 7)
	require.Nil(t, f, "a stream within the window opens no spill")
	assert.Zero(t, c.Spilled())
	writeInPieces(t, c, stream[50:], random, 300)
	require.NotNil(t, f)
	onDisk, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	assert.True(t, bytes.Equal(stream, onDisk))
	assert.EqualValues(t, len(stream), c.Spilled())
	assert.NoError(t, c.SpillErr())
	require.NoError(t, c.Release())
	_, err = f.Write([]byte("x"))
	assert.ErrorIs(t, err, os.ErrClosed, "release closes it")
}

func TestSpillIsOpenWheneverTextIsTruncated(t *testing.T) {
	for n := range 40 {
		var f *os.File
		c := NewCapture(CaptureConfig{Window: 20, Spill: file(t, &f)})
		writeInPieces(t, c, bytes.Repeat([]byte("x"), n), rand.New(rand.NewPCG(1, 1)), 40)
		assert.Equal(t, c.Text().Truncated, f != nil)
		require.NoError(t, c.Release())
	}
}

func TestSpillStopsAtItsBound(t *testing.T) {
	for _, bound := range []int64{5, 10, 15, 999, 1000} {
		var f *os.File
		c := NewCapture(CaptureConfig{Window: 10, Spill: file(t, &f), SpillMax: bound})
		writeInPieces(t, c, bytes.Repeat([]byte("0123456789"), 100), rand.New(rand.NewPCG(1, uint64(bound))), 30)
		assert.Equal(t, bound, c.Spilled())
		require.NoError(t, c.SpillErr())
		status, err := f.Stat()
		require.NoError(t, err)
		assert.Equal(t, bound, status.Size())
		require.NoError(t, c.Release())
	}
}

// brokenSpill takes room bytes and fails then.
type brokenSpill struct {
	mu     sync.Mutex
	room   int
	taken  []byte
	closed bool
}

var errFull = errors.New("no space left")

func (b *brokenSpill) WriteAt(p []byte, offset int64) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(p), b.room-int(offset))
	b.taken = append(b.taken, p[:n]...)
	if n < len(p) {
		return n, errFull
	}
	return n, nil
}

func (b *brokenSpill) ReadAt(p []byte, offset int64) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, os.ErrClosed
	}
	n := copy(p, b.taken[offset:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (b *brokenSpill) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return nil
}

func TestAFullSpillIsNotedAndWritingGoesOn(t *testing.T) {
	for _, room := range []int{0, 8, 20, 33} {
		spill := &brokenSpill{room: room}
		c := NewCapture(CaptureConfig{Window: 8, Spill: func() (Spill, error) { return spill, nil }})
		stream := []byte(strings.Repeat("0123456789", 20))
		writeInPieces(t, c, stream, rand.New(rand.NewPCG(2, uint64(room))), 9)
		require.ErrorIs(t, c.SpillErr(), errFull)
		assert.EqualValues(t, room, c.Spilled())
		assert.Equal(t, string(stream[:room]), string(spill.taken))
		assert.Equal(t, plainText(stream, 8), c.Text())
		require.NoError(t, c.Release())
		assert.True(t, spill.closed)
	}
}

func TestASpillThatCannotBeOpenedIsAskedForOnce(t *testing.T) {
	calls := 0
	c := NewCapture(CaptureConfig{Window: 4, Spill: func() (Spill, error) {
		calls++
		return nil, errFull
	}})
	writeInPieces(t, c, bytes.Repeat([]byte("x"), 100), rand.New(rand.NewPCG(1, 1)), 9)
	assert.Equal(t, 1, calls)
	require.ErrorIs(t, c.SpillErr(), errFull)
	assert.Zero(t, c.Spilled())
	require.NoError(t, c.Release())
}

func TestReleaseDropsTheWindowAndKeepsTheCounts(t *testing.T) {
	c := NewCapture(CaptureConfig{})
	_, err := c.Write([]byte("gone"))
	require.NoError(t, err)
	require.NoError(t, c.Release())
	require.NoError(t, c.Release())
	assert.Zero(t, c.Kept())
	assert.EqualValues(t, 4, c.Total())
	assert.EqualValues(t, 4, c.Text().Omitted)
	assert.Empty(t, c.Bytes())
	_, err = c.Write([]byte("late"))
	assert.ErrorIs(t, err, os.ErrClosed)
}
