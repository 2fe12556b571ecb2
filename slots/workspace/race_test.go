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
)

// exchange makes two names change places until stop, as fast as it can.
func exchange(stop *atomic.Bool, a, b string) (rounds int) {
	for !stop.Load() {
		if unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE) == nil {
			rounds++
		}
	}
	return rounds
}

// A slot's process makes "d" a directory and a link to outside in turn, while
// every operation runs below d. Whatever wins each race: nothing outside is
// read, written, made or removed.
func TestF04_NoRaceLeadsOutOfTheTree(t *testing.T) {
	rounds := 4_000
	if testing.Short() {
		rounds = 400
	}
	for _, resolver := range resolvers {
		t.Run(resolver, func(t *testing.T) {
			tree, root := newTreeWith(t, resolver)
			outside := filepath.Join(filepath.Dir(root), "outside")
			put(t, root, "d/secret", "inside")
			put(t, root, "d/sub/secret", "inside")
			require.NoError(t, os.Symlink(outside, filepath.Join(root, "absolute")))
			require.NoError(t, os.Symlink("../outside", filepath.Join(root, "relative")))
			var stop atomic.Bool
			var swaps atomic.Int64
			var wg sync.WaitGroup
			for _, link := range []string{"absolute", "relative"} {
				wg.Go(func() { swaps.Add(int64(exchange(&stop, filepath.Join(root, "d"), filepath.Join(root, link)))) })
			}
			packed := archiveOf(t, member{name: "secret", content: "evil"}, member{name: "sub/new", content: "evil"})
			tally := map[bool]int{}
			for range rounds {
				err := attack(t, tree, packed)
				tally[err == nil]++
			}
			stop.Store(true)
			wg.Wait()
			t.Logf("%d swaps; %d reads succeeded, %d failed", swaps.Load(), tally[true], tally[false])
			assertCanary(t, root)
			assert.Greater(t, swaps.Load(), int64(rounds))
		})
	}
}

// attack runs every operation once on what may at any moment be a link, and
// returns what reading said.
func attack(t *testing.T, tree *Tree, packed []byte) error {
	t.Helper()
	text, readErr := readText(t, tree, "d/secret")
	require.NotContains(t, text, canary)
	_, _ = tree.Write(t.Context(), WriteArgs{Path: "d/secret"}, strings.NewReader("inside"))
	_, _ = tree.Write(t.Context(), WriteArgs{Path: "d/new/file"}, strings.NewReader("inside"))
	_, _ = tree.Edit(t.Context(), EditArgs{Path: "d/secret", Old: "inside", New: "Inside"})
	list, _ := tree.List(t.Context(), ListArgs{Path: "d", Recursive: true})
	glob, _ := tree.Glob(t.Context(), GlobArgs{Pattern: "d/**"})
	stat, _ := tree.Stat(t.Context(), StatArgs{Path: "d/secret"})
	for _, e := range append(append(list.Entries, glob.Matches...), stat.Entry) {
		require.False(t, e.Type == "file" && e.Size == int64(len(canary)), "%+v", e)
	}
	var out bytes.Buffer
	_, _ = tree.Grep(t.Context(), GrepArgs{Pattern: ".", Path: "d", Mode: GrepContent}, &out)
	_, _ = tree.Grep(t.Context(), GrepArgs{Pattern: ".", Mode: GrepContent}, &out)
	_, _ = tree.Tar(t.Context(), ArchiveArgs{}, &out)
	require.NotContains(t, out.String(), canary)
	_, _ = tree.Untar(t.Context(), UntarArgs{Path: "d"}, bytes.NewReader(packed))
	_, _ = tree.Untar(t.Context(), UntarArgs{}, bytes.NewReader(archiveOf(t, member{name: "d/secret", content: "evil"}, member{name: "d/evil", link: "d/secret", kind: '1'})))
	_, _ = tree.Mkdir(t.Context(), MkdirArgs{Path: "d/made/dir"})
	_, _ = tree.Remove(t.Context(), RemoveArgs{Path: "d/new", Recursive: true})
	_, _ = tree.Remove(t.Context(), RemoveArgs{Path: "d/sub", Recursive: true})
	return readErr
}

