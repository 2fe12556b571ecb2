package tool

import (
	"context"
	"strings"

	"berth/sandboxd/api"
	"berth/slots/workspace"
)

// glob finds files by a pattern with *, **, ?, [] and {}, newest first.
//
//	pattern      required
//	path         directory to look in; default the workspace
//	max_results  default 1000, at most 5000; metadata.has_more tells of others
type glob struct{}

// Name is "glob".
func (glob) Name() string { return "glob" }

// Run finds the files.
func (glob) Run(ctx context.Context, s Slot, c Call) api.Result {
	a := parseArgs(c.Args)
	args := workspace.GlobArgs{
		Pattern: a.need("pattern"), Path: a.text("path"),
		Max: a.count("max_results", defaultEntries, 1, maxEntries),
	}
	if a.err != nil {
		return refused(a.err)
	}
	if args.Path == "" {
		args.Path = "."
	}
	var reply workspace.GlobReply
	if err := s.Do(ctx, "glob", args, &reply, nil, nil); err != nil {
		return c.fileFailed(ctx, args.Path, err)
	}
	paths := make([]string, len(reply.Matches))
	for i, m := range reply.Matches {
		paths[i] = m.Path
	}
	output := strings.Join(paths, "\n")
	if output == "" {
		output = "No files found"
	}
	return fileDone(output, args.Path, map[string]any{
		"count": len(paths), "total": reply.Total, "has_more": reply.Truncated,
	})
}
