package cgroup

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/slots"
	"berth/slots/need"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const helperEnv = "BERTH_TEST_CGROUP_HELPER"

// TestMain is also every process that these tests need and that is no shell.
func TestMain(m *testing.M) {
	switch os.Getenv(helperEnv) {
	case "delegate":
		os.Exit(delegateHelper())
	case "hog":
		hog()
	}
	os.Exit(m.Run())
}

// hog waits for a byte, then touches memory until something stops it at 1 GiB.
func hog() {
	_, _ = os.Stdin.Read(make([]byte, 1))
	var kept [][]byte
	for range 1024 {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 512 {
			b[i] = 1
		}
		kept = append(kept, b)
	}
	os.Exit(len(kept) % 2)
}

// delegateHelper sends the mounted directory over the socket at descriptor 3.
func delegateHelper() int {
	dir, err := MountDelegated()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := unix.Sendmsg(3, []byte{0}, unix.UnixRights(int(dir.Fd())), nil, 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}

// delegate runs the helper as PlaceDelegate wants it and receives its directory.
func delegate(ctx context.Context) (*os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer func() { _ = ours.Close() }()
	defer func() { _ = theirs.Close() }()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), helperEnv+"=delegate")
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	PlaceDelegate(cmd.SysProcAttr)
	out, err := cmd.CombinedOutput()
	if err != nil {
		if strings.Contains(string(out), "permission denied") {
			err = unix.EACCES
		}
		return nil, fmt.Errorf("run helper: %w: %s", err, out)
	}
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	oob := make([]byte, 64)
	_, n, _, _, err := conn.(*net.UnixConn).ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("parse control message: %w", err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "cgroup2"), nil
}

// within is a context for things that have to be over soon.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), d)
	t.Cleanup(cancel)
	return ctx
}

// openReal opens a tree on this machine and proves at the end that it leaves
// nothing behind.
func openReal(t *testing.T) *Tree {
	t.Helper()
	before := ownProcs()
	tree, err := Open(t.Context(), Config{Name: NewName("berthtest"), Delegate: delegate})
	need.Facility(t, "cgroup", err)
	t.Logf("v%d by %q, controllers %v, missing %v", tree.Version(), tree.How(), tree.Controllers(), tree.Missing())
	dirs := tree.dirs()
	t.Cleanup(func() {
		require.NoError(t, tree.Close(within(t, 20*time.Second)))
		for _, dir := range dirs {
			assert.NoDirExists(t, dir)
		}
		assert.Equal(t, before, ownProcs(), "this process is back where it was")
	})
	return tree
}

func ownProcs() string {
	text, _ := os.ReadFile("/proc/self/cgroup")
	return string(text)
}

// started is a process that is in the group before its first command.
type started struct {
	*exec.Cmd
	t     *testing.T
	stdin io.WriteCloser
}

func start(t *testing.T, g *Group, cmd *exec.Cmd) *started {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	require.NoError(t, g.Attach(cmd.Process.Pid))
	_, err = stdin.Write([]byte("\n"))
	require.NoError(t, err)
	return &started{Cmd: cmd, t: t, stdin: stdin}
}

func startBash(t *testing.T, g *Group, script string, args ...string) *started {
	t.Helper()
	bash, err := exec.LookPath("bash")
	need.Facility(t, "bash", err)
	return start(t, g, exec.Command(bash, append([]string{"-c", "read -r _; " + script, "test"}, args...)...))
}

