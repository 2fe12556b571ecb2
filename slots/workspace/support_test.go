package workspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth/slots/need"
)

// needUser skips what root is not refused.
func needUser(tb testing.TB) {
	tb.Helper()
	var err error
	if os.Geteuid() == 0 {
		err = errors.New("root may do everything")
	}
	need.Facility(tb, "user", err)
}

func itoa(n int) string { return strconv.Itoa(n) }

// deep makes a chain of n directories named d below root/name, with a file
// "leaf" in the innermost. Such a path is far too long for the kernel, so
// each step starts from the last directory.
func deep(tb testing.TB, root, name string, n int) {
	tb.Helper()
	top := filepath.Join(root, name)
	require.NoError(tb, os.Mkdir(top, 0o755))
	fd, err := unix.Open(top, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(tb, err)
	for range n {
		require.NoError(tb, unix.Mkdirat(fd, "d", 0o755))
		next, err := unix.Openat(fd, "d", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		require.NoError(tb, err)
		require.NoError(tb, unix.Close(fd))
		fd = next
	}
	file, err := unix.Openat(fd, "leaf", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	require.NoError(tb, err)
	_, err = unix.Write(file, []byte("needle\n"))
	require.NoError(tb, err)
	require.NoError(tb, unix.Close(file))
	require.NoError(tb, unix.Close(fd))
	tb.Cleanup(func() { // tb.TempDir would fail on it
		dir, err := os.Open(root)
		require.NoError(tb, err)
		defer dir.Close()
		require.NoError(tb, RemoveAll(context.WithoutCancel(tb.Context()), dir, name))
	})
}

// openDescriptors counts this process's descriptors.
func openDescriptors(tb testing.TB) int {
	tb.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	require.NoError(tb, err)
	return len(names)
}

// manyFiles makes n empty files in a directory.
func manyFiles(tb testing.TB, dir string, n int) {
	tb.Helper()
	require.NoError(tb, os.MkdirAll(dir, 0o755))
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(tb, err)
	defer handle(fd).close()
	for i := range n {
		require.NoError(tb, unix.Mknodat(fd, fmt.Sprintf("f%07d", i), unix.S_IFREG|0o644, 0))
	}
}

func symlink(target, root, name string) error { return os.Symlink(target, filepath.Join(root, name)) }
