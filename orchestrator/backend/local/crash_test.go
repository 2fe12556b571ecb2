package local_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
	"berth/orchestrator/backend/local"
	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

// script is a program in the place of sandboxd.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sandboxd")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700)) //nolint:gosec // it is run
	return path
}

// swap replaces the program that runs at the next start.
func swap(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", []byte("#!/bin/sh\n"+text+"\n"), 0o700)) //nolint:gosec // it is run
	require.NoError(t, os.Rename(path+".new", path))
}

func TestACrashedContainerComesBackWithItsLeases(t *testing.T) {
	c := config(t)
	b := open(t, c)
	s := spec("a")
	s.Slots = 2
	s.Env = map[string]string{"GREETING": "hello"}
	a := start(t, b, s)
	held := lease(t, a)
	next := watch(t, b)
	next(backend.Up)
	for range 2 {
		kill(t, pidOf(t, c.Dir, "a"))
		begun := time.Now()
		eventuallyLeased(t, a, held)
		t.Logf("back after %v", time.Since(begun))
	}
	assert.Equal(t, []backend.Container{a}, list(t, b))
	require.NoError(t, b.Stop(soon(t), "a", time.Second))
	assert.Equal(t, a, next(backend.Down).Container, "nobody heard of the crashes")
}

func TestAContainerWhosePortIsTakenMovesAndSaysSo(t *testing.T) {
	c := config(t)
	b, err := local.Open(t.Context(), c)
	require.NoError(t, err)
	a := start(t, b, spec("a"))
	held := lease(t, a)
	require.NoError(t, b.Close())
	listener, err := net.Listen("tcp", strings.TrimPrefix(a.URL, "http://"))
	require.NoError(t, err)
	defer listener.Close()
	b = open(t, c)
	moved := watch(t, b)(backend.Up).Container
	assert.NotEqual(t, a.URL, moved.URL)
	a.URL = moved.URL
	assert.Equal(t, a, moved)
	eventuallyLeased(t, moved, held)
}

func TestAContainerThatKeepsCrashingIsGivenUp(t *testing.T) {
	c := config(t)
	agent := c.Binary
	c.Binary = script(t, "exec "+agent+` "$@"`)
	b := open(t, c)
	a := start(t, b, spec("a"))
	next := watch(t, b)
	next(backend.Up)
	runs := filepath.Join(t.TempDir(), "runs")
	swap(t, c.Binary, "echo run >> "+runs+`; echo '{"@level":"error","@message":"ended","error":"disk is on fire"}' >&2; exit 1`)
	kill(t, pidOf(t, c.Dir, "a"))
	down := next(backend.Down)
	assert.Equal(t, a, down.Container)
	assert.Contains(t, down.Reason, "ended with status 1: disk is on fire")
	text, err := os.ReadFile(runs)
	require.NoError(t, err)
	assert.Equal(t, c.Backoff.Crashes-1, strings.Count(string(text), "run"), "the first crash counts")
	assert.Empty(t, list(t, b))
	assert.NoDirExists(t, filepath.Join(c.Dir, "a", "data"))
	assert.NoFileExists(t, filepath.Join(c.Dir, "a", "token"))
	assert.FileExists(t, filepath.Join(c.Dir, "a", "log"), "for whoever wants to know why")

	// Of many that were given up, the last are kept.
	state, err := os.ReadFile(filepath.Join(c.Dir, "a", "state"))
	require.NoError(t, err)
	for n := range 10 {
		dir := filepath.Join(c.Dir, "old-"+strconv.Itoa(n))
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "state"), bytes.ReplaceAll(state, []byte(`"a"`), []byte(`"old-`+strconv.Itoa(n)+`"`)), 0o600))
		at := time.Now().Add(-time.Duration(n+1) * time.Minute)
		require.NoError(t, os.Chtimes(filepath.Join(dir, "state"), at, at))
	}
	again := open(t, c)
	assert.Empty(t, list(t, again))
	left, err := filepath.Glob(filepath.Join(c.Dir, "*", "state"))
	require.NoError(t, err)
	assert.Len(t, left, 8)
	assert.DirExists(t, filepath.Join(c.Dir, "old-6"))
	assert.NoDirExists(t, filepath.Join(c.Dir, "old-7"), "the oldest go")
	_, err = again.Start(soon(t), spec("a"))
	assert.Equal(t, slots.KindConflict, slots.AsError(err).Kind)
	require.ErrorContains(t, err, "disk is on fire")
	require.NoError(t, again.Stop(soon(t), "a", 0))
	assert.NoDirExists(t, filepath.Join(c.Dir, "a"))
}

