package main

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCopyMovesFilesAndTrees(t *testing.T) {
	p := start(t, "1")
	lease := p.hold("a", nil)
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		path := filepath.Join(p.dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		require.NoError(t, os.Chmod(path, mode))
	}
	write("tree/a.txt", "one", 0o644)
	write("tree/sub/run.sh", "#!/bin/sh\n", 0o755)
	write("empty", "", 0o600)
	require.NoError(t, os.Symlink("a.txt", filepath.Join(p.dir, "tree/link")))
	require.NoError(t, os.Mkdir(filepath.Join(p.dir, "tree/hollow"), 0o755))
	copies := func(from, to string) {
		t.Helper()
		got := p.run("cp", from, to)
		assert.Equal(t, ran{}, got, "%s to %s", from, to)
	}
	remote := func(command string) string {
		t.Helper()
		got := p.run("exec", "--lease", lease, "--", "sh", "-c", command)
		assert.Zero(t, got.status, "%s: %s", command, got.stderr)
		return got.stdout
	}

	copies("tree", lease+":") // into what is there
	copies("tree", lease+":new/name")
	copies("tree/.", lease+":flat/") // what is in it
	copies("tree/a.txt", lease+":tree/sub")
	copies("tree/a.txt", lease+":/workspace/b.txt")
	copies("empty", lease+":deep/er/")
	assert.Equal(t, "link -> a.txt\n", remote(`cd tree; echo "link -> $(readlink link)"`))
	assert.Equal(t, "755 644 600\n", remote("echo $(stat -c %a new/name/sub/run.sh new/name/a.txt deep/er/empty)"))
	assert.Equal(t, "oneoneone", remote("cat tree/sub/a.txt b.txt flat/a.txt; test -d tree/hollow"))

	copies(lease+":tree", "back")
	copies(lease+":tree", ".") // comes under its own name
	copies(lease+":b.txt", "sub/dir/")
	copies(lease+":b.txt", "c.txt")
	copies(lease+":b.txt", "c.txt") // over what is there
	copies(lease+":deep/er/empty", "none")
	for name, want := range map[string]string{"back/a.txt": "one", "back/sub/run.sh": "#!/bin/sh\n", "sub/dir/b.txt": "one", "c.txt": "one", "none": ""} {
		text, err := os.ReadFile(filepath.Join(p.dir, name))
		require.NoError(t, err)
		assert.Equal(t, want, string(text), name)
	}
	st, err := os.Stat(filepath.Join(p.dir, "back/sub/run.sh"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o755), st.Mode())
	target, err := os.Readlink(filepath.Join(p.dir, "back/link"))
	require.NoError(t, err)
	assert.Equal(t, "a.txt", target)
	assert.DirExists(t, filepath.Join(p.dir, "back/hollow"))
	assert.FileExists(t, filepath.Join(p.dir, "tree/sub/a.txt"))
	shown := p.run("cp", "--json", lease+":b.txt", "d.txt")
	assert.InDelta(t, 3, decode[map[string]any](t, shown.stdout)["bytes"], 0)
}

func TestCopySaysWhatIsMissingAndLeavesOutWhatIsNotSafe(t *testing.T) {
	p := start(t, "1")
	lease := p.hold("a", nil)
	require.NoError(t, os.WriteFile(filepath.Join(p.dir, "file"), []byte("x"), 0o600))
	require.NoError(t, syscall.Mkfifo(filepath.Join(p.dir, "fifo"), 0o600))
	for _, c := range []struct {
		from, to string
		status   int
		says     string
	}{
		{"nothing", lease + ":", 1, "nothing: no such file"},
		{lease + ":nothing", "here", 1, "nothing"},
		{lease + ":../../etc/passwd", "here", 1, "outside"},
		{"file", lease + ":../../tmp/x", 1, "outside"},
		{"fifo", lease + ":", 1, "neither a file nor a directory"},
		{"file", "other", 2, "one of the two must be in a slot"},
		{lease + ":a", lease + ":b", 2, "one of the two must be in a slot"},
		{"file", "gone-x:slot_0:1:a", 1, "gone"},
		{"file", "file/" + lease, 2, "one of the two"},
	} {
		got := p.run("cp", c.from, c.to)
		assert.Equal(t, c.status, got.status, "%s to %s: %s", c.from, c.to, got.stderr)
		assert.Contains(t, got.stderr, c.says, "%s to %s", c.from, c.to)
	}
	assert.NoFileExists(t, filepath.Join(p.dir, "here"))

	require.Zero(t, p.run("exec", "--lease", lease, "--", "sh", "-c",
		"mkdir t; echo ok > t/good; ln -s /etc/passwd t/out; mkfifo t/fifo").status)
	got := p.run("cp", lease+":t", "t")
	assert.Equal(t, 1, got.status)
	assert.Contains(t, got.stderr, "copied all but 2 entries")
	assert.FileExists(t, filepath.Join(p.dir, "t/good"))
	_, err := os.Lstat(filepath.Join(p.dir, "t/out"))
	require.ErrorIs(t, err, os.ErrNotExist)

	require.NoError(t, os.Mkdir(filepath.Join(p.dir, "mixed"), 0o755))
	require.NoError(t, syscall.Mkfifo(filepath.Join(p.dir, "mixed/fifo"), 0o600))
	got = p.run("cp", "mixed", lease+":")
	assert.Equal(t, 1, got.status)
	assert.Contains(t, got.stderr, "fifo")
}

func TestCopySaysWhatIsNeitherFileNorDirectory(t *testing.T) {
	p := start(t, "1")
	lease := p.hold("a", nil)
	require.Zero(t, p.run("exec", "--lease", lease, "--", "sh", "-c",
		"mkdir -p d/d only; mkfifo pipe d/d/d only/only; ln -s pipe link; ln -s d to; echo ok > d/good").status)
	for _, name := range []string{"pipe", "/workspace/pipe", "./pipe", "link", "only/only"} {
		got := p.run("cp", lease+":"+name, "x")
		assert.Equal(t, 1, got.status, name)
		assert.Equal(t, "berth: copy: "+name+" is neither a file nor a directory\n", got.stderr)
		assert.NoDirExists(t, filepath.Join(p.dir, "x"), name)
	}
	for name, says := range map[string]string{
		"only": "all but 1 entries: only/only (fifo)", "to": "all but 1 entries: to/d/d (fifo)", "": "all but 3 entries: d/d/d (fifo), only/only (fifo), pipe (fifo)",
	} {
		got := p.run("cp", lease+":"+name, "copy-"+name+"/")
		assert.Equal(t, 1, got.status, name)
		assert.Contains(t, got.stderr, says)
	}
	assert.FileExists(t, filepath.Join(p.dir, "copy-/d/good"))
	assert.FileExists(t, filepath.Join(p.dir, "copy-to/to/good"))
}

func TestTheBarOfACopyFitsItsLine(t *testing.T) {
	p := &progress{out: &bytes.Buffer{}, name: "a/very/long/name/of/a/file/that/goes/on", total: 4 << 20, moved: 1 << 20, begun: time.Now()}
	line := p.line(60)
	assert.LessOrEqual(t, len([]rune(line)), 60, line)
	assert.Contains(t, line, "[#####...............]  25%  1.0 MiB")
	p.total = 0
	assert.NotContains(t, p.line(60), "%", "of a tree nobody knows how much it is")
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 5 << 40: "5.0 TiB"} {
		assert.Equal(t, want, byteText(n))
	}
}
