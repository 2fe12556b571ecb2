package holder

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ptmx is what makes the terminals of a slot that has a /dev/pts of its own.
const ptmx = "/dev/pts/ptmx"

// Terminal is a pseudo-terminal, before anything runs on it. Both descriptors
// are the caller's.
type Terminal struct {
	Master int // does not block
	Slave  int
}

// NewTerminal makes a terminal in the slot's own /dev/pts, where no other slot
// sees it. A slot without one is a *StageError.
func (h *Holder) NewTerminal(ctx context.Context) (Terminal, error) {
	fds, _, err := h.open(ctx, holdRequest{What: "ptmx"}, unix.S_IFCHR, 1, 1)
	if err != nil {
		return Terminal{}, err
	}
	defer unix.Close(fds[0])
	var st unix.Stat_t
	if err := unix.Fstat(fds[0], &st); err != nil {
		return Terminal{}, fmt.Errorf("stat passed file: %w", err)
	}
	// To open another device may do something, or take for ever.
	if unix.Major(st.Rdev) != ttyAuxMajor || unix.Minor(st.Rdev) != ptmxMinor {
		return Terminal{}, fmt.Errorf("%w: passed device is %d:%d", errFrame, unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}
	// An opening of our own, which the holder does not share, see ownReader.
	return openTerminal("/proc/self/fd/" + strconv.Itoa(fds[0]))
}

const ttyAuxMajor, ptmxMinor = 5, 2

// NewTerminal makes a terminal in the container's own /dev/pts.
func NewTerminal() (Terminal, error) { return openTerminal("/dev/ptmx") }

// openTerminal makes a terminal. Its slave is opened from its master: by its
// path, it might be another one, or be out of sight.
func openTerminal(at string) (Terminal, error) {
	master, err := unix.Open(at, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return Terminal{}, fmt.Errorf("make terminal: %w", &os.PathError{Op: "open", Path: at, Err: err})
	}
	slave, err := openSlave(master)
	if err != nil {
		unix.Close(master)
		return Terminal{}, fmt.Errorf("make terminal: %w", err)
	}
	return Terminal{master, slave}, nil
}

func openSlave(master int) (int, error) {
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return -1, fmt.Errorf("unlock: %w", err)
	}
	opened, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return -1, fmt.Errorf("open slave: %w", errno)
	}
	slave := int(opened)
	modes, err := unix.IoctlGetTermios(slave, unix.TCGETS)
	if err == nil {
		modes.Iflag |= unix.IUTF8 // a backspace takes a whole character
		err = unix.IoctlSetTermios(slave, unix.TCSETS, modes)
	}
	if err == nil {
		err = unix.Fchmod(slave, 0o600) // nobody's but its owner's
	}
	if err != nil {
		unix.Close(slave)
		return -1, fmt.Errorf("set up slave: %w", err)
	}
	return slave, nil
}