func TestIsolationThatCannotBeGivenIsFinal(t *testing.T) {
	c := config(t)
	agent := c.Binary
	c.Args = []string{"--isolation-attempt", "none"}
	b := open(t, c)
	s := spec("a")
	s.Isolation = "landlock"
	_, err := b.Start(soon(t), s)
	e := slots.AsError(err)
	assert.Equal(t, slots.KindInternal, e.Kind)
	assert.False(t, e.Retryable)
	require.ErrorContains(t, err, "status 78")
	require.ErrorContains(t, err, "landlock", "the program's last words")
	assert.NoDirExists(t, filepath.Join(c.Dir, "a"))

	c = config(t)
	c.Binary = script(t, "exec "+agent+` "$@"`)
	c.Backoff.Crashes = 1000
	b = open(t, c)
	start(t, b, spec("a"))
	next := watch(t, b)
	next(backend.Up)
	swap(t, c.Binary, "exec "+agent+` "$@" --isolation-attempt none --isolation-require landlock`)
	kill(t, pidOf(t, c.Dir, "a"))
	assert.Contains(t, next(backend.Down).Reason, "status 78: ")
}

func TestAStartThatFailsHasLastWordsAndLeavesNothing(t *testing.T) {
	for what, c := range map[string]struct{ program, words string }{
		"a log line":    {`echo '{"@level":"info","@message":"hello"}'; echo '{"@level":"error","error":"no space left"}' >&2; exit 1`, "status 1: no space left"},
		"a usage error": {`echo "sandboxd serve: usage: unknown flag" >&2; exit 64`, "status 64: sandboxd serve: usage: unknown flag"},
		"a panic":       {`echo '{"@message":"hello"}'; echo "panic: oh no"; echo; echo "goroutine 1"; exit 2`, "status 2: panic: oh no\n\ngoroutine 1"},
		"nothing":       {`kill -9 $$`, "ended by signal 9"},
		"no answer":     {`trap "" TERM; while :; do sleep 0.05; done`, "not ready after 300ms"},
	} {
		t.Run(what, func(t *testing.T) {
			config := local.Config{Dir: sandboxtest.DataDir(t), Binary: script(t, c.program), StartTimeout: 300 * time.Millisecond}
			b := open(t, config)
			_, err := b.Start(soon(t), spec("a"))
			assert.Equal(t, slots.KindInternal, slots.AsError(err).Kind)
			require.ErrorContains(t, err, c.words)
			assert.NoDirExists(t, filepath.Join(config.Dir, "a"))
		})
	}
	_, err := local.Open(t.Context(), local.Config{Dir: t.TempDir(), Binary: "/does/not/exist"})
	require.ErrorContains(t, err, "find sandboxd")
	_, err = local.Open(t.Context(), local.Config{Binary: "/bin/true"})
	assert.ErrorContains(t, err, "no directory")
}

func TestAContainerThatDoesNotEndIsKilledAfterItsGrace(t *testing.T) {
	c := config(t)
	c.Binary = script(t, "trap '' TERM\n"+c.Binary+` "$@" & wait; while :; do sleep 0.05; done`)
	b := open(t, c)
	start(t, b, spec("a"))
	inner := processes(c.Dir)
	require.NoError(t, b.Stop(soon(t), "a", time.Millisecond))
	assert.NoDirExists(t, filepath.Join(c.Dir, "a"))
	for _, pid := range inner { // the script's child is no business of ours
		if p, err := os.FindProcess(pid); err == nil {
			p.Kill()
		}
	}
	require.Eventually(t, func() bool { return len(processes(c.Dir)) == 0 }, patience, 5*time.Millisecond)
}

