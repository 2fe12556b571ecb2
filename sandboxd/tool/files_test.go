package tool

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/sandbox"
	"berth/slots/workspace"
)

func nothing(context.Context, string, any, any, io.Reader, io.Writer) error { return nil }

// answers is a Do that sets the reply and writes the output. The reply takes
// the way over JSON, like that of a holder.
func answers(t *testing.T, gave *any, reply any, output string) func(context.Context, string, any, any, io.Reader, io.Writer) error {
	t.Helper()
	return func(_ context.Context, _ string, args, into any, _ io.Reader, out io.Writer) error {
		*gave = args
		text, err := json.Marshal(reply)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, into))
		if out != nil {
			_, err = io.WriteString(out, output)
		}
		return err
	}
}

// holds is a slot with one file.
func holds(content string) *fakeSlot {
	return &fakeSlot{do: func(_ context.Context, op string, args, reply any, _ io.Reader, out io.Writer) error {
		a, ok := args.(workspace.ReadArgs)
		if op != "read" || !ok {
			return fmt.Errorf("unexpected operation %s", op)
		}
		size := int64(len(content))
		from := min(a.Offset, size)
		part := content[from:min(size, from+a.Length)]
		// In small pieces, as a pipe gives them.
		for len(part) > 0 {
			n := min(len(part), 1000)
			if _, err := io.WriteString(out, part[:n]); err != nil {
				return err
			}
			part = part[n:]
		}
		*reply.(*workspace.ReadReply) = workspace.ReadReply{Path: a.Path, Size: size, MIME: "text/plain"}
		return nil
	}}
}

func TestReadFileGivesTheTextAndItsSize(t *testing.T) {
	t.Parallel()
	s := holds("  one\ntwo\n")
	r := readFile{}.Run(t.Context(), s, newCall(t, object{"path": "/workspace/a.txt"}))
	require.True(t, r.Success, r.Error)
	assert.Equal(t, "  one\ntwo\n", r.Output)
	assert.Equal(t, "/workspace/a.txt", r.Metadata.Details["path"])
	assert.EqualValues(t, 10, r.Metadata.Details["size"])
	assert.Nil(t, r.Metadata.Receipt)
	assert.Len(t, s.ops, 1, "a small file takes one step")
}

func TestReadFileGivesARangeOfLines(t *testing.T) {
	t.Parallel()
	content := "1\n2\n3\n4\n5"
	cases := []struct {
		args  object
		want  string
		lines int
		more  bool
	}{
		{object{"offset": 1, "limit": 2}, "1\n2\n", 2, true},
		{object{"offset": 0, "limit": 1}, "1\n", 1, true},
		{object{"offset": 4}, "4\n5", 2, false},
		{object{"offset": 4, "limit": 2}, "4\n5", 2, false},
		{object{"offset": 5, "limit": 1}, "5", 1, false},
		{object{"offset": 6, "limit": 9}, "", 0, false},
		{object{"offset": 600}, "", 0, false},
		{object{"limit": 5}, content, 5, false},
	}
	for _, c := range cases {
		c.args["path"] = "f"
		r := readFile{}.Run(t.Context(), holds(content), newCall(t, c.args))
		require.True(t, r.Success, r.Error)
		assert.Equal(t, c.want, r.Output, c.args)
		assert.Equal(t, c.lines, r.Metadata.Details["lines"], c.args)
		assert.Equal(t, c.more, r.Metadata.Details["has_more"], c.args)
	}
}

func TestALineFarIntoALongFileIsFoundInSteps(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i := range 400_000 {
		fmt.Fprintf(&b, "line %d\n", i+1)
	}
	s := holds(b.String())
	r := readFile{}.Run(t.Context(), s, newCall(t, object{"path": "f", "offset": 300_000, "limit": 2}))
	require.True(t, r.Success, r.Error)
	assert.Equal(t, "line 300000\nline 300001\n", r.Output)
	assert.Equal(t, true, r.Metadata.Details["has_more"])
	assert.Greater(t, len(s.ops), 2)
	assert.Less(t, len(s.ops), 5, "it stops behind the range")
}

