package quota_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth/slots/quota"
	"berth/slots/quota/quotatest"
)

// stranger is who limits hold for: not root.
const stranger = 54321

func opened(t *testing.T) (*quota.System, string) {
	t.Helper()
	at := quotatest.Mount(t, "prjquota")
	s, err := quota.Open(at)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	left, err := filepath.Glob(filepath.Join(at, "quota-proof-*"))
	require.NoError(t, err)
	require.Empty(t, left)
	return s, at
}

func claimed(t *testing.T, s *quota.System, dir string, l quota.Limits) uint32 {
	t.Helper()
	require.NoError(t, os.Mkdir(dir, 0o755))
	id, err := s.Claim(dir, l)
	require.NoError(t, err)
	require.NoError(t, os.Chown(dir, stranger, stranger))
	return id
}

// sh runs a command in the directory as the stranger.
func sh(t *testing.T, dir, text string) error {
	t.Helper()
	c := exec.CommandContext(t.Context(), "sh", "-c", text)
	c.Dir = dir
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	out, err := c.CombinedOutput()
	t.Logf("%s: %v: %s", text, err, out)
	return err
}

func TestALimitHoldsForWhatIsMadeBelow(t *testing.T) {
	s, at := opened(t)
	one, other := filepath.Join(at, "one"), filepath.Join(at, "other")
	id := claimed(t, s, one, quota.Limits{Bytes: 1 << 20, Files: 20})
	assert.NotEqual(t, id, claimed(t, s, other, quota.Limits{Bytes: 1 << 20}))

	require.NoError(t, sh(t, one, "mkdir -p a/b; head -c 500K /dev/zero > a/b/f"))
	for _, path := range []string{one, one + "/a/b", one + "/a/b/f"} {
		have, err := quota.ProjectOf(path)
		require.NoError(t, err)
		assert.Equal(t, id, have)
	}
	require.Error(t, sh(t, one, "head -c 900K /dev/zero > a/g"))
	require.NoError(t, sh(t, other, "head -c 900K /dev/zero > g; for i in $(seq 100); do : > f$i; done"))
	used, err := s.Usage(id)
	require.NoError(t, err)
	assert.LessOrEqual(t, used.Bytes, int64(1<<20))
	assert.Greater(t, used.Bytes, int64(900<<10))
	assert.EqualValues(t, 5, used.Files)
	require.NoError(t, sh(t, one, "rm -r a"))
	require.Error(t, sh(t, one, "for i in $(seq 30); do : > f$i || exit 1; done"))
}

func TestAnIdIsReleasedWithItsLastFile(t *testing.T) {
	s, at := opened(t)
	dir := filepath.Join(at, "dir")
	id := claimed(t, s, dir, quota.Limits{Bytes: 1 << 20})
	require.NoError(t, s.Release(id))
	require.Error(t, sh(t, dir, "head -c 2M /dev/zero > f"), "it holds a directory, and keeps its limit")
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, s.Release(id))
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, s.Adopt(dir, id, quota.Limits{}))
	require.NoError(t, os.Chown(dir, stranger, stranger))
	require.NoError(t, sh(t, dir, "head -c 2M /dev/zero > f"))
}

func TestATreeThatWasCountedElsewhereIsMoved(t *testing.T) {
	s, at := opened(t)
	dir, tree := filepath.Join(at, "dir"), filepath.Join(at, "tree")
	id := claimed(t, s, dir, quota.Limits{Bytes: 1 << 20})
	require.NoError(t, os.Mkdir(tree, 0o755))
	require.NoError(t, os.Chown(tree, stranger, stranger))
	require.NoError(t, sh(t, tree, "mkdir d; head -c 900K /dev/zero > d/f; ln -s / link; mkfifo pipe"))
	require.ErrorIs(t, os.Rename(tree, dir+"/tree"), unix.EXDEV, "the kernel takes none of another project")
	require.NoError(t, quota.Move(t.Context(), tree, id))
	require.NoError(t, os.Rename(tree, dir+"/tree"))
	require.Error(t, sh(t, dir, "head -c 900K /dev/zero > f"))
	none, err := quota.ProjectOf("/")
	require.NoError(t, err)
	assert.Zero(t, none)
}

func TestAFileSystemThatOnlyCountsIsNotBelieved(t *testing.T) {
	at := quotatest.Mount(t, "")
	_, err := quota.Open(at)
	var refused *quota.UnavailableError
	require.ErrorAs(t, err, &refused)
	assert.Contains(t, refused.Mend, "prjquota")
}

func TestWhatHasNoProjectsSaysWhatWouldHelp(t *testing.T) {
	_, err := quota.Open("/proc")
	var refused *quota.UnavailableError
	require.ErrorAs(t, err, &refused)
	dir := t.TempDir()
	s, err := quota.Open(dir)
	if err == nil {
		require.NoError(t, s.Close())
		t.Skip("temporary directories have project quota here")
	}
	require.ErrorAs(t, err, &refused)
	assert.NotEmpty(t, refused.Mend, "%v", err)
	require.Error(t, errors.Unwrap(refused))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}
