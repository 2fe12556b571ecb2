package main

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// machineCalls are of this architecture only.
var machineCalls = map[string]uintptr{
	"iopl": unix.SYS_IOPL, "ioperm": unix.SYS_IOPERM, "modify_ldt": unix.SYS_MODIFY_LDT, "uselib": unix.SYS_USELIB,
}

// int80 makes a call by the 32-bit gate.
func int80(nr uintptr) uintptr

// foreign tries the other ways into the kernel that this machine has, whose
// numbers mean something else than the filter's.
func foreign(*targets) error {
	var a attempts
	a.try("int 0x80", runChild("foreign:int80"))
	a.try("x32", runChild("foreign:x32"))
	return a.result()
}

func foreignCall(which string) error {
	if which == "int80" {
		const getpid32 = 20
		if pid := int80(getpid32); int64(pid) > 0 {
			return nil
		}
		return errors.New("no 32-bit calls")
	}
	const x32 = 0x40000000
	for _, nr := range []uintptr{unix.SYS_GETPID, unix.SYS_MOUNT, unix.SYS_PTRACE} {
		_, _, errno := unix.RawSyscall(nr|x32, 0, 0, 0)
		if errno == 0 || errno != unix.EPERM && errno != unix.ENOSYS {
			return nil
		}
	}
	return fmt.Errorf("x32: %w", unix.EPERM)
}
