package cgroup

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"berth/slots"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const scope = "/sys/fs/cgroup/system.slice/run.scope"

func TestAContainersProcessesMoveIntoALeafAndBack(t *testing.T) {
	f := container2(t)
	before := f.files()
	tree := f.mustOpen()
	assert.Equal(t, 2, tree.Version())
	assert.Equal(t, "v2", tree.How())
	assert.Equal(t, []string{cpu, freezer, memory, pids}, tree.Controllers())
	assert.Empty(t, tree.Missing())
	assert.Empty(t, f.get("/sys/fs/cgroup/cgroup.procs"))
	assert.Equal(t, "1\n100\n107", f.get("/sys/fs/cgroup/berth-100-new/self/cgroup.procs"))
	assert.Equal(t, "memory pids cpu", f.get("/sys/fs/cgroup/cgroup.subtree_control"))

	require.NoError(t, tree.Close(t.Context()))
	require.NoError(t, tree.Close(t.Context()), "again")
	assert.Equal(t, before, f.files())
	_, err := tree.Create("late", slots.Limits{})
	require.ErrorIs(t, err, fs.ErrClosed)
}

func TestAReadOnlyContainerNamesEveryWayAndItsMend(t *testing.T) {
	f := container2(t)
	f.readonly = true
	before := f.files()
	_, err := f.open(Config{Delegate: func(context.Context) (*os.File, error) { return nil, unix.EACCES }})
	var unavailable *UnavailableError
	require.ErrorAs(t, err, &unavailable)
	require.Len(t, unavailable.Tried, 3)
	require.ErrorIs(t, unavailable.Tried[0].Err, unix.EROFS)
	assert.Equal(t, f.path("/sys/fs/cgroup"), unavailable.Tried[0].Path)
	assert.Contains(t, unavailable.Tried[0].Mend, "seccomp")
	assert.Equal(t, "v2 delegated", unavailable.Tried[1].How)
	assert.Contains(t, unavailable.Tried[1].Mend, "apparmor=unconfined")
	require.ErrorIs(t, unavailable.Tried[2].Err, errNoMount)
	require.ErrorIs(t, err, unix.EACCES)
	require.ErrorContains(t, err, "no writable cgroup: v2 at ")
	assert.NotContains(t, err.Error(), "\n")
	require.ErrorContains(t, err, "v2 delegated: permission denied (")
	assert.Equal(t, before, f.files())
}

func TestADelegatedMountIsUsedThroughItsDescriptor(t *testing.T) {
	f := container2(t)
	f.readonly = true
	before := f.files()
	var dir *os.File
	tree, err := f.open(Config{Delegate: func(context.Context) (_ *os.File, err error) {
		dir, err = os.Open(f.path("/sys/fs/cgroup"))
		return dir, err
	}})
	require.NoError(t, err)
	assert.Equal(t, "v2 delegated", tree.How())
	g, err := tree.Create("slot-0", slots.Limits{MemoryBytes: 1 << 20})
	require.NoError(t, err)
	assert.Equal(t, "1048576", f.get("/sys/fs/cgroup/berth-100-new/slot-0/memory.max"))
	_, ok := g.Dir()
	assert.True(t, ok)
	require.NoError(t, tree.Close(t.Context()))
	assert.Equal(t, before, f.files())
	require.ErrorIs(t, dir.Close(), fs.ErrClosed, "the tree closed it")
}

func TestADelegatedMountThatDoesNotWorkIsClosed(t *testing.T) {
	f := container2(t)
	f.readonly = true
	f.refuse["berth-100-new"] = unix.ENOSPC
	var dir *os.File
	_, err := f.open(Config{Delegate: func(context.Context) (_ *os.File, err error) {
		dir, err = os.Open(f.path("/sys/fs/cgroup"))
		return dir, err
	}})
	require.ErrorIs(t, err, unix.ENOSPC)
	require.ErrorIs(t, dir.Close(), fs.ErrClosed)
}

