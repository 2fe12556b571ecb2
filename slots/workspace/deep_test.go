package workspace

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// levels is the depth of the hostile tree: five times PATH_MAX, twenty times
// the usual limit of open files.
const levels = 20_000

// TestF10_NoOperationMindsTwentyThousandLevels also checks that none of them
// needs more than 64 descriptors.
func TestF10_NoOperationMindsTwentyThousandLevels(t *testing.T) {
	tree, root := newTree(t)
	deep(t, root, "top", levels)
	limitDescriptors(t, 64)

	began := time.Now()
	list, err := tree.List(t.Context(), ListArgs{Recursive: true})
	require.NoError(t, err)
	assert.True(t, list.Truncated, "some 400 MB of paths are more than a listing holds")
	assert.Equal(t, "top/d/d", list.Entries[2].Path)

	glob, err := tree.Glob(t.Context(), GlobArgs{Pattern: "**/leaf"})
	require.NoError(t, err)
	require.Len(t, glob.Matches, 1)
	leaf := glob.Matches[0].Path
	assert.Len(t, leaf, len("top/")+2*levels+len("leaf"))

	text, err := readText(t, tree, leaf)
	require.NoError(t, err, "what was found can be read, however long its path is")
	assert.Equal(t, "needle\n", text)
	_, err = tree.Write(t.Context(), WriteArgs{Path: leaf}, strings.NewReader("needle 2\n"))
	require.NoError(t, err)

	got, _ := grepText(t, tree, GrepArgs{Pattern: "needle", Mode: GrepContent})
	assert.Equal(t, leaf+":needle 2\n", got)

	archive, err := tree.Archive(t.Context(), ArchiveArgs{MaxEntries: 5_000}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, 5_000, archive.EntryCount)
	assert.True(t, archive.Truncated)
	all, err := tree.Tar(t.Context(), ArchiveArgs{}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, levels+2, all.EntryCount)

	_, files, err := Usage(t.Context(), root)
	require.NoError(t, err)
	assert.Equal(t, int64(levels+2), files)
	t.Logf("list, glob, read, write, grep, archive, tar and usage took %v", time.Since(began))

	began = time.Now()
	removed, err := tree.Remove(t.Context(), RemoveArgs{Path: "top", Recursive: true})
	require.NoError(t, err)
	assert.Equal(t, int64(levels+2), removed.Removed)
	t.Logf("remove took %v", time.Since(began))
}

// limitDescriptors lets the test open n descriptors beyond those that are
// open now.
func limitDescriptors(tb testing.TB, n int) {
	tb.Helper()
	var old unix.Rlimit
	require.NoError(tb, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	highest := 0
	names, err := os.ReadDir("/proc/self/fd")
	require.NoError(tb, err)
	for _, name := range names {
		fd := 0
		for _, c := range name.Name() {
			fd = fd*10 + int(c-'0')
		}
		highest = max(highest, fd)
	}
	require.NoError(tb, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(highest + 1 + n), Max: old.Max}))
	tb.Cleanup(func() { require.NoError(tb, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) })
}

// A path of very many "..", each of which goes up for real.
func TestF10_ClimbingUpAndDownIsLinear(t *testing.T) {
	tree, root := newTree(t)
	deep(t, root, "top", 5_000)
	down := "top/" + strings.Repeat("d/", 5_000)
	began := time.Now()
	text, err := readText(t, tree, down+strings.Repeat("../d/", 20_000)+"leaf")
	require.NoError(t, err)
	assert.Equal(t, "needle\n", text)
	assert.Less(t, time.Since(began), 10*time.Second)
	_, err = readText(t, tree, down+strings.Repeat("../", 5_002)+"outside/secret")
	assert.ErrorIs(t, err, errOutside)
}
