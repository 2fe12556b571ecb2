package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	soon = 10 * time.Second // for what has to happen
	tick = time.Millisecond // between two looks
	fine = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
)

// peer is a server that a test plays by hand.
type peer struct {
	address string
	links   atomic.Int64 // accepted so far
	read    atomic.Int64 // requests so far
	ended   chan int     // numbers of the connections that the other side has closed
}

// far is the peer's end of one connection.
type far struct {
	*peer
	net.Conn
	r *bufio.Reader
	n int // counted from 1
}

// play starts a peer. What script does not close is closed after it, once the
// other side has.
func play(t *testing.T, script func(far)) *peer {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &peer{address: ln.Addr().String(), ended: make(chan int, 1000)}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			f := far{p, conn, bufio.NewReader(conn), int(p.links.Add(1))}
			all.Go(func() {
				script(f)
				_, _ = io.Copy(io.Discard, f.r)
				_ = conn.Close()
				p.ended <- f.n
			})
		}
	})
	t.Cleanup(func() { // before that the transport was closed
		_ = ln.Close()
		all.Wait()
	})
	return p
}

// request reads a whole request; nil when the connection has ended.
func (f far) request() *http.Request {
	req, err := http.ReadRequest(f.r)
	if err != nil {
		return nil
	}
	_, _ = io.Copy(io.Discard, req.Body)
	f.read.Add(1)
	return req
}

func (f far) say(text string) { _, _ = io.WriteString(f, text) }

// answers answers every request with what next returns.
func answers(next func(f far, nth int) string) func(far) {
	return func(f far) {
		for nth := 1; f.request() != nil; nth++ {
			f.say(next(f, nth))
		}
	}
}

// waitEnded waits until the client has closed connection n.
func (p *peer) waitEnded(t *testing.T, n int) {
	t.Helper()
	select {
	case got := <-p.ended:
		require.Equal(t, n, got)
	case <-time.After(soon):
		require.Fail(t, "the connection stays open")
	}
}

func to(t *testing.T, address string) *direct {
	t.Helper()
	d, ok := transport(&url.URL{Scheme: "http", Host: address}).(*direct)
	require.True(t, ok)
	t.Cleanup(d.CloseIdleConnections)
	return d
}

func (d *direct) kept() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.idle)
}

func ask(ctx context.Context, t *testing.T, d *direct, method, text string) (*http.Response, error) {
	t.Helper()
	var in io.Reader
	if text != "" {
		in = strings.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+d.host+"/p?q=1", in)
	require.NoError(t, err)
	return d.RoundTrip(req)
}

// get asks and reads the answer to its end.
func get(ctx context.Context, t *testing.T, d *direct, method, text string) (string, error) {
	t.Helper()
	answer, err := ask(ctx, t, d, method, text)
	if err != nil {
		return "", err
	}
	got, err := io.ReadAll(answer.Body)
	require.NoError(t, answer.Body.Close())
	return string(got), err
}

func TestDirectUsesOneConnectionForManyCalls(t *testing.T) {
	p := play(t, answers(func(far, int) string { return fine }))
	d := to(t, p.address)
	for range 100 {
		got, err := get(t.Context(), t, d, http.MethodPost, `{"a":1}`)
		require.NoError(t, err)
		require.Equal(t, "ok", got)
	}
	assert.EqualValues(t, 1, p.links.Load())
	assert.Equal(t, 1, d.kept())
}

// counted counts what is written to it.
type counted struct {
	*net.TCPConn
	writes *atomic.Int64
}

func (c counted) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.TCPConn.Write(p)
}