func TestTheRealRootKeepsItsProcesses(t *testing.T) {
	f := newFake(t, hostMounts2, "0::/\n")
	f.cgroup2("/sys/fs/cgroup", "cpu memory pids", "cpu", 1, 2, ownPid)
	require.NoError(t, os.Remove(f.path("/sys/fs/cgroup/cgroup.type")))
	f.real = f.path("/sys/fs/cgroup")
	before := f.files()
	tree := f.mustOpen()
	assert.Equal(t, "1\n2\n100", f.get("/sys/fs/cgroup/cgroup.procs"))
	assert.NoDirExists(t, f.path("/sys/fs/cgroup/berth-100-new/self"))
	require.NoError(t, tree.Close(t.Context()))
	assert.Equal(t, "cpu", f.get("/sys/fs/cgroup/cgroup.subtree_control"), "what was enabled before stays so")
	after := f.files()
	delete(before, "sys/fs/cgroup/cgroup.procs")
	delete(after, "sys/fs/cgroup/cgroup.procs")
	assert.Equal(t, before, after)
}

func TestWhoseProcessesMayBeMoved(t *testing.T) {
	tests := map[string]struct {
		pids    []int
		parents map[int]string // the name in /proc/N/stat and the parent
		mark    string
		unit    string // of systemd's that runs
		allowed bool
	}{
		"we alone":                       {pids: []int{ownPid}, allowed: true},
		"we and a grandchild":            {pids: []int{ownPid, 102}, parents: map[int]string{102: "(a) b (c) S 101", 101: "(x) S 100"}, allowed: true},
		"the shell that started us":      {pids: []int{99, ownPid}, parents: map[int]string{99: "(bash) S 1", ownPid: "(x) S 99"}, allowed: true},
		"the shell and its other child":  {pids: []int{99, ownPid, 98}, parents: map[int]string{99: "(bash) S 1", ownPid: "(x) S 99", 98: "(y) S 99"}, allowed: true},
		"a login above the shell":        {pids: []int{97, ownPid}, parents: map[int]string{97: "(sshd) S 1", 99: "(bash) S 97", ownPid: "(x) S 99"}, allowed: true},
		"a shell that is somebody else":  {pids: []int{99, ownPid}, parents: map[int]string{99: "(bash) S 1", ownPid: "(x) S 1"}},
		"a stranger beside the shell":    {pids: []int{99, ownPid, 50}, parents: map[int]string{99: "(bash) S 1", ownPid: "(x) S 99", 50: "(z) S 1"}},
		"a child of a child of init":     {pids: []int{ownPid, 50}, parents: map[int]string{50: "(x) S 49", 49: "(y) S 1"}},
		"a process that has just ended":  {pids: []int{ownPid, 77}, allowed: true},
		"PID 1 of our namespace":         {pids: []int{1, 99, ownPid}, allowed: true},
		"outside our namespace":          {pids: []int{0, ownPid}},
		"a stat that makes no sense":     {pids: []int{99, ownPid}, parents: map[int]string{99: "(bash)"}},
		"delegated by systemd to anyone": {pids: []int{99, ownPid}, parents: map[int]string{99: "(bash) S 1"}, mark: "1", allowed: true},
		"a unit of systemd's":            {pids: []int{ownPid}, unit: "/run/systemd/units/invocation:run.scope"},
		"a unit of our user's systemd":   {pids: []int{ownPid}, unit: "/run/user/" + strconv.Itoa(os.Geteuid()) + "/systemd/units/invocation:run.scope"},
		"a unit that is delegated":       {pids: []int{ownPid}, unit: "/run/systemd/units/invocation:run.scope", mark: "1", allowed: true},
		"beside a unit of systemd's":     {pids: []int{ownPid}, unit: "/run/systemd/units/invocation:other.scope", allowed: true},
		"marked as not delegated":        {pids: []int{99, ownPid}, parents: map[int]string{99: "(bash) S 1"}, mark: "0"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := scope2(t, tt.pids...)
			for pid, stat := range tt.parents {
				dir := "/proc/" + strconv.Itoa(pid)
				require.NoError(t, os.Mkdir(f.path(dir), 0o755))
				f.put(dir+"/stat", strconv.Itoa(pid)+" "+stat+" 1 1\n")
			}
			if tt.unit != "" {
				require.NoError(t, os.MkdirAll(f.path(filepath.Dir(tt.unit)), 0o755))
				f.put(tt.unit, "") // the real one is a link that leads nowhere
			}
			if tt.mark != "" {
				if err := unix.Setxattr(f.path(scope), "user.delegate", []byte(tt.mark), 0); err != nil {
					t.Skipf("needs extended attributes in the temporary directory: %v", err)
				}
			}
			before := f.files()
			tree, err := f.open(Config{})
			if !tt.allowed {
				want := errShared
				if tt.unit != "" {
					want = errUnit
				}
				require.ErrorIs(t, err, want)
				require.ErrorContains(t, err, "systemd-run")
				assert.Equal(t, before, f.files())
				return
			}
			require.NoError(t, err)
			require.NoError(t, tree.Close(t.Context()))
			assert.Equal(t, before[scope[1:]+"/cgroup.procs"], f.get(scope+"/cgroup.procs"))
		})
	}
}

