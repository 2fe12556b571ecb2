package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth/slots"
	"berth/slots/sandbox"
)

var resetExamples = []example{
	{"a reset says what it has proved", receipts},
	{"X07 X08 X09 X10 nothing is left for the next tenant", nothingLeft},
	{"a reset goes through when its caller has gone", resetCancelled},
	{"a spare that has died is replaced", deadSpare},
	{"X24 files that resist are out of sight", stubbornFiles},
}

func reset(t testing.TB, s *sandbox.Sandbox) slots.Receipt {
	t.Helper()
	receipt, err := s.Reset(context.Background())
	require.NoError(t, err)
	require.True(t, receipt.Clean, "%+v", receipt)
	return receipt
}

func receipts(t *testing.T, x fixture) {
	before := x.s.Generation()
	said(t, x, "variable=1; echo hi > file; echo hi > $HOME/.bashrc; sleep 100 &")
	receipt := reset(t, x.s)
	assert.Equal(t, before+1, receipt.Generation)
	assert.Equal(t, before+1, x.s.Generation())
	assert.Positive(t, receipt.MS)
	var names []string
	for _, c := range receipt.Checks {
		assert.True(t, c.OK, c.Name)
		names = append(names, c.Name)
	}
	assert.Subset(t, names, []string{"files replaced", "holder ended", "files out of sight", "nothing mounted", "files empty", "holder answers"})
	if !x.h.Namespaces() {
		assert.Contains(t, names, "no process left")
	}
	if x.level == slots.LevelNSCgroup {
		assert.Contains(t, names, "cgroup empty")
	}
	assert.Empty(t, output(t, x.s, "ls -A"))
	out, _, _, state := shell(t, x, "echo -$variable-; jobs", 5*time.Second)
	assert.Equal(t, "--\n", out)
	assert.False(t, state.Restarted, "the next tenant hears nothing of the last one's shell")
}

func TestAResetTakesNoLongerForMoreFiles(t *testing.T) {
	x := best(t)
	timed := func(text string) time.Duration {
		output(t, x.s, text)
		x.h.Settle()
		began := time.Now()
		reset(t, x.s)
		return time.Since(began)
	}
	few, many := time.Hour, time.Hour
	for tries := 0; tries < 2 || many >= 2*few+100*time.Millisecond && tries < 12; tries++ { // the best of some
		few, many = min(few, timed("touch f")), min(many, timed("mkdir d; touch d/{0..2999}"))
	}
	t.Logf("1 file: %v, 3 000 files: %v", few, many)
	assert.Less(t, many, 2*few+100*time.Millisecond)
}

// leftovers are the places where a tenant may leave something, as commands
// that leave it and that show it.
var leftovers = []struct{ leave, show string }{
	{"echo x > /tmp/berth-left-%M", "cat /tmp/berth-left-%M"},
	{"echo x > /var/tmp/berth-left-%M", "cat /var/tmp/berth-left-%M"},
	{"echo x > /dev/shm/berth-left-%M", "cat /dev/shm/berth-left-%M"},
	{"echo x > $TMPDIR/berth-left-%M", "cat ${TMPDIR:-/tmp}/berth-left-%M"},
	{"echo x > ~/berth-left-%M; mkdir ~/.ssh", "cat ~/berth-left-%M ~/.ssh"},
	{"mkfifo /tmp/berth-left-%M-fifo", "test -e /tmp/berth-left-%M-fifo"},
	{"mkdir -p /run/berth/output; echo x > /run/berth/berth-left-%M", "cat /run/berth/berth-left-%M"},
	{"ipcmk -M 4096 && ipcmk -Q && ipcmk -S 1", "[ $(id -u) != 0 ] && ipcs | grep -E '^0x' | grep \" $(id -un) \""},
	{"python3 -c 'import ctypes; ctypes.CDLL(None).mq_open(b\"/left%M\", 0o102, 0o666, None)'", "test -e /dev/mqueue/left%M"},
	{"keyctl add user left%M x @u", "keyctl search @u user left%M"},
}

func nothingLeft(t *testing.T, x fixture) {
	if x.level < slots.LevelLandlock {
		t.Skip("below landlock slots share the container's files")
	}
	m := strings.ReplaceAll(marker(), ".", "")
	for _, l := range leftovers {
		_, _, exit := bash(t, x.s, strings.ReplaceAll(l.leave, "%M", m))
		if strings.HasPrefix(l.leave, "ipcmk") && !x.h.Namespaces() {
			assert.NotZero(t, exit.Code, "nothing is made where all share it")
		}
	}
	bash(t, x.s, "echo x > $HOME/own; setfattr -n user.left -v x own; mkdir sub; chmod 2777 sub")
	reset(t, x.s)
	for _, l := range leftovers {
		text := strings.ReplaceAll(l.show, "%M", m)
		out, _, exit := bash(t, x.s, text)
		assert.NotZero(t, exit.Code, "%s: %s", text, out)
		assert.Empty(t, out, text)
	}
	for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm"} {
		left, err := filepath.Glob(dir + "/berth-left-" + m + "*")
		require.NoError(t, err)
		assert.Empty(t, left, "in the container's own %s", dir)
	}
}

