package workspace

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
)

func hexOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func TestReadSendsTheRangeThatWasAskedFor(t *testing.T) {
	tree, root := newTree(t)
	put(t, root, "f", "0123456789")
	for _, c := range []struct {
		offset, length int64
		want           string
		truncated      bool
	}{
		{0, 0, "0123456789", false},
		{0, -1, "0123456789", false},
		{0, 10, "0123456789", false},
		{0, 9, "012345678", true},
		{3, 4, "3456", true},
		{3, 7, "3456789", false},
		{10, 5, "", false},
		{11, 5, "", false},
		{1 << 62, 1 << 62, "", false},
		{9, 1<<63 - 1, "9", false},
	} {
		var out bytes.Buffer
		reply, err := tree.Read(t.Context(), ReadArgs{Path: "f", Offset: c.offset, Length: c.length, SHA256: true}, &out)
		require.NoError(t, err)
		assert.Equal(t, c.want, out.String(), "%+v", c)
		assert.Equal(t, c.truncated, reply.Truncated, "%+v", c)
		assert.Equal(t, int64(10), reply.Size)
		assert.Equal(t, int64(len(c.want)), reply.Bytes)
		assert.Equal(t, hexOf(c.want), reply.SHA256)
		assert.Equal(t, hexOf("0123456789"), reply.FileSHA256, "of the whole file, whatever was sent")
		assert.Equal(t, "text/plain", reply.MIME)
		assert.Equal(t, uint32(0o644), reply.Mode)
	}
}

func TestF14_ImpossibleRangesAreRefused(t *testing.T) {
	tree, root := newTree(t)
	put(t, root, "f", "x")
	for _, args := range []ReadArgs{{Offset: -1}, {Length: -2}, {Max: -1}, {Offset: -1 << 63}} {
		args.Path = "f"
		_, err := tree.Read(t.Context(), args, io.Discard)
		require.Error(t, err)
		assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind)
	}
}

func TestR08_ASparseFileOfManyTerabytesCostsNothing(t *testing.T) {
	tree, root := newTree(t)
	f, err := os.Create(filepath.Join(root, "sparse"))
	require.NoError(t, err)
	size := int64(8 << 40) // ext4 stops at 16 TiB
	require.NoError(t, f.Truncate(size))
	require.NoError(t, f.Close())
	_, err = tree.Read(t.Context(), ReadArgs{Path: "sparse", Max: 100_000}, io.Discard)
	assertKind(t, err, slots.KindTooLarge, "File too large: 8796093022208 bytes (max 100000)")
	reply, err := tree.Read(t.Context(), ReadArgs{Path: "sparse", Offset: 7 << 40, Length: 10, SHA256: true}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, int64(10), reply.Bytes)
	assert.Empty(t, reply.FileSHA256, "hashing it would take hours")
	_, err = tree.Edit(t.Context(), EditArgs{Path: "sparse", Old: "a", New: "b"})
	assertKind(t, err, slots.KindTooLarge, "File too large: 8796093022208 bytes (max 10485760)")
	_, err = tree.Archive(t.Context(), ArchiveArgs{Path: "sparse", MaxBytes: 20_000}, io.Discard)
	require.Error(t, err)
	assert.Equal(t, slots.KindTooLarge, slots.AsError(err).Kind)
	assert.Regexp(t, `^Archive too large: \d+ bytes \(max 20000\)$`, err.Error())
	_, files, err := Usage(t.Context(), root)
	require.NoError(t, err)
	assert.Equal(t, int64(1), files)
}

