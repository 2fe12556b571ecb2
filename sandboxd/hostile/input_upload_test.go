package hostile_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/client"
)

// tarOf packs headers, each with the input marker as content where it is a
// file.
func tarOf(t *testing.T, headers ...tar.Header) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(inputMarker))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		require.NoError(t, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			_, err := io.WriteString(w, inputMarker)
			require.NoError(t, err)
		}
	}
	require.NoError(t, w.Close())
	return b.String()
}

func TestF12ArchivesUnpackOnlyInside(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		file, link, hard, dir := byte(tar.TypeReg), byte(tar.TypeSymlink), byte(tar.TypeLink), byte(tar.TypeDir)
		bad := tarOf(t,
			tar.Header{Name: "../up", Typeflag: file}, tar.Header{Name: "/tmp/absolute-" + a.Token, Typeflag: file}, tar.Header{Name: "a/../../up", Typeflag: file},
			tar.Header{Name: "out", Typeflag: link, Linkname: "/tmp"}, tar.Header{Name: "out/through-" + a.Token, Typeflag: file},
			tar.Header{Name: "up", Typeflag: link, Linkname: "../.."}, tar.Header{Name: "up/x", Typeflag: file},
			tar.Header{Name: "passwd", Typeflag: hard, Linkname: "/etc/passwd"}, tar.Header{Name: "shadow", Typeflag: hard, Linkname: "../../../../etc/shadow"},
			tar.Header{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, tar.Header{Name: "disk", Typeflag: tar.TypeBlock, Devmajor: 8},
			tar.Header{Name: "fifo", Typeflag: tar.TypeFifo}, tar.Header{Name: "suid", Typeflag: file, Mode: 0o7777}, tar.Header{Name: "sdir", Typeflag: dir, Mode: 0o7777},
			tar.Header{Name: "twice", Typeflag: file}, tar.Header{Name: "twice", Typeflag: file},
			tar.Header{Name: "\u00e9", Typeflag: file}, tar.Header{Name: "e\u0301", Typeflag: file}, tar.Header{Name: strings.Repeat("n/", 300) + "x", Typeflag: file},
			tar.Header{Name: "good", Typeflag: file},
		)
		answer := a.Send(t, http.MethodPut, filePath("in")+"?untar=1", bad)
		refusedWell(t, answer)
		require.Equal(t, http.StatusOK, answer.Status, "%s", answer.Body)
		assert.GreaterOrEqual(t, answer.Object(t)["omitted_count"], 10.0, "%s", answer.Body)
		ls := a.Bash(t, "slot_0", `cd in && cat good twice suid; echo; find . -perm /7000; find . ! -type f ! -type d; ls -d /tmp/*`+a.Token+` ../up ../../up 2> /dev/null; cat passwd shadow`, 10)
		assert.True(t, strings.HasPrefix(ls.Output, strings.Repeat(inputMarker, 3)), ls.Output)
		for _, escape := range []string{"suid", "sdir", "null", "disk", "fifo", "passwd\n", "absolute-", "through-", "../up", "root:"} {
			assert.NotContains(t, strings.SplitN(ls.Output, "\n[stderr]", 2)[0], escape, ls.Output)
		}
	})
}

func TestF12BrokenAndExplodingArchivesAreRefused(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		good := tarOf(t, tar.Header{Name: "good", Typeflag: tar.TypeReg})
		negative := []byte(good)
		copy(negative[124:136], "-0000000001\x00")
		base256 := []byte(good)
		copy(base256[124:136], "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xf0")
		pax := tarOf(t, tar.Header{Name: "x", Typeflag: tar.TypeReg, Format: tar.FormatPAX, PAXRecords: map[string]string{"BERTH.big": strings.Repeat("p", 900<<10)}})
		for name, text := range map[string]string{
			"negative": string(negative), "base256": string(base256), "short": good[:700], "garbage": strings.Repeat("garbage", 1000), "empty": "", "pax": pax,
			"gzip of nothing": "\x1f\x8b", "checksum": strings.Replace(good, "good", "evil", 1),
		} {
			answer := a.Send(t, http.MethodPut, filePath("in")+"?untar=1", text)
			refusedWell(t, answer, name)
		}
		answer := a.Send(t, http.MethodPut, filePath("bomb")+"?untar=1", bomb(t))
		assert.Equal(t, http.StatusRequestEntityTooLarge, answer.Status, "%s", answer.Body)
		answer.Within(t, 10*time.Second, "a bomb")
	})
}

