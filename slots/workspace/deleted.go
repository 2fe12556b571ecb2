package workspace

import (
	"context"
	"os"
	"path/filepath"
	"strconv"

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
// mapped are missed.
func (t *Tree) Deleted(ctx context.Context, _ DeletedArgs) (reply DeletedReply, err error) {
	var own unix.Stat_t
	if err := unix.Fstat(int(t.root), &own); err != nil {
		return reply, failure("deleted", ".", err)
	}
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return reply, failure("deleted", "/proc", err)
	}
	seen := map[uint64]bool{}
	for _, p := range processes {
		if ctx.Err() != nil {
			return reply, failure("deleted", ".", ctx.Err())
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
			if unix.Stat(filepath.Join(dir, fd.Name()), &st) != nil || st.Nlink > 0 || st.Mode&unix.S_IFMT != unix.S_IFREG ||
				st.Dev != own.Dev || seen[st.Ino] {
				continue
			}
			seen[st.Ino] = true
			const blockSize = 512 // as in Usage
			reply.Files++
			reply.Bytes += st.Blocks * blockSize
		}
	}
	return reply, nil
}
