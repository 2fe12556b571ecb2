package cgroup

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// What a new group's files say: Linux 6.1 for v2, 6.18 for v1.
var texts2 = map[string]map[string]string{
	"": {
		"cgroup.controllers": "", "cgroup.subtree_control": "", "cgroup.procs": "", "cgroup.type": "domain\n",
		"cgroup.events": "populated 0\nfrozen 0\n", "cgroup.freeze": "0\n", "cgroup.kill": "",
		"cpu.stat": "usage_usec 0\nuser_usec 0\nsystem_usec 0\n",
	},
	memory: {
		"memory.current": "0\n", "memory.peak": "0\n", "memory.max": "max\n", "memory.swap.max": "max\n", "memory.oom.group": "0\n",
		"memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
	},
	pids: {"pids.current": "0\n", "pids.max": "max\n", "pids.events": "max 0\n"},
	cpu:  {"cpu.max": "max 100000\n"},
}

var texts1 = map[string]map[string]string{
	"": {"cgroup.procs": "", "tasks": "", "notify_on_release": "0\n"},
	memory: {
		"memory.limit_in_bytes": "9223372036854771712\n", "memory.memsw.limit_in_bytes": "9223372036854771712\n",
		"memory.usage_in_bytes": "0\n", "memory.max_usage_in_bytes": "0\n",
		"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
		"memory.stat":        "cache 0\nrss 0\nhierarchical_memory_limit 9223372036854771712\n",
	},
	pids: {"pids.current": "0\n", "pids.max": "max\n", "pids.events": "max 0\n"},
	cpu: {
		"cpu.cfs_period_us": "100000\n", "cpu.cfs_quota_us": "-1\n",
		"cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\nnr_bursts 0\nburst_time 0\n",
	},
	cpuacct: {"cpuacct.usage": "0\n"},
	freezer: {"freezer.state": "THAWED\n"},
}

// fake is a machine in a directory: /proc and cgroup mounts as plain files,
// changed only through a kernel that keeps the real one's rules.
type fake struct {
	t        *testing.T
	root     string
	v1       map[string][]string // controllers by mount point
	readonly bool                // as seen through the mounts; not through a descriptor
	real     string              // the real root of the v2 hierarchy, if any
	alive    map[int]bool
	refuse   map[string]error // by the end of a file's path, before anything else
	stubborn map[int]bool     // SIGKILL does not end these
	killed   []int
	written  []string // "file value", relative to root
}

const (
	ownPid   = 100
	childPid = 4242
)

func newFake(t *testing.T, mountinfo, membership string) *fake {
	t.Helper()
	f := &fake{
		t: t, root: t.TempDir(), v1: map[string][]string{},
		alive: map[int]bool{ownPid: true}, refuse: map[string]error{}, stubborn: map[int]bool{},
	}
	require.NoError(t, os.MkdirAll(f.path("/proc/self"), 0o755))
	f.put("/proc/self/mountinfo", mountinfo)
	f.put("/proc/self/cgroup", membership)
	return f
}

func (f *fake) path(p string) string { return filepath.Join(f.root, p) }

func (f *fake) put(p, text string) {
	f.t.Helper()
	require.NoError(f.t, os.WriteFile(f.path(p), []byte(text), 0o600))
}

func (f *fake) get(p string) string {
	f.t.Helper()
	text, err := readText(f.path(p))
	require.NoError(f.t, err)
	return text
}

// cgroup2 makes an existing v2 cgroup with its processes.
func (f *fake) cgroup2(p, controllers, subtree string, pids ...int) {
	f.t.Helper()
	require.NoError(f.t, os.MkdirAll(f.path(p), 0o755))
	f.fill(f.path(p), texts2, append([]string{""}, strings.Fields(controllers)...))
	f.put(p+"/cgroup.controllers", controllers+"\n")
	f.put(p+"/cgroup.subtree_control", subtree+"\n")
	f.put(p+"/cgroup.procs", lines(pids))
	f.events(f.path(p))
}

