package hostile_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/sandboxd/client"
	"berth/slots"
)

func TestF01PathsOfEveryShapeAreWrittenOrRefused(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		for _, name := range []string{
			"", ".", "..", "/", "../..", "/..", "/workspace", "/workspace/..", "/workspace/../..", "/etc/passwd", "a/../../b", "//", "./",
			"nul\x00byte", strings.Repeat("x", 5000), strings.Repeat("c", 300), "a/" + strings.Repeat("c", 256),
		} {
			answers := everyFileRequest(t, a, name)
			for _, request := range []string{"read_file", "write_file", "edit_file", "/artifacts/read"} {
				assert.True(t, failed(t, answers[request]), "%s %.40q: %s", request, name, answers[request].Body)
			}
			assert.GreaterOrEqual(t, answers["GET"].Status, 400, "%.40q", name)
			assert.GreaterOrEqual(t, answers["PUT"].Status, 400, "%.40q", name)
			assert.GreaterOrEqual(t, answers["PUT untar"].Status, 400, "%.40q", name)
		}
		for _, name := range []string{
			"new\nline", "-rf", " lead and trail ", "dot.", "\u202egpj.exe", "a//b/./c", "tab\t", "é", "e\u0301", strings.Repeat("c", 255), "%2e%2e", "..x", "...",
		} {
			answers := everyFileRequest(t, a, name)
			assert.False(t, failed(t, answers["write_file"]), "%q: %s", name, answers["write_file"].Body)
			assert.Contains(t, []int{http.StatusOK, http.StatusCreated}, answers["PUT"].Status, "%q: %s", name, answers["PUT"].Body)
			r := execute(t, a, "read_file", map[string]any{"path": name})
			assert.Equal(t, inputMarker, r["output"], "%q: %v", name, r["error"])
			got := a.Send(t, http.MethodGet, filePath(name), "")
			assert.Equal(t, inputMarker, string(got.Body), "%q", name)
		}
		// Names travel as JSON; what it would change is refused, not renamed.
		for _, method := range []string{http.MethodGet, http.MethodPut} {
			assert.Equal(t, http.StatusBadRequest, a.Send(t, method, "/slots/slot_0/files/%ff%fe", inputMarker).Status)
		}
		require.True(t, a.Bash(t, "slot_0", `echo x > $'\xff\xfe'`, 10).Success)
		refusedWell(t, a.Post(t, "/artifacts/list", map[string]any{"slot_id": "slot_0"}))
		refusedWell(t, a.Post(t, "/artifacts/archive", map[string]any{"slot_id": "slot_0"}))
	})
}

func TestF02SlotNamesOfEveryShapeAreUnknown(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		for _, id := range []string{
			"", "..", "../..", "slot_0/../slot_1", "SLOT_0", "Slot_0", "slot_0 ", " slot_0", "slot_00", "slot_0\x00", "slot_0\n", "slot_\u0660", "ѕlot_0",
			"slot_-1", "slot_2", "slot_99999999999999999999", "%2e%2e", "slot_%30", strings.Repeat("s", 10<<10), "0", ".", "/", "slot_0;reboot",
		} {
			for _, route := range []string{"/execute", "/reset", "/artifacts/read", "/artifacts/list", "/artifacts/archive"} {
				answer := a.Post(t, route, map[string]any{"slot_id": id, "tool": "bash", "args": map[string]any{"command": "true"}, "path": "."})
				refusedWell(t, answer, route, id)
				require.True(t, failed(t, answer), "%s %.40q", route, id)
				assert.True(t, strings.HasPrefix(answer.Object(t)["error"].(string), "Unknown slot: "+id[:min(len(id), 40)]), "%s %.40q: %.100s", route, id, answer.Body)
				assert.Less(t, len(answer.Body), 2000)
			}
			if id == "" || id == "." || id == ".." || strings.Contains(id, "/") {
				continue
			}
			for _, answer := range []agenttest.Answer{
				a.Send(t, http.MethodGet, "/slots/"+encodeAll(id)+"/files/x", ""),
				a.Send(t, http.MethodPut, "/slots/"+encodeAll(id)+"/files/x", "x"),
				a.Send(t, http.MethodPost, "/v1/slots/"+encodeAll(id)+"/lease", `{"trajectory":"t"}`),
			} {
				refusedWell(t, answer, id)
				assert.Equal(t, http.StatusNotFound, answer.Status, "%.40q: %s", id, answer.Body)
			}
		}
		for _, path := range []string{"/slots/../files/x", "/slots/%2e%2e/files/x", "/slots/..%2f..%2fslot_1/files/.canary", "/slots//files/x", "/slots/slot_0/../slot_1/files/.canary"} {
			answer := a.Send(t, http.MethodGet, path, "")
			refusedWell(t, answer, path)
			assert.Equal(t, http.StatusNotFound, answer.Status, path)
		}
	})
}

