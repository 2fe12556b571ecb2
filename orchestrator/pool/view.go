package pool

import (
	"cmp"
	"container/heap"
	"time"

	"berth/orchestrator/backend"
	"berth/slots"
)

// container is one container as the pool sees it. The pool's mutex guards all
// that is not fixed.
type container struct {
	pool *pool
	id   string
	wake chan struct{} // holds a token when the watcher has something to look at
	read chan struct{} // closed when its slots were read once, or it was found unreachable
	gone chan struct{} // closed when it is no more

	known  backend.Container
	remote Remote
	slots  map[string]*slot
	free   int // slots that could be leased
	leased int // slots with a lease, releases under way included
	asked  int // acquires under way

	stale    bool      // a request failed: no new leases until its slots were read again
	failures int       // of acquires in a row
	restOver time.Time // no reading counts against stale before
	misses   int       // failed looks in a row
	misread  error     // the last of them
	silent   bool      // too many: no new leases
	seen     time.Time // last answer
	readAt   time.Time // last full reading; zero: none
	closing  bool      // it says that it is shutting down
	closesAt time.Time // and until when it serves leases; zero: it does not say
	draining bool
	replaced bool // what was to be started in its place was, by whoever had to
	stopping bool
	closes   bool // its free slots are being taken; see close.go
	removed  bool
	empty    time.Time // since when it has no lease

	doubts map[string]time.Time // grants whose answer was lost, and until when to look for them
	place  int                  // in pool.open, -1: not there
}

// slot is one slot as the pool sees it. All changes go through
// container.change.
type slot struct {
	in         *container
	id         string
	state      slots.State
	generation uint64
	reason     string // why it is quarantined
	token      uint64 // the last that was seen
	lease      *slots.Lease
	until      time.Time // when the lease is over at the latest, by our clock
	indexed    bool      // its trajectory finds it
	changed    uint64    // pool.clock when we changed it
	release    *release  // under way
	owed       *release  // to be sent again: the container did not answer
	receipt    *slots.Receipt
	receiptFor uint64 // the token whose release it proves
	resets     int    // tries to bring it out of quarantine
	resetAt    time.Time
	resetting  bool // such a try is under way

	closing bool // a lease of an orchestrator keeps it from everybody; see close.go
}

// free reports whether the slot could be leased.
func (s *slot) free() bool {
	return s.lease == nil && s.release == nil && s.owed == nil && !s.closing && s.state == slots.StateAvailable
}

// taken reports whether the slot is, or was just, somebody's.
func (s *slot) taken() bool { return s.lease != nil || s.release != nil }

// touchLocked notes that we have changed the slot: what was read of it before
// is stale.
func (s *slot) touchLocked() {
	p := s.in.pool
	p.clock++
	s.changed = p.clock
}

// link is how the container is reached now.
func (c *container) link() Remote {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	return c.remote
}

// slotLocked finds the slot or notes a new one.
func (c *container) slotLocked(id string) *slot {
	s, ok := c.slots[id]
	if !ok {
		s = &slot{in: c, id: id, state: slots.StateStarting}
		c.slots[id] = s
	}
	return s
}

// changeLocked changes the slot and keeps the counts right.
func (c *container) changeLocked(s *slot, change func()) {
	free, taken := s.free(), s.taken()
	change()
	if now := s.free(); now != free {
		c.free += sign(now)
	}
	if now := s.taken(); now != taken {
		c.leased += sign(now)
		if c.leased == 0 {
			c.empty = time.Now()
		}
	}
	if s.lease != nil {
		s.token = s.lease.Token
	}
}

func sign(up bool) int {
	if up {
		return 1
	}
	return -1
}

// usable reports whether the container may be asked for a lease.
func (c *container) usable() bool {
	return !c.readAt.IsZero() && !c.stale && !c.silent && !c.closing && !c.waits() && !c.leaving() && !c.removed
}

// leaving reports whether the container is to be stopped when its leases have
// ended: somebody drains it, or its machine.
func (c *container) leaving() bool { return c.draining || c.known.Draining }

// waits reports whether the container gets no new leases until somebody says
// otherwise: an operator, or who hears of its machine again. Nothing is done to
// it until then.
func (c *container) waits() bool { return c.known.Wish.Cordoned || c.known.Unheard }

// ends reports whether its silence is no news: it is being stopped, or about to
// be, and nobody has a lease there.
func (c *container) ends() bool {
	return c.stopping || c.removed || c.draining && c.leased == 0
}

// shown is the container with what is known here of its end. To holders one
// that is not heard of drains: it may be given up by then.
func (c *container) shown() backend.Container {
	known := c.known
	known.Draining = c.leaving() || c.closing || known.Unheard
	known.Deadline = backend.Sooner(known.Deadline, c.known.Wish.By)
	if c.closing {
		known.Deadline = backend.Sooner(known.Deadline, c.closesAt)
	}
	return known
}

// room is how many leases the container could be asked for now.
func (c *container) room() int {
	if !c.usable() {
		return 0
	}
	return max(0, c.free-c.asked)
}

// placeLocked puts the container where it belongs among those with room. It is
// to be called after every change of what room depends on.
func (c *container) placeLocked() {
	open := &c.pool.open
	switch has := c.room() > 0; {
	case has && c.place < 0:
		heap.Push(open, c)
	case has:
		heap.Fix(open, c.place)
	case c.place >= 0:
		heap.Remove(open, c.place)
	}
}

// look makes the watcher look now. It never blocks.
func (c *container) look() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// restLocked keeps the container from being asked again until its slots were
// read, and for longer each time that this did not help.
func (c *container) restLocked(now time.Time) {
	c.stale = true
	if c.failures > 0 {
		c.restOver = now.Add(min(time.Second, 5*time.Millisecond<<min(c.failures, 10)))
	}
	c.failures++
	c.look()
}

// openHeap holds the containers with room: those of low rank first, of these
// the fullest, so that the others can become empty.
type openHeap []*container

// Len is sort.Interface's.
func (h openHeap) Len() int { return len(h) }

// Less is sort.Interface's.
func (h openHeap) Less(i, j int) bool {
	a, b := h[i], h[j]
	return cmp.Or(cmp.Compare(a.known.Rank, b.known.Rank), cmp.Compare(a.room(), b.room()), a.known.Started.Compare(b.known.Started), cmp.Compare(a.id, b.id)) < 0
}

// Swap is sort.Interface's.
func (h openHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push is heap.Interface's.
func (h *openHeap) Push(x any) {
	c := x.(*container) // this heap holds nothing else
	c.place = len(*h)
	*h = append(*h, c)
}

// Pop is heap.Interface's.
func (h *openHeap) Pop() any {
	old := *h
	c := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	c.place = -1
	return c
}
