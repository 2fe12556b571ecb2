package cgroup

import (
	"io/fs"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"berth/slots"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const (
	slot2    = "/sys/fs/cgroup/berth-100-new/slot-0"
	memory1  = "/sys/fs/cgroup/memory/process/bb9d/berth-100-new/slot-0"
	pids1    = "/sys/fs/cgroup/pids/berth-100-new/slot-0"
	cpu1     = "/sys/fs/cgroup/cpu,cpuacct/berth-100-new/slot-0"
	freezer1 = "/sys/fs/cgroup/freezer/berth-100-new/slot-0"
)

func newGroup(t *testing.T, f *fake, l slots.Limits) *Group {
	t.Helper()
	g, err := f.mustOpen().Create("slot-0", l)
	require.NoError(t, err)
	assert.Equal(t, "slot-0", g.name)
	return g
}

func TestLimitsAsTheKernelReadsThem(t *testing.T) {
	tests := map[string]struct {
		limits           slots.Limits
		memory2, swap2   string
		memoryOf1, pids  string
		cpu2, cpuQuotaV1 string
	}{
		"none": {slots.Limits{}, "max", "max", "9223372036854771712", "512", "max 100000", "-1"},
		"all": {
			slots.Limits{MemoryBytes: 256 << 20, Pids: 64, CPUs: 1.5},
			"268435456", "0", "268435456", "64", "150000 100000", "150000",
		},
		"smallest":          {slots.Limits{MemoryBytes: 1, Pids: 1, CPUs: 1e-9}, "1", "0", "1", "1", "1000 100000", "1000"},
		"more than we have": {slots.Limits{CPUs: 64}, "max", "max", "9223372036854771712", "512", "6400000 100000", "-1"},
		"absurd":            {slots.Limits{CPUs: 1e308}, "max", "max", "9223372036854771712", "512", "2147483647000 100000", "-1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f2 := container2(t)
			newGroup(t, f2, tt.limits)
			assert.Equal(t, tt.memory2, f2.get(slot2+"/memory.max"))
			assert.Equal(t, tt.swap2, f2.get(slot2+"/memory.swap.max"))
			assert.Equal(t, "0", f2.get(slot2+"/memory.oom.group"))
			assert.Equal(t, tt.pids, f2.get(slot2+"/pids.max"))
			assert.Equal(t, tt.cpu2, f2.get(slot2+"/cpu.max"))

			f1 := hybrid(t)
			newGroup(t, f1, tt.limits)
			assert.Equal(t, tt.memoryOf1, f1.get(memory1+"/memory.limit_in_bytes"))
			assert.Equal(t, tt.memoryOf1, f1.get(memory1+"/memory.memsw.limit_in_bytes"))
			assert.Equal(t, tt.pids, f1.get(pids1+"/pids.max"))
			assert.Equal(t, tt.cpuQuotaV1, f1.get(cpu1+"/cpu.cfs_quota_us"))
		})
	}
}

func TestV1MemoryAndSwapMoveInTheOrderTheKernelWants(t *testing.T) {
	f := hybrid(t)
	g := newGroup(t, f, slots.Limits{MemoryBytes: 2 << 20})
	for _, bytes := range []int64{8 << 20, 1 << 20, 0, 4 << 20} {
		require.NoError(t, g.Update(slots.Limits{MemoryBytes: bytes}))
		want := bytes
		if bytes == 0 {
			want = 9223372036854771712
		}
		assert.Equal(t, want, readNumber(f.path(memory1+"/memory.limit_in_bytes")))
		assert.Equal(t, want, readNumber(f.path(memory1+"/memory.memsw.limit_in_bytes")))
	}
}

func TestV1WithoutSwapAccountingLimitsMemoryAlone(t *testing.T) {
	f := hybrid(t)
	g := newGroup(t, f, slots.Limits{})
	require.NoError(t, os.Remove(f.path(memory1+"/memory.memsw.limit_in_bytes")))
	require.NoError(t, g.Update(slots.Limits{MemoryBytes: 5 << 20}))
	assert.Equal(t, "5242880", f.get(memory1+"/memory.limit_in_bytes"))
}