func TestDirectSendsARequestInOnePiece(t *testing.T) {
	got := make(chan *http.Request, 3)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(text)))
		got <- r
	}))
	defer server.Close()
	c, err := New(Config{URL: server.URL + "/below/", Token: "secret"})
	require.NoError(t, err)
	defer c.Close()
	var writes atomic.Int64
	rest := c.http.Transport.(*direct).rest
	dial := rest.DialContext
	rest.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return counted{conn.(*net.TCPConn), &writes}, nil
	}
	long := strings.Repeat("x", maxAtHand-100)
	for _, r := range []Request{
		{Method: http.MethodGet, Path: "/a%2fb", Query: url.Values{"q": {"ü&"}}, Again: true},
		{Method: http.MethodPost, Path: "/p", Body: long, Header: accepting("text/plain")},
	} {
		writes.Store(0)
		answer, err := c.send(t.Context(), r)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		assert.EqualValues(t, 1, writes.Load())
		req := <-got
		assert.Equal(t, r.Method, req.Method)
		assert.Equal(t, "/below"+r.Path, req.URL.EscapedPath())
		assert.Equal(t, r.Query.Encode(), req.URL.RawQuery)
		assert.Equal(t, server.Listener.Addr().String(), req.Host)
		assert.Equal(t, "Bearer secret", req.Header.Get("Authorization"))
		assert.NotContains(t, req.Header, keyRepeatable)
		text, _ := io.ReadAll(req.Body)
		if r.Body != nil {
			assert.Equal(t, `"`+long+`"`, string(text))
			assert.Equal(t, "application/json", req.Header.Get("Content-Type"))
			assert.Equal(t, "text/plain", req.Header.Get("Accept"))
		}
	}
}

// audible reports whether the idle connection has something to read, be it its
// end. It leaves that where it is.
func audible(t *testing.T, l *link) bool {
	t.Helper()
	silent := false
	require.NoError(t, l.raw.Read(func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		silent = errors.Is(err, syscall.EAGAIN)
		return true
	}))
	return !silent
}

func TestDirectNoticesAConnectionThatEndedWhileIdle(t *testing.T) {
	for name, last := range map[string]func(far){
		"closed":      func(f far) { _ = f.Close() },
		"half closed": func(f far) { _ = f.Conn.(*net.TCPConn).CloseWrite() },
		"reset":       func(f far) { _ = f.Conn.(*net.TCPConn).SetLinger(0); _ = f.Close() },
		"spoke":       func(f far) { f.say("HTTP/1.1 408 Request Timeout\r\n\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			end := make(chan struct{})
			p := play(t, func(f far) {
				f.request()
				f.say(fine)
				if f.n == 1 {
					<-end
					last(f)
				}
			})
			d := to(t, p.address)
			_, err := get(t.Context(), t, d, http.MethodPost, "x")
			require.NoError(t, err)
			close(end)
			require.Eventually(t, func() bool { return audible(t, d.idle[0]) }, soon, tick)
			got, err := get(t.Context(), t, d, http.MethodPost, "x")
			require.NoError(t, err, "nothing but the connection failed")
			assert.Equal(t, "ok", got)
			assert.EqualValues(t, 2, p.links.Load())
			assert.EqualValues(t, 2, p.read.Load())
			p.waitEnded(t, 1)
		})
	}
}

func TestDirectSendsAgainOnlyWhatMayBeSentTwice(t *testing.T) {
	for _, c := range []struct {
		method, text string
		marked       bool
		again        bool
	}{
		{method: http.MethodGet, again: true},
		{method: http.MethodHead, again: true},
		{method: http.MethodPost, text: "x", marked: true, again: true},
		{method: http.MethodPost, marked: true, again: true},
		{method: http.MethodPost, text: "x"},
		{method: http.MethodPost},
		{method: http.MethodPut, text: "x"},
		{method: http.MethodDelete},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			p := play(t, func(f far) {
				if f.request(); f.n > 1 {
					f.say("HTTP/1.1 204 Second\r\n\r\n")
					return
				}
				f.say(fine)
				f.request() // and no answer to it
				_ = f.Close()
			})
			d := to(t, p.address)
			_, err := get(t.Context(), t, d, http.MethodPost, "x")
			require.NoError(t, err)
			var in io.Reader
			if c.text != "" {
				in = strings.NewReader(c.text)
			}
			req, err := http.NewRequestWithContext(t.Context(), c.method, "http://"+p.address, in)
			require.NoError(t, err)
			if c.marked {
				req.Header[keyRepeatable] = nil
			}
			answer, err := d.RoundTrip(req)
			if !c.again {
				require.ErrorContains(t, err, "read header of answer")
				assert.EqualValues(t, 1, p.links.Load())
				assert.EqualValues(t, 2, p.read.Load())
				assert.Zero(t, d.kept())
				return
			}
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			assert.Equal(t, "204 Second", answer.Status)
			assert.EqualValues(t, 2, p.links.Load())
			assert.EqualValues(t, 3, p.read.Load())
		})
	}
}

