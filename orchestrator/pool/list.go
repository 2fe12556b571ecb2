package pool

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"berth/orchestrator/backend"
	"berth/slots"
)

// Filter says which leases are meant: those that meet all of it. The zero
// Filter means all.
type Filter struct {
	Template   string
	Trajectory string
	Container  string
	Labels     map[string]string // each with this value
}

func (f Filter) none() bool {
	return f.Template == "" && f.Trajectory == "" && f.Container == "" && len(f.Labels) == 0
}

func (f Filter) meets(s *slot) bool {
	if f.Trajectory != "" && s.lease.Trajectory != f.Trajectory || f.Container != "" && s.in.id != f.Container {
		return false
	}
	for name, value := range f.Labels {
		if have, ok := s.lease.Labels[name]; !ok || have != value {
			return false
		}
	}
	return true
}

// List lists the leases, in the order of containers and slots. Those that are
// being released are not among them.
func (p *Pools) List(ctx context.Context, f Filter) ([]Lease, error) {
	if err := p.Ready(ctx); err != nil {
		return nil, err
	}
	leases := []Lease{}
	for _, name := range p.names {
		if f.Template == "" || f.Template == name {
			leases = p.pools[name].list(leases, f)
		}
	}
	slices.SortFunc(leases, func(a, b Lease) int {
		return cmp.Or(cmp.Compare(a.Container.ID, b.Container.ID), compareSlotIDs(a.Slot.SlotID, b.Slot.SlotID))
	})
	return leases, nil
}

// compareSlotIDs puts slot_2 before slot_10.
func compareSlotIDs(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

func (p *pool) list(leases []Lease, f Filter) []Lease {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f.Trajectory != "" {
		for _, s := range p.holders[f.Trajectory] {
			if f.meets(s) {
				leases = append(leases, leaseOf(s))
			}
		}
		return leases
	}
	for _, held := range p.holders {
		for _, s := range held {
			if f.meets(s) {
				leases = append(leases, leaseOf(s))
			}
		}
	}
	return leases
}

// Lookup finds the leases of a trajectory, the one that Acquire would return
// first, further ones behind it. When it has none because its lease ended
// without it, the error says why, slots.KindSlotLost or
// slots.KindLeaseExpired, until it acquires or Forget is called.
func (p *Pools) Lookup(ctx context.Context, template, trajectory string) ([]Lease, error) {
	pool, err := p.pool(template)
	if err != nil {
		return nil, err
	}
	if err := p.Ready(ctx); err != nil {
		return nil, err
	}
	return pool.lookup(trajectory)
}

func (p *pool) lookup(trajectory string) ([]Lease, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	held := p.holders[trajectory]
	if len(held) == 0 {
		if e, ok := p.ended[trajectory]; ok {
			return nil, e.err
		}
		return nil, nil
	}
	leases := make([]Lease, 0, len(held))
	for _, s := range held {
		leases = append(leases, leaseOf(s))
	}
	slices.SortStableFunc(leases, func(a, b Lease) int {
		if a.Further != b.Further {
			return -sign(b.Further)
		}
		return b.Slot.AcquiredAt.Compare(a.Slot.AcquiredAt)
	})
	return leases, nil
}

// Forget lets a trajectory whose lease ended without it begin anew.
func (p *Pools) Forget(template, trajectory string) {
	if pool, ok := p.pools[template]; ok {
		pool.mu.Lock()
		delete(pool.ended, trajectory)
		pool.mu.Unlock()
	}
}

// Released is what came of one release of many.
type Released struct {
	Lease   Lease
	Receipt *slots.Receipt
	Err     error
}

// bulk is how many releases of one call are under way at once.
const bulk = 64

// ReleaseAll releases the leases that meet the filter, which must not be
// empty. It returns when each has ended one way or the other; the error joins
// those of the releases.
func (p *Pools) ReleaseAll(ctx context.Context, f Filter, reset bool) ([]Released, error) {
	if f.none() {
		return nil, slots.Errorf(slots.KindBadRequest, "say which leases to release")
	}
	leases, err := p.List(ctx, f)
	if err != nil {
		return nil, err
	}
	released := make([]Released, len(leases))
	var tasks sync.WaitGroup
	room := make(chan struct{}, bulk)
	for i, l := range leases {
		room <- struct{}{}
		tasks.Go(func() {
			receipt, err := p.Release(ctx, l.Ref(), reset)
			released[i] = Released{l, receipt, err}
			<-room
		})
	}
	tasks.Wait()
	var failed []error
	for _, r := range released {
		failed = append(failed, r.Err)
	}
	return released, errors.Join(failed...)
}

// SlotView is one slot as the pool sees it.
type SlotView struct {
	SlotID     string
	State      slots.State
	Generation uint64
	Reason     string // why it is quarantined
	Lease      *slots.Lease
	Releasing  bool           // its release is under way or owed
	Receipt    *slots.Receipt // of the last reset that this pool asked for
}

// ContainerView is one container as the pool sees it.
type ContainerView struct {
	Container backend.Container
	State     ContainerState
	Failure   string    // of the last look, if it failed
	Seen      time.Time // when it last answered
	Slots     []SlotView
}

// ContainerState says what the pool does with a container.
type ContainerState string

// The states of a container, the first that applies.
const (
	ContainerDraining    ContainerState = "draining"    // is stopped when its leases have ended
	ContainerUnreachable ContainerState = "unreachable" // did not answer several times
	ContainerUnheard     ContainerState = "unheard"     // gets no new leases while nobody hears of its machine
	ContainerReading     ContainerState = "reading"     // its slots are not known yet
	ContainerCordoned    ContainerState = "cordoned"    // gets no new leases
	ContainerReady       ContainerState = "ready"
)

func (c *container) state() ContainerState {
	switch {
	case c.leaving() || c.closing:
		return ContainerDraining
	case c.silent:
		return ContainerUnreachable
	case c.known.Unheard:
		return ContainerUnheard
	case c.readAt.IsZero():
		return ContainerReading
	case c.known.Wish.Cordoned:
		return ContainerCordoned
	}
	return ContainerReady
}

// Containers lists the containers of all pools by template and ID.
func (p *Pools) Containers() []ContainerView {
	views := []ContainerView{}
	for _, name := range p.names {
		views = append(views, p.pools[name].views()...)
	}
	return views
}

func (p *pool) views() []ContainerView {
	p.mu.Lock()
	defer p.mu.Unlock()
	views := make([]ContainerView, 0, len(p.containers))
	for _, c := range p.containers {
		v := ContainerView{Container: c.shown(), State: c.state(), Seen: c.seen, Slots: make([]SlotView, 0, len(c.slots))}
		if c.misread != nil {
			v.Failure = c.misread.Error()
		}
		for _, s := range c.slots {
			v.Slots = append(v.Slots, s.view())
		}
		slices.SortFunc(v.Slots, func(a, b SlotView) int { return compareSlotIDs(a.SlotID, b.SlotID) })
		views = append(views, v)
	}
	slices.SortFunc(views, func(a, b ContainerView) int { return cmp.Compare(a.Container.ID, b.Container.ID) })
	return views
}

func (s *slot) view() SlotView {
	v := SlotView{
		SlotID: s.id, State: s.state, Generation: s.generation, Reason: s.reason,
		Releasing: s.release != nil || s.owed != nil, Receipt: s.receipt,
	}
	if s.closing {
		v.State = slots.StateDraining
	}
	if s.lease != nil {
		l := shown(*s.lease)
		v.Lease = &l
	}
	return v
}
