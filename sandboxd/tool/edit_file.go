package tool

import (
	"context"
	"fmt"

	"berth/sandboxd/api"
	"berth/slots/workspace"
)

// editFile replaces one exact text in a file by another, atomically. Line
// ends, mode and everything around it stay as they are.
//
//	path         required
//	old_string   required, not empty; must occur exactly once unless replace_all
//	new_string   required
//	replace_all  default false
type editFile struct{}

// Name is "edit_file".
func (editFile) Name() string { return "edit_file" }

// Run edits the file.
func (editFile) Run(ctx context.Context, s Slot, c Call) api.Result {
	a := parseArgs(c.Args)
	args := workspace.EditArgs{
		Path: a.need("path"), Old: a.content("old_string"), New: a.content("new_string"),
		ReplaceAll: a.flag("replace_all", false),
	}
	if args.Old == "" {
		a.refuse("old_string", "must not be empty")
	}
	if args.Old == args.New {
		a.refuse("new_string", "must differ from old_string")
	}
	if a.err != nil {
		return refused(a.err)
	}
	var reply workspace.EditReply
	if err := s.Do(ctx, "edit", args, &reply, nil, nil); err != nil {
		return c.fileFailed(ctx, args.Path, err)
	}
	text := fmt.Sprintf("Successfully replaced %d occurrences in %s", reply.Replacements, args.Path)
	if reply.Replacements == 1 {
		text = "Successfully replaced 1 occurrence in " + args.Path
	}
	if reply.Diff != "" {
		text += "\n" + reply.Diff
	}
	return fileDone(text, args.Path, map[string]any{"replacements": reply.Replacements})
}
