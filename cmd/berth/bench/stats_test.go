package bench

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPercentileIsOneOfTheValues(t *testing.T) {
	for _, c := range []struct {
		values []float64
		p      float64
		want   float64
	}{
		{nil, 0.5, 0},
		{[]float64{7}, 0.01, 7},
		{[]float64{7}, 1, 7},
		{[]float64{3, 1, 2}, 0.5, 2},
		{[]float64{4, 3, 2, 1}, 0.5, 2},
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0.9, 9},
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0.99, 10},
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 1, 10},
		{[]float64{2, 2, 2, 9}, 0.75, 2},
	} {
		assert.InDelta(t, c.want, percentile(c.values, c.p), 0, "%v %v", c.values, c.p)
	}
	values := []time.Duration{3, 1, 2}
	assert.Equal(t, time.Duration(2), median(values))
	assert.Equal(t, []time.Duration{3, 1, 2}, values, "the values stay as they are")
}

func TestThingsRunInTurnsAndTheWarmUpDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		thing := func(name string, took time.Duration) timed {
			return func(context.Context) error {
				order = append(order, name)
				time.Sleep(took)
				if len(order) <= 2*warmup {
					time.Sleep(time.Hour)
				}
				return nil
			}
		}
		took, err := inTurns(t.Context(), 3, thing("a", time.Second), thing("b", 2*time.Second))
		require.NoError(t, err)
		assert.Equal(t, [][]time.Duration{
			{time.Second, time.Second, time.Second},
			{2 * time.Second, 2 * time.Second, 2 * time.Second},
		}, took)
		for i, name := range order {
			assert.Equal(t, []string{"a", "b"}[i%2], name)
		}
	})
}

func TestTurnsEndWithTheFirstError(t *testing.T) {
	broken := errors.New("broken")
	_, err := inTurns(t.Context(), 3, func(context.Context) error { return broken })
	assert.ErrorIs(t, err, broken)
}

func TestARateIsOfAllWorkersTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs [4]atomic.Int64
		rate, err := atOnce(t.Context(), 4, 40, func(_ context.Context, worker int) error {
			runs[worker].Add(1)
			time.Sleep(time.Second)
			return nil
		})
		require.NoError(t, err)
		assert.InDelta(t, 4, rate, 1e-9)
		for worker := range runs {
			assert.EqualValues(t, 10, runs[worker].Load())
		}
	})
}

func TestARateEndsWithTheFirstErrorAndWithItsContext(t *testing.T) {
	broken := errors.New("broken")
	var runs atomic.Int64
	_, err := atOnce(t.Context(), 2, 1_000_000, func(context.Context, int) error {
		runs.Add(1)
		return broken
	})
	require.ErrorIs(t, err, broken)
	assert.LessOrEqual(t, runs.Load(), int64(2))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	_, err = atOnce(ctx, 2, 10, func(context.Context, int) error { return nil })
	assert.ErrorIs(t, err, broken)
}

func TestTheFloorRuns(t *testing.T) {
	require.NoError(t, floor(t.Context()))
	require.NoError(t, floorWithOutput(t.Context()))
	t.Setenv("PATH", t.TempDir())
	require.Error(t, floor(t.Context()))
	require.Error(t, floorWithOutput(t.Context()))
}