func resetCancelled(t *testing.T, x fixture) {
	x.s.SparePID() // it is there
	ctx, cancel := context.WithCancel(t.Context())
	said(t, x, "sleep 100 &")
	time.AfterFunc(500*time.Microsecond, cancel)
	receipt, err := x.s.Reset(ctx)
	if err != nil { // it had not begun
		assert.Equal(t, slots.KindResetFailed, kindOf(t, err))
		return
	}
	assert.True(t, receipt.Clean, "%+v", receipt)
}

func deadSpare(t *testing.T, x fixture) {
	pid := x.s.SparePID()
	require.Positive(t, pid)
	output(t, x.s, "echo x > file")
	require.NoError(t, unix.Kill(pid, unix.SIGKILL))
	require.Eventually(t, func() bool { return unix.Kill(pid, 0) != nil }, 30*time.Second, time.Millisecond)
	reset(t, x.s)
	assert.Empty(t, output(t, x.s, "ls"))
}

func stubbornFiles(t *testing.T, x fixture) {
	output(t, x.s, "mkdir -p a/b/c; touch a/b/c/f; chmod 0 a/b/c a/b a; d=deep; for i in {1..60}; do d=$d/dddddddddddddddddddddddddddddddddddddddd; done; mkdir -p $d 2>/dev/null || true")
	reset(t, x.s)
	assert.Empty(t, output(t, x.s, "ls -A"))
}

func TestUIDsAreUsedAgainOnlyWhenTheirSandboxIsGone(t *testing.T) {
	needRoot(t)
	first := firstUID()
	h := openHost(t, func(c *sandbox.Config) { atLevel(slots.LevelUIDLandlock)(c); c.FirstUID = first })
	s := open(t, h, "slot_0")
	seen := map[int]int{}
	for range 6 {
		uid := s.UID()
		seen[uid]++
		assert.True(t, sandbox.IsSlotUID(uid, first))
		assert.NotEqual(t, uid, func() int { reset(t, s); return s.UID() }(), "X15: not the very next")
		assert.Equal(t, fmt.Sprintf("%d\n", s.UID()), output(t, s, "id -u"))
	}
	assert.LessOrEqual(t, len(seen), 4, "they do come back: %v", seen)
}

func TestResetsAndCommandsAtOnceNeverMixTenants(t *testing.T) {
	for _, l := range []slots.Level{slots.LevelLandlock, slots.LevelUIDLandlock, slots.LevelNS} {
		if reachable(l) != l {
			continue
		}
		t.Run(l.String(), func(t *testing.T) {
			h := openHost(t, atLevel(l))
			s := open(t, h, "slot_0")
			var stop atomic.Bool
			var work sync.WaitGroup
			for n := range 4 {
				work.Go(func() {
					for !stop.Load() {
						stressOne(t, s, n)
					}
				})
			}
			for range 25 {
				reset(t, s)
				time.Sleep(5 * time.Millisecond)
			}
			stop.Store(true)
			work.Wait()
			reset(t, s)
			assert.Empty(t, output(t, s, "ls -A"))
			h.Settle()
			left, err := os.ReadDir(filepath.Dir(filepath.Dir(s.Workspace())) + "/../live")
			require.NoError(t, err)
			assert.LessOrEqual(t, len(left), 2, "the sandbox and its spare")
		})
	}
}

// stressOne does one thing; what may go wrong when a reset comes in between
// is listed.
func stressOne(t *testing.T, s *sandbox.Sandbox, n int) {
	var err error
	switch n {
	case 0:
		_, _, _, err = try(s, script("echo x > f-$$; sleep 0.01 & true"), 10*time.Second)
	case 1:
		_, _, _, err = try(s, script("sleep 5"), 3*time.Millisecond)
	case 2:
		err = s.Do(context.Background(), "write", map[string]string{"path": "w"}, nil, strings.NewReader("x"), nil)
	case 3:
		_, _, err = s.Shell(context.Background(), sandbox.ShellCommand{Command: "v=1; echo $v"})
	}
	if err == nil {
		return
	}
	typed, ok := errors.AsType[*slots.Error](err)
	if !ok || typed.Kind != slots.KindSlotLost && typed.Kind != slots.KindInterrupted {
		t.Errorf("action %d: %v", n, err)
	}
}

func TestASpareWaitsUntilTheSlotsAreOpen(t *testing.T) {
	var dir string
	h := openHost(t, func(c *sandbox.Config) { dir = c.DataDir })
	h.Settle()
	instances := func() int {
		entries, err := os.ReadDir(filepath.Join(dir, "live"))
		require.NoError(t, err)
		return len(entries)
	}
	h.Opening(1)
	hurried, patient := open(t, h, "slot_0"), open(t, h, "slot_1")
	receipt, err := hurried.Reset(t.Context())
	require.NoError(t, err)
	assert.True(t, receipt.Clean, "who needs one now does not wait")
	time.Sleep(500 * time.Millisecond) // twice what the first spare waits at least
	assert.Equal(t, 2, instances())
	h.Opening(-1)
	assert.Eventually(t, func() bool { return instances() == 4 }, 20*time.Second, 5*time.Millisecond)
	assert.Positive(t, patient.SparePID())
}
