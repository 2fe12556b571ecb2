package sandboxd

import (
	"errors"
	"net"
	"sync"
	"time"

	"berth/slots/peer"
)

// acceptPause is how long the listener rests when it cannot accept.
const acceptPause = 10 * time.Millisecond

// guard is the agent's listener. It accepts from the start, so that what a
// slot tries during the probe is answered as it will be later, and it ends
// connections that come from a slot before a byte of them is read.
type guard struct {
	net.Listener
	isSlot func(uid int) bool
	looker *peer.Looker

	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
	err   error
}

// maxEarly is how many clients may wait for the serving to begin before they
// are in the way of telling slots apart.
const maxEarly = 256

// newGuard takes the listener over. Close ends it.
func newGuard(ln net.Listener, isSlot func(uid int) bool) (*guard, error) {
	looker, err := peer.Open()
	if err != nil {
		return nil, err
	}
	g := &guard{Listener: ln, isSlot: isSlot, looker: looker, conns: make(chan net.Conn, maxEarly), done: make(chan struct{})}
	go g.run()
	return g, nil
}

// run ends when the listener is closed.
func (g *guard) run() {
	defer close(g.conns)
	for {
		conn, err := g.Listener.Accept()
		if err != nil {
			if temporary(err) && g.pause() {
				continue
			}
			g.err = err
			return
		}
		if g.fromSlot(conn) {
			refuse(conn)
			continue
		}
		select {
		case g.conns <- conn:
		case <-g.done:
			conn.Close()
		}
	}
}

// pause waits a moment before the next try to accept: for want of descriptors
// it would fail again at once. It is false when the listener is closed.
func (g *guard) pause() bool {
	select {
	case <-time.After(acceptPause):
		return true
	case <-g.done:
		return false
	}
}

// fromSlot reports whether a slot's uid owns the other end, or may: a client
// of this machine that has closed its socket already cannot be told from one.
// What cannot be found out at all is left to the token.
func (g *guard) fromSlot(conn net.Conn) bool {
	local, ok1 := conn.LocalAddr().(*net.TCPAddr)
	remote, ok2 := conn.RemoteAddr().(*net.TCPAddr)
	if !ok1 || !ok2 {
		return false
	}
	here, err := peer.Local(local.AddrPort().Addr(), remote.AddrPort().Addr())
	if err != nil || !here {
		return false
	}
	uid, found, err := g.looker.UID(local.AddrPort(), remote.AddrPort())
	return err == nil && (!found || g.isSlot(uid))
}

// refuse resets the connection: no orderly end, which would look like an
// answer.
func refuse(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0) //nolint:errcheck // it is closed next
	}
	conn.Close()
}

func temporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}

// Accept returns the next connection that is no slot's.
func (g *guard) Accept() (net.Conn, error) {
	conn, ok := <-g.conns
	if !ok {
		return nil, g.err
	}
	return conn, nil
}

// Close ends the listener.
func (g *guard) Close() error {
	var err error
	g.once.Do(func() {
		close(g.done)
		err = g.Listener.Close()
		for conn := range g.conns { // until run has ended
			conn.Close()
		}
		err = errors.Join(err, g.looker.Close())
	})
	return err
}
