package nomad

import "time"

// needLocked is how high the count has to be: above all that is claimed and
// not to end, and enough for the starts that wait. What Nomad was told to stop
// or to move it does not count any more, and has another one in its place.
func (p *pool) needLocked() int {
	top, n, held := 0, len(p.waiting), map[string]bool{}
	for _, c := range p.b.all {
		if c.pool != p || !c.up || c.ending() {
			continue
		}
		a := p.allocs[c.alloc]
		if a != nil && (a.moves || !a.counted()) {
			continue
		}
		n++
		if a != nil {
			top = max(top, a.index+1)
			held[a.id] = true
		}
	}
	for _, a := range p.allocs {
		if a.unheard() && a.counted() && !held[a.id] {
			n++ // nobody can have it, and Nomad puts no other in its place
		}
	}
	return max(top, n)
}

// plan is what Nomad has to do.
type plan struct {
	from, to int           // the count, which stays where they are the same
	index    uint64        // of the job that has it
	above    []*container  // that end with the count
	alone    []*container  // that are stopped by themselves
	again    time.Duration // when to plan again; 0: when something happens
}

// stops reports whether something is stopped by it.
func (do *plan) stops() bool { return do.to < do.from || len(do.alone) > 0 }

// wait has it planned again after d at the latest.
func (do *plan) wait(d time.Duration) { do.again = soonest(do.again, max(d, 0)) }

// planLocked plans what Nomad has to do. Nothing is done about a job that there
// is not.
func (p *pool) planLocked(now time.Time) plan {
	need := p.needLocked()
	do := plan{from: p.known.count, to: p.known.count, index: p.known.index}
	p.planStopsLocked(&do, need, now)
	p.planCountLocked(&do, need, now)
	if !p.known.exists {
		return plan{again: do.again}
	}
	return do
}

// planStopsLocked plans how the containers end that are to: with the count when
// they are above what is needed, but nobody waits for that for long.
func (p *pool) planStopsLocked(do *plan, need int, now time.Time) {
	for _, c := range p.b.all {
		a := p.allocs[c.alloc]
		if c.pool != p || !c.up || !c.ending() || a == nil {
			continue
		}
		patient := c.stopped.Add(p.b.config.Blocked).Sub(now)
		switch {
		case !c.told && !a.counted(): // it ends without us
		case c.told && a.unheard(): // Nomad remembers it
		case c.told && (!a.counted() || patient > 0):
			do.wait(patient)
		case c.told, a.index < need, patient <= 0:
			do.alone = append(do.alone, c)
		default:
			do.above = append(do.above, c)
			do.wait(patient)
		}
	}
}

// planCountLocked plans the count: up at once, and down when nobody has wanted
// what is above for a while, or something there is to end.
func (p *pool) planCountLocked(do *plan, need int, now time.Time) {
	if need >= do.from {
		p.surplus = time.Time{}
		do.to = need
		return
	}
	if p.surplus.IsZero() {
		p.surplus = now
	}
	switch left := p.surplus.Add(p.b.config.Spare).Sub(now); {
	case len(do.above) == 0 && left > 0:
		do.wait(left)
	case p.blockedLocked():
		do.wait(p.b.config.Retry)
	default:
		do.to = need
	}
}

// blockedLocked reports whether Nomad might lower the count otherwise than
// from the top, or would not at all.
func (p *pool) blockedLocked() bool {
	indices := map[int]bool{}
	n := 0
	for _, a := range p.allocs {
		if !a.counted() {
			continue
		}
		if a.moves || a.unheard() || indices[a.index] || a.index < 0 {
			return true
		}
		indices[a.index] = true
		n++
	}
	return p.deployment != "" || n > p.known.count
}

// fall is a lower count that Nomad was told, until it is known to have come to
// it: what is there at or above it may be about to end, though nothing tells of
// that yet. The zero value is none. The backend's mutex guards it.
type fall struct {
	to    int
	index uint64    // of the job before
	at    time.Time // when Nomad was told; zero: it was not
}

// believed is for how many times Config.Blocked a fall is believed to be on its
// way, when nothing tells that it has come to be.
const believed = 10

// expire ends it when Nomad was told longer ago than most, and returns how long
// it is until then; 0: there is none.
func (f *fall) expire(now time.Time, most time.Duration) time.Duration {
	if f.at.IsZero() {
		return 0
	}
	left := f.at.Add(most).Sub(now)
	if left <= 0 {
		*f = fall{}
	}
	return max(left, 0)
}

// below is the count that what is to stay is below.
func (f *fall) below(count int) int {
	if f.at.IsZero() {
		return count
	}
	return min(count, f.to)
}
