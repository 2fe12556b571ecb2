package probe

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// way is one manner to get to a TCP port. What keeps a slot from a port may
// know some of them only.
type way struct {
	name     string
	mapped   bool // by an IPv6 socket, to the address as IPv6 writes it
	protocol int
	send     func(fd int, request []byte, to unix.Sockaddr) error // connects as well
}

const request = "GET /livez HTTP/1.0\r\n\r\n"

var ways = []way{
	{name: "connect", send: connectAndSend},
	{name: "connect over IPv6", mapped: true, send: connectAndSend},
	{name: "connect by MPTCP", protocol: unix.IPPROTO_MPTCP, send: connectAndSend},
	{name: "connect late", send: func(fd int, request []byte, to unix.Sockaddr) error {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1); err != nil {
			return err
		}
		return connectAndSend(fd, request, to)
	}},
	{name: "connect under another protocol", send: func(fd int, request []byte, to unix.Sockaddr) error {
		if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_ULP, "smc"); err != nil {
			return err
		}
		return connectAndSend(fd, request, to)
	}},
	{name: "sendto", send: func(fd int, request []byte, to unix.Sockaddr) error {
		return unix.Sendto(fd, request, unix.MSG_FASTOPEN, to)
	}},
	{name: "sendto over IPv6", mapped: true, send: func(fd int, request []byte, to unix.Sockaddr) error {
		return unix.Sendto(fd, request, unix.MSG_FASTOPEN, to)
	}},
	{name: "sendmsg", send: func(fd int, request []byte, to unix.Sockaddr) error {
		return unix.Sendmsg(fd, request, nil, to, unix.MSG_FASTOPEN)
	}},
	{name: "sendmmsg", send: sendMany},
}

// talk tries to reach a TCP port in every way that is known, and waits for an
// answer. The error is that of the plain way, if that one failed with all others.
func talk(address string) error {
	if address == "" {
		return errSafe
	}
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %w", errSafe, err)
	}
	var plain error
	for _, w := range ways {
		err := w.talk(to)
		if err == nil {
			return nil
		}
		if plain == nil {
			plain = err
		}
	}
	return plain
}

// talk reports nil when there was a conversation. A connection that is ended
// before a byte is none; one that stays open is, whenever the answer comes: the
// agent may not serve yet.
func (w way) talk(to netip.AddrPort) error {
	family, address := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
	if w.mapped {
		family, address = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, w.protocol)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	second := unix.Timeval{Sec: 1}
	for _, option := range []int{unix.SO_SNDTIMEO, unix.SO_RCVTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &second); err != nil {
			return err
		}
	}
	if err := w.send(fd, []byte(request), address); err != nil {
		return err
	}
	if n, err := unix.Read(fd, make([]byte, 1)); n == 0 || err != nil && !errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("no answer: %w", errors.Join(errSafe, err))
	}
	return nil
}

func connectAndSend(fd int, request []byte, to unix.Sockaddr) error {
	if err := unix.Connect(fd, to); err != nil {
		return err
	}
	return unix.Sendto(fd, request, unix.MSG_NOSIGNAL, nil)
}

// sendMany is sendmmsg with one message, to an IPv4 address.
func sendMany(fd int, request []byte, to unix.Sockaddr) error {
	in, ok := to.(*unix.SockaddrInet4)
	if !ok {
		return errSafe
	}
	name := unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: in.Addr}
	port := (*[2]byte)(unsafe.Pointer(&name.Port))
	port[0], port[1] = byte(in.Port>>8), byte(in.Port)
	text := unix.Iovec{Base: &request[0]}
	text.SetLen(len(request))
	message := struct {
		unix.Msghdr
		sent uint32
	}{}
	message.Name, message.Namelen, message.Iov = (*byte)(unsafe.Pointer(&name)), unix.SizeofSockaddrInet4, &text
	message.SetIovlen(1)
	_, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&message)), 1, unix.MSG_FASTOPEN, 0, 0)
	runtime.KeepAlive(&message)
	if errno != 0 {
		return errno
	}
	return nil
}
