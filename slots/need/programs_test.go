package need

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAProgramThatIsMissingIsToldWithWhatToInstall(t *testing.T) {
	dir := t.TempDir()
	has := func(names ...string) string {
		path := filepath.Join(dir, filepath.Join(names...)+".d")
		require.NoError(t, os.MkdirAll(path, 0o755))
		for _, name := range names {
			require.NoError(t, os.WriteFile(filepath.Join(path, name), []byte("#!/bin/sh\nexit $STATUS\n"), 0o755))
		}
		return path
	}
	for _, c := range []struct{ name, path, mend string }{
		{"python3", has(), "apt-get install python3)"},
		{"pip", has(), "apt-get install python3-venv python3-pip)"},
		{"pip", has("uv"), "apt-get install python3-venv python3-pip)"},
		{"node", has("python3"), "apt-get install nodejs)"},
		{"npm", has("node"), "apt-get install nodejs npm)"},
		{"perl", "/usr/bin", "nobody knows"},
		{"python3", has("python3"), ""},
		{"pip", has("python3", "uv"), ""},
		{"pip", has("python3"), ""},
		{"node", has("node"), ""},
		{"npm", has("node", "npm"), ""},
	} {
		err := lacking(t.Context(), c.path, c.name)
		if c.mend == "" {
			require.NoError(t, err, c.name)
			continue
		}
		require.ErrorContains(t, err, c.mend, c.name+" "+c.path)
	}
	broken := has("python3")
	require.NoError(t, os.WriteFile(filepath.Join(broken, "python3"), []byte("#!/bin/sh\necho no module named pip\nexit 1\n"), 0o755))
	require.ErrorContains(t, lacking(t.Context(), broken, "pip"), "python3-pip): exit status 1: "+broken+"/python3\nno module named pip")
}

func TestAFacilityThatIsRequiredIsNotSkipped(t *testing.T) {
	t.Setenv("BERTH_REQUIRE", "")
	var after bool
	t.Run("skips", func(t *testing.T) {
		Facility(t, "userns", os.ErrPermission)
		after = true
	})
	assert.False(t, after)
	Facility(t, "userns", nil)
}
