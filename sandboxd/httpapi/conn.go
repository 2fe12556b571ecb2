package httpapi

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// writePiece is how much is written under one deadline, so that a large
// answer over a slow line is progress and not a stall.
const writePiece = 256 << 10

// connTable bounds the open connections of a server. Up to most of them
// serve every route, reserve more serve the routes that need no token. When
// all are taken, a connection that waits for a request makes room for the
// next one: first those that never carried the token, longest wait first.
type connTable struct {
	most, reserve int
	stall         time.Duration

	// mu guards open and plain. Nothing is closed, read or written under it.
	mu    sync.Mutex
	open  map[*conn]struct{}
	plain int // of open, those that serve every route

	evicted atomic.Int64
	refused atomic.Int64
}

// conn is one connection of a connTable.
type conn struct {
	net.Conn
	table    *connTable
	reserved bool
	trusted  atomic.Bool  // has carried a request with the token
	hijacked atomic.Bool  // is not the http server's any more
	waiting  atomic.Int64 // since when it waits for a request, Unix nanoseconds; 0 while it serves one
	armed    time.Time    // of the write deadline; writes of one connection never overlap
	closed   sync.Once
}

func newConnTable(most, reserve int, stall time.Duration) *connTable {
	return &connTable{most: most, reserve: reserve, stall: stall, open: map[*conn]struct{}{}}
}

// admit takes c into the table, or says that there is no room. The victim,
// if any, has to be closed by the caller.
func (t *connTable) admit(raw net.Conn) (c, victim *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.open) >= t.most+t.reserve {
		if victim = t.idlestLocked(); victim == nil {
			t.refused.Add(1)
			return nil, nil
		}
		t.evicted.Add(1)
		t.forgetLocked(victim)
	}
	c = &conn{Conn: raw, table: t, reserved: t.plain >= t.most}
	c.waiting.Store(time.Now().UnixNano())
	t.open[c] = struct{}{}
	if !c.reserved {
		t.plain++
	}
	return c, victim
}

// idlestLocked is the connection that is missed least; nil when all serve.
func (t *connTable) idlestLocked() *conn {
	var best *conn
	var bestTrusted bool
	var bestSince int64
	for c := range t.open {
		since := c.waiting.Load()
		if since == 0 {
			continue
		}
		trusted := c.trusted.Load()
		if best == nil || (bestTrusted && !trusted) || (trusted == bestTrusted && since < bestSince) {
			best, bestTrusted, bestSince = c, trusted, since
		}
	}
	return best
}

func (t *connTable) forgetLocked(c *conn) {
	if _, ok := t.open[c]; !ok {
		return
	}
	delete(t.open, c)
	if !c.reserved {
		t.plain--
	}
}

// count is how many connections are open.
func (t *connTable) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open)
}

// closeWaiting closes the connections that serve no request.
func (t *connTable) closeWaiting() {
	t.mu.Lock()
	var waiting []*conn
	for c := range t.open {
		if c.waiting.Load() != 0 {
			waiting = append(waiting, c)
		}
	}
	t.mu.Unlock()
	for _, c := range waiting {
		_ = c.Close()
	}
}

// watch is the server's ConnState hook. It keeps who waits for a request, and
// who has left the http server.
func (*connTable) watch(nc net.Conn, state http.ConnState) {
	c, ok := nc.(*conn)
	if !ok {
		return
	}
	switch state {
	case http.StateActive:
		c.waiting.Store(0)
	case http.StateIdle:
		c.waiting.Store(time.Now().UnixNano())
	case http.StateHijacked:
		c.hijacked.Store(true)
	case http.StateNew, http.StateClosed:
	}
}

// Write writes p and fails when the other side takes nothing for the table's
// stall. Who has taken the connection over sets deadlines of its own.
func (c *conn) Write(p []byte) (int, error) {
	if c.hijacked.Load() {
		return c.Conn.Write(p)
	}
	total := 0
	for {
		now := time.Now()
		// Arming a timer costs more than reading the clock; a tenth of the
		// stall is precise enough.
		if now.Sub(c.armed) > c.table.stall/10 {
			if err := c.SetWriteDeadline(now.Add(c.table.stall)); err != nil {
				return total, err
			}
			c.armed = now
		}
		n, err := c.Conn.Write(p[:min(len(p), writePiece)])
		total += n
		p = p[n:]
		if err != nil || len(p) == 0 {
			return total, err
		}
	}
}

// NetConn is the connection below, for who took it over.
func (c *conn) NetConn() net.Conn { return c.Conn }

// Close closes the connection and takes it out of the table.
func (c *conn) Close() error {
	c.closed.Do(func() {
		c.table.mu.Lock()
		defer c.table.mu.Unlock()
		c.table.forgetLocked(c)
	})
	return c.Conn.Close()
}

// listener admits the connections of another listener to a table.
type listener struct {
	net.Listener
	table *connTable
}

// Accept waits for a connection that the table admits; the others are closed.
func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c, victim := l.table.admit(raw)
		if victim != nil {
			_ = victim.Close()
		}
		if c != nil {
			return c, nil
		}
		_ = raw.Close()
	}
}

type connKey struct{}

// withConn is the server's ConnContext hook.
func withConn(ctx context.Context, nc net.Conn) context.Context {
	if c, ok := nc.(*conn); ok {
		return context.WithValue(ctx, connKey{}, c)
	}
	return ctx
}

// connOf is the connection that a request came on; nil when it did not come
// through a listener of ours.
func connOf(ctx context.Context) *conn {
	c, _ := ctx.Value(connKey{}).(*conn)
	return c
}
