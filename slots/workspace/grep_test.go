package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
	"berth/slots/need"
)

func grepText(tb testing.TB, tree *Tree, args GrepArgs) (string, GrepReply) {
	tb.Helper()
	var out bytes.Buffer
	reply, err := tree.Grep(tb.Context(), args, &out)
	require.NoError(tb, err)
	return out.String(), reply
}

// grepForest is a tree with everything that decides whether a line is found.
func grepForest(tb testing.TB, root string) {
	tb.Helper()
	for name, content := range map[string]string{
		"a.go":               "package a\n\nfunc Foo() {}\n// foo bar\nvar x = 1\n",
		"b.py":               "import os\r\nfoo = 1\r\nprint(foo)\r\n",
		"c.txt":              "no newline at the end foo",
		"src/main.go":        strings.Repeat("line\n", 30) + "foo one\n" + strings.Repeat("between\n", 3) + "foo two\n" + strings.Repeat("line\n", 30),
		"src/deep/er/x.go":   "foo\nfoo\n\nfoo\n",
		"src/ignored.log":    "foo in a log\n",
		"src/keep.log":       "foo kept\n",
		"build/out.txt":      "foo built\n",
		".hidden":            "foo hidden\n",
		".config/x":          "foo hidden dir\n",
		".gitignore":         "*.log\n!keep.log\n/build/\n",
		"src/.gitignore":     "secret*\n",
		"src/secret.txt":     "foo secret\n",
		"binary":             "foo\x00bar\nfoo\n",
		"late-binary":        "foo first\n" + strings.Repeat("x\n", 100_000) + "\x00foo\n",
		"empty":              "",
		"utf8.txt":           "gr\u00fc\u00dfe foo\nFOO\nfood\nfoo_bar\nfoo-bar\n",
		"bom.txt":            "\ufefffoo at the start\n",
		"invalid.txt":        "\xfc\xfd\xfefoo\n",
		"multi.txt":          "start\n  a {\n  b\n}\nend\nstart\nend\n",
		"vendor/lib/lib.go":  "foo vendored\n",
		"with space/f:1.txt": "foo 12\n",
	} {
		put(tb, root, name, content)
	}
	require.NoError(tb, os.Symlink("a.go", filepath.Join(root, "link.go")))
	require.NoError(tb, os.Symlink("src", filepath.Join(root, "dirlink")))
	require.NoError(tb, os.Mkdir(filepath.Join(root, ".git"), 0o755)) // makes rg heed .gitignore
}

