package workspace

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth/slots"
)

// packForest is a tree of everything that an archive keeps.
func packForest(tb testing.TB, root string) {
	tb.Helper()
	put(tb, root, "src/a/f", "content")
	put(tb, root, "src/b.txt", strings.Repeat("x", 200_000))
	put(tb, root, "src/日本", "")
	put(tb, root, "src/"+strings.Repeat("long/", 40)+"f", "far")
	require.NoError(tb, os.Mkdir(filepath.Join(root, "src/empty"), 0o700))
	require.NoError(tb, os.Symlink("b.txt", filepath.Join(root, "src/link")))
	require.NoError(tb, os.Symlink("nowhere", filepath.Join(root, "src/dangling")))
	require.NoError(tb, os.Chmod(filepath.Join(root, "src/a/f"), 0o750))
	require.NoError(tb, os.Chmod(filepath.Join(root, "src/a"), 0o555))
	tb.Cleanup(func() { _ = os.Chmod(filepath.Join(root, "src/a"), 0o755) })
	when := time.Unix(1_600_000_000, 0)
	for _, name := range []string{"src/a/f", "src/a", "src/empty"} {
		require.NoError(tb, os.Chtimes(filepath.Join(root, name), when, when))
	}
}

func tarOf(tb testing.TB, tree *Tree, path string) []byte {
	tb.Helper()
	var out bytes.Buffer
	_, err := tree.Tar(tb.Context(), ArchiveArgs{Path: path}, &out)
	require.NoError(tb, err)
	return out.Bytes()
}

func TestATreeSurvivesArchiveAndUntarByteForByte(t *testing.T) {
	for _, resolver := range resolvers {
		t.Run(resolver, func(t *testing.T) {
			tree, root := newTreeWith(t, resolver)
			packForest(t, root)
			first := tarOf(t, tree, "src")
			assert.Equal(t, first, tarOf(t, tree, alias+"/src"), "the same tree gives the same bytes")
			reply, err := tree.Untar(t.Context(), UntarArgs{Path: "copy/of"}, bytes.NewReader(first))
			require.NoError(t, err)
			assert.Equal(t, 7+40+1, reply.Entries)
			assert.Zero(t, reply.Count)
			assert.Equal(t, int64(200_000+7+3), reply.Bytes)
			assert.Equal(t, first, tarOf(t, tree, "copy/of"), "modes, times, links and empty directories included")
			require.NoError(t, os.Chmod(filepath.Join(root, "copy/of/a"), 0o755))

			var packed bytes.Buffer
			answer, err := tree.Archive(t.Context(), ArchiveArgs{Path: "src", Format: "tgz", SHA256: true}, &packed)
			require.NoError(t, err)
			assert.Equal(t, int64(packed.Len()), answer.Bytes)
			assert.Equal(t, hexOf(packed.String()), answer.SHA256)
			assert.Equal(t, 48, answer.EntryCount)
			assert.Equal(t, []byte{0, 0, 0, 0}, packed.Bytes()[4:8], "no time in the gzip header")
			z, err := gzip.NewReader(bytes.NewReader(packed.Bytes()))
			require.NoError(t, err)
			plain, err := io.ReadAll(z)
			require.NoError(t, err)
			assert.Equal(t, first, plain)
			_, err = tree.Untar(t.Context(), UntarArgs{Path: "again"}, &packed)
			require.NoError(t, err)
			assert.Equal(t, first, tarOf(t, tree, "again"))
			require.NoError(t, os.Chmod(filepath.Join(root, "again/a"), 0o755))
		})
	}
}

func TestArchivesNameNoOwnerAndSortTheirEntries(t *testing.T) {
	tree, root := newTree(t)
	for _, name := range []string{"b", "a/x", "a.txt", "c/d/e"} {
		put(t, root, name, "")
	}
	r := tar.NewReader(bytes.NewReader(tarOf(t, tree, "")))
	var names []string
	for h, err := r.Next(); err == nil; h, err = r.Next() {
		names = append(names, h.Name)
		assert.Zero(t, h.Uid)
		assert.Zero(t, h.Gid)
		assert.Empty(t, h.Uname+h.Gname)
	}
	assert.Equal(t, []string{"a/", "a/x", "a.txt", "b", "c/", "c/d/", "c/d/e"}, names)
}

