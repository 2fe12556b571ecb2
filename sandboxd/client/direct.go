package client

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	idleFor   = 90 * time.Second // how long a connection is kept for the next request
	maxIdle   = 256              // connections that are kept at most
	maxAtHand = 64 << 10         // bytes of a body that go out in one piece
)

// direct is the http.RoundTripper of a Client. It writes a request and reads
// its answer on the caller's own goroutine. net/http's Transport passes each
// through two goroutines of the connection, and to wake those takes longer
// than the rest of its work on a short call.
//
// It takes what is no stream, has little to send and goes to the container
// over plain http; anything else it leaves to rest. A body of at most
// maxAtHand fits into the buffers of the kernels, so that writing it does not
// wait for a container that answers before it has read all; net/http reads
// while it writes.
type direct struct {
	rest    *http.Transport
	host    string // of the URLs that it takes
	address string // of host, to dial
	idleFor time.Duration
	buffers sync.Pool // of *bytes.Buffer, for requests

	// mu guards what is below. Nothing is dialled or closed under it.
	mu      sync.Mutex
	idle    []*link     // the one that was used last is the last
	sweeper *time.Timer // runs while there are idle ones
	shut    bool        // no request has come since the idle ones were closed
}

// transport returns what sends the requests to the container at origin.
func transport(origin *url.URL) http.RoundTripper {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	// No proxy and no limit of ours on connections: calls wait in the
	// container, and each holds one.
	rest := &http.Transport{
		DialContext:           dialer.DialContext,
		MaxIdleConnsPerHost:   maxIdle,
		IdleConnTimeout:       idleFor,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true,
	}
	// A name in another alphabet, or of a zone, has a form for the wire, which
	// rest knows.
	foreign := strings.ContainsFunc(origin.Host, func(r rune) bool { return r > 0x7e || r == '%' })
	if !canPeek || origin.Scheme != "http" || foreign {
		return rest
	}
	port := origin.Port()
	if port == "" {
		port = "80"
	}
	return &direct{rest: rest, host: origin.Host, address: net.JoinHostPort(origin.Hostname(), port), idleFor: idleFor}
}

// RoundTrip sends req and returns its answer. The connection is free again
// when the answer's body was read to its end, and closed when the body is
// closed before. The error is the cause of the context's end if that came
// first.
func (d *direct) RoundTrip(req *http.Request) (*http.Response, error) {
	if !d.takes(req) {
		return d.rest.RoundTrip(req)
	}
	text, ok := d.buffers.Get().(*bytes.Buffer)
	if !ok {
		text = &bytes.Buffer{}
	}
	defer func() {
		text.Reset()
		d.buffers.Put(text)
	}()
	if err := write(text, req); err != nil {
		return nil, err
	}
	for again := false; ; again = true {
		l, err := d.connect(req.Context(), again)
		if err != nil {
			return nil, causeOr(req.Context(), err)
		}
		answer, err := l.exchange(req, text.Bytes(), d.release)
		if err == nil {
			return answer, nil
		}
		// The container may have closed a connection that served before
		// just when this request went out.
		if again || !l.served || l.answered() || req.Context().Err() != nil || l.sent > 0 && !repeatable(req) {
			return nil, causeOr(req.Context(), err)
		}
	}
}

// takes reports whether the request is one for direct.
func (d *direct) takes(req *http.Request) bool {
	if req.URL.Scheme != "http" || req.URL.Host != d.host {
		return false
	}
	if req.Body != nil && req.Body != http.NoBody && (req.GetBody == nil || req.ContentLength <= 0 || req.ContentLength > maxAtHand) {
		return false
	}
	for name, values := range req.Header {
		// rest waits for the answer that Expect asks for, and refuses a value
		// that would break the header.
		if name == "Expect" || slices.ContainsFunc(values, breaksHeader) {
			return false
		}
	}
	return true
}

