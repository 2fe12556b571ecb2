package holder_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth/slots"
	"berth/slots/holder"
	"berth/slots/sandbox/sandboxtest"
	"berth/slots/workspace"
)

func startSpawner(t testing.TB) *holder.Spawner {
	t.Helper()
	s, err := holder.StartSpawner(t.Context(), holder.SpawnerConfig{Exe: sandboxtest.Agent(t)})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// plain is a plan that confines nothing.
func plain(t testing.TB) holder.Plan {
	t.Helper()
	dir := sandboxtest.DataDir(t)
	for _, d := range []string{"workspace", "run"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, d), 0o755))
	}
	return holder.Plan{
		Slot: "slot", Dir: dir, Workspace: dir + "/workspace", Run: dir + "/run", Output: dir + "/run/output",
		Env: []string{"PATH=/usr/bin:/bin"}, Confine: sandboxtest.Agent(t), Threads: 4,
	}
}

func spawn(t testing.TB, s *holder.Spawner, p holder.Plan) *holder.Holder {
	t.Helper()
	h, err := s.Spawn(t.Context(), p, nil)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, h.Close(context.Background())) })
	return h
}

// start runs argv with its output on a pipe.
func start(t testing.TB, h *holder.Holder, r holder.Request) (*holder.Process, *os.File) {
	t.Helper()
	read, write, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { read.Close() })
	r.Files = []int{-1, int(write.Fd()), int(write.Fd())}
	p, err := h.Start(r)
	write.Close()
	require.NoError(t, err)
	return p, read
}

func TestAHolderRunsProcessesAndOperations(t *testing.T) {
	h := spawn(t, startSpawner(t), plain(t))
	assert.Positive(t, h.PID())
	p, out := start(t, h, holder.Request{Argv: []string{"sh", "-c", "echo $A; pwd; exit 7"}, Env: []string{"A=b"}})
	exit, err := p.Wait(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 7, exit.Status.ExitStatus())
	assert.True(t, exit.Alone)
	assert.Positive(t, exit.MaxRSS)
	text, err := io.ReadAll(out)
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(string(text), "b\n/") && strings.HasSuffix(string(text), "/workspace\n"), "%s", text)

	require.NoError(t, h.Do(t.Context(), "write", workspace.WriteArgs{Path: "f"}, nil, strings.NewReader("text"), nil))
	var read bytes.Buffer
	require.NoError(t, h.Do(t.Context(), "read", workspace.ReadArgs{Path: "f", Length: -1}, nil, nil, &read))
	assert.Equal(t, "text", read.String())
}

// What a holder does to its own threads is not its commands' business.
func TestCommandsSleepAsPreciselyAsAnywhere(t *testing.T) {
	own, err := os.ReadFile("/proc/self/timerslack_ns")
	if err != nil {
		t.Skip("this kernel does not tell a timer slack:", err)
	}
	h := spawn(t, startSpawner(t), plain(t))
	_, out := start(t, h, holder.Request{Argv: []string{"cat", "/proc/self/timerslack_ns"}})
	text, err := io.ReadAll(out)
	require.NoError(t, err)
	assert.Equal(t, string(own), string(text))
	p, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", h.PID()))
	require.NoError(t, err)
	slack := map[string]int{}
	for _, thread := range p {
		if text, err := os.ReadFile("/proc/" + thread.Name() + "/timerslack_ns"); err == nil {
			slack[string(text)]++
		}
	}
	if len(slack) == 0 {
		t.Log("another thread's slack takes CAP_SYS_NICE")
		return
	}
	assert.Contains(t, slack, "20000000\n", "the runtime's watching thread: %v", slack)
	assert.LessOrEqual(t, slack["20000000\n"], len(p)/2, "the others are on time: %v", slack)
}

func TestRequestsThatCannotBeMetNameTheirStage(t *testing.T) {
	h := spawn(t, startSpawner(t), plain(t))
	for stage, r := range map[string]holder.Request{
		"lookup": {Argv: []string{"no-such-program"}}, "exec": {Argv: []string{"/etc/passwd"}},
		"cwd": {Argv: []string{"true"}, Cwd: "missing"}, "request": {},
	} {
		p, _ := start(t, h, r)
		_, err := p.Wait(t.Context())
		var e *holder.StageError
		require.ErrorAs(t, err, &e, stage)
		assert.Equal(t, stage, e.Stage)
	}
}

