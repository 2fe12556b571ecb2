package httpapi

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/terminal"
	"berth/slots"
	"berth/slots/sandbox"
)

// flood is a terminal that shows something for as long as it is read.
type flood struct {
	sandbox.Terminal
	shown  atomic.Int64
	once   sync.Once
	closed chan struct{}
}

func (f *flood) Read(p []byte) (int, error) {
	select {
	case <-f.closed:
		return 0, io.EOF
	default:
	}
	f.shown.Add(int64(len(p)))
	return len(p), nil
}

func (f *flood) Wait() (slots.Exit, error) { return slots.Exit{Outcome: slots.OutcomeCancelled}, nil }

func (f *flood) Close() error {
	f.once.Do(func() { close(f.closed) })
	return nil
}

func TestATerminalHasItsOwnPatience(t *testing.T) {
	const stall = 2 * time.Millisecond
	c := start(t, Config{Token: testToken, Stall: stall})
	f := &flood{closed: make(chan struct{})}
	c.terminal = f
	session, answer, err := terminal.Dial( //nolint:bodyclose // it need not be
		t.Context(), "http://"+c.addr+"/v1/slots/slot_0/terminal", http.Header{"Authorization": {"Bearer " + testToken}}, "container")
	require.NoError(t, err)
	require.Nil(t, answer)
	t.Cleanup(func() { _ = session.Close() })
	for at := int64(-1); at != f.shown.Load(); { // until nothing is taken for far longer than an answer may stall
		at = f.shown.Load()
		select {
		case <-f.closed:
			require.Fail(t, "a client that reads nothing for a moment is not waited for")
		case <-time.After(200 * stall):
		}
	}
	_, err = io.CopyN(io.Discard, session, f.shown.Load()+1)
	require.NoError(t, err, "it goes on when its client reads again")
	require.NoError(t, session.Close())
	<-f.closed
	_, err = session.Wait()
	assert.NoError(t, err)
}