func TestAControllerThatCannotBeEnabledIsReportedAndTheRestUsed(t *testing.T) {
	f := scope2(t, ownPid)
	f.put(scope+"/cgroup.controllers", "memory pids\n")
	tree := f.mustOpen()
	assert.Equal(t, []string{freezer, memory, pids}, tree.Controllers())
	require.Len(t, tree.Missing(), 1)
	assert.Equal(t, cpu, tree.Missing()[0].How)
	g, err := tree.Create("slot-0", slots.Limits{CPUs: 1, MemoryBytes: 1})
	require.NoError(t, err)
	s, err := g.Stats()
	require.NoError(t, err)
	assert.Equal(t, Stats{}, s)
}

func TestAForkWhileTheCgroupIsEmptiedIsMovedToo(t *testing.T) {
	f := scope2(t, ownPid)
	k := f.kernel()
	write, forked := k.write, false
	k.write = func(file, value string) error {
		if filepath.Base(file) == "cgroup.subtree_control" && !forked {
			forked = true
			f.put(scope+"/cgroup.procs", "101\n")
		}
		return write(file, value)
	}
	tree, err := open(t.Context(), Config{Root: f.root, Name: "berth-100-new"}, k)
	require.NoError(t, err)
	assert.Equal(t, "100\n101", f.get(scope+"/berth-100-new/self/cgroup.procs"))
	require.NoError(t, tree.Close(t.Context()))
	assert.Equal(t, "100\n101", f.get(scope+"/cgroup.procs"))
}

func TestAProbeThatFailsLeavesNothing(t *testing.T) {
	for _, end := range []string{"probe", "probe/cgroup.procs", "probe/memory.max", "/self", "self/cgroup.procs", "cgroup.subtree_control"} {
		t.Run(end, func(t *testing.T) {
			f := container2(t)
			before := f.files()
			f.refuse[end] = unix.EPERM
			_, err := f.open(Config{})
			require.ErrorIs(t, err, unix.EPERM)
			require.ErrorContains(t, err, "run the agent as root")
			assert.Equal(t, before, f.files())
		})
	}
	f := container2(t)
	k := f.kernel()
	k.child = func() (int, func(), error) { return 0, nil, errors.New("no processes left") }
	before := f.files()
	_, err := open(t.Context(), Config{Root: f.root}, k)
	require.ErrorContains(t, err, "no processes left")
	assert.Equal(t, before, f.files())
}

func TestAHybridHostUsesV1(t *testing.T) {
	f := hybrid(t)
	before := f.files()
	tree := f.mustOpen()
	assert.Equal(t, 1, tree.Version())
	assert.Equal(t, "v1", tree.How())
	assert.Equal(t, []string{cpu, cpuacct, freezer, memory, pids}, tree.Controllers())
	assert.Len(t, tree.dirs(), 4, "cpu and cpuacct are one hierarchy")
	g, err := tree.Create("slot-0", slots.Limits{})
	require.NoError(t, err)
	_, ok := g.Dir()
	assert.False(t, ok)
	assert.DirExists(t, f.path("/sys/fs/cgroup/memory/process/bb9d/berth-100-new/slot-0"))
	require.NoError(t, g.Attach(500))
	for _, dir := range g.dirs {
		listed, err := listPids(dir, false)
		require.NoError(t, err)
		assert.Equal(t, []int{500}, listed)
	}
	require.NoError(t, tree.Close(t.Context()))
	assert.Equal(t, []int{500}, f.killed)
	assert.Equal(t, before, f.files())
}

