package dispatch_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/dispatch"
	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/slots"
)

const slotsEach = 16

// agents starts real agents, at the strongest level that the machine offers.
func agents(t testing.TB, n int) []*agenttest.Agent {
	t.Helper()
	if testing.Short() {
		t.Skip("real agents take seconds to start")
	}
	level := slots.LevelNone
	if os.Geteuid() == 0 {
		levels := agenttest.Levels(t)
		level = levels[len(levels)-1]
	}
	all := make([]*agenttest.Agent, n)
	for i := range all {
		all[i] = agenttest.Start(t, agenttest.Options{Level: level, Slots: slotsEach})
	}
	return all
}

func command(slot int, text string) dispatch.Call {
	args, err := json.Marshal(map[string]string{"command": text})
	if err != nil {
		panic(err)
	}
	return dispatch.Call{Call: api.Call{SlotID: fmt.Sprintf("slot_%d", slot), Tool: "bash", Args: args}}
}

// doer is a way to run a call.
type doer func(ctx context.Context, call dispatch.Call) error

func direct(a *agenttest.Agent) doer {
	return func(ctx context.Context, call dispatch.Call) error {
		_, err := a.Execute(ctx, call.Call)
		return err
	}
}

func dispatched(d *dispatch.Dispatcher) doer {
	return func(ctx context.Context, call dispatch.Call) error {
		_, err := d.Do(ctx, call)
		return err
	}
}

// crowd runs so many calls over all slots of all ways, atOnce of them at any
// time, and returns how long each and all of them took.
func crowd(t testing.TB, ways []doer, atOnce, calls int) (each []time.Duration, all time.Duration) {
	t.Helper()
	each = make([]time.Duration, calls)
	var next, failed atomic.Int64
	var group sync.WaitGroup
	start := time.Now()
	for i := range atOnce {
		group.Go(func() {
			way := ways[i%len(ways)]
			call := command(i/len(ways)%slotsEach, "true")
			for n := next.Add(1); n <= int64(calls); n = next.Add(1) {
				began := time.Now()
				if way(t.Context(), call) != nil {
					failed.Add(1)
				}
				each[n-1] = time.Since(began)
			}
		})
	}
	group.Wait()
	assert.Zero(t, failed.Load(), "calls that failed")
	slices.Sort(each)
	return each, time.Since(start)
}

func quantile(sorted []time.Duration, percent int) time.Duration {
	return sorted[(len(sorted)-1)*percent/100]
}

func TestAgentsServeManyCallsInFewRequests(t *testing.T) {
	var plain, ours []doer
	var ds []*dispatch.Dispatcher
	for _, a := range agents(t, 2) {
		d := dispatch.New(a, dispatch.Config{})
		t.Cleanup(func() { assert.NoError(t, d.Close(context.Background())) })
		ds, plain, ours = append(ds, d), append(plain, direct(a)), append(ours, dispatched(d))
	}
	crowd(t, plain, 32, 100) // warm

	t.Run("one at a time", func(t *testing.T) {
		// In turns, so that both meet the same machine.
		var one, other []time.Duration
		for range 300 {
			for way, took := range map[*doer]*[]time.Duration{&plain[0]: &one, &ours[0]: &other} {
				began := time.Now()
				require.NoError(t, (*way)(t.Context(), command(0, "true")))
				*took = append(*took, time.Since(began))
			}
		}
		slices.Sort(one)
		slices.Sort(other)
		t.Logf("p50 direct %v, dispatched %v: %v more", quantile(one, 50), quantile(other, 50), quantile(other, 50)-quantile(one, 50))
	})

	for _, size := range []struct{ atOnce, calls int }{{64, 640}, {256, 1500}, {2000, 2000}} {
		t.Run(fmt.Sprintf("%d at once", size.atOnce), func(t *testing.T) {
			report := func(name string, each []time.Duration, all time.Duration) {
				t.Logf("%s: %.0f executions/s, p50 %v, p99 %v", name, float64(size.calls)/all.Seconds(), quantile(each, 50), quantile(each, 99))
			}
			if size.atOnce < 2000 {
				each, all := crowd(t, plain, size.atOnce, size.calls)
				report("direct    ", each, all)
			}
			before := counts(ds)
			each, all := crowd(t, ours, size.atOnce, size.calls)
			report("dispatched", each, all)
			after := counts(ds)
			t.Logf("one request for %.1f calls", float64(after.Calls-before.Calls)/float64(after.Requests-before.Requests))
		})
	}

	t.Run("63 short ones and a long one", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		long := command(0, "sleep 30")
		long.CancelStarted = true
		sleeper := make(chan error, 1)
		go func() { sleeper <- ours[0](ctx, long) }() // ends with its context
		each := make([]time.Duration, 63)
		var group sync.WaitGroup
		start := time.Now()
		for i := range each {
			group.Go(func() {
				assert.Nil(t, slots.AsError(ours[i%2](t.Context(), command(1+i/2%(slotsEach-1), "true"))))
				each[i] = time.Since(start)
			})
		}
		group.Wait()
		slices.Sort(each)
		t.Logf("the 63: p50 %v, p99 %v", quantile(each, 50), quantile(each, 99))
		assert.Less(t, each[62], 20*time.Second, "none waited for the long one")
		cancel()
		assert.Equal(t, slots.ExecutedMaybe, slots.AsError(<-sleeper).Executed)
	})
}

func counts(ds []*dispatch.Dispatcher) (sum dispatch.Stats) {
	for _, d := range ds {
		s := d.Stats()
		sum.Requests, sum.Calls = sum.Requests+s.Requests, sum.Calls+s.Calls
	}
	return sum
}
