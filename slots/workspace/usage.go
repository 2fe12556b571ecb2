package workspace

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Usage counts the files below dir, directories included, and the bytes that
// their blocks take on disk, not the sizes that sparse files claim. A file
// with several names counts in parts, so that it counts once if all its names
// are below dir. Directories of ours are read against their mode, which they have
// back at once; others that cannot be read count themselves only.
func Usage(ctx context.Context, dir string) (bytes, files int64, err error) {
	fd, err := unix.Open(dir, harmless(unix.O_RDONLY|unix.O_DIRECTORY), 0)
	if err != nil {
		return 0, 0, fmt.Errorf("measure %s: %w", dir, err)
	}
	w := newWalker(handle(fd), heldNames)
	defer w.close()
	const blockSize = 512 // of st_blocks, whatever the file system's own is
	w.admit = func(dir handle, name string, kind uint8, again bool) bool {
		if again {
			return kind == unix.DT_DIR
		}
		st, err := dir.lstat(name)
		if errors.Is(err, unix.EACCES) {
			opened(dir, func() { st, err = dir.lstat(name) })
		}
		if err != nil {
			return false
		}
		files++
		if kind == unix.DT_DIR {
			bytes += st.Blocks * blockSize
			return true
		}
		bytes += st.Blocks * blockSize / int64(max(st.Nlink, 1))
		return false
	}
	for e, ok := w.next(ctx); ok; e, ok = w.next(ctx) {
		if !e.leaving {
			if err := w.enter(e.name); errors.Is(err, unix.EACCES) {
				enterClosed(w, e.name)
			} // else vanished: counted already
		}
	}
	if w.err != nil {
		return bytes, files, fmt.Errorf("measure %s: %w", dir, w.err)
	}
	return bytes, files, nil
}

// enterClosed enters a directory that its mode, or that of the one it is in,
// closes to its own owner.
func enterClosed(w *walker, name string) {
	parent := w.dir()
	opened(parent, func() {
		st, err := parent.lstat(name)
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || chmodName(parent, name) != nil {
			return
		}
		if w.enter(name) == nil {
			_ = unix.Fchmod(int(w.dir()), st.Mode&0o7777) // ours, or the above had failed
		}
	})
}

// opened does what takes the right to search dir.
func opened(dir handle, do func()) {
	st, err := dir.stat()
	if err == nil && st.Mode&0o100 == 0 && unix.Fchmod(int(dir), st.Mode&0o7777|0o100) == nil {
		defer unix.Fchmod(int(dir), st.Mode&0o7777) //nolint:errcheck // vanished
	}
	do()
}
