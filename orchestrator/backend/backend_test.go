package backend_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
	"berth/orchestrator/backend/backendtest"
	"berth/slots"
)

var good = backend.Spec{
	ID: "c-1", Template: "t", Slots: 2, Isolation: "uid+landlock,net=loopback-only", Env: map[string]string{"KEY": "s3cret"},
	Network: true, MaxTimeout: time.Minute, Limits: backend.Limits{MemoryBytes: 1, Pids: 2, CPUs: 0.5, DiskBytes: 3},
}

func TestASecretIsWrittenNowhere(t *testing.T) {
	c := backend.Container{ID: "c-1", URL: "http://x", Token: "s3cret", Slots: 2}
	event := backend.Event{Kind: backend.Up, Container: c}
	for _, v := range []any{c, &c, event, []backend.Container{c}, good, &good} {
		text, err := json.Marshal(v)
		if _, isSpec := v.(backend.Spec); !isSpec && v != any(&good) { // a Spec is stored as it is
			require.NoError(t, err)
			assert.NotContains(t, string(text), "s3cret")
		}
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
			out := fmt.Sprintf(verb, v)
			assert.NotContains(t, out, "s3cret", verb)
			assert.Contains(t, out, "c-1", verb)
		}
	}
	assert.Equal(t, "s3cret", c.Token, "it is still there")
	assert.Equal(t, "s3cret", good.Env["KEY"], "it is still there")
	text, err := json.Marshal(c)
	require.NoError(t, err)
	assert.JSONEq(t, `{"id":"c-1","template":"","url":"http://x","slots":2,"started":"0001-01-01T00:00:00Z"}`, string(text))
}

func TestASpecIsCheckedAndItsSecretsNotNamed(t *testing.T) {
	require.NoError(t, good.Check())
	require.NoError(t, backend.Spec{ID: "a", Slots: 1}.Check(), "zero fields are defaults")
	for _, s := range backendtest.Impossible(good) {
		err := s.Check()
		require.Error(t, err, "%v", s)
		assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind)
	}
	s := good.Clone()
	s.Env["KEY"] = "s3cret\nline"
	assert.NotContains(t, s.Check().Error(), "s3cret")
	assert.Contains(t, s.Check().Error(), "KEY")
}

func TestACloneSharesNothingAndIsEqual(t *testing.T) {
	c := good.Clone()
	assert.True(t, good.Equal(c))
	c.Env["KEY"] = "other"
	assert.False(t, good.Equal(c))
	assert.Equal(t, "s3cret", good.Env["KEY"])
	empty := good
	empty.Env = map[string]string{}
	none := good
	none.Env = nil
	assert.True(t, empty.Equal(none), "no environment is no environment")
}

// up is that of a container whose URLs are 1, 2, and so on.
func up(id string, url uint64) backend.Event {
	return backend.Event{Kind: backend.Up, Container: backend.Container{ID: id, URL: fmt.Sprint(url), Version: url}}
}

func down(id string, url uint64, reason string) backend.Event {
	return backend.Event{Kind: backend.Down, Container: up(id, url).Container, Reason: reason}
}

// take pulls n events.
func take(t *testing.T, next func() (backend.Event, bool), n int) []backend.Event {
	t.Helper()
	var out []backend.Event
	for range n {
		e, ok := next()
		require.True(t, ok, "after %v", out)
		out = append(out, e)
	}
	return out
}

func TestAFeedTellsTheLastUpAndEveryDown(t *testing.T) {
	var f backend.Feed
	f.Up(up("b", 1).Container)
	f.Up(up("a", 1).Container)
	next, stop := iter.Pull(f.Watch(t.Context()))
	defer stop()
	assert.Equal(t, []backend.Event{up("a", 1), up("b", 1)}, take(t, next, 2), "what is up comes first")

	f.Up(up("a", 1).Container) // known
	f.Down("none", "never was up")
	f.Up(up("c", 1).Container)
	f.Up(up("b", 2).Container)
	f.Up(up("c", 2).Container)
	f.Down("c", "first")
	f.Down("c", "again")
	f.Down("a", "second")
	assert.Equal(t, []backend.Event{up("c", 2), up("b", 2), down("c", 2, "first"), down("a", 1, "second")}, take(t, next, 4))
	assert.Equal(t, []backend.Container{up("b", 2).Container}, f.List())
	_, ok := f.Get("a")
	assert.False(t, ok)
	c, ok := f.Get("b")
	assert.True(t, ok)
	assert.Equal(t, "2", c.URL)

	f.Down("b", "third")
	f.Close()
	f.Up(up("d", 1).Container)
	assert.Equal(t, []backend.Event{down("b", 2, "third")}, take(t, next, 1), "what it owes comes before the end")
	_, ok = next()
	assert.False(t, ok)
}

func TestAWatcherWaitsWithoutWorkAndEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f backend.Feed
		ctx, cancel := context.WithCancel(t.Context())
		var heard []backend.Event
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for e := range f.Watch(ctx) {
				heard = append(heard, e)
			}
		}()
		synctest.Wait()
		f.Up(up("a", 1).Container)
		synctest.Wait()
		assert.Equal(t, []backend.Event{up("a", 1)}, heard)
		f.Down("a", "x")
		synctest.Wait()
		assert.Len(t, heard, 2)
		cancel()
		<-ended
		f.Up(up("b", 1).Container)
		for range f.Watch(ctx) {
			assert.Fail(t, "its context has ended")
		}
	})
}

func TestAWatcherThatNeverLooksCostsTwoEventsForEachContainer(t *testing.T) {
	var f backend.Feed
	next, stop := iter.Pull(f.Watch(t.Context()))
	defer stop()
	f.Up(up("a", 1).Container)
	take(t, next, 1)
	for i := range uint64(10_000) {
		f.Up(up("b", i+1).Container)
	}
	f.Down("b", "x")
	assert.Equal(t, []backend.Event{up("b", 10_000), down("b", 10_000, "x")}, take(t, next, 2))
}

func TestTheSoonerOfTwoDeadlinesIsOneThatThereIs(t *testing.T) {
	at := time.Unix(1000, 0)
	for _, c := range []struct{ a, b, want time.Time }{
		{at, at.Add(1), at},
		{at.Add(1), at, at},
		{at, time.Time{}, at},
		{time.Time{}, at, at},
		{},
	} {
		assert.Equal(t, c.want, backend.Sooner(c.a, c.b))
	}
}
