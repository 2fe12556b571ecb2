package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Kill ends every process of the group, whatever it did to escape, and
// returns when none is left; zombies do not count. It uses cgroup.kill, else
// it freezes the group, kills what it lists and thaws it, again until the
// list is empty. A frozen group is thawed. When ctx ends first the error names
// the processes that stayed.
func (g *Group) Kill(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	if err := g.killLocked(ctx); err != nil {
		return fmt.Errorf("kill cgroup %s: %w", g.name, err)
	}
	return nil
}

func (g *Group) killLocked(ctx context.Context) error {
	patience := 20 * time.Millisecond
	for {
		empty, err := g.empty()
		if err != nil {
			return err
		}
		if empty {
			return g.refreezeLocked(false)
		}
		failed := g.strikeLocked(ctx)
		wait, cancel := context.WithTimeout(ctx, patience)
		err = poll(wait, g.empty)
		cancel()
		if err != nil && ctx.Err() != nil {
			return errors.Join(fmt.Errorf("processes %v stay: %w", g.left(), context.Cause(ctx)), failed)
		}
		patience = min(2*patience, time.Second)
	}
}

// strikeLocked sends SIGKILL to everybody once.
func (g *Group) strikeLocked(ctx context.Context) error {
	if g.tree.version == 2 {
		err := g.tree.k.write(filepath.Join(g.dirs[0], "cgroup.kill"), "1")
		if err == nil || !gone(err) { // Linux before 5.14 has no such file
			return err
		}
	}
	var errs []error
	if _, ok := g.by[freezer]; ok {
		// Frozen processes cannot fork and, on v1, cannot end: their pids are
		// not reused while we read them. One that hangs in the kernel may keep
		// the rest from counting as frozen, so this does not wait for long.
		wait, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		err := g.freezeLocked(wait, true)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			errs = append(errs, err)
		}
		defer func() { _ = g.refreezeLocked(false) }()
	} else if _, ok := g.by[pids]; ok {
		// No fork succeeds any more, so the list can only shrink.
		limit, err := readText(filepath.Join(g.by[pids], "pids.max"))
		if err == nil && g.set(pids, "pids.max", "0") == nil {
			defer func() { _ = g.set(pids, "pids.max", limit) }()
		}
	}
	for batch := range slices.Chunk(g.left(), 64) {
		errs = append(errs, g.tree.k.signal(batch, g.left))
	}
	return errors.Join(errs...)
}

// left lists the living processes that we can see, each once. Zero, a process
// outside our pid namespace, must never reach kill(2): it means our own group.
func (g *Group) left() []int {
	var out []int
	for _, dir := range g.dirs {
		listed, _ := listPids(dir, true) // what cannot be listed fails in empty
		for _, pid := range listed {
			if pid > 0 && pid != g.tree.k.pid && !slices.Contains(out, pid) {
				out = append(out, pid)
			}
		}
	}
	return out
}

// empty reports whether no living process is in the group. A group that was
// removed is empty.
func (g *Group) empty() (bool, error) {
	if g.tree.version == 2 {
		text, err := readText(filepath.Join(g.dirs[0], "cgroup.events"))
		if gone(err) {
			return true, nil
		}
		return err == nil && parseKeyed(text)["populated"] == 0, err
	}
	for _, dir := range g.dirs {
		listed, err := listPids(dir, true)
		if err != nil && !gone(err) {
			return false, err
		}
		if len(listed) > 0 {
			return false, nil
		}
	}
	return true, nil
}

// Freeze stops every process of the group and returns when all have stopped,
// or when ctx ends: then the group is thawed again.
func (g *Group) Freeze(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return fmt.Errorf("freeze cgroup %s: %w", g.name, fs.ErrClosed)
	}
	if _, ok := g.by[freezer]; !ok {
		return fmt.Errorf("freeze cgroup %s: %w", g.name, errors.ErrUnsupported)
	}
	if err := g.freezeLocked(ctx, true); err != nil {
		return errors.Join(fmt.Errorf("freeze cgroup %s: %w", g.name, err), g.refreezeLocked(false))
	}
	return nil
}

// Thaw lets the processes go on.
func (g *Group) Thaw() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return fmt.Errorf("thaw cgroup %s: %w", g.name, fs.ErrClosed)
	}
	if err := g.refreezeLocked(false); err != nil {
		return fmt.Errorf("thaw cgroup %s: %w", g.name, err)
	}
	return nil
}

// freezeLocked asks and waits for the answer.
func (g *Group) freezeLocked(ctx context.Context, frozen bool) error {
	if err := g.refreezeLocked(frozen); err != nil {
		return err
	}
	return poll(ctx, func() (bool, error) {
		if g.tree.version == 2 {
			text, err := readText(filepath.Join(g.dirs[0], "cgroup.events"))
			return (parseKeyed(text)["frozen"] == 1) == frozen, err
		}
		state, err := readText(filepath.Join(g.by[freezer], "freezer.state"))
		return strings.HasPrefix(state, "FROZEN") == frozen, err
	})
}

// refreezeLocked only asks; no-op where there is no freezer.
func (g *Group) refreezeLocked(frozen bool) error {
	file, value := "freezer.state", "THAWED"
	if frozen {
		value = "FROZEN"
	}
	if g.tree.version == 2 {
		file, value = "cgroup.freeze", "0"
		if frozen {
			value = "1"
		}
	}
	err := g.set(freezer, file, value)
	if gone(err) {
		return nil
	}
	return err
}
