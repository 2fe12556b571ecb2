package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth/slots"
	"berth/slots/holder"
	"berth/slots/workspace"
)

// viewEnvironments is where slots with a root of their own see environments.
const viewEnvironments = "/run/environments"

// environmentsDir is where environments lie, below the data directory:
//
//	environments/<tree>           one environment's files, being built or sealed
//	environments/<key> -> <tree>  the one that is in force
//
// A tree knows its own path, so it is built where slots will find it, and put
// in force by a link. A tree without a link is nobody's.
const environmentsDir = "environments"

// Environments are directories of programs and packages that every slot of a
// host can read and run, and none can change. New ones are seen by slots that
// are open already.
type Environments struct{ host *Host }

// Environments returns those of the host.
func (h *Host) Environments() Environments { return Environments{h} }

// Root is the directory of all environments, as slots see it.
func (e Environments) Root() string {
	if e.host.how.namespaces {
		return viewEnvironments
	}
	return e.host.layout.path(environmentsDir)
}

// List returns the trees that are there, and which of them each key leads to.
func (e Environments) List() (trees []string, links map[string]string, err error) {
	entries, err := os.ReadDir(e.host.layout.path(environmentsDir))
	if err != nil {
		return nil, nil, fmt.Errorf("list environments: %w", err)
	}
	links = map[string]string{}
	for _, entry := range entries {
		if entry.Type()&os.ModeSymlink == 0 {
			trees = append(trees, entry.Name())
			continue
		}
		if to, err := os.Readlink(e.host.layout.path(environmentsDir, entry.Name())); err == nil {
			links[entry.Name()] = to
		}
	}
	return trees, links, nil
}

// Publish puts a sealed tree in force under the key, in place of an earlier
// one if there is one: whoever looks finds the one or the other.
func (e Environments) Publish(key, tree string) error {
	dir := e.host.layout.path(environmentsDir)
	next := filepath.Join(dir, "."+key)
	_ = os.Remove(next) // of an agent that ended in between
	if err := os.Symlink(tree, next); err != nil {
		return fmt.Errorf("publish environment: %w", err)
	}
	if err := os.Rename(next, filepath.Join(dir, key)); err != nil {
		return fmt.Errorf("publish environment: %w", err)
	}
	return syncDir(dir)
}

// Withdraw takes the key away. Its tree stays.
func (e Environments) Withdraw(key string) error {
	err := os.Remove(e.host.layout.path(environmentsDir, key))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("withdraw environment: %w", err)
	}
	return nil
}

// Discard takes a tree away, in constant time, and deletes it behind.
func (e Environments) Discard(tree string) error {
	h := e.host
	at := h.layout.path(environmentsDir, tree)
	// Who moves a directory writes to its entry for the parent.
	if err := os.Chmod(at, 0o700); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := os.Rename(at, h.layout.path("trash", "environment-"+tree)); err != nil {
		return fmt.Errorf("discard environment: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed { // the next agent empties it otherwise
		h.disposal.Go(func() { h.emptyTrash(h.ctx) })
	}
	return nil
}

// Usage is what a tree takes on disk, in allocated bytes, and how many files
// and directories it has.
func (e Environments) Usage(ctx context.Context, tree string) (bytes, files int64, err error) {
	return workspace.Usage(ctx, e.host.layout.path(environmentsDir, tree))
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}

// Build is a throw-away sandbox like any slot's, which sees no environment but
// may write one: its own, at the path that slots will see it at.
type Build struct {
	i    *instance
	tree string
}

// workplace is what an instance that builds has beside a slot's.
type workplace struct {
	tree string
	read []string
}

// Build makes a sandbox that builds the tree, which must not be there yet. It
// can also read the directories that are named, by their own paths.
func (e Environments) Build(ctx context.Context, tree string, read []string) (*Build, error) {
	if err := os.Mkdir(e.host.layout.path(environmentsDir, tree), 0o700); err != nil {
		return nil, fmt.Errorf("make environment: %w", err)
	}
	i, err := e.host.makeInstance(ctx, e.host.how, origin{work: &workplace{tree: tree, read: read}})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make sandbox of build: %w", err), e.Discard(tree))
	}
	return &Build{i, tree}, nil
}

// Path is the tree's path, in the build and for slots later.
func (b *Build) Path() string {
	return filepath.Join(Environments{b.i.host}.Root(), b.tree)
}

// Run is that of a Sandbox.
func (b *Build) Run(ctx context.Context, c Command) (exit slots.Exit, err error) {
	ctx, stop := b.i.watchDisk(ctx, aCommand)
	defer func() { tellDisk(&exit, stop()) }()
	return b.i.run(ctx, c)
}

// Seal ends every process of the build and makes the tree what it stays: the
// agent's own, readable to all, writable to none, and on disk. A tree that
// shares files with the world outside is refused.
func (b *Build) Seal(ctx context.Context) error {
	for _, c := range b.i.end(ctx) {
		if !c.OK {
			return fmt.Errorf("seal environment: %s: %s", c.Name, c.Note)
		}
	}
	s := sealer{uid: os.Geteuid(), gid: os.Getegid(), builder: os.Geteuid(), width: 1}
	if b.i.how.ids {
		s.builder, s.width = b.i.uid, b.i.host.uids.width
	}
	if err := s.seal(ctx, b.i.host.layout.path(environmentsDir, b.tree)); err != nil {
		return fmt.Errorf("seal environment: %w", err)
	}
	return nil
}

