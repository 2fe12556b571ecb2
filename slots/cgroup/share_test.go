package cgroup

import (
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheShareIsTheSmallestQuotaOnTheWayUp(t *testing.T) {
	bare := CPUs(t.TempDir())
	assert.Positive(t, bare, "without cgroups the affinity counts")

	f := scope2(t, ownPid)
	assert.InDelta(t, bare, CPUs(f.root), 0)
	f.put(scope+"/cpu.max", "75000 100000\n")
	assert.InDelta(t, 0.75, CPUs(f.root), 1e-9)
	f.put("/sys/fs/cgroup/system.slice/cpu.max", "10000 50000\n")
	assert.InDelta(t, 0.2, CPUs(f.root), 1e-9)
	f.put("/sys/fs/cgroup/cpu.max", "1 1000\n") // the real root has none, but a container's has
	assert.InDelta(t, 0.001, CPUs(f.root), 1e-9)

	h := hybrid(t)
	assert.InDelta(t, bare, CPUs(h.root), 0)
	h.put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "25000\n")
	assert.InDelta(t, 0.25, CPUs(h.root), 1e-9)
}

func TestParseCPUMax(t *testing.T) {
	none := math.Inf(1)
	for text, want := range map[string]float64{
		"max 100000": none, "-1 100000": none, "0 100000": none, "50000 100000": 0.5,
		"": none, "50000": none, "x y": none, "100 0": none, "250000 100000\n": 2.5,
	} {
		assert.InDelta(t, min(want, 1e9), min(parseCPUMax(text), 1e9), 0, text)
	}
}

func TestParseMounts(t *testing.T) {
	got := parseMounts(hybridMounts + dockerMounts2 + `
nonsense
1 2 3
44 43 0:40 / /mnt/with\040space\134and\011tab rw - cgroup2 cgroup2 rw
45 43 0:41 / /x rw shared:1 master:2 propagate_from:3 - cgroup none rw,xattr,freezer
46 43 0:42 / /y rw - cgroup none
`)
	want := []mount{
		{root: "/", point: "/sys/fs/cgroup/cpu,cpuacct", controllers: []string{cpu, cpuacct}},
		{root: "/", point: "/sys/fs/cgroup/memory", controllers: []string{memory}},
		{root: "/", point: "/sys/fs/cgroup/freezer", controllers: []string{freezer}},
		{root: "/", point: "/sys/fs/cgroup/pids", controllers: []string{pids}},
		{root: "/", point: "/sys/fs/cgroup/unified", v2: true},
		{root: "/", point: "/sys/fs/cgroup", v2: true},
		{root: "/", point: "/mnt/with space\\and\ttab", v2: true},
		{root: "/", point: "/x", controllers: []string{freezer}},
	}
	assert.Equal(t, want, got)
}

func TestParseMembership(t *testing.T) {
	got := parseMembership(hybridMembership)
	assert.Equal(t, "/", got.v2)
	assert.Equal(t, map[string]string{
		"name=systemd": "/", pids: "/", freezer: "/", memory: "/process/bb9d", cpu: "/", cpuacct: "/",
	}, got.v1)
	assert.Equal(t, "/a:b", parseMembership("0::/a:b\n").v2, "a path may hold a colon")
	assert.Empty(t, parseMembership("garbage\n1:memory:relative\n").v1)
}

func TestOwnCgroupBelowAMount(t *testing.T) {
	tests := []struct {
		root, path, dir string
		ok              bool
	}{
		{"/", "/", "/m", true},
		{"/", "/a/b", "/m/a/b", true},
		{"/docker/x", "/docker/x", "/m", true},
		{"/docker/x", "/docker/x/y", "/m/y", true},
		{"/docker/x", "/docker/xy", "", false},
		{"/docker/x", "/", "", false},
		{"/../..", "/", "", false},
	}
	for _, tt := range tests {
		dir, ok := mount{root: tt.root, point: "/m"}.under(tt.path)
		assert.Equal(t, tt.ok, ok, "%+v", tt)
		if ok {
			assert.Equal(t, tt.dir, dir)
		}
	}
}

func TestParseKeyed(t *testing.T) {
	assert.Equal(t, map[string]int64{"low": 0, "oom_kill": 3},
		parseKeyed("low 0\noom_kill 3\nsome avg10=0.00\nlonely\nbig 99999999999999999999\n"))
}

func FuzzParsersNeverPanic(f *testing.F) {
	f.Add(hybridMounts, hybridMembership, "low 0\nmax 1\n")
	f.Add(dockerMounts1, dockerMembership1, "max 100000")
	f.Fuzz(func(t *testing.T, mountinfo, membership, keyed string) {
		p := place{root: "/", mounts: parseMounts(mountinfo), member: parseMembership(membership)}
		for _, c := range []string{memory, cpu} {
			if s, ok := p.v1(c); ok {
				require.NotEmpty(t, s.upwards())
			}
		}
		if s, ok := p.v2(); ok {
			require.GreaterOrEqual(t, s.above, 0)
		}
		parseKeyed(keyed)
		require.False(t, math.IsNaN(parseCPUMax(keyed)))
		if _, pid, ok := owner(keyed); ok {
			require.Positive(t, pid)
		}
	})
}

func TestKillPidsSparesWhoIsNoLongerListed(t *testing.T) {
	require.NoError(t, killPids([]int{os.Getpid()}, func() []int { return nil }), "we are still here")
	require.NoError(t, killPids([]int{1 << 30}, func() []int { return []int{1 << 30} }), "nobody has that pid")
}
