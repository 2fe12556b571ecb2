package httpapi

import (
	"encoding/base64"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
)

// wire is one exchange with a client of the reference, to the byte but for
// spaces and the order of keys.
type wire struct {
	name         string
	method, path string
	body         string
	code         int
	want         string
}

func (w wire) run(t *testing.T, c *container) {
	t.Helper()
	got := c.ask(t, w.method, w.path, w.body)
	assert.Equal(t, w.code, got.code)
	assert.Equal(t, "application/json", got.header.Get("Content-Type"))
	assert.JSONEq(t, w.want, got.body)
}

const (
	helloResult = `{"success":true,"output":"hello","error":"","execution_id":"e1","metadata":{
		"outcome":"exited","exit_code":0,"duration_ms":1.5,"spawn_ms":0.5,"cpu_ms":0,"max_rss_bytes":0,"oom_killed":false,
		"stdout_bytes":5,"stderr_bytes":0,"truncated":false,"queue_ms":0,"generation":0}}`
	unknownSlot = `{"success":false,"output":"","error":"Unknown slot: slot_9","execution_id":"e2","metadata":{
		"queue_ms":0,"generation":0,"error_kind":"not_found","retryable":false,"executed":"never"}}`
	invalidJSON = `{"success":false,"output":"","error":"Invalid JSON","execution_id":"","metadata":{
		"queue_ms":0,"generation":0,"error_kind":"bad_request","retryable":false,"executed":"never"}}`
)

func refused(id, text, kind string) string {
	return `{"success":false,"output":"","error":"` + text + `","execution_id":"` + id + `","metadata":{
		"queue_ms":0,"generation":0,"error_kind":"` + kind + `","retryable":false,"executed":"never"}}`
}

func TestCallsAnswerInTheReferencesForm(t *testing.T) {
	c := start(t, Config{Token: testToken, MaxBody: 1 << 20})
	hello := `{"slot_id":"slot_0","tool":"bash","args":{"command":"echo hello"},"execution_id":"e1","timeout":30,"some":"thing"}`
	lost := `{"slot_id":"slot_9","tool":"bash","args":{},"execution_id":"e2"}`
	for _, w := range []wire{
		{"a call", http.MethodPost, "/execute", hello, 200, helloResult},
		{"an unknown slot", http.MethodPost, "/execute", lost, 200, unknownSlot},
		{"an unknown tool", http.MethodPost, "/execute", `{"slot_id":"slot_0","tool":"rm","args":null}`, 200, refused("", "Unknown tool: rm", "bad_request")},
		{"null as timeout", http.MethodPost, "/execute", `{"slot_id":"slot_9","tool":"bash","execution_id":"e2","timeout":null}`, 200, unknownSlot},
		{"a timeout of 0", http.MethodPost, "/execute", `{"slot_id":"slot_0","tool":"bash","timeout":0}`, 200, refused("", "timeout must be above 0 seconds, got 0", "bad_request")},
		{"a timeout that is a text", http.MethodPost, "/execute", `{"slot_id":"slot_0","tool":"bash","timeout":"5"}`, 200, refused("", `timeout must be a number of seconds above 0, got \"5\"`, "bad_request")},
		{"args that are no object", http.MethodPost, "/execute", `{"slot_id":"slot_0","tool":"bash","args":[]}`, 200, refused("", "args must be an object", "bad_request")},
		{"a slot_id that is a number", http.MethodPost, "/execute", `{"slot_id":5,"tool":"bash"}`, 200, refused("", "slot_id must be a string", "bad_request")},
		{"no JSON", http.MethodPost, "/execute", `{"slot_id":`, 400, invalidJSON},
		{"no object", http.MethodPost, "/execute", `[]`, 400, invalidJSON},
		{"null", http.MethodPost, "/execute", `null`, 400, invalidJSON},
		{"no body", http.MethodPost, "/execute", ``, 400, invalidJSON},
		{"an empty batch", http.MethodPost, "/batch", `[]`, 200, `[]`},
		{"no batch", http.MethodPost, "/batch", `{}`, 400, invalidJSON},
		{"a broken batch", http.MethodPost, "/batch", `[{}`, 400, invalidJSON},
	} {
		t.Run(w.name, func(t *testing.T) { w.run(t, c) })
	}
	t.Run("a batch keeps order and its bad elements to themselves", func(t *testing.T) {
		// e1 stands for the same content as above, so it is not run again.
		got := c.ask(t, http.MethodPost, "/batch", `[`+lost+`,7,"x",null,{"slot_id":[]},`+hello+`]`)
		assert.Equal(t, 200, got.code)
		replayed := strings.Replace(helloResult, `"generation":0`, `"generation":0,"replayed":true`, 1)
		assert.JSONEq(t, `[`+unknownSlot+`,`+invalidJSON+`,`+invalidJSON+`,`+invalidJSON+`,`+refused("", "slot_id must be a string", "bad_request")+`,`+replayed+`]`, got.body)
	})
}

