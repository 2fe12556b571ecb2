package autoscale_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/autoscale"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time { return noon.Add(-d) }

// empty is a container that has been without a lease for the time.
func empty(id string, since time.Duration) autoscale.Container {
	return autoscale.Container{ID: id, Slots: 4, Free: 4, Empty: ago(since)}
}

// busy is a container with that many leases.
func busy(id string, leased int) autoscale.Container {
	return autoscale.Container{ID: id, Slots: 4, Leased: leased, Free: 4 - leased}
}

// unheard is a container out of hearing, with that many leases.
func unheard(id string, leased int) autoscale.Container {
	return autoscale.Container{ID: id, Slots: 4, Leased: leased, Unheard: true}
}

// ranked is the container with another rank.
func ranked(rank int, c autoscale.Container) autoscale.Container {
	c.Rank = rank
	return c
}

func TestDecideFollowsItsRules(t *testing.T) {
	policy := autoscale.Policy{
		Min: 1, Max: 4, Slots: 4, Margin: 2,
		IdleAfter: time.Minute, GrowCooldown: 10 * time.Second, ShrinkCooldown: 30 * time.Second,
	}
	type list = []autoscale.Container
	for name, c := range map[string]struct {
		have   autoscale.Stats
		policy func(*autoscale.Policy)
		want   int
		start  int
		drain  []string
	}{
		"nothing yet: the minimum":                {want: 1, start: 1},
		"the minimum is starting: wait for it":    {have: autoscale.Stats{Starting: 1}, want: 1},
		"enough free: stay":                       {have: autoscale.Stats{Containers: list{busy("a", 2)}}, want: 1},
		"below the margin: one more":              {have: autoscale.Stats{Containers: list{busy("a", 3)}}, want: 2, start: 1},
		"below the margin, just grown: cool down": {have: autoscale.Stats{Containers: list{busy("a", 3)}, Grew: ago(time.Second)}, want: 1},
		"a queue does not wait for the cool-down": {have: autoscale.Stats{Containers: list{busy("a", 4)}, Queue: 1, Grew: ago(time.Second)}, want: 2, start: 1},
		"a queue that what starts will serve":     {have: autoscale.Stats{Containers: list{busy("a", 4)}, Queue: 2, Starting: 1}, want: 2},
		"a long queue: several at once":           {have: autoscale.Stats{Containers: list{busy("a", 4)}, Queue: 6}, want: 3, start: 2},
		"a longer queue: never above the maximum": {have: autoscale.Stats{Containers: list{busy("a", 4)}, Queue: 100}, want: 4, start: 3},
		"at the maximum: nothing":                 {have: autoscale.Stats{Containers: list{busy("a", 4)}, Starting: 3, Queue: 100}, want: 4},
		"cordoned slots are not free": {
			have: autoscale.Stats{Containers: list{{ID: "a", Slots: 4, Empty: ago(0)}}}, want: 2, start: 1,
		},
		"idle long enough: the longest first": {
			have: autoscale.Stats{Containers: list{empty("a", 2*time.Minute), empty("b", 3*time.Minute), empty("c", time.Second)}},
			want: 1, drain: []string{"b", "a"},
		},
		"idle long enough: the highest rank first": {
			have: autoscale.Stats{Containers: list{ranked(2, empty("a", time.Hour)), ranked(1, empty("b", 2*time.Hour)), ranked(0, busy("c", 1))}},
			want: 1, drain: []string{"a", "b"},
		},
		"idle, but below a rank that is in use": {
			have: autoscale.Stats{Containers: list{ranked(2, busy("a", 1)), ranked(1, empty("b", time.Hour)), ranked(0, empty("c", time.Hour))}}, want: 3,
		},
		"too many, all with as many leases: the highest rank": {
			have:   autoscale.Stats{Containers: list{ranked(1, busy("a", 1)), ranked(2, busy("b", 1)), ranked(0, busy("c", 1))}},
			policy: func(p *autoscale.Policy) { p.Min, p.Max = 0, 2 }, want: 2, drain: []string{"b"},
		},
		"idle too short: stay": {have: autoscale.Stats{Containers: list{empty("a", 59*time.Second), empty("b", 59*time.Second)}}, want: 2},
		"idle, but the margin would be gone": {
			have: autoscale.Stats{Containers: list{busy("a", 3), empty("b", time.Hour)}}, want: 2,
		},
		"idle, but just shrunk":  {have: autoscale.Stats{Containers: list{empty("a", time.Hour), empty("b", time.Hour)}, Shrank: ago(time.Second)}, want: 2},
		"idle, but just grown":   {have: autoscale.Stats{Containers: list{empty("a", time.Hour), empty("b", time.Hour)}, Grew: ago(time.Second)}, want: 2},
		"idle, but callers wait": {have: autoscale.Stats{Containers: list{empty("a", time.Hour), empty("b", time.Hour)}, Queue: 1}, want: 2},
		"idle, at the minimum":   {have: autoscale.Stats{Containers: list{empty("a", time.Hour)}}, want: 1},
		"too many: empty ones before leased ones, fewest leases next": {
			have:   autoscale.Stats{Containers: list{busy("a", 3), busy("b", 1), empty("c", 0), busy("d", 2)}},
			policy: func(p *autoscale.Policy) { p.Min, p.Max = 0, 2 }, want: 2, drain: []string{"c", "b"},
		},
		"too many, most of them starting: what starts cannot be drained": {
			have:   autoscale.Stats{Containers: list{busy("a", 1)}, Starting: 3},
			policy: func(p *autoscale.Policy) { p.Min, p.Max = 0, 1 }, want: 3, drain: []string{"a"},
		},
		"out of hearing, and nobody waits: nothing": {
			have: autoscale.Stats{Containers: list{unheard("a", 1), unheard("b", 0), busy("c", 2)}}, policy: func(p *autoscale.Policy) { p.Min, p.Max = 3, 3 }, want: 3,
		},
		"out of hearing counts towards no maximum": {
			have: autoscale.Stats{Containers: list{unheard("a", 4), unheard("b", 4), busy("c", 4)}, Queue: 100}, policy: func(p *autoscale.Policy) { p.Max = 3 }, want: 5, start: 2,
		},
		"at the maximum without what is out of hearing": {
			have: autoscale.Stats{Containers: list{unheard("a", 4), busy("b", 4), busy("c", 4)}, Queue: 100}, policy: func(p *autoscale.Policy) { p.Max = 2 }, want: 3,
		},
		"too many without what is out of hearing: not that": {
			have: autoscale.Stats{Containers: list{unheard("a", 0), busy("b", 2), busy("c", 1)}}, policy: func(p *autoscale.Policy) { p.Max = 1 }, want: 2, drain: []string{"c"},
		},
		"idle, but the minimum without what is out of hearing": {
			have: autoscale.Stats{Containers: list{unheard("a", 0), empty("b", time.Hour), empty("c", 2*time.Hour)}}, policy: func(p *autoscale.Policy) { p.Margin = 0 }, want: 2, drain: []string{"c"},
		},
		"no maximum: hands off":       {have: autoscale.Stats{Containers: list{empty("a", time.Hour)}, Queue: 9}, policy: func(p *autoscale.Policy) { p.Max = 0 }, want: 1},
		"a minimum above the maximum": {policy: func(p *autoscale.Policy) { p.Min, p.Max = 9, 2 }, want: 2, start: 2},
		"slots unknown: no growth for a queue": {
			have: autoscale.Stats{Containers: list{busy("a", 4)}, Queue: 1}, policy: func(p *autoscale.Policy) { p.Slots = 0 }, want: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := policy
			if c.policy != nil {
				c.policy(&p)
			}
			d := autoscale.Decide(c.have, p, noon)
			assert.Equal(t, c.want, d.Want)
			assert.Equal(t, c.start, d.Start)
			assert.Equal(t, c.drain, d.Drain)
			assert.Equal(t, c.start > 0 || len(c.drain) > 0, d.Reason != "", "a reason for what is done and for nothing else: %q", d.Reason)
		})
	}
}

