package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"berth/slots"

	"golang.org/x/sys/unix"
)

// DefaultPids is the limit of processes and threads where Limits.Pids is zero.
const DefaultPids = 512

// ErrUnreaped says that a group is gone, but that processes of it that have
// ended were still not waited for by their parents.
var ErrUnreaped = errors.New("ended processes were not reaped")

// Group is one set of processes. Its methods may be called from several
// goroutines; a method called after Close fails with fs.ErrClosed.
type Group struct {
	tree *Tree
	name string
	dirs []string          // every directory of the group: one on v2, one per hierarchy on v1
	by   map[string]string // the directory of each controller
	oom  *os.File          // counts OOM kills; nil when memory is not limited here
	dir  *os.File          // v2 only

	mu     sync.Mutex // one change of limits or state at a time; readers do not take it
	closed bool
}

// open opens what must be cheap later.
func (g *Group) open() error {
	if home, ok := g.by[memory]; ok {
		file := "memory.events"
		if g.tree.version == 1 {
			file = "memory.oom_control"
		}
		f, err := os.Open(filepath.Join(home, file))
		if err != nil {
			return err
		}
		g.oom = f
	}
	if g.tree.version == 2 {
		f, err := os.OpenFile(g.dirs[0], unix.O_DIRECTORY|unix.O_RDONLY, 0)
		if err != nil {
			return errors.Join(err, g.shut())
		}
		g.dir = f
	}
	return nil
}

func (g *Group) shut() error {
	var errs []error
	for _, f := range []*os.File{g.oom, g.dir} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// Attach moves a process with all its threads into the group, and with that
// every process that it starts from now on. Memory that it already has stays
// charged to where it was. On v1 a process whose Attach failed may be in the
// group for some controllers: end it.
func (g *Group) Attach(pid int) error {
	if pid <= 0 {
		return fmt.Errorf("attach to cgroup %s: %d is no process", g.name, pid)
	}
	for _, dir := range g.dirs {
		if err := g.tree.k.write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("attach process %d to cgroup %s: %w", pid, g.name, err)
		}
	}
	return nil
}

// Dir is the group's directory for CLONE_INTO_CGROUP (SysProcAttr.CgroupFD):
// a process is then born in the group. False on v1. The file stays the
// group's: do not close it.
func (g *Group) Dir() (*os.File, bool) { return g.dir, g.dir != nil }

// Update sets other limits. A memory limit below what is in use makes the
// kernel reclaim and, where that does not suffice, refuse (v1) or kill (v2).
func (g *Group) Update(l slots.Limits) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return fmt.Errorf("limit cgroup %s: %w", g.name, fs.ErrClosed)
	}
	if err := g.limit(l); err != nil {
		return fmt.Errorf("limit cgroup %s: %w", g.name, err)
	}
	return nil
}

func (g *Group) limit(l slots.Limits) error {
	if l.MemoryBytes < 0 || l.Pids < 0 || l.CPUs < 0 || math.IsNaN(l.CPUs) || math.IsInf(l.CPUs, 0) {
		return fmt.Errorf("limits out of range: memory %d, pids %d, cpus %v", l.MemoryBytes, l.Pids, l.CPUs)
	}
	count := l.Pids
	if count == 0 {
		count = DefaultPids
	}
	if err := g.set(pids, "pids.max", strconv.FormatInt(count, 10)); err != nil {
		return err
	}
	if g.tree.version == 2 {
		return g.limit2(l)
	}
	return g.limit1(l)
}

// set writes a control file of a controller; no-op where that is missing.
func (g *Group) set(controller, file, value string) error {
	dir, ok := g.by[controller]
	if !ok {
		return nil
	}
	return g.tree.k.write(filepath.Join(dir, file), value)
}

// period is the window of CPU quotas in microseconds, the kernel's default;
// minQuota the smallest quota it takes.
const (
	period   = 100_000
	minQuota = 1_000
)

func quota(cpus float64) int64 {
	return int64(min(max(math.Round(cpus*period), minQuota), math.MaxInt32*1_000))
}