func TestV2WithoutSwapOrGroupKillLimitsAllTheSame(t *testing.T) {
	f := container2(t)
	g := newGroup(t, f, slots.Limits{})
	require.NoError(t, os.Remove(f.path(slot2+"/memory.swap.max")))
	require.NoError(t, os.Remove(f.path(slot2+"/memory.oom.group")))
	require.NoError(t, g.Update(slots.Limits{MemoryBytes: 5 << 20}))
	assert.Equal(t, "5242880", f.get(slot2+"/memory.max"))
}

func TestLimitsThatMakeNoSenseAreRefused(t *testing.T) {
	f := container2(t)
	tree := f.mustOpen()
	for _, l := range []slots.Limits{{MemoryBytes: -1}, {Pids: -1}, {CPUs: -0.1}, {CPUs: math.NaN()}, {CPUs: math.Inf(1)}} {
		_, err := tree.Create("bad", l)
		require.ErrorContains(t, err, "create cgroup bad: limits out of range")
	}
	assert.NoDirExists(t, f.path("/sys/fs/cgroup/berth-100-new/bad"))
}

func TestALimitThatTheKernelRefusesLeavesNoGroup(t *testing.T) {
	for _, tt := range []struct {
		f     *fake
		files []string
	}{
		{container2(t), []string{"pids.max", "memory.max", "memory.swap.max", "memory.oom.group", "cpu.max"}},
		{hybrid(t), []string{"pids.max", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "cpu.cfs_period_us", "cpu.cfs_quota_us"}},
	} {
		tree := tt.f.mustOpen()
		before := tt.f.files()
		for _, file := range tt.files {
			tt.f.refuse["bad/"+file] = unix.EIO
			_, err := tree.Create("bad", slots.Limits{CPUs: 1})
			require.ErrorIs(t, err, unix.EIO, file)
			delete(tt.f.refuse, "bad/"+file)
			assert.Equal(t, before, tt.f.files())
		}
	}
}

func TestGroupNames(t *testing.T) {
	tree := container2(t).mustOpen()
	for _, name := range []string{"", ".", "..", "self", "a/b", "-rf", ".hidden", "a b", "a\n", "ü", strings.Repeat("x", 65)} {
		_, err := tree.Create(name, slots.Limits{})
		require.ErrorContains(t, err, "is no name for a group", name)
	}
	_, err := tree.Create("slot-0.spare_1", slots.Limits{})
	require.NoError(t, err)
	_, err = tree.Create("slot-0.spare_1", slots.Limits{})
	require.ErrorIs(t, err, fs.ErrExist)
}

func TestACreateThatFailsInOneHierarchyLeavesNothingInTheOthers(t *testing.T) {
	f := hybrid(t)
	tree := f.mustOpen()
	before := f.files()
	f.refuse["pids/berth-100-new/slot-0"] = unix.ENOSPC
	_, err := tree.Create("slot-0", slots.Limits{})
	require.ErrorIs(t, err, unix.ENOSPC)
	assert.Equal(t, before, f.files())
}

func TestAttachRefusesWhatIsNoProcess(t *testing.T) {
	g := newGroup(t, container2(t), slots.Limits{})
	for _, pid := range []int{0, -1, -100} {
		require.ErrorContains(t, g.Attach(pid), "is no process")
	}
	g.tree.k.write = func(string, string) error { return unix.ESRCH }
	require.ErrorIs(t, g.Attach(5), unix.ESRCH)
}

