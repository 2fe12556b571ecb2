package bench

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// warmup is how many runs precede those that count.
const warmup = 5

// percentile is the smallest of the values that a share p, above 0 and at
// most 1, of them does not exceed. Of no values it is the zero value.
func percentile[T cmp.Ordered](values []T, p float64) T {
	if len(values) == 0 {
		var none T
		return none
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(p * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

func median[T cmp.Ordered](values []T) T { return percentile(values, 0.5) }

// milliseconds of a duration.
func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// ratio is a / b.
func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }

// timed is one thing that is measured against others.
type timed func(ctx context.Context) error

// inTurns runs every one of them n times, one after the other in turns, and
// returns how long each run took, per thing. Warm-up runs come before.
func inTurns(ctx context.Context, n int, things ...timed) ([][]time.Duration, error) {
	took := make([][]time.Duration, len(things))
	for run := range warmup + n {
		for i, thing := range things {
			begun := time.Now()
			if err := thing(ctx); err != nil {
				return nil, err
			}
			if run >= warmup {
				took[i] = append(took[i], time.Since(begun))
			}
		}
	}
	return took, nil
}

// atOnce runs do n times by the given number of workers and returns how many
// ended per second. do gets the worker's number.
func atOnce(ctx context.Context, workers, n int, do func(ctx context.Context, worker int) error) (float64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var started atomic.Int64
	var wg sync.WaitGroup
	begun := time.Now()
	for worker := range workers {
		wg.Go(func() {
			for started.Add(1) <= int64(n) && ctx.Err() == nil {
				if err := do(ctx, worker); err != nil {
					cancel(fmt.Errorf("worker %d: %w", worker, err))
				}
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	return float64(n) / time.Since(begun).Seconds(), nil
}
