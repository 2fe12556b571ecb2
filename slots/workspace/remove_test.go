package workspace

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth/slots"
	"berth/slots/need"
)

func TestRemoveTakesNoMoreThanItWasAskedFor(t *testing.T) {
	for _, resolver := range resolvers {
		t.Run(resolver, func(t *testing.T) {
			tree, root := newTreeWith(t, resolver)
			put(t, root, "d/e/f", "")
			put(t, root, "keep/f", "")
			require.NoError(t, os.Symlink("keep", filepath.Join(root, "link")))
			require.NoError(t, os.Symlink("../keep", filepath.Join(root, "d/link")))
			require.NoError(t, os.Symlink(filepath.Dir(root)+"/outside", filepath.Join(root, "d/out")))
			require.NoError(t, syscall.Mkfifo(filepath.Join(root, "d/fifo"), 0o666))
			for _, c := range []struct {
				path      string
				recursive bool
				kind      slots.Kind
				text      string
			}{
				{"d", false, slots.KindBadRequest, "Directory not empty: d"},
				{"missing", true, slots.KindNotFound, "File not found: missing"},
				{".", true, slots.KindBadRequest, "Invalid path: . is the workspace itself"},
				{alias, true, slots.KindBadRequest, "Invalid path: /workspace is the workspace itself"},
				{"d/..", true, slots.KindBadRequest, "Invalid path: d/.. is the workspace itself"},
				{"..", true, slots.KindDenied, outsideText},
				{"d/out/secret", true, slots.KindDenied, outsideText},
			} {
				_, err := tree.Remove(t.Context(), RemoveArgs{Path: c.path, Recursive: c.recursive})
				assertKind(t, err, c.kind, c.text)
			}
			reply, err := tree.Remove(t.Context(), RemoveArgs{Path: "link", Recursive: true})
			require.NoError(t, err)
			assert.Equal(t, int64(1), reply.Removed)
			assert.FileExists(t, filepath.Join(root, "keep/f"), "a link is removed, not what it points to")
			reply, err = tree.Remove(t.Context(), RemoveArgs{Path: "d", Recursive: true})
			require.NoError(t, err)
			assert.Equal(t, int64(6), reply.Removed)
			_, err = tree.Remove(t.Context(), RemoveArgs{Path: "keep/f"})
			require.NoError(t, err)
			_, err = tree.Remove(t.Context(), RemoveArgs{Path: "keep"})
			require.NoError(t, err)
			onlyNames(t, root)
			assertCanary(t, root)
		})
	}
}

func TestRemoveAllNeverFollowsALink(t *testing.T) {
	_, root := newTree(t)
	parent, err := os.Open(root)
	require.NoError(t, err)
	defer parent.Close()
	require.NoError(t, os.Symlink("../outside", filepath.Join(root, "link")))
	require.NoError(t, RemoveAll(t.Context(), parent, "link"))
	require.NoError(t, RemoveAll(t.Context(), parent, "missing"))
	for _, name := range []string{"", ".", ".."} {
		require.Error(t, RemoveAll(t.Context(), parent, name))
	}
	assertCanary(t, root)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	put(t, root, "d/f", "")
	assert.ErrorIs(t, RemoveAll(ctx, parent, "d"), context.Canceled)
}

func TestF11_RemoveMakesWayThroughForbiddenDirectories(t *testing.T) {
	needUser(t)
	tree, root := newTree(t)
	put(t, root, "d/a/b/c/f", "")
	for _, name := range []string{"d/a/b/c", "d/a/b", "d/a", "d"} {
		require.NoError(t, os.Chmod(filepath.Join(root, name), 0))
	}
	_, err := tree.Remove(t.Context(), RemoveArgs{Path: "d", Recursive: true})
	require.NoError(t, err)
	onlyNames(t, root)
}

func TestChangingAModeByProcFollowsNoLink(t *testing.T) {
	tree, root := newTree(t)
	require.NoError(t, os.Mkdir(filepath.Join(root, "d"), 0))
	require.NoError(t, os.Symlink("../outside", filepath.Join(root, "link")))
	dir, err := tree.openDir(".")
	require.NoError(t, err)
	defer dir.close()
	for _, chmod := range []func(handle, string) error{chmodName, chmodByProc} {
		require.NoError(t, os.Chmod(filepath.Join(root, "d"), 0))
		require.NoError(t, chmod(dir, "d"))
		info, err := os.Stat(filepath.Join(root, "d"))
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o700), info.Mode().Perm())
		require.Error(t, chmod(dir, "link"))
	}
	assertCanary(t, root)
}

func TestX24_InodeFlagsDoNotStopRemoval(t *testing.T) {
	_, root := newTree(t)
	put(t, root, "d/e/immutable", "")
	put(t, root, "d/e/append", "")
	setFlags := func(name string, flags int) error {
		f, err := os.Open(filepath.Join(root, name))
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
	}
	err := setFlags("d/e/immutable", 0x10)
	need.Facility(t, "inode flags", err)
	require.NoError(t, setFlags("d/e/append", 0x20))
	require.NoError(t, setFlags("d/e", 0x10))
	require.NoError(t, setFlags("d", 0x10))
	parent, err := os.Open(root)
	require.NoError(t, err)
	defer parent.Close()
	require.NoError(t, RemoveAll(t.Context(), parent, "d"))
	onlyNames(t, root)
}

func TestX16_ExtendedAttributesDoNotStopRemoval(t *testing.T) {
	_, root := newTree(t)
	put(t, root, "d/f", "")
	need.Facility(t, "xattr", unix.Setxattr(filepath.Join(root, "d/f"), "user.note", []byte("x"), 0))
	parent, err := os.Open(root)
	require.NoError(t, err)
	defer parent.Close()
	require.NoError(t, RemoveAll(t.Context(), parent, "d"))
	onlyNames(t, root)
}

func TestUsageCountsBlocksNotSizes(t *testing.T) {
	_, root := newTree(t)
	before, _, err := Usage(t.Context(), root)
	require.NoError(t, err)
	put(t, root, "a/f", strings.Repeat("x", 100_000))
	require.NoError(t, unix.Truncate(filepath.Join(root, "a/f"), 1<<40))
	require.NoError(t, os.Link(filepath.Join(root, "a/f"), filepath.Join(root, "hard")))
	require.NoError(t, os.Symlink("/", filepath.Join(root, "link")))
	fd, err := unix.Open(filepath.Join(root, "a/f"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Fsync(fd)) // blocks are allocated late
	require.NoError(t, unix.Close(fd))
	bytes, files, err := Usage(t.Context(), root)
	require.NoError(t, err)
	assert.Equal(t, int64(4), files)
	assert.InDelta(t, before+100_000, bytes, 20_000)
	_, _, err = Usage(t.Context(), filepath.Join(root, "missing"))
	require.Error(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = Usage(ctx, root)
	assert.ErrorIs(t, err, context.Canceled)
}
