package holder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// rootDir is where the new root is put together, relative to the data
// directory, in which the holder starts. Each holder has its own mount there.
const rootDir = "root"

// makeRoot builds the slot's root and moves into it. Sources and targets below
// the data directory are relative to it: its parents need not be searchable
// for the slot's uid, because the clone carried the working directory into the
// new mount namespace.
func makeRoot(p *Plan) error {
	v := p.View
	// What we mount must not travel back, and what the container mounts later
	// must not come in.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", rootDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=1m,nr_inodes=4096"); err != nil {
		return fmt.Errorf("mount root tmpfs: %w", err)
	}
	for _, m := range v.Mounts {
		err := mountOne(m, p.trees)
		if m.Kind == "mask" && errors.Is(err, unix.EACCES) {
			continue // the slot cannot get there either
		}
		if err != nil && !m.Optional {
			return fmt.Errorf("mount %s on %s: %w", m.Kind, m.Target, err)
		}
	}
	for _, l := range v.Symlinks {
		at := filepath.Join(rootDir, l[0])
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(l[1], at); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	if err := mountProc(v.Proc); err != nil {
		return err
	}
	return enterRoot(v.Pivot)
}

// devptsOptions bound how many terminals the slot has: all slots, and whoever
// else is on the machine, draw on one number of them.
const devptsOptions = "newinstance,ptmxmode=0666,mode=620,max=128"

func mountOne(m Mount, trees []int) error {
	target := filepath.Join(rootDir, m.Target)
	if err := makeTarget(target, m); err != nil {
		return err
	}
	switch m.Kind {
	case "bind":
		// Recursive, because a tree that carries mounts of the container is
		// locked together: a plain bind of it is refused.
		if err := unix.Mount(m.Source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
		return harden(target, m)
	case "tree":
		return attachTree(m, target, trees)
	case "overlay":
		return mountOverlay(m, target, trees)
	case "tmpfs":
		return unix.Mount("tmpfs", target, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, m.Options)
	case "devpts":
		return unix.Mount("devpts", target, "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, devptsOptions)
	case "mqueue":
		return unix.Mount("mqueue", target, "mqueue", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	case "mask":
		return mask(target, m)
	}
	return fmt.Errorf("unknown kind %q", m.Kind)
}

// mask hides what a bound tree holds.
func mask(target string, m Mount) error {
	if m.File {
		return unix.Mount("/dev/null", target, "", unix.MS_BIND, "")
	}
	return unix.Mount("tmpfs", target, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_RDONLY, "mode=000,size=4k")
}

func makeTarget(target string, m Mount) error {
	if !m.File {
		return os.MkdirAll(target, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	if _, err := os.Lstat(target); err == nil {
		return nil // a file of a tree mounted before
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// harden takes setuid, devices and, unless writable, writing from a bind and
// everything mounted below it.
func harden(target string, m Mount) error {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID}
	if !m.Device {
		attr.Attr_set |= unix.MOUNT_ATTR_NODEV
	}
	if !m.Writable {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, target, unix.AT_RECURSIVE, &attr); err != nil {
		return fmt.Errorf("set mount attributes: %w", err)
	}
	return nil
}

func mountProc(how string) error {
	target := filepath.Join(rootDir, "proc")
	if err := os.MkdirAll(target, 0o555); err != nil {
		return err
	}
	switch how {
	case "fresh":
		if err := unix.Mount("proc", target, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mount fresh proc: %w", err)
		}
	case "rbind":
		if err := unix.Mount("/proc", target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind proc: %w", err)
		}
		return harden(target, Mount{})
	}
	return nil
}

// enterRoot makes the new root the root and lets go of the old one.
func enterRoot(pivot bool) error {
	if err := os.Chdir(rootDir); err != nil {
		return err
	}
	// The root itself is read-only; the mounts in it decide for themselves.
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, ".", 0, &attr); err != nil {
		return fmt.Errorf("make root read-only: %w", err)
	}
	if pivot {
		// Old and new root stacked on one mount point: no directory is needed
		// to put the old one into, and detaching "." takes it away.
		if err := unix.PivotRoot(".", "."); err != nil {
			return fmt.Errorf("pivot_root: %w", err)
		}
		if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
			return fmt.Errorf("detach old root: %w", err)
		}
		return os.Chdir("/")
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	return os.Chdir("/")
}
