package dispatch_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/dispatch"
	"berth/sandboxd/api"
	"berth/slots"
)

const second = 1000 // milliseconds

// serve runs a test with a dispatcher for the container, on a clock of its
// own, and holds that nothing is left of its calls in the end.
func serve(t *testing.T, c *container, config dispatch.Config, test func(t *testing.T, d *dispatch.Dispatcher)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := dispatch.New(c, config)
		test(t, d)
		require.NoError(t, d.Close(t.Context()))
		s := d.Stats()
		assert.Zero(t, s.Waiting+s.Sent+s.Outside, "calls left")
		time.Sleep(time.Hour) // what nobody waits for ends in the container
	})
}

// occupy has so many calls under way in slots of their own.
func occupy(t *testing.T, d *dispatch.Dispatcher, n, ms int) {
	t.Helper()
	for i := range n {
		start(t.Context(), t, d, call(fmt.Sprint("busy", i), "", ms))
	}
	time.Sleep(100 * time.Millisecond)
	require.Equal(t, n, d.Stats().Sent)
}

func TestACallToAnIdleContainerIsSentAtOnce(t *testing.T) {
	c := &container{latency: time.Millisecond}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		began := time.Now()
		for i := range 10 {
			a, err := d.Do(t.Context(), call("slot_0", fmt.Sprint(i), 5))
			require.NoError(t, err)
			assert.Equal(t, fmt.Sprint(i), a.Result.Output)
			assert.Nil(t, a.Result.Index)
			assert.Zero(t, a.Timing.Queue+a.Timing.Dispatch)
		}
		assert.Equal(t, 10*7*time.Millisecond, time.Since(began), "latency and run, nothing else")
		assert.Equal(t, uint64(10), d.Stats().Requests)
	})
}

func TestTheNextCallIsSentWhileALongOneRuns(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		start(t.Context(), t, d, call("slot_0", "long", 30*second))
		a, err := d.Do(t.Context(), call("slot_1", "short", 1))
		require.NoError(t, err)
		assert.Zero(t, a.Timing.Dispatch)
	})
}

func TestCallsOfTheSameMomentGoTogetherOnABusyMachine(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		start(t.Context(), t, d, call("slot_0", "long", second))
		// With one processor, all of them can run before the first one does.
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
		before := d.Stats().Requests
		var callers sync.WaitGroup
		for i := range 32 {
			callers.Go(func() {
				_, err := d.Do(t.Context(), call(fmt.Sprint("short", i), "", 100))
				assert.NoError(t, err)
			})
		}
		callers.Wait()
		assert.LessOrEqual(t, d.Stats().Requests-before, uint64(2))
	})
}

func TestManyCallsGoInFewRequests(t *testing.T) {
	for _, shape := range []struct{ slots, atOnce int }{{16, 128}, {128, 128}} {
		t.Run(fmt.Sprintf("%d slots, %d at once", shape.slots, shape.atOnce), func(t *testing.T) {
			c := &container{latency: time.Millisecond}
			serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
				// As many slots as there are share the machine, so each takes longer.
				ms := shape.slots * 3 / 4
				var group sync.WaitGroup
				for i := range shape.atOnce {
					group.Go(func() {
						time.Sleep(time.Duration(i) * time.Millisecond / 4)
						for n := range 20 {
							_, err := d.Do(t.Context(), call(fmt.Sprint("slot_", i%shape.slots), "", ms+(i*7+n*5)%(1+ms/4)))
							assert.NoError(t, err)
						}
					})
				}
				group.Wait()
				s := d.Stats()
				assert.Equal(t, uint64(20*shape.atOnce), s.Calls)
				t.Logf("%d requests: one for %.1f calls", s.Requests, float64(s.Calls)/float64(s.Requests))
				assert.Greater(t, float64(s.Calls)/float64(s.Requests), 6.0)
			})
		})
	}
}

func TestALongCallDelaysNobodyInItsBatch(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		occupy(t, d, 600, 60*second)
		sleeper := start(t.Context(), t, d, call("slot_0", "sleep 30", 30*second))
		began := time.Now()
		var told []<-chan outcome
		for i := range 63 {
			told = append(told, start(t.Context(), t, d, call(fmt.Sprint("slot_", i+1), fmt.Sprint("true", i), 1)))
		}
		for _, o := range told {
			o := <-o
			require.Nil(t, o.err)
			assert.LessOrEqual(t, o.at.Sub(began), 15*time.Millisecond)
		}
		requests := c.handled()
		require.Len(t, requests[len(requests)-1], 64, "they were one batch")
		assert.Equal(t, 30*time.Second, (<-sleeper).at.Sub(began).Round(time.Second))
	})
}

