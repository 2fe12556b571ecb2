package workspace

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// DeletedArgs has nothing to choose.
type DeletedArgs struct{}

// DeletedReply is what files take that no directory shows any more.
type DeletedReply struct {
	Bytes int64 `json:"bytes"` // their blocks on disk
	Files int64 `json:"files"`
}

// Deleted counts the files on the tree's file system that have no name left and
// are held open by a process whose descriptors we may see in /proc: without a
// pid namespace of our own these are all of our user. Files that are only
// mapped are missed, and those of processes that forbid the look.
func (t *Tree) Deleted(ctx context.Context, _ DeletedArgs) (reply DeletedReply, err error) {
	var own unix.Stat_t
	if err := unix.Fstat(int(t.root), &own); err != nil {
		return reply, failure("deleted", ".", err)
	}
	if err := reply.count(ctx, own.Dev, ""); err != nil {
		return DeletedReply{}, failure("deleted", ".", err)
	}
	return reply, nil
}

// DeletedBelow is Deleted for files that had their name below dir, where
// processes have the mount namespace of ours: so it tells those of one slot from
// those of another that has the same user.
func DeletedBelow(ctx context.Context, dir string) (reply DeletedReply, err error) {
	dir, err = filepath.EvalSymlinks(dir)
	if err != nil {
		return reply, fmt.Errorf("find deleted files: %w", err)
	}
	var own unix.Stat_t
	if err := unix.Stat(dir, &own); err != nil {
		return reply, fmt.Errorf("find deleted files below %s: %w", dir, err)
	}
	if err := reply.count(ctx, own.Dev, dir+"/"); err != nil {
		return DeletedReply{}, fmt.Errorf("find deleted files below %s: %w", dir, err)
	}
	return reply, nil
}

// count adds the files of dev whose last name began with prefix.
func (r *DeletedReply) count(ctx context.Context, dev uint64, prefix string) error {
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	seen := map[uint64]bool{}
	for _, p := range processes {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		dir := filepath.Join("/proc", p.Name(), "fd")
		open, err := os.ReadDir(dir)
		if err != nil {
			continue // not ours, or it has ended
		}
		for _, fd := range open {
			var st unix.Stat_t
			at := filepath.Join(dir, fd.Name())
			if unix.Stat(at, &st) != nil || st.Nlink > 0 || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Dev != dev || seen[st.Ino] {
				continue
			}
			if prefix != "" {
				if was, err := os.Readlink(at); err != nil || !strings.HasPrefix(was, prefix) {
					continue
				}
			}
			seen[st.Ino] = true
			const blockSize = 512 // as in Usage
			r.Files++
			r.Bytes += st.Blocks * blockSize
		}
	}
	return nil
}
