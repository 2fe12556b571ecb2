package pool

import (
	"slices"
	"sync"
	"time"

	"berth/orchestrator/backend"
	"berth/slots"
)

// pool is all slots of all containers of one template.
type pool struct {
	owner    *Pools
	template Template

	// mu guards what follows and all containers and slots of the pool. No
	// container, no fleet and no observer is ever called under it.
	mu         sync.Mutex
	containers map[string]*container
	open       openHeap // those with room
	queue      queue
	asking     map[string]*waiter // acquires of a trajectory's first slot
	holders    map[string][]*slot // slots by the trajectory that holds them
	ended      map[string]ending  // trajectories whose lease ended without them
	granting   map[string]bool    // names of the grants that are under way
	clock      uint64             // counts our changes of slots
	refused    int                // acquires that found no free slot, since the last decision
	waits      waits
	duty       backend.Duty // as it was a moment ago

	starting map[string]bool // containers that were asked for
	came     time.Time       // the last of them
	starts   map[string]bool // starts under way by container; true: it has ended already
	grew     time.Time
	shrank   time.Time
	trouble  Trouble // of the starts that have failed here
}

// ending is how a lease ended that was not released.
type ending struct {
	at  time.Time
	err *slots.Error
}

func newPool(owner *Pools, t Template) *pool {
	return &pool{
		owner: owner, template: t, containers: map[string]*container{}, asking: map[string]*waiter{},
		holders: map[string][]*slot{}, ended: map[string]ending{}, starting: map[string]bool{}, starts: map[string]bool{},
		granting: map[string]bool{},
	}
}

// adopt takes up a container, or what has changed of one.
func (p *pool) adopt(known backend.Container) error {
	p.mu.Lock()
	c, ok := p.containers[known.ID]
	if ok && c.known.URL == known.URL && c.known.Token == known.Token {
		p.heardLocked(c, known)
		p.mu.Unlock()
		return nil
	}
	p.mu.Unlock()
	remote, err := p.owner.connect(known)
	if err != nil {
		return err
	}
	if old := p.connected(known, remote); old != nil {
		hangUp(old)
	}
	return nil
}

// connected puts the container's Remote in force and returns the one that it
// replaces, nil if there was none.
func (p *pool) connected(known backend.Container, remote Remote) (old Remote) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c, ok := p.containers[known.ID]; ok {
		if known.Version < c.known.Version {
			return remote
		}
		old, c.remote = c.remote, remote
		p.heardLocked(c, known)
		c.look()
		return old
	}
	now := time.Now()
	c := &container{
		pool: p, id: known.ID, wake: make(chan struct{}, 1), read: make(chan struct{}), gone: make(chan struct{}),
		known: known, remote: remote, slots: map[string]*slot{}, seen: now, empty: now,
		draining: known.Wish.Drained, replaced: known.Wish.Replaced, doubts: map[string]time.Time{}, place: -1,
	}
	if p.starts[known.ID] || !p.owner.register(c) {
		return remote
	}
	if p.starting[known.ID] {
		delete(p.starting, known.ID)
		p.came = time.Now()
	}
	p.containers[known.ID] = c
	p.owner.spawn(c.watch)
	return nil
}

// heardLocked takes in what the fleet says of a container by now.
func (p *pool) heardLocked(c *container, known backend.Container) {
	if _, keeps := p.owner.fleet.(keeper); !keeps {
		known.Wish = c.known.Wish
	}
	p.learnLocked(c, known)
}

// learnLocked takes in what is known of a container by now. The fleet's Watch
// may have told what is newer than the answer of one of its other methods, and
// does not tell it again.
func (p *pool) learnLocked(c *container, known backend.Container) {
	was := c.known
	if known.Version < was.Version {
		return
	}
	c.known = known
	p.wishedLocked(c)
	c.placeLocked()
	moved := was.Draining != known.Draining || was.Unheard != known.Unheard
	if !moved && was.Wish == known.Wish {
		return
	}
	c.look()
	p.matchLocked()
	p.owner.rescale()
	if moved {
		p.owner.cfg.Log.Info("machine of container changed", "container", c.id, "draining", known.Draining, "unheard", known.Unheard, "deadline", known.Deadline)
	}
}

