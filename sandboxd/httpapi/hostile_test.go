package httpapi

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
)

// concrete fills the parameters of a route's template.
func concrete(r route) string {
	return strings.NewReplacer(":slot", "slot_0", ":id", "e1", "*", "file").Replace(r.path)
}

// takesJSON reports whether the route reads a JSON body.
func takesJSON(r route) bool {
	return r.method != http.MethodGet && r.method != http.MethodHead && !strings.Contains(r.path, "/files/") && !strings.HasSuffix(r.path, "/cancel")
}

func TestF25EveryRouteButThreeAsksForTheToken(t *testing.T) {
	c := start(t, Config{Token: testToken})
	free := 0
	for _, r := range c.server.routes() {
		t.Run(r.method+r.path, func(t *testing.T) {
			if r.open == everybody {
				free++
				assert.Equal(t, 200, c.ask(t, r.method, concrete(r), "", "Authorization: ").code)
				return
			}
			for name, header := range map[string]string{
				"none": "", "wrong": "Bearer wrong", "prefix": "Bearer " + testToken[:10], "longer": "Bearer " + testToken + "x",
				"no scheme": testToken, "basic": "Basic " + testToken, "empty": "Bearer ",
			} {
				a := c.ask(t, r.method, concrete(r)+"?token="+testToken+"&access_token="+testToken, "{}", "Authorization: "+header)
				assert.Equal(t, 401, a.code, name)
				assert.Equal(t, "Bearer", a.header.Get("WWW-Authenticate"), name)
				if r.method != http.MethodHead {
					assert.Contains(t, a.body, "unauthorized", name)
					assert.True(t, json.Valid([]byte(a.body)), name)
				}
			}
		})
	}
	assert.Equal(t, 3, free)
	assert.Empty(t, c.calls, "nothing was run")
	assert.NotContains(t, c.logs.String(), testToken[:10], "no token is logged")
	assert.Equal(t, 401, c.ask(t, http.MethodGet, "/nowhere", "", "Authorization: ").code, "strangers learn no routes")
}

// Who has no token may ask whether the container lives and is ready, which is
// what load balancers do, and learns no more than that.
func TestF25StrangersLearnOneWordFromLivezAndReadyz(t *testing.T) {
	c := start(t, Config{Token: testToken})
	stand := func(status string, ready bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.notYet, c.health.Status = !ready, status
	}
	for status, ready := range map[string]bool{api.HealthOK: true, "starting": false, "draining": false, "quarantined": false} {
		stand(status, ready)
		for path, want := range map[string]answer{
			"/livez":  {code: 200, body: `{"status":"ok"}`},
			"/readyz": {code: map[bool]int{true: 200, false: 503}[ready], body: `{"status":"` + status + `"}`},
		} {
			for _, as := range []string{"", "Bearer wrong", "Bearer " + testToken} {
				a := c.ask(t, http.MethodGet, path+"?verbose=1&token=x", "", "Authorization: "+as, "X-Request-Id: echo", "Origin: http://elsewhere")
				assert.Equal(t, want.code, a.code, "%s, %s", path, status)
				assert.Equal(t, want.body, strings.TrimSpace(a.body), "%s, %s", path, status)
				for name := range a.header {
					assert.Contains(t, []string{"Content-Type", "Content-Length", "Date"}, name, "a header of %s", path)
				}
			}
		}
	}
	assert.Empty(t, c.calls, "nothing was run")
}

func TestATokenMayBeWrittenWithAnyCaseOfItsScheme(t *testing.T) {
	c := start(t, Config{Token: testToken})
	assert.Equal(t, 200, c.ask(t, http.MethodGet, "/slots", "", "Authorization: bearer "+testToken).code)
}

func TestWithoutConfiguredTokenNoneIsAsked(t *testing.T) {
	c := start(t, Config{})
	assert.Equal(t, 200, c.ask(t, http.MethodGet, "/slots", "", "Authorization: ").code)
}

func TestUnknownRoutesAndMethodsAnswerJSON(t *testing.T) {
	c := start(t, Config{Token: testToken})
	for path, code := range map[string]int{"/nowhere": 404, "/v1/x": 404, "/execute/x": 404, "/": 404} {
		a := c.ask(t, http.MethodPost, path, "{}")
		assert.Equal(t, code, a.code, path)
		assert.True(t, json.Valid([]byte(a.body)), a.body)
	}
	for path, method := range map[string]string{"/execute": "GET", "/health": "DELETE", "/v1/leases": "PATCH", "/artifacts/read": "GET"} {
		a := c.ask(t, method, path, "")
		assert.Equal(t, 405, a.code, path)
		assert.True(t, json.Valid([]byte(a.body)), a.body)
	}
}

