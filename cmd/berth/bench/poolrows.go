package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
	"berth/slots"
)

// poolMeasurements lists the rows of the pool's table.
func poolMeasurements() []measurement {
	const ms = " ms"
	at := func(v ...float64) []float64 { return v }
	row := func(b bar, measure func(context.Context, *bench) (finding, error)) measurement {
		return measurement{bar: b, pool: slotsPool, measure: measure}
	}
	return []measurement{
		row(bar{"orchestrator: what a call takes more than a direct one, one at a time, p50", ms, false, at(0.5), at(0.25)}, measureOverhead),
		row(bar{"acquire of a free slot over HTTP, p50 / p99", ms, false, at(3, 20), at(1, 5)}, measureAcquire),
		row(bar{"pool: 64 at once on 2 × 16 slots: executions per second", " × floor", true, at(0.7), at(1)}, measureThroughput),
		row(bar{"pool: 63 × true at once with one sleep 30: until each of the 63 is back, p99", ms, false, at(150), at(80)}, measureSleeper),
		row(bar{"pool: calls in each request to a container, 256 in flight", "", true, at(6), at(16)}, measureGathering),
		row(bar{"pool: 2 000 calls in flight on 2 × 16 slots: errors", "", false, at(0), nil}, measureFlood),
	}
}

// poolCall is a call of bash. The text needs no escapes.
func poolCall(command string) poolapi.Call {
	return poolapi.Call{Tool: "bash", Args: json.RawMessage(`{"command":"` + command + `"}`), TimeoutS: api.Seconds(120)}
}

// measureOverhead compares a call through the orchestrator with one of the
// same slot past it, in pairs, so that both find the same machine.
func measureOverhead(ctx context.Context, b *bench) (finding, error) {
	direct, call, err := b.pool.direct(ctx)
	if err != nil {
		return finding{}, err
	}
	defer direct.Close()
	lease, command := b.pool.leases[0], poolCall("true")
	took, err := inTurns(ctx, b.Runs, func(ctx context.Context) error {
		result, err := direct.Execute(ctx, call)
		if err != nil {
			return err
		}
		return succeeded(result)
	}, func(ctx context.Context) error {
		return b.pool.execute(ctx, lease, command)
	})
	if err != nil {
		return finding{}, err
	}
	more := make([]time.Duration, len(took[0]))
	for i := range more {
		more[i] = took[1][i] - took[0][i]
	}
	return finding{
		values: []float64{milliseconds(median(more))},
		detail: fmt.Sprintf("%.2f ms through it, %.2f direct; p99 %.2f and %.2f",
			milliseconds(median(took[1])), milliseconds(median(took[0])), milliseconds(percentile(took[1], 0.99)), milliseconds(percentile(took[0], 0.99))),
	}, nil
}

// measureAcquire takes the time of acquires. Releases, which reset, are apart.
func measureAcquire(ctx context.Context, b *bench) (finding, error) {
	var held poolapi.Lease
	n := 0
	took, err := inTurns(ctx, b.Runs, func(ctx context.Context) (err error) {
		n++
		held, err = b.pool.acquire(ctx, fmt.Sprintf("bench-once-%d", n))
		return err
	}, func(ctx context.Context) error {
		_, err := b.pool.client.Release(ctx, held.ID)
		return err
	})
	if err != nil {
		return finding{}, err
	}
	return finding{
		values: []float64{milliseconds(median(took[0])), milliseconds(percentile(took[0], 0.99))},
		detail: fmt.Sprintf("release with its reset %.2f / %.2f", milliseconds(median(took[1])), milliseconds(percentile(took[1], 0.99))),
	}, nil
}

// measureThroughput has every slot's trajectory keep two calls in flight, so
// that 64 are.
func measureThroughput(ctx context.Context, b *bench) (finding, error) {
	leases, err := b.pool.hold(ctx, allSlots)
	if err != nil {
		return finding{}, err
	}
	const workers = 2 * allSlots
	command := poolCall("true")
	rates, err := b.rates(ctx, workers, max(b.Runs, workers),
		func(ctx context.Context, _ int) error { return floor(ctx) },
		func(ctx context.Context, _ int) error { return floorWithOutput(ctx) },
		func(ctx context.Context, worker int) error {
			return b.pool.execute(ctx, leases[worker%len(leases)], command)
		})
	if err != nil {
		return finding{}, err
	}
	return compareRates(rates), nil
}

