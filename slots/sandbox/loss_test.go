package sandbox_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth/slots"
	"berth/slots/sandbox"
	"berth/slots/sandbox/sandboxtest"
)

var lossExamples = []example{
	{"S17 a killed holder costs the call, not the files", holderKilled},
	{"a slot that kills or stops all it can has done it itself", killsAll},
	{"a workspace that a command has closed is open for the next", closedWorkspace},
	{"S18 a stopped holder is replaced", holderStopped},
	{"a holder that dies in the middle of a reset is no trouble", holderDiesInReset},
}

func killHolder(t testing.TB, x fixture, signal unix.Signal) {
	t.Helper()
	require.NoError(t, unix.Kill(x.s.HolderPID(), signal))
}

func holderKilled(t *testing.T, x fixture) {
	m := marker()
	output(t, x.s, "echo kept > file")
	said(t, x, "v=1")
	run(t, x.s, sandbox.Command{Argv: []string{"bash"}, Script: []byte("echo from a script")})
	type ending struct {
		exit slots.Exit
		err  error
	}
	ended := make(chan ending, 1)
	go func() {
		_, _, exit, err := try(x.s, script("sleep "+m), 20*time.Second)
		ended <- ending{exit, err}
	}()
	requireAlive(t, m)
	before := x.s.HolderPID()
	killHolder(t, x, unix.SIGKILL)
	assertDied := func(e ending) {
		if x.level >= slots.LevelNS {
			assert.Equal(t, slots.KindSlotLost, kindOf(t, e.err))
			return
		}
		// A process of the slot may have done it.
		require.NoError(t, e.err)
		assert.Equal(t, slots.OutcomeSignaled, e.exit.Outcome)
		assert.Equal(t, 137, e.exit.Code)
	}
	assertDied(<-ended)
	var calls sync.WaitGroup
	for range 4 { // all of them wait for one replacement
		calls.Go(func() {
			text, err := read(t, x, "file")
			assert.NoError(t, err) //nolint:testifylint // not in a goroutine
			assert.Equal(t, "kept\n", text)
		})
	}
	calls.Wait()
	requireGone(t, m)
	assert.NotEqual(t, before, x.s.HolderPID())
	out, _, _, state := shell(t, x, "echo -$v-", 5*time.Second)
	assert.Equal(t, "--\n", out)
	assert.True(t, state.Restarted, "it is said that the shell is another one")
	out, _, _ = run(t, x.s, sandbox.Command{Argv: []string{"bash"}, Script: []byte("echo from a script")})
	assert.Equal(t, "from a script\n", out)

	go func() {
		exit, _, err := x.s.Shell(context.Background(), sandbox.ShellCommand{Command: "sleep " + m})
		ended <- ending{exit, err}
	}()
	requireAlive(t, m)
	killHolder(t, x, unix.SIGKILL)
	assertDied(<-ended)
	requireGone(t, m)
	assert.Equal(t, "fine\n", said(t, x, "echo fine"))
}

func closedWorkspace(t *testing.T, x fixture) {
	said(t, x, "v=1")
	output(t, x.s, "mkdir sub; echo kept > file; chmod 000 .")
	assert.Equal(t, "kept\n", output(t, x.s, "cat file"))
	if x.level > slots.LevelNone { // root enters it as it is
		assert.Equal(t, "drwx------\n", output(t, x.s, "stat -c %A ."), "no more than that is given back")
	}
	output(t, x.s, "chmod 000 .")
	stdout, _, exit := run(t, x.s, sandbox.Command{Argv: []string{"bash", "-c", "pwd"}, Cwd: "sub"})
	assert.Equal(t, 0, exit.Code)
	assert.Equal(t, "/sub\n", stdout[max(0, len(stdout)-5):])
	said(t, x, "chmod 000 .; exit") // the next one begins there too
	assert.Equal(t, "kept\n", said(t, x, "cat file"))
	output(t, x.s, "chmod 755 . && chmod 000 sub")
	_, _, _, err := try(x.s, sandbox.Command{Argv: []string{"bash", "-c", "pwd"}, Cwd: "sub"}, 20*time.Second)
	if err != nil { // no capability enters it
		assert.Equal(t, slots.KindBadRequest, kindOf(t, err))
		assert.Contains(t, err.Error(), "working directory")
	}
}

