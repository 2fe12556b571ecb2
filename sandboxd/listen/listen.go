// Package listen opens the ports of the project's servers, so that slots in the
// machine's network do not stand in for them under another name of the machine.
package listen

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
)

// TCP listens on a TCP address, and holds its port in the other family of
// addresses: clients that look for "localhost" try ::1 first, and whoever is
// on this machine could answer there for a server on 127.0.0.1. What is held
// refuses connections. Where somebody has that port already, or there is no
// such family, nothing is held.
func TCP(ctx context.Context, address string) (net.Listener, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	at, ok := ln.Addr().(*net.TCPAddr)
	if !ok || at.IP.IsUnspecified() {
		return ln, nil
	}
	if held, err := hold(at); err == nil {
		return &holding{ln, held}, nil
	}
	return ln, nil
}

// holding is a listener with a socket that is bound and does not listen.
type holding struct {
	net.Listener
	held *os.File
}

func (h *holding) Close() error { return errors.Join(h.Listener.Close(), h.held.Close()) }

// hold binds the port of an address in all of the other family.
func hold(at *net.TCPAddr) (*os.File, error) {
	family, all := syscall.AF_INET, syscall.Sockaddr(&syscall.SockaddrInet4{Port: at.Port})
	if at.IP.To4() != nil {
		family, all = syscall.AF_INET6, &syscall.SockaddrInet6{Port: at.Port}
	}
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	held := os.NewFile(uintptr(fd), "held port")
	if family == syscall.AF_INET6 {
		err = syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, 1)
	}
	if err == nil {
		err = syscall.Bind(fd, all)
	}
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("bind", err), held.Close())
	}
	return held, nil
}