func TestReadFileCountsCharactersNotBytes(t *testing.T) {
	t.Parallel()
	fits := strings.Repeat("ä", maxFileChars)
	r := readFile{}.Run(t.Context(), holds(fits), newCall(t, object{"path": "f"}))
	assert.True(t, r.Success, r.Error)
	for _, content := range []string{fits + "x", strings.Repeat("x", maxFileChars+1), strings.Repeat("x", 2_000_000)} {
		r = readFile{}.Run(t.Context(), holds(content), newCall(t, object{"path": "f"}))
		assert.False(t, r.Success)
		assert.Equal(t, fmt.Sprintf("File too large: %d bytes (max 100000)", len(content)), r.Error)
		assert.Equal(t, "too_large", r.Metadata.Details["reason"])
		assert.Empty(t, r.Metadata.ErrorKind)
	}
	r = readFile{}.Run(t.Context(), holds(strings.Repeat("x", 2_000_000)), newCall(t, object{"path": "f", "limit": 1}))
	assert.Equal(t, "File too large: 2000000 bytes (max 100000)", r.Error, "one line can be too long as well")
}

func TestTextThatIsNotUTF8IsReplacedAndMarked(t *testing.T) {
	t.Parallel()
	r := readFile{}.Run(t.Context(), holds("caf\xe9\n"), newCall(t, object{"path": "f"}))
	assert.Equal(t, "caf\uFFFD\n", r.Output)
	assert.Equal(t, true, r.Metadata.Details["replaced"])
}

func TestABinaryFileNeedsBase64(t *testing.T) {
	t.Parallel()
	png := "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
	r := readFile{}.Run(t.Context(), holds(png), newCall(t, object{"path": "p.png"}))
	assert.False(t, r.Success)
	assert.Equal(t, `Binary file: p.png (text/plain, 16 bytes); read it with encoding "base64"`, r.Error)

	r = readFile{}.Run(t.Context(), holds(png), newCall(t, object{"path": "p.png", "encoding": "base64"}))
	require.True(t, r.Success, r.Error)
	assert.Equal(t, base64.StdEncoding.EncodeToString([]byte(png)), r.Output)
	assert.Equal(t, "base64", r.Metadata.Details["encoding"])

	r = readFile{}.Run(t.Context(), holds(strings.Repeat("\x00", maxFileBytes+1)), newCall(t, object{"path": "p", "encoding": "base64"}))
	assert.Equal(t, "File too large: 5000001 bytes (max 5000000)", r.Error)
}

func TestAFailureOfAFileIsNoFaultOfTheSlot(t *testing.T) {
	t.Parallel()
	cases := []struct {
		err    error
		reason string
	}{
		{slots.Errorf(slots.KindNotFound, "File not found: a"), "not_found"},
		{slots.Errorf(slots.KindDenied, "Access denied: path outside workspace"), "denied"},
		{slots.Errorf(slots.KindBadRequest, "Not a file: a"), "bad_request"},
		{slots.Errorf(slots.KindConflict, "found 2 times"), "conflict"},
	}
	calls := map[string]object{
		"read_file": {"path": "a"}, "write_file": {"path": "a", "content": ""},
		"edit_file": {"path": "a", "old_string": "x", "new_string": "y"}, "list_dir": {"path": "a"},
		"glob": {"pattern": "*", "path": "a"}, "grep": {"pattern": "x", "path": "a"},
	}
	registry := New(Builtin(nil, "")...)
	for name, args := range calls {
		tool, err := registry.Get(name)
		require.NoError(t, err)
		for _, c := range cases {
			s := &fakeSlot{do: func(context.Context, string, any, any, io.Reader, io.Writer) error { return c.err }}
			r := tool.Run(t.Context(), s, newCall(t, args))
			assert.False(t, r.Success, name)
			assert.Equal(t, c.err.Error(), r.Error, name)
			assert.Equal(t, c.reason, r.Metadata.Details["reason"], name)
			assert.Equal(t, "a", r.Metadata.Details["path"], name)
			assert.Empty(t, r.Metadata.ErrorKind, name)
		}
		for _, kind := range []slots.Kind{slots.KindSlotLost, slots.KindInternal} {
			s := &fakeSlot{do: func(context.Context, string, any, any, io.Reader, io.Writer) error {
				return slots.Errorf(kind, "broken")
			}}
			assert.Equal(t, kind, tool.Run(t.Context(), s, newCall(t, args)).Metadata.ErrorKind, name)
		}
	}
}