func TestAMemoryHogIsKilledAndCounted(t *testing.T) {
	tree := openReal(t)
	if !hasController(tree, memory) {
		t.Skip("needs the memory controller")
	}
	g, err := tree.Create("hog", slots.Limits{MemoryBytes: 48 << 20})
	require.NoError(t, err)
	n, err := g.OOMKills()
	require.NoError(t, err)
	assert.Zero(t, n)

	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helperEnv+"=hog")
	p := start(t, g, cmd)
	err = p.Wait()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal())

	n, err = g.OOMKills()
	require.NoError(t, err)
	assert.Contains(t, []int64{1, int64(tree.Version())}, n, "v2 counts the victim, then the victim as part of the group")
	s, err := g.Stats()
	require.NoError(t, err)
	assert.Equal(t, n, s.OOMKills)
	assert.Greater(t, s.MemoryPeakBytes, int64(40<<20))
	assert.LessOrEqual(t, s.MemoryPeakBytes, int64(49<<20))
	assert.Positive(t, s.CPU)
	require.NoError(t, g.Close(within(t, 5*time.Second)))
}

func TestAForkBombStaysBelowItsLimit(t *testing.T) {
	tree := openReal(t)
	if !hasController(tree, pids) {
		t.Skip("needs the pids controller")
	}
	g, err := tree.Create("bomb", slots.Limits{Pids: 24, CPUs: 0.5})
	require.NoError(t, err)
	p := startBash(t, g, `b() { b | b & }; b 2>/dev/null; sleep 60`)
	deadline := time.Now().Add(20 * time.Second)
	var s Stats
	for s.PidsRefused == 0 && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
		s, err = g.Stats()
		require.NoError(t, err)
		assert.LessOrEqual(t, s.Pids, int64(24))
	}
	assert.Positive(t, s.PidsRefused)
	require.NoError(t, g.Kill(within(t, 10*time.Second)))
	_ = p.Wait()
	assert.Empty(t, g.left())
	closeGroup(t, g)
}

func TestACPUQuotaThrottlesAndIsCounted(t *testing.T) {
	tree := openReal(t)
	if !hasController(tree, cpu) {
		t.Skip("needs the cpu controller")
	}
	g, err := tree.Create("burner", slots.Limits{CPUs: 0.1})
	require.NoError(t, err)
	p := startBash(t, g, `while :; do :; done`)
	begin := time.Now()
	time.Sleep(time.Second)
	s, err := g.Stats()
	require.NoError(t, err)
	wall := time.Since(begin)
	assert.Positive(t, s.Throttled)
	assert.Positive(t, s.CPU)
	assert.Less(t, s.CPU, wall/2, "a tenth was allowed")

	require.NoError(t, g.Update(slots.Limits{}))
	require.NoError(t, g.Kill(within(t, 5*time.Second)))
	_ = p.Wait()
	closeGroup(t, g)
}

// worm rotates for ever: each generation starts the next in a session of its
// own and ends.
const worm = `trap "" TERM HUP INT
printf x >> "$2"
sleep 0.05
setsid "$BASH" "$1" "$1" "$2" </dev/null >/dev/null 2>&1 &
exit 0
`

func TestS03NoWormSurvivesAKill(t *testing.T) {
	for _, way := range []string{"best", "freezer", "neither"} {
		t.Run(way, func(t *testing.T) {
			tree := openReal(t)
			if way != "best" && tree.version == 2 {
				withoutKillFile(tree)
			}
			if way == "neither" && !hasController(tree, pids) {
				t.Skip("needs the pids controller")
			}
			_, err := exec.LookPath("setsid")
			need.Facility(t, "setsid", err)
			dir := t.TempDir()
			script, trace := filepath.Join(dir, "worm"), filepath.Join(dir, "trace")
			require.NoError(t, os.WriteFile(script, []byte(worm), 0o600))
			g, err := tree.Create("worms", slots.Limits{Pids: 200})
			require.NoError(t, err)
			if way == "neither" {
				delete(g.by, freezer)
			}
			p := startBash(t, g, `for i in $(seq 20); do "$BASH" "$1" "$1" "$2" & done; wait`, script, trace)
			waitFor(t, func() bool {
				text, _ := os.ReadFile(trace)
				return len(text) > 60
			})
			require.NotEmpty(t, g.left())
			begin := time.Now()
			require.NoError(t, g.Kill(within(t, 20*time.Second)))
			t.Logf("killed in %v", time.Since(begin))
			_ = p.Wait()
			assert.Empty(t, g.left())
			size := fileSize(t, trace)
			time.Sleep(300 * time.Millisecond)
			assert.Equal(t, size, fileSize(t, trace), "nobody lives to write")
			closeGroup(t, g)
		})
	}
}

