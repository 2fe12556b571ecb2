package cgroup

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// unified is what v2 asks for beyond a directory: a cgroup whose children have
// controllers may hold no process itself, the real root excepted.
type unified struct {
	k       kernel
	home    string   // our own cgroup, or what it was before a dead agent moved it
	tree    string   // home/<Name>
	root    bool     // home is the real root: nobody has to move
	enabled []string // controllers that we enabled for the children of home
	moved   bool
}

func openV2(cfg Config, k kernel, p place) (*Tree, string, error) {
	s, ok := p.v2()
	if !ok {
		return nil, "", errNoMount
	}
	if err := isOurs(k, s.dir); err != nil {
		return nil, s.dir, err
	}
	u := &unified{k: k, home: s.dir}
	from := []string{s.dir}
	if tree := filepath.Dir(s.dir); isSelf(s.path) && s.above >= 2 {
		if _, pid, _ := owner(filepath.Base(tree)); !k.alive(pid) {
			u.home = filepath.Dir(tree)
			from = []string{u.home, s.dir}
		}
	}
	t, err := u.take(cfg, p, s.whole || s.path == "/" || isSelf(s.path), from)
	return t, u.home, err
}

// isSelf says that the cgroup at path is the "self" of some agent's tree.
func isSelf(path string) bool {
	_, _, ok := owner(filepath.Base(filepath.Dir(path)))
	return ok && filepath.Base(path) == selfName
}

func openDelegated(ctx context.Context, cfg Config, k kernel, p place) (*Tree, string, error) {
	f, err := cfg.Delegate(ctx)
	if err != nil {
		return nil, "", err
	}
	// A path through the descriptor reaches a mount that no namespace of ours has.
	dir := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	u := &unified{k: k, home: dir}
	err = isOurs(k, dir)
	var t *Tree
	if err == nil {
		t, err = u.take(cfg, p, p.member.v2 == "/" || isSelf(p.member.v2), []string{dir})
	}
	if err != nil {
		return nil, p.member.v2, errors.Join(err, f.Close())
	}
	t.delegate = f
	return t, p.member.v2, nil
}

// take makes the tree below home and enables what home offers. whole says that
// home is a container's; from lists the cgroups to move into "self".
func (u *unified) take(cfg Config, p place, whole bool, from []string) (*Tree, error) {
	u.tree = filepath.Join(u.home, cfg.Name)
	u.root = !exists(filepath.Join(u.home, "cgroup.type")) // the kernel shows it everywhere else
	offered, err := readText(filepath.Join(u.home, "cgroup.controllers"))
	if err != nil {
		return nil, err
	}
	t := &Tree{k: u.k, name: cfg.Name, version: 2, homes: map[string]string{}, groups: map[string]*Group{}, unified: u}
	usable := known(offered)
	if !slices.Contains(usable, memory) && !slices.Contains(usable, pids) {
		return nil, fmt.Errorf("%w: %w: %s offers %q", errNothing, errBare, u.home, offered)
	}
	if err := u.k.mkdir(u.tree); err != nil {
		return nil, err
	}
	if err := u.enter(p, whole, from); err != nil {
		return nil, errors.Join(err, u.leave(), u.k.rmdir(u.tree))
	}
	for _, c := range []string{memory, pids, cpu} {
		err := errNothing
		if slices.Contains(usable, c) {
			err = u.enable(c, from)
		}
		if err != nil {
			t.lack(c, u.home, err)
			continue
		}
		t.homes[c] = u.home
	}
	if t.homes[memory] == "" && t.homes[pids] == "" {
		errs := []error{errNothing}
		for _, m := range t.missing {
			errs = append(errs, fmt.Errorf("%s: %w", m.How, m.Err))
		}
		return nil, errors.Join(append(errs, u.leave(), u.k.rmdir(u.tree))...)
	}
	if exists(filepath.Join(u.tree, "cgroup.freeze")) {
		t.homes[freezer] = u.home
	}
	return t, nil
}

// enter empties our own cgroup into tree/self, if it has to and may be.
func (u *unified) enter(p place, whole bool, from []string) error {
	if u.root {
		return nil
	}
	if !whole && !delegated(u.home) {
		if unit := filepath.Base(p.member.v2); unitOfSystemd(p.root, unit) {
			return fmt.Errorf("%w: %s", errUnit, unit)
		}
		if err := u.onlyOurs(p.root, from); err != nil {
			return err
		}
	}
	if err := u.k.mkdir(filepath.Join(u.tree, selfName)); err != nil {
		return err
	}
	u.moved = true
	return u.vacate(from)
}

// delegated reads systemd's mark for a cgroup that its unit may arrange.
func delegated(dir string) bool {
	buf := make([]byte, 8)
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		if n, err := unix.Getxattr(dir, name, buf); err == nil && string(buf[:n]) == "1" {
			return true
		}
	}
	return false
}

// unitOfSystemd reports whether the cgroup's name is that of a unit that a
// systemd runs now, the machine's or our user's.
func unitOfSystemd(root, name string) bool {
	invocation := filepath.Join("systemd/units", "invocation:"+name)
	return exists(filepath.Join(root, "run", invocation)) ||
		exists(filepath.Join(root, "run/user", strconv.Itoa(os.Geteuid()), invocation))
}

