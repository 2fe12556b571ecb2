package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// RemoveArgs names what to remove.
type RemoveArgs struct {
	Path      string `json:"path"`
	Recursive bool   `json:"recursive,omitempty"` // needed for a directory that is not empty
}

// RemoveReply counts what was removed.
type RemoveReply struct {
	Removed int64 `json:"removed"` // files and directories
}

// Remove removes a file, a link (not what it points to) or a directory. What
// cannot be removed does not stop the rest; the first such error is returned.
func (t *Tree) Remove(ctx context.Context, args RemoveArgs) (RemoveReply, error) {
	removed, err := t.remove(ctx, args)
	return RemoveReply{Removed: removed}, failure("remove", args.Path, err)
}

func (t *Tree) remove(ctx context.Context, args RemoveArgs) (int64, error) {
	rel, err := t.relative(args.Path)
	if err != nil {
		return 0, err
	}
	p, err := t.place(rel, false)
	if err != nil {
		return 0, err
	}
	defer p.close()
	switch {
	case p.name == ".":
		return 0, errRootDir // or a path that ends in "..": rm refuses it too
	case !p.exists:
		return 0, unix.ENOENT
	case args.Recursive:
		return removeTree(ctx, p.dir, p.name)
	case isKind(&p.stat, unix.S_IFDIR):
		err = unix.Unlinkat(int(p.dir), p.name, unix.AT_REMOVEDIR)
	default:
		err = unix.Unlinkat(int(p.dir), p.name, 0)
	}
	if err != nil {
		return 0, err
	}
	return 1, nil
}

// RemoveAll removes name in the directory parent with everything below it. It
// never follows a link, needs at most 40 descriptors and a few MiB whatever
// the tree is, takes away permissions and inode flags that are in the way,
// and removes what it can before it returns the first error. A name that does
// not exist is no error.
//
// os.RemoveAll does not serve: it recurses, and fails with EMFILE on trees
// that are nested deeper than the limit of open files.
func RemoveAll(ctx context.Context, parent *os.File, name string) error {
	if name == "" || name == "." || name == ".." {
		return fmt.Errorf("remove %q: %w", name, unix.EINVAL)
	}
	conn, err := parent.SyscallConn()
	if err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	var removeErr error
	if err := conn.Control(func(fd uintptr) { _, removeErr = removeTree(ctx, handle(fd), name) }); err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	if removeErr != nil {
		return fmt.Errorf("remove %s: %w", name, removeErr)
	}
	return nil
}

const (
	// maxFailures is after how many names that cannot be removed it gives up.
	maxFailures = 1_000
	// maxRefilled is how many directories may be found filled again behind
	// our back before it gives up.
	maxRefilled = 100
)

// remover removes one tree.
type remover struct {
	removed  int64
	failures int
	refilled int
	first    error
}

func removeTree(ctx context.Context, parent handle, name string) (int64, error) {
	var r remover
	if kept := r.try(parent, name, parent.kindOf(name), false); !kept {
		return r.removed, r.first
	}
	dir, err := r.openDir(parent, name)
	if err != nil {
		return r.removed, err
	}
	w := newWalker(dir, heldNames)
	defer w.close()
	// Files go while the names are read. Only directories that are not empty
	// come out of the walk.
	w.admit = func(dir handle, name string, kind uint8, _ bool) bool {
		return ctx.Err() == nil && r.try(dir, name, kind, true)
	}
	for e, ok := w.next(ctx); ok && r.failures < maxFailures; e, ok = w.next(ctx) {
		if e.leaving {
			r.finish(w, e.name)
		} else {
			r.enter(w, e.name)
		}
	}
	if r.first == nil {
		r.first = w.err
	}
	if r.first == nil {
		if r.rmdir(parent, name, false) {
			r.fail(unix.ENOTEMPTY)
		}
	}
	return r.removed, r.first
}

func (r *remover) fail(err error) {
	r.failures++
	if r.first == nil {
		r.first = err
	}
}