// withoutKillFile makes the machine look like Linux before 5.14.
func withoutKillFile(tree *Tree) {
	write := tree.k.write
	tree.k.write = func(file, value string) error {
		if filepath.Base(file) == "cgroup.kill" {
			return unix.ENOENT
		}
		return write(file, value)
	}
}

func TestAFrozenGroupStandsStillUntilThawed(t *testing.T) {
	tree := openReal(t)
	if !hasController(tree, freezer) {
		t.Skip("needs the freezer")
	}
	g, err := tree.Create("still", slots.Limits{})
	require.NoError(t, err)
	trace := filepath.Join(t.TempDir(), "trace")
	p := startBash(t, g, `while :; do printf x >> "$1"; sleep 0.02; done`, trace)
	waitFor(t, func() bool { return exists(trace) })

	require.NoError(t, g.Freeze(within(t, 10*time.Second)))
	size := fileSize(t, trace)
	time.Sleep(200 * time.Millisecond)
	assert.Equal(t, size, fileSize(t, trace))

	require.NoError(t, g.Thaw())
	waitFor(t, func() bool { return fileSize(t, trace) > size })

	require.NoError(t, g.Freeze(within(t, 10*time.Second)))
	require.NoError(t, g.Kill(within(t, 10*time.Second)), "a frozen group can be killed")
	_ = p.Wait()
	closeGroup(t, g)
}

func TestCloseKillsWaitsAndRemoves(t *testing.T) {
	tree := openReal(t)
	g, err := tree.Create("slot-0", slots.Limits{})
	require.NoError(t, err)
	p := startBash(t, g, `sleep 100 & sleep 100`)
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Wait() }()
	dirs := g.dirs
	require.NoError(t, g.Close(within(t, 10*time.Second)))
	<-done
	for _, dir := range dirs {
		assert.NoDirExists(t, dir)
	}
	require.NoError(t, g.Close(t.Context()), "again")
	_, err = g.Stats()
	require.Error(t, err)
	_, err = g.OOMKills()
	if hasController(tree, memory) {
		require.Error(t, err)
	}
}

func TestS07CloseSaysThatAZombieWasNotReaped(t *testing.T) {
	tree := openReal(t)
	if !hasController(tree, pids) {
		t.Skip("needs the pids controller")
	}
	g, err := tree.Create("zombie", slots.Limits{})
	require.NoError(t, err)
	p := startBash(t, g, `exit 0`)
	waitFor(t, func() bool { empty, err := g.empty(); return err == nil && empty })
	s, err := g.Stats()
	require.NoError(t, err)
	assert.EqualValues(t, 1, s.Pids, "a zombie counts")

	dirs := g.dirs
	require.ErrorIs(t, g.Close(within(t, 100*time.Millisecond)), ErrUnreaped)
	for _, dir := range dirs {
		assert.NoDirExists(t, dir)
	}
	require.NoError(t, p.Wait())
}

func TestAProcessIsBornInTheGroup(t *testing.T) {
	tree := openReal(t)
	g, err := tree.Create("born", slots.Limits{})
	require.NoError(t, err)
	dir, ok := g.Dir()
	if !ok {
		assert.Equal(t, 1, tree.Version())
		t.Skip("needs cgroup v2: v1 has no directory to be born in")
	}
	cmd := exec.Command("sleep", "100")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	require.NoError(t, cmd.Start())
	assert.Equal(t, []int{cmd.Process.Pid}, g.left())
	require.NoError(t, g.Kill(within(t, 5*time.Second)))
	_ = cmd.Wait()
	closeGroup(t, g)
}