// fallen notes that a container is no more, also one whose start has not
// returned: the answer is not to bring it back.
func (p *pool) fallen(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.starts[id]; ok {
		p.starts[id] = true
	}
}

// register makes the container known by its ID.
func (p *Pools) register(c *container) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.containers[c.id] = c
	close(p.came)
	p.came = make(chan struct{})
	return true
}

// hangUp closes the connections of a Remote that has any.
func hangUp(r Remote) {
	if closer, ok := r.(interface{ Close() }); ok {
		closer.Close()
	}
}

// drop forgets a container that is no more. Its leases are lost.
func (p *pool) drop(c *container, reason string) {
	p.mu.Lock()
	if c.removed {
		p.mu.Unlock()
		return
	}
	c.removed = true
	lost := 0
	for _, s := range c.slots {
		if s.lease != nil && s.release == nil && s.owed == nil {
			lost++
			p.loseLocked(s, slots.Errorf(slots.KindSlotLost, "container %s is gone, and slot %s with it: %s", c.id, s.id, reason))
		}
	}
	c.placeLocked()
	delete(p.containers, c.id)
	close(c.gone)
	remote := c.remote
	p.mu.Unlock()
	hangUp(remote)
	p.owner.mu.Lock()
	delete(p.owner.containers, c.id)
	p.owner.mu.Unlock()
	p.owner.cfg.Log.Info("container gone", "container", c.id, "leases", lost, "reason", reason)
	for range lost {
		p.owner.cfg.Observer.Ended(p.template.Name, slots.KindSlotLost)
	}
	p.owner.rescale()
}

// holdLocked notes a lease that the container has given.
func (p *pool) holdLocked(s *slot, lease slots.Lease, now time.Time) {
	s.in.changeLocked(s, func() {
		p.unindexLocked(s)
		s.lease, s.until, s.owed = &lease, now.Add(lease.TTL), nil
	})
	p.indexLocked(s)
}

// indexLocked lets the trajectory find its slot.
func (p *pool) indexLocked(s *slot) {
	t := s.lease.Trajectory
	p.holders[t] = append(p.holders[t], s)
	s.indexed = true
	delete(p.ended, t)
}

// unindexLocked undoes indexLocked.
func (p *pool) unindexLocked(s *slot) {
	if !s.indexed {
		return
	}
	t := s.lease.Trajectory
	s.indexed = false
	held := p.holders[t]
	if len(held) == 1 {
		delete(p.holders, t)
		return
	}
	p.holders[t] = slices.DeleteFunc(held, func(o *slot) bool { return o == s })
}

// loseLocked ends a lease for its holder, who hears why when it comes.
func (p *pool) loseLocked(s *slot, why *slots.Error) {
	lease := s.lease
	indexed := s.indexed
	p.unindexLocked(s)
	s.in.changeLocked(s, func() { s.lease = nil })
	if _, holds := p.holders[lease.Trajectory]; indexed && !holds {
		p.ended[lease.Trajectory] = ending{at: time.Now(), err: why}
	}
}

// leaseOf is the lease of a slot as its holder sees it.
func leaseOf(s *slot) Lease {
	return Lease{
		Template: s.in.pool.template.Name, Container: s.in.shown(),
		Slot: shown(*s.lease), Further: s.lease.Labels[labelFurther] != "",
	}
}

// firstLocked is the slot that a trajectory gets when it asks for one: the
// newest of those that it did not ask for as further ones. nil: it has none.
func (p *pool) firstLocked(trajectory string, now time.Time) *slot {
	var first *slot
	for _, s := range p.holders[trajectory] {
		if s.lease.Labels[labelFurther] != "" || !now.Before(s.until) {
			continue
		}
		if first == nil || s.lease.AcquiredAt.After(first.lease.AcquiredAt) {
			first = s
		}
	}
	return first
}
