// Package timerslack has the Go runtime of a server wake its processor less.
//
// Timer slack is by how much the kernel may delay a thread's sleeps to wake it
// less often. The runtime's watching thread sleeps for 20 µs at a time while a
// program works, some twenty times for each command that a server passes on.
// Its watch is for what computes or blocks for long; where it rests, it comes
// later by so much.
package timerslack

import (
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Usual is the kernel's default.
	Usual = 50 * time.Microsecond
	// Server is that of a server's watching thread.
	Server = time.Millisecond
)

// Set sets that of the calling thread. Threads and processes that it makes
// begin with the same, and exec keeps it. Where it fails, it only costs time.
func Set(d time.Duration) {
	unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(d), 0, 0, 0) //nolint:errcheck // see above
}

// RestWatcher has the runtime's watching thread rest as that of a Server does.
// That thread and a few idle ones are made before anything of the program runs,
// so the program is executed once more, with the same arguments, environment and process id. It
// returns in the second run, and in the first where that cannot be.
func RestWatcher() {
	if current() != Server {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if Set(Server); current() == Server {
			_ = syscall.Exec("/proc/self/exe", os.Args, os.Environ()) // without, it runs as well
		}
	}
	Wake()
}

// Wake gives the main thread, and what it makes from now on, the usual slack.
// It is called before the program has made threads of its own.
func Wake() {
	Set(Usual)
	runtime.LockOSThread() // which makes a thread
	defer runtime.UnlockOSThread()
	Set(Usual)
}

// current is that of the calling thread; 0: unknown.
func current() time.Duration {
	slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return 0
	}
	return time.Duration(slack)
}
