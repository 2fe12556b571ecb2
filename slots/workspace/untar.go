package workspace

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/slots"
)

const (
	defaultUntarBytes   = 8 << 30
	defaultUntarEntries = 1_000_000
	// maxRatio is how many bytes one compressed byte may become, once the
	// archive has grown beyond ratioFrom. Real trees stay far below.
	maxRatio  = 500
	ratioFrom = 64 << 20
	// delayedDirs bounds the directories whose mode and time are set at the
	// end; later ones keep what they got when they were made.
	delayedDirs = 65_536
)

// UntarArgs says where to unpack.
type UntarArgs struct {
	Path       string `json:"path,omitempty"`        // a directory, made if it is missing; default: the workspace
	MaxBytes   int64  `json:"max_bytes,omitempty"`   // of all files' contents; default 8 GiB
	MaxEntries int    `json:"max_entries,omitempty"` // default 1 000 000
}

// UntarReply describes what was unpacked.
type UntarReply struct {
	Path      string `json:"path"` // from the workspace
	Entries   int    `json:"entries"`
	Bytes     int64  `json:"bytes"` // of all files' contents
	Omissions        // entries that are not safe to unpack
}

// Untar unpacks a tar archive, gzipped or not, below a directory. Nothing is
// written through a link, and every entry that is absolute, contains "..",
// is or needs a link that leaves the tree, or is no file, directory or link
// is left out. Setuid, setgid and sticky bits and owners are dropped. Of
// several entries of one name the last one stays. What exceeds a bound ends
// it with slots.KindTooLarge; what was unpacked by then stays.
func (t *Tree) Untar(ctx context.Context, args UntarArgs, in io.Reader) (UntarReply, error) {
	reply, err := t.untar(ctx, args, in)
	return reply, failure("untar", args.Path, err)
}

func (t *Tree) untar(ctx context.Context, args UntarArgs, in io.Reader) (UntarReply, error) {
	if args.MaxBytes < 0 || args.MaxEntries < 0 {
		return UntarReply{}, refusal("untar", args.Path, slots.KindBadRequest,
			"Invalid bounds: max_bytes %d, max_entries %d", args.MaxBytes, args.MaxEntries)
	}
	if args.MaxBytes == 0 {
		args.MaxBytes = defaultUntarBytes
	}
	if args.MaxEntries == 0 {
		args.MaxEntries = defaultUntarEntries
	}
	rel, err := t.relative(args.Path)
	if err != nil {
		return UntarReply{}, err
	}
	stream, err := openArchive(ctx, in, args)
	if err != nil {
		return UntarReply{}, err
	}
	top, _, err := t.makeDirs(rel)
	if err != nil {
		return UntarReply{}, err
	}
	defer top.close()
	u := unpacker{t: t, args: args, top: top, topRel: path.Clean(rel), parent: noHandle, reply: UntarReply{Path: path.Clean(rel)}}
	defer func() { u.parent.close() }()
	err = u.run(ctx, tar.NewReader(stream))
	u.settle()
	return u.reply, err
}

// openArchive undoes the compression, if there is one, and bounds the result.
func openArchive(ctx context.Context, in io.Reader, args UntarArgs) (io.Reader, error) {
	counted := &countingReader{in: in}
	buffered := bufio.NewReader(counted)
	start, err := buffered.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read archive: %w", err)
	}
	stream := &boundedReader{ctx: ctx, in: buffered, args: args}
	if string(start) == "\x1f\x8b" {
		if stream.in, err = gzip.NewReader(buffered); err != nil {
			return nil, badArchive(args, err)
		}
		stream.packed = counted
	}
	return stream, nil
}

func badArchive(args UntarArgs, err error) error {
	return refusal("untar", args.Path, slots.KindBadRequest, "Invalid archive: %v", err)
}

type countingReader struct {
	in io.Reader
	n  int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	c.n += int64(n)
	return n, err
}

// boundedReader ends a stream that is a decompression bomb, and one whose
// context has ended. Contents are bounded where they are written; this also
// bounds what is read only to be skipped.
type boundedReader struct {
	ctx    context.Context //nolint:containedctx // io.Reader has no room for it; lives as long as one Untar
	in     io.Reader
	packed *countingReader // nil: the stream is not compressed
	n      int64
	args   UntarArgs
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if err := ended(b.ctx); err != nil {
		return 0, err
	}
	n, err := b.in.Read(p)
	b.n += int64(n)
	if b.packed != nil && b.n > ratioFrom && b.n/maxRatio > b.packed.n {
		return 0, refusal("untar", b.args.Path, slots.KindTooLarge,
			"Archive too large: it unpacks to more than %d times its size", maxRatio)
	}
	return n, err
}

