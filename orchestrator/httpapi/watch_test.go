package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/dispatch"
	"berth/orchestrator/recent"
	"berth/slots"
)

const patience = 60 * time.Second

// receive is the viewer's next event.
func receive(t *testing.T, v *viewer) (name string, e liveEvent) {
	t.Helper()
	select {
	case text := <-v.events:
		return parse(t, string(text))
	case <-time.After(patience):
		require.Fail(t, "no event comes")
	}
	return "", e
}

func parse(t *testing.T, text string) (name string, e liveEvent) {
	t.Helper()
	lines := strings.Split(text, "\n")
	require.Len(t, lines, 4, "%q", text)
	name, found := strings.CutPrefix(lines[0], "event: ")
	require.True(t, found, text)
	data, found := strings.CutPrefix(lines[1], "data: ")
	require.True(t, found, text)
	require.NoError(t, json.Unmarshal([]byte(data), &e))
	return name, e
}

func TestViewersGetAllAtFirstAndThenWhatHasChanged(t *testing.T) {
	s, _ := newServer(t, Config{})
	s.Recent = recent.New()
	s.Recent.Ended(recent.Call{
		Ended: time.Now().Add(-2 * time.Second), Trajectory: "a\n\ndata: x", Tool: "bash", Fault: slots.KindSlotLost,
		Timing: dispatch.Timing{Run: time.Second},
	}, false)
	one, of, err := s.viewers.join()
	require.NoError(t, err)
	name, e := receive(t, one)
	assert.Equal(t, "full", name)
	assert.Len(t, e.Pools, 1)
	require.Len(t, e.Slowest, 1)
	assert.Equal(t, "a\n\ndata: x", e.Slowest[0].Trajectory, "no name ends an event")
	assert.Equal(t, slots.KindSlotLost, e.Slowest[0].ErrorKind)
	calls := 0
	for _, second := range e.Seconds {
		calls += second.Calls
	}
	assert.Equal(t, 1, calls)

	name, e = receive(t, one)
	assert.Equal(t, "change", name)
	assert.Empty(t, e.Slowest, "they are as before")
	assert.Less(t, len(e.Seconds), 60, "of the seconds only the new ones")
	two, same, err := s.viewers.join()
	require.NoError(t, err)
	assert.Same(t, of, same)
	name, e = receive(t, two)
	assert.Equal(t, "full", name)
	assert.Len(t, e.Slowest, 1)
	s.viewers.leave(one, of)
	s.viewers.leave(two, of)
	select {
	case <-of.ended:
	default:
		assert.Fail(t, "who has no viewers looks no more")
	}
	three, fresh, err := s.viewers.join()
	require.NoError(t, err)
	assert.NotSame(t, of, fresh)
	name, _ = receive(t, three)
	assert.Equal(t, "full", name)
	s.viewers.leave(three, fresh)
}

func TestAViewerThatDoesNotKeepUpGetsAllAgainAndHoldsNobodyUp(t *testing.T) {
	s, _ := newServer(t, Config{})
	v := viewers{s: s}
	slow, quick := &viewer{events: make(chan []byte, backlog), behind: true}, &viewer{events: make(chan []byte, backlog), behind: true}
	to := &showing{all: map[*viewer]bool{slow: true, quick: true}}
	at := &scene{s: s, rows: map[string]json.RawMessage{}}
	for n := range 3 * backlog {
		require.NoError(t, v.tell(to, at, time.Now()))
		name, _ := receive(t, quick)
		assert.Equal(t, n == 0, name == "full", "%d: %s", n, name)
	}
	for range backlog {
		receive(t, slow)
	}
	assert.Empty(t, slow.events)
	require.NoError(t, v.tell(to, at, time.Now()))
	name, _ := receive(t, slow)
	assert.Equal(t, "full", name)
	require.NoError(t, v.tell(to, at, time.Now()))
	name, _ = receive(t, slow)
	assert.Equal(t, "change", name)
}

