package sandbox_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
	"berth/slots/need"
	"berth/slots/sandbox"
	"berth/slots/sandbox/sandboxtest"
)

// roleVar makes the test binary something else than the tests.
const roleVar = "BERTH_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVar) {
	case "agent":
		os.Exit(agentRole())
	case "hardened":
		os.Exit(hardenedRole())
	}
	os.Setenv("BERTH_TEST_SECRET_OF_AGENT", "1")
	flag.Parse()
	flag.Set("test.parallel", "8") // parallel tests wait most of the time
	os.Exit(m.Run())
}

// fixture is one sandbox at one level.
type fixture struct {
	h     *sandbox.Host
	s     *sandbox.Sandbox
	level slots.Level
}

func openHost(t testing.TB, change func(*sandbox.Config)) *sandbox.Host {
	t.Helper()
	c := config(t)
	if change != nil {
		change(&c)
	}
	h, err := sandbox.Open(context.Background(), c)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, h.Close()) })
	return h
}

func config(t testing.TB) sandbox.Config {
	return sandbox.Config{
		DataDir: sandboxtest.DataDir(t), Exe: sandboxtest.Agent(t), FirstUID: firstUID(),
		Slots: 2, Network: true, Attempt: slots.LevelNSCgroup,
	}
}

var hosts atomic.Int32

// firstUID is a range for one host: those of one kernel must not share uids,
// since each ends whatever runs as one of its own.
func firstUID() int { return 1_000_000 + os.Getpid()%10_000*5000 + int(hosts.Add(1))%50*100 }

func atLevel(l slots.Level) func(*sandbox.Config) {
	return func(c *sandbox.Config) { c.Attempt, c.NoCgroup, c.AgentPort = l, l < slots.LevelNSCgroup, 1 }
}

func open(t testing.TB, h *sandbox.Host, slot string) *sandbox.Sandbox {
	t.Helper()
	s, err := h.NewSandbox(t.Context(), slot, 0)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// best is a sandbox at the strongest level without cgroups.
func best(t testing.TB) fixture {
	h := openHost(t, atLevel(slots.LevelNS))
	return fixture{h, open(t, h, "slot_0"), h.Isolation().Level}
}

// run runs the command and must be able to.
func run(t testing.TB, s *sandbox.Sandbox, c sandbox.Command) (stdout, stderr string, exit slots.Exit) {
	t.Helper()
	stdout, stderr, exit, err := try(s, c, 20*time.Second)
	require.NoError(t, err)
	return stdout, stderr, exit
}

func try(s *sandbox.Sandbox, c sandbox.Command, timeout time.Duration) (stdout, stderr string, exit slots.Exit, err error) {
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	ctx, cancel := context.WithTimeoutCause(context.Background(), timeout, sandbox.ErrTimedOut)
	defer cancel()
	exit, err = s.Run(ctx, c)
	return out.String(), errs.String(), exit, err
}

func script(text string) sandbox.Command { return sandbox.Command{Argv: []string{"bash", "-c", text}} }

func bash(t testing.TB, s *sandbox.Sandbox, text string) (stdout, stderr string, exit slots.Exit) {
	t.Helper()
	return run(t, s, script(text))
}

// output is what a command that succeeds prints.
func output(t testing.TB, s *sandbox.Sandbox, text string) string {
	t.Helper()
	out, errs, exit := bash(t, s, text)
	require.Equal(t, 0, exit.Code, "%s\n%s%s", text, out, errs)
	return out
}

func kindOf(t testing.TB, err error) slots.Kind {
	t.Helper()
	require.Error(t, err)
	var e *slots.Error
	require.ErrorAs(t, err, &e)
	return e.Kind
}

// marker is a duration for sleep by which the test finds its processes.
func marker() string { return fmt.Sprintf("86400.%09d", rand.IntN(1e9)) }

// alive lists the processes that have the word among their arguments.
func alive(word string) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err == nil && strings.Contains("\x00"+string(text), "\x00"+word+"\x00") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			pids = append(pids, pid)
		}
	}
	return pids
}

func requireGone(t testing.TB, word string) {
	t.Helper()
	require.Eventually(t, func() bool { return len(alive(word)) == 0 }, 30*time.Second, 5*time.Millisecond, "%v are alive", alive(word))
}

func requireAlive(t testing.TB, word string) {
	t.Helper()
	require.Eventually(t, func() bool { return len(alive(word)) > 0 }, 30*time.Second, 5*time.Millisecond, "nothing of %s lives", word)
}

// descriptors and goroutines of this process: what a leak shows in.
func descriptors(t testing.TB) int {
	t.Helper()
	// The runtime's poller has two of its own, from its first use on.
	r, w, err := os.Pipe()
	require.NoError(t, err)
	r.Close()
	w.Close()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

// requireNoGrowth fails when fds or goroutines stay above what they were.
func requireNoGrowth(t testing.TB, fds, goroutines int) {
	t.Helper()
	for range 300 { // not Eventually, which has goroutines of its own
		if descriptors(t) <= fds && runtime.NumGoroutine() <= goroutines {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	stacks := make([]byte, 64<<10)
	t.Fatalf("%d descriptors, were %d; %d goroutines, were %d\n%s", descriptors(t), fds,
		runtime.NumGoroutine(), goroutines, stacks[:runtime.Stack(stacks, true)])
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		need.Facility(t, "root", fmt.Errorf("runs as uid %d", os.Geteuid()))
	}
}

// nobody is the uid of the ordinary user that tests become.
const nobody = 65534

// reexec starts this test binary again, as an ordinary user when uid is not 0.
func reexec(t testing.TB, uid int, env []string, args ...string) *exec.Cmd {
	t.Helper()
	dir := sandboxtest.DataDir(t)
	require.NoError(t, os.Chmod(dir, 0o755))
	self, err := os.Executable()
	require.NoError(t, err)
	at := filepath.Join(dir, "test")
	from, err := os.Open(self)
	require.NoError(t, err)
	defer from.Close()
	to, err := os.OpenFile(at, os.O_CREATE|os.O_WRONLY, 0o755)
	require.NoError(t, err)
	_, err = io.Copy(to, from)
	require.NoError(t, err)
	require.NoError(t, to.Close())
	cmd := exec.CommandContext(t.Context(), at, args...)
	cmd.Dir = "/"
	cmd.Env = append(append(os.Environ(), "BERTH_AGENT="+sandboxtest.Agent(t), "HOME=/tmp"), env...)
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	return cmd
}
