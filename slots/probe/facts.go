package probe

import (
	"fmt"
	"os"
	"runtime"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"berth/slots/seccomp"
)

// Facts are what can be learnt of this process and kernel without making a
// slot. Everything else is tried.
type Facts struct {
	UID         int    `json:"uid"`
	PID1        bool   `json:"pid1"`
	Arch        string `json:"arch"`
	Kernel      string `json:"kernel"`
	Caps        uint64 `json:"capabilities"` // effective
	LandlockABI int    `json:"landlock_abi"` // 0: not usable
	LandlockErr string `json:"landlock_error,omitempty"`
	SeccompErr  string `json:"seccomp_error,omitempty"` // "" when filters work
}

// Take collects the facts.
func Take() Facts {
	f := Facts{UID: os.Geteuid(), PID1: os.Getpid() == 1, Arch: runtime.GOARCH}
	var name unix.Utsname
	if err := unix.Uname(&name); err == nil {
		f.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	f.Caps = effective()
	abi, err := ll.LandlockGetABIVersion()
	if err != nil {
		f.LandlockErr = fmt.Sprintf("landlock_create_ruleset: %v", err)
	} else {
		f.LandlockABI = abi
	}
	if err := seccomp.Probe(); err != nil {
		f.SeccompErr = err.Error()
	}
	return f
}

// Can reports whether the capability is in force.
func (f Facts) Can(c int) bool { return f.Caps&(1<<c) != 0 }

// CanSwitch reports whether slots can get uids of their own.
func (f Facts) CanSwitch() bool {
	return f.Can(unix.CAP_SETUID) && f.Can(unix.CAP_SETGID) && f.Can(unix.CAP_CHOWN)
}

func effective() uint64 {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return 0
	}
	return uint64(sets[0].Effective) | uint64(sets[1].Effective)<<32
}
