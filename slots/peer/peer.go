package peer

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
)

// socket is what the kernel tells about one socket.
type socket struct {
	local, remote netip.AddrPort // plain; remote is the zero address for a listener
	uid           uint32
	inode         uint64 // 0: no process holds the socket any more
}

// Looker asks for the owners of this network namespace's sockets. It holds
// one netlink socket; its methods may be called at once.
type Looker struct {
	mu   sync.Mutex
	diag *diag // nil: sock_diag does not work here, /proc is read
}

// Open finds out by doing what this machine answers to, and opens it.
func Open() (*Looker, error) {
	d, err := openDiag()
	if err == nil {
		if err = d.try(); err == nil {
			return &Looker{diag: d}, nil
		}
		err = errors.Join(err, d.close())
	}
	if _, missing := os.Stat(procFiles[0]); missing != nil {
		return nil, fmt.Errorf("open peer lookup: %w", errors.Join(err, missing))
	}
	return &Looker{}, nil
}

// Close closes the netlink socket. The Looker is of no use afterwards.
func (l *Looker) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.diag == nil {
		return nil
	}
	return l.diag.close()
}

// UID returns the uid that owns the client's end of an accepted connection:
// local is our address, remote the client's. ok is false when no process of
// this network namespace holds such a socket: the client is on another
// machine, or, if Local says that it is on this one, it has closed its socket
// already. A caller who keeps someone out refuses the latter as well.
func (l *Looker) UID(local, remote netip.AddrPort) (uid int, ok bool, err error) {
	// The client's socket has our remote address as its local one.
	from, to := plainPort(remote), plainPort(local)
	l.mu.Lock()
	defer l.mu.Unlock()
	var s socket
	if l.diag != nil {
		s, ok, err = l.diag.findOnAnyDevice(from, to)
	} else {
		s, ok, err = findInProc(from, to)
	}
	if err != nil {
		return 0, false, fmt.Errorf("look up owner of %s: %w", remote, err)
	}
	if !ok || s.inode == 0 {
		return 0, false, nil
	}
	return int(s.uid), true, nil
}

// try looks for a socket that is there for sure. The kernel answers "no such
// entry" both for a socket that is missing and when it cannot look at all.
func (d *diag) try() error {
	listener, err := listenLoopback()
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // it was there to be looked up
	at := listener.Addr().(*net.TCPAddr).AddrPort()
	s, err := d.ask(at, netip.AddrPortFrom(at.Addr(), 1), 0)
	if err != nil {
		return fmt.Errorf("try sock_diag: %w", err)
	}
	if s.local != at {
		return fmt.Errorf("try sock_diag: asked for %s, got %s", at, s.local)
	}
	return nil
}

// listenLoopback listens on a free port of the loopback of either family.
func listenLoopback() (*net.TCPListener, error) {
	var errs []error
	for _, loopback := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
		listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(loopback, 0)))
		if err == nil {
			return listener, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}
