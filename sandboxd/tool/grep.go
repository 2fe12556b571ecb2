package tool

import (
	"context"
	"strings"

	"berth/sandboxd/api"
	"berth/slots/workspace"
)

// grep searches files by a regular expression (RE2) and prints what ripgrep
// prints.
//
//	pattern           required
//	path              file or directory; default the workspace
//	glob              a pattern, or a list of them, that files must match
//	type              a file type like py, go, js
//	output_mode       files_with_matches (default), content, count
//	case_insensitive, line_numbers (default true), multiline, hidden, no_ignore, fixed_strings, word
//	before, after, context   lines around a match
//	head_limit        results at most; default 1000
//	max_output        characters kept; default 50000
//
// The names that ripgrep gives to flags work too: -i, -n, -A, -B, -C, -F, -w.
type grep struct{}

// Name is "grep".
func (grep) Name() string { return "grep" }

// Run searches. The lines pass through the call's stdout, so that they are
// bounded and can be followed like a command's.
func (grep) Run(ctx context.Context, s Slot, c Call) api.Result {
	a := parseArgs(c.Args)
	around := a.count("context", a.count("-C", 0, 0, 1000), 0, 1000)
	args := workspace.GrepArgs{
		Pattern: a.need("pattern"), Path: a.text("path"), Glob: a.words("glob"), Type: a.text("type"),
		Mode:            a.word("output_mode", workspace.GrepFiles, workspace.GrepContent, workspace.GrepCount),
		CaseInsensitive: a.either("case_insensitive", "-i", false),
		LineNumbers:     a.either("line_numbers", "-n", true),
		Before:          a.count("before", a.count("-B", around, 0, 1000), 0, 1000),
		After:           a.count("after", a.count("-A", around, 0, 1000), 0, 1000),
		Multiline:       a.flag("multiline", false),
		MaxResults:      a.count("head_limit", defaultEntries, 1, 1_000_000),
		Hidden:          a.flag("hidden", false), NoIgnore: a.flag("no_ignore", false),
		FixedStrings: a.either("fixed_strings", "-F", false), Word: a.either("word", "-w", false),
	}
	a.maxOutput()
	if a.err != nil {
		return refused(a.err)
	}
	if args.Path == "" {
		args.Path = "."
	}
	var reply workspace.GrepReply
	if err := s.Do(ctx, "grep", args, &reply, nil, c.Stdout); err != nil {
		return c.fileFailed(ctx, args.Path, err)
	}
	text := c.Stdout.Text()
	output := text.String
	if strings.TrimSpace(output) == "" && reply.Matches == 0 {
		output = "No matches found"
	}
	return fileDone(output, args.Path, map[string]any{
		"matches": reply.Matches, "files": reply.Files, "has_more": reply.Truncated || text.Truncated,
	})
}

// either is a flag with two names.
func (a *arguments) either(name, short string, byDefault bool) bool {
	return a.flag(name, a.flag(short, byDefault))
}
