package pool

import (
	"time"

	"berth/orchestrator/backend"
	"berth/slots"
)

// StateLeased is, where slots are counted, the state of those that wait for a
// call of their lease or for its release. To their container they are available.
const StateLeased slots.State = "leased"

// shown is the state that the slot is counted in.
func (s *slot) shown() slots.State {
	if s.closing {
		return slots.StateDraining
	}
	if s.state == slots.StateAvailable && !s.free() {
		return StateLeased
	}
	return s.state
}

// Stats is how one pool stands. It is a snapshot.
type Stats struct {
	Template   string
	Slots      int                 // of all containers
	Available  int                 // could be leased now
	Acquired   int                 // have a lease, releases under way included
	ByState    map[slots.State]int // also by StateLeased
	Containers map[ContainerState]int
	Starting   int // containers that were asked for and do not answer yet
	Queue      int // acquires that wait for a free slot
	Oldest     time.Duration
	Waited     Waited
	Duty       backend.Duty // whose it is to start and stop containers
	Trouble    Trouble      // why there are no more containers
}

// Waited is how long acquires took until they had their lease.
type Waited struct {
	Count             uint64 // since the start
	P50, P99, Longest time.Duration
}

// Stats returns how each pool stands, by template.
func (p *Pools) Stats() []Stats {
	all := make([]Stats, 0, len(p.names))
	for _, name := range p.names {
		all = append(all, p.pools[name].stats())
	}
	return all
}

// Waiting is how many acquires wait for a free slot of the template's pool; 0
// where there is none.
func (p *Pools) Waiting(template string) int {
	pool, err := p.pool(template)
	if err != nil {
		return 0
	}
	pool.mu.Lock()
	defer pool.mu.Unlock()
	return pool.queue.len()
}

func (p *pool) stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{
		Template: p.template.Name, ByState: map[slots.State]int{}, Containers: map[ContainerState]int{},
		Starting: len(p.starting), Queue: p.queue.len(), Duty: p.duty, Trouble: p.troubleLocked(),
	}
	for _, c := range p.containers {
		s.Slots += len(c.slots)
		s.Available += c.room()
		s.Acquired += c.leased
		s.Containers[c.state()]++
		for _, slot := range c.slots {
			s.ByState[slot.shown()]++
		}
	}
	if w := p.queue.first(); w != nil {
		s.Oldest = time.Since(w.since)
	}
	s.Waited.Count = p.waits.count
	s.Waited.P50, s.Waited.P99, s.Waited.Longest = p.waits.quantiles()
	return s
}
