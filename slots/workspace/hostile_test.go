package workspace

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth/slots"
	"berth/slots/need"
)

func TestR06_AFullDiskLeavesTheOldFileAndNoDebris(t *testing.T) {
	_, root := newTree(t)
	small := filepath.Join(root, "small")
	require.NoError(t, os.Mkdir(small, 0o755))
	need.Facility(t, "root", unix.Mount("tmpfs", small, "tmpfs", 0, "size=128k,nr_inodes=20"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(small, unix.MNT_DETACH)) })
	tree, err := Open(small)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tree.Close()) })
	put(t, small, "f", "old")
	text := "No space left in the workspace: f"
	_, err = tree.Write(t.Context(), WriteArgs{Path: "f"}, strings.NewReader(strings.Repeat("x", 1<<20)))
	assertKind(t, err, slots.KindTooLarge, text)
	_, err = tree.Edit(t.Context(), EditArgs{Path: "f", Old: "old", New: strings.Repeat("x", 1<<20)})
	assertKind(t, err, slots.KindTooLarge, text)
	_, err = tree.Untar(t.Context(), UntarArgs{Path: "."}, bytes.NewReader(archiveOf(t, member{name: "g", content: strings.Repeat("x", 1<<20)})))
	assertKind(t, err, slots.KindTooLarge, "No space left in the workspace: .")
	onlyNames(t, small, "f")
	got, err := readText(t, tree, "f")
	require.NoError(t, err)
	assert.Equal(t, "old", got)
	for i := range 20 { // R07: no inodes left
		_, err = tree.Write(t.Context(), WriteArgs{Path: "d/" + itoa(i)}, strings.NewReader(""))
	}
	require.Error(t, err)
	assert.Equal(t, slots.KindTooLarge, slots.AsError(err).Kind)
	_, err = tree.Remove(t.Context(), RemoveArgs{Path: "d", Recursive: true})
	require.NoError(t, err)
}

// A process of the slot goes on filling the directory that is removed.
func TestRemovalOfADirectoryThatIsBeingFilledEnds(t *testing.T) {
	tree, root := newTree(t)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for _, dir := range []string{"d", "d/e", "d/e/f"} {
		wg.Go(func() {
			for i := 0; !stop.Load(); i++ {
				full := filepath.Join(root, dir)
				_ = os.MkdirAll(full, 0o755)
				_ = os.WriteFile(filepath.Join(full, "x"+itoa(i%100)), nil, 0o600)
			}
		})
	}
	for range 50 {
		if _, err := tree.Remove(t.Context(), RemoveArgs{Path: "d", Recursive: true}); err != nil {
			assert.Contains(t, []slots.Kind{slots.KindBadRequest, slots.KindNotFound}, slots.AsError(err).Kind, "%v", err)
		}
	}
	stop.Store(true)
	wg.Wait()
	_, _ = tree.Remove(t.Context(), RemoveArgs{Path: "d", Recursive: true})
	onlyNames(t, root)
}

// The chain is cut in two places while the walk is at its end: neither ".."
// nor the names lead back to the levels between, and the walk gives them up.
func TestAWalkGivesUpLevelsThatAreGone(t *testing.T) {
	tree, root := newTree(t)
	chain := func(n int) string { return strings.Repeat("d/", n) }
	n := 3 * openLevels
	put(t, root, "a/"+chain(n)+"leaf", "")
	put(t, root, "a/z", "")
	put(t, root, "z", "")
	dir, err := tree.openDir(".")
	require.NoError(t, err)
	w := newWalker(dir, heldNames)
	defer w.close()
	var files []string
	for e, ok := w.next(t.Context()); ok; e, ok = w.next(t.Context()) {
		switch {
		case e.leaving:
		case e.name == "leaf":
			files = append(files, e.name)
			deeper := filepath.Join(root, "a", chain(2*openLevels-5))
			require.NoError(t, os.Rename(deeper, filepath.Join(root, "z1")))
			require.NoError(t, os.Rename(filepath.Join(root, "a", chain(10)), filepath.Join(root, "z2")))
		case e.kind == unix.DT_DIR:
			require.NoError(t, w.enter(e.name))
		default:
			files = append(files, w.pathOf(e.name))
		}
	}
	require.NoError(t, w.err)
	assert.Equal(t, []string{"leaf", "a/z", "z"}, files)
}

