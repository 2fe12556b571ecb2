package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"berth/slots"
)

// selfName is the directory of a v2 tree that holds the processes of our own
// cgroup.
const selfName = "self"

// Tree is our part of the cgroup hierarchy. Its methods may be called from
// several goroutines.
type Tree struct {
	k       kernel
	name    string
	how     string
	version int
	homes   map[string]string // our own cgroup's directory by controller
	missing []Attempt

	removal  sync.Mutex // one Sweep or Close at a time; guards the next two; taken before mu
	unified  *unified   // v2 only
	delegate *os.File   // keeps the delegated mount alive; nil otherwise

	mu     sync.Mutex // guards what follows; not held while a group is closed
	groups map[string]*Group
	closed bool
}

// Version is 1 or 2.
func (t *Tree) Version() int { return t.version }

// How is the way that worked: "v2", "v2 delegated" or "v1".
func (t *Tree) How() string { return t.how }

// Controllers lists, sorted, what groups can do here, out of cpu, cpuacct (v1
// only), freezer, memory and pids.
func (t *Tree) Controllers() []string { return slices.Sorted(maps.Keys(t.homes)) }

// Missing lists the controllers that a group would use but cannot, with reasons.
func (t *Tree) Missing() []Attempt { return slices.Clone(t.missing) }

// dirs are the tree's own directories, each once.
func (t *Tree) dirs() []string { return t.at(t.name) }

// at lists path below our own cgroup in every hierarchy, each directory once.
func (t *Tree) at(path string) []string {
	var out []string
	for _, c := range t.Controllers() {
		if dir := filepath.Join(t.homes[c], path); !slices.Contains(out, dir) {
			out = append(out, dir)
		}
	}
	return out
}

var groupName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`) })

// Create makes a group with limits. The name is a slot's or a spare's: up to
// 64 letters, digits, '_', '.', '-'. A name that is in use is fs.ErrExist.
func (t *Tree) Create(name string, l slots.Limits) (*Group, error) {
	if !groupName().MatchString(name) || name == selfName {
		return nil, fmt.Errorf("create cgroup: %q is no name for a group", name)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, fmt.Errorf("create cgroup %s: tree: %w", name, fs.ErrClosed)
	}
	g, err := t.makeLocked(name, l)
	if err != nil {
		return nil, fmt.Errorf("create cgroup %s: %w", name, err)
	}
	t.groups[name] = g
	return g, nil
}

func (t *Tree) makeLocked(name string, l slots.Limits) (*Group, error) {
	path := filepath.Join(t.name, name)
	var made []string
	undo := func() {
		for _, dir := range made {
			_ = t.k.rmdir(dir)
		}
	}
	for _, dir := range t.at(path) {
		if err := t.k.mkdir(dir); err != nil {
			undo()
			return nil, err
		}
		made = append(made, dir)
	}
	g := t.group(path)
	if err := g.limit(l); err != nil {
		undo()
		return nil, err
	}
	if err := g.open(); err != nil {
		undo()
		return nil, err
	}
	return g, nil
}

// group is the group at path, which exists; nothing of it is opened yet.
func (t *Tree) group(path string) *Group {
	g := &Group{tree: t, name: filepath.Base(path), dirs: t.at(path), by: map[string]string{}}
	for controller, home := range t.homes {
		g.by[controller] = filepath.Join(home, path)
	}
	return g
}

func (t *Tree) forget(g *Group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.groups[g.name] == g {
		delete(t.groups, g.name)
	}
}

// Close kills and removes all groups, then the tree itself; on v2 the
// processes in "self" move back to where they came from first. ctx bounds the
// waiting. The error names what stayed; Close may be called again then.
func (t *Tree) Close(ctx context.Context) error {
	t.removal.Lock()
	defer t.removal.Unlock()
	t.mu.Lock()
	t.closed = true
	groups := slices.Collect(maps.Values(t.groups))
	t.mu.Unlock()

	var errs []error
	for _, g := range groups {
		errs = append(errs, g.Close(ctx))
	}
	if t.unified != nil {
		errs = append(errs, t.unified.leave())
	}
	for _, dir := range t.dirs() {
		if err := t.k.rmdir(dir); err != nil && !gone(err) {
			errs = append(errs, fmt.Errorf("remove cgroup %s: %w", dir, err))
		}
	}
	err := errors.Join(errs...)
	if err == nil && t.delegate != nil {
		err = t.delegate.Close()
		t.delegate = nil
	}
	return err
}

// Sweep removes the trees that dead agents left beside ours: those whose name
// has the prefix and a pid that no longer lives. Every process in their groups
// is killed; processes in a v2 tree's "self" were never the agent's to kill
// and move into ours. It returns the names of the trees it removed. A tree
// whose pid now belongs to somebody else is left alone.
func (t *Tree) Sweep(ctx context.Context, prefix string) ([]string, error) {
	t.removal.Lock()
	defer t.removal.Unlock()
	var removed []string
	var errs []error
	for _, name := range t.strays(prefix) {
		if err := t.remove(ctx, name); err != nil {
			errs = append(errs, fmt.Errorf("sweep cgroup tree %s: %w", name, err))
			continue
		}
		removed = append(removed, name)
	}
	return removed, errors.Join(errs...)
}

// strays lists, sorted, the trees beside ours that no living agent owns.
func (t *Tree) strays(prefix string) []string {
	found := map[string]bool{}
	for _, home := range t.at(".") {
		entries, _ := os.ReadDir(home) // what cannot be read holds nothing we could remove
		for _, e := range entries {
			p, pid, ok := owner(e.Name())
			if e.IsDir() && ok && p == prefix && e.Name() != t.name && !t.k.alive(pid) {
				found[e.Name()] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func (t *Tree) remove(ctx context.Context, name string) error {
	children := map[string]bool{}
	for _, dir := range t.at(name) {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if e.IsDir() {
				children[e.Name()] = true
			}
		}
	}
	var errs []error
	for child := range children {
		if child == selfName && t.unified != nil {
			errs = append(errs, t.unified.inherit(filepath.Join(t.unified.home, name, selfName)))
			continue
		}
		errs = append(errs, t.group(filepath.Join(name, child)).Close(ctx))
	}
	for _, dir := range t.at(name) {
		if err := t.k.rmdir(dir); err != nil && !gone(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// known keeps of the words those that name a controller we use on v2.
func known(words string) []string {
	var out []string
	for _, c := range []string{memory, pids, cpu} {
		if slices.Contains(strings.Fields(words), c) {
			out = append(out, c)
		}
	}
	return out
}
