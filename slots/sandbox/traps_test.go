package sandbox_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
	"berth/slots/sandbox"
	"berth/slots/workspace"
)

// The traps of Go's runtime that a container's agent falls into, and what
// keeps ours out of them.

// B: a runtime that cannot make a thread crashes, and a slot can use up all
// its pids at will.
func TestTrapB_AFullPidsLimitDoesNotEndTheHolder(t *testing.T) {
	for _, l := range []slots.Level{slots.LevelUIDLandlock, slots.LevelNS, slots.LevelNSCgroup} {
		if reachable(l) != l {
			continue
		}
		t.Run(l.String(), func(t *testing.T) {
			h := openHost(t, func(c *sandbox.Config) { atLevel(l)(c); c.Limits.Pids = 64 })
			s := open(t, h, "slot_0")
			output(t, s, "head -c 8000000 /dev/zero > big")
			holder := s.HolderPID()
			var bomb sync.WaitGroup
			bomb.Go(func() {
				_, _, exit, err := try(s, script("b() { b | b & sleep 100; }; b; while :; do sleep 100 & done 2>/dev/null"), 1500*time.Millisecond)
				assert.NoError(t, err) //nolint:testifylint // not in a goroutine
				assert.Equal(t, slots.OutcomeTimedOut, exit.Outcome)
			})
			time.Sleep(300 * time.Millisecond)
			var calls sync.WaitGroup
			for range 16 {
				calls.Go(func() {
					err := s.Do(t.Context(), "read", workspace.ReadArgs{Path: "big", Length: -1}, nil, nil, &slowWriter{})
					assert.NoError(t, err)
				})
			}
			calls.Wait()
			assert.NoError(t, s.Do(t.Context(), "stat", map[string]string{"path": "."}, nil, nil, nil)) //nolint:testifylint // the bomb is to be waited for
			bomb.Wait()
			assert.Equal(t, "swept\n", output(t, s, "echo swept"))
			assert.Equal(t, holder, s.HolderPID(), "it is still the same")
			reset(t, s)
		})
	}
}

func TestACommandThatFindsNoRoomInItsSlotMayBeTriedAgain(t *testing.T) {
	for _, l := range []slots.Level{slots.LevelUIDLandlock, slots.LevelNS, slots.LevelNSCgroup} {
		if reachable(l) != l {
			continue
		}
		t.Run(l.String(), func(t *testing.T) {
			t.Parallel()
			s := open(t, openHost(t, func(c *sandbox.Config) { atLevel(l)(c); c.Limits.Pids = 48 }), "slot_0")
			m := marker()
			// Bash waits for room, time and again, and ends when there was none for long.
			crowd := script("(while :; do (while :; do sleep $0 & done); done) 2>/dev/null &")
			crowd.Argv = append(crowd.Argv, m)
			crowd.Background = true
			run(t, s, crowd)
			var err error
			require.Eventually(t, func() bool {
				_, _, _, err = try(s, script("true"), 20*time.Second)
				return err != nil
			}, 3*time.Minute, 10*time.Millisecond, "the crowd leaves room")
			require.Equal(t, slots.KindSlotExhausted, kindOf(t, err), "%v", err)
			assert.True(t, slots.AsError(err).Retryable)
			assert.Equal(t, slots.ExecutedNever, slots.AsError(err).Executed)
			require.Eventually(t, func() bool {
				pids := alive(m)
				for _, pid := range pids {
					syscall.Kill(pid, syscall.SIGKILL)
				}
				return len(pids) == 0
			}, 3*time.Minute, 10*time.Millisecond, "the crowd is gone")
			require.Eventually(t, func() bool { // zombies count until they are reaped
				_, _, _, err = try(s, script("true"), 20*time.Second)
				return err == nil
			}, 3*time.Minute, 10*time.Millisecond, "the same command starts once there is room")
		})
	}
}

// slowWriter keeps the operation's pipe full, so that its thread blocks.
type slowWriter struct{ taken int }

func (w *slowWriter) Write(p []byte) (int, error) {
	if w.taken == 0 {
		time.Sleep(100 * time.Millisecond)
	}
	w.taken += len(p)
	return len(p), nil
}

// C: a process that is not dumpable owns none of its /proc, so that an
// ordinary user's cannot write a uid map.
func TestTrapC_AHardenedAgentOfAnOrdinaryUserStillMakesUserNamespaces(t *testing.T) {
	uid := 0
	if os.Geteuid() == 0 {
		uid = nobody
	}
	out, err := reexec(t, uid, []string{roleVar + "=hardened"}).CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
}

func hardenedRole() int {
	if err := sandbox.HardenAgent(); err != nil {
		fmt.Println(err)
		return 1
	}
	dir, err := os.MkdirTemp("", "berth-test-")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer os.RemoveAll(dir)
	open := func(level slots.Level) (*sandbox.Host, error) {
		return sandbox.Open(context.Background(), sandbox.Config{DataDir: dir, Exe: os.Getenv("BERTH_AGENT"), Attempt: level, NoCgroup: true, Network: true})
	}
	h, err := open(slots.LevelNS)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	defer h.Close()
	r := h.Report()
	fmt.Println(r.Isolation.Level, r.Mechanism, r.Attempts)
	for _, a := range r.Attempts {
		if a.Errno == "EPERM" && a.Stage == "clone" {
			return 0 // the machine denies user namespaces to everybody
		}
	}
	if r.Isolation.Level < slots.LevelNS {
		return 2
	}
	text, err := os.ReadFile("/proc/self/limits")
	if err != nil || !bytes.Contains(text, []byte("Max core file size        1                    1")) {
		fmt.Printf("%s %v", text, err)
		return 3
	}
	return 0
}

// D: a new user namespace makes os/exec really fork, which costs a large
// process tens of milliseconds. The agent makes none: its only child is the
// spawner, and holders are the spawner's.
func TestTrapD_TheAgentItselfMakesNoNamespace(t *testing.T) {
	x := best(t)
	parent := func(pid int) int {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		require.NoError(t, err)
		_, line, _ := strings.Cut(string(text), "\nPPid:")
		n, _ := strconv.Atoi(strings.Fields(line)[0])
		return n
	}
	assert.Equal(t, os.Getpid(), parent(x.h.SpawnerPID()))
	assert.Equal(t, x.h.SpawnerPID(), parent(x.s.HolderPID()))
	assert.Equal(t, x.h.SpawnerPID(), parent(x.s.SparePID()))
	size, err := os.ReadFile("/proc/" + strconv.Itoa(x.h.SpawnerPID()) + "/statm")
	require.NoError(t, err)
	pages, err := strconv.Atoi(strings.Fields(string(size))[1])
	require.NoError(t, err)
	assert.Less(t, pages*os.Getpagesize(), 32<<20, "the process that does fork is small")
}

// G: a parent-death signal fires when the forking thread exits, not the
// process. None is used; the end of a connection is what counts, and S16
// shows that it does.
func TestTrapG_HoldersOutliveTheThreadsThatMadeThem(t *testing.T) {
	h := openHost(t, atLevel(slots.LevelNS))
	made := make(chan *sandbox.Sandbox)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
		s, err := h.NewSandbox(context.Background(), "slot_0", 0)
		assert.NoError(t, err)
		made <- s
	}()
	s := <-made
	require.NotNil(t, s)
	defer s.Close()
	time.Sleep(50 * time.Millisecond)
	assert.Equal(t, "alive\n", output(t, s, "echo alive"))
}
