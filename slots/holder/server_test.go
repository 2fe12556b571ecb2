package holder

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestMergeEnvLetsTheLastOfANameWin(t *testing.T) {
	for _, c := range []struct{ env, extra, want []string }{
		{nil, nil, []string{}},
		{[]string{"A=1", "B=2"}, nil, []string{"A=1", "B=2"}},
		{[]string{"A=1", "B=2"}, []string{"A=3", "C="}, []string{"A=3", "B=2", "C="}},
		{nil, []string{"A=1", "A=2"}, []string{"A=2"}},
		{[]string{"A=1"}, []string{"AB=2", "A"}, []string{"A", "AB=2"}},
		{[]string{"A=x=y"}, []string{"A=z=="}, []string{"A=z=="}},
	} {
		env := slices.Clone(c.env)
		assert.Equal(t, c.want, mergeEnv(c.env, c.extra))
		assert.Equal(t, env, c.env, "the slot's own is not touched")
	}
}

func TestPathCacheFindsProgramsAsAShellWould(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	for path, mode := range map[string]os.FileMode{
		first + "/plain": 0o644, second + "/plain": 0o755, second + "/only": 0o755, first + "/both": 0o755, second + "/both": 0o755,
	} {
		require.NoError(t, os.WriteFile(path, nil, mode))
	}
	require.NoError(t, os.Mkdir(first+"/only", 0o755))
	env := []string{"X=1", "PATH=" + first + "::" + second}
	var cache pathCache
	for name, want := range map[string]string{
		"plain": second + "/plain", "only": second + "/only", "both": first + "/both", "/a/b": "/a/b", "./x": "./x",
	} {
		got, err := cache.lookup(name, env)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	for _, bad := range []string{"missing", ""} {
		_, err := cache.lookup(bad, env)
		require.ErrorIs(t, err, os.ErrNotExist, bad)
	}
	_, err := new(pathCache).lookup("only", nil)
	require.ErrorIs(t, err, os.ErrNotExist, "no PATH, no program")
}

// visited lists what a walk visits.
func visited(t *testing.T, walk func(visit func(pid int)) error) []int {
	t.Helper()
	var all []int
	require.NoError(t, walk(func(pid int) { all = append(all, pid) }))
	return all
}

// below lists the descendants of a process.
func below(t *testing.T, pid int, spare map[int]bool) []int {
	t.Helper()
	return visited(t, func(visit func(int)) error { return (&server{}).descend(pid, spare, visit) })
}

// started lists what a kept process has started since its mark.
func started(t *testing.T, s *server, id uint64) []int {
	t.Helper()
	return visited(t, func(visit func(int)) error { return s.startedUnder(id, visit) })
}

// family starts a process with descendants: two children, one of which has a
// child, all sleeping.
func family(t *testing.T) (pid int, marker string) {
	t.Helper()
	marker = fmt.Sprintf("86400.%09d", rand.IntN(1e9))
	cmd := exec.CommandContext(t.Context(), "bash", "-c", "sleep "+marker+" & (sleep "+marker+"; true) & wait")
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		cmd.Wait()
	})
	require.Eventually(t, func() bool { return len(below(t, cmd.Process.Pid, nil)) == 3 }, 30*time.Second, 5*time.Millisecond)
	return cmd.Process.Pid, marker
}

func TestDescendListsEverythingBelowButTheSpared(t *testing.T) {
	pid, _ := family(t)
	all := below(t, pid, nil)
	require.Len(t, all, 3)
	assert.NotContains(t, all, pid)
	direct, err := children(strconv.Itoa(pid))
	require.NoError(t, err)
	require.Len(t, direct, 2)
	for _, name := range direct {
		child, err := strconv.Atoi(name)
		require.NoError(t, err)
		rest := below(t, pid, map[int]bool{child: true})
		assert.Len(t, rest, 3-1-len(below(t, child, nil)), "what is spared is so with all below it")
		assert.NotContains(t, rest, child)
	}
	assert.Subset(t, below(t, os.Getpid(), nil), append(all, pid))
}

func TestAnEndedProcessHasNothingBelowIt(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "true")
	require.NoError(t, cmd.Run())
	s := &server{}
	assert.Empty(t, below(t, cmd.Process.Pid, nil), "and no error, which would have everything killed")
	assert.Zero(t, s.startTime(cmd.Process.Pid))
	assert.Zero(t, s.startTime(1<<30))
}