func TestThereIsRoomForAsManyAsItWasTold(t *testing.T) {
	c := config(t)
	c.Max = 1
	b := open(t, c)
	start(t, b, spec("a"))
	_, err := b.Start(soon(t), spec("b"))
	assert.Equal(t, slots.KindPoolExhausted, slots.AsError(err).Kind)
	assert.True(t, slots.AsError(err).Retryable)
	start(t, b, spec("a"))
}

func TestSecretsAreWhereNobodyElseCanRead(t *testing.T) {
	t.Setenv("SANDBOXD_NOTHING", "would be refused")
	c := config(t)
	b := open(t, c)
	s := spec("a")
	s.Env = map[string]string{"KEY": "s3cret-of-the-slots"}
	a := start(t, b, s)
	pid := pidOf(t, c.Dir, "a")
	for _, name := range []string{"cmdline", "environ"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		if name == "cmdline" || err == nil { // nobody but root reads its environment
			assert.NotContains(t, string(text), a.Token, name)
		}
		if name == "cmdline" {
			assert.NotContains(t, string(text), "s3cret", "arguments are public")
		}
	}
	own, files := filepath.Join(c.Dir, "a"), 0
	require.NoError(t, filepath.WalkDir(own, func(path string, entry fs.DirEntry, err error) error {
		if entry.IsDir() && entry.Name() == "data" {
			return fs.SkipDir // sandboxd's own
		}
		if err != nil || entry.IsDir() {
			return err
		}
		st, err := entry.Info()
		require.NoError(t, err)
		assert.Equal(t, fs.FileMode(0o600), st.Mode().Perm(), path)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		if entry.Name() != "token" {
			assert.NotContains(t, string(text), a.Token, path)
		}
		if entry.Name() != "state" {
			assert.NotContains(t, string(text), "s3cret", path)
		}
		files++
		return nil
	}))
	assert.GreaterOrEqual(t, files, 4, "lock, log, state, token")
}

func TestASlotReadsNothingOfItsOrNeighbouringContainers(t *testing.T) {
	for _, level := range []string{"landlock", "ns"} {
		t.Run(level, func(t *testing.T) {
			c := config(t)
			c.Args = []string{"--isolation-attempt", level, "--cgroups", "off"}
			b := open(t, c)
			s := spec("a")
			s.Isolation = level
			a, err := b.Start(soon(t), s)
			if err != nil && strings.Contains(err.Error(), "status 78") {
				need.Facility(t, map[string]string{"landlock": "landlock", "ns": "userns"}[level], err)
			}
			require.NoError(t, err)
			s.ID = "b"
			neighbour := start(t, b, s)
			remote := dial(t, a)
			defer remote.Close()
			for _, file := range []string{"a/token", "a/state", "a/log", "b/token", "b/state"} {
				args, err := json.Marshal(map[string]string{"command": "cat " + filepath.Join(c.Dir, file)})
				require.NoError(t, err)
				r, err := remote.Execute(soon(t), api.Call{SlotID: "slot_0", Tool: "bash", Args: args})
				require.NoError(t, err)
				assert.False(t, r.Success, "%s: %s", file, r.Output)
				assert.NotContains(t, r.Output, neighbour.Token)
			}
		})
	}
}

func TestNothingLeaksOverManyLives(t *testing.T) {
	c := config(t)
	b := open(t, c)
	round := func(i int) {
		id := fmt.Sprintf("c-%d", i)
		a := start(t, b, spec(id))
		held := lease(t, a)
		kill(t, pidOf(t, c.Dir, id))
		eventuallyLeased(t, a, held)
		require.NoError(t, b.Stop(soon(t), id, time.Second))
	}
	round(0)
	before := descriptors(t)
	for i := range 3 {
		round(i + 1)
	}
	assert.Eventually(t, func() bool { return len(descriptors(t)) <= len(before)+2 }, 30*time.Second, 10*time.Millisecond,
		"before %q\nafter %q", before, descriptors(t))
	assert.Empty(t, processes(c.Dir))
	left, err := os.ReadDir(c.Dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// descriptors lists what our process has open.
func descriptors(t *testing.T) (out []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, entry := range entries {
		target, _ := os.Readlink("/proc/self/fd/" + entry.Name()) // the listing's own is closed again
		out = append(out, target)
	}
	return out
}
