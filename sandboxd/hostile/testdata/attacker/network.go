package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var networkProbes = map[string]probe{
	// Any answer at all.
	"A12.reach": func(t *targets) error {
		var a attempts
		for _, to := range ways(t) {
			a.try(to.String(), reach(to, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1."))
		}
		return a.result()
	},
	// An answer other than 401 to guessed tokens.
	"A12.guess": func(t *targets) error {
		var a attempts
		for _, to := range ways(t) {
			for _, header := range []string{
				"", "Authorization: Bearer guess\r\n", "Authorization: Bearer " + t.Token[:len(t.Token)-1] + "\r\n", "Authorization: Bearer \r\n",
				"Authorization: Basic " + t.Token + "\r\n", "Authorization: bearer\r\n", "Authorization: Bearer " + t.Token + "x\r\n",
				"Authorization: Bearer\x00" + t.Token + "\r\n",
			} {
				err := reach(to, "GET /slots HTTP/1.1\r\nHost: x\r\n"+header+"\r\n", " 200 ")
				a.try(to.String()+" "+header, err)
			}
			a.try(to.String()+" query", reach(to, "GET /slots?token="+t.Token+"&access_token="+t.Token+" HTTP/1.1\r\nHost: x\r\n\r\n", " 200 "))
		}
		return a.result()
	},
	// The true token, from a socket that is gone before anybody can look whose it was.
	"A12.race": func(t *targets) error {
		for _, to := range ways(t) {
			for n := range 40 {
				hit(to, t, n)
			}
		}
		return errors.New("sent; the neighbour's files tell")
	},
	// Something else that listens where clients expect the agent.
	"A12.hijack": func(t *targets) error { return serveOn(t, "127.0.0.1", "0.0.0.0", "::1", "::") },
	// The same at an address where the agent is not.
	"A12.beside": func(t *targets) error { return serveOn(t, "127.0.0.2") },
	"A17.crowd": crowd,
	"E08.addresses": func(t *targets) error {
		var a attempts
		var mu sync.Mutex
		var all sync.WaitGroup
		for _, address := range t.Addresses {
			all.Go(func() {
				c, err := net.DialTimeout("tcp", address, 300*time.Millisecond)
				if err == nil {
					c.Close()
				}
				mu.Lock()
				defer mu.Unlock()
				a.try(address, err)
			})
		}
		all.Wait()
		c, err := net.Dial("udp", "192.0.2.1:53")
		if err == nil {
			_, err = c.Write([]byte("x"))
			c.Close()
		}
		a.try("udp", err)
		_, err = net.DefaultResolver.LookupHost(context.Background(), "metadata.google.internal")
		a.try("dns", err)
		return a.result()
	},
	// Open when a server in the slot can be reached from within: that must work.
	"E08.loopback": func(*targets) error {
		for _, host := range []string{"127.0.0.1", "127.0.0.7"} {
			ln, err := net.Listen("tcp4", host+":0")
			if err != nil {
				return err
			}
			defer ln.Close()
			go func() {
				if c, err := ln.Accept(); err == nil {
					c.Write([]byte("hello"))
					c.Close()
				}
			}()
			c, err := net.DialTimeout("tcp", ln.Addr().String(), time.Second)
			if err != nil {
				return err
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(time.Second))
			if n, err := c.Read(make([]byte, 8)); n != 5 {
				return fmt.Errorf("read %d bytes: %w", n, err)
			}
		}
		return nil
	},
	"E08.interfaces": func(*targets) error {
		all, err := net.Interfaces()
		if err != nil {
			return err
		}
		var names []string
		for _, i := range all {
			addresses, _ := i.Addrs()
			if i.Flags&net.FlagLoopback == 0 && len(addresses) > 0 {
				names = append(names, i.Name)
			}
		}
		if len(names) > 0 {
			return succeeded(strings.Join(names, " "))
		}
		return errNothing
	},
	// What a command without network must not have.
	"offline.sockets": func(t *targets) error {
		var a attempts
		for _, family := range []int{unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK, unix.AF_PACKET, unix.AF_VSOCK} {
			for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_SEQPACKET} {
				fd, err := unix.Socket(family, kind, 0)
				if err == nil {
					unix.Close(fd)
				}
				a.try(fmt.Sprintf("family %d kind %d", family, kind), err)
			}
		}
		for _, address := range t.Addresses {
			c, err := net.DialTimeout("tcp", address, 300*time.Millisecond)
			if err == nil {
				c.Close()
			}
			a.try(address, err)
		}
		return a.result()
	},
	"offline.addresses": func(t *targets) error {
		var a attempts
		for _, address := range t.Addresses {
			c, err := net.DialTimeout("tcp", address, 300*time.Millisecond)
			if err == nil {
				c.Close()
			}
			a.try(address, err)
		}
		return a.result()
	},
}

// way is one manner to get to the agent's port.
type way struct {
	family   int
	protocol int
	address  netip.AddrPort
	source   string // bound before
	device   string
	flags    int // of a send that connects; 0: connect does
}

func (w way) String() string {
	return fmt.Sprintf("%s family %d protocol %d from %q on %q, flags %#x", w.address, w.family, w.protocol, w.source, w.device, w.flags)
}

const mptcp = 262

func ways(t *targets) []way {
	port := uint16(t.AgentPort)
	var all []way
	add := func(address string, family int) {
		for _, protocol := range []int{0, mptcp} {
			for _, flags := range []int{0, unix.MSG_FASTOPEN} {
				all = append(all, way{family: family, protocol: protocol, address: netip.AddrPortFrom(netip.MustParseAddr(address), port), flags: flags})
			}
		}
	}
	for _, a := range []string{"127.0.0.1", "127.0.0.9", "0.0.0.0"} {
		add(a, unix.AF_INET)
		add("::ffff:"+a, unix.AF_INET6)
	}
	add("::1", unix.AF_INET6)
	add("::", unix.AF_INET6)
	own, _ := net.InterfaceAddrs()
	for _, o := range own {
		prefix, err := netip.ParsePrefix(o.String())
		if err != nil || prefix.Addr().IsLoopback() || prefix.Addr().IsLinkLocalUnicast() {
			continue
		}
		if prefix.Addr().Is4() {
			add(prefix.Addr().String(), unix.AF_INET)
			add("::ffff:"+prefix.Addr().String(), unix.AF_INET6)
		} else {
			add(prefix.Addr().String(), unix.AF_INET6)
		}
	}
	loop := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
	all = append(all, way{family: unix.AF_INET, address: loop, source: "127.0.0.77"}, way{family: unix.AF_INET, address: loop, device: "lo"})
	return all
}

// dial connects, and has sent the text when there is no error.
func (w way) dial(text string) (int, error) {
	fd, err := unix.Socket(w.family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, w.protocol)
	if err != nil {
		return -1, err
	}
	wait := unix.Timeval{Usec: 300_000}
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait)
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait)
	if w.device != "" {
		unix.BindToDevice(fd, w.device)
	}
	if w.source != "" {
		unix.Bind(fd, &unix.SockaddrInet4{Addr: netip.MustParseAddr(w.source).As4()})
	}
	var to unix.Sockaddr = &unix.SockaddrInet6{Port: int(w.address.Port()), Addr: w.address.Addr().As16()}
	if w.family == unix.AF_INET {
		to = &unix.SockaddrInet4{Port: int(w.address.Port()), Addr: w.address.Addr().As4()}
	}
	if w.flags == 0 {
		if err = unix.Connect(fd, to); err == nil && text != "" {
			_, err = unix.SendmsgN(fd, []byte(text), nil, nil, unix.MSG_NOSIGNAL)
		}
	} else if _, err = unix.SendmsgN(fd, []byte(text), nil, to, unix.MSG_NOSIGNAL|w.flags); err != nil {
		err = unix.Sendto(fd, []byte(text), unix.MSG_NOSIGNAL|w.flags, to)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// reach sends a request and looks for a text in the answer.
func reach(w way, request, want string) error {
	fd, err := w.dial(request)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	b := make([]byte, 512)
	n, err := unix.Read(fd, b)
	if n > 0 && strings.Contains(string(b[:n]), want) {
		return nil
	}
	if n > 0 {
		return fmt.Errorf("%w: %.20q", errNothing, b[:n])
	}
	return errors.Join(errors.New("no answer"), err)
}

// hit sends a whole call and is gone.
func hit(w way, t *targets, n int) {
	body := fmt.Sprintf(`{"slot_id":"slot_1","tool":"bash","args":{"command":"echo %d >> %s"}}`, n, t.Marker)
	request := fmt.Sprintf("POST /execute HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", t.Token, len(body), body)
	fd, err := w.dial(request)
	if err != nil {
		return
	}
	switch n % 4 {
	case 1:
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	case 2:
		unix.Shutdown(fd, unix.SHUT_WR)
	case 3:
		unix.Shutdown(fd, unix.SHUT_RDWR)
	}
	unix.Close(fd)
}

// serveOn listens on the agent's port.
func serveOn(t *targets, hosts ...string) error {
	var a attempts
	for _, host := range hosts {
		network := "tcp4"
		if strings.Contains(host, ":") {
			network = "tcp6"
		}
		lc := net.ListenConfig{Control: reuse}
		ln, err := lc.Listen(context.Background(), network, net.JoinHostPort(host, strconv.Itoa(t.AgentPort)))
		if err == nil {
			ln.Close()
		}
		a.try(host, err)
	}
	return a.result()
}

func reuse(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
}

// crowd holds as many connections as it gets, half of them slowly speaking.
func crowd(t *targets) error {
	var fds []int
	to := ways(t)[0]
	for range 1000 {
		fd, err := to.dial("")
		if err != nil {
			break
		}
		fds = append(fds, fd)
	}
	for tick := range 20 {
		for i, fd := range fds {
			if i%2 == 0 {
				unix.SendmsgN(fd, []byte("GET / HTTP/1.1\r\nX: "[tick%18:tick%18+1]), nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	fmt.Fprintln(os.Stderr, len(fds), "connections")
	return fmt.Errorf("held %d", len(fds))
}
