package peer

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth/slots/need"
)

// dialEnv makes the test binary connect to an address and hold on until its
// input ends.
const dialEnv = "BERTH_TEST_DIAL"

func TestMain(m *testing.M) {
	if address := os.Getenv(dialEnv); address != "" {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		_, _ = os.Stdin.Read(make([]byte, 1))
		_ = conn.Close()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// lookers are the two ways to find an owner.
func lookers(t *testing.T) map[string]*Looker {
	t.Helper()
	l, err := Open()
	need.Facility(t, "netlink", err)
	t.Cleanup(func() { assert.NoError(t, l.Close()) })
	ways := map[string]*Looker{"proc": {}}
	if l.diag != nil {
		ways["sock_diag"] = l
	}
	return ways
}

func openDiagLooker(tb testing.TB) *Looker {
	tb.Helper()
	l, err := Open()
	if err == nil && l.diag == nil {
		err = errors.New("sock_diag does not work here")
	}
	need.Facility(tb, "netlink", err)
	tb.Cleanup(func() { assert.NoError(tb, l.Close()) })
	return l
}

func listen(tb testing.TB, address string) net.Listener {
	tb.Helper()
	listener, err := net.Listen("tcp", address)
	if strings.HasPrefix(address, "[") {
		need.Facility(tb, "ipv6", err)
	}
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = listener.Close() })
	return listener
}

// pair is an accepted connection and its client.
type pair struct {
	accepted, client net.Conn
}

func connect(tb testing.TB, listener net.Listener, dialer net.Dialer, address string) pair {
	tb.Helper()
	client, err := dialer.DialContext(tb.Context(), "tcp", address)
	require.NoError(tb, err)
	accepted, err := listener.Accept()
	require.NoError(tb, err)
	tb.Cleanup(func() {
		_ = client.Close()
		_ = accepted.Close()
	})
	return pair{accepted: accepted, client: client}
}

func (p pair) ends() (local, remote netip.AddrPort) { return ends(p.accepted) }

func ends(accepted net.Conn) (local, remote netip.AddrPort) {
	return accepted.LocalAddr().(*net.TCPAddr).AddrPort(), accepted.RemoteAddr().(*net.TCPAddr).AddrPort()
}

// portOf puts the listener's port behind a host.
func portOf(listener net.Listener, host string) string {
	return netip.AddrPortFrom(netip.MustParseAddr(host), uint16(listener.Addr().(*net.TCPAddr).Port)).String()
}

func TestTheOwnerOfALocalClientIsFound(t *testing.T) {
	for _, c := range []struct{ name, listen, dial, mptcp string }{
		{"IPv4", "127.0.0.1:0", "127.0.0.1", ""},
		{"IPv4 on any address", "0.0.0.0:0", "127.0.0.5", ""},
		{"IPv6", "[::1]:0", "::1", ""},
		{"IPv4 at a listener of both families", "[::]:0", "127.0.0.1", ""},
		{"IPv6 at a listener of both families", "[::]:0", "::1", ""},
		{"IPv4 over MPTCP", "127.0.0.1:0", "127.0.0.1", "yes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			listener := listen(t, c.listen)
			var dialer net.Dialer
			dialer.SetMultipathTCP(c.mptcp != "")
			p := connect(t, listener, dialer, portOf(listener, c.dial))
			local, remote := p.ends()
			here, err := Local(local.Addr(), remote.Addr())
			require.NoError(t, err)
			assert.True(t, here)
			for way, l := range lookers(t) {
				uid, ok, err := l.UID(local, remote)
				require.NoError(t, err, way)
				assert.True(t, ok, way)
				assert.Equal(t, os.Getuid(), uid, way)
			}
		})
	}
}

