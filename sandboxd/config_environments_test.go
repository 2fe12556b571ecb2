package sandboxd

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSettingsOfEnvironmentsAreChecked(t *testing.T) {
	data, wheels := t.TempDir(), t.TempDir()
	inside := filepath.Join(data, "wheels")
	require.NoError(t, os.Mkdir(inside, 0o755))
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--environments-packages", inside}, "would show builds what slots must not see"},
		{[]string{"--environments-packages", filepath.Dir(data)}, "would show builds what slots must not see"},
		{[]string{"--environments-packages", "wheels"}, "want an absolute path"},
		{[]string{"--environments-packages", filepath.Join(wheels, "none")}, "is no directory"},
		{[]string{"--environments-packages", wheels, "--hide", wheels}, "would show builds what slots must not see"},
		{[]string{"--environments-max-size", "1000"}, "environments-max-size: want at least"},
		{[]string{"--environments-timeout", "0"}, "want a duration above 0"},
		{[]string{"--environments-packages", wheels, "--environments-max-size", "1GiB", "--environments-timeout", "90s"}, ""},
	} {
		parsed, err := parse(append([]string{"--data-dir", data}, c.args...))
		if c.says == "" {
			require.NoError(t, err)
			assert.Equal(t, []string{wheels}, parsed.EnvironmentsPackages)
			assert.Equal(t, int64(1<<30), parsed.EnvironmentsMaxSize)
			assert.Equal(t, 90*time.Second, parsed.EnvironmentsTimeout)
			continue
		}
		require.ErrorContains(t, err, c.says, "%v", c.args)
	}
	parsed, err := parse([]string{"--data-dir", data})
	require.NoError(t, err)
	assert.Equal(t, int64(10<<30), parsed.EnvironmentsMaxSize)
}
