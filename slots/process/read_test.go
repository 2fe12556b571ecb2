package process

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// follow reads from offset to the end and returns what it got and how many
// bytes it had to skip.
func follow(tb testing.TB, c *Capture, offset int64, most int) (got []byte, skipped int64) {
	tb.Helper()
	for {
		chunk, err := c.Next(tb.Context(), offset, most)
		if errors.Is(err, io.EOF) {
			return got, skipped
		}
		if gap, isGap := errors.AsType[*GapError](err); isGap {
			assert.Equal(tb, offset, gap.From)
			assert.Greater(tb, gap.To, offset)
			skipped += gap.To - offset
			offset = gap.To
			continue
		}
		if err != nil || len(chunk) == 0 {
			tb.Errorf("read at %d: %d bytes, %v", offset, len(chunk), err)
			return got, skipped
		}
		got = append(got, chunk...)
		offset += int64(len(chunk))
	}
}

func TestNextReadsTheStreamFromEveryOffset(t *testing.T) {
	stream := []byte("the quick brown fox jumps over the lazy dog")
	var f *os.File
	c := NewCapture(CaptureConfig{Window: 4, Spill: file(t, &f)}) // 8 bytes of head, 8 of tail
	writeInPieces(t, c, stream, rand.New(rand.NewPCG(1, 2)), 5)
	require.NoError(t, c.Close())
	for offset := range len(stream) + 1 {
		assert.EqualValues(t, len(stream), c.Reach(int64(offset)))
		for _, most := range []int{0, 1, 3, 100} {
			got, skipped := follow(t, c, int64(offset), most)
			assert.Equal(t, string(stream[offset:]), string(got))
			assert.Zero(t, skipped)
		}
	}
	require.NoError(t, c.Release())
}

func TestNextNamesTheBytesThatAreNoLongerKept(t *testing.T) {
	c := NewCapture(CaptureConfig{Window: 4})
	_, err := c.Write([]byte("01234567........89abcdef"))
	require.NoError(t, err)
	chunk, err := c.Next(t.Context(), 3, 0)
	require.NoError(t, err)
	assert.Equal(t, "34567", string(chunk), "what is left of the head")
	_, err = c.Next(t.Context(), 8, 0)
	assert.Equal(t, &GapError{From: 8, To: 16}, err)
	assert.EqualValues(t, 8, c.Reach(3), "the head")
	assert.EqualValues(t, 8, c.Reach(8))
	assert.EqualValues(t, 24, c.Reach(16), "the tail")
	require.EqualError(t, err, "output bytes 8 to 16 are no longer kept")
	chunk, err = c.Next(t.Context(), 16, 0)
	require.NoError(t, err)
	assert.Equal(t, "89abcdef", string(chunk))
}

func TestNextFindsAGapBehindASpillThatIsFull(t *testing.T) {
	spill := &brokenSpill{room: 20}
	c := NewCapture(CaptureConfig{Window: 4, Spill: func() (Spill, error) { return spill, nil }})
	stream := bytes.Repeat([]byte("0123456789"), 10)
	writeInPieces(t, c, stream, rand.New(rand.NewPCG(1, 2)), 5)
	require.NoError(t, c.Close())
	got, skipped := follow(t, c, 0, 0)
	assert.Equal(t, string(stream[:20])+string(stream[92:]), string(got))
	assert.EqualValues(t, 72, skipped)
	for offset, reach := range map[int64]int64{0: 20, 7: 20, 19: 20, 20: 20, 50: 50, 91: 91, 92: 100, 99: 100, 100: 100, 200: 200} {
		assert.Equal(t, reach, c.Reach(offset), "from %d", offset)
	}
}

func TestNextAfterReleaseIsAGapUpToTheEnd(t *testing.T) {
	c := NewCapture(CaptureConfig{})
	_, err := c.Write([]byte("gone"))
	require.NoError(t, err)
	require.NoError(t, c.Release())
	_, err = c.Next(t.Context(), 1, 0)
	assert.Equal(t, &GapError{From: 1, To: 4}, err)
	_, err = c.Next(t.Context(), 4, 0)
	assert.Equal(t, io.EOF, err)
}

func TestNextTakesASpillThatWasClosedMeanwhileForAGap(t *testing.T) {
	spill := &brokenSpill{room: 1000}
	c := NewCapture(CaptureConfig{Window: 2, Spill: func() (Spill, error) { return spill, nil }})
	_, err := c.Write([]byte("0123456789abcdef"))
	require.NoError(t, err)
	require.NoError(t, spill.Close())
	_, err = c.Next(t.Context(), 5, 0)
	assert.Equal(t, &GapError{From: 5, To: 12}, err)
}