func TestSlotRoutesAnswerInTheReferencesForm(t *testing.T) {
	c := start(t, Config{Token: testToken})
	for _, w := range []wire{
		{"health", http.MethodGet, "/health", "", 200, `{"status":"ok","slots":2,"available":2,"executing":0,"quarantined":0,"leased":0,"queued":0,
			"data_dir":"/var/lib/berth","isolation":{"level":"none","axes":{},"unsafe":true},"version":"test","uptime_s":0}`},
		{"slots", http.MethodGet, "/slots", "", 200, `{"slots":[
			{"slot_id":"slot_0","state":"available","workspace_dir":"/workspace","current_execution_id":null,"generation":0,"queued":0},
			{"slot_id":"slot_1","state":"available","workspace_dir":"/workspace","current_execution_id":null,"generation":0,"queued":0}]}`},
		{"reset", http.MethodPost, "/reset", `{"slot_id":"slot_0","x":1}`, 200, `{"success":true,"output":"Reset workspace for slot_0","error":"","execution_id":"",
			"metadata":{"clean":true,"generation":1,"checks":[{"name":"processes","ok":true}],"ms":0.25}}`},
		{"reset of an unknown slot", http.MethodPost, "/reset", `{"slot_id":"x"}`, 200, `{"success":false,"output":"","error":"Unknown slot: x","execution_id":"",
			"metadata":{"clean":false,"generation":0,"checks":[],"ms":0,"error_kind":"not_found","retryable":false,"executed":"never"}}`},
	} {
		t.Run(w.name, func(t *testing.T) { w.run(t, c) })
	}
	t.Run("a reset that fails shows what could not be proven", func(t *testing.T) {
		c.resetBy = slots.Errorf(slots.KindResetFailed, "reset failed: processes")
		got := c.ask(t, http.MethodPost, "/reset", `{"slot_id":"slot_0"}`)
		assert.Equal(t, 200, got.code)
		assert.JSONEq(t, `{"success":false,"output":"","error":"reset failed: processes","execution_id":"",
			"metadata":{"clean":false,"generation":2,"checks":[{"name":"processes","ok":false}],"ms":0.25,
			"error_kind":"reset_failed","retryable":false,"executed":"never"}}`, got.body)
	})
}

func failed(text, kind string) string {
	return `{"success":false,"error":"` + text + `","error_kind":"` + kind + `","retryable":false,"executed":"never"}`
}

func TestArtifactsAnswerInTheReferencesForm(t *testing.T) {
	c := start(t, Config{Token: testToken})
	c.file(t, "dir/a.txt", "hello\n")
	c.file(t, "bytes", "\xff\xfe")
	const sum = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03" // of "hello\n"
	for _, w := range []wire{
		{
			"read", http.MethodPost, "/artifacts/read", `{"slot_id":"slot_0","path":"dir/a.txt","x":1}`, 200,
			`{"success":true,"content":"hello\n","encoding":"text","truncated":false,"bytes":6,"file_size":6,"path":"dir/a.txt","mime":"text/plain"}`,
		},
		{
			"read at exactly the limit", http.MethodPost, "/artifacts/read", `{"slot_id":"slot_0","path":"/workspace/dir/a.txt","max_bytes":6,"include_sha256":true}`, 200,
			`{"success":true,"content":"hello\n","encoding":"text","truncated":false,"bytes":6,"file_size":6,"path":"dir/a.txt","mime":"text/plain","sha256":"` + sum + `","file_sha256":"` + sum + `"}`,
		},
		{
			"base64", http.MethodPost, "/artifacts/read", `{"slot_id":"slot_0","path":"dir/a.txt","encoding":"base64","max_bytes":3}`, 200,
			`{"success":true,"content":"aGVs","encoding":"base64","truncated":true,"bytes":3,"file_size":6,"path":"dir/a.txt","mime":"text/plain"}`,
		},
		{"outside", http.MethodPost, "/artifacts/read", `{"slot_id":"slot_0","path":"../x"}`, 403, failed("Access denied: path outside workspace", "denied")},
		{"not there", http.MethodPost, "/artifacts/read", `{"slot_id":"slot_0","path":"nope"}`, 404, failed("Not found: nope", "not_found")},
		{"list what is not there", http.MethodPost, "/artifacts/list", `{"slot_id":"slot_0","path":"nope"}`, 404, failed("Not found: nope", "not_found")},
		{"archive what is not there", http.MethodPost, "/artifacts/archive", `{"slot_id":"slot_0","path":"nope"}`, 404, failed("Not found: nope", "not_found")},
		{"a directory", http.MethodPost, "/artifacts/read", `{"slot_id":"slot_0","path":"dir"}`, 400, failed("Not a file: dir", "bad_request")},
		{"encoding", http.MethodPost, "/artifacts/read", `{"slot_id":"slot_0","path":"dir","encoding":"rot13"}`, 400, failed("Unsupported encoding: rot13", "bad_request")},
		{"format", http.MethodPost, "/artifacts/archive", `{"slot_id":"slot_0","format":"zip"}`, 400, failed("Unsupported archive format: zip", "bad_request")},
		{"no JSON", http.MethodPost, "/artifacts/read", `x`, 400, failed("Invalid JSON", "bad_request")},
		{"max_bytes of 0", http.MethodPost, "/artifacts/read", `{"slot_id":"slot_0","path":"bytes","max_bytes":0}`, 400, failed("max_bytes must be above 0", "bad_request")},
		{"max_entries as a text", http.MethodPost, "/artifacts/list", `{"slot_id":"slot_0","max_entries":"5"}`, 400, failed("max_entries must be an integer", "bad_request")},
		{"a slot that is not there", http.MethodPost, "/artifacts/list", `{"slot_id":"slot_7"}`, 404, failed("Unknown slot: slot_7", "not_found")},
	} {
		t.Run(w.name, func(t *testing.T) { w.run(t, c) })
	}
}

