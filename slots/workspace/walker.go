package workspace

import (
	"context"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// openLevels is how many directories a walk holds open, besides the one
	// it began at.
	openLevels = 32
	// heldNames is how many names a walk holds in memory.
	heldNames = 32_768
)

// walker goes through a directory tree depth first, the names of each
// directory in byte order. It follows no link, recurses nowhere, holds few
// descriptors and a bounded number of names, however deep and wide the tree
// is.
//
//	for e, ok := w.next(ctx); ok; e, ok = w.next(ctx) {
//		if e.leaving { ... } else if e is a directory { w.enter(e.name) }
//	}
//	return w.err
//
// Names wait in one stack for all levels. When it is full, the names that
// would come last, those of the outermost level, are forgotten, and that
// level's directory is read again from the name after the last one it gave.
// Descriptors of outer levels are closed likewise and opened again through
// "..", which must then be the same directory.
type walker struct {
	levels  []level // the first is the start
	pending []entry // grouped by level, each group in reverse order
	path    []byte  // from the start to the current directory: "" or "a/b/"
	err     error   // why next ended, nil at the regular end

	budget int
	buf    []byte
	// admit, when set, sees every name as it is read, in no order, and says
	// whether to keep it. again is true for names it may have seen before.
	admit func(dir handle, name string, kind uint8, again bool) bool
}

// level is a directory between the start and the current one.
type level struct {
	dir     handle // noHandle while closed to save descriptors
	id      inode
	last    string // the last name it gave
	read    bool   // its directory was read before
	more    bool   // the directory holds names after last that were forgotten
	pathLen int    // of walker.path up to and with this directory
}

// entry is one step of a walk.
type entry struct {
	name    string
	kind    uint8 // DT_ value
	leaving bool  // the directory name is done; the current directory is its parent
	level   int
}

// newWalker starts a walk at dir, which it takes over. A walk must be closed.
func newWalker(dir handle, budget int) *walker {
	w := &walker{budget: max(1, min(budget, heldNames)), buf: make([]byte, direntSize)}
	w.levels = append(w.levels, level{dir: dir, more: true})
	if st, err := dir.stat(); err != nil {
		w.err = err
	} else {
		w.levels[0].id = inodeOf(&st)
	}
	return w
}

func (w *walker) close() {
	for _, l := range w.levels {
		l.dir.close()
	}
	w.levels = nil
}

// dir is the current directory: the one that the last entry is in.
func (w *walker) dir() handle { return w.levels[len(w.levels)-1].dir }

// depth is 0 in the directory where the walk began.
func (w *walker) depth() int { return len(w.levels) - 1 }

// pathOf is the path of a name in the current directory, from the start.
func (w *walker) pathOf(name string) string { return string(w.path) + name }

// next returns the next entry. It ends with false at the end of the tree and
// when w.err is set.
func (w *walker) next(ctx context.Context) (entry, bool) {
	for w.err == nil {
		if w.err = ended(ctx); w.err != nil {
			break
		}
		top := len(w.levels) - 1
		if n := len(w.pending); n > 0 && w.pending[n-1].level == top {
			e := w.pending[n-1]
			w.pending = w.pending[:n-1]
			w.levels[top].last = e.name
			return e, true
		}
		if w.levels[top].more {
			if err := w.fill(); err != nil && top == 0 {
				w.err = err
			}
			continue
		}
		if top == 0 {
			break
		}
		if e, ok := w.leave(); ok {
			return e, true
		}
	}
	return entry{}, false
}

