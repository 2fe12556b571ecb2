package holder

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setCapabilities makes caps the effective, permitted and inheritable sets of
// every thread, and the ambient set, so that they survive exec. Without caps
// all sets end up empty.
func setCapabilities(caps []int) error {
	var sets [2]unix.CapUserData
	for _, c := range caps {
		bit := uint32(1) << (c % 32)
		sets[c/32].Effective |= bit
		sets[c/32].Permitted |= bit
		sets[c/32].Inheritable |= bit
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&sets[0])), 0)
	if errno != 0 {
		return fmt.Errorf("capset: %w", errno)
	}
	for _, c := range caps {
		_, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0, 0)
		if errno != 0 {
			return fmt.Errorf("raise ambient capability %d: %w", c, errno)
		}
	}
	return nil
}