func TestDirectSendsNothingAgainOnANewConnectionOrInTheMiddleOfAnAnswer(t *testing.T) {
	p := play(t, func(f far) {
		f.request()
		_ = f.Close()
	})
	_, err := get(t.Context(), t, to(t, p.address), http.MethodGet, "")
	require.ErrorContains(t, err, "read header of answer")
	assert.EqualValues(t, 1, p.read.Load())

	p = play(t, func(f far) {
		f.request()
		f.say(fine)
		f.request()
		f.say("HTTP/1.1 2")
		_ = f.Close()
	})
	d := to(t, p.address)
	_, err = get(t.Context(), t, d, http.MethodGet, "")
	require.NoError(t, err)
	_, err = get(t.Context(), t, d, http.MethodGet, "")
	require.ErrorIs(t, err, io.EOF)
	assert.EqualValues(t, 2, p.read.Load())
}

func TestDirectStopsWhenTheContextEnds(t *testing.T) {
	enough := errors.New("enough")
	for name, said := range map[string]string{
		"before the answer":       "",
		"in the header":           "HTTP/1.1 200 OK\r\nContent-",
		"after 1xx":               "HTTP/1.1 103 Early Hints\r\n\r\n",
		"in the body":             "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345",
		"in a chunk":              "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12",
		"in a body without end":   "HTTP/1.1 200 OK\r\n\r\n12345",
		"before the second chunk": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			arrived := make(chan struct{})
			p := play(t, func(f far) {
				f.request()
				f.say(said)
				close(arrived)
			})
			d := to(t, p.address)
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				<-arrived
				cancel(enough)
			}()
			_, err := get(ctx, t, d, http.MethodPost, "x")
			require.ErrorIs(t, err, enough)
			p.waitEnded(t, 1)
			assert.Zero(t, d.kept())
		})
	}
}

func TestDirectSendsNothingWhenTheContextHasEnded(t *testing.T) {
	p := play(t, answers(func(far, int) string { return fine }))
	d := to(t, p.address)
	_, err := get(t.Context(), t, d, http.MethodGet, "")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), -time.Second)
	defer cancel()
	_, err = get(ctx, t, d, http.MethodGet, "")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.EqualValues(t, 1, p.read.Load())
	assert.Equal(t, 1, d.kept(), "the connection has nothing to do with it")
}

func TestDirectReusesNoConnectionThatTheContextMayHaveStopped(t *testing.T) {
	p := play(t, answers(func(far, int) string { return fine }))
	d := to(t, p.address)
	ctx, cancel := context.WithCancel(t.Context())
	answer, err := ask(ctx, t, d, http.MethodGet, "")
	require.NoError(t, err)
	cancel() // the whole body is in the buffer
	got, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	assert.Equal(t, "ok", string(got))
	p.waitEnded(t, 1)
	assert.Zero(t, d.kept())
	for range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		if _, err := get(ctx, t, d, http.MethodGet, ""); err != nil {
			require.ErrorIs(t, err, context.Canceled)
		}
		_, err = get(t.Context(), t, d, http.MethodPost, "x")
		require.NoError(t, err, "the deadline of one request must not reach the next")
	}
}

func TestDirectTakesAnAnswerThatComesBeforeTheRequest(t *testing.T) {
	for range 50 {
		p := play(t, func(f far) {
			f.say("HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 3\r\n\r\nbad")
			_ = f.Close()
		})
		d := to(t, p.address)
		answer, err := ask(t.Context(), t, d, http.MethodPost, strings.Repeat("x", maxAtHand))
		require.NoError(t, err)
		assert.Equal(t, http.StatusBadRequest, answer.StatusCode)
		got, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		assert.Equal(t, "bad", string(got))
		assert.Zero(t, d.kept())
	}
}

// mute sends nothing.
type mute struct{ *net.TCPConn }

