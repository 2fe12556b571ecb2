package workspace

import (
	"bufio"
	"context"
	"errors"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"berth/slots"
)

// The modes of Grep.
const (
	GrepContent = "content"            // lines
	GrepFiles   = "files_with_matches" // paths
	GrepCount   = "count"              // path:count, of matching lines
)

// maxContext bounds the context lines on each side of a match.
const maxContext = 1_000

// GrepArgs says what to search for and where. The names and meanings are
// ripgrep's.
type GrepArgs struct {
	Pattern         string   `json:"pattern"`        // RE2 syntax
	Path            string   `json:"path,omitempty"` // a directory or file; default: the workspace
	Glob            []string `json:"glob,omitempty"` // search only files that match one; with "!" before it: leave out
	Type            string   `json:"type,omitempty"` // file type such as "py"
	Mode            string   `json:"mode,omitempty"` // default GrepFiles
	CaseInsensitive bool     `json:"case_insensitive,omitempty"`
	FixedStrings    bool     `json:"fixed_strings,omitempty"`
	Word            bool     `json:"word,omitempty"`
	Multiline       bool     `json:"multiline,omitempty"` // matches may span lines, and "." matches a line break
	LineNumbers     bool     `json:"line_numbers,omitempty"`
	Before          int      `json:"before,omitempty"`      // lines of context, at most 1 000
	After           int      `json:"after,omitempty"`       // lines of context, at most 1 000
	Context         int      `json:"context,omitempty"`     // Before and After where they are 0
	MaxResults      int      `json:"max_results,omitempty"` // matching lines in GrepContent, else files; 0: all
	Hidden          bool     `json:"hidden,omitempty"`      // search hidden files too
	NoIgnore        bool     `json:"no_ignore,omitempty"`   // do not heed .gitignore, .ignore and .rgignore
}

// GrepReply counts what was found. The lines went to the output.
type GrepReply struct {
	Matches    int  `json:"matches"`              // matching lines; in GrepFiles one per file
	Files      int  `json:"files"`                // with matches
	Searched   int  `json:"searched"`             // files read
	Truncated  bool `json:"truncated"`            // there is more than MaxResults
	Binary     int  `json:"binary,omitempty"`     // files left out because they hold NUL bytes
	TooLarge   int  `json:"too_large,omitempty"`  // files left out of a multiline search, above 8 MiB
	Unreadable int  `json:"unreadable,omitempty"` // files and directories
}

// Grep searches files line by line and prints to out what `rg --no-heading
// --sort path` prints, with these differences: paths are always relative to
// the workspace; .git directories are never searched; .gitignore counts
// without a repository as well; lines above 4 KiB are cut; in lines above 256
// KiB only the beginning is searched; files are taken as UTF-8.
func (t *Tree) Grep(ctx context.Context, args GrepArgs, out io.Writer) (GrepReply, error) {
	reply, err := t.grep(ctx, args, out)
	return reply, failure("grep", args.Path, err)
}

func (t *Tree) grep(ctx context.Context, args GrepArgs, out io.Writer) (GrepReply, error) {
	g, err := t.newGrep(args)
	if err != nil {
		return GrepReply{}, err
	}
	rel, err := t.relative(args.Path)
	if err != nil {
		return GrepReply{}, err
	}
	g.print.out = bufio.NewWriterSize(out, 16<<10)
	dir, err := t.openDir(rel)
	switch {
	case err == nil:
		err = g.searchTree(ctx, dir, rel)
	case errors.Is(err, unix.ENOTDIR):
		err = g.searchOne(ctx, rel)
	}
	if errors.Is(err, errEnough) {
		g.reply.Truncated, err = true, nil
	}
	if err == nil {
		err = g.print.out.Flush()
	}
	return g.reply, err
}

// grep is one search.
type grep struct {
	t        *Tree
	args     GrepArgs
	match    *matcher
	globs    []ignoreRule // of args.Glob
	only     bool         // globs hold one that names what to search
	kinds    []*glob      // of args.Type
	ignores  ignoreStack
	print    printer
	reply    GrepReply
	buf      []byte // of the file at hand; grows with long lines
	explicit bool   // a single file was asked for
}

// errEnough ends a search that has found all it may print.
var errEnough = errors.New("more matches than asked for")

