package agenttest

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Bounds are what a watched test allows. Zero fields have the named defaults.
type Bounds struct {
	Neighbour string        // the slot that must go on; default slot_1
	GrowthMiB int64         // of the agent's memory; default 64
	Health    time.Duration // the p99 of /health; default 100 ms
	Calls     time.Duration // the p99 of the neighbour's calls; default 1 s
	// OneCount says that the kernel counts the neighbour's processes together
	// with the attacker's, and that the attack takes all there are: while it
	// lasts, the neighbour may be refused one.
	OneCount bool
	// Renew makes the slots as they were before the attack is repeated; nil: it
	// leaves them so.
	Renew func()
}

// How late an answer may be. While a slot does its worst, /health is promised
// within 100 ms at p99, be both processors busy; the neighbour's calls wait for
// processes of their own, and their bar is what remains to them beside an
// attacker who takes his fair share of both. Who takes more delays answers by
// seconds. Where answers come late without an attack already, the machine's
// slowness is not the attack's doing: then the bars are several times what the
// same agent shows in calm. A shared machine breaks any bar on time now and
// then, so one counts as broken when every repetition of the attack breaks it.
const (
	attempts = 3

	healthBar    = 100 * time.Millisecond // of the p99 of /health
	healthSlower = 4                      // times what is measured without an attack
	callBar      = time.Second            // of the p99 of the neighbour's calls
	slower       = 8                      // times what is measured without an attack
)

// company is shared by watched attacks and held alone by a repeated one: the
// attacks of other tests are no part of what it is to show.
var company sync.RWMutex

// Watch has the neighbour work and the agent answer while attack runs, and
// fails the test when one of them does not: the neighbour's file keeps its
// content, its calls succeed, the agent lives on with the memory, descriptors
// and threads it had. That holds for every attack. An attack is repeated when
// a bound on time is broken, be it of the neighbour's calls, of /health or one
// of Within, and the test fails when the same bound is broken every time.
func (a *Agent) Watch(t testing.TB, b Bounds, attack func()) {
	t.Helper()
	if b.Neighbour == "" {
		b.Neighbour = "slot_1"
	}
	if b.GrowthMiB == 0 {
		b.GrowthMiB = 64
	}
	if b.Health == 0 {
		b.Health = healthBar
	}
	if b.Calls == 0 {
		b.Calls = callBar
	}
	w := &watch{a: a, b: b, canary: "canary-" + strconv.FormatInt(time.Now().UnixNano(), 36)}
	require.True(t, a.Bash(t, b.Neighbour, "printf %s "+w.canary+" > .canary", 20).Success)
	before := a.footprint(t)
	a.watch.Store(w)
	defer a.watch.Store(nil)
	var suspects verdict
	var told []string
	for n := 1; ; n++ {
		late, figures := w.attempt(t, n > 1, attack)
		told = append(told, figures)
		t.Logf("attack %d: %s", n, figures)
		require.True(t, a.Alive(), "the agent has ended\n%s", a.Log())
		w.ends(t, before)
		if n == 1 {
			suspects = late
		}
		if suspects = suspects.and(late); len(suspects) == 0 || t.Failed() {
			return
		}
		if n == attempts {
			assert.Empty(t, suspects, "too late in each of %d attacks:\n%s", n, strings.Join(told, "\n"))
			return
		}
		if b.Renew != nil {
			b.Renew()
		}
	}
}

// Within bounds how long something took, which is the attack's own doing and
// not for the watch to see. Without an attack it would take no longer than
// bar, on a machine where nobody waits.
func (a *Agent) Within(t testing.TB, what string, took, bar time.Duration) {
	t.Helper()
	bar = Patient(bar)
	if w := a.watch.Load(); w != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.own = append(w.own, bound{what, took, bar})
		return
	}
	limit := bar + slower*a.calm(t, "slot_1", 1)
	if took > limit { // as a watch does: the machine may have been slow just before
		limit = max(limit, bar+slower*a.calm(t, "slot_1", 10))
	}
	assert.LessOrEqual(t, took, limit, what)
}

// Calm is how long a call of a slot's takes now, at the worst of a few.
func (a *Agent) Calm(t testing.TB, slot string) time.Duration {
	t.Helper()
	return a.calm(t, slot, 1)
}

func (a *Agent) calm(t testing.TB, slot string, times int) time.Duration {
	t.Helper()
	w := &watch{a: a, b: Bounds{Neighbour: slot}}
	s := w.calm(times)
	require.Empty(t, s.problems, "without an attack")
	return s.calls.p99()
}

