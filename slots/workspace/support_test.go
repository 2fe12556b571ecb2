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
func needUser(t testing.TB) {
	t.Helper()
	var err error
	if os.Geteuid() == 0 {
		err = errors.New("root may do everything")
	}
	need.Facility(t, "user", err)
}

func itoa(n int) string { return strconv.Itoa(n) }

// deep makes a chain of n directories named d below root/name, with a file
// "leaf" in the innermost. Such a path is far too long for the kernel, so
// each step starts from the last directory.
func deep(t testing.TB, root, name string, n int) {
	t.Helper()
	top := filepath.Join(root, name)
	require.NoError(t, os.Mkdir(top, 0o755))
	fd, err := unix.Open(top, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	for range n {
		require.NoError(t, unix.Mkdirat(fd, "d", 0o755))
		next, err := unix.Openat(fd, "d", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Close(fd))
		fd = next
	}
	file, err := unix.Openat(fd, "leaf", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	require.NoError(t, err)
	_, err = unix.Write(file, []byte("needle\n"))
	require.NoError(t, err)
	require.NoError(t, unix.Close(file))
	require.NoError(t, unix.Close(fd))
	t.Cleanup(func() { // t.TempDir would fail on it
		dir, err := os.Open(root)
		require.NoError(t, err)
		defer dir.Close()
		require.NoError(t, RemoveAll(context.WithoutCancel(t.Context()), dir, name))
	})
}

// openDescriptors counts this process's descriptors.
func openDescriptors(t testing.TB) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(names)
}

// manyFiles makes n empty files in a directory.
func manyFiles(t testing.TB, dir string, n int) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	for i := range n {
		require.NoError(t, unix.Mknodat(fd, fmt.Sprintf("f%07d", i), unix.S_IFREG|0o644, 0))
	}
}

func symlink(target, root, name string) error { return os.Symlink(target, filepath.Join(root, name)) }
