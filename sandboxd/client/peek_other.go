//go:build !unix

package client

import "syscall"

// canPeek is false where a connection cannot be asked without waiting.
const canPeek = false

func stale(syscall.RawConn) bool { return true }