// watch is one watched test.
type watch struct {
	a      *Agent
	b      Bounds
	canary string // the content of the neighbour's file; "": it has none

	mu  sync.Mutex // guards own
	own []bound    // told by Within during this attack
}

// bound is what something took, and what it may take.
type bound struct {
	what      string
	took, bar time.Duration
}

// verdict holds the broken bounds by their names.
type verdict map[string]bound

// and leaves what is in both, with other's figures.
func (v verdict) and(other verdict) verdict {
	both := verdict{}
	for what := range v {
		if b, is := other[what]; is {
			both[what] = b
		}
	}
	return both
}

// attempt runs the attack once and says which bounds it breaks.
func (w *watch) attempt(t testing.TB, alone bool, attack func()) (late verdict, figures string) {
	t.Helper()
	if alone {
		company.Lock()
		defer company.Unlock()
	} else {
		company.RLock()
		defer company.RUnlock()
	}
	w.mu.Lock()
	w.own = nil
	w.mu.Unlock()
	calm := w.calm(1)
	seen := w.during(t, attack)
	assert.Empty(t, calm.problems, "without an attack")
	late = w.judge(seen, calm)
	if len(late) > 0 {
		after := w.calm(10)
		assert.Empty(t, after.problems, "after the attack")
		calm.health, calm.calls = calm.health.slowest(after.health), calm.calls.slowest(after.calls)
		late = w.judge(seen, calm)
	}
	bar, why := w.healthBar(calm)
	figures = fmt.Sprintf("/health %v, without an attack %v, bar %v, %s; neighbour's calls %v, without an attack %v", seen.health, calm.health, bar.Round(time.Millisecond), why, seen.calls, calm.calls)
	for _, b := range late {
		figures += fmt.Sprintf("; LATE: %s %v of %v", b.what, b.took.Round(time.Millisecond), b.bar.Round(time.Millisecond))
	}
	return late, figures
}

// during watches while the attack runs. What it sees go wrong is told even
// when the attack ends the test.
func (w *watch) during(t testing.TB, attack func()) (seen sight) {
	t.Helper()
	over, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		seen = w.look(over, 1, 1, callPause)
	}()
	defer func() {
		close(over)
		<-stopped
		assert.Empty(t, seen.problems)
	}()
	attack()
	return seen
}

// calm looks while nobody attacks. The look before an attack is short, for
// every case pays for it; the one after, where something seems broken, is not.
func (w *watch) calm(times int) sight {
	over := make(chan struct{})
	close(over)
	return w.look(over, 10*times, 3*times, calmPause)
}

// judge compares what was seen during an attack with what was without.
func (w *watch) judge(seen, calm sight) verdict {
	w.mu.Lock()
	defer w.mu.Unlock()
	usual := slower * calm.calls.p99()
	health, _ := w.healthBar(calm)
	all := []bound{
		{"p99 of /health", seen.health.p99(), health},
		{"p99 of the neighbour's calls", seen.calls.p99(), max(Patient(w.b.Calls), usual)},
	}
	for _, b := range w.own {
		all = append(all, bound{b.what, b.took, b.bar + usual})
	}
	late := verdict{}
	for _, b := range all {
		if b.took > b.bar {
			late[b.what] = b
		}
	}
	return late
}

// healthBar is how late /health may be during an attack, and by what rule.
func (w *watch) healthBar(calm sight) (bar time.Duration, why string) {
	promised, usual := Patient(w.b.Health), healthSlower*calm.health.p99()
	if usual > promised {
		return usual, fmt.Sprintf("%d times that", healthSlower)
	}
	return promised, "as promised"
}

// ends proves that the attack has left neighbour and agent as they were.
func (w *watch) ends(t testing.TB, before footprint) {
	t.Helper()
	r := w.a.Bash(t, w.b.Neighbour, "cat .canary", 20)
	assert.Equal(t, w.canary, strings.TrimSpace(r.Output), "the neighbour's file")
	w.a.Close() // connections that an attack's many calls left idle are the test's own
	var after footprint
	assert.Eventually(t, func() bool {
		after = w.a.footprint(t)
		return after.rss-before.rss <= w.b.GrowthMiB<<20 && after.fds <= before.fds+16 && after.threads <= before.threads+40
	}, Patient(15*time.Second), 100*time.Millisecond, "the agent's footprint grew, was %+v", before)
	if t.Failed() {
		t.Logf("the agent's footprint: %+v", after)
	}
}