// cgroup1 makes our own cgroup in one v1 hierarchy.
func (f *fake) cgroup1(point, own string, controllers []string, pids ...int) {
	f.t.Helper()
	f.v1[point] = controllers
	dir := filepath.Join(point, own)
	require.NoError(f.t, os.MkdirAll(f.path(dir), 0o755))
	f.fill(f.path(dir), texts1, append([]string{""}, controllers...))
	f.put(dir+"/cgroup.procs", lines(pids))
}

func (f *fake) fill(dir string, texts map[string]map[string]string, controllers []string) {
	f.t.Helper()
	for _, c := range controllers {
		for file, text := range texts[c] {
			require.NoError(f.t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
		}
	}
}

func lines(pids []int) string {
	var b strings.Builder
	for _, pid := range pids {
		fmt.Fprintln(&b, pid)
	}
	return b.String()
}

// hierarchy is the mount point above a path and whether it is v1.
func (f *fake) hierarchy(path string) ([]string, bool) {
	for point, controllers := range f.v1 {
		if strings.HasPrefix(path, f.path(point)+"/") {
			return controllers, true
		}
	}
	return nil, false
}

// through resolves a path; a descriptor's mount is writable whatever the
// machine's own is.
func (f *fake) through(path string) (string, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: unix.ENOENT}
	}
	if f.readonly && !strings.HasPrefix(path, "/proc/self/fd/") {
		return "", &os.PathError{Op: "open", Path: path, Err: unix.EROFS}
	}
	return filepath.Join(dir, filepath.Base(path)), nil
}

func (f *fake) kernel() kernel {
	return kernel{
		mkdir: f.mkdir, rmdir: f.rmdir, write: f.write, signal: f.signal,
		child: func() (int, func(), error) { return childPid, func() { f.end(childPid) }, nil },
		alive: func(pid int) bool { return f.alive[pid] },
		pid:   ownPid,
	}
}

func (f *fake) refused(path string) error {
	for end, err := range f.refuse {
		if strings.HasSuffix(path, end) {
			return &os.PathError{Op: "write", Path: path, Err: err}
		}
	}
	return nil
}

func (f *fake) mkdir(path string) error {
	path, err := f.through(path)
	if err != nil {
		return err
	}
	if err := f.refused(path); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	if controllers, ok := f.hierarchy(path); ok {
		f.fill(path, texts1, append([]string{""}, controllers...))
		return nil
	}
	parent, err := readText(filepath.Join(filepath.Dir(path), "cgroup.subtree_control"))
	if err != nil {
		return err
	}
	f.fill(path, texts2, append([]string{""}, strings.Fields(parent)...))
	return os.WriteFile(filepath.Join(path, "cgroup.controllers"), []byte(parent+"\n"), 0o600)
}

func (f *fake) rmdir(path string) error {
	path, err := f.through(path)
	if err != nil {
		return err
	}
	if err := f.refused(path); err != nil {
		return err
	}
	if !exists(path) {
		return unix.ENOENT
	}
	procs, _ := listPids(path, true)
	if len(procs) > 0 || len(descend(path)) > 0 {
		return &os.PathError{Op: "rmdir", Path: path, Err: unix.EBUSY}
	}
	return os.RemoveAll(path)
}

func (f *fake) write(path, value string) error {
	path, err := f.through(path)
	if err != nil {
		return err
	}
	if err := f.refused(path); err != nil {
		return err
	}
	if !exists(path) {
		return &os.PathError{Op: "open", Path: path, Err: unix.ENOENT}
	}
	rel, _ := filepath.Rel(f.root, path)
	f.written = append(f.written, rel+" "+value)
	dir := filepath.Dir(path)
	switch filepath.Base(path) {
	case "cgroup.procs":
		return f.attach(dir, value)
	case "cgroup.subtree_control":
		return f.subtree(dir, value)
	case "cgroup.kill":
		pids, _ := listPids(dir, true)
		return f.signal(pids, func() []int { return pids })
	case "cgroup.freeze":
		populated := parseKeyed(f.mustRead(filepath.Join(dir, "cgroup.events")))["populated"]
		f.mustWrite(filepath.Join(dir, "cgroup.events"), fmt.Sprintf("populated %d\nfrozen %s\n", populated, value))
	case "cpu.cfs_quota_us":
		if q, _ := strconv.Atoi(value); q > 200_000 {
			return unix.EINVAL // an ancestor has two CPUs
		}
	case "memory.limit_in_bytes":
		if v, ok := number(value); ok && exists(filepath.Join(dir, "memory.memsw.limit_in_bytes")) &&
			v > readNumber(filepath.Join(dir, "memory.memsw.limit_in_bytes")) {
			return unix.EINVAL
		}
	case "memory.memsw.limit_in_bytes":
		if v, ok := number(value); ok && v < readNumber(filepath.Join(dir, "memory.limit_in_bytes")) {
			return unix.EINVAL
		}
	}
	if value == "-1" && strings.HasSuffix(path, "limit_in_bytes") {
		value = "9223372036854771712"
	}
	f.mustWrite(path, value+"\n")
	return nil
}