// encodeAll percent-encodes every byte.
func encodeAll(s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, "%%%02x", s[i])
	}
	return b.String()
}

func TestF03LinksLeadNowhereOutside(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		secret := filepath.Join(a.Dir, "token")
		outside := filepath.Join(t.TempDir(), "made-by-a-slot")
		made := a.Bash(t, "slot_0", `ln -s /etc/passwd passwd; ln -s /proc/self/environ environ; ln -s /proc/1/environ one; ln -s nowhere dangling
			ln -s loop2 loop; ln -s loop loop2; ln -s /etc etc; ln -s / root; ln -s `+secret+` secret; ln -s ../slot_1/workspace/.canary canary; ln -s `+outside+` outside
			echo end > l0; for i in $(seq 1 60); do ln -s l$((i-1)) l$i; done; ln -s /workspace/l0 absolute; ln -s /proc/self/fd/0 fd; ln -s /proc/self/cwd/l0 cwd`, 20)
		require.True(t, made.Success, made.Error)
		for _, name := range []string{
			"passwd", "environ", "one", "dangling", "loop", "etc/passwd", "root/etc/passwd", "root/proc/self/environ", "secret", "canary", "outside", "l60", "fd",
		} {
			answers := everyFileRequest(t, a, name)
			for request, answer := range answers {
				for _, leak := range []string{"root:x", "canary-", a.Token, "SECRET_OF_THE_AGENT"} {
					assert.NotContains(t, string(answer.Body), leak, "%s %s", request, name)
				}
			}
			if name != "dangling" { // writing makes its target, inside
				assert.True(t, failed(t, answers["read_file"]), "%s: %s", name, answers["read_file"].Body)
				assert.True(t, failed(t, answers["write_file"]), "%s: %s", name, answers["write_file"].Body)
			}
		}
		assert.NoFileExists(t, outside)
		assert.Equal(t, "Access denied: path outside workspace", execute(t, a, "read_file", map[string]any{"path": "passwd"})["error"])
		assert.Equal(t, http.StatusForbidden, a.Post(t, "/artifacts/read", map[string]any{"slot_id": "slot_0", "path": "passwd"}).Status)
		for _, name := range []string{"l5", "absolute"} {
			assert.Equal(t, "end\n", execute(t, a, "read_file", map[string]any{"path": name})["output"], name)
		}
		list := a.Post(t, "/artifacts/list", map[string]any{"slot_id": "slot_0", "recursive": true})
		assert.Equal(t, http.StatusOK, list.Status)
		assert.NotContains(t, string(list.Body), "etc/shadow")
		refusedWell(t, a.Post(t, "/artifacts/archive", map[string]any{"slot_id": "slot_0"}))
	})
}

func TestF04SwappingDirectoriesForLinksNeverLeadsOutside(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		outside := t.TempDir()
		require.NoError(t, os.Chmod(outside, 0o777)) //nolint:gosec // a slot could write there, if it got there
		require.NoError(t, os.WriteFile(filepath.Join(outside, "file"), []byte("outside"), 0o644))
		require.True(t, a.Bash(t, "slot_0", "mkdir real; echo inside > real/file; ln -s "+outside+" evil", 20).Success)
		background, err := a.Tool("slot_0", "bash", map[string]any{"background": true, "command": `(end=$((SECONDS+2)); while [ $SECONDS -lt $end ]; do mv -T real tmp; mv -T evil real; mv -T real evil; mv -T tmp real; done) > /dev/null 2>&1 &`}, 10)
		require.NoError(t, err)
		require.True(t, background.Success, background.Error)
		for until := time.Now().Add(500 * time.Millisecond); time.Now().Before(until); {
			for request, answer := range everyFileRequest(t, a, "real/file") {
				assert.NotContains(t, string(answer.Body), "outside\"", request)
				assert.NotEqual(t, "outside", string(answer.Body), request)
			}
			a.Send(t, http.MethodPut, filePath("real/new"), inputMarker)
		}
		entries, err := os.ReadDir(outside)
		require.NoError(t, err)
		assert.Len(t, entries, 1)
		text, err := os.ReadFile(filepath.Join(outside, "file"))
		require.NoError(t, err)
		assert.Equal(t, "outside", string(text))
	})
}

