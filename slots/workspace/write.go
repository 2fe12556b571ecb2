package workspace

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"berth/slots"
)

// WriteArgs says where and on which conditions to write.
type WriteArgs struct {
	Path    string `json:"path"`
	Mode    uint32 `json:"mode,omitempty"`     // permission bits; 0: those of the file that is replaced, else 0666 minus umask. Only 0777 count
	IfMatch string `json:"if_match,omitempty"` // sha256 that the present content must have, or "*": there must be a file; else slots.KindConflict
	SHA256  string `json:"sha256,omitempty"`   // that the new content must have, hexadecimal; else slots.KindBadRequest
	Max     int64  `json:"max,omitempty"`      // more content is refused with slots.KindTooLarge; 0: none
}

// WriteReply describes the file that was written.
type WriteReply struct {
	Path    string `json:"path"` // from the workspace
	Size    int64  `json:"size"` // bytes
	SHA256  string `json:"sha256"`
	Created bool   `json:"created"` // there was no file before
}

// Write replaces a file's content by what in holds, and makes missing parent
// directories. Nobody ever sees a half-written file: on any error the old
// content stays. A link is written through, if it stays in the tree; other
// hard links of the file keep the old content.
func (t *Tree) Write(ctx context.Context, args WriteArgs, in io.Reader) (WriteReply, error) {
	reply, err := t.write(ctx, args, in)
	return reply, failure("write", args.Path, err)
}

func (t *Tree) write(ctx context.Context, args WriteArgs, in io.Reader) (WriteReply, error) {
	rel, err := t.relative(args.Path)
	if err != nil {
		return WriteReply{}, err
	}
	p, err := t.placeForFile(rel, true)
	if err != nil {
		return WriteReply{}, err
	}
	defer p.close()
	if err := t.matches(ctx, args, &p); err != nil {
		return WriteReply{}, err
	}
	s, err := stage(p.dir, args.Mode, &p)
	if err != nil {
		return WriteReply{}, err
	}
	defer s.discard()
	sum := sha256.New()
	size, err := t.copyIn(ctx, io.MultiWriter(s.file, sum), in, args)
	if err != nil {
		return WriteReply{}, err
	}
	reply := WriteReply{Path: path.Clean(rel), Size: size, SHA256: hexSum(sum), Created: !p.exists}
	if args.SHA256 != "" && !strings.EqualFold(args.SHA256, reply.SHA256) {
		return WriteReply{}, refusal("write", args.Path, slots.KindBadRequest,
			"Checksum mismatch: content has sha256 %s", reply.SHA256)
	}
	return reply, s.commit(p.name, p.exists)
}

// placeForFile finds where the regular file rel is or may be made, and, if
// asked, makes the directories above it.
func (t *Tree) placeForFile(rel string, makeParents bool) (place, error) {
	p, err := t.place(rel, true)
	if makeParents && errors.Is(err, unix.ENOENT) {
		parent, _ := splitLast(rel)
		dir, _, mkErr := t.makeDirs(parent)
		if mkErr != nil {
			return place{}, mkErr
		}
		dir.close()
		p, err = t.place(rel, true)
	}
	switch {
	case errors.Is(err, unix.ENOTDIR) && makeParents:
		return place{}, errNotDir
	case err != nil:
		return place{}, err
	case p.exists && !isKind(&p.stat, unix.S_IFREG):
		p.close()
		return place{}, errNotFile
	}
	return p, nil
}

// matches checks the write's condition on the present content.
func (t *Tree) matches(ctx context.Context, args WriteArgs, p *place) error {
	if args.IfMatch == "" {
		return nil
	}
	changed := refusal("write", args.Path, slots.KindConflict, "File has changed: %s", args.Path)
	if !p.exists {
		return changed
	}
	if args.IfMatch == "*" {
		return nil
	}
	f, st, err := t.openName(p.dir, p.name)
	if err != nil {
		return err
	}
	defer f.close()
	r := reading{t: t, file: f, out: io.Discard, to: st.Size, size: st.Size, part: sha256.New()}
	if err := r.run(ctx); err != nil {
		return err
	}
	if !strings.EqualFold(hexSum(r.part), args.IfMatch) {
		return changed
	}
	return nil
}

// copyIn copies in to its end.
func (t *Tree) copyIn(ctx context.Context, out io.Writer, in io.Reader, args WriteArgs) (int64, error) {
	lent := t.buffer()
	defer t.release(lent)
	buf := *lent
	size := int64(0)
	for {
		if err := ended(ctx); err != nil {
			return size, err
		}
		n, err := in.Read(buf)
		size += int64(n)
		if args.Max > 0 && size > args.Max {
			return size, refusal("write", args.Path, slots.KindTooLarge,
				"Content too large: %d bytes (max %d)", size, args.Max)
		}
		if _, werr := out.Write(buf[:n]); werr != nil {
			return size, werr
		}
		if errors.Is(err, io.EOF) {
			return size, nil
		}
		if err != nil {
			return size, fmt.Errorf("read content: %w", err)
		}
	}
}

// staged is a file being written beside the name that it will get.
type staged struct {
	dir  handle
	file handle
	name string // "" once it has got its final name or is removed
}

// stagePrefix begins the names of staged files. What a killed process leaves
// behind can be told by it.
const stagePrefix = ".berth-"

// stage makes an empty file in dir. Its permission bits are mode, or those of
// the file that it will replace, and never setuid, setgid or sticky.
func stage(dir handle, mode uint32, replaces *place) (*staged, error) {
	if mode == 0 && replaces != nil && replaces.exists {
		mode = replaces.stat.Mode
	}
	for {
		name := fmt.Sprintf("%s%016x", stagePrefix, rand.Uint64())
		file, err := openAt(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o666)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			return nil, err
		}
		s := &staged{dir: dir, file: file, name: name}
		if mode != 0 {
			if err := unix.Fchmod(int(file), mode&0o777); err != nil {
				s.discard()
				return nil, err
			}
		}
		return s, nil
	}
}

// commit gives the file its name, in place of what had it. A link of that
// name is replaced, not followed. replaces says that there probably is one.
func (s *staged) commit(name string, replaces bool) error {
	// Some file systems report a lost write at close only.
	err := unix.Close(int(s.file))
	s.file = noHandle
	if err != nil {
		return err
	}
	// ext4 writes a file to disk when it is renamed over another, which takes
	// a millisecond. It does not when the two change places, which is just as
	// atomic.
	if replaces && unix.Renameat2(int(s.dir), s.name, int(s.dir), name, unix.RENAME_EXCHANGE) == nil {
		err = unix.Unlinkat(int(s.dir), s.name, 0)
		if errors.Is(err, unix.EISDIR) { // somebody put a directory there: give it back
			return errors.Join(err, unix.Renameat2(int(s.dir), s.name, int(s.dir), name, unix.RENAME_EXCHANGE))
		}
	} else {
		err = unix.Renameat(int(s.dir), s.name, int(s.dir), name)
	}
	if err == nil {
		s.name = ""
	}
	return err
}

// discard removes the file unless it was committed.
func (s *staged) discard() {
	s.file.close()
	s.file = noHandle
	if s.name != "" {
		_ = unix.Unlinkat(int(s.dir), s.name, 0) // best effort: the error that led here is the one to report
		s.name = ""
	}
}
