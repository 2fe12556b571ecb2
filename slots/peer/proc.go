package peer

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
)

// procFiles list the sockets of either family; the second is missing where
// there is no IPv6. An IPv6 socket can have IPv4 addresses, mapped.
var procFiles = [2]string{"/proc/self/net/tcp", "/proc/self/net/tcp6"}

// findInProc finds the connected socket with these addresses.
func findInProc(local, remote netip.AddrPort) (socket, bool, error) {
	for _, name := range procFiles {
		s, ok, err := findInFile(name, local, remote)
		if errors.Is(err, fs.ErrNotExist) && name != procFiles[0] {
			continue
		}
		if ok || err != nil {
			return s, ok, err
		}
	}
	return socket{}, false, nil
}

func findInFile(name string, local, remote netip.AddrPort) (socket, bool, error) {
	f, err := os.Open(name)
	if err != nil {
		return socket{}, false, fmt.Errorf("open list of sockets: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Scan() // the names of the columns
	for lines.Scan() {
		s, err := parseLine(lines.Bytes())
		if err != nil {
			return socket{}, false, fmt.Errorf("parse %s: %w", name, err)
		}
		if s.local == local && s.remote == remote {
			return s, true, nil
		}
	}
	if err := lines.Err(); err != nil {
		return socket{}, false, fmt.Errorf("read list of sockets: %w", err)
	}
	return socket{}, false, nil
}

// parseLine reads one line of /proc/net/tcp or tcp6:
//
//	sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode ...
func parseLine(line []byte) (socket, error) {
	fields := bytes.Fields(line)
	if len(fields) < 10 {
		return socket{}, fmt.Errorf("line has %d columns", len(fields))
	}
	local, err := parseAddress(fields[1])
	if err != nil {
		return socket{}, err
	}
	remote, err := parseAddress(fields[2])
	if err != nil {
		return socket{}, err
	}
	uid, err := strconv.ParseUint(string(fields[7]), 10, 32)
	if err != nil {
		return socket{}, fmt.Errorf("uid: %w", err)
	}
	inode, err := strconv.ParseUint(string(fields[9]), 10, 64)
	if err != nil {
		return socket{}, fmt.Errorf("inode: %w", err)
	}
	return socket{local: local, remote: remote, uid: uint32(uid), inode: inode}, nil
}

// parseAddress reads ADDRESS:PORT in hexadecimal. The address is one or four
// words of 32 bits, each printed as a number of the host's byte order.
func parseAddress(text []byte) (netip.AddrPort, error) {
	address, port, ok := bytes.Cut(text, []byte(":"))
	if !ok || len(address) != 8 && len(address) != 32 {
		return netip.AddrPort{}, fmt.Errorf("%.50q is no address", text)
	}
	words, err := hex.AppendDecode(nil, address)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%.50q is no address: %w", text, err)
	}
	number, err := strconv.ParseUint(string(port), 16, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%.50q has no port: %w", text, err)
	}
	for i := 0; i < len(words); i += 4 {
		binary.NativeEndian.PutUint32(words[i:], binary.BigEndian.Uint32(words[i:]))
	}
	a, _ := netip.AddrFromSlice(words) // 4 or 16 bytes are an address
	return netip.AddrPortFrom(plain(a), uint16(number)), nil
}
