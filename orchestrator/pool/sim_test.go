package pool_test

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"berth/orchestrator/backend"
	"berth/orchestrator/pool"
	"berth/sandboxd/api"
	"berth/slots"
)

// fleet is a backend whose containers exist in this process only.
type fleet struct {
	mu         sync.Mutex
	startTakes time.Duration
	startLag   time.Duration // from when it is told of to the answer
	refuse     error         // what Start answers, if not nil
	containers map[string]*container
	watchers   []chan backend.Event
	started    int
	stopped    []string
	duty       func() backend.Duty // nil: nobody shares the containers
}

func newFleet() *fleet { return &fleet{containers: map[string]*container{}} }

// add starts a container by hand.
func (f *fleet) add(id, template string, n int) *container {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := newContainer(id, template, n)
	c.known.Started = c.known.Started.Add(time.Duration(len(f.containers)) * time.Nanosecond)
	f.containers[id] = c
	f.tellLocked(backend.Event{Kind: backend.Up, Container: c.known})
	return c
}

func (f *fleet) tellLocked(e backend.Event) {
	for _, w := range f.watchers {
		w <- e
	}
}

func (f *fleet) Start(ctx context.Context, spec backend.Spec) (backend.Container, error) {
	f.mu.Lock()
	takes, lag, refuse := f.startTakes, f.startLag, f.refuse
	f.started++
	f.mu.Unlock()
	if err := sleep(ctx, takes); err != nil {
		return backend.Container{}, err
	}
	if refuse != nil {
		return backend.Container{}, refuse
	}
	known := f.add(spec.ID, spec.Template, spec.Slots).known
	return known, sleep(ctx, lag)
}

func (f *fleet) Stop(_ context.Context, id string, _ time.Duration) error {
	f.kill(id, "stopped")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = append(f.stopped, id)
	return nil
}

// starts is how many containers the pool has wanted started, ended which it has
// stopped. Nothing orders a test's look at them and what the pool does later.
func (f *fleet) starts() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.started
}

func (f *fleet) ended() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.stopped)
}

// kill ends a container for good.
func (f *fleet) kill(id, reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.containers[id]
	if !ok {
		return
	}
	delete(f.containers, id)
	c.set(func() { c.dead = true })
	f.tellLocked(backend.Event{Kind: backend.Down, Container: c.known, Reason: reason})
}

func (f *fleet) List(context.Context) ([]backend.Container, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listLocked(), nil
}

func (f *fleet) listLocked() []backend.Container {
	var list []backend.Container
	for _, c := range f.containers {
		list = append(list, c.known)
	}
	slices.SortFunc(list, func(a, b backend.Container) int { return a.Started.Compare(b.Started) })
	return list
}