// onlyOurs refuses a cgroup that holds anybody but our family: this process,
// those of its ancestors that are in the cgroup too, as the shell or the script
// that started it, and whoever descends from the highest of them. That is what
// a session, a unit or a task consists of. A cgroup with PID 1 of our pid
// namespace in it is the container's.
func (u *unified) onlyOurs(root string, from []string) error {
	var listed []int
	for _, dir := range from {
		here, err := listPids(dir, false)
		if err != nil {
			return err
		}
		if slices.Contains(here, 1) {
			return nil
		}
		listed = append(listed, here...)
	}
	top := u.k.pid
	for at := range ancestors(root, u.k.pid) {
		if slices.Contains(listed, at) {
			top = at
		}
	}
	for _, pid := range listed {
		if !descends(root, pid, top) {
			return fmt.Errorf("%w: process %d in %s", errShared, pid, u.home)
		}
	}
	return nil
}

// descends reports whether pid is of or below top, or cannot be asked any more:
// one that has ended is nobody's.
func descends(root string, pid, top int) bool {
	if pid <= 0 {
		return false
	}
	last := pid
	for at := range ancestors(root, pid) {
		if at == top {
			return true
		}
		last = at
	}
	return !exists(filepath.Join(root, "proc", strconv.Itoa(last), "stat"))
}

// ancestors yields pid, its parent and so on, for as long as /proc tells. PID 1
// is everybody's and ends it.
func ancestors(root string, pid int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for range 64 {
			if pid <= 1 || !yield(pid) {
				return
			}
			stat, err := os.ReadFile(filepath.Join(root, "proc", strconv.Itoa(pid), "stat"))
			if err != nil {
				return
			}
			// The name in parentheses may hold anything; the parent's pid is the
			// second field behind it.
			fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
			if len(fields) < 2 {
				return
			}
			if pid, err = strconv.Atoi(fields[1]); err != nil {
				return
			}
		}
	}
}

// vacate moves every process of the cgroups into tree/self, again until a
// reading finds nobody: they may fork meanwhile.
func (u *unified) vacate(from []string) error {
	for _, dir := range from {
		if err := u.move(dir, filepath.Join(u.tree, selfName)); err != nil {
			return err
		}
	}
	return nil
}

func (u *unified) move(from, to string) error {
	const rounds = 64
	var last error
	for range rounds {
		listed, err := listPids(from, false)
		if err != nil {
			return err
		}
		if len(listed) == 0 {
			return nil
		}
		last = fmt.Errorf("processes %v stay in %s", listed, from)
		for _, pid := range listed {
			if pid == 0 {
				return fmt.Errorf("%w: a process outside our pid namespace is in %s", errShared, from)
			}
			err := u.k.write(filepath.Join(to, "cgroup.procs"), strconv.Itoa(pid))
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("move process %d to %s: %w", pid, to, err)
			}
		}
	}
	return last
}

// enable gives the groups a controller. A process that entered home since it
// was emptied makes the kernel answer EBUSY; it is moved as well.
func (u *unified) enable(controller string, from []string) error {
	have, err := readText(filepath.Join(u.home, "cgroup.subtree_control"))
	if err != nil {
		return err
	}
	if !slices.Contains(strings.Fields(have), controller) {
		err := u.k.write(filepath.Join(u.home, "cgroup.subtree_control"), "+"+controller)
		if errors.Is(err, unix.EBUSY) && !u.root {
			if err := u.vacate(from); err != nil {
				return err
			}
			err = u.k.write(filepath.Join(u.home, "cgroup.subtree_control"), "+"+controller)
		}
		if err != nil {
			return err
		}
		u.enabled = append(u.enabled, controller)
	} else if len(from) > 1 {
		u.enabled = append(u.enabled, controller) // by the agent whose place we take
	}
	return u.k.write(filepath.Join(u.tree, "cgroup.subtree_control"), "+"+controller)
}

// inherit moves the processes of a dead agent's "self" to ours and removes it.
func (u *unified) inherit(self string) error {
	to := filepath.Join(u.tree, selfName)
	if u.root {
		to = u.home
	}
	if err := u.move(self, to); err != nil {
		return err
	}
	return u.k.rmdir(self)
}

// leave undoes take but for the tree's directory. Its order is the kernel's:
// processes may return to home only when home's children have no controllers.
func (u *unified) leave() error {
	var errs []error
	enabled := u.enabled
	u.enabled = nil
	for _, c := range enabled {
		if err := u.k.write(filepath.Join(u.tree, "cgroup.subtree_control"), "-"+c); err != nil && !gone(err) {
			errs = append(errs, err)
		}
		if err := u.k.write(filepath.Join(u.home, "cgroup.subtree_control"), "-"+c); err != nil {
			u.enabled = append(u.enabled, c)
			errs = append(errs, err)
		}
	}
	if u.moved {
		self := filepath.Join(u.tree, selfName)
		if exists(self) {
			err := u.move(self, u.home)
			if err == nil {
				err = u.k.rmdir(self)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