// bomb is an archive of 120 MiB of zeros in about 120 KiB.
func bomb(t *testing.T) string {
	t.Helper()
	const size = 120 << 20
	var text bytes.Buffer
	z := gzip.NewWriter(&text)
	w := tar.NewWriter(z)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "zeros", Typeflag: tar.TypeReg, Mode: 0o644, Size: size}))
	_, err := io.CopyN(w, zeros{}, size)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return text.String()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestF13PatternsThatExplodeEndInTime(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		require.True(t, a.Bash(t, "slot_0", `p=a; for i in $(seq 1 40); do p=$p/a; done; mkdir -p $p; for i in $(seq 1 60); do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa > a/f$i; done`, 20).Success)
		for _, pattern := range []string{
			strings.Repeat("**/", 40) + "x", strings.Repeat("*", 5000), strings.Repeat("[a-z]", 2000), "[" + strings.Repeat("a", 10<<10) + "]", "[", "{" + strings.Repeat("a,", 5000) + "a}",
			strings.Repeat("{a,b}", 30), strings.Repeat("{", 100), "\\", "**", "/etc/*", "../*", "\x00", strings.Repeat("**/{a,*}/", 12) + "z",
		} {
			answer := a.Post(t, "/execute", map[string]any{"slot_id": "slot_0", "tool": "glob", "args": map[string]any{"pattern": pattern}, "timeout": 2})
			endedWell(t, answer, pattern)
			assert.NotContains(t, string(answer.Body), "/etc/")
		}
		for _, pattern := range []string{"(a+)+$", "(a|a)*b", strings.Repeat("(a?)", 500) + strings.Repeat("a", 500), "(((a{100}){100}){100})", "[", "\\", "(?P<", strings.Repeat("(", 2000), "\x00"} {
			answer := a.Post(t, "/execute", map[string]any{"slot_id": "slot_0", "tool": "grep", "args": map[string]any{"pattern": pattern}, "timeout": 2})
			endedWell(t, answer, pattern)
		}
	})
}

func TestF14RangesOfEveryKindAreExactOrRefused(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		require.True(t, a.Bash(t, "slot_0", "printf 0123456789 > f; : > empty", 10).Success)
		for header, want := range map[string]struct {
			status int
			body   string
		}{
			"bytes=0-0": {206, "0"}, "bytes=9-": {206, "9"}, "bytes=-3": {206, "789"}, "bytes=-99": {206, "0123456789"}, "bytes=5-999999999999": {206, "56789"},
			"bytes=0-1,5-6": {200, "0123456789"}, "bytes=5-2": {200, "0123456789"}, "bytes=--1": {200, "0123456789"}, "bytes=a-b": {200, "0123456789"},
			"bytes=-": {200, "0123456789"}, "lines=1-2": {200, "0123456789"}, "bytes=2-99999999999999999999999999": {206, "23456789"},
			"bytes=10-": {416, ""}, "bytes=99999999999999999999-": {416, ""}, "bytes=-0": {416, ""},
		} {
			answer := a.Send(t, http.MethodGet, filePath("f"), "", "Range: "+header)
			assert.Equal(t, want.status, answer.Status, header)
			if want.status != 416 {
				assert.Equal(t, want.body, string(answer.Body), header)
			}
		}
		refusedWell(t, a.Send(t, http.MethodGet, filePath("empty"), "", "Range: bytes=0-0"))
		for _, n := range []any{-1, 0, 1.5, "5", 1e300, -9223372036854775808, []int{1}} {
			answer := a.Post(t, "/artifacts/read", map[string]any{"slot_id": "slot_0", "path": "f", "max_bytes": n})
			refusedWell(t, answer, n)
			assert.Equal(t, http.StatusBadRequest, answer.Status, "%v: %s", n, answer.Body)
			for _, key := range []string{"offset", "limit"} {
				r := execute(t, a, "read_file", map[string]any{"path": "f", key: n})
				if n != 0 || key == "limit" {
					assert.Equal(t, false, r["success"], "%s=%v", key, n)
				}
			}
			assert.Equal(t, false, execute(t, a, "bash", map[string]any{"command": "true", "max_output": n})["success"], n)
		}
		assert.Empty(t, execute(t, a, "read_file", map[string]any{"path": "f", "offset": 1 << 50})["output"])
	})
}