func TestWaitEndsWithItsContextAndCanBeTakenUpAgain(t *testing.T) {
	h := spawn(t, startSpawner(t), plain(t))
	p, _ := start(t, h, holder.Request{Argv: []string{"sleep", "0.2"}})
	cause := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, cause)
	defer cancel()
	_, err := p.Wait(ctx)
	require.ErrorIs(t, err, cause)
	exit, err := p.Wait(t.Context())
	require.NoError(t, err)
	assert.Zero(t, exit.Status.ExitStatus())
	assert.GreaterOrEqual(t, exit.Run, 150*time.Millisecond)
}

func TestSweepsSpareWhatIsKept(t *testing.T) {
	h := spawn(t, startSpawner(t), plain(t))
	kept, _ := start(t, h, holder.Request{Argv: []string{"sh", "-c", "sleep 1001 & sleep 1001"}, Keep: true, Confine: []string{holder.ConfineSubreaper}})
	gone, _ := start(t, h, holder.Request{Argv: []string{"sh", "-c", "trap '' TERM; setsid sleep 1002 & sleep 1002"}})
	time.Sleep(50 * time.Millisecond)
	_, left, err := h.Sweep(t.Context())
	require.NoError(t, err)
	assert.Zero(t, left)
	exit, err := gone.Wait(t.Context())
	require.NoError(t, err)
	assert.True(t, exit.Status.Signaled())
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = kept.Wait(ctx)
	require.Error(t, err, "it runs on")
	killed, left, err := kept.SweepAlso(t.Context())
	require.NoError(t, err)
	assert.Zero(t, left)
	assert.GreaterOrEqual(t, killed, 2)
	_, err = kept.Wait(t.Context())
	assert.NoError(t, err)
}

// Twenty lineages of processes, in which each forks and ends.
func TestASweepCatchesWhoForksAndEnds(t *testing.T) {
	h := spawn(t, startSpawner(t), plain(t))
	worm := filepath.Join(t.TempDir(), "worm")
	require.NoError(t, os.WriteFile(worm, []byte("#!/bin/sh\ntrap '' HUP TERM\n\"$0\" &\n"), 0o755))
	for range 3 {
		p, _ := start(t, h, holder.Request{Argv: []string{"sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do " + worm + "; done"}})
		exit, err := p.Wait(t.Context())
		require.NoError(t, err)
		require.False(t, exit.Alone)
		killed, left, err := h.Sweep(t.Context())
		require.NoError(t, err)
		assert.Zero(t, left)
		assert.Positive(t, killed)
		again, _, err := h.Sweep(t.Context())
		require.NoError(t, err)
		assert.Zero(t, again, "none was missed")
	}
}

func TestAKilledHolderEndsItsCallsAndItsProcesses(t *testing.T) {
	s := startSpawner(t)
	h := spawn(t, s, plain(t))
	p, out := start(t, h, holder.Request{Argv: []string{"sh", "-c", "setsid sleep 1003 & echo up; sleep 1003"}})
	_, err := out.Read(make([]byte, 8))
	require.NoError(t, err)
	require.NoError(t, unix.Kill(h.PID(), unix.SIGKILL))
	_, err = p.Wait(t.Context())
	require.ErrorIs(t, err, holder.ErrGone)
	<-h.Done()
	_, err = h.Start(holder.Request{Argv: []string{"true"}})
	require.ErrorIs(t, err, holder.ErrGone)
	require.ErrorIs(t, h.Do(t.Context(), "stat", map[string]string{"path": "."}, nil, nil, nil), holder.ErrGone)
	left, err := s.Sweep(t.Context(), 0)
	require.NoError(t, err)
	assert.Zero(t, left)
	out.SetReadDeadline(time.Now().Add(2 * time.Second))
	_, err = io.ReadAll(out)
	assert.NoError(t, err, "nobody holds the output any more")
}

