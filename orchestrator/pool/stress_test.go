package pool_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/pool"
	"berth/slots"
)

// ledger is what all trajectories together believe to hold. Two that believe
// in the same slot at the same time are what must never be.
type ledger struct {
	mu      sync.Mutex
	beliefs map[string]belief
	twice   []string
	claims  int
}

type belief struct {
	lease pool.Lease
	until time.Time
}

// claim notes what an acquire or renewal has given.
func (l *ledger) claim(lease pool.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := lease.Container.ID + "/" + lease.Slot.SlotID
	l.claims++
	if b, ok := l.beliefs[key]; ok && b.lease.Ref() != lease.Ref() && time.Now().Before(b.until) {
		l.twice = append(l.twice, fmt.Sprintf("%s: %s by %s for %v more and %s by %s", key,
			b.lease.Ref(), b.lease.Slot.Trajectory, time.Until(b.until), lease.Ref(), lease.Slot.Trajectory))
	}
	l.beliefs[key] = belief{lease, lease.Slot.ExpiresAt}
}

// drop notes that the lease is about to be released.
func (l *ledger) drop(lease pool.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := lease.Container.ID + "/" + lease.Slot.SlotID
	if l.beliefs[key].lease.Ref() == lease.Ref() {
		delete(l.beliefs, key)
	}
}

// doubt notes that the lease may end earlier than it is believed to.
func (l *ledger) doubt(lease pool.Lease, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := lease.Container.ID + "/" + lease.Slot.SlotID
	if b := l.beliefs[key]; b.lease.Ref() == lease.Ref() && until.Before(b.until) {
		l.beliefs[key] = belief{lease, until}
	}
}

// chaos is one run of random operations.
type chaos struct {
	t       *testing.T
	fleet   *fleet
	pools   []*pool.Pools
	ledger  ledger
	left    atomic.Int64 // operations
	refused sync.Map     // kinds of errors that were met
}

// allowed are the failures that a random operation may meet, and nothing else.
var allowed = map[slots.Kind]bool{
	slots.KindPoolExhausted: true, slots.KindInterrupted: true, slots.KindContainerUnreachable: true, slots.KindFenced: true,
	slots.KindLeaseExpired: true, slots.KindSlotLost: true, slots.KindResetFailed: true, slots.KindNotFound: true,
}

func (c *chaos) met(err error) {
	if err == nil {
		return
	}
	if _, seen := c.refused.LoadOrStore(kind(err), err); !seen && !allowed[kind(err)] {
		assert.NoError(c.t, err)
	}
}

// work is one client with a few trajectories.
func (c *chaos) work(seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	p := c.pools[seed%uint64(len(c.pools))]
	held := map[string]pool.Lease{}
	for c.left.Add(-1) >= 0 {
		trajectory := fmt.Sprintf("%d.%d", seed, random.IntN(4))
		lease, has := held[trajectory]
		switch op := random.IntN(20); {
		case op < 9:
			ctx, cancel := c.t.Context(), func() {}
			if op == 0 {
				ctx, cancel = context.WithTimeout(ctx, time.Duration(random.IntN(40))*time.Millisecond)
			}
			got, err := p.Acquire(ctx, pool.Request{
				Template: "t", Trajectory: trajectory, TTL: time.Duration(1+random.IntN(4)) * time.Second,
				Wait: time.Duration(random.IntN(500)) * time.Millisecond,
			})
			cancel()
			if err == nil {
				if has && got.Ref() != lease.Ref() {
					c.ledger.drop(lease) // whoever is given another slot knows that the first is gone
				}
				c.ledger.claim(got)
				held[trajectory] = got
			}
			c.met(err)
		case op < 16 && has:
			c.ledger.drop(lease)
			delete(held, trajectory)
			_, err := p.Release(c.t.Context(), lease.Ref(), random.IntN(8) > 0)
			c.met(err)
			if random.IntN(3) == 0 && c.left.Add(-1) >= 0 { // twice, perhaps at the other one
				_, err = c.pools[random.IntN(len(c.pools))].Release(c.t.Context(), lease.Ref(), true)
				c.met(err)
			}
		case op < 18 && has:
			got, err := p.Renew(c.t.Context(), lease.Ref(), 2*time.Second)
			if err == nil {
				c.ledger.claim(got)
			} else { // it may have been made shorter
				c.ledger.doubt(lease, time.Now().Add(2*time.Second))
			}
			c.met(err)
		case op == 18: // let it run out
			delete(held, trajectory)
		default: // no operation
			c.left.Add(1)
			time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
		}
	}
}

// shake breaks containers and mends them until ctx ends.
func (c *chaos) shake(ctx context.Context, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 2))
	for sleep(ctx, time.Duration(random.IntN(400))*time.Millisecond) == nil {
		all := c.fleet.all()
		if len(all) == 0 {
			continue
		}
		one := all[random.IntN(len(all))]
		p := c.pools[random.IntN(len(c.pools))]
		switch random.IntN(12) {
		case 0: // dies
			c.fleet.kill(one.known.ID, "crashed")
		case 1, 2, 3: // flaps
			one.set(func() { one.cut = true })
			_ = sleep(ctx, time.Duration(random.IntN(6000))*time.Millisecond)
			one.set(func() { one.cut = false })
		case 4, 5: // loses answers
			own := rand.New(rand.NewPCG(random.Uint64(), 3))
			one.set(func() { one.mute = sometimes(own, 0.3) })
			_ = sleep(ctx, time.Second)
			one.set(func() { one.mute = nil })
		case 6: // is slow
			one.set(func() { one.takes = 300 * time.Millisecond })
			_ = sleep(ctx, time.Second)
			one.set(func() { one.takes = time.Millisecond })
		case 7: // cannot reset
			one.set(func() { one.dirty = true })
			_ = sleep(ctx, 500*time.Millisecond)
			one.set(func() { one.dirty = false })
		case 8, 9:
			_ = p.Cordon(ctx, one.known.ID, true) // it may have died
			_ = sleep(ctx, time.Second)
			_ = p.Cordon(ctx, one.known.ID, false)
		case 10:
			_ = p.Recycle(ctx, one.known.ID, 3*time.Second)
		default: // says that it is shutting down, and does not
			one.set(func() { one.drains = true })
			_ = sleep(ctx, 500*time.Millisecond)
			one.set(func() { one.drains = false })
		}
	}
}

