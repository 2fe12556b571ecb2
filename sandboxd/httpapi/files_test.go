package httpapi

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots"
)

func hexOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

const files = "/slots/slot_0/files/"

func TestAFileIsReadWholeAndInParts(t *testing.T) {
	c := start(t, Config{Token: testToken})
	c.file(t, "a b/ü.txt", "0123456789")
	path := files + "a%20b/%C3%BC.txt"
	a := c.ask(t, http.MethodGet, path, "")
	assert.Equal(t, 200, a.code)
	assert.Equal(t, "0123456789", a.body)
	assert.Equal(t, "10", a.header.Get("Content-Length"))
	assert.Equal(t, "bytes", a.header.Get("Accept-Ranges"))
	assert.Equal(t, "0644", a.header.Get(api.HeaderMode))
	assert.NotEmpty(t, a.header.Get("Last-Modified"))
	assert.Empty(t, a.header.Get("ETag"), "nobody asked")
	for _, r := range []struct {
		text string
		code int
		body string
		part string
	}{
		{"bytes=0-3", 206, "0123", "bytes 0-3/10"},
		{"bytes=7-", 206, "789", "bytes 7-9/10"},
		{"bytes=-2", 206, "89", "bytes 8-9/10"},
		{"bytes=-99", 206, "0123456789", "bytes 0-9/10"},
		{"bytes=8-99999999999999999999999", 206, "89", "bytes 8-9/10"},
		{"bytes=10-", 416, "", "bytes */10"},
		{"bytes=99999999999999999999999-", 416, "", "bytes */10"},
		{"bytes=-0", 416, "", "bytes */10"},
		{"bytes=5-4", 200, "0123456789", ""},
		{"bytes=--5", 200, "0123456789", ""},
		{"bytes=0-1,3-4", 200, "0123456789", ""},
		{"bytes=x", 200, "0123456789", ""},
		{"lines=1-2", 200, "0123456789", ""},
	} {
		a := c.ask(t, http.MethodGet, path, "", "Range: "+r.text)
		assert.Equal(t, r.code, a.code, r.text)
		assert.Equal(t, r.part, a.header.Get("Content-Range"), r.text)
		if r.code != 416 {
			assert.Equal(t, r.body, a.body, r.text)
		}
	}
	a = c.ask(t, http.MethodHead, path, "")
	assert.Equal(t, 200, a.code)
	assert.Equal(t, "10", a.header.Get("Content-Length"))
	assert.Empty(t, a.body)
	assert.Equal(t, 404, c.ask(t, http.MethodHead, files+"nope", "").code)
}

func TestAnEmptyFileIsRead(t *testing.T) {
	c := start(t, Config{Token: testToken})
	c.file(t, "empty", "")
	a := c.ask(t, http.MethodGet, files+"empty?sha256=1", "")
	assert.Equal(t, 200, a.code)
	assert.Equal(t, hexOf(""), a.header.Get(api.HeaderChecksum))
	assert.Equal(t, 416, c.ask(t, http.MethodGet, files+"empty", "", "Range: bytes=0-").code)
}

func TestETagsTakePartInConditions(t *testing.T) {
	c := start(t, Config{Token: testToken})
	c.file(t, "f", "hello")
	etag := `"` + hexOf("hello") + `"`
	a := c.ask(t, http.MethodGet, files+"f?sha256=1", "")
	assert.Equal(t, etag, a.header.Get("ETag"))
	assert.Equal(t, "hello", a.body)
	for header, code := range map[string]int{
		"If-Match: " + etag: 200, `If-Match: "x"`: 412, "If-Match: *": 200, `If-Match: "x", ` + etag: 200,
		"If-None-Match: " + etag: 304, `If-None-Match: "x"`: 200, "If-None-Match: W/" + etag: 304,
	} {
		assert.Equal(t, code, c.ask(t, http.MethodGet, files+"f", "", header).code, header)
	}
	assert.Equal(t, 206, c.ask(t, http.MethodGet, files+"f", "", "Range: bytes=1-2", "If-Range: "+etag).code)
	assert.Equal(t, 200, c.ask(t, http.MethodGet, files+"f", "", "Range: bytes=1-2", `If-Range: "x"`).code)
}

func TestWhatIsNoFileAnswersAProperStatus(t *testing.T) {
	c := start(t, Config{Token: testToken})
	c.file(t, "dir/f", "")
	for path, code := range map[string]int{"nope": 404, "dir": 400, "": 400, "../x": 403, "%2e%2e/x": 403, strings.Repeat("x", 300): 400, "a%00b": 400} {
		a := c.ask(t, http.MethodGet, files+path, "")
		assert.Equal(t, code, a.code, path)
		assert.Equal(t, "application/json", a.header.Get("Content-Type"), path)
		assert.Contains(t, a.body, `{"error":{`, path)
	}
	assert.Equal(t, 404, c.ask(t, http.MethodGet, "/slots/slot_7/files/x", "").code)
	assert.Equal(t, 400, c.ask(t, http.MethodGet, files+"dir/f", "", "Berth-Token: -1").code)
	assert.Equal(t, 409, c.ask(t, http.MethodGet, files+"dir/f", "", "Berth-Token: 7").code)
}