// rg knows what rg prints. Each case gives our arguments and its.
func TestGrepPrintsWhatRipgrepPrints(t *testing.T) {
	rg, err := exec.LookPath("rg")
	need.Facility(t, "ripgrep", err)
	tree, root := newTree(t)
	grepForest(t, root)
	for _, c := range []struct {
		args GrepArgs
		rg   string
	}{
		{GrepArgs{Pattern: "foo", Mode: GrepContent}, "foo"},
		{GrepArgs{Pattern: "foo", Mode: GrepContent, LineNumbers: true}, "-n foo"},
		{GrepArgs{Pattern: "foo"}, "-l foo"},
		{GrepArgs{Pattern: "foo", Mode: GrepCount}, "-c foo"},
		{GrepArgs{Pattern: "FOO", Mode: GrepContent, CaseInsensitive: true}, "-i FOO"},
		{GrepArgs{Pattern: "foo", Mode: GrepContent, Word: true}, "-w foo"},
		{GrepArgs{Pattern: "= 1", Mode: GrepContent, Word: true}, "-w =.1"},
		{GrepArgs{Pattern: "Foo()", Mode: GrepContent, FixedStrings: true}, "-F Foo()"},
		{GrepArgs{Pattern: "foo", Mode: GrepContent, Context: 2, LineNumbers: true}, "-n -C2 foo"},
		{GrepArgs{Pattern: "foo", Mode: GrepContent, Context: 1}, "-C1 foo"},
		{GrepArgs{Pattern: "foo", Mode: GrepContent, Before: 1, LineNumbers: true}, "-n -B1 foo"},
		{GrepArgs{Pattern: "foo", Mode: GrepContent, After: 3, LineNumbers: true}, "-n -A3 foo"},
		{GrepArgs{Pattern: "foo", Mode: GrepContent, Before: 100, After: 100, LineNumbers: true}, "-n -C100 foo"},
		{GrepArgs{Pattern: "foo", Hidden: true, Glob: []string{"!.git"}}, "-l --hidden -g !.git foo"},
		{GrepArgs{Pattern: "foo", NoIgnore: true}, "-l --no-ignore foo"},
		{GrepArgs{Pattern: "foo", Type: "go"}, "-l -t go foo"},
		{GrepArgs{Pattern: "foo", Glob: []string{"*.go"}}, "-l -g *.go foo"},
		{GrepArgs{Pattern: "foo", Glob: []string{"!*.go", "!vendor"}}, "-l -g !*.go -g !vendor foo"},
		{GrepArgs{Pattern: "foo", Glob: []string{"*.{log,py}"}}, "-l -g *.{log,py} foo"},
		{GrepArgs{Pattern: "foo", Glob: []string{"src/**/*.go"}}, "-l -g src/**/*.go foo"},
		{GrepArgs{Pattern: "foo", Glob: []string{"*.go", "!src/**"}}, "-l -g *.go -g !src/** foo"},
		{GrepArgs{Pattern: "foo", Glob: []string{".hidden"}}, "-l -g .hidden foo"},
		{GrepArgs{Pattern: "foo", Path: "src", Mode: GrepContent}, "foo src"},
		{GrepArgs{Pattern: "foo", Path: "build"}, "-l foo build"},
		{GrepArgs{Pattern: "foo", Path: "src/deep/er", Mode: GrepCount}, "-c foo src/deep/er"},
		{GrepArgs{Pattern: "foo", Path: "a.go", Mode: GrepContent, LineNumbers: true}, "-n foo a.go"},
		{GrepArgs{Pattern: "foo", Path: "src/ignored.log", Mode: GrepCount}, "-c foo src/ignored.log"},
		{GrepArgs{Pattern: "foo", Path: "binary", Mode: GrepContent}, "foo binary"},
		{GrepArgs{Pattern: "^foo", Mode: GrepContent}, "^foo"},
		{GrepArgs{Pattern: `foo\b.*$`, Mode: GrepContent}, `foo\b.*$`},
		{GrepArgs{Pattern: "^$", Mode: GrepCount}, "-c ^$"},
		{GrepArgs{Pattern: "", Path: "src/deep", Mode: GrepContent, LineNumbers: true}, "-n  src/deep"},
		{GrepArgs{Pattern: "foo|line", Path: "src", Mode: GrepContent, Context: 1, LineNumbers: true}, "-n -C1 foo|line src"},
		{GrepArgs{Pattern: `start.*?end`, Mode: GrepContent, Multiline: true, LineNumbers: true}, "-n -U --multiline-dotall start.*?end"},
		{GrepArgs{Pattern: `\{\n`, Path: "multi.txt", Mode: GrepContent, Multiline: true, LineNumbers: true, Context: 1}, `-n -U -C1 \{\n multi.txt`},
		{GrepArgs{Pattern: "foo", Mode: GrepContent, Multiline: true}, "-U foo --glob !late-binary"},
		{GrepArgs{Pattern: "absent"}, "-l absent"},
	} {
		if strings.Contains(c.rg, "late-binary") {
			c.args.Glob = append(c.args.Glob, "!late-binary")
		}
		t.Run(c.rg, func(t *testing.T) {
			argv := append([]string{"--no-config", "--no-heading", "--sort=path", "--color=never"}, strings.Split(c.rg, " ")...)
			cmd := exec.Command(rg, argv...)
			cmd.Dir = root
			want, err := cmd.Output()
			if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 1 {
				t.Fatalf("rg: %s", exit.Stderr)
			}
			got, _ := grepText(t, tree, c.args)
			assert.Equal(t, string(want), got)
		})
	}
}

// The same, on random texts that cross every buffer boundary.
func TestGrepPrintsWhatRipgrepPrintsOnRandomText(t *testing.T) {
	rg, err := exec.LookPath("rg")
	need.Facility(t, "ripgrep", err)
	tree, root := newTree(t)
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 12 {
		var b strings.Builder
		for b.Len() < 300_000 {
			b.WriteString(strings.Repeat("w", random.IntN(90)))
			if random.IntN(40) == 0 {
				b.WriteString("needle")
			}
			if random.IntN(600) == 0 {
				b.WriteString(strings.Repeat("long ", 700))
			}
			b.WriteByte('\n')
		}
		put(t, root, "f", b.String())
		lines := random.IntN(4)
		for _, pattern := range []string{"needle", "need[l]e$", "(?i)NEEDLE"} {
			cmd := exec.Command(rg, "--no-config", "--no-heading", "-n", fmt.Sprintf("-C%d", lines), pattern, "f")
			cmd.Dir = root
			want, err := cmd.Output()
			require.NoError(t, err)
			got, _ := grepText(t, tree, GrepArgs{Pattern: pattern, Path: "f", Mode: GrepContent, LineNumbers: true, Context: lines})
			if string(want) != got { // too long to print
				t.Fatalf("round %d: %s -C%d differs", round, pattern, lines)
			}
		}
	}
}

