package quota

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fsxattr is struct fsxattr of linux/fs.h.
type fsxattr struct {
	flags, _, _ uint32
	project     uint32
	_           [3]uint32
}

// From linux/fs.h; the same on every architecture that we know.
const (
	fsGetXAttr     = 0x801c581f
	fsSetXAttr     = 0x401c5820
	projectInherit = 0x200
)

// ProjectOf is the project id of a file or directory; 0 is the id of whatever
// was never put under one.
func ProjectOf(path string) (uint32, error) {
	f, err := os.OpenFile(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, fmt.Errorf("ask for project: %w", err)
	}
	defer f.Close()
	var x fsxattr
	if err := attributes(f, fsGetXAttr, &x); err != nil {
		return 0, fmt.Errorf("ask for project of %s: %w", path, err)
	}
	return x.project, nil
}

func setProject(path string, id uint32) error {
	f, err := os.OpenFile(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return setOpen(f, id)
}

func setOpen(f *os.File, id uint32) error {
	var x fsxattr
	if err := attributes(f, fsGetXAttr, &x); err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	x.project = id
	if st.IsDir() {
		x.flags |= projectInherit
	}
	return attributes(f, fsSetXAttr, &x)
}

func attributes(f *os.File, request uintptr, x *fsxattr) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(x))); errno != 0 {
		return os.NewSyscallError("ioctl", errno)
	}
	return nil
}

// Move puts a whole tree, whose owner must not be running, under the project.
// Links, pipes and sockets stay where they are counted: the kernel has no way
// to say otherwise.
func Move(ctx context.Context, dir string, id uint32) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("move tree to project: %w", err)
	}
	defer root.Close() //nolint:errcheck // opened for reading
	err = fs.WalkDir(root.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err = errors.Join(err, ctx.Err()); err != nil || entry.Type()&^fs.ModeDir != 0 {
			return err
		}
		f, err := root.OpenFile(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		return setOpen(f, id)
	})
	if err != nil {
		return fmt.Errorf("move tree to project %d: %w", id, err)
	}
	return nil
}
