package workspace

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth/slots"
	"berth/slots/need"
)

// canary is the content of the file outside. No file inside has its length.
const canary = "SECRET-OUTSIDE"

// alias is what slots call their workspace.
const alias = "/workspace"

// newTree opens a tree over a fresh directory. Beside it lies "outside", with
// a file that no test may ever get at.
func newTree(tb testing.TB) (*Tree, string) {
	tb.Helper()
	top := tb.TempDir()
	root := filepath.Join(top, "root")
	require.NoError(tb, os.Mkdir(root, 0o755))
	require.NoError(tb, os.Mkdir(filepath.Join(top, "outside"), 0o755))
	require.NoError(tb, os.WriteFile(filepath.Join(top, "outside", "secret"), []byte(canary), 0o644))
	tree, err := Open(root, alias)
	require.NoError(tb, err)
	tb.Cleanup(func() { assert.NoError(tb, tree.Close()) })
	return tree, root
}

// resolvers are the two ways to resolve a path: openat2, and the walk that
// replaces it. A test that runs with both gets its tree from newTreeWith.
var resolvers = []string{"openat2", "walk"}

func newTreeWith(t *testing.T, resolver string) (*Tree, string) {
	t.Helper()
	tree, root := newTree(t)
	if resolver == "walk" {
		tree.beneath = false
	} else if !tree.beneath {
		need.Facility(t, "openat2", unix.ENOSYS)
	}
	return tree, root
}

func put(tb testing.TB, root, name, content string) {
	tb.Helper()
	full := filepath.Join(root, name)
	require.NoError(tb, os.MkdirAll(filepath.Dir(full), 0o755))
	require.NoError(tb, os.WriteFile(full, []byte(content), 0o644))
}

func readText(tb testing.TB, tree *Tree, name string) (string, error) {
	tb.Helper()
	var out bytes.Buffer
	_, err := tree.Read(tb.Context(), ReadArgs{Path: name}, &out)
	return out.String(), err
}

func assertKind(tb testing.TB, err error, kind slots.Kind, message string) {
	tb.Helper()
	typed, ok := errors.AsType[*slots.Error](err)
	require.True(tb, ok, "want a *slots.Error, got %T %v", err, err)
	assert.Equal(tb, kind, typed.Kind)
	assert.Equal(tb, message, typed.Message)
}

const outsideText = "Access denied: path outside workspace"

func TestF01_PathsMeanWhatTheyMeanToAShell(t *testing.T) {
	for _, resolver := range resolvers {
		t.Run(resolver, func(t *testing.T) {
			tree, root := newTreeWith(t, resolver)
			put(t, root, "a/b/c", "content")
			put(t, root, "-rf", "content")
			put(t, root, " x. ", "content")
			put(t, root, "new\nline", "content")
			put(t, root, "\u202egnp.exe", "content")
			put(t, root, "not\xffutf8", "content")
			require.NoError(t, os.Symlink("a/b", filepath.Join(root, "link")))
			require.NoError(t, os.Symlink(alias+"/a/b", filepath.Join(root, "absolute")))
			require.NoError(t, os.Symlink(root+"/a/b/c", filepath.Join(root, "real")))
			for _, name := range []string{
				"a/b/c", "a//b/./c", "./a/b/c", "a/b/../b/c", "a/b/c/", "link/c", "link/../b/c", "absolute/c", "absolute/../b/c",
				"real", alias + "/a/b/c", "//workspace/./a/b/c", root + "/a/b/c", alias + "/link/c", alias + "/absolute/c",
				"-rf", " x. ", "new\nline", "\u202egnp.exe", "not\xffutf8",
			} {
				text, err := readText(t, tree, name)
				require.NoError(t, err, "%q", name)
				assert.Equal(t, "content", text, "%q", name)
			}
		})
	}
}

func TestF01_PathsThatLeaveTheTreeAreDenied(t *testing.T) {
	for _, resolver := range resolvers {
		t.Run(resolver, func(t *testing.T) {
			tree, root := newTreeWith(t, resolver)
			put(t, root, "a/file", "content")
			outside := filepath.Join(filepath.Dir(root), "outside")
			require.NoError(t, os.Symlink(outside, filepath.Join(root, "out")))
			require.NoError(t, os.Symlink("../../outside", filepath.Join(root, "a/out")))
			require.NoError(t, os.Symlink(alias+"/../outside", filepath.Join(root, "sly")))
			require.NoError(t, os.Symlink("/", filepath.Join(root, "slash")))
			for _, name := range []string{
				"..", "../outside/secret", "a/../../outside/secret", "/", "/etc/passwd", "/workspaces/x", alias + "/../outside/secret",
				"out/secret", "a/out/secret", "sly/secret", "slash/etc/passwd", outside + "/secret", root + "/../outside/secret",
				"missing/../../outside/secret", "a/file/../../../outside/secret", filepath.Dir(root),
			} {
				_, err := readText(t, tree, name)
				if name == "a/file/../../../outside/secret" { // a file is no directory, wherever the path goes then
					require.Error(t, err)
					continue
				}
				assertKind(t, err, slots.KindDenied, outsideText)
				_, err = tree.Write(t.Context(), WriteArgs{Path: name}, strings.NewReader("x"))
				require.Error(t, err, "write %q", name)
				_, err = tree.List(t.Context(), ListArgs{Path: name})
				require.Error(t, err, "list %q", name)
				_, err = tree.Mkdir(t.Context(), MkdirArgs{Path: name + "/sub"})
				require.Error(t, err, "mkdir %q", name)
				_, err = tree.Untar(t.Context(), UntarArgs{Path: name}, bytes.NewReader(make([]byte, 1024)))
				require.Error(t, err, "untar %q", name)
			}
			_, err := tree.Remove(t.Context(), RemoveArgs{Path: "out/secret", Recursive: true})
			assertKind(t, err, slots.KindDenied, outsideText)
			assertCanary(t, root)
		})
	}
}

