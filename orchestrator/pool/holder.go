package pool

import "time"

// Trajectory is who holds the lease; "" when it is over or not known here.
func (p *Pools) Trajectory(ref Ref) string {
	c := p.container(ref.Container)
	if c == nil {
		return ""
	}
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	if s, ok := c.slots[ref.SlotID]; ok && s.lease != nil && s.lease.Token == ref.Token {
		return s.lease.Trajectory
	}
	return ""
}

// namedLocked is the slot that was given to the request's key; nil: none was.
func (p *pool) namedLocked(want Request, now time.Time) *slot {
	if want.Key == "" {
		return nil
	}
	for _, s := range p.holders[want.Trajectory] {
		if s.lease.Labels[labelKey] == want.Key && now.Before(s.until) {
			return s
		}
	}
	return nil
}