// unpacker unpacks one archive.
type unpacker struct {
	t      *Tree
	args   UntarArgs
	top    handle // the directory to unpack into
	topRel string
	reply  UntarReply

	parent     handle // of the last entry, kept for the next; noHandle: none
	parentName string
	dirs       []delayedDir
}

// delayedDir is a directory that gets its mode and time when all is unpacked:
// its own entries would change the time, and a read-only mode would keep them
// out.
type delayedDir struct {
	name  string
	mode  uint32
	mtime time.Time
}

func (u *unpacker) run(ctx context.Context, archive *tar.Reader) error {
	for seen := 0; ; seen++ {
		h, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return u.archiveError(err)
		case seen >= u.args.MaxEntries:
			return refusal("untar", u.args.Path, slots.KindTooLarge,
				"Archive has too many entries (max %d)", u.args.MaxEntries)
		}
		if err := u.unpack(ctx, h, &memberContent{archive: archive, typed: u.archiveError}); err != nil {
			return err
		}
	}
}

// archiveError tells a broken archive from a broken or bounded stream.
func (u *unpacker) archiveError(err error) error {
	if _, typed := errors.AsType[*slots.Error](err); typed ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return badArchive(u.args, err)
}

// memberContent reads the content of an entry, and types what is wrong with
// the archive, so that it is told apart from what is wrong with the disk.
type memberContent struct {
	archive *tar.Reader
	typed   func(error) error
}

func (c *memberContent) Read(p []byte) (int, error) {
	n, err := c.archive.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = c.typed(err)
	}
	return n, err
}

// omitError is why an entry is left out; the text is the reason.
type omitError string

func (e omitError) Error() string { return string(e) }

// unpack unpacks one entry, or notes why not.
func (u *unpacker) unpack(ctx context.Context, h *tar.Header, content io.Reader) error {
	err := u.entry(ctx, h, content)
	if omit, ok := errors.AsType[omitError](err); ok {
		u.reply.add(h.Name, string(omit))
		return nil
	}
	if err == nil {
		u.reply.Entries++
	}
	return err
}

func (u *unpacker) entry(ctx context.Context, h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return omitError("global header")
	}
	name, err := memberName(h.Name)
	if err != nil {
		return err
	}
	if name == "." { // the top itself: it is there, and its mode is not ours to change
		return nil
	}
	dir, err := u.openParent(path.Dir(name))
	if err != nil {
		return err
	}
	leaf := path.Base(name)
	switch h.Typeflag {
	case tar.TypeDir:
		return u.makeDir(dir, leaf, name, h)
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.makeFile(ctx, dir, leaf, h, content)
	case tar.TypeSymlink:
		return u.makeSymlink(dir, leaf, name, h)
	case tar.TypeLink:
		return u.makeHardLink(dir, leaf, h)
	}
	return omitError("not a file, directory or link")
}

// memberName checks the name of an entry and brings it to its shortest form.
func memberName(name string) (string, error) {
	switch {
	case strings.IndexByte(name, 0) >= 0:
		return "", omitError("name holds a NUL byte")
	case path.IsAbs(name):
		return "", omitError("absolute path")
	case len(name) >= unix.PathMax:
		return "", omitError("path too long")
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", omitError("path with ..")
		}
		if len(part) > unix.NAME_MAX {
			return "", omitError("path too long")
		}
	}
	return path.Clean(name), nil
}

// openParent opens the directory of an entry, and makes what is missing. No
// component may be a link: an earlier entry could have made it, to lead the
// next one away. The last directory is kept, as entries mostly come together.
func (u *unpacker) openParent(name string) (handle, error) {
	if name == "." {
		return u.top, nil
	}
	if u.parent != noHandle && u.parentName == name {
		return u.parent, nil
	}
	dir := u.top
	for part := range strings.SplitSeq(name, "/") {
		next, err := subdirectory(dir, part)
		if dir != u.top {
			dir.close()
		}
		if err != nil {
			return noHandle, err
		}
		dir = next
	}
	u.parent.close()
	u.parent, u.parentName = dir, name
	return dir, nil
}

// subdirectory opens, or makes and opens, a directory.
func subdirectory(dir handle, name string) (handle, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW
	next, err := openAt(dir, name, flags, 0)
	if errors.Is(err, unix.ENOENT) {
		if err := unix.Mkdirat(int(dir), name, 0o777); err != nil && !errors.Is(err, unix.EEXIST) {
			return noHandle, err
		}
		next, err = openAt(dir, name, flags, 0)
	}
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return noHandle, omitError("leads through a file or link")
	}
	return next, err
}

func (u *unpacker) makeDir(dir handle, leaf, name string, h *tar.Header) error {
	if err := clearName(dir, leaf, true); err != nil {
		return err
	}
	made, err := subdirectory(dir, leaf)
	if err != nil {
		return err
	}
	made.close()
	if len(u.dirs) < delayedDirs {
		u.dirs = append(u.dirs, delayedDir{name: name, mode: uint32(h.Mode) & 0o777, mtime: h.ModTime})
	}
	return nil
}

