package workspace

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"berth/slots"
)

const (
	// defaultEntries is how many entries List gives when it is not told.
	defaultEntries = 5_000
	// listedBytes bounds the paths of one listing together. In a tree of
	// 20 000 levels a single path has 40 000 bytes.
	listedBytes = 4 << 20
)

// ListArgs says what to list.
type ListArgs struct {
	Path       string `json:"path,omitempty"` // a directory, or a file that is then the only entry; default: the workspace
	Recursive  bool   `json:"recursive,omitempty"`
	Depth      int    `json:"depth,omitempty"`       // of a recursive list: levels below Path, 1 is Path alone; 0: all
	MaxEntries int    `json:"max_entries,omitempty"` // default 5 000
}

// ListReply holds the entries in the order of their paths, compared component
// by component, so that a directory stands right before its content.
type ListReply struct {
	Entries    []Entry `json:"entries"`
	Truncated  bool    `json:"truncated"`            // there is at least one entry more; at most 4 MiB of paths are listed
	Unreadable int     `json:"unreadable,omitempty"` // directories that could not be listed
}

// List lists a directory. Links are entries of their own and not followed.
func (t *Tree) List(ctx context.Context, args ListArgs) (ListReply, error) {
	reply, err := t.list(ctx, args)
	return reply, failure("list", args.Path, err)
}

func (t *Tree) list(ctx context.Context, args ListArgs) (ListReply, error) {
	most := args.MaxEntries
	switch {
	case most < 0 || args.Depth < 0:
		return ListReply{}, refusal("list", args.Path, slots.KindBadRequest,
			"Invalid bounds: max_entries %d, depth %d", most, args.Depth)
	case most == 0:
		most = defaultEntries
	}
	rel, err := t.relative(args.Path)
	if err != nil {
		return ListReply{}, err
	}
	dir, err := t.openDir(rel)
	if errors.Is(err, unix.ENOTDIR) {
		one, err := t.stat(args.Path)
		return ListReply{Entries: []Entry{one.Entry}}, err
	}
	if err != nil {
		return ListReply{}, err
	}
	prefix := prefixOf(rel)
	w := newWalker(dir, min(most, heldNames)+1)
	defer w.close()
	reply := ListReply{Entries: []Entry{}}
	size := 0
	for e, ok := w.next(ctx); ok; e, ok = w.next(ctx) {
		if e.leaving {
			continue
		}
		if len(reply.Entries) == most || size > listedBytes {
			reply.Truncated = true
			return reply, nil
		}
		item, _, err := describe(w.dir(), e.name, prefix+w.pathOf(e.name))
		if err != nil {
			continue // it vanished
		}
		size += len(item.Path)
		reply.Entries = append(reply.Entries, item)
		if item.IsDir && args.Recursive && (args.Depth == 0 || w.depth()+1 < args.Depth) {
			if err := w.enter(e.name); err != nil && !gone(err) {
				reply.Unreadable++
			}
		}
	}
	return reply, w.err
}
