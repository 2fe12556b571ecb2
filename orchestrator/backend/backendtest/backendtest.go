// Package backendtest is what every backend has to pass: the promises of
// package backend, checked from outside.
package backendtest

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
	"berth/slots"
)

// Subject is a backend under test. All fields are required.
type Subject struct {
	// New returns a backend without containers, which the test's end closes.
	New func(t *testing.T) backend.Backend
	// Starting reports whether a start of the ID has begun. It is asked while
	// a test waits to come in between.
	Starting func(b backend.Backend, id string) bool
	// Crash makes the container end for good, all by itself.
	Crash func(t *testing.T, b backend.Backend, c backend.Container)
	// Spec is what to start; the suite gives it an ID.
	Spec backend.Spec
}

// patience is how long anything may take; only what fails takes that long.
const patience = time.Minute

// grace is given to containers that have nothing to do.
const grace = 10 * time.Second

// suite is a subject with what every test of it needs.
type suite struct{ Subject }

// Run runs the whole suite.
func Run(t *testing.T, s Subject) {
	u := suite{s}
	for _, c := range []struct {
		name string
		run  func(t *testing.T, b backend.Backend)
	}{
		{"a container is what its spec says and is listed", u.startAndList},
		{"starting twice is starting once", u.startTwice},
		{"the same id with another spec is a conflict", u.startOther},
		{"an impossible spec is refused and leaves nothing", u.startImpossible},
		{"stopping twice, at once or what is unknown is stopping", u.stopTwice},
		{"an id that was stopped is used up", u.startStopped},
		{"a stop ends a start under way", u.stopStarting},
		{"a start whose caller left is undone and may be repeated", u.startAbandoned},
		{"a start goes on while another caller waits", u.startAbandonedByOne},
		{"a stop whose caller left is carried through", u.stopAbandoned},
		{"a context that has ended starts and lists nothing", u.endedContext},
		{"a watch begins with what is up and goes on with changes", u.watch},
		{"a slow watcher holds up nobody and misses no down", u.watchSlowly},
		{"a container that dies is down for a reason", u.crash},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, u.New(t)) })
	}
}

// spec is the subject's under another ID.
func (u suite) spec(id string) backend.Spec {
	s := u.Spec.Clone()
	s.ID = id
	return s
}

func (u suite) start(t *testing.T, b backend.Backend, id string) backend.Container {
	t.Helper()
	c, err := b.Start(soon(t), u.spec(id))
	require.NoError(t, err)
	return c
}

// begin starts in the background and returns when the start is under way.
func (u suite) begin(ctx context.Context, t *testing.T, b backend.Backend, id string) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := b.Start(ctx, u.spec(id))
		ended <- err
	}()
	require.Eventually(t, func() bool { return u.Starting(b, id) || len(ended) > 0 }, patience, time.Millisecond, "start has not begun")
	return ended
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func list(t *testing.T, b backend.Backend) []backend.Container {
	t.Helper()
	all, err := b.List(soon(t))
	require.NoError(t, err)
	return all
}

func ids(all []backend.Container) []string {
	out := []string{}
	for _, c := range all {
		out = append(out, c.ID)
	}
	return out
}

// assertKind checks that the error is typed, and as it has to be.
func assertKind(t *testing.T, want slots.Kind, err error) {
	t.Helper()
	var e *slots.Error
	if assert.ErrorAs(t, err, &e) {
		assert.Equal(t, want, e.Kind, "%v", err)
		assert.NotEmpty(t, e.Message)
	}
}

// wait returns what comes from the channel.
func wait[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		require.FailNow(t, "waited in vain", "%s", what)
		panic("not reached")
	}
}

func (u suite) startAndList(t *testing.T, b backend.Backend) {
	assert.Empty(t, list(t, b))
	before := time.Now().Add(-time.Second)
	second := u.start(t, b, "c-2")
	first := u.start(t, b, "c-1")
	assert.Equal(t, []backend.Container{first, second}, list(t, b), "sorted by id")
	for _, c := range []backend.Container{first, second} {
		assert.Equal(t, u.Spec.Template, c.Template)
		assert.Equal(t, u.Spec.Slots, c.Slots)
		assert.True(t, strings.HasPrefix(c.URL, "http"), c.URL)
		assert.WithinRange(t, c.Started, before, time.Now())
		assert.GreaterOrEqual(t, len(c.Token), 16)
		assert.NotContains(t, fmt.Sprintf("%v %+v %#v %s", c, c, c, c), c.Token)
	}
	assert.NotEqual(t, first.Token, second.Token)
	assert.NotEqual(t, first.URL, second.URL)
}

