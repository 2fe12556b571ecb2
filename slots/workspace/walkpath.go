package workspace

import (
	"errors"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// walkOptions says how a path is walked.
type walkOptions struct {
	follow bool // follow a link in the last component too
	make   bool // make directories that are missing, the last component included
}

// pathWalk is a path being resolved in user space.
type pathWalk struct {
	t     *Tree
	dir   handle   // where we are; owned unless it is the root
	above []inode  // the directories we came through, root first
	todo  []string // what is left of the path; the next component is last
	links int
}

// walk resolves rel one component at a time. Each step opens one name in the
// directory at hand without following links, so a step can only go down;
// links are read and their target is walked in turn; ".." goes up to the
// directory that we came from, and to nothing else. The place's name may be
// missing in its directory.
func (t *Tree) walk(rel string, opt walkOptions) (place, error) {
	w := pathWalk{t: t, dir: t.root}
	w.push(rel)
	for len(w.todo) > 0 {
		name := w.todo[len(w.todo)-1]
		w.todo = w.todo[:len(w.todo)-1]
		if name == ".." {
			if err := w.up(); err != nil {
				w.drop()
				return place{}, err
			}
			continue
		}
		last := len(w.todo) == 0
		if last && !opt.follow {
			return w.at(name), nil
		}
		arrived, err := w.down(name, last, opt)
		if err != nil {
			w.drop()
			return place{}, err
		}
		if arrived {
			return w.at(name), nil
		}
	}
	return w.at("."), nil
}

// down makes one step. It reports whether the walk ends at name, which is so
// for the last component unless that is a link.
func (w *pathWalk) down(name string, last bool, opt walkOptions) (arrived bool, err error) {
	next, err := openAt(w.dir, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENOENT) && opt.make {
		if err := unix.Mkdirat(int(w.dir), name, 0o777); err != nil && !errors.Is(err, unix.EEXIST) {
			return false, err
		}
		next, err = openAt(w.dir, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	}
	if errors.Is(err, unix.ENOENT) && last {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	st, err := next.stat()
	if err != nil {
		next.close()
		return false, err
	}
	switch {
	case isKind(&st, unix.S_IFLNK):
		defer next.close()
		return false, w.enterLink(next)
	case last:
		next.close()
		return true, nil
	case !isKind(&st, unix.S_IFDIR):
		next.close()
		return false, unix.ENOTDIR
	}
	return false, w.enterDir(next)
}

func (w *pathWalk) enterDir(next handle) error {
	st, err := w.dir.stat()
	if err != nil {
		next.close()
		return err
	}
	w.above = append(w.above, inodeOf(&st))
	w.moveTo(next)
	return nil
}

// enterLink puts the link's target before what is left of the path.
func (w *pathWalk) enterLink(link handle) error {
	if w.links++; w.links > maxLinks {
		return unix.ELOOP
	}
	target, err := link.readlink("")
	if err != nil {
		return err
	}
	if path.IsAbs(target) {
		if target, err = w.t.relative(target); err != nil {
			return err
		}
		w.moveTo(w.t.root)
		w.above = w.above[:0]
	}
	if len(w.todo)+len(target) > maxPath {
		return unix.ENAMETOOLONG
	}
	w.push(target)
	return nil
}

// up goes to the parent, and makes sure that it is the directory we came
// through: ours may have been moved since, even out of the tree.
func (w *pathWalk) up() error {
	if len(w.above) == 0 {
		return errOutside
	}
	want := w.above[len(w.above)-1]
	parent, err := openParent(w.dir, want, unix.O_PATH)
	if err != nil {
		return err
	}
	w.above = w.above[:len(w.above)-1]
	w.moveTo(parent)
	return nil
}

// openParent opens the parent of dir if it is the directory want.
func openParent(dir handle, want inode, flags int) (handle, error) {
	parent, err := openAt(dir, "..", flags|unix.O_DIRECTORY, 0)
	if err != nil {
		return noHandle, err
	}
	st, err := parent.stat()
	if err == nil && inodeOf(&st) != want {
		err = errOutside
	}
	if err != nil {
		parent.close()
		return noHandle, err
	}
	return parent, nil
}

func (w *pathWalk) push(rel string) {
	from := len(w.todo)
	for part := range strings.SplitSeq(rel, "/") {
		if part != "" && part != "." {
			w.todo = append(w.todo, part)
		}
	}
	slices.Reverse(w.todo[from:])
}

func (w *pathWalk) moveTo(dir handle) {
	w.drop()
	w.dir = dir
}

func (w *pathWalk) drop() {
	if w.dir != w.t.root {
		w.dir.close()
	}
}

func (w *pathWalk) at(name string) place {
	return place{dir: w.dir, borrowed: w.dir == w.t.root, name: name}
}
