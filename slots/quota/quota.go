package quota

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Limits are of one project. Zero means none.
type Limits struct {
	Bytes int64 // rounded up to whole KiB
	Files int64 // inodes: files, directories, links and the rest
}

// Usage is what a project holds.
type Usage struct {
	Bytes, Files int64
}

// System is one file system whose projects can be limited.
type System struct{ dir *os.File }

// Open takes hold of the file system that dir, a directory, lies on, and proves
// on a directory made and removed there that a limit holds. The error is an
// *UnavailableError when it does not.
func Open(dir string) (*System, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open project quota: %w", err)
	}
	s := &System{dir: f}
	if err := s.prove(dir); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return s, nil
}

// Close lets go of the file system. Limits stay.
func (s *System) Close() error { return s.dir.Close() }

// UnavailableError says why no project can be limited, and what would help.
type UnavailableError struct {
	Step string
	Err  error
	Mend string // one sentence; "" when nothing is known
}

// Error names the step and the cause.
func (e *UnavailableError) Error() string { return "project quota: " + e.Step + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *UnavailableError) Unwrap() error { return e.Err }

var errNotEnforced = errors.New("a write beyond the limit succeeded")

func unavailable(step string, err error) error {
	e := &UnavailableError{Step: step, Err: err}
	switch {
	case errors.Is(err, unix.ENOSYS):
		e.Mend = "a data directory on ext4 (mkfs -O project,quota) or XFS, mounted with prjquota, Linux 5.14, and a seccomp profile that lets quotactl_fd through"
	case errors.Is(err, unix.EPERM):
		e.Mend = "run the agent with CAP_SYS_ADMIN"
	case errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EOPNOTSUPP):
		e.Mend = "put the data directory on ext4 with project ids (tune2fs -O project,quota), or on XFS"
	case errors.Is(err, unix.ESRCH), errors.Is(err, errNotEnforced):
		e.Mend = "mount the data directory's file system with prjquota"
	}
	return e
}

// Claim puts dir, an empty directory, under a project id that nothing on the
// file system uses, with these limits.
func (s *System) Claim(dir string, l Limits) (id uint32, err error) {
	const tries = 16
	for range tries {
		var b [4]byte
		_, _ = rand.Read(b[:]) // never fails
		// Low ids are what people write into /etc/projects.
		id = 1<<30 | binary.LittleEndian.Uint32(b[:])>>2
		have, err := s.get(id)
		if err != nil {
			return 0, fmt.Errorf("claim project: %w", err)
		}
		if have.inUse() {
			continue
		}
		return id, s.Adopt(dir, id, l)
	}
	return 0, fmt.Errorf("claim project: %d ids are all in use", tries)
}

// Adopt puts dir under an id that is known already, with these limits.
func (s *System) Adopt(dir string, id uint32, l Limits) error {
	if err := s.set(id, l); err != nil {
		return fmt.Errorf("limit project %d: %w", id, err)
	}
	if err := setProject(dir, id); err != nil {
		return fmt.Errorf("put %s under project %d: %w", dir, id, err)
	}
	return nil
}

// Release takes the limits from an id that holds nothing any more. One that
// still does keeps them.
func (s *System) Release(id uint32) error {
	have, err := s.get(id)
	if err == nil && have.curInodes == 0 {
		err = s.set(id, Limits{})
	}
	if err != nil {
		return fmt.Errorf("release project %d: %w", id, err)
	}
	return nil
}

// Usage is what the project holds now.
func (s *System) Usage(id uint32) (Usage, error) {
	have, err := s.get(id)
	if err != nil {
		return Usage{}, fmt.Errorf("measure project %d: %w", id, err)
	}
	return Usage{Bytes: int64(have.curSpace), Files: int64(have.curInodes)}, nil
}

// block is the unit in which the kernel takes limits, whatever the file
// system's own is.
const block = 1024

// dqblk is struct if_dqblk.
type dqblk struct {
	hardBlocks, softBlocks, curSpace  uint64
	hardInodes, softInodes, curInodes uint64
	blockGrace, inodeGrace            uint64
	valid, _                          uint32
}

func (d dqblk) inUse() bool {
	return d.curSpace|d.curInodes|d.hardBlocks|d.softBlocks|d.hardInodes|d.softInodes != 0
}

// From linux/quota.h.
const (
	cmdGetQuota = 0x800007
	cmdSetQuota = 0x800008
	ofProject   = 2
	limitsValid = 1 | 4 // QIF_BLIMITS, QIF_ILIMITS
)

func (s *System) get(id uint32) (d dqblk, err error) {
	err = s.control(cmdGetQuota, id, &d)
	if errors.Is(err, unix.ENOENT) {
		return dqblk{}, nil // XFS: nobody has ever used it
	}
	return d, err
}

func (s *System) set(id uint32, l Limits) error {
	return s.control(cmdSetQuota, id, &dqblk{
		hardBlocks: uint64((l.Bytes + block - 1) / block), hardInodes: uint64(l.Files), valid: limitsValid,
	})
}

func (s *System) control(cmd uintptr, id uint32, d *dqblk) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, s.dir.Fd(), cmd<<8|ofProject, uintptr(id), uintptr(unsafe.Pointer(d)), 0, 0)
	if errno != 0 {
		return os.NewSyscallError("quotactl", errno)
	}
	return nil
}

// prove limits a directory and writes beyond the limit.
func (s *System) prove(dir string) (err error) {
	at, err := os.MkdirTemp(dir, "quota-proof-")
	if err != nil {
		return unavailable("make directory", err)
	}
	id, err := s.Claim(at, Limits{Bytes: 64 << 10, Files: 8})
	defer func() {
		gone := os.RemoveAll(at)
		if id != 0 {
			gone = errors.Join(gone, s.Release(id))
		}
		if err == nil && gone != nil {
			err = unavailable("clean up", gone)
		}
	}()
	if err != nil {
		return unavailable("limit directory", err)
	}
	err = asSlot(func() error { return os.WriteFile(filepath.Join(at, "file"), make([]byte, 256<<10), 0o600) })
	switch {
	case errors.Is(err, unix.EDQUOT), errors.Is(err, unix.ENOSPC):
		return nil
	case err != nil:
		return unavailable("write beyond the limit", err)
	}
	return unavailable("write beyond the limit", errNotEnforced)
}

// asSlot calls do on a thread that limits hold for: without CAP_SYS_RESOURCE.
func asSlot(do func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	less := have
	less[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
	if err := unix.Capset(&header, &less[0]); err != nil {
		return os.NewSyscallError("capset", err)
	}
	err := do()
	if back := unix.Capset(&header, &have[0]); back != nil {
		runtime.LockOSThread() // once more than it is unlocked: this thread serves nobody else
		return errors.Join(err, os.NewSyscallError("capset", back))
	}
	return err
}
