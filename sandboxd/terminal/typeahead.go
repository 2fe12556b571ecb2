package terminal

import (
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// maxTyped is how much of what was typed is queued, in bytes, before the client
// has to wait. A piece more may come on top.
const maxTyped = 256 << 10

// typeahead is what was typed and the terminal has not taken. Once the terminal
// takes no more it has ended, and the rest is dropped: its end is on its way.
type typeahead struct {
	to io.Writer

	mu      sync.Mutex // guards what follows; nothing is typed under it
	changed *sync.Cond
	text    []byte
	over    bool
}

func newTypeahead(to io.Writer) *typeahead {
	t := &typeahead{to: to}
	t.changed = sync.NewCond(&t.mu)
	return t
}

// Write queues what was typed, when there is room for it.
func (t *typeahead) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.text) >= maxTyped && !t.over {
		t.changed.Wait()
	}
	if !t.over {
		t.text = append(t.text, p...)
		t.changed.Broadcast()
	}
	return len(p), nil
}

// feed types what is queued until the terminal takes no more, or close.
func (t *typeahead) feed() {
	defer t.close()
	piece := make([]byte, 0, pieceBytes)
	for {
		t.mu.Lock()
		for len(t.text) == 0 && !t.over {
			t.changed.Wait()
		}
		if t.over {
			t.mu.Unlock()
			return
		}
		piece = append(piece[:0], t.text[:min(len(t.text), pieceBytes)]...)
		if t.text = t.text[len(piece):]; len(t.text) == 0 {
			t.text = nil // a paste is not kept for the life of the terminal
		}
		t.changed.Broadcast()
		t.mu.Unlock()
		if _, err := t.to.Write(piece); err != nil {
			return
		}
	}
}

// close drops what is queued, and what comes.
func (t *typeahead) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over, t.text = true, nil
	t.changed.Broadcast()
}

// tcpUserTimeout is TCP_USER_TIMEOUT, which package syscall does not name.
const tcpUserTimeout = 18

// boundSilence has the kernel give the connection up when the machine at its
// other end has not taken what was sent for so long. By itself it would wait
// for a quarter of an hour.
func boundSilence(conn net.Conn, silence time.Duration) {
	for {
		below, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = below.NetConn()
	}
	tcp, ok := conn.(syscall.Conn)
	if !ok {
		return // a pipe, whose other end is here
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return // it is closed
	}
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(silence/time.Millisecond)) // a Unix socket has none, nor silent peers
	})
}
