package cgroup

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// PlaceDelegate sets on attr what the process that calls MountDelegated must
// be started with: CLONE_NEWUSER, CLONE_NEWNS and CLONE_NEWCGROUP, uid 0 and
// gid 0 mapped to themselves, setgroups denied. The agent must be uid 0, since
// the cgroup's files belong to it, and must still be in the cgroup that the
// view shall begin at: the namespace takes the cgroup of the process that
// makes it as its root.
func PlaceDelegate(attr *syscall.SysProcAttr) {
	attr.Cloneflags |= unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
	attr.GidMappingsEnableSetgroups = false
}

// MountDelegated mounts cgroup v2 in a process that was started as
// PlaceDelegate says, and returns the directory of the cgroup that process is
// in. A container's own mount is read-only; this one is not. The directory is
// good for as long as it is open, in whichever process: send it over a socket
// and end. Nothing outside the new mount namespace changes.
func MountDelegated() (*os.File, error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("make mounts private: %w", err)
	}
	var errs []error
	for _, dir := range []string{"/sys/fs/cgroup", "/mnt", "/tmp", "/run"} {
		err := unix.Mount("cgroup2", dir, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
		if err != nil {
			errs = append(errs, fmt.Errorf("mount cgroup2 at %s: %w", dir, err))
			continue
		}
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open mounted cgroup2: %w", err)
		}
		return os.NewFile(uintptr(fd), "cgroup2"), nil
	}
	return nil, errors.Join(errs...)
}
