package client

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
)

func TestDirectReadsEveryFormOfAnswerAndGoesOn(t *testing.T) {
	long := strings.Repeat("0123456789", 2000)
	longer := strings.Repeat("x", 2*maxHeader)
	for name, c := range map[string]struct{ method, said, status, want string }{
		"length":            {"POST", fine, "200 OK", "ok"},
		"long":              {"POST", "HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n" + long, "200 OK", long},
		"longer":            {"POST", fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(longer), longer), "200 OK", longer},
		"empty":             {"POST", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "200 OK", ""},
		"no content":        {"POST", "HTTP/1.1 204 No Content\r\n\r\n", "204 No Content", ""},
		"chunks":            {"POST", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n4e20\r\n" + long + "\r\n0\r\n\r\n", "200 OK", "ok" + long},
		"trailer":           {"POST", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\n", "200 OK", "ok"},
		"head":              {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", "200 OK", ""},
		"head of chunks":    {"HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "200 OK", ""},
		"not modified":      {"GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", "304 Not Modified", ""},
		"after 1xx":         {"POST", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + fine, "200 OK", "ok"},
		"old and kept":      {"GET", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", "200 OK", "ok"},
		"error of the peer": {"POST", "HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\nno", "500 Oh", "no"},
	} {
		t.Run(name, func(t *testing.T) {
			p := play(t, answers(func(far, int) string { return c.said }))
			d := to(t, p.address)
			for range 3 {
				answer, err := ask(t.Context(), t, d, c.method, "")
				require.NoError(t, err)
				got, err := io.ReadAll(answer.Body)
				require.NoError(t, err)
				require.NoError(t, answer.Body.Close())
				assert.Equal(t, c.status, answer.Status)
				assert.Equal(t, c.want, string(got))
			}
			assert.EqualValues(t, 1, p.links.Load())
		})
	}
}

func TestDirectReusesNoConnectionThatIsNotAtItsBeginning(t *testing.T) {
	for name, said := range map[string]string{
		"announced":      "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
		"empty":          "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
		"old":            "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"surplus":        fine + "x",
		"second answer":  fine + fine,
		"surplus, empty": "HTTP/1.1 204 No Content\r\n\r\nx",
	} {
		t.Run(name, func(t *testing.T) {
			p := play(t, answers(func(far, int) string { return said }))
			d := to(t, p.address)
			for n := range 2 {
				_, err := get(t.Context(), t, d, http.MethodPost, "x")
				require.NoError(t, err)
				p.waitEnded(t, n+1)
				assert.Zero(t, d.kept())
			}
		})
	}
}

func TestDirectTellsOfABrokenAnswer(t *testing.T) {
	for name, c := range map[string]struct{ said, want string }{
		"nothing":          {"", "read header of answer: EOF"},
		"garbage":          {"what?\r\n\r\n", `malformed HTTP response "what?"`},
		"half a header":    {"HTTP/1.1 200 OK\r\nContent-Le", "read header of answer: EOF"},
		"bad length":       {"HTTP/1.1 200 OK\r\nContent-Length: 2x\r\n\r\nok", "bad Content-Length"},
		"short body":       {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok", "unexpected EOF"},
		"short chunk":      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nok", "unexpected EOF"},
		"no last chunk":    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", "unexpected EOF"},
		"bad chunk":        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "invalid byte in chunk length"},
		"another protocol": {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", "changes the protocol"},
		"endless header":   {"HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+strings.Repeat("y", 1000)+"\r\n", 1100) + "\r\n", "read header of answer: too large"},
		"endless 1xx":      {strings.Repeat("HTTP/1.1 103 X\r\nX: "+strings.Repeat("y", 1000)+"\r\n\r\n", 1100), "read header of answer: too large"},
	} {
		t.Run(name, func(t *testing.T) {
			p := play(t, func(f far) {
				f.request()
				f.say(c.said)
				_ = f.Conn.(*net.TCPConn).CloseWrite()
			})
			d := to(t, p.address)
			_, err := get(t.Context(), t, d, http.MethodPost, "x")
			require.ErrorContains(t, err, c.want)
			p.waitEnded(t, 1)
			assert.Zero(t, d.kept())
			assert.EqualValues(t, 1, p.links.Load())

			client, err := New(Config{URL: "http://" + p.address, Retries: -1})
			require.NoError(t, err)
			defer client.Close()
			_, err = client.Execute(t.Context(), bash("", "say x"))
			require.ErrorContains(t, err, c.want)
			assert.Equal(t, slots.KindContainerUnreachable, kind(t, err))
			assert.Equal(t, slots.ExecutedMaybe, slots.AsError(err).Executed)
		})
	}
}

func TestDirectPassesAStreamOnWhileItComes(t *testing.T) {
	next := make(chan string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for text := range next {
			_, _ = io.WriteString(w, text)
			_ = http.NewResponseController(w).Flush()
		}
	}))
	defer server.Close()
	d := to(t, server.Listener.Addr().String())
	go func() { next <- "first" }()
	answer, err := ask(t.Context(), t, d, http.MethodGet, "")
	require.NoError(t, err)
	for _, want := range []string{"first", "second", "third"} {
		got := make([]byte, len(want))
		_, err := io.ReadFull(answer.Body, got)
		require.NoError(t, err)
		assert.Equal(t, want, string(got))
		switch want {
		case "first":
			next <- "second"
		case "second":
			next <- "third"
		}
	}
	close(next)
	rest, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	assert.Empty(t, rest)
	require.NoError(t, answer.Body.Close())
	assert.Equal(t, 1, d.kept())
}

func TestDirectCloseOfABodyKeepsTheConnectionOnlyIfTheRestIsThere(t *testing.T) {
	for name, c := range map[string]struct {
		said string
		kept int
	}{
		"all there":    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 1},
		"more to come": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", 0},
		"long":         {"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 100000), 0},
		"without end":  {"HTTP/1.1 200 OK\r\n\r\nok", 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := play(t, answers(func(far, int) string { return c.said }))
			d := to(t, p.address)
			answer, err := ask(t.Context(), t, d, http.MethodGet, "")
			require.NoError(t, err)
			_, err = io.ReadFull(answer.Body, make([]byte, 1))
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			require.NoError(t, answer.Body.Close(), "closing twice is closing once")
			assert.Equal(t, c.kept, d.kept())
			_, err = answer.Body.Read(make([]byte, 1))
			require.ErrorIs(t, err, http.ErrBodyReadAfterClose)
			if c.kept == 0 {
				p.waitEnded(t, 1)
			}
		})
	}
}

func TestDirectCloseOfABodyEndsARead(t *testing.T) {
	p := play(t, func(f far) {
		f.request()
		f.say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok")
	})
	d := to(t, p.address)
	answer, err := ask(t.Context(), t, d, http.MethodGet, "")
	require.NoError(t, err)
	b := answer.Body.(*body)
	failed := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(b)
		failed <- err
	}()
	require.Eventually(t, func() bool { // the Read is under way
		if b.reading.TryLock() {
			b.reading.Unlock()
			return false
		}
		return true
	}, soon, tick)
	require.NoError(t, answer.Body.Close())
	select {
	case err := <-failed:
		require.Error(t, err)
	case <-time.After(soon):
		require.Fail(t, "the Read goes on")
	}
	p.waitEnded(t, 1)
	assert.Zero(t, d.kept())
}

func TestDirectLeavesTheRestToNetHTTP(t *testing.T) {
	d := to(t, "10.0.0.1:80")
	for name, c := range map[string]struct {
		method, target string
		body           io.Reader
		header         http.Header
		taken          bool
	}{
		"no body":           {"GET", "http://10.0.0.1:80/", nil, nil, true},
		"a body at hand":    {"POST", "http://10.0.0.1:80/", strings.NewReader("x"), http.Header{"A": {"a\tb ü"}}, true},
		"as long as it may": {"POST", "http://10.0.0.1:80/", strings.NewReader(strings.Repeat("x", maxAtHand)), nil, true},
		"longer":            {"POST", "http://10.0.0.1:80/", strings.NewReader(strings.Repeat("x", maxAtHand+1)), nil, false},
		"a stream":          {"POST", "http://10.0.0.1:80/", io.MultiReader(strings.NewReader("x")), nil, false},
		"expecting":         {"POST", "http://10.0.0.1:80/", strings.NewReader("x"), http.Header{"Expect": {"100-continue"}}, false},
		"a broken header":   {"GET", "http://10.0.0.1:80/", nil, http.Header{"A": {"a\nb"}}, false},
		"another container": {"GET", "http://10.0.0.2:80/", nil, nil, false},
		"encrypted":         {"GET", "https://10.0.0.1:80/", nil, nil, false},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, c.target, c.body)
		require.NoError(t, err)
		req.Header = c.header
		assert.Equal(t, c.taken, d.takes(req), name)
	}
	for _, address := range []string{"https://10.0.0.1", "http://b\u00fccher.example", "http://[fe80::1%25lo]"} {
		client, err := New(Config{URL: address})
		require.NoError(t, err)
		assert.IsType(t, &http.Transport{}, client.http.Transport, address)
	}
	for address, want := range map[string]string{
		"http://c": "c:80", "http://c:8080/x": "c:8080", "http://[::1]": "[::1]:80", "http://[::1]:9": "[::1]:9",
	} {
		client, err := New(Config{URL: address})
		require.NoError(t, err)
		assert.Equal(t, want, client.http.Transport.(*direct).address, address)
	}
}

func TestDirectWritesARequestAsNetHTTPDoes(t *testing.T) {
	for _, c := range []struct{ method, target, body string }{
		{"GET", "http://c", ""},
		{"GET", "http://[::1]:80/a%2fb/%2E%2E/c?q=%C3%BC&x=a+b", ""},
		{"HEAD", "http://c/x?", ""},
		{"POST", "http://c:8080/x", `{"a":1}`},
		{"POST", "http://c:8080/x", ""},
		{"PUT", "http://c:8080/x", ""},
		{"DELETE", "http://c:8080/x", ""},
		{"DELETE", "http://c:8080/x", "x"},
	} {
		request := func() *http.Request {
			var in io.Reader
			if c.body != "" {
				in = strings.NewReader(c.body)
			}
			req, err := http.NewRequestWithContext(t.Context(), c.method, c.target, in)
			require.NoError(t, err)
			req.Header = http.Header{"Accept": {"a", "b"}, "Authorization": {"Bearer x"}, keyRepeatable: nil}
			return req
		}
		lines := func(text bytes.Buffer) []string {
			header, body, _ := strings.Cut(text.String(), "\r\n\r\n")
			first, rest, _ := strings.Cut(header, "\r\n")
			fields := strings.Split(rest, "\r\n")
			slices.Sort(fields)
			return append(fields, first, body)
		}
		var got, want bytes.Buffer
		require.NoError(t, write(&got, request()))
		require.NoError(t, request().Write(&want))
		assert.Equal(t, lines(want), lines(got), c)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://c", strings.NewReader("x"))
	require.NoError(t, err)
	req.ContentLength = 2
	assert.ErrorContains(t, write(&bytes.Buffer{}, req), "1 bytes instead of 2")
}

func TestATokenThatIsNoHeaderIsRefused(t *testing.T) {
	c, err := New(Config{URL: "http://127.0.0.1:1", Token: "a\r\nb", Retries: -1})
	require.NoError(t, err)
	_, err = c.Health(t.Context())
	assert.ErrorContains(t, err, "invalid header field value")
}

func TestARedirectIsFollowed(t *testing.T) {
	there := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text, _ := io.ReadAll(r.Body); r.Method != http.MethodPost || len(text) == 0 {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		_, _ = io.WriteString(w, `{"success":true,"output":"there"}`)
	}))
	defer there.Close()
	here := httptest.NewServer(http.RedirectHandler(there.URL+"/x", http.StatusTemporaryRedirect))
	defer here.Close()
	c, err := New(Config{URL: here.URL})
	require.NoError(t, err)
	defer c.Close()
	r, err := c.Execute(t.Context(), bash("", "say x"))
	require.NoError(t, err)
	assert.Equal(t, "there", r.Output)
}

