package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// maxHeader bounds the header of an answer, in bytes.
const maxHeader = 1 << 20

var (
	errHeader = errors.New("too large")
	errRest   = errors.New("rest of answer is not here yet")
)

// link is one connection to the container. It serves one request at a time.
type link struct {
	conn net.Conn
	raw  syscall.RawConn // nil: cannot be had
	r    *bufio.Reader   // of the link itself, so that limits hold

	served bool      // a request before
	since  time.Time // idle
	sent   int       // bytes of the request
	left   int64     // bytes that may be read
	hasty  bool      // read only what is in r
	failed error     // of the last Read
}

func newLink(conn net.Conn) *link {
	l := &link{conn: conn}
	if c, ok := conn.(syscall.Conn); ok {
		l.raw, _ = c.SyscallConn() // without it the link serves once
	}
	l.r = bufio.NewReader(l)
	return l
}

// Read is for l.r.
func (l *link) Read(p []byte) (n int, err error) {
	switch {
	case l.hasty:
		err = errRest
	case l.left <= 0:
		err = errHeader
	default:
		n, err = l.conn.Read(p[:min(int64(len(p)), l.left)])
		l.left -= int64(n)
	}
	l.failed = err
	return n, err
}

// answered reports whether a byte of the answer has come.
func (l *link) answered() bool { return l.left < maxHeader }

// exchange sends the text of req and reads the header of its answer. It calls
// release when the link can serve again, and closes the link otherwise. The
// context's end interrupts it, and the reading of the body.
func (l *link) exchange(req *http.Request, text []byte, release func(*link)) (*http.Response, error) {
	l.left, l.hasty = maxHeader, false
	stop := context.AfterFunc(req.Context(), func() {
		_ = l.conn.SetDeadline(time.Unix(1, 0)) // it fails once the connection is closed
	})
	var unsent error
	l.sent, unsent = l.conn.Write(text)
	// Also a container that did not read all may have said why.
	answer, err := l.answer(req)
	if err != nil {
		stop()
		_ = l.conn.Close()
		if unsent != nil {
			return nil, unsent
		}
		return nil, err
	}
	l.left = math.MaxInt64
	b := &body{ReadCloser: answer.Body, req: req, reusable: unsent == nil && !answer.Close, stop: stop, release: release}
	b.link.Store(l)
	if answer.Body == http.NoBody {
		b.end(true)
		return answer, nil
	}
	answer.Body = b
	return answer, nil
}

// answer reads the header of the answer itself: 1xx only announces one.
func (l *link) answer(req *http.Request) (*http.Response, error) {
	for {
		answer, err := http.ReadResponse(l.r, req)
		switch {
		case err != nil && l.failed != nil:
			// err may be about the line that was cut.
			return nil, fmt.Errorf("read header of answer: %w", l.failed)
		case err != nil:
			return nil, err
		case answer.StatusCode == http.StatusSwitchingProtocols:
			return nil, errors.New("answer changes the protocol, which nobody asked for")
		case answer.StatusCode >= 200:
			return answer, nil
		}
	}
}

// body is the body of an answer. Close may be called during a Read, which
// then fails.
type body struct {
	io.ReadCloser // knows where the body ends
	req           *http.Request
	reusable      bool // the link, after the end of the body
	stop          func() bool
	release       func(*link)
	link          atomic.Pointer[link] // nil: no longer ours

	reading sync.Mutex
	err     error // of every Read to come; guarded by reading
}

// Read reads on. Its error is the cause of the context's end if that came
// first.
func (b *body) Read(p []byte) (int, error) {
	b.reading.Lock()
	defer b.reading.Unlock()
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		whole := errors.Is(err, io.EOF)
		if b.err = err; !whole {
			b.err = causeOr(b.req.Context(), err)
		}
		b.end(whole)
	}
	return n, b.err
}

// Close gives the answer up. It waits for nothing.
func (b *body) Close() error {
	if !b.reading.TryLock() {
		if l := b.link.Swap(nil); l != nil {
			b.stop()
			_ = l.conn.Close()
		}
		return nil
	}
	defer b.reading.Unlock()
	if l := b.link.Load(); l != nil {
		l.hasty = true // what is left may be in the buffer already
		b.end(b.ReadCloser.Close() == nil)
	}
	return nil
}

// end lets go of the link. whole: the body was read to its end.
func (b *body) end(whole bool) {
	l := b.link.Swap(nil)
	if l == nil {
		return
	}
	// When stop comes too late, the deadline may yet be set.
	if b.stop() && whole && b.reusable && l.r.Buffered() == 0 {
		b.release(l)
		return
	}
	_ = l.conn.Close()
}