func (t *Tree) newGrep(args GrepArgs) (*grep, error) {
	bad := func(format string, values ...any) (*grep, error) {
		return nil, refusal("grep", args.Path, slots.KindBadRequest, format, values...)
	}
	switch args.Mode {
	case "":
		args.Mode = GrepFiles
	case GrepContent, GrepFiles, GrepCount:
	default:
		return bad("Unknown mode: %s", shorten(args.Mode, 100))
	}
	if args.Before < 0 || args.After < 0 || args.Context < 0 || args.MaxResults < 0 {
		return bad("Invalid search: a negative number of lines")
	}
	g := &grep{t: t, args: args, buf: make([]byte, bufferSize)}
	if args.Mode == GrepContent {
		g.print.before, g.print.after = args.Before, args.After
		if g.print.before == 0 {
			g.print.before = args.Context
		}
		if g.print.after == 0 {
			g.print.after = args.Context
		}
		g.print.before, g.print.after = min(g.print.before, maxContext), min(g.print.after, maxContext)
		g.print.numbers = args.LineNumbers
	}
	var err error
	g.match, err = newMatcher(args.Pattern, args.FixedStrings, args.CaseInsensitive, args.Word, args.Multiline)
	if err != nil {
		return bad("Invalid pattern: %v", err)
	}
	for _, text := range args.Glob {
		rule, ok := parseIgnoreLine(text, rgGlob)
		if !ok {
			return bad("Invalid glob: %s", shorten(text, 200))
		}
		g.globs = append(g.globs, rule)
		g.only = g.only || !rule.negated
	}
	if args.Type != "" {
		patterns, known := fileTypes[args.Type]
		if !known {
			return bad("unrecognized file type: %s", shorten(args.Type, 100))
		}
		for _, p := range patterns {
			kind, err := compileGlob(p, rgGlob)
			if err != nil {
				return bad("Invalid glob: %s", p)
			}
			g.kinds = append(g.kinds, kind)
		}
	}
	return g, nil
}

// searchTree searches the files below dir, which it takes over.
func (g *grep) searchTree(ctx context.Context, dir handle, rel string) error {
	w := newWalker(dir, heldNames)
	defer w.close()
	prefix := prefixOf(rel)
	g.pushAncestors(prefix)
	g.push(dir, len(prefix))
	for e, ok := w.next(ctx); ok; e, ok = w.next(ctx) {
		// A walk that was thrown back by renames left more than one level.
		for len(g.ignores.sets) > 0 && g.ignores.sets[len(g.ignores.sets)-1].prefix > len(prefix)+len(w.path) {
			g.ignores.pop()
		}
		full := prefix + w.pathOf(e.name)
		isDir := e.kind == unix.DT_DIR
		switch {
		case e.leaving || e.kind != unix.DT_REG && !isDir || !g.wanted(full, isDir):
		case isDir:
			if err := w.enter(e.name); err == nil {
				g.push(w.dir(), len(full)+1)
			} else if !gone(err) {
				g.reply.Unreadable++
			}
		default:
			if err := g.searchFile(ctx, w.dir(), e.name, full); err != nil {
				return err
			}
		}
	}
	return w.err
}

// pushAncestors loads the rules of the directories above the search.
func (g *grep) pushAncestors(prefix string) {
	for i := 0; i < len(prefix); i += strings.IndexByte(prefix[i:], '/') + 1 {
		dir, err := g.t.openDir(orDot(strings.TrimSuffix(prefix[:i], "/")))
		if err != nil {
			continue
		}
		g.push(dir, i)
		dir.close()
	}
}

func (g *grep) push(dir handle, prefix int) {
	if !g.args.NoIgnore {
		g.ignores.push(g.t, dir, prefix)
	}
}

// wanted decides about a file or directory of the walk. Explicit globs come
// before all else, then ignore files, then the type, then hiding.
func (g *grep) wanted(full string, isDir bool) bool {
	name := path.Base(full)
	if name == ".git" {
		return false
	}
	if len(g.globs) > 0 {
		// A glob that git would call "ignored" names what is wanted.
		switch v := judge(g.globs, full, isDir); {
		case v == ignored:
			return true
		case v == included, g.only && !isDir:
			return false
		}
	}
	v := g.ignores.judge(full, isDir)
	if v == ignored {
		return false
	}
	if len(g.kinds) > 0 && !isDir {
		for _, kind := range g.kinds {
			if kind.match(name) {
				return true
			}
		}
		return false
	}
	return v == included || g.args.Hidden || name[0] != '.'
}

func (g *grep) searchOne(ctx context.Context, rel string) error {
	f, st, err := g.t.openFile(rel)
	if err != nil {
		return err
	}
	defer f.close()
	g.explicit = true
	return g.search(ctx, f, st.Size, path.Clean(rel))
}

func (g *grep) searchFile(ctx context.Context, dir handle, name, full string) error {
	f, st, err := g.t.openName(dir, name)
	if err != nil {
		if !gone(err) {
			g.reply.Unreadable++
		}
		return nil
	}
	defer f.close()
	return g.search(ctx, f, st.Size, full)
}