func (u suite) startTwice(t *testing.T, b backend.Backend) {
	const callers = 8
	var started [callers]backend.Container
	var all sync.WaitGroup
	ctx := soon(t)
	for i := range callers {
		all.Go(func() {
			var err error
			started[i], err = b.Start(ctx, u.spec("c-1"))
			assert.NoError(t, err)
		})
	}
	all.Wait()
	started[0] = u.start(t, b, "c-1")
	for _, c := range started {
		assert.Equal(t, started[0], c)
	}
	assert.Equal(t, started[:1], list(t, b))
}

func (u suite) startOther(t *testing.T, b backend.Backend) {
	c := u.start(t, b, "c-1")
	for what, change := range map[string]func(*backend.Spec){
		"slots":    func(s *backend.Spec) { s.Slots++ },
		"template": func(s *backend.Spec) { s.Template += "x" },
		"env":      func(s *backend.Spec) { s.Env = map[string]string{"OTHER": "x"} },
		"timeout":  func(s *backend.Spec) { s.MaxTimeout += time.Second },
		"limits":   func(s *backend.Spec) { s.Limits.Pids += 1000 },
		"network":  func(s *backend.Spec) { s.Network = !s.Network },
	} {
		s := u.spec("c-1")
		change(&s)
		_, err := b.Start(soon(t), s)
		t.Log(what)
		assertKind(t, slots.KindConflict, err)
	}
	assert.Equal(t, []backend.Container{c}, list(t, b), "it goes on as it was")
}

func (u suite) startImpossible(t *testing.T, b backend.Backend) {
	for _, s := range Impossible(u.spec("c-1")) {
		_, err := b.Start(soon(t), s)
		t.Log(s.ID)
		assertKind(t, slots.KindBadRequest, err)
	}
	assert.Empty(t, list(t, b))
	u.start(t, b, "c-1")
}

// Impossible lists specs that no backend may start, made of one that it may.
func Impossible(good backend.Spec) []backend.Spec {
	var out []backend.Spec
	add := func(change func(*backend.Spec)) {
		s := good.Clone()
		change(&s)
		out = append(out, s)
	}
	for _, id := range []string{"", ".", "..", "a/b", "../a", "-a", "_a", "a b", "a\n", "a\x00", "ä", strings.Repeat("a", 64)} {
		add(func(s *backend.Spec) { s.ID = id })
	}
	for _, n := range []int{0, -1, backend.MaxSlots + 1} {
		add(func(s *backend.Spec) { s.Slots = n })
	}
	for _, word := range []string{"strong", "ns,net", "ns,net=none-such"} {
		add(func(s *backend.Spec) { s.Isolation = word })
	}
	for _, env := range []map[string]string{
		{"": "x"}, {"A=B": "x"}, {"A B": "x"}, {"1A": "x"}, {"A": "x\ny"}, {"A": "x\x00"}, {"A": strings.Repeat("x", 1<<20)},
	} {
		add(func(s *backend.Spec) { s.Env = env })
	}
	nan := 0.0
	for _, l := range []backend.Limits{{MemoryBytes: -1}, {Pids: -1}, {DiskBytes: -1}, {CPUs: -1}, {CPUs: nan / nan}, {CPUs: 1 / nan}} {
		add(func(s *backend.Spec) { s.Limits = l })
	}
	add(func(s *backend.Spec) { s.MaxTimeout = -time.Second })
	return out
}

func (u suite) stopTwice(t *testing.T, b backend.Backend) {
	assert.NoError(t, b.Stop(soon(t), "unknown", grace))
	assert.NoError(t, b.Stop(soon(t), "../unknown", grace))
	u.start(t, b, "c-1")
	kept := u.start(t, b, "c-2")
	var all sync.WaitGroup
	ctx := soon(t)
	for range 4 {
		all.Go(func() {
			if err := b.Stop(ctx, "c-1", grace); !assert.NoError(t, err) {
				return
			}
			left, err := b.List(ctx)
			if assert.NoError(t, err) {
				assert.Equal(t, []backend.Container{kept}, left, "every stop returns after the end")
			}
		})
	}
	all.Wait()
	require.NoError(t, b.Stop(soon(t), "c-1", 0))
	assert.Equal(t, []backend.Container{kept}, list(t, b))
}

func (u suite) startStopped(t *testing.T, b backend.Backend) {
	u.start(t, b, "c-1")
	require.NoError(t, b.Stop(soon(t), "c-1", grace))
	_, err := b.Start(soon(t), u.spec("c-1"))
	assertKind(t, slots.KindConflict, err)
	assert.Empty(t, list(t, b))
}

func (u suite) stopStarting(t *testing.T, b backend.Backend) {
	ended := u.begin(soon(t), t, b, "c-1")
	require.NoError(t, b.Stop(soon(t), "c-1", grace))
	if err := wait(t, ended, "the start's end"); err != nil { // else it was faster than the stop
		assertKind(t, slots.KindConflict, err)
	}
	assert.Empty(t, list(t, b))
}