// killsAll has a slot signal whatever it may. As root that would be the machine.
func killsAll(t *testing.T, x fixture) {
	if x.level < slots.LevelUID {
		t.Skip("its processes may signal those of others")
	}
	m := marker()
	output(t, x.s, "echo kept > file")
	_, _, exit := bash(t, x.s, "sleep "+m+" & kill -9 -1; echo over") // it spares who calls it
	if x.level < slots.LevelNS {
		assert.Equal(t, slots.OutcomeSignaled, exit.Outcome)
		assert.Equal(t, 137, exit.Code)
	} else {
		assert.Equal(t, slots.OutcomeExited, exit.Outcome)
	}
	requireGone(t, m)
	assert.Equal(t, "kept\n", output(t, x.s, "cat file"))
	_, _, exit, err := try(x.s, script("kill -9 -1 $$; sleep "+m), 20*time.Second)
	require.NoError(t, err)
	assert.Equal(t, slots.OutcomeSignaled, exit.Outcome)
	_, _, exit, _ = shell(t, x, "kill -9 -1; echo over", 20*time.Second)
	assert.NotEqual(t, slots.OutcomeTimedOut, exit.Outcome)
	assert.Equal(t, "kept\n", said(t, x, "cat file"))

	shell(t, x, "kill -STOP -1; echo over", 20*time.Second)
	_, _, exit = bash(t, x.s, "echo ran >> ran")
	assert.Equal(t, slots.OutcomeExited, exit.Outcome, "it does not wait for a holder that is stopped")
	assert.Equal(t, "ran\n", output(t, x.s, "cat ran"))
}

func holderStopped(t *testing.T, x fixture) {
	if x.level != slots.LevelUIDLandlock && x.level != slots.LevelNS {
		t.Skip("waits for deadlines: two levels are enough")
	}
	output(t, x.s, "echo kept > file")
	killHolder(t, x, unix.SIGSTOP)
	if x.level < slots.LevelNS {
		// The slot can have done it, and is helped out of it.
		assert.Equal(t, "kept\n", output(t, x.s, "cat file"))
		return
	}
	began := time.Now()
	_, _, exit, err := try(x.s, script("true"), 100*time.Millisecond)
	if err == nil {
		assert.Equal(t, slots.OutcomeTimedOut, exit.Outcome)
	} else {
		assert.Equal(t, slots.KindSlotLost, kindOf(t, err))
	}
	assert.Less(t, time.Since(began), 20*time.Second)
	assert.Equal(t, "kept\n", output(t, x.s, "cat file"))
}

func holderDiesInReset(t *testing.T, x fixture) {
	for range 3 {
		m := marker()
		var calls sync.WaitGroup
		calls.Go(func() { try(x.s, script("sleep "+m), 5*time.Second) })
		requireAlive(t, m)
		killHolder(t, x, unix.SIGKILL)
		calls.Go(func() { try(x.s, script("sleep "+m), 50*time.Millisecond) }) // has it replaced
		reset(t, x.s)
		calls.Wait()
		requireGone(t, m)
	}
}

