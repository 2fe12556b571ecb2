package terminal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/need"
)

const (
	shortSilence = 500 * time.Millisecond
	soon         = 30 * time.Second
)

// deaf is a terminal that shows nothing, and takes nothing before it is told
// to.
type deaf struct {
	takes  chan struct{} // closed: it takes what is typed
	closed chan struct{}
	once   sync.Once

	mu    sync.Mutex
	taken bytes.Buffer
}

func newDeaf() *deaf { return &deaf{takes: make(chan struct{}), closed: make(chan struct{})} }

func (d *deaf) Read([]byte) (int, error) {
	<-d.closed
	return 0, io.EOF
}

func (d *deaf) Write(p []byte) (int, error) {
	select {
	case <-d.takes:
	case <-d.closed:
		return 0, io.ErrClosedPipe
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.taken.Write(p)
}

func (*deaf) Resize(api.WindowSize) error { return nil }

func (*deaf) Wait() (api.TerminalExit, error) {
	return api.TerminalExit{Outcome: slots.OutcomeCancelled}, nil
}

func (d *deaf) Close() error {
	d.once.Do(func() { close(d.closed) })
	return nil
}

func (d *deaf) has() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.taken.Len()
}

// toDeaf is a client of a terminal, whose server is not patient.
func toDeaf(t *testing.T, tty TTY, silence time.Duration) *websocket.Conn {
	t.Helper()
	served := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.NoError(t, serve(r.Context(), w, r, tty, silence))
	}))
	t.Cleanup(served.Close)
	conn, answer, err := websocket.DefaultDialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(served.URL, "http"), nil)
	require.NoError(t, err)
	_ = answer.Body.Close()
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// answerPings reads until the connection ends.
func answerPings(conn *websocket.Conn) {
	go func() { // ends with the connection
		for {
			if _, _, err := conn.ReadMessage(); err != nil {
				return
			}
		}
	}()
}

// vanish has the connection's machine answer no more, not even that a packet
// came.
func vanish(t *testing.T, conn *websocket.Conn) {
	t.Helper()
	tcp, ok := conn.NetConn().(*net.TCPConn)
	require.True(t, ok)
	raw, err := tcp.SyscallConn()
	require.NoError(t, err)
	none := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
	require.NoError(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &none[0]})
	}))
	if errors.Is(err, unix.EPERM) {
		need.Facility(t, "root", fmt.Errorf("attach a filter to a socket: %w", err))
	}
	require.NoError(t, err)
}

func requireClosed(t *testing.T, d *deaf) {
	t.Helper()
	select {
	case <-d.closed:
	case <-time.After(soon):
		require.Fail(t, "its client has gone, and nobody noticed")
	}
}

func TestAClientThatSaysNoMoreHasGoneAlsoWhenNobodyReadsWhatItTyped(t *testing.T) {
	for _, c := range []struct {
		name string
		more int // bytes that are typed
		live bool
	}{
		{"nothing typed", 0, true},
		{"a paste", 64 << 10, true},
		{"a paste, and its machine gone", 64 << 10, false},
		{"more than is queued, and its machine gone", 8 << 20, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := newDeaf()
			conn := toDeaf(t, d, shortSilence)
			typed := make(chan struct{})
			go func() {
				defer close(typed)
				for range c.more >> 14 {
					if conn.WriteMessage(websocket.BinaryMessage, make([]byte, 16<<10)) != nil {
						return
					}
				}
			}()
			select {
			case <-typed:
			case <-time.After(shortSilence): // the rest has to wait
			}
			if !c.live {
				vanish(t, conn)
			}
			requireClosed(t, d)
			_ = conn.Close()
			<-typed
		})
	}
}

func TestAClientIsWaitedForAsLongAsItAnswers(t *testing.T) {
	for _, c := range []struct {
		name string
		more int
	}{
		{"a paste", 64 << 10},
		{"more than is queued", 8 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := newDeaf()
			const silence = 4 * shortSilence // which no answer of a loaded machine takes
			conn := toDeaf(t, d, silence)
			answerPings(conn)
			go func() { // ends when all is taken, or with the connection
				_ = conn.WriteMessage(websocket.BinaryMessage, make([]byte, min(c.more, maxMessage)))
				for rest := c.more - maxMessage; rest > 0; rest -= maxMessage {
					_ = conn.WriteMessage(websocket.BinaryMessage, make([]byte, maxMessage))
				}
			}()
			select {
			case <-d.closed:
				require.Fail(t, "it was there")
			case <-time.After(2 * silence):
			}
			close(d.takes)
			require.Eventually(t, func() bool { return d.has() == c.more }, soon, 5*time.Millisecond)
			require.NoError(t, conn.WriteControl(websocket.CloseMessage, nil, time.Now().Add(soon)))
			requireClosed(t, d)
		})
	}
}

// A client that reads all the time, more slowly than a program prints, has a
// message on its way at every tick.
func TestAPingHasItsTurnBetweenMessagesThatFollowEachOther(t *testing.T) {
	t.Parallel()
	pinged := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		socket, err := new(websocket.Upgrader).Upgrade(w, r, nil)
		if !assert.NoError(t, err) {
			return
		}
		defer func() { _ = socket.Close() }()
		s := &served{socket: socket, silence: shortSilence}
		ctx, end := context.WithCancel(r.Context())
		var beside sync.WaitGroup
		beside.Go(func() { s.ping(ctx, func(error) {}) })
		s.writing.Lock()
		for range 200 {
			select {
			case <-pinged:
			case <-time.After(shortSilence / 20):
			}
			s.writing.Unlock()
			s.writing.Lock()
		}
		s.writing.Unlock()
		end()
		beside.Wait()
	}))
	t.Cleanup(server.Close)
	conn, answer, err := websocket.DefaultDialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(server.URL, "http"), nil)
	require.NoError(t, err)
	_ = answer.Body.Close()
	t.Cleanup(func() { _ = conn.Close() })
	var once sync.Once
	conn.SetPingHandler(func(string) error { once.Do(func() { close(pinged) }); return nil })
	_, _, err = conn.ReadMessage() // until the server is done
	require.Error(t, err)
	select {
	case <-pinged:
	default:
		require.Fail(t, "it was never asked whether it is there, and would be cut for silence")
	}
}

func TestNoMoreIsQueuedThanIsSaid(t *testing.T) {
	d := newDeaf()
	typed := newTypeahead(d)
	var beside sync.WaitGroup
	beside.Go(typed.feed)
	var wrote int
	full := make(chan struct{})
	beside.Go(func() {
		defer close(full)
		for range 100 {
			n, err := typed.Write(make([]byte, pieceBytes))
			assert.NoError(t, err)
			wrote += n
		}
	})
	require.Eventually(t, func() bool {
		typed.mu.Lock()
		defer typed.mu.Unlock()
		return len(typed.text) >= maxTyped
	}, soon, time.Millisecond)
	select {
	case <-full:
		require.Fail(t, "it does not wait")
	case <-time.After(100 * time.Millisecond):
	}
	typed.mu.Lock()
	assert.LessOrEqual(t, len(typed.text), maxTyped+pieceBytes)
	typed.mu.Unlock()
	require.NoError(t, d.Close())
	beside.Wait()
	assert.Equal(t, 100*pieceBytes, wrote, "who types to a terminal that has ended does not wait")
}