// While a tree is removed, one of its directories and a link to outside
// change places.
func TestF04_RemovingNeverFollowsASwappedLink(t *testing.T) {
	rounds := 300
	if testing.Short() {
		rounds = 30
	}
	tree, root := newTree(t)
	outside := filepath.Join(filepath.Dir(root), "outside")
	parent, err := os.Open(root)
	require.NoError(t, err)
	defer parent.Close()
	for i := range rounds {
		for j := range 5 {
			put(t, root, "t/d/x/"+itoa(j), "")
			put(t, root, "t/d/"+itoa(j), "")
		}
		require.NoError(t, os.Symlink(outside, filepath.Join(root, "t/link")))
		require.NoError(t, os.Symlink(outside, filepath.Join(root, "t/d/link")))
		var stop atomic.Bool
		var wg sync.WaitGroup
		wg.Go(func() { exchange(&stop, filepath.Join(root, "t/d"), filepath.Join(root, "t/link")) })
		wg.Go(func() { exchange(&stop, filepath.Join(root, "t/d/x"), filepath.Join(root, "t/d/link")) })
		if i%2 == 0 {
			_, _ = tree.Remove(t.Context(), RemoveArgs{Path: "t", Recursive: true})
		} else {
			_ = RemoveAll(t.Context(), parent, "t")
		}
		_, _, _ = Usage(t.Context(), root)
		stop.Store(true)
		wg.Wait()
		require.NoError(t, RemoveAll(t.Context(), parent, "t"))
	}
	assertCanary(t, root)
	onlyNames(t, root)
}

// A directory that moves out of the tree while ".." is resolved in it must
// not take us along.
func TestF04_DotDotOfAMovingDirectoryStaysInside(t *testing.T) {
	rounds := 20_000
	if testing.Short() {
		rounds = 2_000
	}
	for _, resolver := range resolvers {
		t.Run(resolver, func(t *testing.T) {
			tree, root := newTreeWith(t, resolver)
			put(t, root, "a/b/f", "")
			put(t, root, "a/secret", "inside")
			from, to := filepath.Join(root, "a/b"), filepath.Join(filepath.Dir(root), "b")
			var stop atomic.Bool
			var wg sync.WaitGroup
			wg.Go(func() {
				for !stop.Load() {
					_ = os.Rename(from, to)
					_ = os.Rename(to, from)
				}
			})
			for range rounds {
				var out bytes.Buffer
				_, err := tree.Read(t.Context(), ReadArgs{Path: "a/b/../outside/secret"}, &out)
				require.Error(t, err)
				require.Empty(t, out.String())
			}
			stop.Store(true)
			wg.Wait()
		})
	}
}

// F07: a file that becomes a FIFO between two looks never blocks anybody.
func TestF07_AFileSwappedWithAFIFONeverBlocks(t *testing.T) {
	tree, root := newTree(t)
	put(t, root, "f", "content")
	require.NoError(t, unix.Mkfifo(filepath.Join(root, "fifo"), 0o666))
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() { exchange(&stop, filepath.Join(root, "f"), filepath.Join(root, "fifo")) })
	for range 3_000 {
		if text, err := readText(t, tree, "f"); err == nil {
			require.Equal(t, "content", text)
		} else {
			require.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind)
		}
		_, err := tree.Tar(t.Context(), ArchiveArgs{}, io.Discard)
		require.NoError(t, err)
		_, err = tree.Grep(t.Context(), GrepArgs{Pattern: "x"}, io.Discard)
		require.NoError(t, err)
		_, _ = tree.Edit(t.Context(), EditArgs{Path: "f", Old: "absent", New: "x"})
	}
	stop.Store(true)
	wg.Wait()
}