func (u *unpacker) makeFile(ctx context.Context, dir handle, leaf string, h *tar.Header, content io.Reader) error {
	if room := u.args.MaxBytes - u.reply.Bytes; h.Size > room {
		return refusal("untar", u.args.Path, slots.KindTooLarge,
			"Archive too large: more than %d bytes (max %d)", u.reply.Bytes+min(h.Size, room), u.args.MaxBytes)
	}
	s, err := stage(dir, 0, nil)
	if err != nil {
		return err
	}
	defer s.discard()
	n, err := u.t.copyIn(ctx, s.file, content, WriteArgs{})
	if err != nil {
		return err
	}
	u.reply.Bytes += n
	if err := unix.Fchmod(int(s.file), uint32(h.Mode)&0o777); err != nil {
		return err
	}
	setTime(dir, s.name, h.ModTime)
	err = s.commit(leaf, false)
	if errors.Is(err, unix.EISDIR) {
		return omitError("there is a directory of that name")
	}
	return err
}

func (u *unpacker) makeSymlink(dir handle, leaf, name string, h *tar.Header) error {
	if !u.inTree(path.Dir(name), h.Linkname) {
		return omitError("link leaves the tree")
	}
	if err := clearName(dir, leaf, false); err != nil {
		return err
	}
	if err := unix.Symlinkat(h.Linkname, int(dir), leaf); err != nil {
		return err
	}
	setTime(dir, leaf, h.ModTime)
	return nil
}

// inTree reports whether a link in the directory at points into the tree, so
// far as the text tells. It keeps plain traps out of the workspace; safety
// does not rest on it, since every use of a link is checked by the resolver.
func (u *unpacker) inTree(at, target string) bool {
	if target == "" || strings.IndexByte(target, 0) >= 0 || len(target) >= unix.PathMax {
		return false
	}
	if !path.IsAbs(target) {
		return !escapes(path.Join(u.topRel, at) + "/" + target)
	}
	rel, err := u.t.relative(target)
	return err == nil && !escapes(rel)
}

// makeHardLink links to a file that was unpacked before.
func (u *unpacker) makeHardLink(dir handle, leaf string, h *tar.Header) error {
	name, err := memberName(h.Linkname)
	if err != nil {
		return omitError("link leaves the tree")
	}
	from, err := u.t.linkSource(u.top, path.Dir(name))
	if err != nil {
		return err
	}
	if from != u.top {
		defer from.close()
	}
	source := path.Base(name)
	st, err := from.lstat(source)
	if err != nil || !isKind(&st, unix.S_IFREG) {
		return omitError("link to no file of the archive")
	}
	if target, err := dir.lstat(leaf); err == nil && inodeOf(&target) == inodeOf(&st) {
		return nil // a link to itself must not remove the file
	}
	if err := clearName(dir, leaf, false); err != nil {
		return err
	}
	return unix.Linkat(int(from), source, int(dir), leaf, 0)
}

// linkSource opens a directory below top, no component of which is a link.
func (t *Tree) linkSource(top handle, name string) (handle, error) {
	dir := top
	for part := range strings.SplitSeq(name, "/") {
		if part == "." {
			continue
		}
		next, err := openAt(dir, part, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if dir != top {
			dir.close()
		}
		if err != nil {
			return noHandle, omitError("link to no file of the archive")
		}
		dir = next
	}
	return dir, nil
}

// clearName makes room for an entry: what has its name already goes, unless
// it is a directory, which stays where a directory is to be and else keeps
// the entry out.
func clearName(dir handle, name string, wantDir bool) error {
	st, err := dir.lstat(name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return err
	case isKind(&st, unix.S_IFDIR) && wantDir:
		return nil
	case isKind(&st, unix.S_IFDIR):
		return omitError("there is a directory of that name")
	}
	return unix.Unlinkat(int(dir), name, 0)
}

// settle gives directories their modes and times, inner ones first.
func (u *unpacker) settle() {
	for _, d := range slices.Backward(u.dirs) {
		dir, err := u.t.linkSource(u.top, d.name)
		if err != nil {
			continue // replaced by a later entry, or removed by somebody else
		}
		_ = unix.Fchmodat(int(dir), ".", d.mode, 0) // an unpacked tree with wrong modes is better than none
		setTime(dir, ".", d.mtime)
		dir.close()
	}
}

// setTime sets the time of name in dir, as well as the file system can store
// it.
func setTime(dir handle, name string, when time.Time) {
	stamp := unix.Timespec{Sec: when.Unix(), Nsec: int64(when.Nanosecond())}
	_ = unix.UtimesNanoAt(int(dir), name, []unix.Timespec{stamp, stamp}, unix.AT_SYMLINK_NOFOLLOW)
}
