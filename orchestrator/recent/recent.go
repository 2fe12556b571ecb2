package recent

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"berth/orchestrator/dispatch"
	"berth/orchestrator/pool"
	"berth/slots"
)

// Window is how far back the memory reaches at least.
const Window = 5 * time.Minute

// MaxSlowest is how many of the slowest calls are told.
const MaxSlowest = 20

// maxText bounds what is kept of a tool's name, in bytes: nobody has checked it.
const maxText = 64

// Call is a call that has ended.
type Call struct {
	Ended      time.Time
	Lease      pool.Ref // zero: it never had a slot
	Trajectory string   // "" when the caller only named the lease
	Tool       string
	Timing     dispatch.Timing
	Acquire    time.Duration // waited for a slot
	Outcome    slots.Outcome // "": no process ran
	Fault      slots.Kind    // why it could not be carried out; "": it was
}

// Took is the whole time of the call.
func (c Call) Took() time.Duration {
	t := c.Timing
	return c.Acquire + t.Queue + t.Dispatch + t.Spawn + t.Run + t.Transfer
}

// Second is what ended in one second.
type Second struct {
	Unix     int64 // seconds since 1970
	Calls    int
	Faults   int           // of them those that could not be carried out
	P50, P99 time.Duration // of the time that the calls took, to an eighth; 0: there were none
}

// second is one place of the ring.
type second struct {
	unix          int64
	calls, faults uint32
	took          histogram
}

// ring is how many seconds are remembered.
const ring = int64(Window / time.Second)

// Calls is the memory. All methods may be called at once, also of nil, which
// remembers nothing.
type Calls struct {
	mu      sync.Mutex // guards what is below; nothing is called under it
	seconds [ring]second
	running map[pool.Ref]int
	turned  time.Time // when slowest began
	slowest []Call    // slowest first
	before  []Call    // those of the stretch before
}

// New makes an empty memory.
func New() *Calls { return &Calls{running: map[pool.Ref]int{}, turned: time.Now()} }

// Began notes that the lease has one more call under way.
func (c *Calls) Began(lease pool.Ref) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running[lease]++
}

// Ended notes a call. began says that Began was told of it.
func (c *Calls) Ended(call Call, began bool) {
	if c == nil {
		return
	}
	unix, took := call.Ended.Unix(), call.Took()
	c.mu.Lock()
	defer c.mu.Unlock()
	if began {
		if c.running[call.Lease]--; c.running[call.Lease] <= 0 {
			delete(c.running, call.Lease)
		}
	}
	at := &c.seconds[unix%ring]
	if at.unix != unix {
		*at = second{unix: unix}
	}
	at.calls++
	if call.Fault != "" {
		at.faults++
	}
	at.took.add(took)
	c.rankLocked(call, took)
}

// rankLocked keeps the call if it is among the slowest.
func (c *Calls) rankLocked(call Call, took time.Duration) {
	if call.Ended.Sub(c.turned) >= Window {
		c.before, c.slowest, c.turned = c.slowest, nil, call.Ended
	}
	if len(c.slowest) == MaxSlowest && took <= c.slowest[MaxSlowest-1].Took() {
		return
	}
	if len(call.Tool) > maxText {
		call.Tool = call.Tool[:maxText]
	}
	at, _ := slices.BinarySearchFunc(c.slowest, took, func(have Call, took time.Duration) int {
		return cmp.Compare(took, have.Took())
	})
	c.slowest = slices.Insert(c.slowest, at, call)
	if len(c.slowest) > MaxSlowest {
		c.slowest = c.slowest[:MaxSlowest]
	}
}

// Running says how many calls each lease has under way; those with none are
// left out.
func (c *Calls) Running() map[pool.Ref]int {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.running)
}

// Seconds returns the whole seconds after since and before now, at most
// those of Window, the oldest first, also those in which nothing ended.
func (c *Calls) Seconds(since, now time.Time) []Second {
	if c == nil {
		return nil
	}
	from, to := max(since.Unix(), now.Unix()-ring)+1, now.Unix()
	all := make([]Second, 0, max(0, to-from))
	c.mu.Lock()
	defer c.mu.Unlock()
	for unix := from; unix < to; unix++ {
		s := Second{Unix: unix}
		if at := &c.seconds[unix%ring]; at.unix == unix {
			s.Calls, s.Faults = int(at.calls), int(at.faults)
			s.P50, s.P99 = at.took.quantile(at.calls, 50), at.took.quantile(at.calls, 99)
		}
		all = append(all, s)
	}
	return all
}

// Slowest returns the slowest calls of the last Window, slowest first.
func (c *Calls) Slowest(now time.Time) []Call {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	all := slices.Concat(c.slowest, c.before)
	c.mu.Unlock()
	all = slices.DeleteFunc(all, func(call Call) bool { return now.Sub(call.Ended) > Window })
	slices.SortStableFunc(all, func(a, b Call) int { return cmp.Compare(b.Took(), a.Took()) })
	return all[:min(len(all), MaxSlowest)]
}