func TestASpawnerThatDiesIsReplacedOnceForAll(t *testing.T) {
	for _, l := range []slots.Level{slots.LevelLandlock, slots.LevelUIDLandlock, slots.LevelNS} {
		if reachable(l) != l {
			continue
		}
		t.Run(l.String(), func(t *testing.T) {
			h := openHost(t, atLevel(l))
			var boxes []*sandbox.Sandbox
			for _, name := range []string{"slot_0", "slot_1"} {
				s, err := h.NewSandbox(t.Context(), name, 0)
				require.NoError(t, err)
				// At the landlock level it cannot prove its end, and says so.
				t.Cleanup(func() { assert.Equal(t, l == slots.LevelLandlock, s.Close() != nil) })
				boxes = append(boxes, s)
			}
			for _, s := range boxes {
				s.SparePID()
				output(t, s, "echo kept > file")
			}
			first := h.SpawnerPID()
			require.NoError(t, unix.Kill(first, unix.SIGKILL))
			var calls sync.WaitGroup
			for _, s := range boxes {
				calls.Go(func() {
					assert.Equal(t, "kept\n", output(t, s, "cat file"))
					ended := s.HolderEnded()
					assert.NoError(t, unix.Kill(s.HolderPID(), unix.SIGKILL)) //nolint:testifylint // not in a goroutine
					<-ended
					_, _, _, err := try(s, script("cat file"), 10*time.Second)
					if l != slots.LevelLandlock {
						assert.NoError(t, err) //nolint:testifylint // not in a goroutine
						reset(t, s)
						return
					}
					// Nothing tells the slot's processes from others any more.
					assert.Equal(t, slots.KindUnavailable, kindOf(t, err))
					receipt, err := s.Reset(t.Context())
					assert.NoError(t, err) //nolint:testifylint // not in a goroutine
					assert.False(t, receipt.Clean)
				})
			}
			calls.Wait()
			assert.NotEqual(t, first, h.SpawnerPID())
			for _, s := range boxes {
				if l == slots.LevelLandlock {
					continue
				}
				output(t, s, "true")
			}
		})
	}
}

// agentRole is an agent that a test kills: it opens a host with one busy
// sandbox and says so.
func agentRole() int {
	level, err := slots.ParseLevel(os.Getenv("BERTH_TEST_LEVEL"))
	if err != nil {
		return 64
	}
	c := sandbox.Config{
		DataDir: os.Getenv("BERTH_TEST_DATA"), Exe: os.Getenv("BERTH_AGENT"), Network: true,
		Attempt: level, NoCgroup: level < slots.LevelNSCgroup, FirstUID: firstUID(),
	}
	h, err := sandbox.Open(context.Background(), c)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	s, err := h.NewSandbox(context.Background(), "slot_0", 0)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	m := os.Getenv("BERTH_TEST_MARKER")
	s.Shell(context.Background(), sandbox.ShellCommand{Command: "echo x > file; sleep " + m + " &"})
	go s.Run(context.Background(), script("(setsid bash -c 'trap \"\" TERM HUP; sleep "+m+"' &) ; (setsid sleep "+m+" &) ; sleep "+m))
	for len(alive(m)) < 4 {
		time.Sleep(time.Millisecond)
	}
	fmt.Println("ready", h.SpawnerPID(), s.HolderPID(), s.SparePID())
	select {}
}

func TestS16_AKilledAgentLeavesNoProcessAndTheNextOneClean(t *testing.T) {
	for _, l := range []slots.Level{slots.LevelNone, slots.LevelLandlock, slots.LevelUIDLandlock, slots.LevelNS, slots.LevelNSCgroup} {
		if l != slots.LevelNone && reachable(l) != l {
			continue
		}
		t.Run(l.String(), func(t *testing.T) {
			dir, m := sandboxtest.DataDir(t), marker()
			cmd := reexec(t, 0, []string{roleVar + "=agent", "BERTH_TEST_LEVEL=" + l.String(), "BERTH_TEST_DATA=" + dir, "BERTH_TEST_MARKER=" + m})
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			cmd.Stderr = os.Stderr
			require.NoError(t, cmd.Start())
			line, err := bufio.NewReader(out).ReadString('\n')
			require.NoError(t, err, line)
			require.True(t, strings.HasPrefix(line, "ready"), line)
			require.NotEmpty(t, alive(m))
			require.NoError(t, cmd.Process.Kill())
			cmd.Wait()
			requireGone(t, m)
			var pids [3]int
			_, err = fmt.Sscanf(line, "ready %d %d %d", &pids[0], &pids[1], &pids[2])
			require.NoError(t, err)
			for _, pid := range pids {
				assert.Eventually(t, func() bool { return !running(pid) }, 30*time.Second, 5*time.Millisecond, "process %d", pid)
			}

			h := openHost(t, func(c *sandbox.Config) { atLevel(l)(c); c.DataDir = dir })
			s := open(t, h, "slot_0")
			assert.Empty(t, output(t, s, "ls -A"), "it reuses nothing")
			s.SparePID()
			h.Settle()
			live, err := os.ReadDir(filepath.Join(dir, "live"))
			require.NoError(t, err)
			assert.Len(t, live, 2, "the sandbox and its spare")
			trash, err := os.ReadDir(filepath.Join(dir, "trash"))
			require.NoError(t, err)
			assert.Empty(t, trash)
		})
	}
}