func TestArchiveOfOneFileHoldsItUnderItsName(t *testing.T) {
	tree, root := newTree(t)
	put(t, root, "d/f.txt", "content")
	r := tar.NewReader(bytes.NewReader(tarOf(t, tree, "d/f.txt")))
	h, err := r.Next()
	require.NoError(t, err)
	assert.Equal(t, "f.txt", h.Name)
	content, err := io.ReadAll(r)
	require.NoError(t, err)
	assert.Equal(t, "content", string(content))
}

func TestArchiveSaysWhatItLeavesOut(t *testing.T) {
	tree, root := newTree(t)
	for _, name := range []string{"a", "b", "c"} {
		put(t, root, name, name)
	}
	require.NoError(t, syscall.Mkfifo(filepath.Join(root, "fifo"), 0o666))
	listenUnix(t, root, "socket")
	reply, err := tree.Archive(t.Context(), ArchiveArgs{}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, []Omission{{"fifo", "fifo"}, {"socket", "socket"}}, reply.Named)
	assert.Equal(t, 2, reply.Count)
	assert.False(t, reply.Truncated)
	reply, err = tree.Archive(t.Context(), ArchiveArgs{MaxEntries: 2}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, 2, reply.EntryCount)
	assert.True(t, reply.Truncated)
	_, err = tree.Archive(t.Context(), ArchiveArgs{Format: "zip"}, io.Discard)
	assertKind(t, err, slots.KindBadRequest, "Unsupported archive format: zip")
	_, err = tree.Archive(t.Context(), ArchiveArgs{Path: "missing"}, io.Discard)
	assertKind(t, err, slots.KindNotFound, "File not found: missing")
	_, err = tree.Tar(t.Context(), ArchiveArgs{MaxBytes: 1000}, io.Discard)
	assertKind(t, err, slots.KindTooLarge, "Archive too large: 1024 bytes (max 1000)")
}

func TestF08_AFileThatShrinksIsFilledUpInAnArchive(t *testing.T) {
	tree, root := newTree(t)
	put(t, root, "a", strings.Repeat("x", 1000_000))
	put(t, root, "b", "after")
	var out bytes.Buffer
	cut := false
	reply, err := tree.Tar(t.Context(), ArchiveArgs{}, writerFunc(func(p []byte) (int, error) {
		if !cut {
			cut = true
			require.NoError(t, os.Truncate(filepath.Join(root, "a"), 100_000))
		}
		return out.Write(p)
	}))
	require.NoError(t, err)
	require.Equal(t, 1, reply.Count)
	assert.Contains(t, reply.Named[0].Reason, "shrank")
	r := tar.NewReader(&out)
	h, err := r.Next()
	require.NoError(t, err)
	assert.Equal(t, int64(1000_000), h.Size)
	h, err = r.Next()
	require.NoError(t, err)
	assert.Equal(t, "b", h.Name)
}

// member is one entry of a hostile archive.
type member struct {
	name, link, content string
	kind                byte
	mode                int64
}

func archiveOf(tb testing.TB, members ...member) []byte {
	tb.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, m := range members {
		if m.kind == 0 {
			m.kind = tar.TypeReg
		}
		if m.mode == 0 {
			m.mode = 0o644
		}
		h := &tar.Header{Name: m.name, Linkname: m.link, Typeflag: m.kind, Mode: m.mode, Size: int64(len(m.content)), ModTime: time.Unix(1, 0)}
		require.NoError(tb, w.WriteHeader(h), m.name)
		_, err := io.WriteString(w, m.content)
		require.NoError(tb, err)
	}
	require.NoError(tb, w.Close())
	return out.Bytes()
}