func TestF08_AFileThatShrinksOrGrowsWhileItIsRead(t *testing.T) {
	tree, root := newTree(t)
	put(t, root, "f", strings.Repeat("x", 3*bufferSize))
	name := filepath.Join(root, "f")
	var once sync.Once
	got := 0
	reply, err := tree.Read(t.Context(), ReadArgs{Path: "f"}, writerFunc(func(p []byte) (int, error) {
		got += len(p)
		once.Do(func() { require.NoError(t, os.Truncate(name, bufferSize+10)) })
		return len(p), nil
	}))
	require.NoError(t, err)
	assert.Equal(t, bufferSize+10, got)
	assert.Equal(t, int64(bufferSize+10), reply.Bytes)

	put(t, root, "f", strings.Repeat("x", 100))
	reply, err = tree.Read(t.Context(), ReadArgs{Path: "f"}, writerFunc(func(p []byte) (int, error) {
		put(t, root, "f", strings.Repeat("y", 1000))
		return len(p), nil
	}))
	require.NoError(t, err)
	assert.Equal(t, int64(100), reply.Bytes)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestReadStopsWhenItsContextEnds(t *testing.T) {
	tree, root := newTree(t)
	put(t, root, "f", strings.Repeat("x", 3*bufferSize))
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the client went away")
	_, err := tree.Read(ctx, ReadArgs{Path: "f"}, writerFunc(func(p []byte) (int, error) {
		cancel(why)
		return len(p), nil
	}))
	assertKind(t, err, slots.KindInterrupted, "Interrupted: f")
	assert.ErrorIs(t, err, why)
}

func TestWriteMakesAndReplacesFiles(t *testing.T) {
	for _, resolver := range resolvers {
		t.Run(resolver, func(t *testing.T) {
			tree, root := newTreeWith(t, resolver)
			reply, err := tree.Write(t.Context(), WriteArgs{Path: alias + "/new/dir/f"}, strings.NewReader("one"))
			require.NoError(t, err)
			assert.Equal(t, WriteReply{Path: "new/dir/f", Size: 3, SHA256: hexOf("one"), Created: true}, reply)
			reply, err = tree.Write(t.Context(), WriteArgs{Path: "new/dir/f"}, strings.NewReader(strings.Repeat("x", 200_000)))
			require.NoError(t, err)
			assert.False(t, reply.Created)
			assert.Equal(t, int64(200_000), reply.Size)
			onlyNames(t, filepath.Join(root, "new/dir"), "f")
			_, err = tree.Write(t.Context(), WriteArgs{Path: "new/dir/f/below"}, strings.NewReader(""))
			assertKind(t, err, slots.KindBadRequest, "Not a directory: new/dir/f/below")
			_, err = tree.Write(t.Context(), WriteArgs{Path: "new/dir/f/be/low"}, strings.NewReader(""))
			assertKind(t, err, slots.KindBadRequest, "Not a directory: new/dir/f/be/low")
			for _, name := range []string{"", ".", "new", "new/dir/.."} {
				_, err = tree.Write(t.Context(), WriteArgs{Path: name}, strings.NewReader(""))
				assertKind(t, err, slots.KindBadRequest, "Not a file: "+name)
			}
		})
	}
}

func onlyNames(tb testing.TB, dir string, want ...string) {
	tb.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(tb, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	assert.Equal(tb, want, got)
}

func TestWriteGoesThroughLinksThatStayInTheTree(t *testing.T) {
	for _, resolver := range resolvers {
		t.Run(resolver, func(t *testing.T) {
			tree, root := newTreeWith(t, resolver)
			put(t, root, "real/f", "old")
			for _, link := range [][2]string{
				{"link", "real/f"}, {"absolute", alias + "/real/f"}, {"double", "link"}, {"dangling", "real/made"}, {"real/up", "../real/f"},
			} {
				name, target := link[0], link[1]
				require.NoError(t, os.Symlink(target, filepath.Join(root, name)))
				_, err := tree.Write(t.Context(), WriteArgs{Path: name}, strings.NewReader("by "+name))
				require.NoError(t, err, name)
				info, err := os.Lstat(filepath.Join(root, name))
				require.NoError(t, err)
				assert.Equal(t, os.ModeSymlink, info.Mode().Type(), "the link stays a link")
				text, err := readText(t, tree, name)
				require.NoError(t, err)
				assert.Equal(t, "by "+name, text)
			}
		})
	}
}

func TestF15_WriteNeverSetsSetuidSetgidOrSticky(t *testing.T) {
	tree, root := newTree(t)
	_, err := tree.Write(t.Context(), WriteArgs{Path: "f", Mode: 0o7777}, strings.NewReader("x"))
	require.NoError(t, err)
	mode := func() os.FileMode {
		info, err := os.Stat(filepath.Join(root, "f"))
		require.NoError(t, err)
		return info.Mode()
	}
	assert.Equal(t, os.FileMode(0o777), mode())
	require.NoError(t, os.Chmod(filepath.Join(root, "f"), 0o750|os.ModeSetuid))
	_, err = tree.Write(t.Context(), WriteArgs{Path: "f"}, strings.NewReader("y"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o750), mode(), "a replaced file's permissions stay, its setuid bit does not")
	_, err = tree.Edit(t.Context(), EditArgs{Path: "f", Old: "y", New: "z"})
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o750), mode())
	_, err = tree.Mkdir(t.Context(), MkdirArgs{Path: "d/e", Mode: 0o7705})
	require.NoError(t, err)
	info, err := os.Stat(filepath.Join(root, "d/e"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o705)|os.ModeDir, info.Mode())
}