func TestArtifactBytesThatAreNoTextAreReplacedOrLossless(t *testing.T) {
	c := start(t, Config{Token: testToken})
	c.file(t, "bytes", "a\xff\xfe")
	var got struct{ Content string }
	c.ask(t, http.MethodPost, "/artifacts/read", `{"slot_id":"slot_0","path":"bytes"}`).decode(t, &got)
	assert.Equal(t, "a\ufffd\ufffd", got.Content)
	c.ask(t, http.MethodPost, "/artifacts/read", `{"slot_id":"slot_0","path":"bytes","encoding":"base64"}`).decode(t, &got)
	assert.Equal(t, base64.StdEncoding.EncodeToString([]byte("a\xff\xfe")), got.Content)
}

func TestListTellsKindsAndExactTruncation(t *testing.T) {
	c := start(t, Config{Token: testToken})
	c.file(t, "a", "1")
	c.file(t, "b", "22")
	var got struct {
		Success, Truncated bool
		Entries            []map[string]any
	}
	c.ask(t, http.MethodPost, "/artifacts/list", `{"slot_id":"slot_0","max_entries":2}`).decode(t, &got)
	assert.True(t, got.Success)
	assert.False(t, got.Truncated)
	require.Len(t, got.Entries, 2)
	assert.Equal(t, "b", got.Entries[1]["path"])
	assert.EqualValues(t, 2, got.Entries[1]["size"])
	assert.Equal(t, false, got.Entries[1]["is_dir"])
	assert.Contains(t, got.Entries[1], "mtime")
	c.ask(t, http.MethodPost, "/artifacts/list", `{"slot_id":"slot_0","max_entries":1}`).decode(t, &got)
	assert.True(t, got.Truncated)
}

func TestArchivesAreBoundedAndSayBy(t *testing.T) {
	c := start(t, Config{Token: testToken})
	c.file(t, "a", "1")
	c.file(t, "b", "2")
	var got struct {
		Success          bool
		Content          []byte
		Encoding, Format string
		Bytes            int
		EntryCount       int `json:"entry_count"`
	}
	a := c.ask(t, http.MethodPost, "/artifacts/archive", `{"slot_id":"slot_0","format":"tgz"}`)
	a.decode(t, &got)
	assert.True(t, got.Success)
	assert.Equal(t, "base64", got.Encoding)
	assert.Equal(t, "tar.gz", got.Format)
	assert.Len(t, got.Content, got.Bytes)
	assert.Greater(t, got.EntryCount, 1)
	assert.Contains(t, a.body, `"truncated":false,"omitted_count":0`)

	a = c.ask(t, http.MethodPost, "/artifacts/archive", `{"slot_id":"slot_0","max_entries":1}`)
	assert.Contains(t, a.body, `"entry_count":1,"truncated":true}`, "nobody has counted the others")

	a = c.ask(t, http.MethodPost, "/artifacts/archive", `{"slot_id":"slot_0","max_bytes":10}`)
	assert.Equal(t, 413, a.code)
	var refusal struct {
		Success bool
		Error   string
		Bytes   int
	}
	a.decode(t, &refusal)
	assert.False(t, refusal.Success)
	assert.Regexp(t, `^Archive too large: \d+ bytes \(max 10\)$`, refusal.Error)
	assert.Greater(t, refusal.Bytes, 10)
}
