package tool

import (
	"context"
	"encoding/json"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
	"berth/slots/workspace"
)

// onTree is a slot whose operations work on a real tree, with arguments,
// replies and errors taking the way over JSON as between agent and holder.
func onTree(t *testing.T) *fakeSlot {
	t.Helper()
	tree, err := workspace.Open(t.TempDir(), "/workspace")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, tree.Close()) })
	ops := workspace.Ops()
	return &fakeSlot{do: func(ctx context.Context, op string, args, reply any, in io.Reader, out io.Writer) error {
		text, err := json.Marshal(args)
		if err != nil {
			return err
		}
		got, err := ops[op](ctx, tree, text, in, out)
		if err != nil {
			return err
		}
		if text, err = json.Marshal(got); err != nil {
			return err
		}
		return json.Unmarshal(text, reply)
	}}
}

func TestTheFileToolsWorkTogetherOnARealTree(t *testing.T) {
	t.Parallel()
	s, registry := onTree(t), New(Builtin(nil, "")...)
	steps := []struct {
		tool    string
		args    object
		success bool
		want    string
	}{
		{"read_file", object{"path": "a.txt"}, false, "File not found: a.txt"},
		{"write_file", object{"path": "/workspace/d/a.txt", "content": "one\ntwo\nthree\n"}, true, "Successfully wrote 14 bytes to /workspace/d/a.txt"},
		{"read_file", object{"path": "d/a.txt"}, true, "one\ntwo\nthree\n"},
		{"read_file", object{"path": "d/a.txt", "offset": 2, "limit": 1}, true, "two\n"},
		{"read_file", object{"path": "d"}, false, "Not a file: d"},
		{"read_file", object{"path": "../a"}, false, "Access denied: path outside workspace"},
		{"read_file", object{"path": "/etc/passwd"}, false, "Access denied: path outside workspace"},
		{"write_file", object{"path": "e/b.go", "content": "package b\n"}, true, "Successfully wrote 10 bytes to e/b.go"},
		{"list_dir", object{}, true, "d/\ne/"},
		{"list_dir", object{"recursive": true}, true, "d/\nd/a.txt\ne/\ne/b.go"},
		{"glob", object{"pattern": "**/*.go"}, true, "e/b.go"},
		{"glob", object{"pattern": "*.rs"}, true, "No files found"},
		{"grep", object{"pattern": "^t", "output_mode": "content"}, true, "d/a.txt:2:two\nd/a.txt:3:three"},
		{"grep", object{"pattern": "package"}, true, "e/b.go"},
		{"grep", object{"pattern": "nowhere"}, true, "No matches found"},
		{"edit_file", object{"path": "d/a.txt", "old_string": "four", "new_string": "x"}, false, ""},
		{"edit_file", object{"path": "d/a.txt", "old_string": "t", "new_string": "x"}, false, ""},
		{"edit_file", object{"path": "d/a.txt", "old_string": "two\n", "new_string": "2\n"}, true, ""},
		{"read_file", object{"path": "d/a.txt"}, true, "one\n2\nthree\n"},
	}
	for _, step := range steps {
		tool, err := registry.Get(step.tool)
		require.NoError(t, err)
		r := tool.Run(t.Context(), s, newCall(t, step.args))
		require.Equal(t, step.success, r.Success, "%s %v: %s", step.tool, step.args, r.Error)
		got := r.Output
		if !r.Success {
			got = r.Error
			assert.NotEqual(t, slots.KindInternal, r.Metadata.ErrorKind)
			assert.NotEmpty(t, r.Metadata.Details["reason"])
		}
		if step.want != "" {
			assert.Equal(t, step.want, got, "%s %v", step.tool, step.args)
		}
	}
}