func TestAFailedWriteLeavesTheOldFileAndNothingElse(t *testing.T) {
	tree, root := newTree(t)
	put(t, root, "f", "old")
	broken := func() io.Reader {
		return io.MultiReader(strings.NewReader("half"), readerFunc(func([]byte) (int, error) { return 0, errors.New("gone") }))
	}
	for name, c := range map[string]struct {
		args WriteArgs
		in   io.Reader
		kind slots.Kind
		text string
	}{
		"broken input": {WriteArgs{}, broken(), slots.KindInternal, "write f: read content: gone"},
		"too large":    {WriteArgs{Max: 3}, strings.NewReader("long"), slots.KindTooLarge, "Content too large: 4 bytes (max 3)"},
		"checksum":     {WriteArgs{SHA256: hexOf("other")}, strings.NewReader("new"), slots.KindBadRequest, "Checksum mismatch: content has sha256 " + hexOf("new")},
		"if match":     {WriteArgs{IfMatch: hexOf("older")}, strings.NewReader("new"), slots.KindConflict, "File has changed: f"},
	} {
		t.Run(name, func(t *testing.T) {
			c.args.Path = "f"
			_, err := tree.Write(t.Context(), c.args, c.in)
			assertKind(t, err, c.kind, c.text)
			text, err := readText(t, tree, "f")
			require.NoError(t, err)
			assert.Equal(t, "old", text)
			onlyNames(t, root, "f")
		})
	}
	_, err := tree.Write(t.Context(), WriteArgs{Path: "g", IfMatch: "*"}, strings.NewReader(""))
	assertKind(t, err, slots.KindConflict, "File has changed: g")
	_, err = tree.Write(t.Context(), WriteArgs{Path: "f", IfMatch: strings.ToUpper(hexOf("old")), SHA256: hexOf("new"), Max: 3}, strings.NewReader("new"))
	assert.NoError(t, err)
}

func TestF22_ConcurrentWritesLeaveOneOfTheContents(t *testing.T) {
	tree, root := newTree(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 20 {
				_, err := tree.Write(t.Context(), WriteArgs{Path: "f"}, strings.NewReader(strings.Repeat(itoa(i), 100_000)))
				if err != nil {
					t.Errorf("write: %v", err)
				}
				if text, err := readText(t, tree, "f"); err != nil || strings.Trim(text, text[:1]) != "" || len(text) != 100_000 {
					t.Errorf("read %d bytes of mixed content: %v", len(text), err)
				}
			}
		})
	}
	wg.Wait()
	onlyNames(t, root, "f")
}

func TestF07_AFIFOAsTargetIsRefusedAndNeverOpened(t *testing.T) {
	tree, root := newTree(t)
	require.NoError(t, syscall.Mkfifo(filepath.Join(root, "fifo"), 0o666))
	require.NoError(t, os.Symlink("fifo", filepath.Join(root, "link")))
	for _, name := range []string{"fifo", "link"} {
		_, err := tree.Write(t.Context(), WriteArgs{Path: name}, strings.NewReader("x"))
		assertKind(t, err, slots.KindBadRequest, "Not a file: "+name)
	}
}

