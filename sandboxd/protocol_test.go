package sandboxd_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
)

// object is JSON as a client without types sees it.
type object = map[string]any

// best starts an agent of the strongest level that this machine offers.
func best(t *testing.T, o agenttest.Options) *agenttest.Agent {
	t.Helper()
	levels := agenttest.Levels(t)
	require.NotEmpty(t, levels)
	o.Level = levels[len(levels)-1]
	o.Slots = max(o.Slots, 2)
	return agenttest.Start(t, o)
}

// execute sends POST /execute as the reference's client does and returns the
// five keys.
func execute(t *testing.T, a *agenttest.Agent, body object) object {
	t.Helper()
	if body["slot_id"] == nil {
		body["slot_id"] = "slot_0"
	}
	answer := a.Post(t, "/execute", body)
	require.Equal(t, http.StatusOK, answer.Status, "%s", answer.Body)
	r := answer.Object(t)
	for _, key := range []string{"success", "output", "error", "execution_id", "metadata"} {
		require.Contains(t, r, key)
	}
	return r
}

func bash(t *testing.T, a *agenttest.Agent, command string, more ...object) object {
	t.Helper()
	args := object{"command": command}
	for _, m := range more {
		maps.Copy(args, m)
	}
	return execute(t, a, object{"tool": "bash", "args": args})
}

func meta(t *testing.T, r object) object {
	t.Helper()
	m, ok := r["metadata"].(object)
	require.True(t, ok, "%v", r)
	return m
}

func TestTheReferenceRoutesAnswerAsTheReferenceDoes(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})

	health := a.Send(t, http.MethodGet, "/health", "", "Authorization: none").Object(t)
	assert.Equal(t, "ok", health["status"])
	assert.InDelta(t, 2, health["slots"], 0)
	assert.InDelta(t, 2, health["available"], 0)
	assert.InDelta(t, 0, health["executing"], 0)
	assert.Contains(t, health, "data_dir")

	slots := a.Send(t, http.MethodGet, "/slots", "").Object(t)["slots"].([]any)
	require.Len(t, slots, 2)
	first := slots[0].(object)
	assert.Equal(t, "slot_0", first["slot_id"])
	assert.Equal(t, "available", first["state"])
	assert.Contains(t, first, "workspace_dir")
	assert.Nil(t, first["current_execution_id"])

	r := bash(t, a, "echo out; echo err >&2; exit 3")
	assert.Equal(t, false, r["success"])
	assert.Equal(t, "out\n[stderr]\nerr", r["output"], "stdout keeps no trailing newline")
	assert.Equal(t, "Exit code: 3", r["error"])
	assert.NotEmpty(t, r["execution_id"])
	assert.InDelta(t, 3, meta(t, r)["exit_code"], 0)
	assert.Equal(t, true, meta(t, r)["sandboxed"])
	assert.Contains(t, meta(t, r), "network_isolated")
	assert.Empty(t, bash(t, a, "true")["error"])
	assert.Equal(t, "mine", execute(t, a, object{"tool": "bash", "args": object{"command": "true"}, "execution_id": "mine"})["execution_id"])

	for body, status := range map[string]int{`[]`: 200, `{}`: 400, `"x"`: 400, `[`: 400, ``: 400} {
		answer := a.Send(t, http.MethodPost, "/batch", body)
		assert.Equal(t, status, answer.Status, body)
		if status == 200 {
			assert.JSONEq(t, "[]", string(answer.Body))
		}
	}
	batch := a.Post(t, "/batch", []object{
		{"slot_id": "slot_0", "tool": "bash", "args": object{"command": "echo a"}},
		{"slot_id": "slot_9", "tool": "bash", "args": object{"command": "x"}},
		{"slot_id": "slot_1", "tool": "nothing"},
		{"slot_id": "slot_1", "tool": "bash", "args": object{"command": "echo b"}},
	})
	var results []object
	require.NoError(t, json.Unmarshal(batch.Body, &results))
	require.Len(t, results, 4)
	assert.Equal(t, []any{"a", "", "", "b"}, []any{results[0]["output"], results[1]["output"], results[2]["output"], results[3]["output"]})
	assert.Equal(t, "Unknown slot: slot_9", results[1]["error"])
	assert.Equal(t, "Unknown tool: nothing", results[2]["error"])

	reset := a.Post(t, "/reset", object{"slot_id": "slot_0"})
	require.Equal(t, http.StatusOK, reset.Status)
	assert.Equal(t, "Reset workspace for slot_0", reset.Object(t)["output"])
	assert.Equal(t, true, reset.Object(t)["success"])
	assert.Equal(t, true, meta(t, reset.Object(t))["clean"])
	unknown := a.Post(t, "/reset", object{"slot_id": "X"})
	assert.Equal(t, false, unknown.Object(t)["success"])
	assert.Equal(t, "Unknown slot: X", unknown.Object(t)["error"])
}