// TestAnEventIsMadeOnceForAllWhoWatch is why ten viewers cost what one does:
// they get the same bytes.
func TestAnEventIsMadeOnceForAllWhoWatch(t *testing.T) {
	s, _ := newServer(t, Config{})
	v := viewers{s: s}
	to := &showing{all: map[*viewer]bool{}}
	for range 10 {
		to.all[&viewer{events: make(chan []byte, backlog), behind: true}] = true
	}
	at := &scene{s: s, rows: map[string]json.RawMessage{}}
	for range 2 {
		require.NoError(t, v.tell(to, at, time.Now()))
		shared := map[*byte]bool{}
		for one := range to.all {
			shared[&(<-one.events)[0]] = true
		}
		assert.Len(t, shared, 1)
	}
}

func TestViewersAreBoundedAndEndWithTheServer(t *testing.T) {
	s, _ := newServer(t, Config{DrainTimeout: patience})
	ln := httptest.NewUnstartedServer(nil).Listener
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, ln) }()
	get := func() *http.Response {
		r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+ln.Addr().String()+"/v1/events", nil)
		require.NoError(t, err)
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		return answer
	}
	var group, seen sync.WaitGroup
	for range maxViewers {
		answer := get()
		require.Equal(t, 200, answer.StatusCode)
		assert.Equal(t, "text/event-stream", answer.Header.Get("Content-Type"))
		seen.Add(1)
		group.Go(func() {
			defer answer.Body.Close()
			from := bufio.NewReader(answer.Body)
			line, err := from.ReadString('\n')
			assert.NoError(t, err) //nolint:testifylint // not the test's goroutine
			assert.Equal(t, "event: full\n", line)
			seen.Done()
			_, err = io.Copy(io.Discard, from)
			assert.NoError(t, err)
		})
	}
	refused := get()
	text, err := io.ReadAll(refused.Body)
	require.NoError(t, err)
	require.NoError(t, refused.Body.Close())
	assert.Equal(t, 429, refused.StatusCode, "%s", text)
	assert.Contains(t, string(text), "pool_exhausted")
	seen.Wait()
	began := time.Now()
	cancel()
	require.NoError(t, <-ended)
	assert.Less(t, time.Since(began), patience, "no drain waits for viewers")
	group.Wait()
}

func TestThePageMayDoNothingButWhatItNeeds(t *testing.T) {
	s, _ := newServer(t, Config{Token: "one"})
	for path, contentType := range map[string]string{"/": "text/html", "/dashboard.js": "text/javascript", "/dashboard.css": "text/css"} {
		answer := httptest.NewRecorder()
		s.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		assert.Equal(t, 200, answer.Code)
		h := answer.Header()
		assert.Contains(t, h.Get("Content-Type"), contentType)
		for _, want := range []string{"default-src 'none'", "script-src 'self';", "frame-ancestors 'none'", "require-trusted-types-for 'script'"} {
			assert.Contains(t, h.Get("Content-Security-Policy"), want)
		}
		assert.NotContains(t, h.Get("Content-Security-Policy"), "unsafe")
		assert.Equal(t, "nosniff", h.Get("X-Content-Type-Options"))
		for _, outside := range []string{"http://", "https://", "//cdn", "innerHTML", "insertAdjacentHTML", "document.write", "eval("} {
			body := strings.ReplaceAll(answer.Body.String(), "http://www.w3.org/2000/svg", "") // a name, not an address
			assert.NotContains(t, body, outside, path)
		}
		again := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		again.Header.Set("If-None-Match", h.Get("Etag"))
		answer = httptest.NewRecorder()
		s.ServeHTTP(answer, again)
		assert.Equal(t, 304, answer.Code)
	}
}

// BenchmarkTell measures one event of a pool of 100 containers with 16 slots.
func BenchmarkTell(b *testing.B) {
	s, _ := newServer(b, Config{})
	for _, n := range []int{1, 10} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			v := viewers{s: s}
			to := &showing{all: map[*viewer]bool{}}
			for range n {
				to.all[&viewer{events: make(chan []byte, 1)}] = true
			}
			at := &scene{s: s, rows: map[string]json.RawMessage{}}
			for id := range 100 {
				at.rows[fmt.Sprint(id)] = bytes.Repeat([]byte("x"), 3000)
			}
			for b.Loop() {
				if err := v.tell(to, at, time.Now()); err != nil {
					b.Fatal(err)
				}
				for one := range to.all {
					<-one.events
				}
			}
		})
	}
}
