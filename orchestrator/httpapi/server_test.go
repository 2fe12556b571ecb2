package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/labstack/echo/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
	"berth/orchestrator/backend/memory"
	"berth/orchestrator/calls"
	"berth/orchestrator/pool"
	"berth/sandboxd/client"
	"berth/sandboxd/httpkit"
	"berth/slots"
)

// newServer makes a Server whose pool never has a container.
func newServer(t testing.TB, config Config) (*Server, *bytes.Buffer) {
	t.Helper()
	return newServerThatWaits(t, config, time.Millisecond)
}

// newServerThatWaits is newServer with calls that wait so long for a slot.
func newServerThatWaits(t testing.TB, config Config, wait time.Duration) (*Server, *bytes.Buffer) {
	t.Helper()
	fleet := memory.New(memory.Config{})
	connect := func(c backend.Container) (pool.Remote, error) { return client.New(client.Config{URL: c.URL}) }
	metrics := NewMetrics()
	pools, err := pool.New(fleet, connect, pool.Config{Templates: []pool.Template{{Name: "t", Slots: 1}}, Observer: metrics})
	require.NoError(t, err)
	carrier := calls.New(pools, calls.Config{Template: "t", Wait: wait})
	t.Cleanup(func() {
		assert.NoError(t, carrier.Close(context.Background()))
		assert.NoError(t, pools.Close())
		assert.NoError(t, fleet.Close())
	})
	log := new(bytes.Buffer)
	config.Template = "t"
	logger := hclog.New(&hclog.LoggerOptions{Output: log})
	return New(Deps{Logger: logger, Metrics: metrics, Pools: pools, Calls: carrier}, config), log
}

func TestTokensOpenWhatTheirRoleMay(t *testing.T) {
	const t1, t2 = "Bearer one", "Bearer two"
	for _, c := range []struct {
		trainer, operator string
		header            []string
		role              role
		status            int
	}{
		{"", "", nil, trainer, 0},
		{"", "", nil, operator, 0},
		{"one", "", nil, anybody, 0},
		{"one", "", nil, trainer, 401},
		{"one", "", []string{t1}, trainer, 0},
		{"one", "", []string{"bEARER one"}, trainer, 0},
		{"one", "", []string{"Bearer  one "}, trainer, 0},
		{"one", "", []string{t1}, operator, 0}, // there is no other
		{"one", "two", []string{t1}, trainer, 0},
		{"one", "two", []string{t2}, trainer, 0},
		{"one", "two", []string{t1}, operator, 403},
		{"one", "two", []string{t2}, operator, 0},
		{"one", "two", []string{"Bearer on"}, trainer, 403},
		{"one", "two", []string{"Bearer onetwo"}, operator, 403},
		{"one", "two", []string{t1, t2}, trainer, 401},
		{"one", "two", []string{"Basic one"}, trainer, 401},
		{"one", "two", []string{"Bearer"}, trainer, 401},
		{"one", "two", []string{"one"}, trainer, 401},
		{"one", "two", []string{""}, trainer, 401},
		{"", "two", nil, trainer, 0},
		{"", "two", nil, operator, 401},
		{"", "two", []string{t2}, operator, 0},
		{"", "two", []string{"Bearer "}, operator, 401},
		{"one", "two", []string{"Bearer acme's"}, trainer, 0},
		{"one", "two", []string{"Bearer acme's"}, operator, 403},
		{"one", "", []string{"Bearer acme's"}, operator, 403}, // no trainer of the whole pool
		{"one", "two", []string{"Bearer looks-on"}, scraper, 0},
		{"one", "two", []string{"Bearer looks-on"}, trainer, 403},
		{"one", "", []string{"Bearer looks-on"}, operator, 403},
		{"one", "two", []string{t1}, scraper, 0},
		{"one", "two", []string{t2}, scraper, 0},
		{"one", "two", []string{"Bearer looks-o"}, scraper, 403},
		{"one", "two", nil, scraper, 401},
		{"one", "two", []string{"Bearer "}, scraper, 401},
		{"", "two", nil, scraper, 0},
	} {
		_, err := newTokens(Config{
			Token: c.trainer, OperatorToken: c.operator, Bound: []BoundToken{{"acme's", []string{"acme"}}}, MetricsToken: "looks-on",
		}).admit(&http.Request{Header: http.Header{"Authorization": c.header}}, c.role)
		if c.status == 0 {
			assert.NoError(t, err, "%+v", c)
		} else if assert.Error(t, err, "%+v", c) {
			assert.Equal(t, c.status, httpkit.Status(err), "%+v", c)
		}
	}
}