// bodies are what F17 sends.
func bodies() map[string]string {
	return map[string]string{
		"none": "", "spaces": "  \n", "null": "null", "a number": "7", "a text": `"x"`, "an array": "[[]]", "an object": "{}",
		"deep arrays":       strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000),
		"deep objects":      strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000),
		"deep args":         `{"slot_id":"slot_0","tool":"bash","args":` + strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000) + "}",
		"many keys":         "{" + strings.Repeat(`"k":1,`, 100_000) + `"k":1}`,
		"NaN":               `{"slot_id":"slot_0","tool":"bash","timeout":NaN}`,
		"Infinity":          `{"timeout":Infinity}`,
		"1e400":             `{"slot_id":"slot_0","tool":"bash","timeout":1e400,"max_bytes":1e400,"ttl_s":1e400,"token":1e400}`,
		"a lone surrogate":  `{"slot_id":"\ud800","tool":"\udfff","path":"\ud800","trajectory":"\ud800"}`,
		"a BOM":             "\xef\xbb\xbf{}",
		"trailing garbage":  "{} x",
		"two objects":       "{}{}",
		"wrong types":       `{"slot_id":{},"tool":[],"args":1,"timeout":{},"path":1,"token":-1,"trajectory":[],"ttl_s":"x","labels":7,"reset":"no"}`,
		"NUL":               "{\"slot_id\":\"\x00\"}",
		"invalid UTF-8":     "{\"slot_id\":\"\xff\xfe\"}",
		"a negative token":  `{"slot_id":"slot_0","token":-1}`,
		"a huge token":      `{"slot_id":"slot_0","token":99999999999999999999999}`,
		"duplicate keys":    `{"slot_id":"slot_0","slot_id":"slot_9","tool":"bash"}`,
		"a slot of 10 kB":   `{"slot_id":"` + strings.Repeat("x", 10_000) + `"}`,
		"a slot with dots":  `{"slot_id":"../..","path":"x"}`,
		"negative bounds":   `{"slot_id":"slot_0","path":"x","max_bytes":-1,"max_entries":-1}`,
		"a path with a NUL": `{"slot_id":"slot_0","path":"a\u0000b"}`,
	}
}

func TestF17NoBodyMakesAnInternalError(t *testing.T) {
	c := start(t, Config{Token: testToken})
	all := bodies()
	for _, r := range c.server.routes() {
		t.Run(r.method+r.path, func(t *testing.T) {
			for name, body := range all {
				if r.method == http.MethodHead || r.method == http.MethodGet && body != "" {
					continue
				}
				a := c.ask(t, r.method, concrete(r), body)
				assert.Less(t, a.code, 500, name)
				if takesJSON(r) {
					assert.NotContains(t, a.body, "Go ", name)
					assert.NotContains(t, a.body, "json:", name)
					assert.Equal(t, "application/json", a.header.Get("Content-Type"), name)
					assert.True(t, json.Valid([]byte(a.body)), "%s: %.200s", name, a.body)
				}
			}
		})
	}
	assert.NotContains(t, c.logs.String(), "panicked")
	assert.Equal(t, 200, c.ask(t, http.MethodGet, "/health", "").code)
}

func TestUnknownFieldsAreIgnoredOnReferenceRoutesAndRefusedOnOurs(t *testing.T) {
	c := start(t, Config{Token: testToken})
	for _, r := range c.server.routes() {
		t.Run(r.method+r.path, func(t *testing.T) {
			if !takesJSON(r) {
				t.Skip("reads no JSON")
			}
			body := `{"slot_id":"slot_0","tool":"bash","unheard_of":1}`
			if r.path == "/batch" {
				body = "[" + body + "]"
			}
			a := c.ask(t, r.method, concrete(r), body)
			assert.Equal(t, strings.HasPrefix(r.path, "/v1/"), strings.Contains(a.body, "unknown field"), a.body)
			if strings.HasPrefix(r.path, "/v1/") {
				assert.Equal(t, 400, a.code)
			}
		})
	}
}

func TestF16ABodyOverTheLimitIs413InJSON(t *testing.T) {
	c := start(t, Config{Token: testToken, MaxBody: 1000, MaxUpload: 1000})
	big := `{"slot_id":"slot_0","path":"` + strings.Repeat("x", 2000) + `"}`
	for _, r := range c.server.routes() {
		t.Run(r.method+r.path, func(t *testing.T) {
			if !takesJSON(r) && r.method != http.MethodPut {
				t.Skip("reads no body")
			}
			a := c.ask(t, r.method, concrete(r), big)
			assert.Equal(t, 413, a.code)
			assert.Contains(t, a.body, "too_large")

			// The same without an announced length.
			req, err := http.NewRequestWithContext(t.Context(), r.method, "http://"+c.addr+concrete(r), io.MultiReader(strings.NewReader(big)))
			require.NoError(t, err)
			req.Header.Set("Authorization", "Bearer "+testToken)
			res, err := http.DefaultClient.Do(req)
			require.NoError(t, err)
			defer func() { _ = res.Body.Close() }()
			assert.Equal(t, 413, res.StatusCode)
		})
	}
}