// write puts the whole request into text. It does what req.Write would for a
// request that direct takes. What that has for all others costs a call some
// 15 µs, because little of it is in the processor's caches between two calls.
func write(text *bytes.Buffer, req *http.Request) error {
	for _, part := range [...]string{
		req.Method, " ", req.URL.RequestURI(), " HTTP/1.1\r\nHost: ", req.URL.Host, "\r\nUser-Agent: Go-http-client/1.1\r\n",
	} {
		text.WriteString(part)
	}
	for name, values := range req.Header {
		for _, value := range values {
			for _, part := range [...]string{name, ": ", value, "\r\n"} {
				text.WriteString(part)
			}
		}
	}
	if req.ContentLength > 0 || req.Method == http.MethodPost || req.Method == http.MethodPut {
		text.WriteString("Content-Length: ")
		text.Write(strconv.AppendInt(text.AvailableBuffer(), req.ContentLength, 10))
		text.WriteString("\r\n")
	}
	text.WriteString("\r\n")
	if req.Body == nil {
		return nil
	}
	defer func() { _ = req.Body.Close() }() // it is at hand, so nothing hangs on it
	n, err := text.ReadFrom(req.Body)
	if err == nil && n != req.ContentLength {
		err = fmt.Errorf("body of request has %d bytes instead of %d", n, req.ContentLength)
	}
	return err
}

func breaksHeader(value string) bool {
	return strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// keyRepeatable is the header that, without a value and so not sent, tells
// net/http and direct that the container may get the request twice.
const keyRepeatable = "Idempotency-Key"

// repeatable reports whether the container may get the request twice.
func repeatable(req *http.Request) bool {
	if _, marked := req.Header[keyRepeatable]; marked {
		return true
	}
	return req.Method == http.MethodGet || req.Method == http.MethodHead
}

// connect returns a connection: one that is idle unless fresh, or a new one.
func (d *direct) connect(ctx context.Context, fresh bool) (*link, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for !fresh {
		l := d.pop()
		if l == nil {
			break
		}
		if !stale(l.raw) {
			l.served = true
			return l, nil
		}
		_ = l.conn.Close()
	}
	conn, err := d.rest.DialContext(ctx, "tcp", d.address)
	if err != nil {
		return nil, err
	}
	return newLink(conn), nil
}

// pop takes out the idle connection that was used last; nil: there is none.
func (d *direct) pop() *link {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = false
	n := len(d.idle) - 1
	if n < 0 {
		return nil
	}
	l := d.idle[n]
	d.idle[n] = nil
	d.idle = d.idle[:n]
	return l
}

// release takes back a connection that can serve another request.
func (d *direct) release(l *link) {
	if !d.keep(l) {
		_ = l.conn.Close()
	}
}

// keep adds a connection to the idle ones; false when it is one too many.
func (d *direct) keep(l *link) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut || len(d.idle) >= maxIdle {
		return false
	}
	l.since = time.Now()
	d.idle = append(d.idle, l)
	if d.sweeper == nil {
		d.sweeper = time.AfterFunc(d.idleFor, d.sweep)
	}
	return true
}

// sweep closes the connections that were idle for too long.
func (d *direct) sweep() {
	d.mu.Lock()
	old := 0
	for old < len(d.idle) && time.Since(d.idle[old].since) >= d.idleFor {
		old++
	}
	closing := slices.Clone(d.idle[:old])
	d.idle = slices.Delete(d.idle, 0, old)
	d.sweeper = nil
	if len(d.idle) > 0 {
		d.sweeper = time.AfterFunc(d.idleFor-time.Since(d.idle[0].since), d.sweep)
	}
	d.mu.Unlock()
	for _, l := range closing {
		_ = l.conn.Close()
	}
}

// CloseIdleConnections closes the connections that serve no request now, and
// until the next request comes those that become idle.
func (d *direct) CloseIdleConnections() {
	d.rest.CloseIdleConnections()
	d.mu.Lock()
	closing := d.idle
	d.idle, d.shut = nil, true
	if d.sweeper != nil {
		d.sweeper.Stop()
		d.sweeper = nil
	}
	d.mu.Unlock()
	for _, l := range closing {
		_ = l.conn.Close()
	}
}

// causeOr returns why the context has ended, or err when it has not.
func causeOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
