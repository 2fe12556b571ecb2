package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/sandboxd/execution"
	"berth/slots"
)

func call(id string) string {
	return `{"slot_id":"slot_0","tool":"bash","args":{"command":"x"},"execution_id":"` + id + `"}`
}

// going is an answer that is still going on.
type going struct {
	code   int
	header http.Header
	body   io.Reader
}

// open sends a request and returns its answer without waiting for its end.
func (c *container) open(t *testing.T, method, path, body, accept string) going {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+c.addr+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+testToken)
	req.Header.Set("Accept", accept)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { _ = res.Body.Close() })
	return going{res.StatusCode, res.Header, res.Body}
}

// events reads a whole NDJSON stream.
func events(t *testing.T, r io.Reader) []api.Event {
	t.Helper()
	var all []api.Event
	s := bufio.NewScanner(r)
	s.Buffer(nil, 10<<20)
	for s.Scan() {
		var e api.Event
		require.NoError(t, json.Unmarshal(s.Bytes(), &e), s.Text())
		all = append(all, e)
	}
	return all
}

// output puts the chunks of a stream together and checks their offsets.
func output(t *testing.T, all []api.Event, stream string, from int64) string {
	t.Helper()
	var b strings.Builder
	for _, e := range all {
		if e.Name != api.EventChunk || e.Chunk.Stream != stream {
			continue
		}
		require.Equal(t, from+int64(b.Len()), e.Chunk.Offset)
		b.Write(e.Chunk.Bytes())
	}
	return b.String()
}

func TestAStreamHoldsOrderedChunksAndEndsWithTheResult(t *testing.T) {
	c := start(t, Config{Token: testToken})
	c.run = func(_ context.Context, _ api.Call, stdout, stderr io.Writer) api.Result {
		for i := range 200 {
			_, _ = fmt.Fprintf(stdout, "line %d €\n", i)
			_, _ = fmt.Fprintf(stderr, "warning %d\n", i)
		}
		return ran("done")
	}
	res := c.open(t, http.MethodPost, "/execute", call("s1"), api.TypeNDJSON)
	assert.Equal(t, 200, res.code)
	assert.Equal(t, api.TypeNDJSON, res.header.Get("Content-Type"))
	all := events(t, res.body)
	require.GreaterOrEqual(t, len(all), 4)
	assert.Equal(t, "s1", all[0].Start.ExecutionID)
	last := all[len(all)-1]
	require.Equal(t, api.EventResult, last.Name)
	assert.Equal(t, "done", last.Result.Output)
	stdout := output(t, all, "stdout", 0)
	assert.Equal(t, 200, strings.Count(stdout, "€\n"))
	assert.Equal(t, 200, strings.Count(output(t, all, "stderr", 0), "warning"))

	t.Run("and can be resumed at any offset, in the middle of a code point too", func(t *testing.T) {
		for _, from := range []int{0, 1, 8, 9, len(stdout) - 1, len(stdout)} {
			res := c.open(t, http.MethodGet, fmt.Sprintf("/v1/executions/s1/stream?stdout_offset=%d&stderr_offset=3", from), "", api.TypeNDJSON)
			all := events(t, res.body)
			assert.Equal(t, stdout[from:], output(t, all, "stdout", int64(from)))
			assert.Equal(t, api.EventResult, all[len(all)-1].Name)
		}
	})
	t.Run("or at the id of the last event", func(t *testing.T) {
		a := c.ask(t, http.MethodGet, "/v1/executions/s1/stream", "", "Last-Event-ID: 5.7")
		assert.Equal(t, api.TypeEventStream, a.header.Get("Content-Type"))
		assert.Contains(t, a.body, "event: start\nid: 5.7\ndata: {")
		assert.True(t, strings.HasSuffix(a.body, "\n\n"))
		parts := strings.Split(strings.TrimSuffix(a.body, "\n\n"), "\n\n")
		assert.True(t, strings.HasPrefix(parts[len(parts)-1], "event: result\nid: "), "the last event is the result")
	})
	t.Run("and read by offset", func(t *testing.T) {
		a := c.ask(t, http.MethodGet, "/v1/executions/s1/output?offset=5&length=4", "")
		assert.Equal(t, stdout[5:9], a.body)
		assert.Equal(t, itoa(len(stdout)), a.header.Get(headerTotal))
		assert.Equal(t, "5", a.header.Get(headerOffset))
		assert.Equal(t, stdout, c.ask(t, http.MethodGet, "/v1/executions/s1/output?stream=stdout", "").body)
		a = c.ask(t, http.MethodGet, "/v1/executions/s1/output?stream=stderr&offset=9000000000000000000", "")
		assert.Equal(t, 200, a.code)
		assert.Empty(t, a.body)
	})
}