func TestStatsOfV2(t *testing.T) {
	f := container2(t)
	g := newGroup(t, f, slots.Limits{})
	f.put(slot2+"/memory.current", "1048576\n")
	f.put(slot2+"/memory.peak", "50331648\n")
	f.put(slot2+"/memory.events", "low 0\nhigh 0\nmax 83\noom 2\noom_kill 3\noom_group_kill 1\n")
	f.put(slot2+"/pids.current", "7\n")
	f.put(slot2+"/pids.events", "max 12\n")
	f.put(slot2+"/cpu.stat", "usage_usec 1500000\nuser_usec 1\nsystem_usec 2\nnr_periods 9\nnr_throttled 8\nthrottled_usec 250\nnr_bursts 0\nburst_usec 0\n")
	s, err := g.Stats()
	require.NoError(t, err)
	assert.Equal(t, Stats{
		MemoryBytes: 1 << 20, MemoryPeakBytes: 48 << 20, OOMKills: 3, Pids: 7, PidsRefused: 12,
		CPU: 1500 * time.Millisecond, Throttled: 250 * time.Microsecond,
	}, s)
	n, err := g.OOMKills()
	require.NoError(t, err)
	assert.EqualValues(t, 3, n)

	require.NoError(t, os.Remove(f.path(slot2+"/memory.peak")))
	s, err = g.Stats()
	require.NoError(t, err)
	assert.Zero(t, s.MemoryPeakBytes, "Linux before 5.19")
}