func TestV1UsesWhatThereIs(t *testing.T) {
	f := newFake(t, dockerMounts1, dockerMembership1)
	f.cgroup1("/sys/fs/cgroup/memory", "/", []string{memory}, 1, ownPid)
	f.cgroup1("/sys/fs/cgroup/pids", "/", []string{pids}, 1, ownPid)
	f.refuse["memory/berth-100-new"] = unix.EROFS
	tree := f.mustOpen()
	assert.Equal(t, []string{pids}, tree.Controllers())
	var names []string
	for _, m := range tree.Missing() {
		names = append(names, m.How)
	}
	assert.Equal(t, []string{memory, cpu, cpuacct, freezer}, names)
	assert.Contains(t, tree.Missing()[0].String(), "read-only file system (only a privileged container")

	g, err := tree.Create("slot-0", slots.Limits{MemoryBytes: 1 << 20, CPUs: 2})
	require.NoError(t, err)
	n, err := g.OOMKills()
	require.NoError(t, err)
	assert.Zero(t, n)
	require.ErrorIs(t, g.Freeze(t.Context()), errors.ErrUnsupported)
	require.NoError(t, tree.Close(t.Context()))
}

func TestAV1ContainerThatMayWriteNothingSaysSo(t *testing.T) {
	f := newFake(t, dockerMounts1, dockerMembership1)
	f.cgroup1("/sys/fs/cgroup/memory", "/", []string{memory}, 1, ownPid)
	f.cgroup1("/sys/fs/cgroup/pids", "/", []string{pids}, 1, ownPid)
	f.readonly = true
	_, err := f.open(Config{})
	require.ErrorIs(t, err, unix.EROFS)
	require.ErrorContains(t, err, "privileged container")
}

func TestACgroupThatDoesNotListUsIsNotOurs(t *testing.T) {
	f := container2(t)
	f.put("/sys/fs/cgroup/cgroup.procs", "1\n7\n")
	before := f.files()
	_, err := f.open(Config{})
	require.ErrorIs(t, err, errNoMount)
	assert.Equal(t, before, f.files())
}

func TestOpenRefusesANameWithoutAPid(t *testing.T) {
	f := container2(t)
	for _, name := range []string{"berth", "berth-0-x", "../berth-1-x", "berth-1-", "berth-1-x/y", "berth-12345678901-x", "-1-x"} {
		_, err := f.open(Config{Name: name})
		require.ErrorContains(t, err, "is not <prefix>-<pid>-<random>", name)
	}
	prefix, pid, ok := owner(NewName("berth_x"))
	assert.True(t, ok)
	assert.Equal(t, "berth_x", prefix)
	assert.Equal(t, os.Getpid(), pid)
	first, second := NewName("a"), NewName("a")
	assert.NotEqual(t, first, second)
}

func TestOpenSaysWhatItCouldNotRead(t *testing.T) {
	_, err := Open(t.Context(), Config{Root: t.TempDir()})
	require.ErrorContains(t, err, "open cgroup tree: find cgroup mounts")
	f := container2(t)
	require.NoError(t, os.Remove(f.path("/proc/self/cgroup")))
	_, err = f.open(Config{})
	require.ErrorContains(t, err, "open cgroup tree: find own cgroup")
}

// deadTree is what an agent with pid 55 left in a container: its slot with a
// process, and us in its "self".
func deadTree(t *testing.T) *fake {
	t.Helper()
	f := newFake(t, hostMounts2, "0::/berth-55-old/self\n")
	f.cgroup2("/sys/fs/cgroup", "cpu memory pids", "memory pids cpu")
	f.cgroup2("/sys/fs/cgroup/berth-55-old", "cpu memory pids", "memory pids cpu")
	f.cgroup2("/sys/fs/cgroup/berth-55-old/self", "cpu memory pids", "", 1, ownPid)
	f.cgroup2("/sys/fs/cgroup/berth-55-old/slot-0", "cpu memory pids", "", 600, 601)
	f.alive[1] = true
	return f
}

func TestAnAgentThatFollowsADeadOneTakesItsPlace(t *testing.T) {
	f := deadTree(t)
	tree := f.mustOpen()
	assert.Equal(t, f.path("/sys/fs/cgroup"), tree.unified.home)
	assert.Equal(t, "1\n100", f.get("/sys/fs/cgroup/berth-100-new/self/cgroup.procs"))

	f.attachTo("/sys/fs/cgroup/berth-55-old/self", 333) // somebody who came later
	removed, err := tree.Sweep(t.Context(), "berth")
	require.NoError(t, err)
	assert.Equal(t, []string{"berth-55-old"}, removed)
	assert.ElementsMatch(t, []int{600, 601}, f.killed, "only what ran in a slot")
	assert.NoDirExists(t, f.path("/sys/fs/cgroup/berth-55-old"))
	assert.Equal(t, "1\n100\n333", f.get("/sys/fs/cgroup/berth-100-new/self/cgroup.procs"))

	require.NoError(t, tree.Close(t.Context()))
	assert.Equal(t, "1\n100\n333", f.get("/sys/fs/cgroup/cgroup.procs"))
	assert.Empty(t, f.get("/sys/fs/cgroup/cgroup.subtree_control"))
}

