package peer

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// Local reports whether a connection between these addresses, our own and the
// client's, comes from this machine's network namespace. Loopback and our own
// address cost nothing to tell; all else costs one list of the machine's
// addresses. The error says that there is no such list.
func Local(local, remote netip.Addr) (bool, error) {
	local, remote = plain(local), plain(remote)
	if local.IsLoopback() || remote.IsLoopback() || local == remote {
		return true, nil
	}
	// A machine with several addresses can call itself from another one.
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false, fmt.Errorf("list addresses: %w", err)
	}
	return slices.ContainsFunc(own, func(a net.Addr) bool {
		ip, ok := a.(*net.IPNet)
		if !ok {
			return false
		}
		addr, ok := netip.AddrFromSlice(ip.IP)
		return ok && plain(addr) == remote
	}), nil
}

// plain is the address as it compares: without a zone, and IPv4 as IPv4.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// plainPort is plain for an address with its port.
func plainPort(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(plain(a.Addr()), a.Port()) }
