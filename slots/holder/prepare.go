package holder

import (
	"math"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"berth/slots/timerslack"
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
			timerslack.Set(timerslack.Usual) // it may have been made by a thread that rests
			ready.Done()
			<-release
			runtime.UnlockOSThread() // the thread goes back to the runtime's idle list
		})
	}
	ready.Wait()
	close(release)
	done.Wait()
}