// world applies decisions to containers that start after one step and places
// leases on the fullest container.
type world struct {
	stats autoscale.Stats
	ids   int
}

// step lets one second pass: what was started is there, and load leases are
// held, as many as fit.
func (w *world) step(policy autoscale.Policy, now time.Time, load int) autoscale.Decision {
	for range w.stats.Starting {
		w.ids++
		w.stats.Containers = append(w.stats.Containers, autoscale.Container{ID: fmt.Sprintf("c%04d", w.ids), Slots: policy.Slots, Empty: now})
	}
	w.stats.Starting = 0
	left := load
	for i := range w.stats.Containers {
		c := &w.stats.Containers[i]
		c.Leased = min(left, c.Slots)
		left -= c.Leased
		c.Free = c.Slots - c.Leased
		switch {
		case c.Leased > 0:
			c.Empty = time.Time{}
		case c.Empty.IsZero():
			c.Empty = now
		}
	}
	w.stats.Queue = left
	d := autoscale.Decide(w.stats, policy, now)
	w.stats.Starting = d.Start
	if d.Start > 0 {
		w.stats.Grew = now
	}
	for _, id := range d.Drain {
		w.stats.Shrank = now
		for i, c := range w.stats.Containers {
			if c.ID == id {
				w.stats.Containers = append(w.stats.Containers[:i:i], w.stats.Containers[i+1:]...)
				break
			}
		}
	}
	return d
}