// try removes name in dir. It reports whether name is a directory that is
// not empty and has to be walked. ours says that dir is part of the tree, so
// that its permissions may be changed.
func (r *remover) try(dir handle, name string, kind uint8, ours bool) (kept bool) {
	if kind == unix.DT_DIR {
		return r.rmdir(dir, name, ours)
	}
	err := r.unlink(dir, name, 0, ours)
	if errors.Is(err, unix.EISDIR) { // it has become one
		return r.rmdir(dir, name, ours)
	}
	if err != nil {
		r.fail(err)
	}
	return false
}

func (r *remover) rmdir(dir handle, name string, ours bool) (kept bool) {
	err := r.unlink(dir, name, unix.AT_REMOVEDIR, ours)
	switch {
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return true
	case errors.Is(err, unix.ENOTDIR): // it no longer is one
		err = r.unlink(dir, name, 0, ours)
	}
	if err != nil {
		r.fail(err)
	}
	return false
}

// unlink removes a name, and takes away what forbids it: flags of the name
// itself, and, in our own tree, mode and flags of the directory.
func (r *remover) unlink(dir handle, name string, flags int, ours bool) error {
	err := unix.Unlinkat(int(dir), name, flags)
	if ours && errors.Is(err, unix.EACCES) && unix.Fchmod(int(dir), 0o700) == nil {
		err = unix.Unlinkat(int(dir), name, flags)
	}
	if errors.Is(err, unix.EPERM) {
		if ours {
			clearFlags(dir)
		}
		clearNameFlags(dir, name)
		err = unix.Unlinkat(int(dir), name, flags)
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err == nil {
		r.removed++
	}
	return err
}

// openDir opens a directory that is to be emptied, even against its mode.
func (r *remover) openDir(parent handle, name string) (handle, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW
	dir, err := openAt(parent, name, flags, 0)
	if errors.Is(err, unix.EACCES) && chmodName(parent, name) == nil {
		dir, err = openAt(parent, name, flags, 0)
	}
	return dir, err
}

func (r *remover) enter(w *walker, name string) {
	err := w.enter(name)
	if errors.Is(err, unix.EACCES) && chmodName(w.dir(), name) == nil {
		err = w.enter(name)
	}
	switch {
	case gone(err): // swapped or removed by somebody else: what stands there now goes too
		if r.try(w.dir(), name, w.dir().kindOf(name), true) {
			r.fail(unix.ENOTEMPTY)
		}
	case err != nil:
		r.fail(err)
	}
}

// finish removes a directory that was emptied. If somebody filled it again
// meanwhile, it is walked again.
func (r *remover) finish(w *walker, name string) {
	if !r.rmdir(w.dir(), name, true) || r.failures > 0 {
		return // a failure below explains why it is not empty
	}
	if r.refilled++; r.refilled > maxRefilled {
		r.fail(unix.ENOTEMPTY)
		return
	}
	r.enter(w, name)
}

// chmodName makes a directory usable for us, and nothing that a link points
// to.
func chmodName(dir handle, name string) error {
	err := unix.Fchmodat(int(dir), name, 0o700, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil || gone(err) {
		return err
	}
	return chmodByProc(dir, name) // kernels before 6.6, and filters that do not know fchmodat2
}

// chmodByProc does it by the one other way that names a directory without
// the right to enter it, and without following a link.
func chmodByProc(dir handle, name string) error {
	h, err := openAt(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer h.close()
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(int(h)), 0o700)
}

// clearFlags takes away the immutable and append-only flags, which stop even
// root. Where we may not, the next unlink says so.
func clearFlags(h handle) {
	const immutable, appendOnly = 0x10, 0x20 // FS_IMMUTABLE_FL, FS_APPEND_FL of linux/fs.h
	flags, err := unix.IoctlGetInt(int(h), unix.FS_IOC_GETFLAGS)
	if err == nil && flags&(immutable|appendOnly) != 0 {
		_ = unix.IoctlSetPointerInt(int(h), unix.FS_IOC_SETFLAGS, flags&^(immutable|appendOnly))
	}
}

func clearNameFlags(dir handle, name string) {
	st, err := dir.lstat(name)
	if err != nil || !isKind(&st, unix.S_IFREG) && !isKind(&st, unix.S_IFDIR) {
		return // other kinds have no flags, and opening them may act
	}
	if h, err := openAt(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW, 0); err == nil {
		clearFlags(h)
		h.close()
	}
}
