package workspace

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
)

// Usage counts the files below dir, directories included, and the bytes that
// their blocks take on disk, not the sizes that sparse files claim. A file
// with several names counts in parts, so that it counts once if all its names
// are below dir. Directories that cannot be read count themselves only.
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
			_ = w.enter(e.name) // vanished or unreadable: counted already
		}
	}
	if w.err != nil {
		return bytes, files, fmt.Errorf("measure %s: %w", dir, w.err)
	}
	return bytes, files, nil
}