func TestAFileOperationThatTakesTooLongSaysSo(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 0, sandbox.ErrTimedOut)
	defer cancel()
	s := &fakeSlot{do: func(ctx context.Context, _ string, _, _ any, _ io.Reader, _ io.Writer) error { return ctx.Err() }}
	c := newCall(t, object{"pattern": "x"})
	c.Timeout = api.Seconds(2)
	r := grep{}.Run(ctx, s, c)
	assert.Equal(t, "Command timed out after 2s", r.Error)
	assert.Equal(t, true, r.Metadata.Details["timeout"])
	assert.Empty(t, r.Metadata.ErrorKind)
}

func TestWriteFileSaysHowManyBytesItWrote(t *testing.T) {
	t.Parallel()
	var wrote []byte
	s := &fakeSlot{do: func(_ context.Context, _ string, _, reply any, in io.Reader, _ io.Writer) error {
		var err error
		wrote, err = io.ReadAll(in)
		*reply.(*workspace.WriteReply) = workspace.WriteReply{Size: int64(len(wrote)), Created: true}
		return err
	}}
	content := "é\x00\r\n"
	r := writeFile{}.Run(t.Context(), s, newCall(t, object{"path": "d/f", "content": content}))
	require.True(t, r.Success, r.Error)
	assert.Equal(t, "Successfully wrote 5 bytes to d/f", r.Output)
	assert.Equal(t, content, string(wrote))
	assert.EqualValues(t, 5, r.Metadata.Details["size"])
	assert.Equal(t, true, r.Metadata.Details["created"])

	r = writeFile{}.Run(t.Context(), s, newCall(t, object{"path": "d/f", "content": strings.Repeat("x", 100_001)}))
	assert.Equal(t, "Content too large: 100001 bytes (max 100000)", r.Error)
	assert.Len(t, s.ops, 1, "nothing is written then")
	r = writeFile{}.Run(t.Context(), s, newCall(t, object{"path": "d/f", "content": strings.Repeat("é", 100_000)}))
	assert.True(t, r.Success, r.Error)
}

func TestListDirMarksDirectoriesAndLinks(t *testing.T) {
	t.Parallel()
	var gave any
	s := &fakeSlot{do: answers(t, &gave, workspace.ListReply{Truncated: true, Entries: []workspace.Entry{
		{Path: "a", IsDir: true}, {Path: "a/f"}, {Path: "l", LinkTarget: "../x"},
	}}, "")}
	r := listDir{}.Run(t.Context(), s, newCall(t, object{"recursive": true, "depth": 2}))
	require.True(t, r.Success, r.Error)
	assert.Equal(t, "a/\na/f\nl -> ../x", r.Output)
	assert.Equal(t, 3, r.Metadata.Details["entries"])
	assert.Equal(t, true, r.Metadata.Details["has_more"])
	assert.Equal(t, workspace.ListArgs{Path: ".", Recursive: true, Depth: 2, MaxEntries: 1000}, gave)
}