func TestTheReferenceTextsAreExact(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	tool := func(name string, args object) object {
		return execute(t, a, object{"tool": name, "args": args, "timeout": 10})
	}
	require.Equal(t, true, bash(t, a, "mkdir d; printf 12345 > f; head -c 120000 /dev/zero | tr '\\0' x > big; head -c 6000000 /dev/urandom > large")["success"])
	for want, r := range map[string]object{
		"Unknown slot: X":                              execute(t, a, object{"slot_id": "X", "tool": "bash", "args": object{"command": "x"}}),
		"Unknown tool: X":                              tool("X", object{}),
		"Access denied: path outside workspace":        tool("read_file", object{"path": "../x"}),
		"File not found: no":                           tool("read_file", object{"path": "no"}),
		"Not a file: d":                                tool("read_file", object{"path": "d"}),
		"File too large: 120000 bytes (max 100000)":    tool("read_file", object{"path": "big"}),
		"Content too large: 100001 bytes (max 100000)": tool("write_file", object{"path": "x", "content": strings.Repeat("x", 100_001)}),
		"Exit code: 7":                                 tool("bash", object{"command": "exit 7"}),
	} {
		assert.Equal(t, false, r["success"], want)
		assert.Equal(t, want, r["error"])
	}
	for timeout, want := range map[string]string{"0.3": "Command timed out after 0.3s", "1": "Command timed out after 1s", "1.0": "Command timed out after 1.0s"} {
		answer := a.Send(t, http.MethodPost, "/execute", `{"slot_id":"slot_0","tool":"bash","args":{"command":"echo part; sleep 20"},"timeout":`+timeout+`}`)
		r := answer.Object(t)
		assert.Equal(t, want, r["error"])
		assert.Equal(t, "part", r["output"])
		assert.InDelta(t, -1, meta(t, r)["exit_code"], 0)
		assert.Equal(t, true, meta(t, r)["timeout"])
		assert.Equal(t, "timed_out", meta(t, r)["outcome"])
	}
	w := tool("write_file", object{"path": "a/b/c.txt", "content": "héllo"})
	assert.Equal(t, "Successfully wrote 6 bytes to a/b/c.txt", w["output"])
	assert.InDelta(t, 6, meta(t, w)["size"], 0)
	assert.Equal(t, "a/b/c.txt", meta(t, w)["path"])
	rd := tool("read_file", object{"path": "a/b/c.txt"})
	assert.Equal(t, "héllo", rd["output"])
	assert.InDelta(t, 6, meta(t, rd)["size"], 0)

	s := tool("bash_stateful", object{"command": "cd d; export A=1"})
	assert.Equal(t, true, meta(t, s)["stateful"])
	assert.Equal(t, "d 1", tool("bash_stateful", object{"command": `echo "${PWD##*/} $A"`})["output"])

	for _, c := range []struct {
		route  string
		body   object
		status int
		text   string
	}{
		{"read", object{"path": "../x"}, 403, "Access denied: path outside workspace"},
		{"read", object{"path": "no"}, 404, "Not found: no"},
		{"read", object{"path": "d"}, 400, "Not a file: d"},
		{"read", object{"path": "f", "encoding": "E"}, 400, "Unsupported encoding: E"},
		{"list", object{"path": "no"}, 404, "Not found: no"},
		{"list", object{"path": ".."}, 403, "Access denied: path outside workspace"},
		{"archive", object{"format": "F"}, 400, "Unsupported archive format: F"},
		{"archive", object{"path": "no"}, 404, "Not found: no"},
	} {
		c.body["slot_id"] = "slot_0"
		answer := a.Post(t, "/artifacts/"+c.route, c.body)
		assert.Equal(t, c.status, answer.Status, "%s %v", c.route, c.body)
		assert.Equal(t, c.text, answer.Object(t)["error"])
		assert.Equal(t, false, answer.Object(t)["success"])
	}
	tooLarge := a.Post(t, "/artifacts/archive", object{"slot_id": "slot_0", "path": "large"})
	assert.Equal(t, 413, tooLarge.Status)
	assert.Regexp(t, `^Archive too large: \d+ bytes \(max 5000000\)$`, tooLarge.Object(t)["error"])
	assert.Greater(t, tooLarge.Object(t)["bytes"], 5_000_000.0)
}