// enter goes into a directory of the current one. After an error the walk
// goes on behind it. ENOTDIR and ELOOP mean that it is no directory, or no
// longer.
func (w *walker) enter(name string) error {
	dir, err := openAt(w.dir(), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	st, err := dir.stat()
	if err != nil {
		dir.close()
		return err
	}
	w.path = append(append(w.path, name...), '/')
	w.levels = append(w.levels, level{dir: dir, id: inodeOf(&st), pathLen: len(w.path)})
	if far := len(w.levels) - 1 - openLevels; far > 0 {
		w.levels[far].dir.close()
		w.levels[far].dir = noHandle
	}
	if err := w.fill(); err != nil {
		w.leave()
		return err
	}
	return nil
}

// fill reads the names of the current directory after the last one given.
func (w *walker) fill() error {
	top := len(w.levels) - 1
	l := &w.levels[top]
	again := l.read
	l.read = true
	names := smallest[entry]{n: w.budget, compare: func(a, b entry) int { return strings.Compare(a.name, b.name) }}
	err := readNames(l.dir, w.buf, func(raw []byte, kind uint8) error {
		if again && string(raw) <= l.last {
			return nil
		}
		name := string(raw)
		if kind == unix.DT_UNKNOWN {
			kind = l.dir.kindOf(name)
		}
		if w.admit == nil || w.admit(l.dir, name, kind, again) {
			names.add(entry{name: name, kind: kind, level: top})
		}
		return nil
	})
	sorted := names.sorted()
	l.more = names.dropped && err == nil
	w.pending = slices.Grow(w.pending, len(sorted))
	for _, e := range slices.Backward(sorted) {
		w.pending = append(w.pending, e)
	}
	w.forget(len(w.pending) - w.budget)
	return err
}

// forget drops the n names that would come last.
func (w *walker) forget(n int) {
	if n <= 0 {
		return
	}
	for _, e := range w.pending[:n] {
		w.levels[e.level].more = true
	}
	w.pending = slices.Delete(w.pending, 0, n)
}

// leave goes back to the parent. It reports false when the way back is gone,
// because directories were moved meanwhile; the walk then goes on at the
// innermost level that can still be reached.
func (w *walker) leave() (entry, bool) {
	top := len(w.levels) - 1
	left := w.levels[top]
	parent := &w.levels[top-1]
	name := string(w.path[parent.pathLen : left.pathLen-1])
	for n := len(w.pending); n > 0 && w.pending[n-1].level == top; n-- {
		w.pending = w.pending[:n-1]
	}
	var err error
	if parent.dir == noHandle {
		parent.dir, err = openParent(left.dir, parent.id, unix.O_RDONLY)
	}
	left.dir.close()
	w.levels = w.levels[:top]
	w.path = w.path[:parent.pathLen]
	if err != nil {
		w.findBack()
		return entry{}, false
	}
	return entry{name: name, kind: unix.DT_DIR, leaving: true, level: top - 1}, true
}

// findBack finds the current level again by names from the start, link free,
// and gives up level after level where that fails. The start is always open.
func (w *walker) findBack() {
	for len(w.levels) > 1 && w.dir() == noHandle {
		top := len(w.levels) - 1
		if dir, err := w.reopen(top); err == nil {
			w.levels[top].dir = dir
			return
		}
		for n := len(w.pending); n > 0 && w.pending[n-1].level == top; n-- {
			w.pending = w.pending[:n-1]
		}
		w.levels = w.levels[:top]
		w.path = w.path[:w.levels[top-1].pathLen]
	}
}

func (w *walker) reopen(top int) (handle, error) {
	dir := w.levels[0].dir
	for i := 1; i <= top; i++ {
		name := string(w.path[w.levels[i-1].pathLen : w.levels[i].pathLen-1])
		next, err := openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if i > 1 {
			dir.close()
		}
		if err != nil {
			return noHandle, err
		}
		dir = next
	}
	st, err := dir.stat()
	if err == nil && inodeOf(&st) != w.levels[top].id {
		err = unix.ESTALE
	}
	if err != nil {
		dir.close()
		return noHandle, err
	}
	return dir, nil
}

// kindOf asks for the kind of a name where the file system does not tell it
// with the name.
func (h handle) kindOf(name string) uint8 {
	st, err := h.lstat(name)
	if err != nil {
		return unix.DT_UNKNOWN
	}
	return uint8(st.Mode & unix.S_IFMT >> 12)
}

// gone reports that a name vanished or changed its kind between being read
// and being used, which is no fault in a tree that lives.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}
