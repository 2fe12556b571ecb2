package listen

import (
	"errors"
	"net"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAPortIsHeldWhereClientsLookFirst(t *testing.T) {
	for _, c := range []struct{ address, other string }{{"127.0.0.1:0", "::1"}, {"[::1]:0", "127.0.0.1"}} {
		ln, err := TCP(t.Context(), c.address)
		if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
			t.Logf("%s is no address of this machine: %v", c.address, err)
			continue
		}
		require.NoError(t, err)
		other := net.JoinHostPort(c.other, strconv.Itoa(ln.Addr().(*net.TCPAddr).Port))
		_, err = net.Listen("tcp", other)
		require.Error(t, err, other)
		if errors.Is(err, syscall.EADDRNOTAVAIL) {
			require.NoError(t, ln.Close())
			continue
		}
		require.ErrorIs(t, err, syscall.EADDRINUSE, other)
		_, err = net.Dial("tcp", other)
		require.Error(t, err, "nobody answers there")
		mine, err := net.Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		require.NoError(t, mine.Close())

		require.NoError(t, ln.Close())
		again, err := net.Listen("tcp", other)
		require.NoError(t, err, "the port goes with the listener")
		require.NoError(t, again.Close())
	}
}

func TestAPortThatSomebodyHasIsNotHeld(t *testing.T) {
	theirs, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer theirs.Close()
	at := theirs.Addr().(*net.TCPAddr)
	_, err = hold(&net.TCPAddr{IP: net.IPv6loopback, Port: at.Port})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	_, err = TCP(t.Context(), at.String())
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	everywhere, err := TCP(t.Context(), ":0")
	require.NoError(t, err)
	assert.NoError(t, everywhere.Close())
}