func TestAStartThatFailsNamesItsStageAndLeaksNothing(t *testing.T) {
	s := startSpawner(t)
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(entries)
	}
	good := plain(t)
	fds, goroutines := open(), runtime.NumGoroutine()
	for stage, change := range map[string]func(*holder.Plan){
		"open workspace":    func(p *holder.Plan) { p.Workspace = "/no/such/dir" },
		"sandbox directory": func(p *holder.Plan) { p.Dir = "/no/such/dir" },
		"become server":     func(p *holder.Plan) { p.Confine = "/no/such/program" },
	} {
		for range 5 {
			p := good
			change(&p)
			_, err := s.Spawn(t.Context(), p, nil)
			var e *holder.StageError
			require.ErrorAs(t, err, &e, stage)
			assert.Equal(t, stage, e.Stage)
		}
	}
	refused := errors.New("no cgroup today")
	for range 5 {
		_, err := s.Spawn(t.Context(), good, func(int) error { return refused })
		require.ErrorIs(t, err, refused)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 5 {
		_, err := s.Spawn(ended, good, nil)
		require.ErrorIs(t, err, context.Canceled)
	}
	for range 300 {
		if open() <= fds && runtime.NumGoroutine() <= goroutines {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	assert.LessOrEqual(t, open(), fds)
	assert.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
	spawn(t, s, good)
}

func TestAHolderEndsWithItsConnectionAndASpawnerWithItsOwn(t *testing.T) {
	s, err := holder.StartSpawner(t.Context(), holder.SpawnerConfig{Exe: sandboxtest.Agent(t)})
	require.NoError(t, err)
	h, err := s.Spawn(t.Context(), plain(t), nil)
	require.NoError(t, err)
	p, out := start(t, h, holder.Request{Argv: []string{"sh", "-c", "trap '' TERM; setsid sh -c 'echo up; sleep 1004' & sleep 1004"}})
	_, err = out.Read(make([]byte, 8))
	require.NoError(t, err)
	began := time.Now()
	require.NoError(t, s.Close())
	assert.Less(t, time.Since(began), 20*time.Second)
	<-s.Done()
	_, err = p.Wait(t.Context())
	require.ErrorIs(t, err, holder.ErrGone)
	require.NoError(t, h.Close(t.Context()))
	require.Error(t, unix.Kill(h.PID(), 0))
	out.SetReadDeadline(time.Now().Add(2 * time.Second))
	_, err = io.ReadAll(out)
	require.NoError(t, err, "every process is gone")
	_, err = s.Spawn(t.Context(), plain(t), nil)
	assert.Error(t, err)
}

func TestASpawnerThatCannotStartSaysSo(t *testing.T) {
	_, err := holder.StartSpawner(t.Context(), holder.SpawnerConfig{Exe: "/no/such/program"})
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = holder.StartSpawner(t.Context(), holder.SpawnerConfig{Exe: "/bin/true"})
	assert.Error(t, err, "a program that is no agent")
}

func TestOperationsKeepTheKindOfTheirErrors(t *testing.T) {
	h := spawn(t, startSpawner(t), plain(t))
	err := h.Do(t.Context(), "read", workspace.ReadArgs{Path: "missing", Length: -1}, nil, nil, nil)
	var e *slots.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, slots.KindNotFound, e.Kind)
	assert.Error(t, h.Do(t.Context(), "no-such-operation", nil, nil, nil, nil))
}

func TestPassedFilesAreNamedOnce(t *testing.T) {
	h := spawn(t, startSpawner(t), plain(t))
	f, path, err := h.OpenFile(t.Context(), "spill")
	require.NoError(t, err)
	defer f.Close()
	assert.True(t, strings.HasSuffix(path, "/run/output/spill"))
	_, _, err = h.OpenFile(t.Context(), "spill")
	require.Error(t, err)
	pipes, err := h.OpenPipes(t.Context(), "p")
	require.NoError(t, err)
	for _, p := range pipes {
		assert.FileExists(t, p.Path)
		unix.Close(p.Read)
		unix.Close(p.Write)
	}
	require.NoError(t, h.DropPipes(t.Context(), "p"))
	assert.NoFileExists(t, pipes[0].Path)
}