func TestStatsOfV1(t *testing.T) {
	f := hybrid(t)
	g := newGroup(t, f, slots.Limits{})
	f.put(memory1+"/memory.usage_in_bytes", "4096\n")
	f.put(memory1+"/memory.max_usage_in_bytes", "8192\n")
	f.put(memory1+"/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
	f.put(pids1+"/pids.current", "3\n")
	f.put(pids1+"/pids.events", "max 1\n")
	f.put(cpu1+"/cpuacct.usage", "123456789\n")
	f.put(cpu1+"/cpu.stat", "nr_periods 20\nnr_throttled 10\nthrottled_time 900000001\nnr_bursts 0\nburst_time 0\n")
	s, err := g.Stats()
	require.NoError(t, err)
	assert.Equal(t, Stats{
		MemoryBytes: 4096, MemoryPeakBytes: 8192, OOMKills: 2, Pids: 3, PidsRefused: 1,
		CPU: 123456789, Throttled: 900000001,
	}, s)
}

func TestAClosedGroupAnswersSo(t *testing.T) {
	for _, f := range []*fake{container2(t), hybrid(t)} {
		g := newGroup(t, f, slots.Limits{})
		require.NoError(t, g.Close(t.Context()))
		require.NoError(t, g.Close(t.Context()))
		require.NoError(t, g.Kill(t.Context()), "nothing lives in it")
		require.ErrorIs(t, g.Update(slots.Limits{}), fs.ErrClosed)
		require.ErrorIs(t, g.Freeze(t.Context()), fs.ErrClosed)
		require.ErrorIs(t, g.Thaw(), fs.ErrClosed)
		_, err := g.Stats()
		require.ErrorIs(t, err, fs.ErrNotExist)
		_, err = g.OOMKills()
		require.ErrorIs(t, err, fs.ErrClosed)
		require.Error(t, g.Attach(5))
		_, err = g.tree.Create("slot-0", slots.Limits{})
		require.NoError(t, err, "its name is free again")
	}
}

func TestKillFreezesAndThawsWhereThereIsNoKillFile(t *testing.T) {
	for name, f := range map[string]*fake{"v2": container2(t), "v1": hybrid(t)} {
		t.Run(name, func(t *testing.T) {
			f.refuse["cgroup.kill"] = unix.ENOENT
			g := newGroup(t, f, slots.Limits{})
			for pid := range 200 {
				require.NoError(t, g.Attach(1000+pid))
			}
			require.NoError(t, g.Kill(t.Context()))
			assert.Len(t, f.killed, 200)
			text := strings.Join(f.written, "\n")
			if name == "v1" {
				assert.Contains(t, text, "slot-0/freezer.state FROZEN")
				assert.Equal(t, "THAWED", f.get(freezer1+"/freezer.state"))
			} else {
				assert.Contains(t, text, "slot-0/cgroup.freeze 1")
				assert.Equal(t, "0", f.get(slot2+"/cgroup.freeze"))
			}
		})
	}
}

func TestKillStopsForksWhereThereIsNoFreezer(t *testing.T) {
	f := hybrid(t)
	f.refuse["freezer/berth-100-new"] = unix.EROFS
	g := newGroup(t, f, slots.Limits{Pids: 9})
	require.NoError(t, g.Attach(900))
	f.written = nil
	require.NoError(t, g.Kill(t.Context()))
	assert.Equal(t, []int{900}, f.killed)
	assert.Contains(t, strings.Join(f.written, "\n"), "slot-0/pids.max 0")
	assert.Equal(t, "9", f.get(pids1+"/pids.max"), "the limit is back")
}

func TestKillNeverSignalsItselfOrItsProcessGroup(t *testing.T) {
	f := hybrid(t)
	g := newGroup(t, f, slots.Limits{})
	f.put(pids1+"/cgroup.procs", "0\n100\n900\n")
	err := g.Kill(soon(t))
	require.Error(t, err, "the two others stay")
	assert.Equal(t, []int{900}, f.killed)
}

func TestKillReachesGroupsBelow(t *testing.T) {
	for _, f := range []*fake{container2(t), hybrid(t)} {
		g := newGroup(t, f, slots.Limits{})
		below := g.dirs[0] + "/made/inside"
		require.NoError(t, f.mkdir(g.dirs[0]+"/made"))
		require.NoError(t, f.mkdir(below))
		require.NoError(t, f.attach(below, "950"))
		require.NoError(t, g.Close(t.Context()))
		assert.Equal(t, []int{950}, f.killed)
		assert.NoDirExists(t, g.dirs[0])
	}
}

func TestCloseNamesTheProcessesThatStayed(t *testing.T) {
	for _, f := range []*fake{container2(t), hybrid(t)} {
		g := newGroup(t, f, slots.Limits{})
		require.NoError(t, g.Attach(666))
		f.stubborn[666] = true
		err := g.Close(soon(t))
		require.ErrorContains(t, err, "close cgroup slot-0: processes [666] stay")
		delete(f.stubborn, 666)
		require.NoError(t, g.Close(t.Context()), "again, once it can end")
	}
}

func TestCloseRemovesAGroupOfZombiesAndSaysSo(t *testing.T) {
	f := hybrid(t)
	g := newGroup(t, f, slots.Limits{})
	f.put(pids1+"/pids.current", "2\n")
	err := g.Close(soon(t))
	require.ErrorIs(t, err, ErrUnreaped)
	require.ErrorContains(t, err, ": 2")
	assert.NoDirExists(t, f.path(pids1))
}

func TestCloseReportsADirectoryThatCannotBeRemoved(t *testing.T) {
	f := container2(t)
	g := newGroup(t, f, slots.Limits{})
	f.refuse["slot-0"] = unix.EBUSY
	err := g.Close(soon(t))
	require.ErrorIs(t, err, unix.EBUSY)
	require.ErrorContains(t, err, "slot-0")
	f.refuse["slot-0"] = unix.EIO
	require.ErrorIs(t, g.Close(soon(t)), unix.EIO)
	delete(f.refuse, "slot-0")
	require.NoError(t, g.Close(t.Context()))
}

func TestFreezeThatDoesNotFinishThaws(t *testing.T) {
	f := hybrid(t)
	g := newGroup(t, f, slots.Limits{})
	write := g.tree.k.write
	g.tree.k.write = func(file, value string) error {
		if value == "FROZEN" {
			value = "FREEZING" // what is read while one process hangs in the kernel
		}
		return write(file, value)
	}
	require.Error(t, g.Freeze(soon(t)))
	assert.Equal(t, "THAWED", f.get(freezer1+"/freezer.state"))
	g.tree.k.write = write
	require.NoError(t, g.Freeze(t.Context()))
	assert.Equal(t, "FROZEN", f.get(freezer1+"/freezer.state"))
	require.NoError(t, g.Thaw())
}
