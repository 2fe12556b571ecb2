package hostile_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
)

func TestF17JSONOfEveryShapeIsTakenOrRefused(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		call := func(rest string) string {
			return `{"slot_id":"slot_0","tool":"bash","args":{"command":"echo fine"}` + rest + `}`
		}
		for name, text := range map[string]string{
			"trailing comma": `{"slot_id":"slot_0",}`, "nothing": ``, "space": "  \n", "null": `null`, "number": `5`, "string": `"x"`, "array": `[]`, "cut": `{"slot_id":"slot`,
			"two objects": `{}{}`, "trailing garbage": call("") + "x", "bom": "\ufeff" + call(""), "NaN": call(`,"timeout":NaN`), "Infinity": call(`,"timeout":-Infinity`),
			"deep": strings.Repeat(`{"a":`, 100_000) + `1` + strings.Repeat(`}`, 100_000), "deep array": call(`,"x":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)),
			"utf16": "\xff\xfe{\x00}\x00", "control": "{\"slot_id\":\"a\nb\"}", "single quotes": `{'slot_id':'slot_0'}`,
		} {
			answer := a.Send(t, http.MethodPost, "/execute", text)
			refusedWell(t, answer, name)
			assert.Equal(t, http.StatusBadRequest, answer.Status, "%s: %.200s", name, answer.Body)
			assert.Equal(t, "Invalid JSON", answer.Object(t)["error"], name)
			assert.Equal(t, false, answer.Object(t)["success"], name)
			for _, route := range []string{"/batch", "/reset", "/artifacts/read", "/artifacts/list", "/artifacts/archive", "/v1/leases", "/v1/slots/slot_0/lease"} {
				if answer := a.Send(t, http.MethodPost, route, text); route != "/batch" || name != "array" {
					refusedWell(t, answer, route, name)
					assert.Equal(t, http.StatusBadRequest, answer.Status, "%s %s: %.200s", route, name, answer.Body)
				}
			}
		}
		for name, text := range map[string]string{
			"timeout 1e400": call(`,"timeout":1e400`), "timeout text": call(`,"timeout":"5"`), "timeout true": call(`,"timeout":true`), "timeout list": call(`,"timeout":[5]`), "timeout 0": call(`,"timeout":0`),
			"timeout negative": call(`,"timeout":-1`), "timeout huge": call(`,"timeout":1e308`), "timeout 2^63": call(`,"timeout":9223372036854775808`),
			"slot number": `{"slot_id":0,"tool":"bash"}`, "tool object": `{"slot_id":"slot_0","tool":{}}`, "args list": `{"slot_id":"slot_0","tool":"bash","args":[]}`,
			"args text": `{"slot_id":"slot_0","tool":"bash","args":"ls"}`, "command number": `{"slot_id":"slot_0","tool":"bash","args":{"command":5}}`, "no command": `{"slot_id":"slot_0","tool":"bash"}`,
			"null command": `{"slot_id":"slot_0","tool":"bash","args":{"command":null}}`, "id number": call(`,"execution_id":5`), "NUL": `{"slot_id":"slot_0","tool":"bash","args":{"command":"a\u0000b"}}`,
			"token text": call(`,"token":"1"`), "token negative": call(`,"token":-1`), "token too much": call(`,"token":18446744073709551616`),
		} {
			answer := a.Send(t, http.MethodPost, "/execute", text)
			refusedWell(t, answer, name)
			object := answer.Object(t)
			assert.Equal(t, http.StatusOK, answer.Status, name)
			assert.Equal(t, false, object["success"], "%s: %s", name, answer.Body)
			assert.NotEmpty(t, object["error"], name)
		}
		keys := make([]string, 50_000)
		for i := range keys {
			keys[i] = fmt.Sprintf(`"k%d":%d`, i, i)
		}
		for name, text := range map[string]string{
			"unknown fields": call(`,"future":{"a":[1,2,3]}`), "many keys": call("," + strings.Join(keys, ",")), "null timeout": call(`,"timeout":null`), "duplicate": call(`,"slot_id":"slot_0"`),
			"surrogate": call(`,"x":"\ud800"`), "long string": call(`,"x":"` + strings.Repeat("x", 4<<20) + `"`), "space": " \r\n\t" + call("") + " \n",
		} {
			answer := a.Send(t, http.MethodPost, "/execute", text)
			assert.Equal(t, "fine", answer.Object(t)["output"], "%s: %.200s", name, answer.Body)
		}
		batch := a.Send(t, http.MethodPost, "/batch", `[5,null,"x",{},[],{"slot_id":"slot_0","tool":"bash","args":{"command":"echo fine"}}]`)
		var results []api.Result
		require.NoError(t, json.Unmarshal(batch.Body, &results), "%s", batch.Body)
		require.Len(t, results, 6)
		for i, r := range results {
			assert.Equal(t, i == 5, r.Success, "%d %s", i, r.Error)
		}
	})
}

func TestF18ArgumentsOfAnySizeRunOrAreRefused(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		long := "# " + strings.Repeat("x", 1<<20) + "\necho end"
		assert.Equal(t, "end", execute(t, a, "bash", map[string]any{"command": long})["output"])
		assert.Equal(t, "end", execute(t, a, "bash_stateful", map[string]any{"command": long})["output"])
		many := map[string]string{}
		for i := range 100_000 {
			many[fmt.Sprintf("V%d", i)] = "x"
		}
		for name, env := range map[string]map[string]string{
			"huge value": {"A": strings.Repeat("x", 200<<10)}, "equals": {"A=B": "x"}, "empty": {"": "x"}, "NUL name": {"A\x00": "x"}, "NUL value": {"A": "a\x00b"}, "many": many,
		} {
			r := execute(t, a, "bash", map[string]any{"command": "echo ran", "env": env})
			assert.Equal(t, false, r["success"], name)
			assert.Contains(t, r["error"], `argument "env"`, name)
		}
		fits := map[string]string{"A": strings.Repeat("x", 100<<10), "B": strings.Repeat("y", 100<<10), "PATH": "/nowhere:/usr/bin:/bin", "LD_PRELOAD": "/nowhere.so", "BASH_ENV": "/workspace/evil"}
		r := execute(t, a, "bash", map[string]any{"command": "echo ${#A} ${#B} $PATH", "env": fits, "separate": true})
		assert.Contains(t, r["output"], "102400 102400 /nowhere:/usr/bin:/bin", "%v", r)
		assert.Equal(t, false, execute(t, a, "bash", map[string]any{"command": "x", "cwd": strings.Repeat("d/", 3000)})["success"])
	})
}

func TestF19OutputOfAnyBytesIsMarkedOrLossless(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		command := `printf 'a\xff\x00\x1b[31m\r\xc3'; printf '\xe2\x82' >&2`
		r := execute(t, a, "bash", map[string]any{"command": command, "encoding": "base64", "separate": true})
		meta := r["metadata"].(map[string]any)
		assert.Equal(t, true, meta["replaced"])
		out, err := base64.StdEncoding.DecodeString(meta["stdout_base64"].(string))
		require.NoError(t, err)
		assert.Equal(t, "a\xff\x00\x1b[31m\r\xc3", string(out))
		assert.Contains(t, meta["stdout"], "a\ufffd\x00\x1b[31m\r\ufffd")

		// One code point a write, split in its middle: the stream puts it together.
		var text strings.Builder
		for e, err := range a.Stream(t.Context(), call("slot_0", `for i in 1 2 3 4 5; do printf '\xe2'; sleep 0.02; printf '\x82\xac'; done; printf '\xe2\x82'`)) {
			require.NoError(t, err)
			if e.Chunk != nil && e.Chunk.DataBase64 == nil {
				text.WriteString(e.Chunk.Data)
			}
		}
		assert.Equal(t, "€€€€€", text.String())
		assert.NotContains(t, a.Log(), "\x1b[31m")
	})
}

// call is a bash call.
func call(slot, command string) api.Call {
	args, _ := json.Marshal(map[string]string{"command": command})
	return api.Call{SlotID: slot, Tool: "bash", Args: args, Timeout: api.Seconds(20 * agenttest.Patience())}
}

func TestF20WorkingDirectoriesThatCannotBeAreAnError(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		require.True(t, a.Bash(t, "slot_0", "mkdir d; echo > f; ln -s /root out; ln -s d in; mkfifo p; mkdir x; chmod 000 x", 10).Success)
		for _, cwd := range []string{"missing", "f", "p", "../..", "../slot_1", "nul\x00", "d/../../.."} {
			r := execute(t, a, "bash", map[string]any{"command": "echo ran", "cwd": cwd})
			if r["success"] == true {
				assert.NotContains(t, []string{"missing", "f", "p", "nul\x00"}, cwd)
				continue // what bash itself could do: cd
			}
			assert.NotEmpty(t, r["error"], cwd)
			assert.NotContains(t, r["output"], "ran", cwd)
		}
		for _, cwd := range []string{"d", "in", "/workspace/d", "./d/", ""} {
			r := execute(t, a, "bash", map[string]any{"command": "pwd -P", "cwd": cwd})
			assert.Equal(t, true, r["success"], "%s: %v", cwd, r["error"])
		}
		r := execute(t, a, "bash", map[string]any{"command": "rmdir ../d; echo still; ls", "cwd": "d"})
		assert.Contains(t, r["output"], "still")
	})
}

func TestF21ScriptsOfEveryFormRunAsBashRunsThem(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		for command, want := range map[string]string{
			"echo a\necho b": "a\nb", "echo 'x'\n\n\n": "x", "": "", "#!/bin/false\necho ran": "ran", "cat <<'E'\n$(reboot) `x` \\\nE\n": "$(reboot) `x` \\", "echo -n x": "x", "exit 0\nnever": "",
		} {
			r := execute(t, a, "bash", map[string]any{"command": command})
			assert.Equal(t, want, r["output"], "%q: %v", command, r["error"])
		}
		crlf := execute(t, a, "bash", map[string]any{"command": "echo a\r\necho b\r\n"})
		assert.Equal(t, "a\r\nb\r", crlf["output"])
		here := execute(t, a, "bash", map[string]any{"command": "wc -c <<'E'\n" + strings.Repeat("0123456789abcde\n", 60_000) + "E\n"})
		assert.Equal(t, "960000", here["output"], "%v", here["error"])
		assert.Equal(t, false, execute(t, a, "bash", map[string]any{"command": "if"})["success"])
	})
}

func TestF22ConcurrentWritesLeaveOneWholeFile(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		const size = 200_000
		var writers sync.WaitGroup
		for i := range 8 {
			writers.Go(func() {
				for range 3 {
					answer := a.Send(t, http.MethodPut, filePath("f"), strings.Repeat(string(rune('a'+i)), size))
					assert.Less(t, answer.Status, 300, "%s", answer.Body)
				}
			})
		}
		for range 10 {
			answer := a.Send(t, http.MethodGet, filePath("f"), "")
			if answer.Status == http.StatusOK {
				require.Len(t, answer.Body, size)
				assert.Equal(t, strings.Repeat(string(answer.Body[:1]), size), string(answer.Body))
			}
		}
		writers.Wait()
		assert.Equal(t, "f\n1", strings.Join(strings.Fields(a.Bash(t, "slot_0", "ls -A; fold -w1 f | sort -u | wc -l", 20).Output), "\n"))
		r := a.Bash(t, "slot_0", "exec 3< f; echo new > g; mv g f; head -c 1 <&3 | wc -c; cat f", 10)
		assert.Equal(t, "1\nnew", r.Output)
	})
}

func TestF23NamesThatLookLikeShellAreNames(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		for _, name := range []string{"-rf", "--help", "$(touch pwned)", "`touch pwned`", ";touch pwned", "a'b\"c", "*", "?", "[x]", "{a,b}", "~", "!x", "&", "|", "#", "%s", "a b", "\\", "-e x", "<b>", "x\ttouch pwned"} {
			require.Equal(t, true, execute(t, a, "write_file", map[string]any{"path": name, "content": "one " + name})["success"], name)
			assert.Equal(t, "one "+name, execute(t, a, "read_file", map[string]any{"path": name})["output"], name)
			assert.Equal(t, true, execute(t, a, "edit_file", map[string]any{"path": name, "old_string": "one", "new_string": "two"})["success"], name)
			assert.Equal(t, "two "+name, string(a.Send(t, http.MethodGet, filePath(name), "").Body), name)
			read := a.Post(t, "/artifacts/read", map[string]any{"slot_id": "slot_0", "path": name}).Object(t)
			assert.Equal(t, "two "+name, read["content"], name)
			assert.Equal(t, name, read["path"])
			execute(t, a, "grep", map[string]any{"pattern": "two", "path": name})
			execute(t, a, "glob", map[string]any{"pattern": name})
			assert.Equal(t, true, execute(t, a, "bash", map[string]any{"command": "true", "env": map[string]string{"X": name}})["success"])
		}
		archive := a.Post(t, "/artifacts/archive", map[string]any{"slot_id": "slot_0"}).Object(t)
		assert.Equal(t, true, archive["success"])
		assert.Equal(t, "absent", a.Bash(t, "slot_0", "test -e pwned || echo absent", 10).Output)
	})
}

func TestF24SmuggledAndDoubledRequestsReachNothing(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		auth := "Host: x\r\nAuthorization: Bearer " + a.Token + "\r\n"
		smuggled := "POST /reset HTTP/1.1\r\n" + auth + "Content-Length: 20\r\n\r\n{\"slot_id\":\"slot_1\"}"
		for name, request := range map[string]string{
			"TE and CL":       "POST /execute HTTP/1.1\r\n" + auth + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
			"two lengths":     "POST /execute HTTP/1.1\r\n" + auth + "Content-Length: 2\r\nContent-Length: 4\r\n\r\n{}",
			"TE of two kinds": "POST /execute HTTP/1.1\r\n" + auth + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + smuggled,
			"space in header": "POST /execute HTTP/1.1\r\n" + auth + "Content-Length : 2\r\n\r\n{}",
			"folded header":   "GET /health HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n",
			"no host":         "GET /slots HTTP/1.1\r\n\r\n",
			"two tokens":      "GET /slots HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer no\r\nAuthorization: Bearer " + a.Token + "\r\n\r\n",
			"HTTP/0.9":        "GET /slots\r\n\r\n",
			"long header":     "GET /slots HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n",
			"no method":       "\x00\x01\x02\r\n\r\n",
			"HTTP/2":          "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
			"absolute":        "GET http://169.254.169.254/slots HTTP/1.1\r\nHost: x\r\n\r\n",
			"connect":         "CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: x\r\n\r\n",
		} {
			answer := talk(t, a, request)
			assert.NotContains(t, answer, "HTTP/1.1 500", name)
			if name != "folded header" && name != "TE and CL" {
				assert.NotContains(t, answer, "HTTP/1.1 200", name)
			}
		}
		for _, path := range []string{"/slots/slot_0/files/%252e%252e/%252e%252e/etc/passwd", "/slots/slot_0/files/..%2f..%2f..%2fetc%2fpasswd", "/slots/slot_0/files/%2e%2e/%2e%2e/etc/passwd", "/slots/slot_0/files//etc/passwd", "/slots/slot_0/files/x%00y", "/slots/slot_0/files/%5c..%5c..", "/..%2fslots", "/execute/../slots", "//slots"} {
			answer := a.Send(t, http.MethodGet, path, "")
			refusedWell(t, answer, path)
			assert.GreaterOrEqual(t, answer.Status, 400, path)
			assert.NotContains(t, string(answer.Body), "root:")
		}
		for _, method := range []string{http.MethodDelete, http.MethodPatch, "TRACE", "FOO"} {
			answer := a.Send(t, method, "/execute", "{}")
			assert.Equal(t, http.StatusMethodNotAllowed, answer.Status, method)
		}
	})
}

func TestF24MoreCallsThanAQueueHoldsAreRefusedAtOnce(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		calls := make([]api.Call, 1500)
		for i := range calls {
			calls[i] = call("slot_0", "echo ran >> ran")
		}
		calls[0] = call("slot_0", "sleep 300")
		calls[0].ExecutionID, calls[0].Timeout = "holder", api.Seconds(300)
		const held = 1 + 1024 // the one that runs, and those that a queue takes
		refused := 0
		for r, err := range a.BatchStream(t.Context(), calls) {
			require.NoError(t, err)
			require.NotZero(t, *r.Index, "the slot is not held any more, with %d refused: %+v", refused, r)
			assert.Equal(t, "queue_timeout", string(r.Metadata.ErrorKind))
			assert.True(t, *r.Metadata.Retryable)
			if refused++; refused == len(calls)-held {
				break // the client goes away, and everything that waits with it
			}
		}
		_, _, err := a.Cancel(t.Context(), "holder")
		require.NoError(t, err)
		assert.Eventually(t, func() bool { h, err := a.Health(t.Context()); return err == nil && h.Queued == 0 && h.Executing == 0 }, time.Minute, 20*time.Millisecond)
		ran := a.Bash(t, "slot_0", "wc -l < ran || echo 0", 10).Output
		var n int
		_, _ = fmt.Sscan(ran, &n)
		assert.Less(t, n, 1000, "what waited has not run")
	})
}

func TestF25OnlyTheWholeTokenOpens(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		half := a.Token[:len(a.Token)/2]
		for _, header := range []string{
			"Authorization: ", "Authorization: Bearer", "Authorization: Bearer ", "Authorization: " + a.Token, "Authorization: Basic " + a.Token, "Authorization: Bearer " + half, "Authorization: Bearer " + a.Token + "x",
			"Authorization: Bearer  " + a.Token, "Authorization: Bearer " + strings.ToUpper(a.Token), "Authorization: Bearer " + a.Token + " x", "Authorization: Token " + a.Token,
		} {
			for _, route := range []string{"/slots", "/metrics", "/v1/leases", "/slots/slot_0/files/x", "/v1/executions/x", "/nowhere", "/slots?token=" + a.Token, "/slots?access_token=" + a.Token} {
				answer := a.Send(t, http.MethodGet, route, "", header)
				assert.Equal(t, http.StatusUnauthorized, answer.Status, "%s %s", header, route)
				assert.NotContains(t, string(answer.Body), half)
				assert.Contains(t, answer.Object(t), "error")
			}
			for _, route := range []string{"/execute", "/batch", "/reset", "/artifacts/read", "/artifacts/list", "/artifacts/archive", "/v1/leases"} {
				answer := a.Send(t, http.MethodPost, route, `{"slot_id":"slot_1","tool":"bash","args":{"command":"rm .canary"}}`, header)
				assert.Equal(t, http.StatusUnauthorized, answer.Status, "%s %s", header, route)
				assert.NotContains(t, string(answer.Body), half)
			}
		}
		for _, route := range []string{"/health", "/livez", "/readyz"} {
			assert.Equal(t, http.StatusOK, a.Send(t, http.MethodGet, route, "", "Authorization: nonsense").Status, route)
		}
		assert.Equal(t, http.StatusOK, a.Send(t, http.MethodGet, "/slots", "", "Authorization: bearer "+a.Token).Status)
		assert.NotContains(t, string(a.Send(t, http.MethodGet, "/metrics", "").Body), half)
	})
}

func TestF26AnExecutionIDGivesNobodyElsesResult(t *testing.T) {
	var attacks atomic.Int64
	input(t, func(t *testing.T, a *agenttest.Agent) {
		run := func(slot, id, command string) map[string]any {
			return a.Post(t, "/execute", map[string]any{"slot_id": slot, "tool": "bash", "execution_id": id, "args": map[string]any{"command": command}}).Object(t)
		}
		require.Equal(t, "secret", run("slot_1", "theirs", "echo secret")["output"])
		for _, other := range []map[string]any{run("slot_0", "theirs", "echo secret"), run("slot_1", "theirs", "echo other"), run("slot_0", "theirs", "echo x")} {
			assert.Equal(t, false, other["success"])
			assert.NotContains(t, fmt.Sprint(other), "secret")
			assert.Equal(t, "conflict", other["metadata"].(map[string]any)["error_kind"])
		}
		assert.Equal(t, "secret", run("slot_1", "theirs", "echo secret")["output"])
		for _, id := range []string{strings.Repeat("i", 1<<20), strings.Repeat("i", 257)} {
			r := run("slot_0", id, "echo x")
			assert.Equal(t, false, r["success"])
			assert.Equal(t, "bad_request", r["metadata"].(map[string]any)["error_kind"])
		}
		for _, id := range []string{"../../x", "a/b", "\x00", "новый", "-rf", strings.Repeat("i", 256), "a\nb", " ", "%2e%2e", "."} {
			assert.Equal(t, "x", run("slot_0", id, "echo x")["output"], "%q", id)
			assert.Equal(t, id, run("slot_0", id, "echo x")["execution_id"])
			answer := a.Send(t, http.MethodGet, "/v1/executions/"+encodeAll(id), "")
			assert.Equal(t, http.StatusOK, answer.Status, "%q %s", id, answer.Body)
			assert.Equal(t, "x", answer.Object(t)["output"], "%q", id)
		}
		// Of its own for each attack: the file of an earlier one's output went with a reset.
		long := run("slot_0", fmt.Sprintf("../long/id-%d", attacks.Add(1)), "yes | head -c 300000")
		path := long["metadata"].(map[string]any)["stdout_path"].(string)
		assert.Equal(t, "300000", strings.TrimSpace(a.Bash(t, "slot_0", "wc -c < '"+path+"'", 10).Output))
	})
}

func TestF27FinishedResultsStayBounded(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		calls := make([]map[string]any, 900)
		for i := range calls {
			calls[i] = map[string]any{"slot_id": "slot_0", "tool": "read_file", "args": map[string]any{"path": strings.Repeat("x", 200) + fmt.Sprint(i)}}
		}
		for range 2 {
			answer := a.Post(t, "/batch", calls)
			require.Equal(t, http.StatusOK, answer.Status)
			var results []api.Result
			require.NoError(t, json.Unmarshal(answer.Body, &results))
			require.Len(t, results, len(calls))
		}
		// 100 kB of output each: more than is kept, which the agent must survive
		// within its bounds.
		for range 25 {
			r := execute(t, a, "bash", map[string]any{"command": "head -c 90000 /dev/zero | tr '\\0' x; head -c 60000 /dev/zero | tr '\\0' y >&2", "max_output": 100_000})
			require.Equal(t, true, r["success"])
		}
	})
}