func (mute) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func TestDirectTakesTheAnswerToARequestThatItCouldNotSend(t *testing.T) {
	for said, want := range map[string]string{fine: "ok", "": "broken pipe"} {
		p := play(t, func(f far) {
			f.say(said)
			_ = f.Conn.(*net.TCPConn).CloseWrite()
		})
		d := to(t, p.address)
		dial := d.rest.DialContext
		d.rest.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return mute{conn.(*net.TCPConn)}, nil
		}
		got, err := get(t.Context(), t, d, http.MethodPost, "x")
		if want == "ok" {
			require.NoError(t, err)
			assert.Equal(t, want, got)
		} else {
			require.ErrorContains(t, err, want)
		}
		p.waitEnded(t, 1)
		assert.Zero(t, d.kept())
	}
}

func TestDirectClosesWhatIsIdleForTooLong(t *testing.T) {
	p := play(t, answers(func(far, int) string { return fine }))
	d := to(t, p.address)
	d.idleFor = 20 * time.Millisecond
	for n := range 3 {
		_, err := get(t.Context(), t, d, http.MethodGet, "")
		require.NoError(t, err)
		p.waitEnded(t, n+1)
		assert.Zero(t, d.kept())
	}
}

func TestDirectKeepsNoMoreConnectionsThanItMay(t *testing.T) {
	p := play(t, answers(func(far, int) string { return fine }))
	d := to(t, p.address)
	var open []io.ReadCloser
	for range maxIdle + 2 {
		answer, err := ask(t.Context(), t, d, http.MethodGet, "") //nolint:bodyclose // closed below
		require.NoError(t, err)
		open = append(open, answer.Body)
	}
	for _, answer := range open {
		_, err := io.ReadAll(answer)
		require.NoError(t, err)
		require.NoError(t, answer.Close())
	}
	assert.Equal(t, maxIdle, d.kept())
	last := d.idle[maxIdle-1]
	_, err := get(t.Context(), t, d, http.MethodGet, "")
	require.NoError(t, err)
	assert.Same(t, last, d.idle[maxIdle-1], "the one that was used last is used next")
}

func TestDirectCloseEndsIdleAndBusyConnections(t *testing.T) {
	p := play(t, answers(func(far, int) string { return fine }))
	d := to(t, p.address)
	busy, err := ask(t.Context(), t, d, http.MethodGet, "")
	require.NoError(t, err)
	_, err = get(t.Context(), t, d, http.MethodGet, "")
	require.NoError(t, err)
	d.CloseIdleConnections()
	p.waitEnded(t, 2)
	assert.Zero(t, d.kept())
	_, err = io.ReadAll(busy.Body)
	require.NoError(t, err)
	require.NoError(t, busy.Body.Close())
	p.waitEnded(t, 1)
	assert.Zero(t, d.kept(), "nobody would close it any more")
	_, err = get(t.Context(), t, d, http.MethodGet, "")
	require.NoError(t, err, "a closed Client still works")
	assert.Equal(t, 1, d.kept())
}

// descriptors counts this process's open ones, where the kernel tells.
func descriptors() int {
	all, _ := os.ReadDir("/proc/self/fd")
	return len(all)
}

func TestDirectServesManyCallersAndLeavesNothingBehind(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body) // net/http does not write while it reads
		_, _ = w.Write(text)
	}))
	defer server.Close()
	before, goroutines := descriptors(), runtime.NumGoroutine()
	d := to(t, server.Listener.Addr().String())
	failed := make(chan error, 200*20)
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			for k := range 20 {
				ctx, cancel := context.WithCancel(context.Background())
				if k%5 == 4 {
					go cancel()
				}
				text := strings.Repeat(strconv.Itoa(i)+" "+strconv.Itoa(k)+"\n", 1+i*k)
				got, err := get(ctx, t, d, http.MethodPost, text)
				cancel()
				switch {
				case err == nil && got != text:
					failed <- fmt.Errorf("%d bytes came back for %d", len(got), len(text))
				case err != nil && (k%5 != 4 || !errors.Is(err, context.Canceled)):
					failed <- err
				}
			}
		})
	}
	all.Wait()
	close(failed)
	for err := range failed {
		require.NoError(t, err)
	}
	assert.LessOrEqual(t, d.kept(), 200)
	d.CloseIdleConnections()
	end := time.Now().Add(soon)
	for descriptors() > before || runtime.NumGoroutine() > goroutines {
		require.True(t, time.Now().Before(end), "%d descriptors were %d, %d goroutines were %d", descriptors(), before, runtime.NumGoroutine(), goroutines)
		<-time.After(tick)
	}
}