// refusing is an http.RoundTripper that counts and fails.
type refusing struct{ asked atomic.Int64 }

func (r *refusing) RoundTrip(*http.Request) (*http.Response, error) {
	r.asked.Add(1)
	return nil, errors.New("not today")
}

func TestAGivenHTTPClientSendsEverything(t *testing.T) {
	given := &refusing{}
	c, err := New(Config{URL: "http://127.0.0.1:1", HTTPClient: &http.Client{Transport: given}, Retries: -1})
	require.NoError(t, err)
	_, err = c.Execute(t.Context(), bash("", "say x"))
	require.ErrorContains(t, err, "not today")
	_, err = c.PutFile(t.Context(), Place{SlotID: "slot_0", Path: "f"}, strings.NewReader("x"), PutOptions{})
	require.ErrorContains(t, err, "not today")
	c.Close()
	assert.EqualValues(t, 2, given.asked.Load())
}

func TestACallThatMayBeSentTwiceOutlivesAKeptConnection(t *testing.T) {
	for name, again := range map[string]bool{"once": true, "": false} {
		p := play(t, func(f far) {
			for n := 1; f.request() != nil; n++ {
				if f.n == 1 && n == 2 {
					_ = f.Close()
					return
				}
				f.say("HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{\"success\":true}")
			}
		})
		c, err := New(Config{URL: "http://" + p.address, Retries: -1})
		require.NoError(t, err)
		_, err = c.Execute(t.Context(), bash("first", "say x"))
		require.NoError(t, err)
		_, err = c.Execute(t.Context(), bash(name, "say x"))
		if again {
			require.NoError(t, err)
			assert.EqualValues(t, 3, p.read.Load())
		} else {
			assert.Equal(t, slots.KindContainerUnreachable, kind(t, err))
			assert.Equal(t, slots.ExecutedMaybe, slots.AsError(err).Executed)
			assert.EqualValues(t, 2, p.read.Load())
		}
		p.waitEnded(t, 1)
		c.Close()
		if again {
			p.waitEnded(t, 2)
		}
	}
}
