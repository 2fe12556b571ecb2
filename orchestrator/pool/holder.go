package pool

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