func number(value string) (int64, bool) {
	v, err := strconv.ParseInt(value, 10, 64)
	return v, err == nil && v >= 0
}

func (f *fake) mustRead(path string) string {
	text, err := readText(path)
	require.NoError(f.t, err)
	return text
}

func (f *fake) mustWrite(path, text string) {
	require.NoError(f.t, os.WriteFile(path, []byte(text), 0o600))
}

func (f *fake) attach(dir, value string) error {
	if text, err := readText(filepath.Join(dir, "cgroup.subtree_control")); err == nil && text != "" && dir != f.real {
		return unix.EBUSY
	}
	pid, err := strconv.Atoi(value)
	if err != nil {
		return unix.EINVAL
	}
	point := f.root
	for p := range f.v1 {
		if strings.HasPrefix(dir, f.path(p)) {
			point = f.path(p)
		}
	}
	f.drop(point, pid)
	listed, _ := listPids(dir, false)
	f.mustWrite(filepath.Join(dir, "cgroup.procs"), lines(append(listed, pid)))
	f.events(dir)
	return nil
}

func (f *fake) subtree(dir, value string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	have := strings.Fields(f.mustRead(file))
	name := value[1:]
	if !slices.Contains(strings.Fields(f.mustRead(filepath.Join(dir, "cgroup.controllers"))), name) {
		return unix.ENOENT
	}
	procs, _ := listPids(dir, false)
	if value[0] == '+' && len(procs) > 0 && dir != f.real {
		return unix.EBUSY
	}
	children, _ := os.ReadDir(dir)
	for _, c := range children {
		child := filepath.Join(dir, c.Name())
		if !c.IsDir() {
			continue
		}
		if value[0] == '-' {
			if slices.Contains(strings.Fields(f.mustRead(filepath.Join(child, "cgroup.subtree_control"))), name) {
				return unix.EBUSY
			}
			for file := range texts2[name] {
				_ = os.Remove(filepath.Join(child, file))
			}
		} else if !slices.Contains(have, name) {
			f.fill(child, texts2, []string{name})
		}
	}
	have = slices.DeleteFunc(have, func(s string) bool { return s == name })
	if value[0] == '+' {
		have = append(have, name)
	}
	f.mustWrite(file, strings.Join(have, " ")+"\n")
	for _, c := range children {
		if c.IsDir() {
			f.mustWrite(filepath.Join(dir, c.Name(), "cgroup.controllers"), strings.Join(have, " ")+"\n")
		}
	}
	return nil
}

// drop takes a process out of whichever cgroup below point it is in.
func (f *fake) drop(point string, pid int) {
	for _, dir := range append(descend(point), point) {
		listed, err := listPids(dir, false)
		if err != nil || !slices.Contains(listed, pid) {
			continue
		}
		listed = slices.DeleteFunc(listed, func(p int) bool { return p == pid })
		f.mustWrite(filepath.Join(dir, "cgroup.procs"), lines(listed))
		f.events(dir)
	}
}

// events brings cgroup.events of dir and of what is above it up to date.
func (f *fake) events(dir string) {
	for ; strings.HasPrefix(dir, f.root); dir = filepath.Dir(dir) {
		text, err := readText(filepath.Join(dir, "cgroup.events"))
		if err != nil {
			return
		}
		listed, _ := listPids(dir, true)
		f.mustWrite(filepath.Join(dir, "cgroup.events"),
			fmt.Sprintf("populated %d\nfrozen %d\n", min(1, len(listed)), parseKeyed(text)["frozen"]))
	}
}

