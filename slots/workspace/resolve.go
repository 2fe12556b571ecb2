package workspace

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is how many links one path may lead through, as in the kernel.
const maxLinks = 40

// open opens what rel leads to. Links are followed as long as they stay in
// the tree.
//
// One openat2 call answers nearly always. RESOLVE_BENEATH makes the kernel
// itself refuse every step out of the root, at the moment of the step, so
// there is nothing that a concurrent rename could win. It also refuses
// absolute links, among them those to /workspace/..., which a slot may well
// have: for these, for paths longer than the kernel takes and for kernels
// without openat2, walk does the same one component at a time.
func (t *Tree) open(rel string, flags int) (handle, error) {
	h, err := t.openBeneath(rel, flags)
	if !needsWalk(err) {
		return h, outsideFirst(rel, err)
	}
	p, err := t.walk(rel, walkOptions{follow: true})
	if err != nil {
		return noHandle, outsideFirst(rel, err)
	}
	defer p.close()
	return openAt(p.dir, p.name, flags|unix.O_NOFOLLOW, 0)
}

func (t *Tree) openBeneath(rel string, flags int) (handle, error) {
	if !t.beneath {
		return noHandle, unix.ENOSYS
	}
	// The kernel answers EAGAIN when a rename somewhere on the machine may
	// have raced with a ".." of this path.
	h, err := openat2(t.root, rel, flags)
	for tries := 0; tries < 16 && errors.Is(err, unix.EAGAIN); tries++ {
		h, err = openat2(t.root, rel, flags)
	}
	return h, err
}

func openat2(dir handle, rel string, flags int) (handle, error) {
	how := unix.OpenHow{
		Flags:   uint64(harmless(flags)),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	}
	n, err := retry(func() (int, error) { return unix.Openat2(int(dir), rel, &how) })
	if err != nil {
		return noHandle, err
	}
	return handle(n), nil
}

func needsWalk(err error) bool {
	return errors.Is(err, unix.EXDEV) || errors.Is(err, unix.ENOSYS) ||
		errors.Is(err, unix.ENAMETOOLONG) || errors.Is(err, unix.EAGAIN)
}

// outsideFirst answers "outside" rather than "missing" for a path such as
// missing/../../x, which leaves the tree whatever exists.
func outsideFirst(rel string, err error) error {
	if err != nil && errors.Is(err, unix.ENOENT) && escapes(rel) {
		return errOutside
	}
	return err
}

// openFile opens a regular file for reading and describes it.
func (t *Tree) openFile(rel string) (handle, unix.Stat_t, error) {
	h, err := t.open(rel, unix.O_RDONLY)
	if err != nil {
		return noHandle, unix.Stat_t{}, err
	}
	st, err := t.checkFile(h)
	if err != nil {
		h.close()
		return noHandle, st, err
	}
	return h, st, nil
}

// openName opens the regular file of that name in dir, which must be no
// link.
func (t *Tree) openName(dir handle, name string) (handle, unix.Stat_t, error) {
	h, err := openAt(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return noHandle, unix.Stat_t{}, err
	}
	st, err := t.checkFile(h)
	if err != nil {
		h.close()
		return noHandle, st, err
	}
	return h, st, nil
}

// checkFile refuses what must not be read. FIFOs, sockets and devices never
// end or have effects. A file of another owner with several names may be a
// hard link to something outside, which no path check can see.
func (t *Tree) checkFile(h handle) (unix.Stat_t, error) {
	st, err := h.stat()
	switch {
	case err != nil:
		return st, err
	case !isKind(&st, unix.S_IFREG):
		return st, errNotFile
	case st.Nlink > 1 && st.Uid != t.uid:
		return st, errOutside
	}
	return st, nil
}

// openDir opens a directory for listing.
func (t *Tree) openDir(rel string) (handle, error) {
	return t.open(rel, unix.O_RDONLY|unix.O_DIRECTORY)
}

// place is a name in an open directory. Whatever happens to the path that
// led here, operations on dir and name stay in that directory.
type place struct {
	dir      handle
	borrowed bool   // dir is the tree's root and stays open
	name     string // one component; "." when the place is dir itself

	stat   unix.Stat_t // of the name itself, no link followed
	exists bool
}

func (p *place) close() {
	if !p.borrowed {
		p.dir.close()
	}
}

// look fills in what stands at the place.
func (p *place) look() error {
	st, err := p.dir.lstat(p.name)
	if errors.Is(err, unix.ENOENT) {
		p.exists = false
		return nil
	}
	p.stat, p.exists = st, err == nil
	return err
}

// place finds the directory and name that rel leads to. With follow, a link
// at the end is followed too, so that the place is where a write through the
// link ends up.
func (t *Tree) place(rel string, follow bool) (place, error) {
	p, err := t.placeFast(rel)
	if err == nil {
		err = p.look()
		atLink := p.exists && isKind(&p.stat, unix.S_IFLNK)
		if err == nil && (!atLink || !follow) {
			return p, nil
		}
		p.close()
	}
	if err != nil && !needsWalk(err) {
		return place{}, outsideFirst(rel, err)
	}
	p, err = t.walk(rel, walkOptions{follow: follow})
	if err != nil {
		return place{}, outsideFirst(rel, err)
	}
	if err := p.look(); err != nil {
		p.close()
		return place{}, err
	}
	return p, nil
}

// placeFast handles all but paths whose last component is "..".
func (t *Tree) placeFast(rel string) (place, error) {
	parent, name := splitLast(rel)
	if name == ".." {
		return place{}, unix.ENOSYS
	}
	if parent == "" {
		return place{dir: t.root, borrowed: true, name: name}, nil
	}
	dir, err := t.openBeneath(parent, unix.O_PATH|unix.O_DIRECTORY)
	return place{dir: dir, name: name}, err
}

func splitLast(rel string) (parent, name string) {
	i := strings.LastIndexByte(rel, '/')
	return strings.TrimRight(rel[:i+1], "/"), rel[i+1:]
}