func TestWrongOffsetsAreRefused(t *testing.T) {
	c := start(t, Config{Token: testToken})
	c.ask(t, http.MethodPost, "/execute", call("o1"))
	for _, path := range []string{
		"stream?stdout_offset=-1", "stream?stderr_offset=x", "stream?stdout_offset=99999999999999999999",
		"output?offset=-1", "output?length=-1", "output?stream=stdin", "output?offset=0x10",
	} {
		assert.Equal(t, 400, c.ask(t, http.MethodGet, "/v1/executions/o1/"+path, "").code, path)
	}
	assert.Equal(t, 400, c.ask(t, http.MethodGet, "/v1/executions/o1/stream", "", "Last-Event-ID: 7").code)
	for _, path := range []string{"", "/stream", "/output"} {
		assert.Equal(t, 404, c.ask(t, http.MethodGet, "/v1/executions/unknown"+path, "").code)
	}
}

func TestOutputArrivesWhileTheCommandRuns(t *testing.T) {
	c := start(t, Config{Token: testToken, KeepAlive: 20 * time.Millisecond})
	release := make(chan struct{})
	c.run = func(_ context.Context, _ api.Call, stdout, _ io.Writer) api.Result {
		_, _ = io.WriteString(stdout, "first")
		<-release
		return ran("")
	}
	res := c.open(t, http.MethodPost, "/execute", call("live"), api.TypeEventStream)
	r := bufio.NewReader(res.body)
	until := func(want string) {
		t.Helper()
		for {
			line, err := r.ReadString('\n')
			require.NoError(t, err)
			if strings.Contains(line, want) {
				return
			}
		}
	}
	until(`"data":"first"`)
	until(": ping")
	a := c.ask(t, http.MethodGet, "/v1/executions/live", "")
	assert.JSONEq(t, `{"execution_id":"live","state":"running"}`, a.body)
	close(release)
	until("event: result")
}

func TestBytesThatAreNoTextTravelAsBase64(t *testing.T) {
	c := start(t, Config{Token: testToken})
	c.run = func(_ context.Context, _ api.Call, stdout, _ io.Writer) api.Result {
		_, _ = stdout.Write([]byte("a\xe2\x82"))
		_, _ = stdout.Write([]byte("\xacb"))
		_, _ = stdout.Write([]byte("\xff\x00\xe2"))
		return ran("")
	}
	all := events(t, c.open(t, http.MethodPost, "/execute", call("b1"), api.TypeNDJSON).body)
	assert.Equal(t, "a€b\xff\x00\xe2", output(t, all, "stdout", 0))
}

func TestALostOutputIsAGapAndTheResultStillComes(t *testing.T) {
	c := start(t, Config{Token: testToken})
	c.run = func(_ context.Context, _ api.Call, stdout, _ io.Writer) api.Result {
		_, _ = io.WriteString(stdout, strings.Repeat("x", 1_000_000))
		return ran("")
	}
	c.ask(t, http.MethodPost, "/execute", call("g1"))
	all := events(t, c.open(t, http.MethodGet, "/v1/executions/g1/stream", "", api.TypeNDJSON).body)
	var gap *api.Gap
	for _, e := range all {
		if e.Gap != nil {
			gap = e.Gap
		}
	}
	require.NotNil(t, gap)
	assert.Positive(t, gap.From)
	assert.Less(t, gap.To, int64(1_000_000))
	assert.Equal(t, api.EventResult, all[len(all)-1].Name)
	a := c.ask(t, http.MethodGet, fmt.Sprintf("/v1/executions/g1/output?offset=%d", gap.From), "")
	assert.Equal(t, 404, a.code)
	assert.Contains(t, a.body, fmt.Sprintf("output bytes %d to %d are no longer kept", gap.From, gap.To))
	for name, want := range map[string]struct{ query, body string }{
		"before the gap":  {"offset=0", strings.Repeat("x", int(gap.From))},
		"up to the gap":   {fmt.Sprintf("offset=0&length=%d", gap.From), strings.Repeat("x", int(gap.From))},
		"short of it":     {fmt.Sprintf("offset=%d&length=999999", gap.From-7), strings.Repeat("x", 7)},
		"after the gap":   {fmt.Sprintf("offset=%d", gap.To), strings.Repeat("x", int(1_000_000-gap.To))},
		"beyond its end":  {"offset=1000001&length=7", ""},
		"nothing, at all": {"offset=3&length=0", ""},
	} {
		a := c.ask(t, http.MethodGet, "/v1/executions/g1/output?"+want.query, "")
		assert.Equal(t, 200, a.code, name)
		assert.Equal(t, want.body, a.body, name)
		assert.Equal(t, itoa(len(want.body)), a.header.Get("Content-Length"), name)
		assert.Equal(t, "1000000", a.header.Get(headerTotal), name)
	}
	a = c.ask(t, http.MethodGet, fmt.Sprintf("/v1/executions/g1/output?offset=%d&length=9", gap.To-1), "")
	assert.Equal(t, 404, a.code, "it begins in the gap")
}

