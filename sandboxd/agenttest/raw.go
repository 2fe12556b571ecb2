package agenttest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Answer is what came back for one raw request.
type Answer struct {
	Status  int
	Header  http.Header
	Body    []byte
	Trailer http.Header
	Took    time.Duration

	from *Agent
}

// Within is Agent.Within of the time that the answer took.
func (a Answer) Within(t testing.TB, bar time.Duration, about ...any) {
	t.Helper()
	what := "an answer"
	if len(about) > 0 {
		what = fmt.Sprintf("%.200s", fmt.Sprintln(about...))
	}
	a.from.Within(t, strings.TrimSpace(what), a.Took, bar)
}

// Object is the answer as a JSON object; anything else fails the test.
func (a Answer) Object(t testing.TB) map[string]any {
	t.Helper()
	require.Equal(t, "application/json", a.Header.Get("Content-Type"), "%d %.300s", a.Status, a.Body)
	var v map[string]any
	require.NoError(t, json.Unmarshal(a.Body, &v), "%.300s", a.Body)
	return v
}

// Send sends one request as any client could, with the token, and returns the
// whole answer. headers are "Name: value"; one of them may replace the token.
func (a *Agent) Send(t testing.TB, method, path, body string, headers ...string) Answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, a.URL+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+a.Token)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	start := time.Now()
	res, err := rawClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return Answer{Status: res.StatusCode, Header: res.Header, Body: text, Trailer: res.Trailer, Took: time.Since(start), from: a}
}

// Post is Send of a value as JSON.
func (a *Agent) Post(t testing.TB, path string, v any) Answer {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return a.Send(t, http.MethodPost, path, string(text), "Content-Type: application/json")
}

// rawClient makes a connection per request, so that no test meets the
// leftovers of another.
var rawClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