func TestEveryRouteButHealthAsksForAToken(t *testing.T) {
	s, _ := newServer(t, Config{Token: "one", OperatorToken: "two"})
	for _, r := range s.routes() {
		answer := httptest.NewRecorder()
		path := strings.NewReplacer(":lease", "c:slot_0:1", ":id", "c", "*", "f").Replace(r.path)
		// A body that would hang whoever reads it.
		never, end := io.Pipe()
		s.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), r.method, path, never))
		require.NoError(t, end.Close())
		if r.role == anybody {
			assert.Equal(t, 200, answer.Code, path)
			continue
		}
		assert.Equal(t, 401, answer.Code, path)
		assert.Equal(t, "Bearer", answer.Header().Get("Www-Authenticate"))
		assert.Equal(t, "application/json", answer.Header().Get("Content-Type"))
		if r.method == http.MethodPost {
			as := httptest.NewRequestWithContext(t.Context(), r.method, path, strings.NewReader("{"))
			as.Header.Set("Authorization", "Bearer one")
			answer := httptest.NewRecorder()
			s.ServeHTTP(answer, as)
			assert.Equal(t, r.role == operator, answer.Code == 403, "%s: %s", path, answer.Body)
			assert.GreaterOrEqual(t, answer.Code, 400)
			assert.NotEqual(t, 500, answer.Code, "%s: %s", path, answer.Body)
		}
	}
}

// serving serves s until the test ends.
func serving(t *testing.T, s *Server) net.Addr {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	return ln.Addr()
}

// speak sends the text on a connection of its own and returns what is answered.
func speak(t *testing.T, to net.Addr, text string) (status int, body string) {
	t.Helper()
	conn, err := net.Dial("tcp", to.String())
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer answer.Body.Close()
	whole, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(whole)
}

