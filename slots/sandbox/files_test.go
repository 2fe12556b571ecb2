package sandbox_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
	"berth/slots/workspace"
)

var fileExamples = []example{
	{"files written by an operation are the slot's own", fileOwner},
	{"files of any size come and go exactly", fileSizes},
	{"errors of operations keep their kind", fileErrors},
	{"F03 a link leads an operation no further than the slot", fileLinks},
	{"files move between directories, and are linked", fileMoves},
	{"a cancelled operation ends", fileCancel},
	{"an operation whose output nobody takes ends", fileOutputRefused},
	{"a spill file is the slot's to read", spill},
}

func write(t testing.TB, x fixture, path, text string) {
	t.Helper()
	require.NoError(t, x.s.Do(t.Context(), "write", workspace.WriteArgs{Path: path}, nil, strings.NewReader(text), nil))
}

func read(t testing.TB, x fixture, path string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := x.s.Do(t.Context(), "read", workspace.ReadArgs{Path: path, Length: -1}, nil, nil, &out)
	return out.String(), err
}

func fileOwner(t *testing.T, x fixture) {
	write(t, x, "dir/by-op", "text")
	assert.Equal(t, "text", output(t, x.s, "touch by-bash; cat dir/by-op"))
	owners := strings.Fields(output(t, x.s, "stat -c %u:%g dir dir/by-op by-bash; id -u"))
	require.Len(t, owners, 4)
	assert.Equal(t, owners[2], owners[0])
	assert.Equal(t, owners[2], owners[1])
	if x.h.UIDs() {
		st, err := os.Stat(x.s.Workspace() + "/dir/by-op")
		require.NoError(t, err)
		assert.Contains(t, []string{"1000", strconv.Itoa(x.s.UID())}, owners[3])
		_ = st
	}
	text, err := read(t, x, "/workspace/dir/by-op")
	require.NoError(t, err)
	assert.Equal(t, "text", text)
}

// fileMoves asks the kernel itself: mv copies where it has to.
func fileMoves(t *testing.T, x fixture) {
	const moves = `import os
os.makedirs('a'); os.makedirs('b/c'); open('a/f', 'w').close(); os.makedirs('a/d/e')
os.rename('a/f', 'b/f'); os.rename('a/d', 'b/c/d'); os.link('b/f', 'a/g')
print(os.listdir('b/c/d'), os.listdir('a'))`
	assert.Equal(t, "['e'] ['g']\n", output(t, x.s, "exec python3 -c \""+moves+"\""))
}

func fileSizes(t *testing.T, x fixture) {
	for _, size := range []int{0, 1, 32<<10 - 1, 32 << 10, 32<<10 + 1, 48 << 10, 5_000_000} {
		text := strings.Repeat("0123456789abcdef", size/16+1)[:size]
		write(t, x, "f", text)
		got, err := read(t, x, "f")
		require.NoError(t, err)
		assert.Equal(t, sha256.Sum256([]byte(text)), sha256.Sum256([]byte(got)), "%d bytes came back as %d", size, len(got))
	}
	output(t, x.s, "touch a-rather-long-name-that-fills-a-reply-{0..799}")
	var reply workspace.ListReply
	require.NoError(t, x.s.Do(t.Context(), "list", workspace.ListArgs{Path: "."}, &reply, nil, nil))
	assert.Len(t, reply.Entries, 801, "a reply that does not fit a packet")
}

func fileErrors(t *testing.T, x fixture) {
	output(t, x.s, "mkfifo fifo; mkdir dir; mkdir closed; chmod 0 closed")
	for path, kind := range map[string]slots.Kind{
		"missing": slots.KindNotFound, "dir": slots.KindBadRequest, "fifo": slots.KindBadRequest,
		"../outside": slots.KindDenied, "/etc/passwd": slots.KindDenied,
	} {
		began := time.Now()
		_, err := read(t, x, path)
		assert.Equal(t, kind, kindOf(t, err), path)
		assert.Less(t, time.Since(began), 20*time.Second)
		var typed *workspace.PathError
		require.ErrorAs(t, err, &typed)
		assert.Equal(t, path, typed.Path)
	}
	require.Error(t, x.s.Do(t.Context(), "no-such-operation", nil, nil, nil, nil))
	assert.Error(t, x.s.Do(t.Context(), "read", func() {}, nil, nil, nil), "arguments that are no JSON")
}

func fileLinks(t *testing.T, x fixture) {
	output(t, x.s, "ln -s /etc/passwd passwd; ln -s /proc/self/environ environ; ln -s / root; ln -s loop loop")
	for _, path := range []string{"passwd", "environ", "root/etc/passwd", "loop", "/proc/self/environ"} {
		_, err := read(t, x, path)
		assert.Error(t, err, path)
	}
}

// stuckReader gives a little, and then nothing until it is closed.
type stuckReader struct {
	given bool
	until chan struct{}
}

func (r *stuckReader) Read(p []byte) (int, error) {
	if !r.given {
		r.given = true
		return len(p), nil
	}
	<-r.until
	return 0, errors.New("connection lost")
}

func fileCancel(t *testing.T, x fixture) {
	in := &stuckReader{until: make(chan struct{})}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	time.AfterFunc(300*time.Millisecond, func() { close(in.until) })
	err := x.s.Do(ctx, "write", workspace.WriteArgs{Path: "cut"}, nil, io.MultiReader(strings.NewReader(strings.Repeat("x", 64<<10)), in), nil)
	assert.Equal(t, slots.KindInterrupted, kindOf(t, err), "%v", err)
	_, err = read(t, x, "cut")
	assert.Equal(t, slots.KindNotFound, kindOf(t, err), "no half a file")
}

type refusing struct{}

func (refusing) Write([]byte) (int, error) { return 0, errors.New("client went away") }

func fileOutputRefused(t *testing.T, x fixture) {
	output(t, x.s, "head -c 20000000 /dev/zero > big")
	began := time.Now()
	err := x.s.Do(t.Context(), "read", workspace.ReadArgs{Path: "big", Length: -1}, nil, nil, refusing{})
	require.ErrorContains(t, err, "client went away")
	assert.Less(t, time.Since(began), 20*time.Second)
	output(t, x.s, "true")
}

func spill(t *testing.T, x fixture) {
	f, path, err := x.s.OpenSpill(t.Context(), "stdout-1")
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteAt([]byte("spilled"), 0)
	require.NoError(t, err)
	assert.Equal(t, "spilled", output(t, x.s, "cat "+path))
	_, _, err = x.s.OpenSpill(t.Context(), "stdout-1")
	assert.Error(t, err, "one name, one file")
}