func TestABatchOfTooManyCallsIsRefused(t *testing.T) {
	c := start(t, Config{Token: testToken, MaxBatch: 2})
	assert.Equal(t, 413, c.ask(t, http.MethodPost, "/batch", "[1,2,3]").code)
	assert.Equal(t, 200, c.ask(t, http.MethodPost, "/batch", "[1,2]").code)
}

// dial opens a raw connection with a deadline.
func dial(t *testing.T, addr string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(15*time.Second)))
	return conn, bufio.NewReader(conn)
}

// raw sends bytes and returns the status of the first answer and all of its
// body.
func raw(t *testing.T, addr, text string) (int, string) {
	t.Helper()
	conn, r := dial(t, addr)
	_, err := io.WriteString(conn, text)
	require.NoError(t, err)
	res, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(body)
}

func head(path string, more ...string) string {
	return "POST " + path + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + testToken + "\r\n" + strings.Join(more, "\r\n") + "\r\n\r\n"
}

func TestF16ASlowBodyIsGivenUp(t *testing.T) {
	c := start(t, Config{Token: testToken, Stall: 100 * time.Millisecond})
	code, body := raw(t, c.addr, head("/execute", "Content-Length: 100")+`{"slot_id"`)
	assert.Equal(t, 408, code)
	assert.Contains(t, body, "too slowly")
}

