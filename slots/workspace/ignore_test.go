package workspace

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots/need"
)

// ignoreCases are .gitignore files with names to try them on; a final slash
// marks a directory.
var ignoreCases = []struct {
	rules string
	names []string
}{
	{"*.log\n!keep.log\n", []string{"a.log", "d/a.log", "keep.log", "d/keep.log", "log"}},
	{"/top\nsub/file\n", []string{"top", "d/top", "sub/file", "d/sub/file"}},
	{"build/\n", []string{"build/", "d/build/", "e/build"}},
	{"**/x\na/**\nb/**/c\n**/y/**\n", []string{"x", "d/x", "d/e/x", "a/q", "a/q/r", "b/c", "b/q/c", "b/q/r/c", "y/q", "d/y/q"}},
	{"# comment\n\\#file\n\\!bang\nspace\\ \ntrail   \n", []string{"# comment", "#file", "!bang", "space ", "space", "trail", "trail   "}},
	{"[a-c].txt\n[!x]y\n[^x]z\n[]]w\n[[:digit:]]v\n", []string{"a.txt", "d.txt", "ay", "xy", "az", "xz", "]w", "aw", "1v", "av"}},
	{"a*b\na**c\n?q\nd/*\n", []string{"ab", "axb", "ac", "axc", "d/a/c", "aq", "q", "d/x", "d/x/y"}},
	{"*\n!*.go\n!*/\n", []string{"a", "a.go", "d/", "d/a.go", "d/b"}},
	{"crlf\r\nnext\r\n", []string{"crlf", "next"}},
	{"\\*\nq\\?\n{a,b}\n[\nx[\nbad\\\n", []string{"*", "z", "q?", "qx", "a", "{a,b}", "[", "x[", "bad", "bad\\"}},
	{"foo//bar\n/\n//\n", []string{"foo/bar", "foo"}},
	{"dir/sub/\n!dir/sub/keep\n", []string{"dir/sub/", "dir/other"}},
	{"a/b*/c\n*/m\n", []string{"a/b/c", "a/bx/c", "a/b/x/c", "q/m", "m", "q/r/m"}},
	{"[a-", []string{"a", "[a-"}},
	{"日本*\n", []string{"日本語", "日"}},
}

func TestIgnoreRulesMeanWhatGitMeans(t *testing.T) {
	git, err := exec.LookPath("git")
	need.Facility(t, "git", err)
	for i, c := range ignoreCases {
		t.Run(itoa(i), func(t *testing.T) {
			dir := t.TempDir()
			out, err := exec.Command(git, "init", "-q", dir).CombinedOutput()
			require.NoError(t, err, "%s", out)
			put(t, dir, ".gitignore", c.rules)
			for _, name := range c.names {
				if full := filepath.Join(dir, name); strings.HasSuffix(name, "/") {
					put(t, full, "keep.me", "")
				}
			}
			rules := parseIgnore(c.rules, gitGlob)
			for _, name := range c.names {
				clean := strings.TrimSuffix(name, "/")
				cmd := exec.Command(git, "-c", "core.quotepath=off", "check-ignore", "-q", "--no-index", "--", clean)
				cmd.Dir = dir
				err := cmd.Run()
				assert.Equal(t, err == nil, ignoredWithParents(rules, clean, clean != name), "%q on %q", c.rules, name)
			}
		})
	}
}

// ignoredWithParents asks as a walk does: it never enters what is ignored.
func ignoredWithParents(rules []ignoreRule, name string, isDir bool) bool {
	for i := range len(name) {
		if name[i] == '/' && judge(rules, name[:i], true) == ignored {
			return true
		}
	}
	return judge(rules, name, isDir) == ignored
}