func TestF15WrittenFilesNeverGetSetuid(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		for i, mode := range []string{"07777", "4755", "2755", "1777", "6777"} {
			answer := a.Send(t, http.MethodPut, filePath(fmt.Sprintf("f%d", i))+"?mode="+mode, inputMarker)
			require.Equal(t, http.StatusCreated, answer.Status, "%s", answer.Body)
		}
		for _, mode := range []string{"0", "-1", "99", "0o644", "100000", "rwx", "07777777777777777777777"} {
			assert.Equal(t, http.StatusBadRequest, a.Send(t, http.MethodPut, filePath("g")+"?mode="+mode, "x").Status, mode)
		}
		a.Bash(t, "slot_0", "echo old > s; chmod 6755 s", 10)
		require.Equal(t, http.StatusOK, a.Send(t, http.MethodPut, filePath("s"), inputMarker).Status)
		assert.Empty(t, a.Bash(t, "slot_0", "find . -perm /7000", 10).Output)
	})
}

func TestF16BodiesThatLieChangeNothing(t *testing.T) {
	input(t, func(t *testing.T, a *agenttest.Agent) {
		require.Equal(t, http.StatusCreated, a.Send(t, http.MethodPut, filePath("f"), "old").Status)
		head := "PUT /slots/slot_0/files/f HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + a.Token + "\r\n"
		for _, request := range []string{
			head + "Content-Length: 1000\r\n\r\nshort",
			head + "Transfer-Encoding: chunked\r\n\r\n5\r\nshort\r\nzz\r\n",
			head + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\nshort",
			head + "Content-Length: -5\r\n\r\nshort",
			head + "Content-Length: 99999999999999999999999\r\n\r\nshort",
			head + "Content-Length: 999999999999999\r\n\r\nshort",
			head + "Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nshort",
			head + "X-Checksum-Sha256: " + strings.Repeat("0", 64) + "\r\nContent-Length: 5\r\n\r\nshort",
			head + "Digest: sha-256=AAAA\r\nContent-Length: 5\r\n\r\nshort",
			head + "Content-Range: bytes 0-1/5\r\nContent-Length: 5\r\n\r\nshort",
			head + "If-Match: \"nothing\"\r\nContent-Length: 5\r\n\r\nshort",
		} {
			answer := talk(t, a, request)
			assert.NotContains(t, answer, " 500 ", request)
			assert.NotContains(t, answer, "HTTP/1.1 2", request)
			kept := a.Bash(t, "slot_0", "cat f", 60)
			assert.Equal(t, "old", kept.Output, "%s\n%+v", request, kept)
		}
		assert.Equal(t, "f", a.Bash(t, "slot_0", "ls -A", 10).Output, "no half file is left")
		sum := sha256.Sum256([]byte("new"))
		_, err := a.PutFile(t.Context(), client.Place{SlotID: "slot_0", Path: "f"}, strings.NewReader("new"), client.PutOptions{SHA256: hex.EncodeToString(sum[:])})
		require.NoError(t, err)

		if levels := agenttest.Levels(t); a.Level != levels[len(levels)-1] {
			return // the body never reaches a slot
		}
		tooLarge := a.Send(t, http.MethodPost, "/execute", `{"slot_id":"slot_0","tool":"bash","args":{"command":"`+strings.Repeat("x", 65<<20)+`"}}`)
		assert.Equal(t, http.StatusRequestEntityTooLarge, tooLarge.Status)
		assert.Contains(t, tooLarge.Object(t)["error"], "larger than")
	})
}

// talk sends raw bytes, closes its half of the connection and returns all
// that comes back within two seconds.
func talk(t *testing.T, a *agenttest.Agent, request string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(a.URL, "http://"))
	require.NoError(t, err)
	defer func() { assert.NoError(t, conn.Close()) }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(2*time.Second)))
	_, _ = io.WriteString(conn, request) // it may be refused half way
	_ = conn.(*net.TCPConn).CloseWrite()
	answer, _ := io.ReadAll(bufio.NewReader(conn))
	return string(answer)
}