func TestAnAgentInsideALivingOnesTreeStaysInside(t *testing.T) {
	f := deadTree(t)
	f.alive[55] = true
	tree := f.mustOpen()
	assert.Equal(t, f.path("/sys/fs/cgroup/berth-55-old/self"), tree.unified.home)
	removed, err := tree.Sweep(t.Context(), "berth")
	require.NoError(t, err)
	assert.Empty(t, removed)
	require.NoError(t, tree.Close(t.Context()))
	assert.Equal(t, "1\n100", f.get("/sys/fs/cgroup/berth-55-old/self/cgroup.procs"))
}

func (f *fake) attachTo(p string, pid int) {
	f.t.Helper()
	require.NoError(f.t, f.attach(f.path(p), strconv.Itoa(pid)))
}

func TestSweepTakesOnlyTreesThatNobodyOwns(t *testing.T) {
	f := hybrid(t)
	f.alive[60] = true
	for _, name := range []string{"berth-55-a", "berth-60-b", "other-55-c", "berth-x-d", "berthed"} {
		for _, home := range []string{"/sys/fs/cgroup/memory/process/bb9d/", "/sys/fs/cgroup/pids/"} {
			require.NoError(t, f.mkdir(f.path(home+name)))
			require.NoError(t, f.mkdir(f.path(home+name+"/slot-0")))
		}
	}
	f.attachTo("/sys/fs/cgroup/pids/berth-55-a/slot-0", 700)
	f.attachTo("/sys/fs/cgroup/memory/process/bb9d/berth-55-a/slot-0", 700)
	f.attachTo("/sys/fs/cgroup/pids/berth-60-b/slot-0", 701)
	tree := f.mustOpen()
	removed, err := tree.Sweep(t.Context(), "berth")
	require.NoError(t, err)
	assert.Equal(t, []string{"berth-55-a"}, removed)
	assert.Equal(t, []int{700}, f.killed)
	left := map[string]bool{}
	entries, err := os.ReadDir(f.path("/sys/fs/cgroup/pids"))
	require.NoError(t, err)
	for _, e := range entries {
		if e.IsDir() {
			left[e.Name()] = true
		}
	}
	assert.Equal(t, []string{"berth-100-new", "berth-60-b", "berth-x-d", "berthed", "other-55-c"}, sortedKeys(left))
}

func TestSweepNamesWhatItCouldNotRemove(t *testing.T) {
	f := hybrid(t)
	require.NoError(t, f.mkdir(f.path("/sys/fs/cgroup/pids/berth-55-a")))
	require.NoError(t, f.mkdir(f.path("/sys/fs/cgroup/pids/berth-55-a/slot-0")))
	f.attachTo("/sys/fs/cgroup/pids/berth-55-a/slot-0", 700)
	f.stubborn[700] = true
	tree := f.mustOpen()
	removed, err := tree.Sweep(soon(t), "berth")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "sweep cgroup tree berth-55-a")
	require.ErrorContains(t, err, "[700]")
	assert.Empty(t, removed)
}

func TestTreeCloseNamesWhatStayedAndCanBeTriedAgain(t *testing.T) {
	f := container2(t)
	tree := f.mustOpen()
	g, err := tree.Create("slot-0", slots.Limits{})
	require.NoError(t, err)
	require.NoError(t, g.Attach(800))
	f.stubborn[800] = true
	err = tree.Close(soon(t))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "close cgroup slot-0: processes [800] stay")
	require.ErrorContains(t, err, "remove cgroup")

	delete(f.stubborn, 800)
	require.NoError(t, tree.Close(t.Context()))
	assert.NoDirExists(t, f.path("/sys/fs/cgroup/berth-100-new"))
	assert.Equal(t, "1\n100\n107", f.get("/sys/fs/cgroup/cgroup.procs"))
}

func TestPollEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Millisecond, errShared)
	defer cancel()
	require.ErrorIs(t, poll(ctx, func() (bool, error) { return false, nil }), errShared)
	require.ErrorIs(t, poll(t.Context(), func() (bool, error) { return false, unix.EIO }), unix.EIO)
}
