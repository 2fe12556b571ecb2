package autoscale

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Container is what a decision needs to know of one container that runs and is
// not being drained.
type Container struct {
	ID     string
	Slots  int
	Leased int       // slots with a lease
	Free   int       // slots that could be leased now; 0 for a container that is cordoned or cannot be reached
	Empty  time.Time // since when it has no lease; the zero time when it has one
	Rank   int       // the higher ones are drained first; see backend.Container

	// Unheard says that nobody hears of its machine. It counts towards the minimum,
	// as it may be back, and not towards the maximum, as it serves nobody new.
	Unheard bool
}

// Stats is what there is.
type Stats struct {
	Containers []Container
	Starting   int       // containers that were asked for and do not answer yet
	Queue      int       // callers that wait for a slot
	Grew       time.Time // when containers were last started
	Shrank     time.Time // when containers were last drained
}

// Policy is what is wanted.
type Policy struct {
	Min, Max int // containers; Max 0: as many as there are, so that nothing is started or drained
	Slots    int // of a container that would be started

	Margin         int           // slots that should be free for those who come next
	IdleAfter      time.Duration // how long a container is empty before it may be drained
	GrowCooldown   time.Duration // between two starts for the margin; a queue and the minimum do not wait
	ShrinkCooldown time.Duration // after a start or a drain, before idle containers are drained
}

// Decision is what to do.
type Decision struct {
	Want   int      // containers that should exist after it
	Start  int      // containers to start
	Drain  []string // containers to drain, in this order
	Reason string   // for people; "" when there is nothing to do
}

// Decide applies the policy to what there is.
func Decide(have Stats, want Policy, now time.Time) Decision {
	exist, heard := have.count()
	if want.Max <= 0 {
		return Decision{Want: exist}
	}
	floor := max(0, min(want.Min, want.Max))
	switch {
	case heard > want.Max:
		return excess(have, heard-want.Max, exist)
	case exist < floor:
		return Decision{Want: floor, Start: floor - exist, Reason: fmt.Sprintf("%d of at least %d containers exist", exist, floor)}
	}
	if d := grow(have, want, now); d.Start > 0 {
		return d
	}
	return shrink(have, want, now, floor)
}

// count is how many containers there are or will be, and how many of them are
// not out of hearing.
func (have Stats) count() (exist, heard int) {
	exist = len(have.Containers) + have.Starting
	heard = exist
	for _, c := range have.Containers {
		if c.Unheard {
			heard--
		}
	}
	return exist, heard
}

// excess drains the n containers that lose the least: those with the fewest
// leases, of these the ones of the highest rank, and of these the ones that are
// empty the shortest, as what was kept longest is most likely wanted.
func excess(have Stats, n, exist int) Decision {
	order := slices.DeleteFunc(slices.Clone(have.Containers), func(c Container) bool { return c.Unheard })
	slices.SortFunc(order, func(a, b Container) int {
		return cmp.Or(cmp.Compare(a.Leased, b.Leased), cmp.Compare(b.Rank, a.Rank), b.Empty.Compare(a.Empty), cmp.Compare(b.ID, a.ID))
	})
	d := Decision{Want: exist, Reason: fmt.Sprintf("%d containers more than allowed", n)}
	for _, c := range order[:min(n, len(order))] {
		d.Drain = append(d.Drain, c.ID)
		d.Want--
	}
	return d
}

// grow starts what the queue and the margin lack.
func grow(have Stats, want Policy, now time.Time) Decision {
	exist, heard := have.count()
	free := have.Starting * want.Slots
	for _, c := range have.Containers {
		free += c.Free
	}
	lack := have.Queue + want.Margin - free
	room := want.Max - heard
	if lack <= 0 || room <= 0 || want.Slots <= 0 {
		return Decision{Want: exist}
	}
	if have.Queue <= free && now.Before(have.Grew.Add(want.GrowCooldown)) {
		return Decision{Want: exist}
	}
	n := min(room, (lack+want.Slots-1)/want.Slots)
	return Decision{
		Want: exist + n, Start: n,
		Reason: fmt.Sprintf("%d callers wait and %d slots are free or starting, %d should be", have.Queue, free, want.Margin),
	}
}

// shrink drains empty containers that nobody has needed for a while: those of
// the highest rank first, and of these the one that is empty the longest. One
// below a rank that is in use stays: its backend would not be rid of it. The
// minimum is left of those that are heard of: the others may never be back.
func shrink(have Stats, want Policy, now time.Time, floor int) Decision {
	exist, heard := have.count()
	stay := Decision{Want: exist}
	rested := !now.Before(have.Grew.Add(want.ShrinkCooldown)) && !now.Before(have.Shrank.Add(want.ShrinkCooldown))
	if have.Queue > 0 || have.Starting > 0 || !rested {
		return stay
	}
	free, used := 0, math.MinInt
	var idle []Container
	for _, c := range have.Containers {
		free += c.Free
		if c.Leased == 0 && !c.Empty.IsZero() && !now.Before(c.Empty.Add(want.IdleAfter)) {
			idle = append(idle, c)
			continue
		}
		used = max(used, c.Rank)
	}
	idle = slices.DeleteFunc(idle, func(c Container) bool { return c.Rank < used })
	slices.SortFunc(idle, func(a, b Container) int {
		return cmp.Or(cmp.Compare(b.Rank, a.Rank), a.Empty.Compare(b.Empty), cmp.Compare(b.ID, a.ID))
	})
	d := stay
	for _, c := range idle {
		if heard <= floor || free-c.Free < want.Margin {
			break
		}
		heard--
		free -= c.Free
		d.Want--
		d.Drain = append(d.Drain, c.ID)
	}
	if len(d.Drain) > 0 {
		d.Reason = fmt.Sprintf("%d containers were empty for %v", len(d.Drain), want.IdleAfter)
	}
	return d
}
