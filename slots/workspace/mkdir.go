package workspace

import (
	"context"
	"errors"
	"path"

	"golang.org/x/sys/unix"
)

// MkdirArgs names the directory to make.
type MkdirArgs struct {
	Path string `json:"path"`
	Mode uint32 `json:"mode,omitempty"` // permission bits of the last directory; 0: 0777 minus umask. Only 0777 count
}

// MkdirReply describes the directory.
type MkdirReply struct {
	Path    string `json:"path"`    // from the workspace
	Created bool   `json:"created"` // it was not there before
}

// Mkdir makes a directory and those above it. One that is there already stays
// as it is.
func (t *Tree) Mkdir(_ context.Context, args MkdirArgs) (MkdirReply, error) {
	reply, err := t.mkdir(args)
	return reply, failure("mkdir", args.Path, err)
}

func (t *Tree) mkdir(args MkdirArgs) (MkdirReply, error) {
	rel, err := t.relative(args.Path)
	if err != nil {
		return MkdirReply{}, err
	}
	dir, created, err := t.makeDirs(rel)
	if err != nil {
		return MkdirReply{}, err
	}
	defer dir.close()
	if created && args.Mode != 0 {
		if err := unix.Fchmodat(int(dir), ".", args.Mode&0o777, 0); err != nil {
			return MkdirReply{}, err
		}
	}
	return MkdirReply{Path: path.Clean(rel), Created: created}, nil
}

// makeDirs makes rel and everything above it a directory, and opens it with
// O_PATH. created tells about rel itself.
func (t *Tree) makeDirs(rel string) (dir handle, created bool, err error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY
	dir, err = t.open(orDot(rel), flags)
	if errors.Is(err, unix.ENOENT) && !escapes(rel) {
		var p place
		if p, err = t.walk(rel, walkOptions{follow: true, make: true}); err != nil {
			return noHandle, false, asNotDir(err)
		}
		defer p.close()
		dir, err = openAt(p.dir, p.name, flags|unix.O_NOFOLLOW, 0)
		created = true
	}
	return dir, created, asNotDir(err)
}

// asNotDir tells "there is a file in the way" from "there is nothing".
func asNotDir(err error) error {
	if errors.Is(err, unix.ENOTDIR) {
		return errNotDir
	}
	return err
}
