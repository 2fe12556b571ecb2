package workspace

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
)

func paths(entries []Entry) []string {
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Path)
	}
	return out
}

func TestListIsSortedAndShowsLinksAsLinks(t *testing.T) {
	for _, resolver := range resolvers {
		t.Run(resolver, func(t *testing.T) {
			tree, root := newTreeWith(t, resolver)
			put(t, root, "a/x", "12345")
			put(t, root, "a.txt", "")
			put(t, root, "b/c/d", "")
			require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(root, "link")))
			require.NoError(t, os.Symlink("a", filepath.Join(root, "dirlink")))
			require.NoError(t, syscall.Mkfifo(filepath.Join(root, "fifo"), 0o666))
			reply, err := tree.List(t.Context(), ListArgs{})
			require.NoError(t, err)
			assert.Equal(t, []string{"a", "a.txt", "b", "dirlink", "fifo", "link"}, paths(reply.Entries))
			assert.False(t, reply.Truncated)
			kinds := map[string]string{}
			for _, e := range reply.Entries {
				kinds[e.Path] = e.Type
				assert.Equal(t, e.Type == "dir", e.IsDir)
				assert.Greater(t, e.Mtime, 1e9)
			}
			assert.Equal(t, map[string]string{"a": "dir", "a.txt": "file", "b": "dir", "dirlink": "link", "fifo": "fifo", "link": "link"}, kinds)
			assert.Equal(t, "/etc/passwd", reply.Entries[5].LinkTarget)

			reply, err = tree.List(t.Context(), ListArgs{Path: alias, Recursive: true})
			require.NoError(t, err)
			assert.Equal(t, []string{"a", "a/x", "a.txt", "b", "b/c", "b/c/d", "dirlink", "fifo", "link"}, paths(reply.Entries))
			reply, err = tree.List(t.Context(), ListArgs{Path: "b", Recursive: true, Depth: 1})
			require.NoError(t, err)
			assert.Equal(t, []string{"b/c"}, paths(reply.Entries))
			reply, err = tree.List(t.Context(), ListArgs{Path: "dirlink"})
			require.NoError(t, err)
			assert.Equal(t, []string{"dirlink/x"}, paths(reply.Entries), "a link that was asked for is followed")
			reply, err = tree.List(t.Context(), ListArgs{Path: "a/x"})
			require.NoError(t, err)
			require.Equal(t, []string{"a/x"}, paths(reply.Entries))
			assert.Equal(t, int64(5), reply.Entries[0].Size)
			_, err = tree.List(t.Context(), ListArgs{Path: "missing"})
			assertKind(t, err, slots.KindNotFound, "File not found: missing")
			_, err = tree.List(t.Context(), ListArgs{MaxEntries: -1})
			assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind)
		})
	}
}

func TestListSaysExactlyWhetherThereIsMore(t *testing.T) {
	tree, root := newTree(t)
	for _, name := range []string{"a/1", "a/2", "b/1", "c"} {
		put(t, root, name, "")
	}
	all := []string{"a", "a/1", "a/2", "b", "b/1", "c"}
	for n := 1; n <= 7; n++ {
		reply, err := tree.List(t.Context(), ListArgs{Recursive: true, MaxEntries: n})
		require.NoError(t, err)
		assert.Equal(t, all[:min(n, 6)], paths(reply.Entries))
		assert.Equal(t, n < 6, reply.Truncated, n)
	}
}

func TestAWalkWithAnyBudgetGivesTheSameNames(t *testing.T) {
	tree, root := newTree(t)
	want := []string{}
	for _, d := range []string{"a", "b", "c"} {
		want = append(want, d)
		for _, e := range []string{"a", "b", "c", "d"} {
			want = append(want, d+"/"+e)
			for _, f := range []string{"1", "2", "3"} {
				put(t, root, filepath.Join(d, e, f), "")
				want = append(want, d+"/"+e+"/"+f)
			}
		}
	}
	for budget := 1; budget < 12; budget++ {
		dir, err := tree.openDir(".")
		require.NoError(t, err)
		w := newWalker(dir, budget)
		got := []string{}
		left := 0
		for e, ok := w.next(t.Context()); ok; e, ok = w.next(t.Context()) {
			if e.leaving {
				left++
				continue
			}
			got = append(got, w.pathOf(e.name))
			if e.kind == syscall.DT_DIR {
				require.NoError(t, w.enter(e.name))
			}
			require.LessOrEqual(t, len(w.pending), budget)
		}
		require.NoError(t, w.err)
		w.close()
		assert.Equal(t, want, got, "budget %d", budget)
		assert.Equal(t, 15, left)
	}
}

func TestAWalkGoesOnWhenDirectoriesMoveBehindIt(t *testing.T) {
	tree, root := newTree(t)
	deep := strings.Repeat("d/", 2*openLevels)
	put(t, root, "a/"+deep+"leaf", "")
	put(t, root, "z", "")
	dir, err := tree.openDir(".")
	require.NoError(t, err)
	w := newWalker(dir, heldNames)
	defer w.close()
	var last string
	for e, ok := w.next(t.Context()); ok; e, ok = w.next(t.Context()) {
		if e.leaving {
			continue
		}
		last = e.name
		switch {
		case e.name == "leaf": // take the middle of the chain out of the tree
			from := filepath.Join(root, "a", strings.Repeat("d/", openLevels))
			require.NoError(t, os.Rename(from, filepath.Join(filepath.Dir(root), "outside", "moved")))
		case e.kind == syscall.DT_DIR:
			require.NoError(t, w.enter(e.name))
		}
	}
	require.NoError(t, w.err)
	assert.Equal(t, "z", last)
}

func TestF09_AListingOfManyEntriesIsBounded(t *testing.T) {
	tree, root := newTree(t)
	n := 100_000
	if testing.Short() {
		n = 10_000
	}
	manyFiles(t, filepath.Join(root, "many"), n)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	reply, err := tree.List(t.Context(), ListArgs{Path: "many", MaxEntries: 10})
	require.NoError(t, err)
	runtime.GC()
	runtime.ReadMemStats(&after)
	assert.Len(t, reply.Entries, 10)
	assert.Equal(t, "many/f0000009", reply.Entries[9].Path)
	assert.True(t, reply.Truncated)
	assert.Less(t, int64(after.HeapSys)-int64(before.HeapSys), int64(16<<20))
	reply, err = tree.List(t.Context(), ListArgs{Path: "many", MaxEntries: n})
	require.NoError(t, err)
	assert.Len(t, reply.Entries, n)
	assert.False(t, reply.Truncated)
	removed, err := tree.Remove(t.Context(), RemoveArgs{Path: "many", Recursive: true})
	require.NoError(t, err)
	assert.Equal(t, int64(n+1), removed.Removed)
}

func TestF11_AListGoesOnBehindWhatItMayNotRead(t *testing.T) {
	needUser(t)
	tree, root := newTree(t)
	put(t, root, "a/x", "")
	put(t, root, "b/x", "")
	require.NoError(t, os.Chmod(filepath.Join(root, "a"), 0))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(root, "a"), 0o755) })
	reply, err := tree.List(t.Context(), ListArgs{Recursive: true})
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "b", "b/x"}, paths(reply.Entries))
	assert.Equal(t, 1, reply.Unreadable)
}