// operations is how many random operations to do: the full million where
// BERTH_POOL_OPERATIONS says so.
func operations(t *testing.T) int64 {
	text := os.Getenv("BERTH_POOL_OPERATIONS")
	if text == "" {
		return 30_000
	}
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err)
	return n
}

func TestNoSlotEverHasTwoHolders(t *testing.T) {
	n, start := operations(t), time.Now()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		template := scaled(4, 8)
		template.Slots = 4
		c := &chaos{t: t, fleet: f, ledger: ledger{beliefs: map[string]belief{}}}
		c.left.Store(n)
		for range 2 {
			c.pools = append(c.pools, open(t, f, pool.Config{Templates: []pool.Template{template}, LostAfter: 10 * time.Second}))
		}
		ctx, calm := context.WithCancel(t.Context())
		var shakers, workers sync.WaitGroup
		for i := range 3 {
			shakers.Go(func() { c.shake(ctx, uint64(i)) })
		}
		for i := range 24 {
			workers.Go(func() { c.work(uint64(i)) })
		}
		workers.Wait()
		calm()
		shakers.Wait()
		assert.Empty(t, c.ledger.twice)
		assert.Greater(t, c.ledger.claims, int(n/8))

		// When all is quiet nothing is left of it: every slot is free again and
		// each view is right.
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		for _, one := range f.all() {
			assert.Zero(t, one.leased(), one.known.ID)
		}
		for _, p := range c.pools {
			s := p.Stats()[0]
			assert.Zero(t, s.Acquired)
			assert.Zero(t, s.Queue)
			assert.Equal(t, s.Slots, s.Available)
			assert.GreaterOrEqual(t, s.Slots, 16)
		}
		t.Logf("%d containers were started, %d leases given or renewed", f.starts(), c.ledger.claims)
	})
	t.Logf("%d operations in %v", n, time.Since(start).Round(time.Millisecond))
}

// heap is what is in use after a collection.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// fill leases every slot of 1 000 containers of 16.
func fill(t *testing.T, f *fleet, p *pool.Pools) {
	var tasks sync.WaitGroup
	for worker := range 16 {
		tasks.Go(func() {
			for i := range 1000 {
				_, err := p.Acquire(t.Context(), pool.Request{
					Template: "t", Trajectory: fmt.Sprintf("trajectory-%d-%d", worker, i), TTL: time.Hour, Wait: time.Minute,
					Labels: map[string]string{"run": "2026-01-01", "step": strconv.Itoa(i), "model": "small"},
				})
				assert.NoError(t, err)
			}
		})
	}
	tasks.Wait()
	assert.Equal(t, 16_000, p.Stats()[0].Acquired)
	assert.Len(t, f.all(), 1_000)
}

func TestSixteenThousandLeasesFitInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		for i := range 1000 {
			f.add(fmt.Sprintf("c%d", i), "t", 16)
		}
		empty := heap()
		first := open(t, f, pool.Config{})
		fill(t, f, first)
		both := heap() - empty // the simulated containers hold the leases as well
		require.NoError(t, first.Close())

		before := heap()
		p := open(t, f, pool.Config{}) // rebuilt from the containers
		rebuilt := heap() - before
		assert.Equal(t, 16_000, p.Stats()[0].Acquired)
		t.Logf("16 000 leases: %d KiB of the pool when rebuilt, %d KiB with the simulated containers", rebuilt>>10, both>>10)
		assert.Less(t, both, uint64(200<<20))
	})
}

// BenchmarkAcquireRelease is one caller on containers that answer at once.
func BenchmarkAcquireRelease(b *testing.B) {
	for _, n := range []int{2, 1000} {
		b.Run(fmt.Sprintf("containers=%d", n), func(b *testing.B) {
			f := newFleet()
			for i := range n {
				f.add(fmt.Sprintf("c%d", i), "t", 16)
			}
			p, err := pool.New(f, f.connect, pool.Config{Templates: []pool.Template{fixed()}})
			require.NoError(b, err)
			defer p.Close()
			require.NoError(b, p.Ready(b.Context()))
			var acquire time.Duration
			for b.Loop() {
				start := time.Now()
				l, err := p.Acquire(b.Context(), pool.Request{Template: "t", Trajectory: "x"})
				acquire += time.Since(start)
				if err == nil {
					_, err = p.Release(b.Context(), l.Ref(), true)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(acquire.Nanoseconds())/float64(b.N), "ns/acquire")
			b.ReportMetric(float64(p.Stats()[0].Waited.P50.Nanoseconds()), "p50-ns/acquire")
		})
	}
}