func TestLimitsCanGoUpAndDown(t *testing.T) {
	tree := openReal(t)
	g, err := tree.Create("limits", slots.Limits{MemoryBytes: 64 << 20, Pids: 10, CPUs: 0.5})
	require.NoError(t, err)
	for _, l := range []slots.Limits{
		{MemoryBytes: 256 << 20, Pids: 20, CPUs: 4096},
		{MemoryBytes: 32 << 20, Pids: 5, CPUs: 0.001},
		{},
		{MemoryBytes: 64 << 20},
	} {
		require.NoError(t, g.Update(l), "%+v", l)
	}
	closeGroup(t, g)
}

func TestSweepRemovesWhatADeadAgentLeft(t *testing.T) {
	tree := openReal(t)
	child := exec.Command("sleep", "0")
	require.NoError(t, child.Run())
	name := fmt.Sprintf("berthtest-%d-gone", child.Process.Pid)
	for _, dir := range tree.at(name) {
		require.NoError(t, os.Mkdir(dir, 0o755))
		require.NoError(t, os.Mkdir(filepath.Join(dir, "slot-3"), 0o755))
	}
	dead := tree.group(filepath.Join(name, "slot-3"))
	p := startBash(t, dead, `sleep 100`)
	go func() { _ = p.Wait() }()
	removed, err := tree.Sweep(within(t, 10*time.Second), "berthtest")
	require.NoError(t, err)
	assert.Equal(t, []string{name}, removed)
	for _, dir := range tree.at(name) {
		assert.NoDirExists(t, dir)
	}
}

func TestTheShareOfThisProcessIsPlausible(t *testing.T) {
	share := CPUs("/")
	assert.Positive(t, share)
	assert.LessOrEqual(t, share, 4096.0)
}

func TestATreeStandsBesideThatOfADeadAgent(t *testing.T) {
	tree := openReal(t)
	if tree.Version() != 2 || tree.How() != "v2" || tree.unified.root {
		t.Skip("needs cgroup v2 at a writable mount")
	}
	k := machine()
	k.alive = func(pid int) bool { return pid != os.Getpid() } // the first tree's agent is "dead"
	next, err := open(t.Context(), Config{Name: "berthtest-" + strconv.Itoa(os.Getpid()) + "-next"}, k)
	require.NoError(t, err)
	assert.Equal(t, tree.unified.home, next.unified.home)
	assert.Contains(t, ownProcs(), "-next/self")
	removed, err := next.Sweep(within(t, 10*time.Second), "berthtest")
	require.NoError(t, err)
	assert.Equal(t, []string{tree.name}, removed)
	require.NoError(t, next.Close(within(t, 10*time.Second)))
}

func TestATreeInsideALivingOnesWorksAsWell(t *testing.T) {
	outer := openReal(t)
	inner, err := Open(t.Context(), Config{Name: NewName("berthtest"), Delegate: delegate})
	require.NoError(t, err)
	assert.Equal(t, outer.How(), inner.How())
	assert.Equal(t, outer.Controllers(), inner.Controllers())
	g, err := inner.Create("slot-0", slots.Limits{MemoryBytes: 32 << 20})
	require.NoError(t, err)
	p := startBash(t, g, `sleep 100`)
	go func() { _ = p.Wait() }()
	require.NoError(t, inner.Close(within(t, 10*time.Second)))
}

func hasController(tree *Tree, name string) bool {
	_, ok := tree.homes[name]
	return ok
}

// closeGroup closes a group whose processes this test may not all have reaped:
// worms are inherited by whoever reaps here.
func closeGroup(t *testing.T, g *Group) {
	t.Helper()
	dirs := g.dirs
	if err := g.Close(within(t, time.Second)); err != nil {
		require.ErrorIs(t, err, ErrUnreaped)
		t.Log(err)
	}
	for _, dir := range dirs {
		assert.NoDirExists(t, dir)
	}
}

func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	require.NoError(t, poll(within(t, 30*time.Second), func() (bool, error) { return done(), nil }))
}

func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.Size()
}