func TestF05HardLinksGiveNothingAway(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		canary := filepath.Join(a.Dir, "sandboxes", "slots", "slot_1", "workspace", ".canary")
		require.FileExists(t, canary)
		a.Bash(t, "slot_0", "ln "+canary+" stolen; ln ../../slot_1/workspace/.canary stolen2; ln /etc/shadow shadow; true", 10)
		if a.Level < slots.LevelLandlock {
			return // slots can read each other there, and say so
		}
		for _, name := range []string{"stolen", "stolen2", "shadow"} {
			for request, answer := range everyFileRequest(t, a, name) {
				assert.NotContains(t, string(answer.Body), "canary-", "%s %s", request, name)
				assert.NotContains(t, string(answer.Body), "root:", "%s %s", request, name)
			}
		}
	})
}

func TestF06WhatIsNoFileIsRefusedAtOnce(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		made := a.Bash(t, "slot_0", `mkfifo fifo; mkdir dir; ln -s fifo tofifo; ln -s /dev/zero zero; ln -s /dev/stdin stdin; ln -s /proc/kmsg kmsg
			command -v python3 > /dev/null && python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'; ls`, 20)
		names := []string{"fifo", "tofifo", "dir"}
		if strings.Contains(made.Output, "socket") {
			names = append(names, "socket")
		}
		for _, name := range names {
			answers := everyFileRequest(t, a, name)
			assert.Equal(t, "Not a file: "+name, answers["read_file"].Object(t)["error"])
			assert.Equal(t, http.StatusBadRequest, answers["/artifacts/read"].Status)
			assert.Equal(t, "Not a file: "+name, answers["/artifacts/read"].Object(t)["error"])
			assert.Equal(t, http.StatusBadRequest, answers["GET"].Status)
		}
		for _, name := range []string{"zero", "stdin", "kmsg", "/dev/zero", "/dev/stdin", "/proc/kmsg", "/dev/tcp/127.0.0.1/80"} {
			assert.True(t, failed(t, everyFileRequest(t, a, name)["read_file"]), name)
		}
		archive := a.Post(t, "/artifacts/archive", map[string]any{"slot_id": "slot_0"})
		assert.Equal(t, http.StatusOK, archive.Status, "%.200s", archive.Body)
		archive.Within(t, soon, "an archive of it")
	})
}

func TestF07AFifoThatComesBetweenNeverHangsAWrite(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		require.True(t, a.Bash(t, "slot_0", "mkfifo fifo", 10).Success)
		everyFileRequest(t, a, "fifo")
		r, err := a.Tool("slot_0", "bash", map[string]any{"background": true, "command": "(end=$((SECONDS+2)); while [ $SECONDS -lt $end ]; do mkfifo x; rm -f x; echo " + inputMarker + " > x; rm -f x; done) > /dev/null 2>&1 &"}, 10)
		require.NoError(t, err)
		require.True(t, r.Success)
		for until := time.Now().Add(500 * time.Millisecond); time.Now().Before(until); {
			everyFileRequest(t, a, "x")
		}
	})
}

func TestF08AFileThatChangesWhileItIsReadIsWholeOrAnError(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		r, err := a.Tool("slot_0", "bash", map[string]any{"background": true, "command": "(end=$((SECONDS+3)); while [ $SECONDS -lt $end ]; do truncate -s 8M f; truncate -s 0 f; truncate -s 3M f; done) > /dev/null 2>&1 &"}, 10)
		require.NoError(t, err)
		require.True(t, r.Success)
		for range 12 {
			if file, err := a.GetFile(t.Context(), client.Place{SlotID: "slot_0", Path: "f"}, client.GetOptions{}); err == nil {
				text, err := io.ReadAll(file)
				assert.True(t, err != nil || int64(len(text)) == file.Length, "%d bytes of %d", len(text), file.Length)
				assert.NoError(t, file.Close())
			}
			refusedWell(t, a.Post(t, "/artifacts/read", map[string]any{"slot_id": "slot_0", "path": "f", "include_sha256": true, "max_bytes": 100000}))
			refusedWell(t, a.Post(t, "/artifacts/archive", map[string]any{"slot_id": "slot_0"}))
			execute(t, a, "read_file", map[string]any{"path": "f"})
		}
	})
}