func TestTheOwnerOfAMappedIPv6ClientIsFound(t *testing.T) {
	listener := listen(t, "127.0.0.1:0")
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	need.Facility(t, "ipv6", err)
	defer func() { _ = unix.Close(fd) }()
	to := unix.SockaddrInet6{Port: listener.Addr().(*net.TCPAddr).Port, Addr: netip.MustParseAddr("::ffff:127.0.0.1").As16()}
	require.NoError(t, unix.Connect(fd, &to))
	accepted, err := listener.Accept()
	require.NoError(t, err)
	defer func() { _ = accepted.Close() }()
	local, remote := ends(accepted)
	mapped := netip.AddrPortFrom(netip.AddrFrom16(remote.Addr().As16()), remote.Port())
	for way, l := range lookers(t) {
		for _, from := range []netip.AddrPort{remote, mapped} {
			uid, ok, err := l.UID(local, from)
			require.NoError(t, err, way)
			assert.True(t, ok, "%s %s", way, from)
			assert.Equal(t, os.Getuid(), uid, way)
		}
	}
}

func TestAClientOfAnotherUIDIsTold(t *testing.T) {
	var err error
	if os.Geteuid() != 0 {
		err = errors.New("only root can become another uid")
	}
	need.Facility(t, "root", err)
	listener := listen(t, "127.0.0.1:0")
	const other = 61234
	// By its link: the folder of the test binary is closed to other uids.
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), dialEnv+"="+listener.Addr().String())
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: other, Gid: other}}
	cmd.Stderr = os.Stderr
	hold, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	accepted, err := listener.Accept()
	require.NoError(t, err)
	defer func() { _ = accepted.Close() }()
	local, remote := ends(accepted)
	for way, l := range lookers(t) {
		uid, ok, err := l.UID(local, remote)
		require.NoError(t, err, way)
		assert.True(t, ok, way)
		assert.Equal(t, other, uid, way)
	}
	require.NoError(t, hold.Close())
	require.NoError(t, cmd.Wait())
}

func TestAClientThatClosedItsSocketHasNoOwner(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, c *net.TCPConn){
		"in order": func(*testing.T, *net.TCPConn) {},
		"by reset": func(t *testing.T, c *net.TCPConn) {
			t.Helper()
			require.NoError(t, c.SetLinger(0))
		},
	} {
		t.Run(name, func(t *testing.T) {
			listener := listen(t, "127.0.0.1:0")
			p := connect(t, listener, net.Dialer{}, listener.Addr().String())
			_, err := p.client.Write([]byte("POST /execute HTTP/1.1\r\n"))
			require.NoError(t, err)
			end(t, p.client.(*net.TCPConn))
			require.NoError(t, p.client.Close())
			local, remote := p.ends()
			for way, l := range lookers(t) {
				_, ok, err := l.UID(local, remote)
				require.NoError(t, err, way)
				assert.False(t, ok, "%s: an orphan is nobody's, least of all root's", way)
			}
			line, err := bufio.NewReader(p.accepted).ReadString('\n')
			require.NoError(t, err, "what it sent is still there to be read")
			assert.NotEmpty(t, line)
		})
	}
}

func TestAClientThatOnlyStoppedSendingHasItsOwner(t *testing.T) {
	listener := listen(t, "127.0.0.1:0")
	p := connect(t, listener, net.Dialer{}, listener.Addr().String())
	require.NoError(t, p.client.(*net.TCPConn).CloseWrite())
	local, remote := p.ends()
	for way, l := range lookers(t) {
		_, ok, err := l.UID(local, remote)
		require.NoError(t, err, way)
		assert.True(t, ok, way)
	}
}

func TestAClientBoundToADeviceIsFound(t *testing.T) {
	listener := listen(t, "127.0.0.1:0")
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var set error
		err := c.Control(func(fd uintptr) { set = unix.BindToDevice(int(fd), "lo") })
		return errors.Join(err, set)
	}}
	p := connect(t, listener, dialer, listener.Addr().String())
	local, remote := p.ends()
	for way, l := range lookers(t) {
		uid, ok, err := l.UID(local, remote)
		require.NoError(t, err, way)
		assert.True(t, ok, way)
		assert.Equal(t, os.Getuid(), uid, way)
	}
}

func TestAListenerIsNotTakenForTheClient(t *testing.T) {
	listener, other := listen(t, "127.0.0.1:0"), listen(t, "127.0.0.1:0")
	local := listener.Addr().(*net.TCPAddr).AddrPort()
	remote := other.Addr().(*net.TCPAddr).AddrPort()
	for way, l := range lookers(t) {
		_, ok, err := l.UID(local, remote)
		require.NoError(t, err, way)
		assert.False(t, ok, way)
	}
}

