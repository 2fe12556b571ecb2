package docs_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Whoever greps for a variable finds it in the page, and the page names none
// that nobody reads. What tests tell their own processes is nobody's business.
func TestEveryVariableIsInThePage(t *testing.T) {
	text, err := os.ReadFile("variables.md")
	require.NoError(t, err)
	written := map[string]bool{}
	for row := range strings.Lines(string(text)) {
		if first, _, ok := strings.Cut(strings.TrimPrefix(row, "|"), "|"); ok {
			for _, name := range regexp.MustCompile("`(BERTH_[A-Z_]+)`").FindAllStringSubmatch(first, -1) {
				assert.False(t, written[name[1]], "%s has two rows", name[1])
				written[name[1]] = true
			}
		}
	}
	assert.Equal(t, slices.Sorted(maps.Keys(variables(t))), slices.Sorted(maps.Keys(written)))
}

// variables are those that the project's Go files, scripts and Makefile name.
func variables(t *testing.T) map[string]bool {
	t.Helper()
	inGo := regexp.MustCompile(`"(BERTH_[A-Z_]+)"`) // a literal of its own: it is read, or set for who reads it
	inShell := regexp.MustCompile(`\b(BERTH_[A-Z_]+)`)
	found := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && slices.Contains([]string{".git", ".bin", "bin", "node_modules"}, entry.Name()) {
			return filepath.SkipDir
		}
		name := inGo
		switch at, _ := filepath.Rel(root, path); {
		case at == "Makefile", strings.HasPrefix(at, ".ci/"), at == "images/build":
			name = inShell
		case filepath.Ext(path) != ".go" || !entry.Type().IsRegular():
			return nil
		}
		if entry.IsDir() {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, one := range name.FindAllStringSubmatch(string(text), -1) {
			if !strings.HasPrefix(one[1], "BERTH_TEST_") {
				found[one[1]] = true
			}
		}
		return nil
	})
	require.NoError(t, err)
	return found
}