func TestQuickCallsAreHardlyHeldBackBySlowOnes(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		occupy(t, d, 200, 60*second)
		var last dispatch.Answer
		for range 50 {
			start(t.Context(), t, d, call("slot_1", "", second/2))
			var err error
			last, err = d.Do(t.Context(), call("slot_0", "", 2))
			require.NoError(t, err)
			time.Sleep(time.Second)
		}
		assert.LessOrEqual(t, last.Timing.Dispatch, 2*time.Millisecond, "though every other call is slow")
	})
}

func TestACallIsNeverHeldLongerThanConfigured(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{MaxHold: 3 * time.Millisecond}, func(t *testing.T, d *dispatch.Dispatcher) {
		occupy(t, d, 200, 10*second)
		time.Sleep(10 * time.Second) // all calls take long by now
		occupy(t, d, 200, 20*second)
		a, err := d.Do(t.Context(), call("slot_0", "", 1))
		require.NoError(t, err)
		assert.Equal(t, 3*time.Millisecond, a.Timing.Dispatch)
	})
}

func TestEveryCallHasAnExecutionID(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		a, err := d.Do(t.Context(), call("slot_0", "", 1))
		require.NoError(t, err)
		assert.NotEmpty(t, a.Result.ExecutionID)
		b, err := d.Do(t.Context(), call("slot_0", "mine", 1))
		require.NoError(t, err)
		assert.Equal(t, []string{a.Result.ExecutionID, "mine"}, c.ran())
		assert.Equal(t, "mine", b.Result.ExecutionID)
	})
}

func TestARequestIsBounded(t *testing.T) {
	args := func(bytes int) json.RawMessage { return json.RawMessage(`"` + strings.Repeat("x", bytes-2) + `"`) }
	for name, test := range map[string]struct {
		sizes []int
		want  []int // calls of each request
	}{
		"by number":              {slices.Repeat([]int{10}, 10), []int{4, 4, 2}},
		"by bytes":               {[]int{60, 60, 30, 30, 10}, []int{3, 2}},
		"large ones alone":       {[]int{10, 500, 10, 500, 10}, []int{3, 1, 1}},
		"exactly at both limits": {[]int{25, 25, 25, 25, 25}, []int{4, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			c := &container{}
			serve(t, c, dispatch.Config{MaxBatch: 4, MaxBytes: 100}, func(t *testing.T, d *dispatch.Dispatcher) {
				occupy(t, d, 120, second)
				before := len(c.handled())
				for i, size := range test.sizes {
					next := call(fmt.Sprint("slot_", i), fmt.Sprint(i), 0)
					next.Args = args(size)
					start(t.Context(), t, d, next)
				}
				synctest.Wait()
				time.Sleep(50 * time.Millisecond)
				var got []int
				for _, ids := range c.handled()[before:] {
					got = append(got, len(ids))
				}
				slices.SortFunc(got, func(a, b int) int { return b - a }) // they race
				slices.SortFunc(test.want, func(a, b int) int { return b - a })
				assert.Equal(t, test.want, got)
			})
		})
	}
}

func TestCallersWaitForAPlaceInTheirOrder(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{MaxInFlight: 2}, func(t *testing.T, d *dispatch.Dispatcher) {
		ctx := t.Context()
		start(ctx, t, d, call("slot_0", "a", 10))
		start(ctx, t, d, call("slot_0", "b", 10))
		for _, id := range []string{"c", "given up", "d"} {
			mine, giveUp := context.WithCancel(ctx)
			go func() {
				_, err := d.Submit(mine, call("slot_0", id, 10))
				if id == "given up" {
					assert.Equal(t, slots.ExecutedNever, slots.AsError(err).Executed)
				} else {
					assert.NoError(t, err)
				}
			}()
			synctest.Wait()
			if id == "given up" {
				giveUp()
			}
			_ = giveUp
		}
		synctest.Wait()
		assert.Equal(t, dispatch.Stats{Requests: 1, Calls: 1, Waiting: 1, Sent: 1, Outside: 2}, d.Stats())
		time.Sleep(time.Second)
		assert.Equal(t, []string{"a", "b", "c", "d"}, c.ran())
		_, err := d.Submit(canceled(t), call("slot_0", "late", 1))
		assert.Equal(t, slots.ExecutedNever, slots.AsError(err).Executed)
	})
}

func canceled(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func TestOneLeaseCannotTakeAllPlaces(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{MaxInFlight: 6, MaxPerLease: 3}, func(t *testing.T, d *dispatch.Dispatcher) {
		for i := range 20 {
			go func() { _, _ = d.Do(t.Context(), call("slot_0", fmt.Sprint("greedy", i), second)) }()
		}
		synctest.Wait()
		assert.Equal(t, 17, d.Stats().Outside)
		a, err := d.Do(t.Context(), call("slot_1", "modest", 5))
		require.NoError(t, err)
		assert.Zero(t, a.Timing.Queue+a.Timing.Dispatch)
		time.Sleep(time.Minute)
		assert.Len(t, c.ran(), 21, "all of them had their turn")
	})
}