// check holds for every decision.
func check(t *testing.T, before autoscale.Stats, p autoscale.Policy, d autoscale.Decision) {
	t.Helper()
	exist, away := len(before.Containers)+before.Starting, 0
	for _, c := range before.Containers {
		if c.Unheard {
			away++
			require.NotContains(t, d.Drain, c.ID)
		}
	}
	require.False(t, d.Start > 0 && len(d.Drain) > 0, "starting and draining at once: %+v", d)
	require.Equal(t, d.Want, exist+d.Start-len(d.Drain))
	if d.Start > 0 {
		require.LessOrEqual(t, d.Want-away, p.Max)
	}
	if len(d.Drain) > 0 {
		require.GreaterOrEqual(t, d.Want-away, min(p.Min, p.Max))
	}
	drained, leasedDrained := map[string]bool{}, 0
	for _, id := range d.Drain {
		require.False(t, drained[id], "drained twice: %s", id)
		drained[id] = true
	}
	for _, c := range before.Containers {
		if drained[c.ID] && c.Leased > 0 {
			leasedDrained++
		}
	}
	for _, c := range before.Containers {
		require.False(t, leasedDrained > 0 && c.Leased == 0 && !c.Unheard && !drained[c.ID], "a leased container goes before empty %s", c.ID)
	}
}

// settle runs one load for a time and requires that deciding ends.
func settle(t *testing.T, w *world, p autoscale.Policy, now *time.Time, load int) {
	t.Helper()
	const steps = 400
	last := -1
	for i := range steps {
		*now = now.Add(time.Second)
		d := w.step(p, *now, load)
		if d.Start > 0 || len(d.Drain) > 0 {
			last = i
		}
		exist := len(w.stats.Containers) + w.stats.Starting
		require.False(t, exist > p.Max || exist < min(p.Min, p.Max), "%d containers with %+v", exist, p)
	}
	require.Less(t, last, steps-100, "still deciding under a constant load of %d with %+v", load, p)
}

func TestDecideComesToRestUnderAnyConstantLoad(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		p := autoscale.Policy{
			Min: random.IntN(4), Max: 1 + random.IntN(12), Slots: 1 + random.IntN(8), Margin: random.IntN(10),
			IdleAfter:      time.Duration(random.IntN(60)) * time.Second,
			GrowCooldown:   time.Duration(random.IntN(20)) * time.Second,
			ShrinkCooldown: time.Duration(random.IntN(60)) * time.Second,
		}
		w, now := &world{}, noon
		for range 4 {
			settle(t, w, p, &now, random.IntN(p.Max*p.Slots+5))
		}
	}
}

func TestDecideServesTheQueueWhereThereIsRoom(t *testing.T) {
	p := autoscale.Policy{Min: 1, Max: 10, Slots: 4, Margin: 1, IdleAfter: time.Minute, ShrinkCooldown: time.Minute, GrowCooldown: time.Hour}
	w, now := &world{}, noon
	settle(t, w, p, &now, 33)
	assert.Zero(t, w.stats.Queue)
	assert.Len(t, w.stats.Containers, 9, "33 leases and one free slot are 9 containers of 4")
}

func FuzzDecide(f *testing.F) {
	f.Add(uint64(1), 1, 4, 4, 2, 3)
	f.Add(uint64(7), 0, 0, 0, 0, 0)
	f.Add(uint64(9), 9, 2, 1, 50, 12)
	f.Fuzz(func(t *testing.T, seed uint64, least, most, size, margin, count int) {
		if min(least, most, size, margin, count) < 0 || max(least, most, size, margin) > 1000 || count > 64 {
			t.Skip("no policy")
		}
		random := rand.New(rand.NewPCG(seed, 0))
		p := autoscale.Policy{Min: least, Max: most, Slots: size, Margin: margin, IdleAfter: time.Minute, ShrinkCooldown: time.Second}
		have := autoscale.Stats{Starting: random.IntN(4), Queue: random.IntN(20), Grew: ago(time.Duration(random.IntN(100)) * time.Second)}
		for i := range count {
			c := autoscale.Container{ID: fmt.Sprint(i), Slots: 1 + random.IntN(8)}
			if c.Leased = random.IntN(c.Slots + 1); c.Leased == 0 {
				c.Empty = ago(time.Duration(random.IntN(200)) * time.Second)
			}
			c.Free = random.IntN(c.Slots - c.Leased + 1)
			if c.Unheard = random.IntN(4) == 0; c.Unheard {
				c.Free, c.Empty = 0, time.Time{}
			}
			have.Containers = append(have.Containers, c)
		}
		check(t, have, p, autoscale.Decide(have, p, noon))
	})
}
