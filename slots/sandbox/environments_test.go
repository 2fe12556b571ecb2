package sandbox_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
	"berth/slots/sandbox"
	"berth/slots/sandbox/sandboxtest"
)

// everyWay runs the test at each way to hold slots apart that works here.
func everyWay(t *testing.T, test func(t *testing.T, h *sandbox.Host)) {
	for _, level := range []slots.Level{slots.LevelLandlock, slots.LevelUID, slots.LevelUIDLandlock, slots.LevelNS} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			h := openHost(t, atLevel(level))
			if h.Isolation().Level != level {
				t.Skipf("this machine gives %s", h.Isolation().Level)
			}
			test(t, h)
		})
	}
}

func begin(t *testing.T, h *sandbox.Host, tree string, read ...string) *sandbox.Build {
	t.Helper()
	b, err := h.Environments().Build(t.Context(), tree, read)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, b.Close(context.Background())) })
	return b
}

func building(t *testing.T, b *sandbox.Build, text string) (string, slots.Exit) {
	t.Helper()
	var out bytes.Buffer
	ctx, cancel := context.WithTimeoutCause(t.Context(), 60*time.Second, sandbox.ErrTimedOut)
	defer cancel()
	exit, err := b.Run(ctx, sandbox.Command{Argv: []string{"bash", "-c", text, "bash", b.Path()}, Stdout: &out, Stderr: &out})
	require.NoError(t, err)
	return out.String(), exit
}

func TestAnEnvironmentIsBuiltWhereSlotsThatAreOpenFindIt(t *testing.T) {
	everyWay(t, func(t *testing.T, h *sandbox.Host) {
		s := open(t, h, "slot_0")
		root := h.Environments().Root()
		_, _, exit := bash(t, s, "cat "+root+"/k/bin/x")
		require.NotEqual(t, 0, exit.Code)

		b := begin(t, h, "k.1")
		out, exit := building(t, b, `mkdir $1/bin && printf '#!/bin/sh\necho from $0\n' > $1/bin/x && chmod 4755 $1/bin/x && ln -s bin/x $1/y && mkfifo $1/pipe && chmod 700 $1/bin`)
		require.Equal(t, 0, exit.Code, out)
		_, _, exit = bash(t, s, "cat "+root+"/k/bin/x")
		require.NotEqual(t, 0, exit.Code, "it is not in force yet")
		require.NoError(t, b.Seal(t.Context()))
		require.NoError(t, h.Environments().Publish("k", "k.1"))

		assert.Equal(t, "from "+root+"/k/bin/x\n", output(t, s, root+"/k/bin/x"))
		assert.Equal(t, "bin\ny\n", output(t, s, "ls -A "+root+"/k/"), "what is no file, link or directory is gone")
		assert.Equal(t, "555\n555\n", output(t, s, "stat -c %a "+root+"/k.1 "+root+"/k/bin/x"))
		for _, harm := range []string{
			"echo > %/k/bin/x", "rm -f %/k/bin/x", "touch %/k/new", "chmod u+w %/k.1 && touch %/k/new", "ln -sfn /tmp %/k", "mkdir %/other",
			"mv %/k.1 %/k.2", "touch -d yesterday %/k/bin/x", "ln %/k/bin/x %/k/z",
		} {
			if h.Isolation().Level == slots.LevelLandlock && strings.HasPrefix(harm, "touch -d") {
				continue // of one uid: attributes are not held apart, which the isolation names as a weakness
			}
			_, _, exit := bash(t, s, "set -e; r="+root+"; "+string(bytes.ReplaceAll([]byte(harm), []byte("%"), []byte("$r"))))
			assert.NotEqual(t, 0, exit.Code, harm)
		}
		receipt, err := s.Reset(t.Context())
		require.NoError(t, err)
		assert.True(t, receipt.Clean, "%+v", receipt)
		assert.Equal(t, "from "+root+"/k/bin/x\n", output(t, s, root+"/k/bin/x"), "it is there for the next tenant too")
	})
}

