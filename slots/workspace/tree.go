package workspace

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Tree is a directory tree, held by its open root. It may be used by many
// goroutines at once.
type Tree struct {
	root     handle
	prefixes []string // absolute paths that mean the root
	beneath  bool     // the kernel has openat2
	uid      uint32   // who we are: see checkFile
	buffers  sync.Pool
}

// Open opens the tree below root. Absolute paths below root or below one of
// the aliases (such as "/workspace") mean the tree as well. Close releases
// it.
func Open(root string, aliases ...string) (*Tree, error) {
	absolute, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("open workspace: %w", err)
	}
	fd, err := unix.Open(absolute, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open workspace %s: %w", absolute, err)
	}
	t := &Tree{root: handle(fd), prefixes: append([]string{absolute}, aliases...), uid: uint32(unix.Geteuid())}
	for _, p := range t.prefixes {
		if !path.IsAbs(p) || path.Clean(p) == "/" {
			t.root.close()
			return nil, fmt.Errorf("open workspace %s: alias %q is no absolute directory below /", absolute, p)
		}
	}
	// Old kernels lack openat2, and old seccomp profiles answer EPERM for
	// what they do not know. Asking once keeps later errors unambiguous.
	probe, err := openat2(t.root, ".", unix.O_PATH|unix.O_DIRECTORY)
	t.beneath = err == nil
	probe.close()
	return t, nil
}

// Close releases the root. The tree must not be in use.
func (t *Tree) Close() error {
	t.root.close()
	t.root = noHandle
	return nil
}

// maxPath bounds the paths we look at. It is far above the kernel's PATH_MAX,
// because what list shows in a deep tree should be readable as well.
const maxPath = 128 << 10

// relative maps what a caller calls a path to one that starts at the root.
// It decides about the prefix of absolute paths only. Where the rest leads
// is for the kernel to say, because only it knows the links.
func (t *Tree) relative(name string) (string, error) {
	switch {
	case strings.IndexByte(name, 0) >= 0:
		return "", errNUL
	case len(name) > maxPath:
		return "", unix.ENAMETOOLONG
	case !path.IsAbs(name):
		return orDot(strings.TrimRight(name, "/")), nil
	}
	for _, prefix := range t.prefixes {
		if rest, ok := below(name, prefix); ok {
			return orDot(strings.TrimRight(rest, "/")), nil
		}
	}
	return "", errOutside
}

func orDot(rel string) string {
	if rel == "" {
		return "."
	}
	return rel
}

// below cuts the components of prefix off name.
func below(name, prefix string) (rest string, ok bool) {
	for want, more := firstComponent(prefix); want != ""; want, more = firstComponent(more) {
		got, tail := firstComponent(name)
		if got != want {
			return "", false
		}
		name = tail
	}
	return strings.TrimLeft(name, "/"), true
}

// firstComponent splits off the first component; empty ones and "." do not
// count. At the end it returns "".
func firstComponent(name string) (component, rest string) {
	for name != "" {
		component, rest, _ = strings.Cut(name, "/")
		if component != "" && component != "." {
			return component, rest
		}
		name = rest
	}
	return "", ""
}

// escapes reports whether rel leaves the root when no component is a link.
func escapes(rel string) bool {
	clean := path.Clean(rel)
	return clean == ".." || strings.HasPrefix(clean, "../")
}