func assertCanary(tb testing.TB, root string) {
	tb.Helper()
	outside := filepath.Join(filepath.Dir(root), "outside")
	content, err := os.ReadFile(filepath.Join(outside, "secret"))
	require.NoError(tb, err)
	assert.Equal(tb, canary, string(content))
	names, err := os.ReadDir(outside)
	require.NoError(tb, err)
	assert.Len(tb, names, 1, "something was made outside")
	info, err := os.Stat(outside)
	require.NoError(tb, err)
	assert.Equal(tb, os.FileMode(0o755), info.Mode().Perm())
}

func TestF01_ImpossiblePathsAreRefused(t *testing.T) {
	for _, resolver := range resolvers {
		t.Run(resolver, func(t *testing.T) {
			tree, _ := newTreeWith(t, resolver)
			long := strings.Repeat("x", 256)
			for name, kind := range map[string]slots.Kind{
				"a\x00b": slots.KindBadRequest, "": slots.KindBadRequest, ".": slots.KindBadRequest, long: slots.KindBadRequest,
				strings.Repeat("d/", 3000) + "x": slots.KindNotFound, strings.Repeat("d/", 100_000): slots.KindBadRequest,
			} {
				_, err := readText(t, tree, name)
				require.Error(t, err)
				assert.Equal(t, kind, slots.AsError(err).Kind, "%.20q: %.90v", name, err)
			}
		})
	}
}

func TestF03_LinksToTrapsAreRefused(t *testing.T) {
	for _, resolver := range resolvers {
		t.Run(resolver, func(t *testing.T) {
			tree, root := newTreeWith(t, resolver)
			link := func(target, name string) { require.NoError(t, os.Symlink(target, filepath.Join(root, name))) }
			link("/etc/passwd", "passwd")
			link("/proc/self/environ", "environ")
			link("/proc/self/fd/0", "stdin")
			link("missing", "dangling")
			link("loop", "loop")
			link("/workspace/loop2", "loop2")
			put(t, root, "end", "end")
			for i := range 41 {
				target := "chain" + string(rune('A'+i+1))
				if i == 40 {
					target = "end"
				}
				link(target, "chain"+string(rune('A'+i)))
			}
			for name, kind := range map[string]slots.Kind{
				"passwd": slots.KindDenied, "environ": slots.KindDenied, "stdin": slots.KindDenied, "dangling": slots.KindNotFound,
				"loop": slots.KindBadRequest, "loop2": slots.KindBadRequest, "chainA": slots.KindBadRequest,
			} {
				_, err := readText(t, tree, name)
				require.Error(t, err, name)
				assert.Equal(t, kind, slots.AsError(err).Kind, name)
			}
			text, err := readText(t, tree, "chainB")
			require.NoError(t, err, "40 links are allowed")
			assert.Equal(t, "end", text)
		})
	}
}

func TestF05_AHardLinkToSomebodyElsesFileIsDenied(t *testing.T) {
	tree, root := newTree(t)
	put(t, root, "mine", "mine")
	require.NoError(t, os.Link(filepath.Join(root, "mine"), filepath.Join(root, "mine2")))
	text, err := readText(t, tree, "mine2")
	require.NoError(t, err, "one's own hard links are fine")
	assert.Equal(t, "mine", text)
	tree.uid++ // now all of it belongs to somebody else
	_, err = readText(t, tree, "mine2")
	assertKind(t, err, slots.KindDenied, outsideText)
	_, err = tree.Edit(t.Context(), EditArgs{Path: "mine2", Old: "mine", New: "x"})
	assertKind(t, err, slots.KindDenied, outsideText)
}