func TestStartTimeTellsProcessesApart(t *testing.T) {
	pid, _ := family(t)
	s := &server{}
	at := s.startTime(pid)
	assert.NotZero(t, at)
	assert.Equal(t, at, s.startTime(pid))
	// A name that looks like the end of the field.
	dir := t.TempDir()
	odd := filepath.Join(dir, "a) R 1 (b")
	require.NoError(t, os.Symlink("/bin/sleep", odd))
	cmd := exec.CommandContext(t.Context(), odd, "1000")
	require.NoError(t, cmd.Start())
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	assert.GreaterOrEqual(t, s.startTime(cmd.Process.Pid), at)
}

func TestASweepUnderAProcessSparesWhatWasThereAndItsChildren(t *testing.T) {
	pid, _ := family(t)
	s := &server{kept: map[uint64]*process{1: {id: 1, pid: pid}}}
	assert.Len(t, started(t, s, 1), 3, "without a mark all of it is new")
	s.markUnder(1)
	assert.Empty(t, started(t, s, 1))
	for child := range s.kept[1].mark { // another process has the number now
		s.kept[1].mark[child]++
	}
	assert.Len(t, started(t, s, 1), 3)
	assert.Empty(t, started(t, s, 2))
	s.markUnder(2)
}

// Who forks and ends for ever may leave more behind than is collected
// meanwhile.
func TestNothingWaitsUntilEveryOrphanIsCollected(t *testing.T) {
	const ended = 2*reapBatch + 10
	for range ended {
		_, err := syscall.ForkExec("/bin/true", []string{"true"}, nil)
		require.NoError(t, err)
	}
	zombies := func() (n int) {
		for _, pid := range below(t, os.Getpid(), nil) {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if bytes.Contains(text, []byte("(true) Z ")) {
				n++
			}
		}
		return n
	}
	require.Eventually(t, func() bool { return zombies() == ended }, 30*time.Second, 20*time.Millisecond)
	s := &server{}
	for n, want := range []int{reapBatch, 2 * reapBatch, ended} {
		assert.Equal(t, n > 0, s.someEnded() && s.backlog)
		s.reap()
		assert.Equal(t, want, s.gone)
	}
	assert.False(t, s.backlog)
	assert.False(t, s.someEnded(), "the next are due later")
}

func TestWhoDoesNotOwnEveryoneNeverKillsEveryone(t *testing.T) {
	pid, _ := family(t)
	shared := &server{procs: map[int]*process{pid: {id: 1, pid: pid}, 999999: {id: 2, pid: 999999}}, kept: map[uint64]*process{2: {id: 2, pid: 999999}}}
	assert.Equal(t, []int{pid}, shared.known(), "-1 would be the agent too")
	assert.NotContains(t, visited(t, shared.unkept), -1)
	bare := &server{plan: Plan{IDs: IDs{Bare: true}}}
	assert.False(t, bare.ownsEveryone())
	for _, p := range []Plan{{Namespaces: Namespaces{PID: true}}, {IDs: IDs{Switch: true, UID: 7}}} {
		own := &server{plan: p}
		assert.True(t, own.ownsEveryone())
		assert.Equal(t, []int{-1}, own.known())
	}
}

func TestFailuresCarryStageAndErrno(t *testing.T) {
	f := asFailure(fmt.Errorf("outer: %w", &stageError{"root", &os.PathError{Op: "mount", Path: "/x", Err: unix.EACCES}}))
	assert.Equal(t, "root", f.Stage)
	assert.Equal(t, int(unix.EACCES), f.Errno)
	var back *StageError
	require.ErrorAs(t, refusal(encode(f)), &back)
	assert.Equal(t, "root", back.Stage)
	assert.Equal(t, int(unix.EACCES), back.Errno)
	assert.Equal(t, failure{Stage: "unknown", Text: "x"}, asFailure(fmt.Errorf("x")))
	assert.ErrorIs(t, refusal([]byte("no JSON")), errFrame)
}

func TestSetUpKeepsItsOrder(t *testing.T) {
	text, err := os.ReadFile("setup.go")
	require.NoError(t, err)
	at := -1
	for _, step := range []string{"root", "groups", "bounding set", "ids", "capabilities", "no_new_privs", "landlock", "rlimits", "seccomp"} {
		next := strings.Index(string(text), "{\""+step+"\",")
		assert.Greater(t, next, at, step)
		at = next
	}
}
