package dispatch_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/dispatch"
)

func TestALeasesCallsWaitForThoseBefore(t *testing.T) {
	// The first request lies in its socket while the second would be read.
	c := &container{unread: func(n int) time.Duration { return time.Duration(1-min(n, 1)) * time.Second }}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		first := start(t.Context(), t, d, call("slot_0", "0", 10))
		second := start(t.Context(), t, d, call("slot_0", "1", 10))
		third := start(t.Context(), t, d, call("slot_0", "2", 10))
		<-first
		<-second
		<-third
		assert.Equal(t, []string{"0", "1", "2"}, c.ran())
		assert.Equal(t, [][]string{{"0"}, {"1", "2"}}, c.handled(), "those that waited go together")
	})
}

func TestNobodyWaitsForAnotherLease(t *testing.T) {
	c := &container{unread: func(n int) time.Duration { return time.Duration(1-min(n, 1)) * time.Minute }}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		began := time.Now()
		stuck := start(t.Context(), t, d, leased(call("slot_0", "of the last tenant", 10), 1))
		synctest.Wait()
		next := start(t.Context(), t, d, leased(call("slot_0", "of the next tenant", 10), 2))
		free := start(t.Context(), t, d, call("slot_0", "of nobody", 10))
		other := start(t.Context(), t, d, leased(call("slot_1", "of another slot", 10), 1))
		for _, o := range []outcome{<-next, <-free, <-other} {
			require.Nil(t, o.err)
			assert.LessOrEqual(t, o.at.Sub(began), 30*time.Millisecond)
		}
		assert.Equal(t, time.Minute+10*time.Millisecond, (<-stuck).at.Sub(began))
	})
}

func TestALeasesCallsKeepTheirOrderWhateverBreaks(t *testing.T) {
	const leases, callsEach = 12, 60
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		fate := make([]int, 10_000)
		for i := range fate {
			fate[i] = r.IntN(8) - 4
		}
		c := &container{
			latency: time.Millisecond,
			unread:  func(n int) time.Duration { return time.Duration(fate[n*7%len(fate)]+4) * time.Millisecond },
			cut: func(try int, first string) int {
				if try < 2 { // the client gives up after three
					return fate[len(first)*31+int(first[len(first)-1])*17+try]
				}
				return -1
			},
		}
		serve(t, c, dispatch.Config{MaxBatch: 1 + r.IntN(40)}, func(t *testing.T, d *dispatch.Dispatcher) {
			next := make([]int, leases)
			for range leases * callsEach {
				l := r.IntN(leases)
				for next[l] == callsEach {
					l = (l + 1) % leases
				}
				start(t.Context(), t, d, call(fmt.Sprint(l), fmt.Sprintf("%d-%d", l, next[l]), r.IntN(5)))
				next[l]++
				if r.IntN(10) == 0 {
					time.Sleep(time.Duration(r.IntN(10)) * time.Millisecond)
				}
			}
			require.NoError(t, d.Close(t.Context()))
			synctest.Wait()
			ran := c.ran()
			require.Len(t, ran, leases*callsEach, "each ran once")
			for l := range leases {
				of := fmt.Sprintf("%d-", l)
				mine := slices.DeleteFunc(slices.Clone(ran), func(id string) bool { return !strings.HasPrefix(id, of) })
				require.Len(t, mine, callsEach)
				for i, id := range mine {
					require.Equal(t, fmt.Sprintf("%d-%d", l, i), id, "seed %d", seed)
				}
			}
		})
	}
}

func TestALateRepetitionRunsNothingAgain(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		// A client that lost its answer sends the call once more while the
		// first one is under way.
		first := start(t.Context(), t, d, call("slot_0", "a", 100))
		again := start(t.Context(), t, d, call("slot_0", "a", 100))
		assert.Equal(t, (<-first).Result.Output, (<-again).Result.Output)
		assert.Equal(t, []string{"a"}, c.ran())
	})
}