func (g *Group) limit2(l slots.Limits) error {
	limit := "max"
	if l.MemoryBytes > 0 {
		limit = strconv.FormatInt(l.MemoryBytes, 10)
	}
	if err := g.set(memory, "memory.max", limit); err != nil {
		return err
	}
	// Swap included: the limit is one sum, so a limited group may not swap.
	swap := limit
	if l.MemoryBytes > 0 {
		swap = "0"
	}
	if err := g.set(memory, "memory.swap.max", swap); err != nil && !gone(err) {
		return err
	}
	// The kernel picks one victim: the holder of the slot is in the group too.
	if err := g.set(memory, "memory.oom.group", "0"); err != nil && !gone(err) {
		return err
	}
	share := fmt.Sprintf("max %d", period)
	if l.CPUs > 0 {
		share = fmt.Sprintf("%d %d", quota(l.CPUs), period)
	}
	return g.set(cpu, "cpu.max", share)
}

func (g *Group) limit1(l slots.Limits) error {
	limit := "-1"
	if l.MemoryBytes > 0 {
		limit = strconv.FormatInt(l.MemoryBytes, 10)
	}
	if err := g.memory1(limit); err != nil {
		return err
	}
	if l.CPUs <= 0 {
		return g.set(cpu, "cpu.cfs_quota_us", "-1")
	}
	if err := g.set(cpu, "cpu.cfs_period_us", strconv.Itoa(period)); err != nil {
		return err
	}
	err := g.set(cpu, "cpu.cfs_quota_us", strconv.FormatInt(quota(l.CPUs), 10))
	if errors.Is(err, unix.EINVAL) {
		// More than an ancestor has: v2 would take it and let the ancestor's
		// quota hold, so the same is done here.
		return g.set(cpu, "cpu.cfs_quota_us", "-1")
	}
	return err
}

// memory1 sets memory alone and memory with swap to the same value. The kernel
// wants the first never above the second, so raising goes the other way round.
func (g *Group) memory1(limit string) error {
	const alone, withSwap = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
	first, second := alone, withSwap
	if !exists(filepath.Join(g.by[memory], withSwap)) {
		return g.set(memory, alone, limit)
	}
	err := g.set(memory, first, limit)
	if errors.Is(err, unix.EINVAL) {
		first, second = second, first
		err = g.set(memory, first, limit)
	}
	if err != nil {
		return err
	}
	return g.set(memory, second, limit)
}

// Close kills what is left in the group, waits until it is empty and its
// zombies are reaped, and removes it. It is idempotent. When ctx ends first,
// the error names the processes that stayed, and Close may be called again;
// when only zombies stayed the group is removed all the same and the error is
// ErrUnreaped.
func (g *Group) Close(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	if err := g.killLocked(ctx); err != nil {
		return fmt.Errorf("close cgroup %s: %w", g.name, err)
	}
	zombies := g.reaped(ctx)
	if err := g.removeLocked(ctx); err != nil {
		return fmt.Errorf("close cgroup %s: %w", g.name, err)
	}
	g.closed = true
	g.tree.forget(g)
	err := g.shut()
	if zombies > 0 {
		err = errors.Join(err, fmt.Errorf("close cgroup %s: %w: %d", g.name, ErrUnreaped, zombies))
	}
	return err
}

// reaped waits until nothing is charged as a process any more and returns how
// many zombies stayed.
func (g *Group) reaped(ctx context.Context) int64 {
	dir, ok := g.by[pids]
	if !ok {
		return 0
	}
	var left int64
	_ = poll(ctx, func() (bool, error) {
		left = readNumber(filepath.Join(dir, "pids.current"))
		return left == 0, nil
	})
	return left
}

// removeLocked removes the directories. The kernel may still be tearing down
// the last process when its list is empty already and answer EBUSY.
func (g *Group) removeLocked(ctx context.Context) error {
	var errs []error
	for _, dir := range g.dirs {
		for _, d := range append(descend(dir), dir) {
			var last error
			err := poll(ctx, func() (bool, error) {
				last = g.tree.k.rmdir(d)
				if last == nil || gone(last) {
					return true, nil
				}
				if errors.Is(last, unix.EBUSY) {
					return false, nil
				}
				return false, last
			})
			if err != nil {
				errs = append(errs, fmt.Errorf("remove %s: %w", d, errors.Join(last, err)))
			}
		}
	}
	return errors.Join(errs...)
}