func TestAFileIsWrittenAndTellsItsChecksum(t *testing.T) {
	c := start(t, Config{Token: testToken})
	a := c.ask(t, http.MethodPut, files+"new/f?mode=0750", "content")
	assert.Equal(t, 201, a.code)
	assert.JSONEq(t, `{"path":"new/f","size":7,"sha256":"`+hexOf("content")+`","created":true}`, a.body)
	st, err := os.Stat(filepath.Join(c.root, "new/f"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o750), st.Mode().Perm())
	a = c.ask(t, http.MethodPut, files+"new/f", "more")
	assert.Equal(t, 200, a.code)
	a = c.ask(t, http.MethodPut, files+"new/f", "")
	assert.Equal(t, 200, a.code)
	assert.Contains(t, a.body, `"size":0`)
	for path, code := range map[string]int{"?mode=9": 400, "?mode=x": 400, "?mode=-1": 400, "?mode=177777": 400, "?mode=7777": 201} {
		assert.Equal(t, code, c.ask(t, http.MethodPut, files+"m"+path, "x").code, path)
	}
	st, err = os.Stat(filepath.Join(c.root, "m"))
	require.NoError(t, err)
	assert.Zero(t, st.Mode()&(os.ModeSetuid|os.ModeSetgid|os.ModeSticky))
}

func TestAPutThatIsNotWhatItClaimsLeavesTheOldFile(t *testing.T) {
	c := start(t, Config{Token: testToken, MaxUpload: 1000})
	c.file(t, "f", "old")
	sum := sha256.Sum256([]byte("new"))
	digest := base64.StdEncoding.EncodeToString(sum[:])
	old := func(why string) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(c.root, "f"))
		require.NoError(t, err)
		assert.Equal(t, "old", string(text), why)
	}
	for header, code := range map[string]int{
		"X-Checksum-Sha256: " + hexOf("other"): 400, "X-Checksum-Sha256: zz": 400, "Digest: sha-256=AAAA": 400, "Digest: sha-256=" + digest[1:] + "A": 400,
		`If-Match: "` + hexOf("other") + `"`: 412, "If-None-Match: *": 400, "Content-Range: bytes 0-1/3": 400,
	} {
		assert.Equal(t, code, c.ask(t, http.MethodPut, files+"f", "new", header).code, header)
		old(header)
	}
	assert.Equal(t, 413, c.ask(t, http.MethodPut, files+"f", strings.Repeat("x", 1001)).code)
	old("too large")
	c.cutUpload(t, "/slots/slot_0/files/f")
	old("cut off")
	assert.Equal(t, 412, c.ask(t, http.MethodPut, files+"none", "new", "If-Match: *").code)

	for _, header := range []string{"X-Checksum-Sha256: " + hexOf("new"), "Digest: md5=x, SHA-256=" + digest, "If-Match: *", `If-Match: "` + hexOf("new") + `"`} {
		assert.Equal(t, 200, c.ask(t, http.MethodPut, files+"f", "new", header).code, header)
	}
	assert.Equal(t, "new", c.ask(t, http.MethodGet, files+"f", "").body)
}

// cutUpload sends half of a body and ends the connection.
func (c *container) cutUpload(t *testing.T, path string) {
	t.Helper()
	conn, r := dial(t, c.addr)
	_, err := io.WriteString(conn, "PUT "+path+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+testToken+"\r\nContent-Length: 100\r\n\r\nhalf")
	require.NoError(t, err)
	half, ok := conn.(interface{ CloseWrite() error })
	require.True(t, ok)
	require.NoError(t, half.CloseWrite())
	_, _ = io.Copy(io.Discard, r)
}

func TestAPutIsRefusedBeforeItsBodyIsSent(t *testing.T) {
	c := start(t, Config{Token: testToken, MaxUpload: 1000})
	for _, text := range []string{
		"PUT /slots/slot_0/files/f HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n",
		"PUT /slots/slot_0/files/f HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + testToken + "\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n",
		"PUT /slots/slot_7/files/f HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + testToken + "\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n",
	} {
		conn, r := dial(t, c.addr)
		_, err := io.WriteString(conn, text)
		require.NoError(t, err)
		line, err := r.ReadString('\n')
		require.NoError(t, err)
		assert.Contains(t, []string{"HTTP/1.1 401 Unauthorized\r\n", "HTTP/1.1 413 Request Entity Too Large\r\n", "HTTP/1.1 404 Not Found\r\n"}, line)
	}
	conn, r := dial(t, c.addr)
	_, err := io.WriteString(conn, "PUT /slots/slot_0/files/f HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+testToken+"\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
	require.NoError(t, err)
	line, err := r.ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "HTTP/1.1 100 Continue\r\n", line)
	_, err = io.WriteString(conn, "body")
	require.NoError(t, err)
	_, err = r.ReadString('\n')
	require.NoError(t, err)
	line, err = r.ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "HTTP/1.1 201 Created\r\n", line)
}

