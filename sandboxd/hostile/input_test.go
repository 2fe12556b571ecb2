package hostile_test

import (
	"encoding/json"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
)

// soon is how long any single refused request may take, see Agent.Within.
const soon = time.Second

// inputMarker is in everything that the input tests write, to find where it
// went.
const inputMarker = "content-of-the-input-tests"

// input runs one case of hostile input against slot_0 of an agent of every
// level. Afterwards slot_0 works, its reset is clean, and nothing that was
// written is to be found in the neighbour's files.
func input(t *testing.T, attack func(t *testing.T, a *agenttest.Agent)) {
	t.Helper()
	t.Parallel()
	for _, level := range agenttest.Levels(t) {
		t.Run(level.String(), func(t *testing.T) {
			a := agenttest.Start(t, agenttest.Options{Level: level, Slots: 2})
			a.Watch(t, agenttest.Bounds{GrowthMiB: 160, Renew: func() {
				_, err := a.Reset(t.Context(), "slot_0", nil)
				require.NoError(t, err)
			}}, func() { attack(t, a) })
			require.Equal(t, "usable", a.Bash(t, "slot_0", "cd /; echo usable", 20).Output)
			receipt, err := a.Reset(t.Context(), "slot_0", nil)
			require.NoError(t, err)
			assert.True(t, receipt.Clean)
			assert.Empty(t, strings.TrimSpace(a.Bash(t, "slot_0", "ls -A", 20).Output), "what a reset left")
			assertNothingEscaped(t, a)
			assert.NotContains(t, a.Log(), a.Token)
			assert.NotContains(t, a.Log(), "panic")
		})
	}
}

func assertNothingEscaped(t *testing.T, a *agenttest.Agent) {
	t.Helper()
	for _, root := range []string{a.Dir, os.TempDir()} {
		_ = filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return nil //nolint:nilerr // what vanishes meanwhile is another test's
			case entry.IsDir() && root != a.Dir && name != root:
				return fs.SkipDir
			case strings.Contains(name, "/slot_0") || strings.Contains(name, "/trash") || strings.Contains(name, "/journal"):
				return nil
			case !entry.Type().IsRegular():
				return nil
			}
			if st, err := entry.Info(); err == nil && st.Size() < 1<<16 {
				text, _ := os.ReadFile(name)
				assert.NotContains(t, string(text), inputMarker, name)
			}
			return nil
		})
	}
}

// refusedWell asserts that an answer is no fault of the agent's and came in
// time.
func refusedWell(t *testing.T, a agenttest.Answer, about ...any) {
	t.Helper()
	a.Within(t, soon, about...)
	noFault(t, a, about...)
}

// endedWell is refusedWell of what may work for two seconds, by its timeout or
// by its size.
func endedWell(t *testing.T, a agenttest.Answer, about ...any) {
	t.Helper()
	a.Within(t, 2*time.Second+soon, about...)
	noFault(t, a, about...)
}

func noFault(t *testing.T, a agenttest.Answer, about ...any) {
	t.Helper()
	assert.NotEqual(t, http.StatusInternalServerError, a.Status, "%s", a.Body)
	assert.NotContains(t, string(a.Body), `"internal"`, about...)
}

// execute posts a call and returns its result as an object.
func execute(t *testing.T, a *agenttest.Agent, tool string, args map[string]any) map[string]any {
	t.Helper()
	answer := a.Post(t, "/execute", map[string]any{"slot_id": "slot_0", "tool": tool, "args": args, "timeout": 10})
	require.Equal(t, http.StatusOK, answer.Status)
	endedWell(t, answer, tool, args)
	return answer.Object(t)
}

// filePath is the address of a file on the raw plane; every byte that could
// mean something else is encoded.
func filePath(name string) string {
	parts := strings.Split(name, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return "/slots/slot_0/files/" + strings.Join(parts, "/")
}

// everyFileRequest sends a path through every interface that takes one and
// returns the answers by name.
func everyFileRequest(t *testing.T, a *agenttest.Agent, name string) map[string]agenttest.Answer {
	t.Helper()
	answers := map[string]agenttest.Answer{}
	for tool, args := range map[string]map[string]any{
		"read_file":  {"path": name},
		"write_file": {"path": name, "content": inputMarker},
		"edit_file":  {"path": name, "old_string": inputMarker, "new_string": inputMarker + "2"},
		"list_dir":   {"path": name},
		"glob":       {"pattern": "*", "path": name},
		"grep":       {"pattern": "x", "path": name},
	} {
		answers[tool] = a.Post(t, "/execute", map[string]any{"slot_id": "slot_0", "tool": tool, "args": args, "timeout": 10})
	}
	for route, more := range map[string]map[string]any{
		"/artifacts/read": {"include_sha256": true}, "/artifacts/list": {"recursive": true}, "/artifacts/archive": {},
	} {
		more["slot_id"], more["path"] = "slot_0", name
		answers[route] = a.Post(t, route, more)
	}
	answers["GET"] = a.Send(t, http.MethodGet, filePath(name), "")
	answers["HEAD"] = a.Send(t, http.MethodHead, filePath(name), "")
	answers["GET tar"] = a.Send(t, http.MethodGet, filePath(name)+"?tar=1", "")
	answers["PUT"] = a.Send(t, http.MethodPut, filePath(name), inputMarker)
	answers["PUT untar"] = a.Send(t, http.MethodPut, filePath(name)+"?untar=1", "no archive")
	for request, answer := range answers {
		refusedWell(t, answer, request, name)
	}
	return answers
}

// failed reports whether a JSON answer of the reference routes says so.
func failed(t *testing.T, a agenttest.Answer) bool {
	t.Helper()
	var v struct {
		Success bool   `json:"success"`
		Error   string `json:"error"`
	}
	require.NoError(t, json.Unmarshal(a.Body, &v), "%s", a.Body)
	if !v.Success {
		assert.NotEmpty(t, v.Error)
	}
	return !v.Success
}
