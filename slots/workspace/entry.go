package workspace

import (
	"path"

	"golang.org/x/sys/unix"
)

// Entry describes one name in the tree. A link is described as itself.
type Entry struct {
	Path       string  `json:"path"` // from the workspace; invalid UTF-8 is replaced on the wire
	IsDir      bool    `json:"is_dir"`
	Type       string  `json:"type"` // file, dir, link, fifo, socket, char, block
	Size       int64   `json:"size"` // bytes, as stat reports them
	Mtime      float64 `json:"mtime"`
	Mode       uint32  `json:"mode"` // permission bits
	LinkTarget string  `json:"link_target,omitempty"`
}

// types names the kinds of files by DT_ value, which is S_IFMT >> 12.
var types = map[uint8]string{
	unix.DT_REG: "file", unix.DT_DIR: "dir", unix.DT_LNK: "link", unix.DT_FIFO: "fifo",
	unix.DT_SOCK: "socket", unix.DT_CHR: "char", unix.DT_BLK: "block",
}

func newEntry(at string, st *unix.Stat_t) Entry {
	return Entry{
		Path: at, IsDir: isKind(st, unix.S_IFDIR), Type: types[uint8(st.Mode&unix.S_IFMT>>12)],
		Size: st.Size, Mtime: seconds(st.Mtim), Mode: st.Mode & 0o7777,
	}
}

// prefixOf is what stands before the paths of what lies in a directory, which
// are from the workspace.
func prefixOf(dir string) string {
	if dir = path.Clean(dir); dir == "." {
		return ""
	}
	return dir + "/"
}

// describe makes the Entry of a name in dir, with the target if it is a link.
func describe(dir handle, name, at string) (Entry, unix.Stat_t, error) {
	st, err := dir.lstat(name)
	if err != nil {
		return Entry{}, st, err
	}
	e := newEntry(at, &st)
	if isKind(&st, unix.S_IFLNK) {
		if e.LinkTarget, err = dir.readlink(name); err != nil {
			return Entry{}, st, err
		}
	}
	return e, st, nil
}

// seconds is a time as the reference reports it: seconds since 1970.
func seconds(t unix.Timespec) float64 { return float64(t.Sec) + float64(t.Nsec)/1e9 }

// Omission is something that was left out of an answer, and why.
type Omission struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// maxOmissions bounds how many omissions are named. The count goes on.
const maxOmissions = 100

// Omissions counts what was left out and names the first hundred.
type Omissions struct {
	Count int        `json:"omitted_count"`
	Named []Omission `json:"omitted,omitempty"`
}

func (o *Omissions) add(path, reason string) {
	o.Count++
	if len(o.Named) < maxOmissions {
		o.Named = append(o.Named, Omission{shorten(path, 512), reason})
	}
}
