package sandboxd

import (
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// starved is a listener whose process has no descriptor left.
type starved struct {
	net.Listener
	tries atomic.Int64
}

func (s *starved) Accept() (net.Conn, error) {
	s.tries.Add(1)
	return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
}

func TestAGuardWithoutDescriptorsWaitsInsteadOfSpinning(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &starved{Listener: ln}
	g, err := newGuard(s, func(int) bool { return false })
	require.NoError(t, err)
	time.Sleep(20 * acceptPause)
	require.NoError(t, g.Close())
	assert.Less(t, s.tries.Load(), int64(30))
	assert.Positive(t, s.tries.Load())
	_, err = g.Accept()
	assert.ErrorIs(t, err, syscall.EMFILE, "the listener's own error is what is told")
}

func TestAGuardEndsConnectionsOfSlotsAndPassesOthersOn(t *testing.T) {
	for _, slot := range []bool{true, false} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		g, err := newGuard(ln, func(uid int) bool { return slot && uid == os.Geteuid() })
		require.NoError(t, err)
		conn, err := net.Dial("tcp", ln.Addr().String())
		switch {
		case slot && err == nil:
			require.NoError(t, conn.SetDeadline(time.Now().Add(5*time.Second)))
			_, err = conn.Read(make([]byte, 1))
			require.NoError(t, conn.Close())
			fallthrough
		case slot:
			require.ErrorIs(t, err, syscall.ECONNRESET)
		default:
			require.NoError(t, err)
			passed, err := g.Accept()
			require.NoError(t, err)
			assert.Equal(t, conn.LocalAddr().String(), passed.RemoteAddr().String())
			assert.NoError(t, passed.Close())
			assert.NoError(t, conn.Close())
		}
		assert.NoError(t, g.Close())
		assert.NoError(t, g.Close(), "closing twice is once")
		_, err = g.Accept()
		assert.ErrorIs(t, err, net.ErrClosed)
	}
}