func TestNextRefusesANegativeOffset(t *testing.T) {
	_, err := NewCapture(CaptureConfig{}).Next(t.Context(), -1, 0)
	assert.EqualError(t, err, "read output: offset -1 is negative")
}

func TestNextReturnsACopy(t *testing.T) {
	c := NewCapture(CaptureConfig{})
	_, err := c.Write([]byte("abc"))
	require.NoError(t, err)
	chunk, err := c.Next(t.Context(), 0, 0)
	require.NoError(t, err)
	chunk[0] = 'X'
	assert.Equal(t, "abc", c.Text().String)
}

func TestNextBlocksUntilThereIsMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCapture(CaptureConfig{})
		var got []string
		var wg sync.WaitGroup
		wg.Go(func() {
			for offset := int64(0); ; {
				chunk, err := c.Next(t.Context(), offset, 0)
				if err != nil {
					assert.Equal(t, io.EOF, err)
					return
				}
				got = append(got, string(chunk))
				offset += int64(len(chunk))
			}
		})
		synctest.Wait()
		assert.Empty(t, got)
		for i, p := range []string{"one", "two", "three"} {
			_, err := c.Write([]byte(p))
			require.NoError(t, err)
			synctest.Wait()
			assert.Len(t, got, i+1, "each write wakes the follower")
		}
		require.NoError(t, c.Close())
		wg.Wait()
		assert.Equal(t, []string{"one", "two", "three"}, got)
	})
}

func TestNextBeyondTheEndWaitsForThatOffset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCapture(CaptureConfig{})
		var chunk []byte
		var err error
		var wg sync.WaitGroup
		wg.Go(func() { chunk, err = c.Next(t.Context(), 5, 0) })
		_, _ = c.Write([]byte("01234"))
		synctest.Wait()
		assert.Nil(t, chunk)
		_, _ = c.Write([]byte("56"))
		wg.Wait()
		require.NoError(t, err)
		assert.Equal(t, "56", string(chunk))
	})
}

func TestNextEndsWithTheCauseOfItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCapture(CaptureConfig{})
		ctx, cancel := context.WithCancelCause(t.Context())
		var err error
		var wg sync.WaitGroup
		wg.Go(func() { _, err = c.Next(ctx, 0, 0) })
		synctest.Wait()
		gone := errors.New("the client is gone")
		cancel(gone)
		wg.Wait()
		assert.ErrorIs(t, err, gone)
	})
}

func TestFollowersSeeEveryByteInOrderWhileItIsWritten(t *testing.T) {
	stream := make([]byte, 300_000)
	random := rand.New(rand.NewPCG(11, 12))
	for i := range stream {
		stream[i] = byte(random.Uint32())
	}
	var f *os.File
	c := NewCapture(CaptureConfig{Window: 1000, Spill: file(t, &f)})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			got, skipped := follow(t, c, int64(i*1000), 1<<(6+2*i))
			assert.Zero(t, skipped)
			assert.True(t, bytes.Equal(stream[i*1000:], got), "follower %d", i)
		})
	}
	writeInPieces(t, c, stream, random, 3000)
	require.NoError(t, c.Close())
	wg.Wait()
	require.NoError(t, c.Release())
}

func TestFollowersWithoutASpillSeeBytesOrAGap(t *testing.T) {
	stream := bytes.Repeat([]byte("0123456789"), 20_000)
	c := NewCapture(CaptureConfig{Window: 100})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			got, skipped := follow(t, c, 0, 64)
			assert.EqualValues(t, len(stream), int64(len(got))+skipped)
		})
	}
	writeInPieces(t, c, stream, rand.New(rand.NewPCG(1, 2)), 50)
	require.NoError(t, c.Close())
	wg.Wait()
}

func TestEveryMethodMayRunBesideEveryOther(t *testing.T) {
	var f *os.File
	c := NewCapture(CaptureConfig{Window: 64, Spill: file(t, &f), Limit: 100, OnLimit: func() {}})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for range 300 {
				_, _ = c.Write([]byte("some output\n"))
			}
		})
		wg.Go(func() {
			for range 100 {
				_, _, _, _, _, _ = c.Text(), c.Bytes(), c.Total(), c.Kept(), c.Spilled(), c.SpillErr()
			}
		})
		wg.Go(func() { follow(t, c, 0, 7) })
	}
	wg.Go(func() {
		for c.Total() < 2000 {
			_, _ = c.Next(t.Context(), c.Total(), 1)
		}
		assert.NoError(t, c.Release())
	})
	wg.Wait()
}
