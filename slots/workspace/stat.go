package workspace

import (
	"context"
	"path"

	"golang.org/x/sys/unix"
)

// StatArgs names what to describe.
type StatArgs struct {
	Path string `json:"path"`
}

// StatReply describes a file or directory, links followed.
type StatReply struct {
	Entry
	MIME string `json:"mime,omitempty"` // of regular files, from the name alone or the first 512 bytes
}

// Stat describes what a path leads to. It opens regular files only, to guess
// their type, so that a FIFO or device is described without being touched.
func (t *Tree) Stat(_ context.Context, args StatArgs) (StatReply, error) {
	reply, err := t.stat(args.Path)
	return reply, failure("stat", args.Path, err)
}

func (t *Tree) stat(name string) (StatReply, error) {
	rel, err := t.relative(name)
	if err != nil {
		return StatReply{}, err
	}
	h, err := t.open(rel, unix.O_PATH)
	if err != nil {
		return StatReply{}, err
	}
	defer h.close()
	st, err := h.stat()
	if err != nil {
		return StatReply{}, err
	}
	reply := StatReply{Entry: newEntry(path.Clean(rel), &st)}
	if !isKind(&st, unix.S_IFREG) {
		return reply, nil
	}
	var start [sniffSize]byte
	n := 0
	if f, _, err := t.openFile(rel); err == nil { // unreadable files are described as well
		n, _ = unix.Pread(int(f), start[:], 0)
		f.close()
	}
	reply.MIME = mimeType(rel, start[:max(n, 0)])
	return reply, nil
}
