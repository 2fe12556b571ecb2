package holder

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// setCapabilities makes caps the effective, permitted and inheritable sets of
// the calling thread, and the ambient set, so that they survive exec. Without caps
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
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	for _, c := range caps {
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0); err != nil {
			return fmt.Errorf("raise ambient capability %d: %w", c, err)
		}
	}
	return nil
}