func TestA17ABodyThatNeverComesIsNotWaitedForForLong(t *testing.T) {
	c := start(t, Config{Token: testToken, Stall: 100 * time.Millisecond})
	for path, code := range map[string]int{"/health": 401, "/execute": 401, "/nowhere": 401, "/artifacts/read": 401} {
		got, _ := raw(t, c.addr, "POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
		assert.Equal(t, code, got, path)
	}
	got, _ := raw(t, c.addr, "GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
	assert.Equal(t, 200, got)
}

func TestF16ABodyThatIsShorterThanAnnouncedRunsNothing(t *testing.T) {
	c := start(t, Config{Token: testToken})
	conn, r := dial(t, c.addr)
	_, err := io.WriteString(conn, head("/execute", "Content-Length: 500")+benchCall)
	require.NoError(t, err)
	tcp, ok := conn.(*net.TCPConn)
	require.True(t, ok)
	require.NoError(t, tcp.CloseWrite())
	_, _ = io.Copy(io.Discard, r)
	c.mu.Lock()
	defer c.mu.Unlock()
	assert.Empty(t, c.calls)
}

func TestF16ACompressedBodyIsNotUnpacked(t *testing.T) {
	c := start(t, Config{Token: testToken})
	assert.Equal(t, 400, c.ask(t, http.MethodPost, "/execute", "\x1f\x8b\x08\x00", "Content-Encoding: gzip").code)
	assert.Equal(t, 400, c.ask(t, http.MethodPut, "/slots/slot_0/files/x", "\x1f\x8b\x08\x00", "Content-Encoding: gzip").code)
}

func TestF24ARequestWithTwoLengthsIsOneRequestOrNone(t *testing.T) {
	c := start(t, Config{Token: testToken})
	smuggled := "GET /slots HTTP/1.1\r\nHost: x\r\n\r\n"
	for name, text := range map[string]string{
		"TE and CL":         head("/execute", "Transfer-Encoding: chunked", "Content-Length: 5") + "0\r\n\r\n" + smuggled,
		"two CL":            head("/execute", "Content-Length: 5", "Content-Length: 6") + "{}   " + smuggled,
		"TE in disguise":    head("/execute", "Transfer-Encoding: \x0bchunked") + "0\r\n\r\n",
		"a space in a name": head("/execute", "Content-Length : 2") + "{}",
		"CL with a sign":    head("/execute", "Content-Length: +2") + "{}",
	} {
		code, _ := raw(t, c.addr, text)
		assert.Contains(t, []int{400, 501}, code, name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	assert.Empty(t, c.calls)
}

func TestF24APathThatIsEncodedTwiceIsDecodedOnce(t *testing.T) {
	c := start(t, Config{Token: testToken})
	c.file(t, "%2e%2e", "odd name")
	assert.Equal(t, "odd name", c.ask(t, http.MethodGet, "/slots/slot_0/files/%252e%252e", "").body)
	for _, path := range []string{"%2e%2e/%2e%2e/etc/passwd", "%2e%2e%2fetc%2fpasswd", "..%2f..%2fetc/passwd", "/etc/passwd", "%2fetc%2fpasswd"} {
		a := c.ask(t, http.MethodGet, "/slots/slot_0/files/"+path, "")
		assert.Contains(t, []int{403, 404}, a.code, path)
		assert.NotContains(t, a.body, "root:", path)
	}
	a := c.ask(t, http.MethodGet, "/slots/slot_0%2f..%2fslot_1/files/x", "")
	assert.Equal(t, 404, a.code)
	assert.Contains(t, a.body, "Unknown slot")
	assert.Equal(t, 400, c.ask(t, http.MethodGet, "/slots/slot_0/files/a%00b", "").code)
}

func TestF24HeadersOverTheLimitAreRefused(t *testing.T) {
	c := start(t, Config{Token: testToken})
	conn, r := dial(t, c.addr)
	_, err := io.WriteString(conn, head("/execute", "X: "+strings.Repeat("x", 2*maxHeader)))
	require.NoError(t, err)
	// Closing a connection with unread bytes may take the answer back.
	if res, err := http.ReadResponse(r, nil); err == nil {
		assert.Equal(t, 431, res.StatusCode)
		_ = res.Body.Close()
	}
	assert.Equal(t, 200, c.ask(t, http.MethodGet, "/health", "").code)
}

func TestA17SlowHeadersEndTheConnection(t *testing.T) {
	c := start(t, Config{Token: testToken, HeaderTimeout: 100 * time.Millisecond})
	conn, r := dial(t, c.addr)
	_, err := io.WriteString(conn, "GET /slots HTTP/1.1\r\nHost:")
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, r)
	require.NoError(t, err, "the server closed it before the test's own deadline")
}

func TestA17HealthIsAnsweredWhileIdleConnectionsFillTheCap(t *testing.T) {
	c := start(t, Config{Token: testToken, MaxConns: 8, ReserveConns: 2})
	// One connection that has carried the token, and idles.
	trusted, reader := dial(t, c.addr)
	ask := func() int {
		_, err := io.WriteString(trusted, "GET /slots HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+testToken+"\r\n\r\n")
		require.NoError(t, err)
		res, err := http.ReadResponse(reader, nil)
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		return res.StatusCode
	}
	require.Equal(t, 200, ask())
	for i := range 50 {
		conn, _ := dial(t, c.addr)
		if i%2 == 0 {
			_, err := io.WriteString(conn, "GET /slots HTTP/1.1\r\n")
			require.NoError(t, err)
		}
	}
	code, _ := raw(t, c.addr, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
	assert.Equal(t, 200, code)
	assert.Equal(t, 200, ask(), "who had the token keeps its connection")
	assert.LessOrEqual(t, c.server.conns.count(), 10)
	assert.Positive(t, c.server.conns.evicted.Load())
}

func TestOverTheCapOnlyRoutesWithoutTokenAreServed(t *testing.T) {
	c := start(t, Config{Token: testToken, MaxConns: 2, ReserveConns: 2})
	release := c.hold(t, 2)
	defer release()
	code, body := raw(t, c.addr, head("/execute", "Content-Length: 2")+"{}")
	assert.Equal(t, 503, code)
	assert.Contains(t, body, `"retryable":true`)
	code, _ = raw(t, c.addr, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
	assert.Equal(t, 200, code)
}

func TestWhenEverythingServesNewConnectionsAreClosed(t *testing.T) {
	c := start(t, Config{Token: testToken, MaxConns: 1, ReserveConns: 1})
	release := c.hold(t, 1)
	defer release()
	table := c.server.conns
	// The reserve serves as well: a connection in the middle of a request.
	a, b := net.Pipe()
	defer func() { _, _ = a.Close(), b.Close() }()
	admitted, victim := table.admit(a)
	require.NotNil(t, admitted)
	require.Nil(t, victim)
	assert.True(t, admitted.reserved)
	table.watch(admitted, http.StateActive)
	refused, victim := table.admit(b)
	assert.Nil(t, refused)
	assert.Nil(t, victim)
	assert.EqualValues(t, 1, table.refused.Load())
	require.NoError(t, admitted.Close())
}

// hold keeps n connections busy with calls that do not end.
func (c *container) hold(t *testing.T, n int) (release func()) {
	t.Helper()
	for i := range n {
		conn, _ := dial(t, c.addr)
		body := fmt.Sprintf(`{"slot_id":"slot_0","tool":"bash","args":{"command":"never-starts"},"execution_id":"held%d"}`, i)
		_, err := io.WriteString(conn, head("/execute", "Content-Length: "+itoa(len(body)))+body)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return c.Len() == n }, 30*time.Second, time.Millisecond)
	return func() {
		for i := range n {
			if e, ok := c.Get(fmt.Sprintf("held%d", i)); ok {
				e.Cancel(errCancelled)
			}
		}
	}
}
