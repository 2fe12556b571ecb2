package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// The messages of sock_diag, from linux/inet_diag.h. Numbers are in host
// order, ports and addresses in network order:
//
//	request  nlmsghdr 16 | family u8, protocol u8, ext u8, pad u8, states u32, id 48
//	answer   nlmsghdr 16 | family u8, state u8, timer u8, retrans u8, id 48,
//	                       expires u32, rqueue u32, wqueue u32, uid u32, inode u32
//	id       sport u16, dport u16, src [16], dst [16], device u32, cookie u64
const (
	sizeHeader  = unix.SizeofNlMsghdr
	sizeID      = 48
	sizeRequest = sizeHeader + 8 + sizeID
	sizeAnswer  = 4 + sizeID + 20 // without its header
)

const (
	answerTimeout = time.Second
	anyState      = ^uint32(0)
	noCookie      = ^uint64(0)
)

// errNotFound says that there is no such socket, or that the kernel cannot
// look for one.
var errNotFound = errors.New("no such socket")

// diag is a netlink socket for sock_diag.
type diag struct {
	fd     int
	seq    uint32
	answer [4096]byte
}

func openDiag() (*diag, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("open sock_diag: %w", err)
	}
	d := &diag{fd: fd}
	timeout := unix.NsecToTimeval(answerTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return nil, errors.Join(fmt.Errorf("set timeout of sock_diag: %w", err), d.close())
	}
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, errors.Join(fmt.Errorf("connect sock_diag: %w", err), d.close())
	}
	return d, nil
}

func (d *diag) close() error { return unix.Close(d.fd) }

// findOnAnyDevice finds the connected socket with these addresses.
func (d *diag) findOnAnyDevice(local, remote netip.AddrPort) (socket, bool, error) {
	s, ok, err := d.find(local, remote, 0)
	if ok || err != nil {
		return s, ok, err
	}
	devices, err := net.Interfaces()
	if err != nil {
		return socket{}, false, fmt.Errorf("list devices: %w", err)
	}
	for _, device := range devices {
		if s, ok, err := d.find(local, remote, device.Index); ok || err != nil {
			return s, ok, err
		}
	}
	return socket{}, false, nil
}

// find finds the connected socket that is bound to the device, or to none.
func (d *diag) find(local, remote netip.AddrPort, device int) (socket, bool, error) {
	s, err := d.ask(local, remote, device)
	if errors.Is(err, errNotFound) {
		return socket{}, false, nil
	}
	if err != nil {
		return socket{}, false, err
	}
	// Where nothing is connected the kernel answers with who would accept it.
	return s, s.local == local && s.remote == remote, nil
}

// ask sends one request and returns its answer.
func (d *diag) ask(local, remote netip.AddrPort, device int) (socket, error) {
	d.seq++
	request := encodeRequest(d.seq, local, remote, device)
	if err := retry(func() error { return unix.Send(d.fd, request[:], 0) }); err != nil {
		return socket{}, fmt.Errorf("send to sock_diag: %w", err)
	}
	for {
		var n int
		var sender unix.Sockaddr
		err := retry(func() (err error) {
			n, sender, err = unix.Recvfrom(d.fd, d.answer[:], 0)
			return err
		})
		if err != nil {
			return socket{}, fmt.Errorf("receive from sock_diag: %w", err)
		}
		if kernel, ok := sender.(*unix.SockaddrNetlink); !ok || kernel.Pid != 0 {
			continue
		}
		// What has another number answers a request that was given up.
		if s, seq, err := decodeAnswer(d.answer[:n]); seq == d.seq {
			return s, err
		}
	}
}

// retry calls until no signal comes in between.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func encodeRequest(seq uint32, local, remote netip.AddrPort, device int) [sizeRequest]byte {
	var m [sizeRequest]byte
	host, wire := binary.NativeEndian, binary.BigEndian
	host.PutUint32(m[0:], sizeRequest)
	host.PutUint16(m[4:], unix.SOCK_DIAG_BY_FAMILY)
	host.PutUint16(m[6:], unix.NLM_F_REQUEST)
	host.PutUint32(m[8:], seq)
	// An IPv4 request finds IPv6 sockets with mapped addresses as well.
	m[16] = unix.AF_INET
	if local.Addr().Is6() {
		m[16] = unix.AF_INET6
	}
	m[17] = unix.IPPROTO_TCP
	host.PutUint32(m[20:], anyState)
	id := m[24:]
	wire.PutUint16(id[0:], local.Port())
	wire.PutUint16(id[2:], remote.Port())
	copy(id[4:20], local.Addr().AsSlice())
	copy(id[20:36], remote.Addr().AsSlice())
	host.PutUint32(id[36:], uint32(device)) //nolint:gosec // an interface's number
	host.PutUint64(id[40:], noCookie)
	return m
}

// decodeAnswer reads one message. seq is 0 when it holds none.
func decodeAnswer(m []byte) (s socket, seq uint32, err error) {
	host := binary.NativeEndian
	if len(m) < sizeHeader {
		return socket{}, 0, fmt.Errorf("decode answer of sock_diag: %d bytes are no message", len(m))
	}
	length, kind := host.Uint32(m[0:]), host.Uint16(m[4:])
	seq = host.Uint32(m[8:])
	if length < sizeHeader || uint64(length) > uint64(len(m)) {
		return socket{}, seq, fmt.Errorf("decode answer of sock_diag: message of %d bytes in %d", length, len(m))
	}
	body := m[sizeHeader:length]
	switch {
	case kind == unix.NLMSG_ERROR && len(body) >= 4:
		errno := unix.Errno(-int32(host.Uint32(body))) //nolint:gosec // the kernel's way to write an errno
		if errno == unix.ENOENT {
			return socket{}, seq, errNotFound
		}
		return socket{}, seq, fmt.Errorf("ask sock_diag: %w", errno)
	case kind == unix.SOCK_DIAG_BY_FAMILY && len(body) >= sizeAnswer:
		s, err = decodeSocket(body)
		return s, seq, err
	}
	return socket{}, seq, fmt.Errorf("decode answer of sock_diag: message %d of %d bytes", kind, length)
}

func decodeSocket(body []byte) (socket, error) {
	host, id := binary.NativeEndian, body[4:]
	size := 4
	switch body[0] {
	case unix.AF_INET:
	case unix.AF_INET6:
		size = 16
	default:
		return socket{}, fmt.Errorf("decode answer of sock_diag: address family %d", body[0])
	}
	at := func(address, port []byte) netip.AddrPort {
		a, _ := netip.AddrFromSlice(address[:size]) // 4 or 16 bytes are an address
		return netip.AddrPortFrom(plain(a), binary.BigEndian.Uint16(port))
	}
	return socket{
		local: at(id[4:], id[0:]), remote: at(id[20:], id[2:]),
		uid: host.Uint32(body[64:]), inode: uint64(host.Uint32(body[68:])),
	}, nil
}