func running(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(text), ") Z ")
}

func TestClosingLeavesNothingBehind(t *testing.T) {
	for _, l := range []slots.Level{slots.LevelLandlock, slots.LevelUIDLandlock, slots.LevelNSCgroup} {
		if reachable(l) != l && l != slots.LevelNSCgroup {
			continue
		}
		t.Run(l.String(), func(t *testing.T) {
			m := marker()
			c := config(t)
			atLevel(l)(&c)
			h, err := sandbox.Open(t.Context(), c)
			require.NoError(t, err)
			s, err := h.NewSandbox(t.Context(), "slot_0", 7)
			require.NoError(t, err)
			assert.Equal(t, uint64(7), s.Generation())
			bg := script("sleep " + m + " & (setsid sleep " + m + " &)")
			bg.Background = true
			run(t, s, bg)
			require.NotEmpty(t, alive(m))
			pids := []int{h.SpawnerPID(), s.HolderPID(), s.SparePID()}
			require.NoError(t, s.Close())
			require.NoError(t, s.Close(), "twice is once")
			_, _, _, err = try(s, script("true"), time.Second)
			assert.Equal(t, slots.KindSlotLost, kindOf(t, err))
			_, err = s.Reset(t.Context())
			require.Error(t, err)
			require.NoError(t, h.Close())
			require.NoError(t, h.Close())
			requireGone(t, m)
			for _, pid := range pids {
				assert.False(t, running(pid))
			}
			mounts, err := os.ReadFile("/proc/self/mountinfo")
			require.NoError(t, err)
			assert.NotContains(t, string(mounts), c.DataDir)
			_, err = h.NewSandbox(t.Context(), "slot_1", 0)
			require.Error(t, err)
			left, _ := exec.Command("find", "/sys/fs/cgroup", "-maxdepth", "6", "-type", "d", "-name", fmt.Sprintf("slot-%d-*", os.Getpid())).Output()
			assert.Empty(t, string(left))
		})
	}
}

func TestASlotThatClosesTheDataDirectoryClosesNobodysFiles(t *testing.T) {
	h := openHost(t, atLevel(slots.LevelLandlock))
	if got := h.Isolation().Level; got != slots.LevelLandlock {
		t.Skipf("needs isolation level landlock: this machine gives %s", got)
	}
	assert.Contains(t, strings.Join(h.Isolation().Weak, "; "), "and of the agent's")
	attacker, neighbour := open(t, h, "slot_0"), open(t, h, "slot_1")
	x := fixture{h, neighbour, slots.LevelLandlock}
	output(t, neighbour, "echo kept > file")
	for range 2 {
		_, _, exit := bash(t, attacker, "at=${PWD%/live/*}; chmod 000 $at/live $at/view $at")
		require.Equal(t, 0, exit.Code)
		assert.Equal(t, "kept\n", output(t, neighbour, "cat file"))
		assert.Equal(t, "kept\n", said(t, x, "cat file"))
		bash(t, attacker, "at=${PWD%/live/*}; chmod 000 $at/trash $at/slots $at/live $at")
		receipt, err := neighbour.Reset(t.Context())
		require.NoError(t, err)
		assert.True(t, receipt.Clean)
		output(t, neighbour, "echo kept > file")
	}
}
