package peer

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// message makes a netlink message.
func message(kind uint16, seq uint32, body []byte) []byte {
	host := binary.NativeEndian
	m := host.AppendUint32(nil, uint32(sizeHeader+len(body)))
	m = host.AppendUint16(m, kind)
	m = host.AppendUint16(m, 0)
	m = host.AppendUint32(m, seq)
	m = host.AppendUint32(m, 0)
	return append(m, body...)
}

// found is the body of an answer for the request's own socket.
func found(request []byte, uid, inode uint32) []byte {
	body := append([]byte{request[16], 1, 0, 0}, request[24:24+sizeID]...)
	body = append(body, make([]byte, 12)...)
	body = binary.NativeEndian.AppendUint32(body, uid)
	return binary.NativeEndian.AppendUint32(body, inode)
}

func errnoBody(errno unix.Errno) []byte {
	return binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno)))
}

func TestAnAnswerSaysWhatWasAskedFor(t *testing.T) {
	for _, c := range []struct{ local, remote string }{
		{"127.0.0.1:4000", "10.1.2.3:8080"},
		{"[2001:db8::1]:4000", "[::1]:65535"},
	} {
		local, remote := netip.MustParseAddrPort(c.local), netip.MustParseAddrPort(c.remote)
		request := encodeRequest(7, local, remote, 3)
		s, seq, err := decodeAnswer(message(unix.SOCK_DIAG_BY_FAMILY, 7, found(request[:], 61003, 99)))
		require.NoError(t, err)
		assert.EqualValues(t, 7, seq)
		assert.Equal(t, socket{local: local, remote: remote, uid: 61003, inode: 99}, s)
	}
}

func TestAnswersThatSayNothingAreErrors(t *testing.T) {
	request := encodeRequest(1, netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("127.0.0.1:2"), 0)
	whole := message(unix.SOCK_DIAG_BY_FAMILY, 1, found(request[:], 1, 1))
	for n := range len(whole) {
		_, _, err := decodeAnswer(whole[:n])
		require.Error(t, err, "cut to %d bytes", n)
	}
	_, _, err := decodeAnswer(message(unix.NLMSG_ERROR, 1, errnoBody(unix.ENOENT)))
	require.ErrorIs(t, err, errNotFound)
	_, _, err = decodeAnswer(message(unix.NLMSG_ERROR, 1, errnoBody(unix.EPERM)))
	require.ErrorIs(t, err, unix.EPERM)
	_, _, err = decodeAnswer(message(unix.NLMSG_DONE, 1, make([]byte, 100)))
	require.Error(t, err)
	strange := found(request[:], 1, 1)
	strange[0] = unix.AF_UNIX
	_, _, err = decodeAnswer(message(unix.SOCK_DIAG_BY_FAMILY, 1, strange))
	assert.ErrorContains(t, err, "address family")
}

func TestALineOfProcIsRead(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the lines are those of a little-endian machine")
	}
	for _, c := range []struct {
		line string
		want socket
	}{
		{
			"   1: 0100007F:1F90 0A00020A:D431 01 00000000:00000000 00:00000000 00000000 61003        0 4711 1 000000009ccd7dd5 20 4 30 10 -1",
			socket{netip.MustParseAddrPort("127.0.0.1:8080"), netip.MustParseAddrPort("10.2.0.10:54321"), 61003, 4711},
		},
		{
			"   0: 00000000000000000000000001000000:1F90 B80D0120000000000000000007000000:0001 06 00000000:00000000 03:00000AAA 00000000     0        0 0 3 000000009ccd7dd5",
			socket{netip.MustParseAddrPort("[::1]:8080"), netip.MustParseAddrPort("[2001:db8::7]:1"), 0, 0},
		},
		{
			"   0: 0000000000000000FFFF00000100007F:1F90 0000000000000000FFFF00000100007F:0002 01 00000000:00000000 00:00000000 00000000  5  0 6 1 0",
			socket{netip.MustParseAddrPort("127.0.0.1:8080"), netip.MustParseAddrPort("127.0.0.1:2"), 5, 6},
		},
	} {
		got, err := parseLine([]byte(c.line))
		require.NoError(t, err)
		assert.Equal(t, c.want, got)
	}
	for _, line := range []string{
		"", "a b c", "0: x:1 0100007F:1 01 0:0 0:0 0 0 0 0", "0: 0100007F:1 0100007F 01 0:0 0:0 0 0 0 0",
		"0: 0100007F:1 0100007F:10000 01 0:0 0:0 0 0 0 0", "0: 0100007F:1 0100007F:1 01 0:0 0:0 0 -1 0 0",
		"0: 0100007F:1 0100007F:1 01 0:0 0:0 0 1 0 x", "0: 0100007G:1 0100007F:1 01 0:0 0:0 0 1 0 0",
	} {
		_, err := parseLine([]byte(line))
		assert.Error(t, err, line)
	}
}

func TestAListThatCannotBeReadIsAnError(t *testing.T) {
	at := netip.MustParseAddrPort("127.0.0.1:1")
	_, _, err := findInFile(t.TempDir()+"/missing", at, at)
	require.ErrorIs(t, err, os.ErrNotExist)
	broken := t.TempDir() + "/tcp"
	require.NoError(t, os.WriteFile(broken, []byte("sl local\nnonsense\n"), 0o600))
	_, _, err = findInFile(broken, at, at)
	assert.ErrorContains(t, err, "parse "+broken)
}

func FuzzDecodeAnswer(f *testing.F) {
	request := encodeRequest(1, netip.MustParseAddrPort("[::1]:1"), netip.MustParseAddrPort("[::1]:2"), 0)
	f.Add(message(unix.SOCK_DIAG_BY_FAMILY, 1, found(request[:], 1, 1)))
	f.Add(message(unix.NLMSG_ERROR, 1, errnoBody(unix.ENOENT)))
	f.Fuzz(func(t *testing.T, m []byte) {
		s, _, err := decodeAnswer(m)
		if err == nil {
			require.True(t, s.local.IsValid() && s.remote.IsValid())
			require.False(t, s.local.Addr().Is4In6())
		}
	})
}

func FuzzParseLine(f *testing.F) {
	f.Add("   1: 0100007F:1F90 0A00020A:D431 01 00000000:00000000 00:00000000 00000000 61003        0 4711 1 0")
	f.Fuzz(func(t *testing.T, line string) {
		s, err := parseLine([]byte(line))
		if err != nil {
			return
		}
		require.True(t, s.local.IsValid() && s.remote.IsValid())
		again, err := parseLine([]byte(strings.Join(strings.Fields(line), " ")))
		require.NoError(t, err)
		require.Equal(t, s, again)
	})
}

func TestTheListOfSocketsOfThisMachineIsRead(t *testing.T) {
	listener := listen(t, "127.0.0.1:0")
	at := listener.Addr().(*net.TCPAddr).AddrPort()
	none := netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	s, ok, err := findInProc(at, none)
	require.NoError(t, err)
	assert.True(t, ok)
	assert.Positive(t, s.inode)
}