func TestKindsAreAskedForWhereTheFileSystemDoesNotTellThem(t *testing.T) {
	tree, root := newTree(t)
	put(t, root, "f", "")
	require.NoError(t, os.Mkdir(filepath.Join(root, "d"), 0o755))
	require.NoError(t, os.Symlink("d", filepath.Join(root, "l")))
	for name, kind := range map[string]uint8{"f": unix.DT_REG, "d": unix.DT_DIR, "l": unix.DT_LNK, "missing": unix.DT_UNKNOWN} {
		assert.Equal(t, kind, tree.root.kindOf(name), name)
	}
}

func TestAWrongDirectoryRecordIsRefused(t *testing.T) {
	for _, buf := range [][]byte{nil, make([]byte, 10), make([]byte, 24), append(make([]byte, 16), 0xff, 0xff, 8, 'a', 0, 0, 0, 0)} {
		_, _, size := parseDirent(buf)
		assert.Zero(t, size, "%v", buf)
	}
}

func TestF11_UnreadableThingsAreCountedAndTheRestGoesOn(t *testing.T) {
	needUser(t)
	tree, root := newTree(t)
	for _, name := range []string{"closed/f", "file", "ok/f"} {
		put(t, root, name, "needle")
	}
	require.NoError(t, os.Chmod(filepath.Join(root, "closed"), 0))
	require.NoError(t, os.Chmod(filepath.Join(root, "file"), 0))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(root, "closed"), 0o755) })
	got, found := grepText(t, tree, GrepArgs{Pattern: "needle"})
	assert.Equal(t, "ok/f\n", got)
	assert.Equal(t, 2, found.Unreadable)
	packed, err := tree.Archive(t.Context(), ArchiveArgs{}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, []Omission{{"closed", "directory cannot be read"}, {"file", "cannot be read"}}, packed.Named)
	globbed, err := tree.Glob(t.Context(), GlobArgs{Pattern: "**/f"})
	require.NoError(t, err)
	assert.Equal(t, []string{"ok/f"}, paths(globbed.Matches))
	assert.Equal(t, 1, globbed.Unreadable)
	require.NoError(t, os.Chmod(filepath.Join(root, "ok"), 0o555))
	_, err = tree.Write(t.Context(), WriteArgs{Path: "ok/f"}, strings.NewReader("x"))
	assertKind(t, err, slots.KindDenied, "Permission denied: ok/f")
	require.NoError(t, os.Chmod(filepath.Join(root, "ok"), 0o755))
}

func TestUntarPutsLinksInPlaceOfFilesButNotOfDirectories(t *testing.T) {
	tree, root := newTree(t)
	put(t, root, "dir/f", "kept")
	put(t, root, "file", "old")
	reply, err := tree.Untar(t.Context(), UntarArgs{}, bytes.NewReader(archiveOf(
		t,
		member{name: "dir", link: "file", kind: '2'},
		member{name: "dir", link: "file", kind: '1'},
		member{name: "file", kind: '5', mode: 0o755},
		member{name: "file/below", content: "new"},
		member{name: "dir/f/below", content: "a file is in the way"},
	)))
	require.NoError(t, err)
	assert.Equal(t, 2, reply.Entries)
	var reasons []string
	for _, o := range reply.Named {
		reasons = append(reasons, o.Path+": "+o.Reason)
	}
	assert.Equal(t, []string{
		"dir: there is a directory of that name", "dir: there is a directory of that name", "dir/f/below: leads through a file or link",
	}, reasons)
	text, err := readText(t, tree, "dir/f")
	require.NoError(t, err)
	assert.Equal(t, "kept", text)
}

func TestOmissionsAreCountedBeyondThoseNamed(t *testing.T) {
	var o Omissions
	for range 250 {
		o.add(strings.Repeat("日", 1000), "why")
	}
	assert.Equal(t, 250, o.Count)
	assert.Len(t, o.Named, maxOmissions)
	assert.Equal(t, strings.Repeat("日", 170)+"...", o.Named[0].Path, "cut between characters")
}

func TestNewFilesFollowTheUmask(t *testing.T) {
	tree, root := newTree(t)
	old := unix.Umask(0o027)
	_, err := tree.Write(t.Context(), WriteArgs{Path: "d/f"}, strings.NewReader("x"))
	_, err2 := tree.Write(t.Context(), WriteArgs{Path: "d/g", Mode: 0o666}, strings.NewReader("x"))
	unix.Umask(old)
	require.NoError(t, err)
	require.NoError(t, err2)
	for name, want := range map[string]os.FileMode{"d": 0o750, "d/f": 0o640, "d/g": 0o666} {
		info, err := os.Stat(filepath.Join(root, name))
		require.NoError(t, err)
		assert.Equal(t, want, info.Mode().Perm(), name)
	}
}