func TestTheReferenceArtifactsHaveTheirFields(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{})
	require.Equal(t, true, bash(t, a, "mkdir -p d/empty; printf 'one\\xff' > d/f.txt; ln -s f.txt d/link")["success"])
	read := a.Post(t, "/artifacts/read", object{"slot_id": "slot_0", "path": "d/f.txt", "encoding": "base64", "max_bytes": 2, "include_sha256": true}).Object(t)
	assert.Equal(t, base64.StdEncoding.EncodeToString([]byte("on")), read["content"])
	assert.Equal(t, true, read["truncated"])
	assert.Equal(t, []any{2.0, 4.0, "d/f.txt", "base64"}, []any{read["bytes"], read["file_size"], read["path"], read["encoding"]})
	assert.Contains(t, read["mime"], "text/plain")
	assert.Len(t, read["sha256"], 64)
	assert.Len(t, read["file_sha256"], 64)
	assert.NotEqual(t, read["sha256"], read["file_sha256"])
	exact := a.Post(t, "/artifacts/read", object{"slot_id": "slot_0", "path": "d/f.txt", "max_bytes": 4}).Object(t)
	assert.Equal(t, false, exact["truncated"], "exactly the limit is not truncated")
	assert.Equal(t, "one\ufffd", exact["content"])

	list := a.Post(t, "/artifacts/list", object{"slot_id": "slot_0", "recursive": true}).Object(t)
	assert.Equal(t, false, list["truncated"])
	paths := map[string]object{}
	for _, e := range list["entries"].([]any) {
		paths[e.(object)["path"].(string)] = e.(object)
	}
	assert.Equal(t, true, paths["d/empty"]["is_dir"])
	assert.InDelta(t, 4, paths["d/f.txt"]["size"], 0)
	assert.InDelta(t, float64(time.Now().Unix()), paths["d/f.txt"]["mtime"], 300)
	assert.Equal(t, "link", paths["d/link"]["type"])
	assert.Equal(t, "f.txt", paths["d/link"]["link_target"])

	names := func(body object) (map[string]byte, object) {
		body["slot_id"] = "slot_0"
		answer := a.Post(t, "/artifacts/archive", body).Object(t)
		require.Equal(t, true, answer["success"], "%v", answer["error"])
		raw, err := base64.StdEncoding.DecodeString(answer["content"].(string))
		require.NoError(t, err)
		z, err := gzip.NewReader(bytes.NewReader(raw))
		require.NoError(t, err)
		got := map[string]byte{}
		for r := tar.NewReader(z); ; {
			h, err := r.Next()
			if err == io.EOF {
				return got, answer
			}
			require.NoError(t, err)
			got[strings.TrimSuffix(h.Name, "/")] = h.Typeflag
		}
	}
	entries, answer := names(object{"path": "d", "format": "tgz"})
	assert.Equal(t, []any{"base64", "tar.gz"}, []any{answer["encoding"], answer["format"]})
	assert.InDelta(t, float64(len(entries)), answer["entry_count"], 0)
	types := map[byte]int{}
	for _, kind := range entries {
		types[kind]++
	}
	assert.Equal(t, 1, types[tar.TypeSymlink])
	assert.GreaterOrEqual(t, types[tar.TypeDir], 1, "the empty directory is there: %v", entries)
	_, again := names(object{"path": "d"})
	assert.Equal(t, answer["content"], again["content"], "the same tree gives the same bytes")
}
