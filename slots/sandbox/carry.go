package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"berth/slots"
)

// Reopen is NewSandbox for a slot that an earlier agent on the same data
// directory had: its workspace is carried over. Nothing else of it is, and a
// slot that never was begins empty. One whose files were in memory, and have
// gone with it, is a slots.KindSlotLost.
func (h *Host) Reopen(ctx context.Context, slot string, generation uint64) (*Sandbox, error) {
	return h.open(ctx, slot, generation, true)
}

// held lists the instances that slots point to.
func (l layout) held() map[string]bool {
	held := map[string]bool{}
	links, err := os.ReadDir(l.path("slots"))
	if err != nil {
		return held
	}
	for _, link := range links {
		if to, err := os.Readlink(l.path("slots", link.Name())); err == nil {
			held[instanceOf(to)] = true
		}
	}
	return held
}

// carriedFrom is a link in an instance's directory: it names the instance that
// its workspace was taken from.
const carriedFrom = "carried"

// giveBack returns a workspace that was carried into the instance at a path,
// which is not the slot's, to the one that is. An agent may end at any moment
// between the two.
func (l layout) giveBack(at string, held map[string]bool) error {
	from, err := os.Readlink(filepath.Join(at, carriedFrom))
	if err != nil || !held[from] {
		return nil // it was not carried, or the slot points elsewhere by now
	}
	if inner := filepath.Join(at, memoryDir); isMount(inner) {
		return moveMemory(inner, l.path("kept", from, memoryDir))
	}
	back := l.path("kept", from, "workspace")
	if _, err := os.Lstat(back); !errors.Is(err, fs.ErrNotExist) {
		return err // it was not carried yet
	}
	err = os.Rename(filepath.Join(at, "workspace"), back)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("give workspace back: %w", err)
	}
	return nil
}

// instanceOf is the name of the instance that a slot's link leads to.
func instanceOf(link string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(link, "../live/"), "/")
	return name
}

// setAside takes the files of earlier agents out of the way: those that a slot
// points to are kept for it, the others go to the trash.
func (l layout) setAside() error {
	held := l.held()
	for _, from := range []string{"kept", "live"} {
		left, err := os.ReadDir(l.path(from))
		if err != nil {
			return fmt.Errorf("read data directory: %w", err)
		}
		for _, e := range left {
			to := "trash"
			if held[e.Name()] {
				to = "kept"
			} else if err := l.giveBack(l.path(from, e.Name()), held); err != nil {
				return err
			}
			if to == from {
				continue // the last agent ended before it opened the slot again
			}
			if err := os.Rename(l.path(from, e.Name()), l.path(to, e.Name())); err != nil {
				return fmt.Errorf("set files of %s aside: %w", e.Name(), err)
			}
		}
	}
	return nil
}

// kept is where the files of the slot's last instance are; "" when there are
// none.
func (l layout) kept(slot string) string {
	to, err := os.Readlink(l.path("slots", slot))
	if err != nil {
		return ""
	}
	at := l.path("kept", instanceOf(to))
	if st, err := os.Lstat(at); err != nil || !st.IsDir() {
		return ""
	}
	return at
}

// carry puts the workspace of an earlier instance in the new one's place. It
// runs before the holder does, and after everything of the earlier one has
// ended.
func (i *instance) carry(from string) error {
	at := i.dir("workspace")
	files := filepath.Join(from, "workspace")
	if i.inMemory {
		files = i.dir(takenDir)
	}
	if err := os.Remove(at); err != nil {
		return fmt.Errorf("carry workspace over: %w", err)
	}
	if err := os.Rename(files, at); err != nil {
		return fmt.Errorf("carry workspace over: %w", err)
	}
	if !i.how.ids {
		return nil
	}
	if err := giveTree(at, i.uid); err != nil {
		return fmt.Errorf("give workspace to its slot: %w", err)
	}
	return nil
}

// giveTree gives a tree another owner. Ids that lie as far above the old owner
// as a private root maps them keep their distance; whoever else owned a file,
// the new owner gets it. It never follows a link out of the tree.
func giveTree(dir string, to int) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // opened for reading
	top, err := root.Lstat(".")
	if err != nil {
		return err
	}
	was := owner(top)
	if was == to {
		return nil
	}
	err = fs.WalkDir(root.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		st, err := entry.Info()
		if err != nil {
			return err
		}
		id := to
		if above := owner(st) - was; above > 0 && above < privateWidth {
			id += above
		}
		return root.Lchown(path, id, id)
	})
	if err != nil {
		return err
	}
	return root.Lchown(".", to, to) // the last, because it says whose the tree is
}

func owner(st fs.FileInfo) int {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return -1
	}
	return int(sys.Uid)
}

// open makes the sandbox, with the files of the slot's last instance or
// without; what is left of that goes to the trash.
func (h *Host) open(ctx context.Context, slot string, generation uint64, files bool) (*Sandbox, error) {
	h.opening.Add(1)
	defer h.opening.Add(-1)
	kept := h.layout.kept(slot)
	from := ""
	if files {
		from = kept
	}
	i, err := h.makeInstance(ctx, h.how, origin{from: from})
	if lost, typed := errors.AsType[*slots.Error](err); typed && lost.Kind == slots.KindSlotLost {
		return nil, lost
	}
	if err != nil {
		return nil, slots.Errorf(slots.KindUnavailable, "open sandbox of %s: %w", slot, err)
	}
	if err := h.layout.point(slot, i.place()); err != nil {
		return nil, errors.Join(err, i.dispose(ctx))
	}
	if kept != "" {
		if err := os.Rename(kept, h.layout.path("trash", filepath.Base(kept))); err == nil {
			h.disposal.Go(func() { h.emptyTrash(h.ctx) })
		}
	}
	s := &Sandbox{host: h, slot: slot, current: i, generation: generation}
	s.makeSpare(firstSparePause)
	return s, nil
}