func TestF06_WhatIsNoRegularFileIsRefusedAtOnce(t *testing.T) {
	for _, resolver := range resolvers {
		t.Run(resolver, func(t *testing.T) {
			tree, root := newTreeWith(t, resolver)
			require.NoError(t, syscall.Mkfifo(filepath.Join(root, "fifo"), 0o666))
			require.NoError(t, os.Mkdir(filepath.Join(root, "dir"), 0o755))
			listenUnix(t, root, "socket")
			names := []string{"fifo", "dir", "socket"}
			if err := unix.Mknod(filepath.Join(root, "zero"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err == nil {
				names = append(names, "zero")
			}
			began := time.Now()
			for _, name := range names {
				_, err := readText(t, tree, name)
				assertKind(t, err, slots.KindBadRequest, "Not a file: "+name)
				_, err = tree.Write(t.Context(), WriteArgs{Path: name}, strings.NewReader("x"))
				assertKind(t, err, slots.KindBadRequest, "Not a file: "+name)
				_, err = tree.Edit(t.Context(), EditArgs{Path: name, Old: "a", New: "b"})
				assertKind(t, err, slots.KindBadRequest, "Not a file: "+name)
				_, err = tree.Grep(t.Context(), GrepArgs{Path: name, Pattern: "x"}, &bytes.Buffer{})
				if name != "dir" {
					assertKind(t, err, slots.KindBadRequest, "Not a file: "+name)
				}
				reply, err := tree.Stat(t.Context(), StatArgs{Path: name})
				require.NoError(t, err)
				assert.NotEqual(t, "file", reply.Type)
			}
			assert.Less(t, time.Since(began), 20*time.Second)
		})
	}
}

// listenUnix leaves a socket file behind. The address goes through /proc
// because it may hold 108 bytes only.
func listenUnix(tb testing.TB, root, name string) {
	tb.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(tb, err)
	defer handle(fd).close()
	dir, err := os.Open(root)
	require.NoError(tb, err)
	defer dir.Close()
	require.NoError(tb, unix.Bind(fd, &unix.SockaddrUnix{Name: "/proc/self/fd/" + itoa(int(dir.Fd())) + "/" + name}))
}

func TestF11_PermissionsThatForbidSaySo(t *testing.T) {
	needUser(t)
	tree, root := newTree(t)
	put(t, root, "d/file", "content")
	require.NoError(t, os.Chmod(filepath.Join(root, "d"), 0))
	_, err := readText(t, tree, "d/file")
	assertKind(t, err, slots.KindDenied, "Permission denied: d/file")
	_, err = tree.Remove(t.Context(), RemoveArgs{Path: "d", Recursive: true})
	assert.NoError(t, err, "what is ours to remove is made removable")
}

func TestErrorsSurviveAProcessBoundary(t *testing.T) {
	tree, _ := newTree(t)
	_, err := readText(t, tree, "missing")
	assertKind(t, err, slots.KindNotFound, "File not found: missing")
	wire := EncodeError(err)
	assert.Equal(t, &PathError{Op: "read", Path: "missing", Kind: slots.KindNotFound, Message: "File not found: missing", Err: unix.ENOENT}, wire)
	back := error(wire.Typed())
	assertKind(t, back, slots.KindNotFound, "File not found: missing")
	inner, ok := errors.AsType[*PathError](back)
	require.True(t, ok)
	assert.Equal(t, "missing", inner.Path)
	assert.Nil(t, EncodeError(nil))
	assert.Equal(t, slots.KindInternal, EncodeError(errors.New("odd")).Kind)
	assert.Equal(t, slots.KindInternal, slots.AsError(failure("read", "x", unix.EIO)).Kind)
}

func TestOpenRefusesWhatIsNoDirectory(t *testing.T) {
	_, root := newTree(t)
	put(t, root, "file", "")
	for _, open := range []func() (*Tree, error){
		func() (*Tree, error) { return Open(filepath.Join(root, "file")) },
		func() (*Tree, error) { return Open(filepath.Join(root, "missing")) },
		func() (*Tree, error) { return Open(root, "relative") },
		func() (*Tree, error) { return Open(root, "/") },
	} {
		_, err := open()
		assert.Error(t, err)
	}
}

func TestTheWalkNeverFollowsADirectoryThatWasMovedAway(t *testing.T) {
	tree, root := newTree(t)
	require.NoError(t, os.MkdirAll(filepath.Join(root, "a/b"), 0o755))
	dir, err := tree.openDir("a/b")
	require.NoError(t, err)
	defer dir.close()
	a, err := os.Stat(filepath.Join(root, "a"))
	require.NoError(t, err)
	st := a.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // Linux
	want := inode{st.Dev, st.Ino}
	up, err := openParent(dir, want, unix.O_PATH)
	require.NoError(t, err)
	up.close()
	require.NoError(t, os.Rename(filepath.Join(root, "a/b"), filepath.Join(filepath.Dir(root), "outside/b")))
	_, err = openParent(dir, want, unix.O_PATH)
	assert.ErrorIs(t, err, errOutside)
}
