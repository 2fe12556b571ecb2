package workspace

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
	"berth/slots/need"
)

func TestEditReplacesExactlyOnce(t *testing.T) {
	for _, resolver := range resolvers {
		t.Run(resolver, func(t *testing.T) {
			tree, root := newTreeWith(t, resolver)
			put(t, root, "f", "one\r\ntwo\r\nthree\xff\r\n")
			require.NoError(t, os.Symlink(alias+"/f", filepath.Join(root, "link")))
			reply, err := tree.Edit(t.Context(), EditArgs{Path: "link", Old: "two", New: "zwei"})
			require.NoError(t, err)
			assert.Equal(t, 1, reply.Replacements)
			content, err := os.ReadFile(filepath.Join(root, "f"))
			require.NoError(t, err)
			assert.Equal(t, "one\r\nzwei\r\nthree\xff\r\n", string(content), "line breaks and odd bytes stay")
			assert.Equal(t, int64(len(content)), reply.Size)
			assert.Equal(t, "@@ -1,3 +1,3 @@\n one\r\n-two\r\n+zwei\r\n three\xff\r\n", reply.Diff)
		})
	}
}

func TestEditSaysWhyItCannot(t *testing.T) {
	tree, root := newTree(t)
	put(t, root, "f", "a\nb\na\n\tif x {\n\t}\na\n")
	put(t, root, "crlf", "a\r\nb\r\n")
	put(t, root, "many", strings.Repeat("x\n", 20))
	for _, c := range []struct {
		args EditArgs
		kind slots.Kind
		text string
	}{
		{EditArgs{Path: "f", Old: "", New: "x"}, slots.KindBadRequest, "The text to replace is empty"},
		{EditArgs{Path: "f", Old: "x", New: "x"}, slots.KindBadRequest, "The text to replace and its replacement are the same"},
		{EditArgs{Path: "f", Old: "zzz", New: "x"}, slots.KindBadRequest, "Text not found in f"},
		{EditArgs{Path: "f", Old: "a\n", New: "x"}, slots.KindBadRequest, "Text found 3 times in f, on lines 1, 3, 6: add surrounding text to make it unique, or set replace_all"},
		{EditArgs{Path: "many", Old: "x", New: "y"}, slots.KindBadRequest, "Text found 20 times in many, on lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...: add surrounding text to make it unique, or set replace_all"},
		{EditArgs{Path: "f", Old: "    if x {\n    }", New: "x"}, slots.KindBadRequest, "Text not found in f: line 4 is like its first line, but the whitespace or the following lines differ"},
		{EditArgs{Path: "crlf", Old: "a\nb", New: "x"}, slots.KindBadRequest, "Text not found in crlf: the file ends its lines with CRLF"},
		{EditArgs{Path: "missing", Old: "a", New: "x"}, slots.KindNotFound, "File not found: missing"},
		{EditArgs{Path: "missing/x", Old: "a", New: "x"}, slots.KindNotFound, "File not found: missing/x"},
		{EditArgs{Path: "f/x", Old: "a", New: "x"}, slots.KindNotFound, "File not found: f/x"},
		{EditArgs{Path: "f", Old: "b", New: "x", Max: 5}, slots.KindTooLarge, "File too large: 19 bytes (max 5)"},
		{EditArgs{Path: "many", Old: "x", New: strings.Repeat("y", 100), ReplaceAll: true, Max: 100}, slots.KindTooLarge, "File too large: 2020 bytes (max 100)"},
		{EditArgs{Path: "../f", Old: "b", New: "x"}, slots.KindDenied, outsideText},
	} {
		_, err := tree.Edit(t.Context(), c.args)
		assertKind(t, err, c.kind, c.text)
	}
	onlyNames(t, root, "crlf", "f", "many")
}

func TestEditReplacesAllWhenTold(t *testing.T) {
	tree, root := newTree(t)
	put(t, root, "f", strings.Repeat("aXb\n", 5000))
	reply, err := tree.Edit(t.Context(), EditArgs{Path: "f", Old: "X", New: "", ReplaceAll: true})
	require.NoError(t, err)
	assert.Equal(t, 5000, reply.Replacements)
	assert.Less(t, len(reply.Diff), 64<<10)
	text, err := readText(t, tree, "f")
	require.NoError(t, err)
	assert.Equal(t, strings.Repeat("ab\n", 5000), text)
}

// The judge of our hunks is patch: applied to the old text they must give the
// new one.
func TestEditDiffsApply(t *testing.T) {
	patch, err := exec.LookPath("patch")
	need.Facility(t, "patch", err)
	numbered := func(n int) string {
		var b strings.Builder
		for i := range n {
			b.WriteString("line " + itoa(i) + "\n")
		}
		return b.String()
	}
	for _, c := range []struct{ name, content, old, replacement string }{
		{"one line", numbered(30), "line 12\n", "changed\n"},
		{"within a line", numbered(30), "e 12\n", "x\n"},
		{"lines away", numbered(30), "line 12\nline 13\n", ""},
		{"a line break away", numbered(30), "12\nline", "12 and line"},
		{"lines more", numbered(30), "line 3\n", "a\nb\nc\n"},
		{"first", numbered(30), "line 0\n", ""},
		{"last", numbered(30), "line 29\n", "end\n"},
		{"near ones", numbered(40), "5\n", "five\n"},
		{"all", strings.Repeat("x\n", 50), "x\n", "y\nz\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, dir, "f", c.content)
			diff := "--- f\n+++ f\n" + editDiff([]byte(c.content), c.old, c.replacement)
			cmd := exec.Command(patch, "--fuzz=0", "--batch", "f")
			cmd.Dir, cmd.Stdin = dir, strings.NewReader(diff)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s\n%s", out, diff)
			assert.NotContains(t, string(out), "offset")
			got, err := os.ReadFile(filepath.Join(dir, "f"))
			require.NoError(t, err)
			assert.Equal(t, strings.ReplaceAll(c.content, c.old, c.replacement), string(got), diff)
		})
	}
}

func FuzzEdit(f *testing.F) {
	f.Add("one\ntwo\nthree\n", "two", "2", false)
	f.Add("aaaa", "aa", "b", true)
	f.Add("a\r\nb", "\n", "", true)
	f.Add("x\nx\nx", "x\n", "y", true)
	f.Add("", "a", "b", false)
	tree, root := newTree(f)
	f.Fuzz(func(t *testing.T, content, old, replacement string, all bool) {
		put(t, root, "f", content)
		reply, err := tree.Edit(t.Context(), EditArgs{Path: "f", Old: old, New: replacement, ReplaceAll: all})
		got, readErr := os.ReadFile(filepath.Join(root, "f"))
		require.NoError(t, readErr)
		n := strings.Count(content, old)
		if old == "" || old == replacement || n == 0 || n > 1 && !all {
			require.Error(t, err)
			require.Equal(t, content, string(got))
			return
		}
		require.NoError(t, err)
		require.Equal(t, n, reply.Replacements)
		require.True(t, bytes.Equal([]byte(strings.ReplaceAll(content, old, replacement)), got))
		require.NotEmpty(t, reply.Diff)
	})
}