func TestF12_HostileEntriesAreLeftOut(t *testing.T) {
	tree, root := newTree(t)
	outside := filepath.Join(filepath.Dir(root), "outside")
	put(t, root, "d/there", "")
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "old")))
	evil := archiveOf(
		t,
		member{name: "../outside/secret", content: "evil"},
		member{name: "a/../../outside/secret", content: "evil"},
		member{name: "/outside", content: "evil"},
		member{name: outside + "/secret", content: "evil"},
		member{name: "out", link: outside, kind: tar.TypeSymlink},
		member{name: "up", link: "../outside", kind: tar.TypeSymlink},
		member{name: "sly", link: alias + "/../outside", kind: tar.TypeSymlink},
		member{name: "old/secret", content: "evil"},
		member{name: "here", link: "d", kind: tar.TypeSymlink, mode: 0o777},
		member{name: "here/through", content: "evil"},
		member{name: "hard", link: "../outside/secret", kind: tar.TypeLink},
		member{name: "hard2", link: "/etc/passwd", kind: tar.TypeLink},
		member{name: "hard3", link: "old/secret", kind: tar.TypeLink},
		member{name: "hard4", link: "old", kind: tar.TypeLink},
		member{name: "dev", kind: tar.TypeChar},
		member{name: "blk", kind: tar.TypeBlock},
		member{name: "fifo", kind: tar.TypeFifo},
		member{name: "d", content: "a file where a directory is"},
		member{name: strings.Repeat("x", 256), content: "evil"},
		member{name: strings.Repeat("x/", 2100) + "x", content: "evil"},
		member{name: "suid", content: "x", mode: 0o7755},
		member{name: "sdir", kind: tar.TypeDir, mode: 0o7755},
		member{name: "inner", link: alias + "/d", kind: tar.TypeSymlink},
		member{name: "hard5", link: "suid", kind: tar.TypeLink},
		member{name: "hard5", link: "hard5", kind: tar.TypeLink},
		member{name: "./", kind: tar.TypeDir, mode: 0o000},
	)
	reply, err := tree.Untar(t.Context(), UntarArgs{}, bytes.NewReader(evil))
	require.NoError(t, err)
	assertCanary(t, root)
	assert.Equal(t, 7, reply.Entries)
	assert.Equal(t, 19, reply.Count, "%v", reply.Named)
	onlyNames(t, root, "d", "hard5", "here", "inner", "old", "sdir", "suid")
	for name, want := range map[string]os.FileMode{"suid": 0o755, "sdir": 0o755 | os.ModeDir, ".": 0o755 | os.ModeDir} {
		info, err := os.Stat(filepath.Join(root, name))
		require.NoError(t, err)
		assert.Equal(t, want, info.Mode(), name)
	}
	onlyNames(t, filepath.Join(root, "d"), "there")
}

func TestF12_OfEqualNamesTheLastOneStaysAndNoLinkIsFollowed(t *testing.T) {
	tree, root := newTree(t)
	put(t, root, "d/keep", "kept")
	_, err := tree.Untar(t.Context(), UntarArgs{}, bytes.NewReader(archiveOf(
		t,
		member{name: "f", content: "one"}, member{name: "f", content: "two"},
		member{name: "g", link: "d/keep", kind: tar.TypeSymlink}, member{name: "g", content: "file"},
		member{name: "h", content: "file"}, member{name: "h", link: "f", kind: tar.TypeSymlink},
		member{name: "l", link: "d", kind: tar.TypeSymlink}, member{name: "l", kind: tar.TypeDir, mode: 0o755}, member{name: "l/in", content: "in l"},
		member{name: "d/keep", link: "f", kind: tar.TypeLink},
		member{name: "e\u0301", content: "1"}, member{name: "\u00e9", content: "2"},
	)))
	require.NoError(t, err)
	for name, want := range map[string]string{"f": "two", "g": "file", "h": "two", "l/in": "in l", "d/keep": "two", "e\u0301": "1", "\u00e9": "2"} {
		text, err := readText(t, tree, name)
		require.NoError(t, err, name)
		assert.Equal(t, want, text, name)
	}
	onlyNames(t, filepath.Join(root, "d"), "keep")
}

func TestF12_BombsAreBounded(t *testing.T) {
	tree, root := newTree(t)
	run := func(args UntarArgs, archive io.Reader) error {
		args.Path = "bomb"
		_, err := tree.Untar(t.Context(), args, archive)
		return err
	}
	many := archiveOf(t, member{name: "a"}, member{name: "b"}, member{name: "c"})
	assertKind(t, run(UntarArgs{MaxEntries: 2}, bytes.NewReader(many)), slots.KindTooLarge, "Archive has too many entries (max 2)")
	require.NoError(t, run(UntarArgs{MaxEntries: 3}, bytes.NewReader(many)))
	big := archiveOf(t, member{name: "big", content: strings.Repeat("x", 1000)})
	assertKind(t, run(UntarArgs{MaxBytes: 999}, bytes.NewReader(big)), slots.KindTooLarge, "Archive too large: more than 999 bytes (max 999)")
	require.NoError(t, run(UntarArgs{MaxBytes: 1000}, bytes.NewReader(big)))

	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	w := tar.NewWriter(z)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "zeros", Size: 1 << 40, Mode: 0o644}))
	zeros := make([]byte, 1<<20)
	for range 100 {
		_, err := w.Write(zeros)
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	err := run(UntarArgs{MaxBytes: 1 << 41}, bytes.NewReader(bomb.Bytes()))
	assertKind(t, err, slots.KindTooLarge, "Archive too large: it unpacks to more than 500 times its size")
	assert.NoFileExists(t, filepath.Join(root, "bomb/zeros"))

	for name, junk := range map[string][]byte{
		"no archive": []byte(strings.Repeat("junk", 1000)), "cut": big[:700], "bad gzip": []byte("\x1f\x8bjunkjunk"), "one byte": {1},
	} {
		err := run(UntarArgs{}, bytes.NewReader(junk))
		require.Error(t, err, name)
		assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind, "%s: %v", name, err)
	}
	assert.NoError(t, run(UntarArgs{}, bytes.NewReader(nil)), "nothing is an archive of nothing")
}