func TestAStreamOfARefusedCallIsItsResult(t *testing.T) {
	c := start(t, Config{Token: testToken})
	all := events(t, c.open(t, http.MethodPost, "/execute", `{"slot_id":"slot_9","tool":"bash"}`, api.TypeNDJSON).body)
	require.NotEmpty(t, all)
	last := all[len(all)-1]
	require.Equal(t, api.EventResult, last.Name)
	assert.Equal(t, "Unknown slot: slot_9", last.Result.Error)
}

func TestTheResultComesAlsoAfterACancel(t *testing.T) {
	c := start(t, Config{Token: testToken})
	c.run = func(ctx context.Context, _ api.Call, stdout, _ io.Writer) api.Result {
		_, _ = io.WriteString(stdout, "begun")
		<-ctx.Done()
		r := ran("begun")
		r.Success, r.Metadata.Outcome = false, slots.OutcomeCancelled
		return r
	}
	res := c.open(t, http.MethodPost, "/execute", call("c1"), api.TypeNDJSON)
	require.Eventually(t, func() bool {
		e, ok := c.Get("c1")
		return ok && e.Started()
	}, 30*time.Second, time.Millisecond)
	a := c.ask(t, http.MethodPost, "/v1/executions/c1/cancel", "")
	assert.Equal(t, 200, a.code)
	assert.Contains(t, a.body, `"outcome":"cancelled"`)
	all := events(t, res.body)
	assert.Equal(t, slots.OutcomeCancelled, all[len(all)-1].Result.Metadata.Outcome)
	assert.Equal(t, "begun", output(t, all, "stdout", 0))
	assert.Equal(t, 200, c.ask(t, http.MethodPost, "/v1/executions/c1/cancel", "").code, "twice is once")
}

func TestTheResultComesAlsoWhenTheServerStops(t *testing.T) {
	c := start(t, Config{Token: testToken, ShutdownTimeout: 50 * time.Millisecond})
	release := make(chan struct{})
	defer close(release)
	c.run = func(context.Context, api.Call, io.Writer, io.Writer) api.Result {
		<-release
		return ran("")
	}
	streamed := c.open(t, http.MethodPost, "/execute", call("d1"), api.TypeNDJSON)
	plain := c.later(t.Context(), http.MethodPost, "/execute", call("d1"))
	require.Eventually(t, func() bool { return c.server.conns.count() >= 2 }, 30*time.Second, time.Millisecond)
	c.stop()
	all := events(t, streamed.body)
	last := all[len(all)-1]
	require.Equal(t, api.EventResult, last.Name)
	assert.Equal(t, slots.KindInterrupted, last.Result.Metadata.ErrorKind)
	assert.Equal(t, slots.ExecutedMaybe, last.Result.Metadata.Executed)
	a := <-plain
	assert.Equal(t, 200, a.code)
	assert.Contains(t, a.body, `"interrupted"`)
}

