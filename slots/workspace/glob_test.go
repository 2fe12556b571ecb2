package workspace

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
)

func TestGlobFindsFilesNewestFirst(t *testing.T) {
	for _, resolver := range resolvers {
		t.Run(resolver, func(t *testing.T) {
			tree, root := newTreeWith(t, resolver)
			now := time.Now()
			for i, name := range []string{"src/a.go", "src/deep/er/b.go", "c.go", "d.py", ".hidden.go", ".git/x.go", "src/.git/y.go"} {
				put(t, root, name, "")
				when := now.Add(time.Duration(i) * time.Second)
				require.NoError(t, os.Chtimes(filepath.Join(root, name), when, when))
			}
			require.NoError(t, os.Symlink("src", filepath.Join(root, "link")))
			for _, c := range []struct {
				pattern, path string
				want          []string
			}{
				{"**/*.go", "", []string{".hidden.go", "c.go", "src/deep/er/b.go", "src/a.go"}},
				{"*.go", "", []string{".hidden.go", "c.go"}},
				{"*.go", "src", []string{"src/a.go"}},
				{"src/**", "", []string{"src/deep/er/b.go", "src/a.go"}},
				{alias + "/src/*.go", "ignored", []string{"src/a.go"}},
				{"link/*.go", "", []string{"link/a.go"}},
				{"{c,d}.{go,py}", "", []string{"d.py", "c.go"}},
				{"src/*/er/[a-c].go", "", []string{"src/deep/er/b.go"}},
				{"c.go", "", []string{"c.go"}},
				{"nothing*", "", []string{}},
			} {
				reply, err := tree.Glob(t.Context(), GlobArgs{Pattern: c.pattern, Path: c.path})
				require.NoError(t, err, c.pattern)
				got := []string{}
				for _, e := range reply.Matches {
					if e.Type == "file" {
						got = append(got, e.Path)
					}
				}
				assert.Equal(t, c.want, got, c.pattern)
			}
			reply, err := tree.Glob(t.Context(), GlobArgs{Pattern: "**/*.go", Max: 2})
			require.NoError(t, err)
			assert.Equal(t, []string{".hidden.go", "c.go"}, paths(reply.Matches))
			assert.True(t, reply.Truncated)
			assert.Equal(t, 4, reply.Total)
		})
	}
}

func TestGlobRefusesWhatItCannotDo(t *testing.T) {
	tree, _ := newTree(t)
	for pattern, kind := range map[string]slots.Kind{
		"": slots.KindBadRequest, "[": slots.KindBadRequest, "{a": slots.KindBadRequest, `a\`: slots.KindBadRequest,
		"../*": slots.KindDenied, "/etc/*": slots.KindDenied, "missing/*": slots.KindNotFound, "a\x00*": slots.KindBadRequest,
		strings.Repeat("[a]", 4000): slots.KindBadRequest,
	} {
		_, err := tree.Glob(t.Context(), GlobArgs{Pattern: pattern})
		require.Error(t, err, "%.20q", pattern)
		assert.Equal(t, kind, slots.AsError(err).Kind, "%.20q: %.100v", pattern, err)
	}
}

func TestF13_NoGlobTakesLong(t *testing.T) {
	tree, root := newTree(t)
	for i := range 200 {
		put(t, root, "d/e/f/"+strings.Repeat("a", 60)+itoa(i), "")
	}
	for _, pattern := range []string{
		strings.Repeat("**/", 200) + "x", strings.Repeat("*a", 200) + "b", strings.Repeat("{a,b}", 400), strings.Repeat("[!b]", 1000),
		strings.Repeat("{", 1000) + strings.Repeat("a,b}", 700) + strings.Repeat("}", 300),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := tree.Glob(ctx, GlobArgs{Pattern: pattern})
		cancel()
		require.NotErrorIs(t, err, context.DeadlineExceeded, "%.20q", pattern)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := tree.Glob(ctx, GlobArgs{Pattern: "**"})
	assertKind(t, err, slots.KindInterrupted, "Interrupted: **")
}

func TestGlobsMeanWhatDoublestarMeans(t *testing.T) {
	patterns := []string{
		"*", "**", "a", "a/*", "a/**", "**/a", "**/a/**", "a/**/b", "a**b", "**a", "a**", "*/**", "**/*", "**/**", "?", "a?c", "[a-c]*",
		"[!a]*", "[^a]", `\*`, `a\*b`, "{a,b}", "{a,b}/c", "x{a,b*}", "{**/a,b}", "*.{go,py}", "a/*/c", "a/**/**/c",
		"[a-z0-9]", "日*", "?本", "a.c", "a+b", "(a)", "*a*b*", "**/*.go",
	}
	names := []string{
		"a", "b", "c", "ab", "aab", "abc", "a/b", "a/b/c", "a/x/y/c", "x/a", "x/a/b", "a/c", "b/c", "xa", "xb", "xbz", "*", "a*b",
		"f.go", "d/f.go", "f.py", "日本", "d/e/f.go", "a.c", "axc", "a+b", "aab", "(a)", ".h", "a/.h", "0", "a\nb",
	}
	for _, p := range patterns {
		g, err := compileGlob(p, starGlob)
		require.NoError(t, err, p)
		for _, name := range names {
			assert.Equal(t, doublestar.MatchUnvalidated(p, name), g.match(name), "%q on %q", p, name)
		}
	}
}

// Patterns without braces, classes and escapes mean the same to doublestar
// and us; none makes us panic or take long.
func FuzzGlob(f *testing.F) {
	for _, seed := range [][2]string{
		{"**/*.go", "a/b.go"},
		{"[]a]", "]"},
		{"{a,{b,c}}*", "bx"},
		{"a/**/b/**", "a/b"},
		{`\[x]`, "[x]"},
		{"[[:alpha:]]", "x"},
		{"*/?/**", "a/b/c"},
		{"**a**", "bab"},
		{"[z-a]", "m"},
		{"[!/]", "/"},
		{"\xff*", "\xffa"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		for _, d := range []dialect{starGlob, gitGlob, rgGlob} {
			g, err := compileGlob(pattern, d)
			if err != nil {
				continue
			}
			got := g.match(name)
			if d == starGlob && !strings.ContainsAny(pattern, `{}[]\,`) && len(pattern) < 30 && len(name) < 30 &&
				utf8.ValidString(pattern) && utf8.ValidString(name) && pattern != "" && name != "" &&
				!strings.Contains("/"+pattern+"/"+name+"/", "//") && !strings.Contains(pattern, "***") {
				require.Equal(t, doublestar.MatchUnvalidated(pattern, name), got, "%q on %q", pattern, name)
			}
		}
		parseIgnore(pattern+"\n"+name, gitGlob)
	})
}
