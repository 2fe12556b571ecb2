package recent

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/dispatch"
	"berth/orchestrator/pool"
	"berth/slots"
)

var epoch = time.Unix(1_000_000, 0)

func call(after, took time.Duration) Call {
	return Call{Ended: epoch.Add(after), Tool: "bash", Timing: dispatch.Timing{Run: took}}
}

// begun is a memory that began at epoch.
func begun() *Calls {
	c := New()
	c.turned = epoch
	return c
}

func TestEachSecondKnowsItsCalls(t *testing.T) {
	c := begun()
	for n := range 100 {
		c.Ended(call(0, time.Duration(n+1)*time.Millisecond), false)
	}
	failed := call(2*time.Second, time.Second)
	failed.Fault = slots.KindSlotLost
	c.Ended(failed, false)
	got := c.Seconds(epoch.Add(-time.Second), epoch.Add(4*time.Second))
	require.Len(t, got, 4)
	assert.Equal(t, []int{100, 0, 1, 0}, []int{got[0].Calls, got[1].Calls, got[2].Calls, got[3].Calls})
	assert.Equal(t, []int{0, 0, 1, 0}, []int{got[0].Faults, got[1].Faults, got[2].Faults, got[3].Faults})
	assert.Equal(t, epoch.Unix(), got[0].Unix)
	assert.InEpsilon(t, 50*time.Millisecond, got[0].P50, 0.126)
	assert.InEpsilon(t, 99*time.Millisecond, got[0].P99, 0.126)
	assert.Zero(t, got[1].P99)
	assert.Len(t, c.Seconds(epoch, epoch.Add(4*time.Second)), 3, "from there on")
	assert.Empty(t, c.Seconds(epoch.Add(time.Hour), epoch))
}

func TestWhatIsOlderThanTheWindowIsForgotten(t *testing.T) {
	c := begun()
	c.Ended(call(0, time.Hour), false)
	c.Ended(call(Window, time.Second), false) // in the same place of the ring
	got := c.Seconds(time.Time{}, epoch.Add(Window+time.Second))
	assert.Equal(t, int(ring)-1, len(got), "the second that is now is not whole") //nolint:testifylint // the list is long
	calls := 0
	for _, s := range got {
		calls += s.Calls
	}
	assert.Equal(t, 1, calls)
	assert.Len(t, c.Slowest(epoch.Add(Window)), 2)
	slow := c.Slowest(epoch.Add(Window + time.Second))
	require.Len(t, slow, 1)
	assert.Equal(t, time.Second, slow[0].Took())
	assert.Empty(t, c.Slowest(epoch.Add(3*Window)))
}

func TestTheSlowestAreKeptAndNoMore(t *testing.T) {
	c := begun()
	for n := range 1000 {
		one := call(0, time.Duration((n*7919)%1000)*time.Millisecond)
		one.Tool = strings.Repeat("x", 1000)
		c.Ended(one, false)
	}
	slow := c.Slowest(epoch)
	require.Len(t, slow, MaxSlowest)
	assert.LessOrEqual(t, cap(c.slowest), 4*MaxSlowest)
	for n, s := range slow {
		assert.Equal(t, time.Duration(999-n)*time.Millisecond, s.Took())
		assert.Len(t, s.Tool, maxText)
	}
}

func TestRunningCallsAreCountedByLease(t *testing.T) {
	c := New()
	one, two := pool.Ref{Container: "c", SlotID: "slot_0", Token: 1}, pool.Ref{Container: "c", SlotID: "slot_0", Token: 2}
	c.Began(one)
	c.Began(one)
	c.Began(two)
	c.Ended(Call{Lease: one}, true)
	c.Ended(Call{Lease: two}, true)
	c.Ended(Call{}, false)
	assert.Equal(t, map[pool.Ref]int{one: 1}, c.Running())
	c.Ended(Call{Lease: one}, true)
	assert.Empty(t, c.Running())
}

func TestNobodyRemembersNothing(t *testing.T) {
	var c *Calls
	c.Began(pool.Ref{})
	c.Ended(Call{}, true)
	assert.Empty(t, c.Running())
	assert.Empty(t, c.Seconds(time.Time{}, time.Now()))
	assert.Empty(t, c.Slowest(time.Now()))
}

func TestBucketsAreInOrderAndTrueToAnEighth(t *testing.T) {
	last := -1
	for us := range 1 << 14 {
		d := time.Duration(us) * time.Microsecond
		at := bucket(d)
		require.True(t, at == last || at == last+1, "%v", d)
		last = at
		require.GreaterOrEqual(t, longest(at), d)
		require.LessOrEqual(t, longest(at), d+d/8, "%v", d)
	}
	assert.Equal(t, maxBuckets-1, bucket(1000*time.Hour))
	assert.Zero(t, bucket(-time.Second))
	assert.Greater(t, longest(maxBuckets-1), time.Hour)
}

func TestManyNoteAtOnce(t *testing.T) {
	c := New()
	var group sync.WaitGroup
	for n := range 8 {
		group.Go(func() {
			ref := pool.Ref{Container: fmt.Sprint(n), SlotID: "slot_0", Token: 1}
			for k := range 1000 {
				c.Began(ref)
				c.Ended(Call{Ended: time.Now(), Lease: ref, Acquire: time.Duration(k)}, true)
				c.Slowest(time.Now())
			}
		})
	}
	group.Wait()
	assert.Empty(t, c.Running())
	calls := 0
	for _, s := range c.Seconds(time.Time{}, time.Now().Add(time.Second)) {
		calls += s.Calls
	}
	assert.Equal(t, 8000, calls)
	assert.True(t, slices.IsSortedFunc(c.Slowest(time.Now()), func(a, b Call) int { return int(b.Took() - a.Took()) }))
}

func BenchmarkNote(b *testing.B) {
	c, now := New(), time.Now()
	ref := pool.Ref{Container: "default-x7", SlotID: "slot_3", Token: 17}
	b.ReportAllocs()
	for b.Loop() {
		c.Began(ref)
		c.Ended(Call{Ended: now, Lease: ref, Tool: "bash", Timing: dispatch.Timing{Run: time.Millisecond}}, true)
	}
}
