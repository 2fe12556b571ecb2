package sandboxd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheSchedulersDirectoriesAreClosedToSlots(t *testing.T) {
	dir := t.TempDir()
	secrets, task, private := filepath.Join(dir, "secrets"), filepath.Join(dir, "task"), filepath.Join(dir, "private")
	for path, mode := range map[string]os.FileMode{secrets: 0o777, task: 0o777, private: 0o700} {
		require.NoError(t, os.Mkdir(path, mode))
		require.NoError(t, os.Chmod(path, mode))
	}
	assert.Empty(t, closeToOthers(filepath.Join(task, "berth"), secrets+"/", task, private, "", filepath.Join(dir, "none")))
	for path, want := range map[string]os.FileMode{secrets: 0o700, task: 0o777, private: 0o700} {
		st, err := os.Stat(path)
		require.NoError(t, err)
		assert.Equal(t, want, st.Mode().Perm(), path)
	}
}
