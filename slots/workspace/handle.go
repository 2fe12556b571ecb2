package workspace

import (
	"context"
	"errors"
	"io"

	"golang.org/x/sys/unix"
)

// handle is an open descriptor. It is no os.File, because registering a file
// with the runtime's poller costs more system calls than a small read.
type handle int

const noHandle = handle(-1)

func (h handle) close() {
	if h >= 0 {
		_ = unix.Close(int(h)) // nothing written through h is lost: see staged.commit
	}
}

// Read reads from the descriptor's position.
func (h handle) Read(p []byte) (int, error) {
	n, err := retry(func() (int, error) { return unix.Read(int(h), p) })
	if err == nil && n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return max(n, 0), err
}

// Write writes all of p at the descriptor's position.
func (h handle) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := retry(func() (int, error) { return unix.Write(int(h), p[done:]) })
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

func (h handle) stat() (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(h), &st)
	return st, err
}

// lstat describes a name in the directory h, links not followed.
func (h handle) lstat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(int(h), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, err
}

// readlink returns where the link name in the directory h points. An empty
// name means h itself, opened with O_PATH.
func (h handle) readlink(name string) (string, error) {
	var buf [unix.PathMax]byte
	n, err := unix.Readlinkat(int(h), name, buf[:])
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// openAt opens one name in a directory. The name must not contain a slash,
// and flags must contain O_NOFOLLOW unless it is "." or "..": then no race
// can lead the open anywhere else.
func openAt(dir handle, name string, flags int, mode uint32) (handle, error) {
	n, err := retry(func() (int, error) { return unix.Openat(int(dir), name, harmless(flags), mode) })
	if err != nil {
		return noHandle, err
	}
	return handle(n), nil
}

// harmless adds what keeps an open from blocking on a FIFO, from taking a
// terminal and from leaking into a child. O_PATH does none of it and refuses
// the flags.
func harmless(flags int) int {
	if flags&unix.O_PATH != 0 {
		return flags | unix.O_CLOEXEC
	}
	return flags | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY
}

// retry repeats a system call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// inode identifies a file while somebody holds it open.
type inode struct {
	dev uint64
	ino uint64
}

func inodeOf(st *unix.Stat_t) inode { return inode{st.Dev, st.Ino} }

func isKind(st *unix.Stat_t, kind uint32) bool { return st.Mode&unix.S_IFMT == kind }

// bufferSize is the unit of all copying.
const bufferSize = 64 << 10

// buffer lends 64 KiB. The caller gives it back with release.
func (t *Tree) buffer() *[]byte {
	if b, ok := t.buffers.Get().(*[]byte); ok {
		return b
	}
	b := make([]byte, bufferSize)
	return &b
}

func (t *Tree) release(b *[]byte) { t.buffers.Put(b) }

// ended is the reason why ctx ended, or nil. The reason always matches
// context.Canceled or context.DeadlineExceeded.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); !errors.Is(cause, err) {
		return errors.Join(err, cause)
	}
	return err
}