func TestACallThatIsNoJSONFailsAlone(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		bad := call("slot_0", "bad", 0)
		bad.Args = json.RawMessage(`{"command":`)
		a, err := d.Do(t.Context(), bad)
		assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind)
		assert.Equal(t, slots.ExecutedNever, slots.AsError(err).Executed)
		assert.Equal(t, "bad", a.Result.ExecutionID)
		assert.Empty(t, c.handled())
	})
}

func TestTimingAddsUp(t *testing.T) {
	c := &container{latency: 2 * time.Millisecond}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		ctx := t.Context()
		first := start(ctx, t, d, call("slot_0", "first", 10))
		second := start(ctx, t, d, call("slot_0", "second", 20)) // with third
		third := start(ctx, t, d, call("slot_0", "third", 30))
		fourth := start(ctx, t, d, call("slot_0", "fourth", 1))
		ms := time.Millisecond
		assert.Equal(t, dispatch.Timing{Run: 10 * ms, Transfer: 4 * ms}, (<-first).Timing)
		assert.Equal(t, dispatch.Timing{Queue: 14 * ms, Run: 20 * ms, Transfer: 4 * ms}, (<-second).Timing)
		assert.Nil(t, (<-fourth).Result.Index, "its batch is nothing to the caller")
		assert.Equal(t, dispatch.Timing{Queue: 14*ms + 20*ms, Run: 30 * ms, Transfer: 4 * ms}, (<-third).Timing)
	})
}

func TestAReplayRanInNoTime(t *testing.T) {
	c := &container{latency: 2 * time.Millisecond, garble: func(r *api.Result) bool {
		r.Metadata.Replayed, r.Metadata.QueueMS, r.Metadata.SpawnMS = true, 1, 1
		return true
	}}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		o := <-start(t.Context(), t, d, call("slot_0", "again", 10))
		require.NotNil(t, o.Result.Metadata.Receipt)
		assert.Equal(t, dispatch.Timing{Transfer: 14 * time.Millisecond}, o.Timing, "what it repeats was earlier")
	})
}

func TestTimesThatAContainerMakesUpAreCutToTheTruth(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		occupy(t, d, 60, second)
		c.garble = func(r *api.Result) bool {
			r.Metadata.QueueMS, r.Metadata.Receipt = -5, &api.Receipt{SpawnMS: 1, DurationMS: 1e300}
			return true
		}
		a := start(t.Context(), t, d, call("slot_0", "a", 10))
		b := start(t.Context(), t, d, call("slot_1", "b", 10))
		for _, o := range []outcome{<-a, <-b} {
			assert.Equal(t, dispatch.Timing{Dispatch: o.Timing.Dispatch, Spawn: time.Millisecond, Run: 9 * time.Millisecond}, o.Timing)
		}
	})
}

func TestCloseLetsCallsEndAndTakesNoMore(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{MaxInFlight: 2}, func(t *testing.T, d *dispatch.Dispatcher) {
		running := start(t.Context(), t, d, call("slot_0", "runs", second))
		queued := start(t.Context(), t, d, call("slot_0", "queued", second))
		go func() { _, _ = d.Do(t.Context(), call("slot_0", "outside", second)) }()
		synctest.Wait()
		closed := make(chan error)
		go func() { closed <- d.Close(t.Context()) }()
		synctest.Wait()
		_, err := d.Do(t.Context(), call("slot_1", "late", 1))
		assert.Equal(t, slots.KindDraining, slots.AsError(err).Kind)
		assert.Equal(t, slots.ExecutedNever, slots.AsError(err).Executed)
		require.NoError(t, <-closed)
		assert.Nil(t, (<-running).err)
		assert.Nil(t, (<-queued).err)
		assert.Equal(t, []string{"runs", "queued", "outside"}, c.ran())
	})
}

func TestCloseEndsCallsWhenItsTimeIsOver(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{MaxInFlight: 2}, func(t *testing.T, d *dispatch.Dispatcher) {
		running := start(t.Context(), t, d, call("slot_0", "runs", 60*second))
		queued := start(t.Context(), t, d, call("slot_0", "queued", second))
		outside := make(chan error)
		go func() {
			_, err := d.Do(t.Context(), call("slot_0", "outside", second))
			outside <- err
		}()
		synctest.Wait()
		why := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, why)
		defer cancel()
		require.ErrorIs(t, d.Close(ctx), why)
		for executed, err := range map[slots.Executed]*slots.Error{slots.ExecutedMaybe: (<-running).err, slots.ExecutedNever: (<-queued).err} {
			assert.Equal(t, slots.KindDraining, err.Kind)
			assert.Equal(t, executed, err.Executed)
		}
		assert.Equal(t, slots.ExecutedNever, slots.AsError(<-outside).Executed)
		time.Sleep(time.Minute)
	})
}