func (u suite) startAbandoned(t *testing.T, b backend.Backend) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := u.begin(ctx, t, b, "c-1")
	cancel()
	if err := wait(t, ended, "the start's end"); err != nil { // else it was faster than the cancel
		assertKind(t, slots.KindInterrupted, err)
		assert.ErrorIs(t, err, context.Canceled)
		assert.Empty(t, list(t, b))
	}
	u.start(t, b, "c-1")
	assert.Equal(t, []string{"c-1"}, ids(list(t, b)))
}

func (u suite) startAbandonedByOne(t *testing.T, b backend.Backend) {
	patient := u.begin(soon(t), t, b, "c-1")
	// It has joined the start by then, or would find its context ended.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if _, err := b.Start(ctx, u.spec("c-1")); err != nil { // else the start was faster
		assertKind(t, slots.KindInterrupted, err)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	require.NoError(t, wait(t, patient, "the patient caller"))
	assert.Equal(t, []string{"c-1"}, ids(list(t, b)))
}

func (u suite) stopAbandoned(t *testing.T, b backend.Backend) {
	u.start(t, b, "c-1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Stop(ctx, "c-1", grace); err != nil { // else it had ended already
		assertKind(t, slots.KindInterrupted, err)
		assert.ErrorIs(t, err, context.Canceled)
	}
	assert.Eventually(t, func() bool { return len(list(t, b)) == 0 }, patience, time.Millisecond)
}

func (u suite) endedContext(t *testing.T, b backend.Backend) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Start(ctx, u.spec("c-1"))
	assertKind(t, slots.KindInterrupted, err)
	require.ErrorIs(t, err, context.Canceled)
	_, err = b.List(ctx)
	assertKind(t, slots.KindInterrupted, err)
	assert.Empty(t, list(t, b))
	for e := range b.Watch(ctx) {
		assert.Fail(t, "told of something", "%v", e)
	}
}

// watching is a Watch that a test pulls its events from.
func watching(t *testing.T, b backend.Backend) func(what string) backend.Event {
	t.Helper()
	next, stop := iter.Pull(b.Watch(soon(t)))
	t.Cleanup(stop)
	return func(what string) backend.Event {
		t.Helper()
		e, ok := next()
		require.True(t, ok, "the watch has ended before %s", what)
		return e
	}
}

func (u suite) watch(t *testing.T, b backend.Backend) {
	first, second := u.start(t, b, "c-1"), u.start(t, b, "c-2")
	next := watching(t, b)
	assert.Equal(t, backend.Event{Kind: backend.Up, Container: first}, next("the first up"))
	assert.Equal(t, backend.Event{Kind: backend.Up, Container: second}, next("the second up"))
	third := u.start(t, b, "c-3")
	assert.Equal(t, backend.Event{Kind: backend.Up, Container: third}, next("a later up"))
	require.NoError(t, b.Stop(soon(t), "c-2", grace))
	e := next("a down")
	assert.Equal(t, backend.Down, e.Kind)
	assert.Equal(t, second, e.Container)
	assert.NotEmpty(t, e.Reason)
}

func (u suite) watchSlowly(t *testing.T, b backend.Backend) {
	u.start(t, b, "c-0")
	ctx, cancel := context.WithCancel(soon(t))
	defer cancel()
	looking, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var once sync.Once
	var mu sync.Mutex // guards heard
	var heard []string
	go func() {
		defer close(ended)
		for e := range b.Watch(ctx) {
			once.Do(func() { close(looking) })
			<-goOn
			mu.Lock()
			heard = append(heard, string(e.Kind)+" "+e.Container.ID)
			mu.Unlock()
		}
	}()
	wait(t, looking, "the watcher's first event")
	u.start(t, b, "c-1")
	u.start(t, b, "c-2")
	require.NoError(t, b.Stop(soon(t), "c-1", grace))
	require.NoError(t, b.Stop(soon(t), "c-0", grace))
	close(goOn)
	want := []string{"up c-0", "up c-1", "up c-2", "down c-1", "down c-0"}
	assert.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Equal(want, heard)
	}, patience, time.Millisecond)
	cancel()
	wait(t, ended, "the watch's end with its context")
	assert.Equal(t, want, heard)
}

func (u suite) crash(t *testing.T, b backend.Backend) {
	kept, crashed := u.start(t, b, "c-1"), u.start(t, b, "c-2")
	next := watching(t, b)
	next("the first up")
	next("the second up")
	u.Crash(t, b, crashed)
	e := next("the down")
	assert.Equal(t, backend.Down, e.Kind)
	assert.Equal(t, crashed, e.Container)
	assert.NotEmpty(t, e.Reason)
	assert.Equal(t, []backend.Container{kept}, list(t, b))
	require.NoError(t, b.Stop(soon(t), "c-2", grace))
	_, err := b.Start(soon(t), u.spec("c-2"))
	assertKind(t, slots.KindConflict, err)
}