func TestAClientOfAnotherMachineHasNoOwnerHere(t *testing.T) {
	local := netip.MustParseAddrPort("198.51.100.1:8080")
	for way, l := range lookers(t) {
		for _, remote := range []string{"198.51.100.77:4711", "[2001:db8::7]:4711"} {
			_, ok, err := l.UID(local, netip.MustParseAddrPort(remote))
			require.NoError(t, err, way)
			assert.False(t, ok, way)
		}
	}
}

func TestLocalIsWhatHasAnAddressOfThisMachine(t *testing.T) {
	for _, c := range []struct {
		local, remote string
		want          bool
	}{
		{"127.0.0.1", "127.0.0.1", true},
		{"127.0.0.1", "127.9.9.9", true},
		{"::1", "::1", true},
		{"::ffff:127.0.0.1", "127.0.0.1", true},
		{"127.0.0.1", "198.51.100.7", true}, // only a process here can call loopback
		{"198.51.100.1", "::ffff:127.0.0.1", true},
		{"198.51.100.1", "198.51.100.1", true},
		{"198.51.100.1", "::ffff:198.51.100.1", true},
		{"fe80::1%lo", "fe80::1", true},
		{"198.51.100.1", "198.51.100.2", false},
		{"2001:db8::1", "2001:db8::2", false},
	} {
		got, err := Local(netip.MustParseAddr(c.local), netip.MustParseAddr(c.remote))
		require.NoError(t, err)
		assert.Equal(t, c.want, got, "%s from %s", c.local, c.remote)
	}
	own, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range own {
		addr, _ := netip.AddrFromSlice(a.(*net.IPNet).IP)
		got, err := Local(netip.MustParseAddr("198.51.100.1"), addr)
		require.NoError(t, err)
		assert.True(t, got, "%s is ours", addr)
	}
}

func TestOneLookerServesManyAtOnce(t *testing.T) {
	l := openDiagLooker(t)
	listener := listen(t, "127.0.0.1:0")
	var wg sync.WaitGroup
	for range 8 {
		p := connect(t, listener, net.Dialer{}, listener.Addr().String())
		local, remote := p.ends()
		wg.Go(func() {
			for range 50 {
				uid, ok, err := l.UID(local, remote)
				assert.NoError(t, err) //nolint:testifylint // not in a goroutine
				assert.True(t, ok)
				assert.Equal(t, os.Getuid(), uid)
			}
		})
	}
	wg.Wait()
}

func TestAClosedLookerIsAnError(t *testing.T) {
	l, err := Open()
	need.Facility(t, "netlink", err)
	if l.diag == nil {
		t.Skip("needs netlink: sock_diag does not work here")
	}
	require.NoError(t, l.Close())
	_, _, err = l.UID(netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("127.0.0.1:2"))
	assert.ErrorContains(t, err, "look up owner of 127.0.0.1:2")
}

func BenchmarkUID(b *testing.B) {
	l := openDiagLooker(b)
	listener := listen(b, "127.0.0.1:0")
	p := connect(b, listener, net.Dialer{}, listener.Addr().String())
	local, remote := p.ends()
	for name, looker := range map[string]*Looker{"sock_diag": l, "proc": {}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, ok, err := looker.UID(local, remote); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
	}
	b.Run("missing", func(b *testing.B) {
		for b.Loop() {
			if _, ok, err := l.UID(local, netip.AddrPortFrom(remote.Addr(), 1)); ok || err != nil {
				b.Fatal(ok, err)
			}
		}
	})
}

func BenchmarkLocal(b *testing.B) {
	own := netip.MustParseAddr("198.51.100.1")
	for name, remote := range map[string]string{"loopback": "127.0.0.1", "elsewhere": "198.51.100.7"} {
		b.Run(name, func(b *testing.B) {
			from := netip.MustParseAddr(remote)
			for b.Loop() {
				if _, err := Local(own, from); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
