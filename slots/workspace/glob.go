package workspace

import (
	"cmp"
	"context"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"berth/slots"
)

// defaultMatches is how many files Glob names when it is not told.
const defaultMatches = 1_000

// GlobArgs says which files to look for.
type GlobArgs struct {
	Pattern string `json:"pattern"`        // as in the module doublestar: *, **, ?, [a-z], {a,b}; from Path, or absolute
	Path    string `json:"path,omitempty"` // a directory; default: the workspace
	Max     int    `json:"max,omitempty"`  // files named; default 1 000
}

// GlobReply holds the files that match, the newest first, then by path.
type GlobReply struct {
	Matches    []Entry `json:"matches"`
	Total      int     `json:"total"` // how many match, also beyond Max
	Truncated  bool    `json:"truncated"`
	Unreadable int     `json:"unreadable,omitempty"` // directories that could not be listed
}

// Glob finds files by pattern: everything that is no directory, hidden files
// too, but nothing in a .git directory. Links are not followed below the
// pattern's fixed beginning.
func (t *Tree) Glob(ctx context.Context, args GlobArgs) (GlobReply, error) {
	reply, err := t.glob(ctx, args)
	return reply, failure("glob", args.Pattern, err)
}

func (t *Tree) glob(ctx context.Context, args GlobArgs) (GlobReply, error) {
	most := args.Max
	if most == 0 {
		most = defaultMatches
	}
	if args.Pattern == "" || most < 0 {
		return GlobReply{}, refusal("glob", args.Pattern, slots.KindBadRequest,
			"Invalid glob: pattern %q, max %d", shorten(args.Pattern, 200), args.Max)
	}
	top, pattern, err := t.globRoot(args)
	if err != nil {
		return GlobReply{}, err
	}
	g, err := compileGlob(pattern, starGlob)
	if err != nil {
		return GlobReply{}, refusal("glob", args.Pattern, slots.KindBadRequest,
			"Invalid pattern %q: %v", shorten(args.Pattern, 200), err)
	}
	dir, err := t.openDir(top)
	if err != nil {
		return GlobReply{}, err
	}
	w := newWalker(dir, heldNames)
	defer w.close()
	prefix := prefixOf(top)
	search := globSearch{glob: g, prefix: prefix, deepest: deepest(pattern)}
	search.best = smallest[Entry]{n: most, compare: newestFirst}
	search.run(ctx, w)
	matches := search.best.sorted()
	if matches == nil {
		matches = []Entry{}
	}
	return GlobReply{
		Matches: matches, Total: search.total, Truncated: search.best.dropped, Unreadable: search.unreadable,
	}, w.err
}

// globRoot splits the pattern into the directory that it surely lies in,
// from the workspace, and the pattern from there.
func (t *Tree) globRoot(args GlobArgs) (top, pattern string, err error) {
	from, pattern := args.Path, args.Pattern
	if path.IsAbs(pattern) {
		from = ""
	}
	if pattern, err = t.relative(pattern); err != nil {
		return "", "", err
	}
	if top, err = t.relative(from); err != nil {
		return "", "", err
	}
	for {
		first, rest, more := strings.Cut(pattern, "/")
		if !more || strings.ContainsAny(first, `*?[]{}\`) {
			return top, pattern, nil
		}
		top, pattern = top+"/"+first, strings.TrimLeft(rest, "/")
	}
}

// deepest is how many levels below its top a pattern can match; -1 means
// any number.
func deepest(pattern string) int {
	if strings.Contains(pattern, "**") || strings.ContainsAny(pattern, `{\[`) {
		return -1
	}
	return strings.Count(pattern, "/")
}

// newestFirst orders by time and then by path.
func newestFirst(a, b Entry) int {
	return cmp.Or(cmp.Compare(b.Mtime, a.Mtime), strings.Compare(a.Path, b.Path))
}

type globSearch struct {
	glob       *glob
	prefix     string // of the top, from the workspace
	deepest    int
	best       smallest[Entry]
	total      int
	unreadable int
}

func (s *globSearch) run(ctx context.Context, w *walker) {
	// Files that do not match are never held.
	w.admit = func(dir handle, name string, kind uint8, again bool) bool {
		if kind == unix.DT_DIR {
			return name != ".git" && (s.deepest < 0 || w.depth() < s.deepest)
		}
		if rel := w.pathOf(name); !again && ctx.Err() == nil && s.glob.match(rel) {
			if e, _, err := describe(dir, name, s.prefix+rel); err == nil {
				s.total++
				s.best.add(e)
			}
		}
		return false
	}
	for e, ok := w.next(ctx); ok; e, ok = w.next(ctx) {
		if e.leaving {
			continue
		}
		if err := w.enter(e.name); err != nil && !gone(err) {
			s.unreadable++
		}
	}
}