func (f *fleet) Watch(ctx context.Context) iter.Seq[backend.Event] {
	return func(yield func(backend.Event) bool) {
		events := make(chan backend.Event, 10_000)
		f.mu.Lock()
		for _, c := range f.listLocked() {
			events <- backend.Event{Kind: backend.Up, Container: c}
		}
		f.watchers = append(f.watchers, events)
		f.mu.Unlock()
		for {
			select {
			case e := <-events:
				if !yield(e) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// all lists the containers that run.
func (f *fleet) all() []*container {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []*container
	for _, c := range f.listLocked() {
		list = append(list, f.containers[c.ID])
	}
	return list
}

func (f *fleet) connect(known backend.Container) (pool.Remote, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c, ok := f.containers[known.ID]; ok {
		return c, nil
	}
	return newContainer(known.ID, known.Template, 0).kill(), nil
}

// container is one simulated sandboxd. It keeps the rules of slots.Tenancy, as
// the real one does.
type container struct {
	mu       sync.Mutex
	known    backend.Container
	slots    []*simSlot
	dead     bool                     // gone for good
	cut      bool                     // nobody reaches it
	takes    time.Duration            // of each answer
	lag      map[string]time.Duration // from an operation to its answer
	resets   time.Duration            // of a reset
	dirty    bool                     // resets fail
	drains   bool                     // says that it is shutting down
	drainsBy time.Time                // and until when it serves leases
	mute     func() bool              // whether to lose the answer of a request that was carried out
	refused  error                    // what AcquireAny answers, if not nil
	calls    map[string]int
}

type simSlot struct {
	tenancy    slots.Tenancy
	state      slots.State
	readyAt    time.Time // when its reset ends
	generation uint64
}

func newContainer(id, template string, n int) *container {
	c := &container{
		known: backend.Container{ID: id, Template: template, URL: "sim://" + id, Slots: n, Started: time.Now()},
		calls: map[string]int{},
	}
	for i := range n {
		c.slots = append(c.slots, &simSlot{tenancy: slots.Tenancy{SlotID: fmt.Sprintf("slot_%d", i)}, state: slots.StateAvailable})
	}
	return c
}

func (c *container) kill() *container {
	c.dead = true
	return c
}

// set changes the container under its mutex.
func (c *container) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// settleLocked lets what is due happen: leases end, resets end.
func (c *container) settleLocked(now time.Time) {
	for _, s := range c.slots {
		if s.tenancy.Expired(now) {
			s.tenancy.Lease = nil
			c.resetLocked(s, now)
		}
		if s.state == slots.StateResetting && !now.Before(s.readyAt) {
			s.state = slots.StateAvailable
			s.generation++
		}
	}
}

func (c *container) resetLocked(s *simSlot, now time.Time) {
	s.state, s.readyAt = slots.StateResetting, now.Add(c.resets)
	if c.dirty {
		s.state = slots.StateQuarantined
	}
}

func (c *container) slot(id string) (*simSlot, error) {
	for _, s := range c.slots {
		if s.tenancy.SlotID == id {
			return s, nil
		}
	}
	return nil, slots.Errorf(slots.KindNotFound, "Unknown slot: %s", id)
}

// answer carries out a request, and loses it or its answer as the container is
// told to.
func answer[T any](ctx context.Context, c *container, name string, do func(now time.Time) (T, error)) (T, error) {
	var none T
	takes, lag := c.latency(name)
	if err := sleep(ctx, takes); err != nil {
		return none, err
	}
	v, err := carryOut(c, name, do)
	if unheard := sleep(ctx, lag); unheard != nil {
		return none, unheard
	}
	return v, err
}

func carryOut[T any](c *container, name string, do func(now time.Time) (T, error)) (T, error) {
	var none T
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[name]++
	if c.dead || c.cut {
		return none, slots.Errorf(slots.KindContainerUnreachable, "no route to %s", c.known.ID)
	}
	now := time.Now()
	c.settleLocked(now)
	v, err := do(now)
	if c.mute != nil && c.mute() {
		return none, slots.Errorf(slots.KindContainerUnreachable, "connection to %s was reset", c.known.ID)
	}
	return v, err
}

func (c *container) latency(name string) (takes, lag time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.takes, c.lag[name]
}

func sleep(ctx context.Context, d time.Duration) error {
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return slots.Errorf(slots.KindContainerUnreachable, "ask: %w", context.Cause(ctx))
	}
	return nil
}

func (c *container) AcquireAny(ctx context.Context, want api.LeaseRequest) (slots.Lease, error) {
	return answer(ctx, c, "acquire", func(now time.Time) (slots.Lease, error) {
		if c.drains {
			return slots.Lease{}, slots.Errorf(slots.KindDraining, "container is shutting down")
		}
		if c.refused != nil {
			return slots.Lease{}, c.refused
		}
		for _, s := range c.slots {
			if s.state == slots.StateAvailable && s.tenancy.Lease == nil {
				return s.tenancy.Acquire(now, want.Trajectory, time.Duration(want.TTLSeconds*float64(time.Second)), want.Labels)
			}
		}
		return slots.Lease{}, slots.Errorf(slots.KindPoolExhausted, "no slot is free")
	})
}

func (c *container) Renew(ctx context.Context, slotID string, want api.LeaseRenewal) (slots.Lease, error) {
	return answer(ctx, c, "renew", func(now time.Time) (slots.Lease, error) {
		s, err := c.slot(slotID)
		if err != nil {
			return slots.Lease{}, err
		}
		ttl := time.Duration(want.TTLSeconds * float64(time.Second))
		if ttl == 0 && s.tenancy.Lease != nil {
			ttl = s.tenancy.Lease.TTL
		}
		return s.tenancy.Renew(now, want.Token, max(ttl, 1))
	})
}

func (c *container) Release(ctx context.Context, slotID string, want api.LeaseRelease) (*slots.Receipt, error) {
	reset := want.Reset == nil || *want.Reset
	state, err := answer(ctx, c, "release", func(now time.Time) (slots.State, error) {
		s, err := c.slot(slotID)
		if err != nil {
			return "", err
		}
		held := s.tenancy.Lease != nil
		if err := s.tenancy.Release(want.Token); err != nil {
			return "", err
		}
		if held && reset {
			c.resetLocked(s, now)
		}
		return s.state, nil
	})
	if err != nil || !reset {
		return nil, err
	}
	if state == slots.StateQuarantined {
		return nil, slots.Errorf(slots.KindResetFailed, "slot %s is quarantined: a process lives on", slotID)
	}
	c.mu.Lock()
	takes := c.resets
	c.mu.Unlock()
	if err := sleep(ctx, takes); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settleLocked(time.Now())
	s, err := c.slot(slotID)
	if err != nil {
		return nil, err
	}
	return &slots.Receipt{Clean: true, Generation: s.generation, Checks: []slots.Check{{Name: "processes", OK: true}}}, nil
}

func (c *container) Reset(ctx context.Context, slotID string, token *uint64) (slots.Receipt, error) {
	return answer(ctx, c, "reset", func(now time.Time) (slots.Receipt, error) {
		s, err := c.slot(slotID)
		if err != nil {
			return slots.Receipt{}, err
		}
		if err := s.tenancy.Check(now, token); err != nil {
			return slots.Receipt{}, err
		}
		if c.dirty {
			return slots.Receipt{}, slots.Errorf(slots.KindResetFailed, "slot %s is quarantined: a process lives on", slotID)
		}
		s.state = slots.StateAvailable
		return slots.Receipt{Clean: true, Checks: []slots.Check{{Name: "processes", OK: true}}}, nil
	})
}

func (c *container) Slots(ctx context.Context) ([]api.Slot, error) {
	return answer(ctx, c, "slots", func(time.Time) ([]api.Slot, error) {
		list := make([]api.Slot, 0, len(c.slots))
		for _, s := range c.slots {
			v := api.Slot{SlotID: s.tenancy.SlotID, State: s.state, Generation: s.generation}
			if l := s.tenancy.Lease; l != nil {
				held := *l
				v.Lease = &held
			}
			list = append(list, v)
		}
		return list, nil
	})
}

func (c *container) Health(ctx context.Context) (api.Health, error) {
	return answer(ctx, c, "health", func(time.Time) (api.Health, error) {
		h := api.Health{Status: api.HealthOK, Slots: len(c.slots)}
		if c.drains {
			h.Status, h.DrainDeadline = "draining", c.drainsBy
		}
		for _, s := range c.slots {
			if s.tenancy.Lease != nil {
				h.Leased++
			}
			if s.state == slots.StateQuarantined {
				h.Quarantined++
			}
		}
		return h, nil
	})
}

// leased counts the container's leases.
func (c *container) leased() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settleLocked(time.Now())
	n := 0
	for _, s := range c.slots {
		if s.tenancy.Lease != nil {
			n++
		}
	}
	return n
}

// sometimes is true with the probability.
func sometimes(random *rand.Rand, p float64) func() bool {
	return func() bool { return random.Float64() < p }
}

func (f *fleet) Duty(string) backend.Duty {
	f.mu.Lock()
	duty := f.duty
	f.mu.Unlock()
	if duty == nil {
		return backend.Duty{Held: true}
	}
	return duty()
}

// drain says whether the machine of a container is drained.
func (f *fleet) drain(id string, draining bool, deadline time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	c.known.Draining, c.known.Deadline = draining, deadline
	f.tellLocked(backend.Event{Kind: backend.Up, Container: c.known})
}

// unhear says whether whoever has the machine of a container hears of it.
func (f *fleet) unhear(id string, unheard bool, deadline time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	c.known.Unheard, c.known.Deadline = unheard, deadline
	f.tellLocked(backend.Event{Kind: backend.Up, Container: c.known})
}

// announce tells of a container once more.
func (f *fleet) announce(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tellLocked(backend.Event{Kind: backend.Up, Container: f.containers[id].known})
}

// count is how many requests of a kind the container has carried out.
func (c *container) count(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[name]
}
