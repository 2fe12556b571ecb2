package workspace

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
)

func TestOpsRunEveryOperationByName(t *testing.T) {
	tree, _ := newTree(t)
	ops := Ops()
	assert.Equal(t, []string{"archive", "deleted", "edit", "glob", "grep", "list", "mkdir", "read", "remove", "stat", "tar", "untar", "write"},
		slices.Sorted(maps.Keys(ops)))
	var packed bytes.Buffer
	for _, c := range []struct {
		op, args, in, out string
		reply             string // a part of it
	}{
		{"write", `{"path":"d/f","mode":420}`, "hello\n", "", `"size":6`},
		{"stat", `{"path":"d/f"}`, "", "", `"type":"file"`},
		{"read", `{"path":"/workspace/d/f","length":-1}`, "", "hello\n", `"truncated":false`},
		{"edit", `{"path":"d/f","old":"hello","new":"bye"}`, "", "", `"replacements":1`},
		{"list", `{}`, "", "", `"entries":[{"path":"d","is_dir":true,"type":"dir"`},
		{"list", ``, "", "", `"truncated":false`},
		{"glob", `{"pattern":"**/f"}`, "", "", `"path":"d/f"`},
		{"grep", `{"pattern":"bye","mode":"content"}`, "", "d/f:bye\n", `"matches":1`},
		{"mkdir", `{"path":"e"}`, "", "", `"created":true`},
		{"remove", `{"path":"e"}`, "", "", `"removed":1`},
		{"deleted", ``, "", "", `"files":`},
	} {
		var out bytes.Buffer
		reply, err := ops[c.op](t.Context(), tree, json.RawMessage(c.args), strings.NewReader(c.in), &out)
		require.NoError(t, err, c.op)
		text, err := json.Marshal(reply)
		require.NoError(t, err)
		assert.Contains(t, string(text), c.reply)
		assert.Equal(t, c.out, out.String(), c.op)
	}
	_, err := ops["tar"](t.Context(), tree, json.RawMessage(`{"path":"d"}`), nil, &packed)
	require.NoError(t, err)
	_, err = ops["untar"](t.Context(), tree, json.RawMessage(`{"path":"x"}`), &packed, nil)
	require.NoError(t, err)
	_, err = ops["archive"](t.Context(), tree, json.RawMessage(`{"path":"x"}`), nil, nil)
	require.NoError(t, err)
	_, err = ops["write"](t.Context(), tree, json.RawMessage(`{"path":"empty"}`), nil, nil)
	require.NoError(t, err)
	text, err := readText(t, tree, "x/f")
	require.NoError(t, err)
	assert.Equal(t, "bye\n", text)
}

func TestOpsAnswerTypedErrorsToEveryArgument(t *testing.T) {
	tree, _ := newTree(t)
	for name, op := range Ops() {
		for _, args := range []string{`{"unknown":1}`, `[]`, `{"path":1}`, `x`, `{"path":"../x","pattern":"x","old":"a","new":"b"}`} {
			reply, err := op(t.Context(), tree, json.RawMessage(args), nil, nil)
			require.Error(t, err, "%s %s", name, args)
			assert.Nil(t, reply)
			kind := slots.AsError(err).Kind
			assert.Contains(t, []slots.Kind{slots.KindBadRequest, slots.KindDenied}, kind, "%s %s: %v", name, args, err)
		}
	}
}

func FuzzPath(f *testing.F) {
	for _, seed := range []string{
		"", ".", "..", "/", "a/../..", alias, alias + "/a", "link/secret", "abs/secret", "loop", "a\x00", "\xff", "link/../x", strings.Repeat("a/../", 900),
	} {
		f.Add(seed, seed)
	}
	tree, root := newTree(f)
	walk, err := Open(root, alias)
	require.NoError(f, err)
	walk.beneath = false
	f.Cleanup(func() { require.NoError(f, walk.Close()) })
	put(f, root, "a/f", "inside")
	require.NoError(f, symlink("../outside", root, "link"))
	require.NoError(f, symlink(alias+"/a", root, "abs"))
	require.NoError(f, symlink("loop", root, "loop"))
	f.Fuzz(func(t *testing.T, name, target string) {
		if target != "" && !strings.Contains(target, "\x00") && len(target) < 4000 {
			if symlink(target, root, "fuzzed") == nil {
				defer func() {
					_, err := tree.Remove(t.Context(), RemoveArgs{Path: "fuzzed"})
					require.NoError(t, err)
				}()
			}
		}
		for _, name := range []string{name, "fuzzed", "fuzzed/" + name} {
			var answers []string
			for _, tree := range []*Tree{tree, walk} {
				text, err := readText(t, tree, name)
				require.NotContains(t, text, canary)
				if err != nil {
					text = string(slots.AsError(err).Kind)
					require.NotEqual(t, string(slots.KindInternal), text, "%q: %v", name, err)
				}
				answers = append(answers, text)
			}
			require.Equal(t, answers[0], answers[1], "openat2 and the walk disagree on %q with fuzzed -> %q", name, target)
		}
	})
}