func TestABuildReachesItsOwnEnvironmentAlone(t *testing.T) {
	everyWay(t, func(t *testing.T, h *sandbox.Host) {
		s := open(t, h, "slot_0")
		output(t, s, "echo mine > file")
		first := begin(t, h, "first.1")
		out, exit := building(t, first, "echo good > $1/file")
		require.Equal(t, 0, exit.Code, out)
		require.NoError(t, first.Seal(t.Context()))
		require.NoError(t, h.Environments().Publish("first", "first.1"))

		given := sandboxtest.DataDir(t)
		require.NoError(t, os.Chmod(given, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(given, "wheel"), []byte("wheel"), 0o644))
		evil := begin(t, h, "evil.1", given)
		out, exit = building(t, evil, "cat "+given+"/wheel; echo > "+given+"/more")
		assert.NotEqual(t, 0, exit.Code, "what it may read it may not write")
		assert.Contains(t, out, "wheel")
		workspace, err := filepath.EvalSymlinks(s.Workspace())
		require.NoError(t, err)
		agent := filepath.Dir(filepath.Dir(filepath.Dir(workspace)))
		root := h.Environments().Root()
		for _, harm := range []string{
			"echo bad > " + root + "/first/file", "echo bad > " + root + "/first.1/file",
			"cat " + workspace + "/file", "echo bad > " + workspace + "/file", "touch " + agent + "/bad", "touch " + agent + "/environments/bad",
			"ls " + agent, "touch /usr/bad",
		} {
			out, exit := building(t, evil, "set -e; "+harm)
			assert.NotEqual(t, 0, exit.Code, "%s: %s", harm, out)
		}
		// In a root of its own these have an effect there, and go with it.
		building(t, evil, "mkdir "+root+"/evil.2; ln -sfn /tmp "+root+"/first; rm -rf "+root+"/first.1/*; chmod 777 "+root)
		assert.Equal(t, "good\n", output(t, s, "cat "+root+"/first/file"))
		assert.Equal(t, "mine\n", output(t, s, "cat file"))
		require.NoError(t, evil.Close(context.Background()))
		trees, links, err := h.Environments().List()
		require.NoError(t, err)
		assert.ElementsMatch(t, []string{"first.1", "evil.1"}, trees)
		assert.Equal(t, map[string]string{"first": "first.1"}, links)
		require.NoError(t, h.Environments().Discard("evil.1"))
		require.NoError(t, h.Environments().Discard("evil.1"), "it is gone already")
	})
}

func TestNothingOfABuildOutlivesItsSeal(t *testing.T) {
	everyWay(t, func(t *testing.T, h *sandbox.Host) {
		word := marker()
		b := begin(t, h, "k.1")
		out, exit := building(t, b, "exec 9> $1/file; setsid bash -c 'trap \"\" TERM HUP; exec sleep "+word+"' > /dev/null 2>&1 & sleep 0.2; true")
		require.Equal(t, 0, exit.Code, out)
		require.NoError(t, b.Seal(t.Context()))
		assert.Empty(t, alive(word))
	})
}

func TestATreeThatIsTooDeepIsNotSealed(t *testing.T) {
	h := openHost(t, atLevel(slots.LevelNS))
	b := begin(t, h, "k.1")
	out, exit := building(t, b, "cd $1; for i in $(seq 400); do mkdir d && cd -P d || exit 1; done")
	require.Equal(t, 0, exit.Code, out)
	require.ErrorContains(t, b.Seal(t.Context()), "deep")
	require.NoError(t, h.Environments().Discard("k.1"))
}

func TestAFileWithANameOutsideIsNotSealed(t *testing.T) {
	h := openHost(t, atLevel(slots.LevelNS))
	b := begin(t, h, "k.1")
	out, exit := building(t, b, "echo x > $1/a; ln $1/a $1/b; echo y > $1/c")
	require.Equal(t, 0, exit.Code, out)
	_, links, err := h.Environments().List()
	require.NoError(t, err)
	assert.Empty(t, links)
	s := open(t, h, "slot_0")
	dir := filepath.Dir(filepath.Dir(s.Workspace()))
	at := filepath.Join(filepath.Dir(dir), "environments", "k.1")
	require.NoError(t, os.Link(filepath.Join(at, "c"), filepath.Join(filepath.Dir(dir), "outside")))
	before, err := os.Stat(filepath.Join(at, "a"))
	require.NoError(t, err)
	require.ErrorContains(t, b.Seal(t.Context()), "another name outside")
	after, err := os.Stat(filepath.Join(at, "a"))
	require.NoError(t, err)
	assert.Equal(t, before.Mode(), after.Mode(), "nothing was changed before all was looked at")
	require.NoError(t, os.Remove(filepath.Join(filepath.Dir(dir), "outside")))
	require.NoError(t, b.Seal(t.Context()), "two names in the tree are well")
}