func TestF09ALongListingIsBoundedAndExact(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		const n = 500
		require.True(t, a.Bash(t, "slot_0", fmt.Sprintf("mkdir d && cd d && seq 1 %d | xargs touch", n), 60).Success)
		list := func(most int) api.ListAnswer {
			answer, err := a.ListArtifacts(t.Context(), api.ListRequest{SlotID: "slot_0", Path: "d", MaxEntries: &most})
			require.NoError(t, err)
			return answer
		}
		for most, truncated := range map[int]bool{n: false, n - 1: true, 1: true, 1_000_000_000: false} {
			answer := list(most)
			assert.Len(t, answer.Entries, min(n, most))
			assert.Equal(t, truncated, answer.Truncated, most)
		}
		for _, tool := range []string{"list_dir", "glob"} {
			r := execute(t, a, tool, map[string]any{"path": "d", "pattern": "*"})
			assert.Less(t, len(r["output"].(string)), 1<<20)
		}
		refusedWell(t, a.Post(t, "/artifacts/archive", map[string]any{"slot_id": "slot_0", "max_entries": 100}))
	})
}

func TestF10AVeryDeepTreeIsListedArchivedAndReset(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		made := a.Bash(t, "slot_0", `p=$(printf 'ddd/%.0s' {1..550}); for i in {1..2}; do mkdir -p $p && cd $p 2> /dev/null || exit 1; done; echo deep`, 60)
		require.Contains(t, made.Output, "deep", made.Error)
		for _, answer := range []agenttest.Answer{
			a.Post(t, "/artifacts/list", map[string]any{"slot_id": "slot_0", "recursive": true, "max_entries": 100}),
			a.Post(t, "/artifacts/archive", map[string]any{"slot_id": "slot_0"}),
		} {
			assert.NotEqual(t, http.StatusInternalServerError, answer.Status, "%.300s", answer.Body)
			answer.Within(t, 20*time.Second, "a list or an archive")
		}
		for tool, args := range map[string]map[string]any{
			"glob": {"pattern": "**/x"}, "read_file": {"path": strings.Repeat("ddd/", 1050) + "x"},
		} {
			answer := a.Post(t, "/execute", map[string]any{"slot_id": "slot_0", "tool": tool, "args": args, "timeout": 10})
			assert.NotContains(t, string(answer.Body), `"internal"`, tool)
			answer.Within(t, 20*time.Second, tool)
		}
	})
}

func TestF11ModesThatForbidEverythingAreAnErrorAndResetWell(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		require.True(t, a.Bash(t, "slot_0", `mkdir -p none/in sticky setgid; echo x > none/in/f; echo x > f; echo x > sticky/f; chmod 1777 sticky; chmod 2755 setgid; chmod 000 f none/in none`, 10).Success)
		for _, name := range []string{"f", "none", "none/in/f", "sticky/f", "setgid/new"} {
			everyFileRequest(t, a, name)
		}
		if a.Bash(t, "slot_0", "id -u", 10).Output != "0" && a.Level > slots.LevelLandlock {
			// write_file replaces f, which a mode cannot forbid; none/in/f is out of reach.
			answer := a.Post(t, "/artifacts/read", map[string]any{"slot_id": "slot_0", "path": "none/in/f"})
			assert.Equal(t, http.StatusForbidden, answer.Status, "%s", answer.Body)
			assert.Equal(t, "Permission denied: none/in/f", answer.Object(t)["error"])
			archive := a.Post(t, "/artifacts/archive", map[string]any{"slot_id": "slot_0"})
			assert.Equal(t, http.StatusOK, archive.Status)
			assert.NotZero(t, archive.Object(t)["omitted_count"], "what could not be read is told")
		}
	})
}
