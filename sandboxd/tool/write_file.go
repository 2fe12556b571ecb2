package tool

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/workspace"
)

// writeFile writes a text to a file, atomically, and makes the directories
// above it.
//
//	path     required
//	content  required, up to 100000 characters
type writeFile struct{}

// Name is "write_file".
func (writeFile) Name() string { return "write_file" }

// Run writes the file.
func (writeFile) Run(ctx context.Context, s Slot, c Call) api.Result {
	a := parseArgs(c.Args)
	path, content := a.need("path"), a.content("content")
	if a.err != nil {
		return refused(a.err)
	}
	if len(content) > maxFileChars && utf8.RuneCountInString(content) > maxFileChars {
		return c.fileFailed(ctx, path, slots.Errorf(slots.KindTooLarge,
			"Content too large: %d bytes (max %d)", len(content), maxFileChars))
	}
	var reply workspace.WriteReply
	err := s.Do(ctx, "write", workspace.WriteArgs{Path: path}, &reply, strings.NewReader(content), nil)
	if err != nil {
		return c.fileFailed(ctx, path, err)
	}
	return fileDone(fmt.Sprintf("Successfully wrote %d bytes to %s", len(content), path), path,
		map[string]any{"size": reply.Size, "created": reply.Created})
}
