package tool

import (
	"context"
	"strings"

	"berth/sandboxd/api"
	"berth/slots/workspace"
)

const (
	defaultEntries = 1_000 // entries of a listing, paths of a glob
	maxEntries     = 5_000
)

// listDir lists a directory, one path per line: a directory with a slash
// behind it, a link with its target. Paths are relative to the workspace.
//
//	path         default the workspace
//	recursive    default false
//	depth        levels below path when recursive; default all
//	max_entries  default 1000, at most 5000; metadata.has_more tells of others
type listDir struct{}

// Name is "list_dir".
func (listDir) Name() string { return "list_dir" }

// Run lists the directory.
func (listDir) Run(ctx context.Context, s Slot, c Call) api.Result {
	a := parseArgs(c.Args)
	path := a.text("path")
	if path == "" {
		path = "."
	}
	args := workspace.ListArgs{
		Path: path, Recursive: a.flag("recursive", false), Depth: a.count("depth", 0, 0, 1_000_000),
		MaxEntries: a.count("max_entries", defaultEntries, 1, maxEntries),
	}
	if a.err != nil {
		return refused(a.err)
	}
	var reply workspace.ListReply
	if err := s.Do(ctx, "list", args, &reply, nil, nil); err != nil {
		return c.fileFailed(ctx, path, err)
	}
	var out strings.Builder
	for i, e := range reply.Entries {
		if i > 0 {
			out.WriteByte('\n')
		}
		out.WriteString(e.Path)
		switch {
		case e.LinkTarget != "":
			out.WriteString(" -> " + e.LinkTarget)
		case e.IsDir:
			out.WriteByte('/')
		}
	}
	return fileDone(out.String(), path, map[string]any{"entries": len(reply.Entries), "has_more": reply.Truncated})
}