func TestTheResultComesAlsoAfterAPanic(t *testing.T) {
	c := start(t, Config{Token: testToken, KeepAlive: -1}) // no ticker can be made of it
	all := events(t, c.open(t, http.MethodPost, "/execute", call("p1"), api.TypeNDJSON).body)
	require.Len(t, all, 2)
	assert.Equal(t, slots.KindInternal, all[1].Result.Metadata.ErrorKind)
	assert.Equal(t, 1, strings.Count(c.logs.String(), "handler panicked"), "once")
}

// panicking has a bug.
type panicking struct{ *fakeKeeper }

func (panicking) Submit(context.Context, api.Call) *execution.Execution {
	panic("a bug with\na newline")
}

func (p panicking) Follow(ctx context.Context, call api.Call) *execution.Execution {
	return p.Submit(ctx, call)
}

func (p panicking) Run(ctx context.Context, call api.Call) *execution.Execution {
	return p.Submit(ctx, call)
}

func TestAPanicIsAnInternalErrorAndLoggedOnce(t *testing.T) {
	c := start(t, Config{Token: testToken})
	c.server.Executions = panicking{c.fakeKeeper}
	a := c.ask(t, http.MethodPost, "/execute", call("secret-id"))
	assert.Equal(t, 500, a.code)
	assert.Contains(t, a.body, "internal error")
	assert.NotContains(t, a.body, "newline")
	assert.Equal(t, 1, strings.Count(c.logs.String(), "handler panicked"))
	assert.NotContains(t, c.logs.String(), "secret-id", "nothing of the request is logged")
	assert.Equal(t, 200, c.ask(t, http.MethodGet, "/health", "").code)
}

func TestAClientThatGoesCancelsOnlyWhatHasNotStarted(t *testing.T) {
	c := start(t, Config{Token: testToken})
	for _, accept := range []string{"application/json", api.TypeNDJSON} {
		t.Run(accept, func(t *testing.T) {
			id := "never-starts" + accept[len(accept)-4:]
			ctx, cancel := context.WithCancel(t.Context())
			gone := c.later(ctx, http.MethodPost, "/execute",
				`{"slot_id":"slot_0","tool":"bash","args":{"command":"never-starts"},"execution_id":"`+id+`"}`, "Accept: "+accept)
			require.Eventually(t, func() bool { _, ok := c.Get(id); return ok }, 30*time.Second, time.Millisecond)
			cancel()
			<-gone
			e, ok := c.Get(id)
			require.True(t, ok)
			select {
			case <-e.Done():
			case <-time.After(5 * time.Second):
				t.Fatal("nobody told the execution")
			}
			assert.Equal(t, slots.ExecutedNever, e.Result().Metadata.Executed)
		})
	}
}

func TestAStreamedBatchSendsEachResultWhenItIsReady(t *testing.T) {
	c := start(t, Config{Token: testToken})
	slow := make(chan struct{})
	c.run = func(_ context.Context, call api.Call, _, _ io.Writer) api.Result {
		if call.ExecutionID == "slow" {
			<-slow
		}
		return ran(call.ExecutionID)
	}
	res := c.open(t, http.MethodPost, "/batch", `[`+call("slow")+`,`+call("fast")+`,7]`, api.TypeNDJSON)
	s := bufio.NewScanner(res.body)
	seen := map[int]string{}
	for s.Scan() {
		var r api.Result
		require.NoError(t, json.Unmarshal(s.Bytes(), &r))
		require.NotNil(t, r.Index)
		seen[*r.Index] = r.Output + r.Error
		if len(seen) == 2 {
			assert.NotContains(t, seen, 0, "the slow one is not waited for")
			close(slow)
		}
	}
	assert.Equal(t, map[int]string{0: "slow", 1: "fast", 2: "Invalid JSON"}, seen)

	a := c.ask(t, http.MethodPost, "/batch", `[`+call("fast")+`]`, "Accept: text/event-stream")
	assert.True(t, strings.HasPrefix(a.body, "event: result\nid: 0\ndata: {"), a.body)
}

func TestACodePointIsNeverCut(t *testing.T) {
	for text, n := range map[string]int{
		"": 0, "abc": 3, "a€": 4, "a\xe2\x82": 1, "\xe2": 0, "\xf0\x9f\x98": 0, "a\xf0\x9f\x98\x80": 5,
		"\x80\x80\x80\x80\x80": 5, "ab\xff": 3, "\xe2\x82\xe2": 2,
	} {
		assert.Equal(t, n, whole([]byte(text)), "%q", text)
	}
}