func TestF12_SparseAndOddHeadersAreBounded(t *testing.T) {
	tree, _ := newTree(t)
	header := func(size string, kind byte) []byte {
		block := make([]byte, 512)
		copy(block, "f")
		copy(block[100:], "0000644\x00")
		copy(block[124:], size)
		copy(block[136:], "00000000000\x00")
		block[156] = kind
		copy(block[257:], "ustar\x0000")
		sum := 8 * int(' ')
		for _, b := range block {
			sum += int(b)
		}
		copy(block[148:], []byte("0000000\x00"))
		for i, n := 6, sum; i >= 0; i, n = i-1, n/8 {
			block[148+i] = byte('0' + n%8)
		}
		return append(block, make([]byte, 2048)...)
	}
	for name, archive := range map[string][]byte{
		"negative":   header("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xf0", '0'),
		"8 EiB":      header("\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff", '0'),
		"huge PAX":   header("77777777777\x00", 'x'),
		"huge long":  header("77777777777\x00", 'L'),
		"huge plain": header("77777777777\x00", '0'),
	} {
		var answer error
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, answer = tree.Untar(t.Context(), UntarArgs{Path: "x", MaxBytes: 1 << 20}, bytes.NewReader(archive))
		}()
		<-done
		require.Error(t, answer, name)
		assert.Contains(t, []slots.Kind{slots.KindBadRequest, slots.KindTooLarge}, slots.AsError(answer).Kind, "%s: %v", name, answer)
	}
}

func TestUntarEndsWithItsContext(t *testing.T) {
	tree, _ := newTree(t)
	ctx, cancel := context.WithCancel(t.Context())
	in := readerFunc(func(p []byte) (int, error) {
		cancel()
		return copy(p, archiveOf(t, member{name: "a"})), nil
	})
	_, err := tree.Untar(ctx, UntarArgs{Path: "x"}, in)
	assertKind(t, err, slots.KindInterrupted, "Interrupted: x")
	_, err = tree.Untar(t.Context(), UntarArgs{}, readerFunc(func([]byte) (int, error) { return 0, errors.New("torn") }))
	assert.Equal(t, slots.KindInternal, slots.AsError(err).Kind)
}

func FuzzUntar(f *testing.F) {
	f.Add(archiveOf(f, member{name: "a", content: "x"}, member{name: "l", link: "../..", kind: tar.TypeSymlink}, member{name: "l/x", content: "evil"}))
	f.Add(archiveOf(f, member{name: "../x"}, member{name: "d", kind: tar.TypeDir}, member{name: "h", link: "d", kind: tar.TypeLink}))
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := z.Write(archiveOf(f, member{name: "a/b/c", content: "x"}))
	require.NoError(f, err)
	require.NoError(f, z.Close())
	f.Add(packed.Bytes())
	f.Add([]byte("\x1f\x8b"))
	tree, root := newTree(f)
	top, err := os.Open(root)
	require.NoError(f, err)
	f.Cleanup(func() { top.Close() })
	f.Fuzz(func(t *testing.T, archive []byte) {
		_, err := tree.Untar(t.Context(), UntarArgs{Path: "x/y", MaxBytes: 1 << 16, MaxEntries: 50}, bytes.NewReader(archive))
		if err != nil {
			require.NotEqual(t, slots.KindInternal, slots.AsError(err).Kind, "%v", err)
		}
		names, err := os.ReadDir(root)
		require.NoError(t, err)
		require.LessOrEqual(t, len(names), 1)
		assertCanary(t, root)
		require.NoError(t, RemoveAll(t.Context(), top, "x"))
		var st unix.Stat_t
		require.ErrorIs(t, unix.Lstat(filepath.Join(root, "x"), &st), unix.ENOENT)
	})
}