func TestABodyThatStopsComingIsGivenUp(t *testing.T) {
	s, _ := newServer(t, Config{Stall: 200 * time.Millisecond, DrainTimeout: time.Second})
	to := serving(t, s)
	const head = "POST /execute HTTP/1.1\r\nHost: x\r\n"
	code, body := speak(t, to, head+"Content-Length: 100\r\n\r\n{\"x\":")
	assert.Equal(t, 408, code, body)
	assert.Contains(t, body, "came too slowly")
	code, body = speak(t, to, head+"Content-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n")
	assert.Equal(t, 413, code, body)
	code, body = speak(t, to, head+"Transfer-Encoding: chunked\r\n\r\n5\r\n{\"x\":\r\nx\r\n")
	assert.Equal(t, 400, code, body)
	code, body = speak(t, to, "POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
	assert.Equal(t, 404, code, body)
	assert.Contains(t, body, "no such route")
}

func TestConnectionsOverTheCapWaitForTheirTurn(t *testing.T) {
	s, _ := newServer(t, Config{MaxConns: 2, DrainTimeout: time.Second})
	to := serving(t, s)
	const question = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
	ask := func() (net.Conn, *bufio.Reader) {
		conn, err := net.Dial("tcp", to.String())
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		_, err = io.WriteString(conn, question)
		require.NoError(t, err)
		return conn, bufio.NewReader(conn)
	}
	served := func(r *bufio.Reader) {
		answer, err := http.ReadResponse(r, nil)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		assert.Equal(t, 200, answer.StatusCode)
	}
	first, answer := ask()
	served(answer)
	_, answer = ask()
	served(answer)
	third, answer := ask()
	require.NoError(t, third.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	_, err := answer.Peek(1)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "it is not served yet")
	require.NoError(t, first.Close())
	require.NoError(t, third.SetReadDeadline(time.Now().Add(time.Minute)))
	served(answer)
}

func TestAPanicIsAnInternalErrorAndOnRecord(t *testing.T) {
	s, log := newServer(t, Config{})
	do := func(handle echo.HandlerFunc) *httptest.ResponseRecorder {
		answer := httptest.NewRecorder()
		c := s.echo.NewContext(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/x", nil), answer)
		require.NoError(t, s.handler(route{method: "GET", path: "/panics", handle: handle})(c))
		return answer
	}
	answer := do(func(echo.Context) error { panic("sand") })
	assert.Equal(t, 500, answer.Code)
	assert.NotContains(t, answer.Body.String(), "sand")
	assert.Contains(t, log.String(), "handler panicked")
	assert.PanicsWithValue(t, http.ErrAbortHandler, func() {
		do(func(c echo.Context) error {
			require.NoError(t, c.String(200, "begun"))
			panic("sand")
		})
	}, "what has begun is cut off")
	log.Reset()
	answer = do(func(echo.Context) error { return errors.New("rock") })
	assert.Equal(t, 500, answer.Code)
	assert.Contains(t, log.String(), "rock")
	log.Reset()
	do(func(echo.Context) error { return slots.Errorf(slots.KindNotFound, "x") })
	assert.Empty(t, log.String(), "a caller's mistake is no news")
}

func TestANewServerNeedsItsCollaborators(t *testing.T) {
	assert.Panics(t, func() { New(Deps{}, Config{}) })
}

func TestArgumentsOfTerminalsAreMapped(t *testing.T) {
	for _, c := range []struct{ body, tool, timeout, err string }{
		{`{"tool":{"name":"terminal","arguments":{"command":"x"}}}`, "bash", "", ""},
		{`{"tool":{"name":"terminal_stateful","arguments":{"command":"x","timeout":7}}}`, "bash_stateful", "7", ""},
		{`{"tool":{"name":"bash","arguments":{"timeout":7}},"timeout_s":3}`, "bash", "3", ""},
		{`{"tool":{"name":"bash","arguments":{"timeout":null}},"timeout_s":null}`, "bash", "null", ""},
		{`{"tool":{"name":"bash","arguments":{"timeout":7}},"timeout_s":null}`, "bash", "7", ""},
		{`{"tool":{"name":"bash","arguments":{"timeout":"soon"}}}`, "bash", "", ""},
		{`{"tool":{"name":"bash","arguments":{"t\u0069meout":7}}}`, "bash", "7", ""},
		{`{"tool":{"name":"read_file","arguments":{"timeout":7}}}`, "read_file", "", ""},
		{`{"tool":{"name":"terminal","arguments":{"background":true}}}`, "", "", "not supported"},
		{`{"tool":{"name":"terminal","arguments":{"background":false}}}`, "bash", "", ""},
		{`{"tool":{"name":"bash","arguments":{"background":true}}}`, "bash", "", ""},
		{`{"tool":{"name":"bash","arguments":null}}`, "bash", "", ""},
		{`{"tool":{"name":"bash"}}`, "bash", "", ""},
		{`{"tool":{"name":"bash","arguments":[1]}}`, "", "", "must be an object"},
	} {
		var r callRequest
		require.NoError(t, json.Unmarshal([]byte(c.body), &r))
		call, err := r.call()
		if c.err != "" {
			require.ErrorContains(t, err, c.err, c.body)
			continue
		}
		require.NoError(t, err, c.body)
		assert.Equal(t, c.tool, call.Tool)
		if c.timeout == "" {
			assert.True(t, call.Timeout.IsZero(), c.body)
			continue
		}
		text, err := call.Timeout.MarshalJSON()
		require.NoError(t, err)
		assert.Equal(t, c.timeout, string(text))
	}
}

// FuzzExecute sends any body to the routes that read one. No slot is ever
// free, so that none of them gets further than its own checks.
func FuzzExecute(f *testing.F) {
	for _, body := range []string{
		"", "{}", "[]", `{"trajectory_id":"a","tool":{"name":"terminal","arguments":{"timeout":1e999}},"timeout_s":1}`,
		`{"trajectory":"a","ttl_s":1e300}`, `{"trajectory_id":"\ud800"}`, `{"calls":[{"tool":"x"}]}`,
	} {
		f.Add([]byte(body))
	}
	s, _ := newServer(f, Config{MaxBody: 1 << 16})
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range []string{"/execute", "/release", "/artifacts/read", "/v1/leases", "/v1/leases/c:slot_0:1/execute", "/v1/containers/c/drain"} {
			answer := httptest.NewRecorder()
			s.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, bytes.NewReader(body)))
			assert.NotEqual(t, 500, answer.Code, "%s: %s", path, answer.Body)
			assert.True(t, json.Valid(answer.Body.Bytes()), "%s", answer.Body)
		}
	})
}

func TestSecondsAreBounded(t *testing.T) {
	d, err := seconds("x", 1.5)
	require.NoError(t, err)
	assert.Equal(t, 1500*time.Millisecond, d)
	for _, s := range []float64{-1, 1e10, 1e300} {
		_, err := seconds("x", s)
		assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind, fmt.Sprint(s))
	}
}
