package agenttest

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Ranges of slots' uids, one per agent that runs now on this machine: a slot
// is ended by killing everything of its uid, whichever agent it belongs to.
const (
	firstRange = 200_000
	rangeWidth = 4096
	ranges     = 200
)

// UIDClaims is the directory with a file for every range of uids, locked while
// an agent of a test uses it. Who runs tests in a container puts it below the
// container's TMPDIR, as root's own: this machine sees the container's
// processes, and a slot here that had the uid of one there would end it.
func UIDClaims(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("berth-test-uids-%d", os.Geteuid()))
	require.NoError(t, os.MkdirAll(dir, 0o700))
	return dir
}

// ClaimUIDs returns the first uid of a range that no other agent of any test
// process uses until the test ends.
func ClaimUIDs(t testing.TB) int {
	t.Helper()
	dir := UIDClaims(t)
	for i := range ranges {
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprint(i)), os.O_CREATE|os.O_RDWR, 0o600)
		require.NoError(t, err)
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			t.Cleanup(func() { f.Close() })
			return firstRange + i*rangeWidth
		}
		f.Close()
	}
	t.Fatal("all ranges of uids are taken")
	return 0
}
