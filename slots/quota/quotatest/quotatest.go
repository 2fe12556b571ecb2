// Package quotatest gives tests a file system with project quota.
package quotatest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth/slots/need"
)

// Mount makes an ext4 file system of 64 MiB with project ids in a file, mounts
// it with the options, as "prjquota", and returns the directory. It skips where
// the machine cannot: see need.Facility, as prjquota.
func Mount(t testing.TB, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := mount(dir, options); err != nil {
		need.Facility(t, "prjquota", err)
	}
	at := filepath.Join(dir, "fs")
	t.Cleanup(func() { require.NoError(t, unix.Unmount(at, unix.MNT_DETACH)) })
	for up := dir; up != "/" && up != os.TempDir(); up = filepath.Dir(up) {
		require.NoError(t, os.Chmod(up, 0o755)) // slots pass through
	}
	return at
}

func mount(dir, options string) error {
	image, at := filepath.Join(dir, "image"), filepath.Join(dir, "fs")
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(image, 64<<20); err != nil {
		return err
	}
	for _, command := range [][]string{
		{"mke2fs", "-q", "-t", "ext4", "-O", "quota,project", "-E", "quotatype=prjquota", image},
		{"mount", "-t", "ext4", "-o", strings.Trim("loop,"+options, ","), image, at},
	} {
		out, err := exec.Command(command[0], command[1:]...).CombinedOutput() //nolint:noctx // short
		if err != nil {
			return fmt.Errorf("%s: %w: %s", command[0], err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}