func TestMkdirMakesParentsAndLeavesWhatIsThere(t *testing.T) {
	for _, resolver := range resolvers {
		t.Run(resolver, func(t *testing.T) {
			tree, root := newTreeWith(t, resolver)
			put(t, root, "file", "")
			require.NoError(t, os.Symlink("made/by/link", filepath.Join(root, "link")))
			for _, c := range []struct {
				path    string
				created bool
			}{{"a/b/c", true}, {"a/b/c", false}, {".", false}, {alias + "/a/d/", true}, {"link/x", true}, {"a/../e", true}} {
				reply, err := tree.Mkdir(t.Context(), MkdirArgs{Path: c.path})
				require.NoError(t, err, c.path)
				assert.Equal(t, c.created, reply.Created, c.path)
			}
			assert.DirExists(t, filepath.Join(root, "made/by/link/x"))
			for _, name := range []string{"file", "file/x"} {
				_, err := tree.Mkdir(t.Context(), MkdirArgs{Path: name})
				assertKind(t, err, slots.KindBadRequest, "Not a directory: "+name)
			}
		})
	}
}

func TestSmallReadsAndWritesLeaveNoDescriptors(t *testing.T) {
	for _, resolver := range resolvers {
		t.Run(resolver, func(t *testing.T) {
			tree, root := newTreeWith(t, resolver)
			put(t, root, "a/f", "x")
			require.NoError(t, os.Symlink(alias+"/a", filepath.Join(root, "link")))
			before := openDescriptors(t)
			for range 20 {
				for _, name := range []string{"a/f", "link/f", "missing", "a/f/x", "../x", "link/../../x", "a"} {
					_, _ = readText(t, tree, name)
					_, _ = tree.Write(t.Context(), WriteArgs{Path: name}, strings.NewReader("x"))
					_, _ = tree.Stat(t.Context(), StatArgs{Path: name})
					_, _ = tree.List(t.Context(), ListArgs{Path: name, Recursive: true})
					_, _ = tree.Grep(t.Context(), GrepArgs{Path: name, Pattern: "x"}, io.Discard)
					_, _ = tree.Archive(t.Context(), ArchiveArgs{Path: name}, io.Discard)
					_, _ = tree.Glob(t.Context(), GlobArgs{Path: name, Pattern: "**"})
					_, _ = tree.Edit(t.Context(), EditArgs{Path: name, Old: "x", New: "x"})
					_, _ = tree.Mkdir(t.Context(), MkdirArgs{Path: name})
					_, _ = tree.Remove(t.Context(), RemoveArgs{Path: name + "/zzz"})
				}
			}
			assert.Equal(t, before, openDescriptors(t))
		})
	}
}

func TestMediaTypesComeFromTheNameAndElseFromTheContent(t *testing.T) {
	for _, c := range []struct{ name, start, want string }{
		{"a.py", "\x00", "text/x-python"},
		{"A.JSON", "", "application/json"},
		{"a", "\x89PNG\r\n\x1a\n...", "image/png"},
		{"README", "hello\n", "text/plain"},
		{"x", "", "text/plain"},
		{"x", "a\x00b", "application/octet-stream"},
		{"x", "caf\xc3", "text/plain"},
		{"x", "caf\xc3(", "application/octet-stream"},
		{"x.unknown", "#!/bin/sh", "text/x-script"},
	} {
		assert.Equal(t, c.want, mimeType(c.name, []byte(c.start)), "%q %q", c.name, c.start)
	}
}

func BenchmarkRead1KiB(b *testing.B) {
	tree, root := newTree(b)
	put(b, root, "dir/f", strings.Repeat("x", 1024))
	for b.Loop() {
		if _, err := tree.Read(b.Context(), ReadArgs{Path: "dir/f"}, io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkWrite1KiB(b *testing.B) {
	tree, _ := newTree(b)
	content := bytes.Repeat([]byte("x"), 1024)
	for b.Loop() {
		if _, err := tree.Write(b.Context(), WriteArgs{Path: "dir/f"}, bytes.NewReader(content)); err != nil {
			b.Fatal(err)
		}
	}
}

func ExampleTree_Write() {
	dir, _ := os.MkdirTemp("", "workspace")
	defer func() { _ = os.RemoveAll(dir) }()
	tree, _ := Open(dir, "/workspace")
	defer func() { _ = tree.Close() }()
	reply, _ := tree.Write(context.Background(), WriteArgs{Path: "/workspace/a/b.txt"}, strings.NewReader("hello"))
	_, err := tree.Write(context.Background(), WriteArgs{Path: "/etc/passwd"}, strings.NewReader("hello"))
	fmt.Println(reply.Path, reply.Size, reply.Created)
	fmt.Println(err)
	// Output:
	// a/b.txt 5 true
	// Access denied: path outside workspace
}
