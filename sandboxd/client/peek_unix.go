//go:build unix

package client

import (
	"errors"
	"syscall"
)

// canPeek says that stale can tell.
const canPeek = true

// stale reports whether an idle connection has been closed by the container,
// or was sent something that no request asked for. It does not wait.
func stale(raw syscall.RawConn) bool {
	if raw == nil {
		return true
	}
	silent := false
	err := raw.Read(func(fd uintptr) bool {
		var p [1]byte
		_, err := syscall.Read(int(fd), p[:])
		silent = errors.Is(err, syscall.EAGAIN)
		return true
	})
	return err != nil || !silent
}