func TestGrepStopsAtItsLimitAndSaysSo(t *testing.T) {
	tree, root := newTree(t)
	put(t, root, "a", "foo\nfoo\nfoo\n")
	put(t, root, "b", "foo\n")
	for _, c := range []struct {
		args      GrepArgs
		want      string
		truncated bool
	}{
		{GrepArgs{Mode: GrepContent, MaxResults: 2}, "a:foo\na:foo\n", true},
		{GrepArgs{Mode: GrepContent, MaxResults: 4}, "a:foo\na:foo\na:foo\nb:foo\n", false},
		{GrepArgs{Mode: GrepContent, MaxResults: 1, LineNumbers: true, After: 1}, "a:1:foo\n", true},
		{GrepArgs{MaxResults: 1}, "a\n", true},
		{GrepArgs{MaxResults: 2}, "a\nb\n", false},
		{GrepArgs{Mode: GrepCount, MaxResults: 1}, "a:3\n", true},
	} {
		c.args.Pattern = "foo"
		got, reply := grepText(t, tree, c.args)
		assert.Equal(t, c.want, got)
		assert.Equal(t, c.truncated, reply.Truncated, "%+v", c.args)
	}
}

func TestGrepCountsWhatItLeavesOut(t *testing.T) {
	tree, root := newTree(t)
	put(t, root, "binary", "foo\x00")
	put(t, root, "huge", strings.Repeat("x", maxPassage+1))
	put(t, root, "ok", "foo\n")
	_, reply := grepText(t, tree, GrepArgs{Pattern: "foo", Multiline: true})
	assert.Equal(t, GrepReply{Matches: 1, Files: 1, Searched: 2, Binary: 1, TooLarge: 1}, reply)
}

func TestGrepCutsVeryLongLines(t *testing.T) {
	tree, root := newTree(t)
	put(t, root, "f", "before\n"+strings.Repeat("x", 5000)+"foo\n"+strings.Repeat("y", 3*maxLine)+"foo\nfoo after\n")
	got, reply := grepText(t, tree, GrepArgs{Pattern: "foo", Mode: GrepContent, LineNumbers: true})
	assert.Equal(t, "f:2:"+strings.Repeat("x", maxColumns)+" [... omitted end of long line]\nf:4:foo after\n", got)
	assert.Equal(t, 2, reply.Matches)
	got, _ = grepText(t, tree, GrepArgs{Pattern: "^yy", Mode: GrepContent, LineNumbers: true, Context: 1})
	assert.Equal(t, "f-2-"+strings.Repeat("x", maxColumns)+" [... omitted end of long line]\nf:3:"+
		strings.Repeat("y", maxColumns)+" [... omitted end of long line]\nf-4-foo after\n", got)
}

func TestGrepRefusesWhatItCannotDo(t *testing.T) {
	tree, _ := newTree(t)
	for _, args := range []GrepArgs{
		{Pattern: "("},
		{Pattern: "x", Mode: "odd"},
		{Pattern: "x", Type: "odd"},
		{Pattern: "x", Glob: []string{"["}},
		{Pattern: "a\nb"},
		{Pattern: "x", Before: -1},
		{Pattern: "(?=x)"},
		{Pattern: strings.Repeat("(x", 10_000)},
	} {
		_, err := tree.Grep(t.Context(), args, &bytes.Buffer{})
		require.Error(t, err, "%.50v", args)
		assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind, "%v", err)
	}
	_, err := tree.Grep(t.Context(), GrepArgs{Pattern: "x", Path: "missing"}, &bytes.Buffer{})
	assertKind(t, err, slots.KindNotFound, "File not found: missing")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = tree.Grep(ctx, GrepArgs{Pattern: "x"}, &bytes.Buffer{})
	assert.Equal(t, slots.KindInterrupted, slots.AsError(err).Kind)
}

func TestGrepHandsOnAWriterThatFails(t *testing.T) {
	tree, root := newTree(t)
	put(t, root, "f", strings.Repeat("foo\n", 100_000))
	broken := errors.New("closed pipe")
	_, err := tree.Grep(t.Context(), GrepArgs{Pattern: "foo", Mode: GrepContent},
		writerFunc(func([]byte) (int, error) { return 0, broken }))
	assert.ErrorIs(t, err, broken)
}

func BenchmarkGrepLiteral(b *testing.B) {
	tree, root := newTree(b)
	put(b, root, "f", strings.Repeat("a line of ordinary text, neither long nor short\n", 200_000))
	b.SetBytes(int64(200_000 * 48))
	for b.Loop() {
		grepText(b, tree, GrepArgs{Pattern: "needle", Mode: GrepContent})
	}
}

func BenchmarkGrepExpression(b *testing.B) {
	tree, root := newTree(b)
	put(b, root, "f", strings.Repeat("a line of ordinary text, neither long nor short\n", 200_000))
	b.SetBytes(int64(200_000 * 48))
	for b.Loop() {
		grepText(b, tree, GrepArgs{Pattern: "[xyz]eedle", Mode: GrepContent})
	}
}