// More than the kernel keeps for a connection.
const refusedBytes = 16 << 20

// Such a client sends all of its file before it looks for an answer.
func TestARefusedPutIsHeardByWhoSendsFirst(t *testing.T) {
	c := start(t, Config{Token: testToken, MaxUpload: 1000})
	text := strings.Repeat("x", refusedBytes)
	whole := fmt.Sprintf("Content-Length: %d\r\n\r\n%s", refusedBytes, text)
	chunked := fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", refusedBytes, text)
	for _, put := range []struct {
		slot, body string
		want       int
	}{
		{"slot_0", whole, http.StatusRequestEntityTooLarge},
		{"slot_0", chunked, http.StatusRequestEntityTooLarge},
		{"slot_7", chunked, http.StatusNotFound},
	} {
		code, answer := raw(t, c.addr, "PUT /slots/"+put.slot+"/files/f HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+testToken+"\r\n"+put.body)
		assert.Equal(t, put.want, code, answer)
	}
}

func TestATreeTravelsBothWays(t *testing.T) {
	c := start(t, Config{Token: testToken})
	c.file(t, "from/a", "aaa")
	c.file(t, "from/b/c", "ccc")
	for query, to := range map[string]string{"?tar=1": "plain", "?tar=1&gzip=1": "packed"} {
		a := c.ask(t, http.MethodGet, files+"from"+query, "")
		require.Equal(t, 200, a.code)
		if to == "packed" {
			_, err := gzip.NewReader(strings.NewReader(a.body))
			require.NoError(t, err)
			assert.Equal(t, "application/gzip", a.header.Get("Content-Type"))
		} else {
			_, err := tar.NewReader(strings.NewReader(a.body)).Next()
			require.NoError(t, err)
			assert.Equal(t, "application/x-tar", a.header.Get("Content-Type"))
		}
		b := c.ask(t, http.MethodPut, files+to+"?untar=1", a.body)
		require.Equal(t, 200, b.code, b.body)
		text, err := os.ReadFile(filepath.Join(c.root, to, "b/c"))
		require.NoError(t, err)
		assert.Equal(t, "ccc", string(text))
	}
	assert.Equal(t, 200, c.ask(t, http.MethodHead, files+"from?tar=1", "").code)
	assert.Equal(t, 404, c.ask(t, http.MethodGet, files+"nope?tar=1", "").code)
	assert.Equal(t, 400, c.ask(t, http.MethodPut, files+"x?untar=1", "this is no archive").code)
	assert.Equal(t, 200, c.ask(t, http.MethodGet, files+"?tar=1", "").code, "the workspace itself")
}

func TestF12AnArchiveThatLeavesTheTreeIsLeftOutAndTold(t *testing.T) {
	c := start(t, Config{Token: testToken})
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range []string{"ok", "../out", "/abs"} {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: name, Size: 1, Mode: 0o644}))
		_, err := w.Write([]byte("x"))
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	var got api.UntarAnswer
	c.ask(t, http.MethodPut, files+"d?untar=1", b.String()).decode(t, &got)
	assert.Equal(t, 1, got.Entries)
	assert.Equal(t, 2, got.OmittedCount)
	assert.Len(t, got.Omitted, 2)
}

// brokenFiles answers reads with fewer or other bytes than it announced.
type brokenFiles struct {
	*fakeKeeper
	send   string
	fail   error
	before bool
}

func (f *brokenFiles) Do(ctx context.Context, slotID string, token *uint64, op string, args, reply any, in io.Reader, out io.Writer) error {
	if op == "stat" {
		return f.fakeKeeper.Do(ctx, slotID, token, op, args, reply, in, out)
	}
	if f.before {
		return f.fail
	}
	if _, err := io.WriteString(out, f.send); err != nil {
		return err
	}
	return f.fail
}

func TestAnAnswerThatBreaksOffIsCutAndNeverLooksWhole(t *testing.T) {
	lost := slots.Errorf(slots.KindSlotLost, "holder died")
	for name, broken := range map[string]brokenFiles{
		"shorter": {send: "012"}, "longer": {send: "0123456789abc"}, "failing later": {send: "012", fail: lost}, "failing first": {fail: lost, before: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, Config{Token: testToken})
			c.file(t, "f", "0123456789")
			broken.fakeKeeper = c.fakeKeeper
			c.server.Files = &broken
			conn, r := dial(t, c.addr)
			_, err := io.WriteString(conn, "GET "+files+"f HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+testToken+"\r\n\r\n")
			require.NoError(t, err)
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				require.ErrorIs(t, err, io.ErrUnexpectedEOF, "nothing of it was sent")
				return
			}
			defer func() { _ = res.Body.Close() }()
			text, err := io.ReadAll(res.Body)
			if broken.before || name == "longer" {
				// Nothing was passed on, so it could still be told.
				require.NoError(t, err)
				assert.Equal(t, map[bool]int{true: 503, false: 500}[broken.before], res.StatusCode)
				assert.Contains(t, string(text), `"error":{`)
				assert.Empty(t, res.Header.Get("Last-Modified"))
				return
			}
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		})
	}
}
