package seccomp

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// flagSets are tried in order. All threads get the filter at once (TSYNC).
// SPEC_ALLOW keeps kernels before 5.16 from switching the speculative store bypass
// off for filtered processes: that costs every program time, and guards only
// a process against its own code. Kernels that do not know it say EINVAL.
var flagSets = []uintptr{
	unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW,
	unix.SECCOMP_FILTER_FLAG_TSYNC,
}

// Install sets no_new_privs and puts the whole process, with every thread that it
// has and every child that it will have, under the program. There is no way back.
// It fails when the kernel refuses, or when a thread is under another filter that
// this thread is not under; then no thread has the new one.
func Install(program Program) error {
	if len(program) == 0 || len(program) > MaxInstructions {
		return fmt.Errorf("install filter: %d instructions", len(program))
	}
	// no_new_privs belongs to the thread; with TSYNC the kernel spreads it from
	// the calling thread, so both calls must come from the same one.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	tid, errno := setFilter(&fprog)
	switch {
	case errno != 0:
		return fmt.Errorf("install filter: %w", errno)
	case tid != 0:
		return fmt.Errorf("install filter: thread %d is under another filter", tid)
	}
	return nil
}

// Probe reports why Install would fail, without installing anything.
func Probe() error {
	if _, err := HostArch(); err != nil {
		return err
	}
	action := uint32(unix.SECCOMP_RET_KILL_PROCESS)
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action))); errno != 0 {
		return fmt.Errorf("probe seccomp: kill a process: %w", errno)
	}
	// A kernel that accepts the mode and the flags looks for the program next.
	_, errno := setFilter(nil)
	if errno == 0 {
		return errors.New("probe seccomp: a missing program was accepted")
	}
	if errno != unix.EFAULT {
		return fmt.Errorf("probe seccomp: set a filter: %w", errno)
	}
	return nil
}

// setFilter returns the thread that could not be brought under the filter, if any.
func setFilter(fprog *unix.SockFprog) (tid uintptr, errno unix.Errno) {
	for _, flags := range flagSets {
		tid, _, errno = unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(fprog)))
		if errno != unix.EINVAL {
			break
		}
	}
	return tid, errno
}