// measureSleeper sends 63 short calls together with one that sleeps, which
// must not hold them up. The sleeper has its slot for itself: order is kept
// within a slot.
func measureSleeper(ctx context.Context, b *bench) (finding, error) {
	leases, err := b.pool.hold(ctx, allSlots)
	if err != nil {
		return finding{}, err
	}
	var back []time.Duration
	for round := range 1 + max(b.Runs/roundShare, 1) {
		took, err := b.pool.besideSleeper(ctx, leases, fmt.Sprintf("sleeper-%d", round))
		if err != nil {
			return finding{}, err
		}
		if round > 0 { // the first one warms up
			back = append(back, took...)
		}
	}
	return finding{
		values: []float64{milliseconds(percentile(back, 0.99))},
		detail: fmt.Sprintf("p50 %.0f, worst %.0f of %d", milliseconds(median(back)), milliseconds(percentile(back, 1)), len(back)),
	}, nil
}

// besideSleeper sends the calls once and returns when each of the short ones
// was back. The sleeper has a name of its own, and is cancelled in the end.
func (p *pool) besideSleeper(ctx context.Context, leases []poolapi.Lease, name string) ([]time.Duration, error) {
	const short = 2*allSlots - 1
	sleeper, command, rest := poolCall("sleep 30"), poolCall("true"), leases[1:]
	sleeper.ExecutionID, sleeper.CancelStarted = name, true
	begun := time.Now()
	slept := make(chan struct{})
	go func() { // waited for below
		defer close(slept)
		_, _ = p.client.Execute(ctx, leases[0].ID, sleeper) // what became of it is told by its cancel
	}()
	var mu sync.Mutex
	var back []time.Duration // guarded by mu
	_, err := atOnce(ctx, short, short, func(ctx context.Context, worker int) error {
		err := p.execute(ctx, rest[worker%len(rest)], command)
		took := time.Since(begun)
		mu.Lock()
		defer mu.Unlock()
		back = append(back, took)
		return err
	})
	result, _, cancelErr := p.client.Cancel(ctx, leases[0].ID, name)
	<-slept
	if err = errors.Join(err, cancelErr); err == nil && result.Metadata.Outcome != slots.OutcomeCancelled {
		err = fmt.Errorf("the sleeper has %q instead of being cancelled: the others have waited for it", result.Metadata.Outcome)
	}
	return back, err
}

// What the orchestrator says of the calls that it has sent.
const (
	requestsMetric = "berth_dispatch_requests"
	callsMetric    = "berth_dispatch_calls"
)

// measureGathering counts the requests that carry the calls of a pool that has
// more of them than slots.
func measureGathering(ctx context.Context, b *bench) (finding, error) {
	const workers = 256
	leases, err := b.pool.hold(ctx, allSlots)
	if err != nil {
		return finding{}, err
	}
	// Only the middle counts: there is less in flight at both ends.
	command, n := poolCall("true"), max(16*b.Runs, 4*workers)
	var done atomic.Int64
	var before, after map[string]int
	rate, err := atOnce(ctx, workers, n, func(ctx context.Context, worker int) error {
		err := b.pool.execute(ctx, leases[worker%len(leases)], command)
		if err != nil {
			return err
		}
		switch done.Add(1) {
		case int64(n / 4):
			before, err = gauges(ctx, b.pool.running, requestsMetric, callsMetric)
		case int64(3 * n / 4):
			after, err = gauges(ctx, b.pool.running, requestsMetric, callsMetric)
		}
		return err
	})
	if err != nil {
		return finding{}, err
	}
	requests, calls := after[requestsMetric]-before[requestsMetric], after[callsMetric]-before[callsMetric]
	if requests <= 0 {
		return finding{}, fmt.Errorf("the orchestrator says that %d requests carried %d calls", requests, calls)
	}
	return finding{
		values: []float64{float64(calls) / float64(requests)},
		detail: fmt.Sprintf("%d calls in %d requests, %.0f/s", calls, requests, rate),
	}, nil
}

// measureFlood counts the calls of very many at once that do not succeed.
func measureFlood(ctx context.Context, b *bench) (finding, error) {
	const workers, spare = 2000, 200
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return finding{}, fmt.Errorf("ask for the limit of descriptors: %w", err)
	}
	if limit.Cur < workers+spare {
		return finding{}, fmt.Errorf("it needs %d descriptors, a process may open %d here: raise it by ulimit -n", workers+spare, limit.Cur)
	}
	leases, err := b.pool.hold(ctx, allSlots)
	if err != nil {
		return finding{}, err
	}
	command := poolCall("true")
	var mu sync.Mutex // guards what follows
	var now, most, failed int
	var first error
	rate, err := atOnce(ctx, workers, workers, func(ctx context.Context, worker int) error {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		err := b.pool.execute(ctx, leases[worker%len(leases)], command)
		mu.Lock()
		defer mu.Unlock()
		now--
		if err != nil {
			failed++
			first = cmp.Or(first, err)
		}
		return nil // it is counted
	})
	if err != nil {
		return finding{}, err
	}
	detail := fmt.Sprintf("%d at once at most, %.0f/s", most, rate)
	if first != nil {
		detail += fmt.Sprintf("; the first: %.200s", first)
	}
	return finding{values: []float64{float64(failed)}, detail: detail}, nil
}