func (f *fake) end(pid int) {
	f.drop(f.root, pid)
	delete(f.alive, pid)
}

func (f *fake) signal(pids []int, still func() []int) error {
	listed := still()
	for _, pid := range pids {
		if !slices.Contains(listed, pid) || f.stubborn[pid] {
			continue
		}
		f.killed = append(f.killed, pid)
		f.end(pid)
	}
	return nil
}

func (f *fake) open(cfg Config) (*Tree, error) {
	cfg.Root = f.root
	if cfg.Name == "" {
		cfg.Name = "berth-100-new"
	}
	return open(f.t.Context(), cfg, f.kernel())
}

func (f *fake) mustOpen() *Tree {
	f.t.Helper()
	tree, err := f.open(Config{})
	require.NoError(f.t, err)
	return tree
}

// files is every file and directory with its text, to compare before and after.
func (f *fake) files() map[string]string {
	out := map[string]string{}
	require.NoError(f.t, filepath.WalkDir(f.root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(f.root, path)
		out[rel] = "dir"
		if !d.IsDir() {
			out[rel] = f.mustRead(path)
		}
		return nil
	}))
	return out
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func sortedKeys(m map[string]bool) []string { return slices.Sorted(maps.Keys(m)) }

// The machines, as their kernels describe them.
const (
	dockerMounts2 = `134 130 0:44 / /sys ro,nosuid,nodev,noexec,relatime - sysfs sysfs ro
135 134 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw,nsdelegate,memory_recursiveprot
`
	hostMounts2 = `31 22 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
`
	hybridMounts = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
	hybridMembership = `9:name=systemd:/
8:pids:/
6:freezer:/
4:memory:/process/bb9d
1:cpu,cpuacct:/
0::/
`
	dockerMounts1 = `616 615 0:30 /docker/ab12 /sys/fs/cgroup/memory ro,nosuid,nodev,noexec,relatime master:16 - cgroup cgroup rw,memory
617 615 0:31 /docker/ab12 /sys/fs/cgroup/pids ro,nosuid,nodev,noexec,relatime master:17 - cgroup cgroup rw,pids
`
	dockerMembership1 = "4:memory:/docker/ab12\n3:pids:/docker/ab12\n"
)

// container2 is a docker container on a v2 host: bash is PID 1, we are 100.
func container2(t *testing.T) *fake {
	t.Helper()
	f := newFake(t, dockerMounts2, "0::/\n")
	f.cgroup2("/sys/fs/cgroup", "cpuset cpu io memory hugetlb pids rdma misc", "", 1, ownPid, 107)
	return f
}

// scope2 is a systemd scope on a v2 host with the given processes.
func scope2(t *testing.T, pids ...int) *fake {
	t.Helper()
	f := newFake(t, hostMounts2, "0::/system.slice/run.scope\n")
	f.cgroup2("/sys/fs/cgroup", "cpuset cpu io memory pids", "cpu memory pids", 2)
	require.NoError(t, os.Remove(f.path("/sys/fs/cgroup/cgroup.type")))
	f.real = f.path("/sys/fs/cgroup")
	f.cgroup2("/sys/fs/cgroup/system.slice", "cpu memory pids", "cpu memory pids")
	f.cgroup2("/sys/fs/cgroup/system.slice/run.scope", "cpu memory pids", "", pids...)
	return f
}

// hybrid is a host with v1 controllers and an empty v2 beside them.
func hybrid(t *testing.T) *fake {
	t.Helper()
	f := newFake(t, hybridMounts, hybridMembership)
	f.cgroup2("/sys/fs/cgroup/unified", "hugetlb", "", ownPid, 1)
	f.real = f.path("/sys/fs/cgroup/unified")
	f.cgroup1("/sys/fs/cgroup/cpu,cpuacct", "/", []string{cpu, cpuacct}, 1, ownPid)
	f.cgroup1("/sys/fs/cgroup/memory", "/process/bb9d", []string{memory}, ownPid)
	f.cgroup1("/sys/fs/cgroup/freezer", "/", []string{freezer}, 1, ownPid)
	f.cgroup1("/sys/fs/cgroup/pids", "/", []string{pids}, 1, ownPid)
	return f
}