func TestGlobNamesThePaths(t *testing.T) {
	t.Parallel()
	var gave any
	s := &fakeSlot{do: answers(t, &gave, workspace.GlobReply{Total: 7, Truncated: true, Matches: []workspace.Entry{{Path: "b.go"}, {Path: "a.go"}}}, "")}
	r := glob{}.Run(t.Context(), s, newCall(t, object{"pattern": "**/*.go", "max_results": 2}))
	assert.Equal(t, "b.go\na.go", r.Output)
	assert.Equal(t, 7, r.Metadata.Details["total"])
	assert.Equal(t, workspace.GlobArgs{Pattern: "**/*.go", Path: ".", Max: 2}, gave)

	s = &fakeSlot{do: answers(t, &gave, workspace.GlobReply{}, "")}
	r = glob{}.Run(t.Context(), s, newCall(t, object{"pattern": "*.rs"}))
	assert.True(t, r.Success)
	assert.Equal(t, "No files found", r.Output)
}

func TestGrepPassesItsFlagsOnAndItsLinesThrough(t *testing.T) {
	t.Parallel()
	var gave any
	s := &fakeSlot{do: answers(t, &gave, workspace.GrepReply{Matches: 2, Files: 1}, "a.go:3:x\na.go:9:x\n")}
	c := newCall(t, object{
		"pattern": "x", "glob": []string{"*.go", "!b.go"}, "type": "go", "output_mode": "content",
		"-i": true, "-n": false, "-A": 1, "-C": 4, "head_limit": 20, "word": true,
	})
	r := grep{}.Run(t.Context(), s, c)
	require.True(t, r.Success, r.Error)
	assert.Equal(t, "a.go:3:x\na.go:9:x", r.Output)
	assert.EqualValues(t, 18, c.Stdout.Total(), "the lines can be followed while they come")
	assert.Equal(t, 2, r.Metadata.Details["matches"])
	args, ok := gave.(workspace.GrepArgs)
	require.True(t, ok)
	assert.Equal(t, "content", args.Mode)
	assert.Equal(t, []string{"*.go", "!b.go"}, args.Glob)
	assert.True(t, args.CaseInsensitive)
	assert.True(t, args.Word)
	assert.False(t, args.LineNumbers)
	assert.Equal(t, 4, args.Before)
	assert.Equal(t, 1, args.After)

	s = &fakeSlot{do: answers(t, &gave, workspace.GrepReply{}, "")}
	r = grep{}.Run(t.Context(), s, newCall(t, object{"pattern": "x", "glob": "*.py"}))
	assert.True(t, r.Success)
	assert.Equal(t, "No matches found", r.Output)
	args, ok = gave.(workspace.GrepArgs)
	require.True(t, ok)
	assert.Equal(t, []string{"*.py"}, args.Glob)
	assert.Equal(t, "files_with_matches", args.Mode)
	assert.True(t, args.LineNumbers)
}

func TestEditFileTellsWhatItReplaced(t *testing.T) {
	t.Parallel()
	var gave any
	s := &fakeSlot{do: answers(t, &gave, workspace.EditReply{Replacements: 1, Diff: "@@ -1 +1 @@\n-a\n+b"}, "")}
	r := editFile{}.Run(t.Context(), s, newCall(t, object{"path": "f", "old_string": "a\r\n", "new_string": ""}))
	require.True(t, r.Success, r.Error)
	assert.Equal(t, "Successfully replaced 1 occurrence in f\n@@ -1 +1 @@\n-a\n+b", r.Output)
	args, ok := gave.(workspace.EditArgs)
	require.True(t, ok)
	assert.Equal(t, "a\r\n", args.Old)
	assert.Empty(t, args.New)

	s = &fakeSlot{do: answers(t, &gave, workspace.EditReply{Replacements: 3}, "")}
	r = editFile{}.Run(t.Context(), s, newCall(t, object{"path": "f", "old_string": "a", "new_string": "b", "replace_all": true}))
	assert.Equal(t, "Successfully replaced 3 occurrences in f", r.Output)
	assert.Equal(t, 3, r.Metadata.Details["replacements"])
}