// Close ends the sandbox. The tree stays.
func (b *Build) Close(ctx context.Context) error {
	err := b.i.dispose(ctx)
	h := b.i.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.disposal.Go(func() { h.emptyTrash(h.ctx) })
	}
	return err
}

// makeWorkplace gives the tree to the instance that builds it.
func (i *instance) makeWorkplace() error {
	if i.work == nil || !i.how.ids {
		return nil
	}
	if err := os.Chown(i.host.layout.path(environmentsDir, i.work.tree), i.uid, i.uid); err != nil {
		return fmt.Errorf("give environment to its build: %w", err)
	}
	return nil
}

// environmentMounts shows the instance all environments, or its own only.
func (i *instance) environmentMounts() []holder.Mount {
	if i.work == nil {
		return []holder.Mount{{Kind: "bind", Source: environmentsDir, Target: viewEnvironments}}
	}
	mounts := []holder.Mount{{
		Kind: "bind", Source: filepath.Join(environmentsDir, i.work.tree),
		Target: filepath.Join(viewEnvironments, i.work.tree), Writable: true,
	}}
	for _, dir := range i.work.read {
		mounts = append(mounts, holder.Mount{Kind: "bind", Source: dir, Target: dir})
	}
	return mounts
}

// environmentRules is the same where Landlock is what keeps slots apart.
func (i *instance) environmentRules(l *holder.Landlock) {
	at := i.host.layout.path(environmentsDir)
	if i.work == nil {
		l.Read = append(l.Read, at)
		return
	}
	l.Write = append(l.Write, filepath.Join(at, i.work.tree))
	l.Read = append(l.Read, i.work.read...)
}

// Bounds of a tree: deeper or larger ones are made to harm.
const (
	maxSealDepth = 200
	maxSealFiles = 2_000_000
)

// sealer makes a tree read-only. Nobody else may have it open for writing.
type sealer struct {
	uid, gid       int // whose it becomes
	builder, width int // whose it is: ids from builder on

	files int
	names map[[2]uint64]uint64 // of files with several names: how many are in the tree
	links map[[2]uint64]uint64 // and how many there are
}

func (s *sealer) seal(ctx context.Context, dir string) error {
	s.names, s.links = map[[2]uint64]uint64{}, map[[2]uint64]uint64{}
	// First all of it is looked at: a file that has another name outside must
	// not change its owner or its mode.
	for _, visit := range []func(*os.File, string, *unix.Stat_t) error{s.check, s.change} {
		top, err := os.Open(dir)
		if err != nil {
			return err
		}
		err = s.walk(ctx, top, visit, 0)
		top.Close()
		if err != nil {
			return err
		}
		for file, names := range s.names {
			if s.links[file] != names {
				return errors.New("a file of it has another name outside")
			}
		}
	}
	top, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer top.Close()
	if err := top.Chown(s.uid, s.gid); err != nil {
		return err
	}
	if err := top.Chmod(0o555); err != nil {
		return err
	}
	if err := unix.Syncfs(int(top.Fd())); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return nil
}

// walk visits what is in a directory; directories after what is in them.
func (s *sealer) walk(ctx context.Context, dir *os.File, visit func(*os.File, string, *unix.Stat_t) error, depth int) error {
	if depth > maxSealDepth {
		return fmt.Errorf("more than %d directories deep", maxSealDepth)
	}
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	fd := int(dir.Fd())
	for _, name := range names {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var st unix.Stat_t
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			if err := s.descend(ctx, fd, name, visit, depth); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		if err := visit(dir, name, &st); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (s *sealer) descend(ctx context.Context, parent int, name string, visit func(*os.File, string, *unix.Stat_t) error, depth int) error {
	if s.uid != 0 { // its maker may have closed it to itself
		if err := unix.Fchmodat(parent, name, 0o700, 0); err != nil {
			return err
		}
	}
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	return s.walk(ctx, dir, visit, depth+1)
}

// check refuses what is not the builder's own.
func (s *sealer) check(_ *os.File, _ string, st *unix.Stat_t) error {
	if s.files++; s.files > maxSealFiles {
		return fmt.Errorf("more than %d files", maxSealFiles)
	}
	if id := int(st.Uid); id < s.builder || id >= s.builder+s.width {
		return fmt.Errorf("belongs to uid %d", id)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
		file := [2]uint64{st.Dev, st.Ino}
		s.names[file]++
		s.links[file] = st.Nlink
	}
	return nil
}

// change makes one file what it stays. What is no file, link or directory goes.
func (s *sealer) change(dir *os.File, name string, st *unix.Stat_t) error {
	fd := int(dir.Fd())
	mode := uint32(0o444)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		mode = 0o555
	case unix.S_IFREG:
		if st.Mode&0o111 != 0 {
			mode = 0o555
		}
	case unix.S_IFLNK:
		return unix.Fchownat(fd, name, s.uid, s.gid, unix.AT_SYMLINK_NOFOLLOW)
	default:
		return unix.Unlinkat(fd, name, 0)
	}
	if err := unix.Fchownat(fd, name, s.uid, s.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return unix.Fchmodat(fd, name, mode, 0) // it is no link
}
