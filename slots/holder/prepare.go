package holder

import (
	"math"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// SealDescriptors has exec close every descriptor of this process but the
// first three, those too that it was started with and knows nothing of.
func SealDescriptors() {
	if err := unix.CloseRange(socketFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err == nil {
		return
	}
	for fd := socketFD; fd < 1024; fd++ { // before Linux 5.11
		unix.CloseOnExec(fd)
	}
}

// MakeThreads has the runtime make n threads now: where a slot has used up
// the pids, the runtime cannot make one later, and answers that by crashing.
func MakeThreads(n int) {
	var ready, done sync.WaitGroup
	release := make(chan struct{})
	for range n {
		ready.Add(1)
		done.Go(func() {
			runtime.LockOSThread()
			setTimerSlack(usualSlack) // it may have been made by a thread that rests
			ready.Done()
			<-release
			runtime.UnlockOSThread() // the thread goes back to the runtime's idle list
		})
	}
	ready.Wait()
	close(release)
	done.Wait()
}

// Timer slack is by how much the kernel may delay a thread's sleeps to wake
// it less often. The runtime's watching thread sleeps for 20 µs at a time
// while a program works, some twenty times for each command. Its watch is for
// what computes or blocks for long; there it comes later by so much.
const (
	usualSlack  = 50 * time.Microsecond // the kernel's default
	agentSlack  = time.Millisecond
	holderSlack = 20 * time.Millisecond // a slot's calls wait for each other anyway
)

// setTimerSlack sets the calling thread's. Threads and processes that it makes
// begin with the same, and exec keeps it.
func setTimerSlack(d time.Duration) {
	unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(d), 0, 0, 0) //nolint:errcheck // it only costs time where it fails
}

// RestWatcher has the runtime's watching thread rest. That thread is made
// before anything of the program runs, so the program is executed once more,
// with the same arguments, environment and process id. It returns in the
// second run, and in the first where that cannot be.
func RestWatcher() {
	if timerSlack() != agentSlack {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if setTimerSlack(agentSlack); timerSlack() == agentSlack {
			_ = syscall.Exec("/proc/self/exe", os.Args, os.Environ()) // without, it runs as well
		}
	}
	wake()
}

// wake gives the main thread, and what it makes from now on, the usual slack.
// Locking makes a thread, so that comes after.
func wake() {
	setTimerSlack(usualSlack)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	setTimerSlack(usualSlack)
}

func timerSlack() time.Duration {
	slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return 0
	}
	return time.Duration(slack)
}
