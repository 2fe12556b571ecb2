package cgroup

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth/slots"

	"golang.org/x/sys/unix"
)

// Config says what to open. Zero fields have the named defaults.
type Config struct {
	// Name is the directory of the tree, as NewName makes it; default
	// NewName("berth"). It carries the agent's pid, so that Sweep can tell
	// which trees nobody owns any more.
	Name string
	// Root is "/" unless a test puts proc and sys elsewhere.
	Root string
	// Delegate returns the directory that MountDelegated opened in a process
	// of its own. Open closes it when it is not used. nil: not tried.
	Delegate func(ctx context.Context) (*os.File, error)
}

// treeName is prefix, pid and something random.
// Compiled when it is first needed: the same program starts for every slot.
var treeName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([A-Za-z][A-Za-z0-9_]*)-([1-9][0-9]{0,9})-([A-Za-z0-9]{1,32})$`)
})

// NewName is a name for the tree of this process: "<prefix>-<pid>-<random>".
// The prefix is letters, digits and underscores.
func NewName(prefix string) string {
	return fmt.Sprintf("%s-%d-%s", prefix, os.Getpid(), strings.ToLower(rand.Text()[:8]))
}

// owner is the prefix and the pid in a tree's name.
func owner(name string) (prefix string, pid int, ok bool) {
	m := treeName().FindStringSubmatch(name)
	if m == nil {
		return "", 0, false
	}
	pid, err := strconv.Atoi(m[2])
	return m[1], pid, err == nil
}

// Attempt is one way that was tried and did not work.
type Attempt struct {
	How  string // "v2", "v2 delegated", "v1", or a controller's name
	Path string // our own cgroup, where it was reached; "" when it was not
	Err  error
	Mend string // what would make it work, one sentence; "" when nothing is known
}

// String is one line for people.
func (a Attempt) String() string {
	s := a.How
	if a.Path != "" {
		s += " at " + a.Path
	}
	s += ": " + strings.ReplaceAll(strings.TrimSpace(a.Err.Error()), "\n", ", ")
	if a.Mend != "" {
		s += " (" + a.Mend + ")"
	}
	return s
}

// UnavailableError says that no cgroup can be written here, and why.
type UnavailableError struct{ Tried []Attempt }

// Error lists every way that was tried.
func (e *UnavailableError) Error() string {
	lines := make([]string, 0, len(e.Tried))
	for _, a := range e.Tried {
		lines = append(lines, a.String())
	}
	return "no writable cgroup: " + strings.Join(lines, "; ")
}

// Unwrap returns the causes.
func (e *UnavailableError) Unwrap() []error {
	errs := make([]error, 0, len(e.Tried))
	for _, a := range e.Tried {
		errs = append(errs, a.Err)
	}
	return errs
}

var (
	errNoMount = errors.New("our own cgroup is not mounted")
	errShared  = errors.New("our own cgroup holds processes that are not ours to move")
	// The memory limit of a slot would cost the agent.
	errUnit    = errors.New("our own cgroup is a unit that systemd has not delegated: it ends the whole unit when a process in it is killed for want of memory")
	errNothing = errors.New("neither memory nor pids can be limited")
	errBare    = errors.New("the controllers are elsewhere")
)

// mend knows what usually helps.
func mend(how string, err error) string {
	switch {
	case errors.Is(err, errUnit):
		return "set Delegate=yes in the unit, or start the agent by systemd-run --scope -p Delegate=yes"
	case errors.Is(err, errShared):
		return "start the agent in a cgroup of its own: systemd-run --scope -p Delegate=yes, or a container"
	case how == "v2 delegated" && errors.Is(err, unix.EPERM):
		return `security_opt "seccomp=<slots profile>" lets the agent make a user and cgroup namespace`
	case how == "v2 delegated" && errors.Is(err, unix.EACCES):
		return `security_opt "apparmor=unconfined", or a profile that allows mount`
	case how == "v1" && errors.Is(err, unix.EROFS):
		return "only a privileged container may write cgroup v1; on a cgroup v2 host a seccomp profile is enough"
	case errors.Is(err, unix.EROFS):
		return `security_opt "seccomp=<slots profile>" and "apparmor=unconfined" open the delegated way`
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return "run the agent as root, or have the cgroup delegated to its user"
	case errors.Is(err, errNothing) && how != "v1":
		return "the controllers are bound to cgroup v1 or not enabled above us"
	}
	return ""
}

// Open makes the tree in the first way that works: v2 at the existing mount,
// v2 through cfg.Delegate, v1 at the existing mounts. A way works when a group
// in it takes limits and a process, and can be removed again; that is tried,
// with a copy of this binary that is stopped before it runs. When none works
// the error is an *UnavailableError.
//
// On v2, unless our cgroup is the real root of the hierarchy, its processes
// are moved into <Name>/self. A unit of systemd's must be delegated for that:
// otherwise systemd ends all of it once a slot runs out of memory. The move is
// refused unless the cgroup is plainly ours: the root of the cgroup namespace or
// of the mount, the home of PID 1 of our pid namespace, delegated by systemd, or
// with nobody in it but this process, those of its ancestors that are in it too
// (the shell, the script that started it) and their descendants. When the agent
// of an earlier tree has died, its "self" is where we are: the new tree then
// stands beside the old one, not in it.
func Open(ctx context.Context, cfg Config) (*Tree, error) { return open(ctx, cfg, machine()) }

// bare reports whether v2 was there and had nothing to limit with: another
// mount of it shows no more.
func bare(tried []Attempt) bool {
	return len(tried) > 0 && errors.Is(tried[0].Err, errBare)
}

func open(ctx context.Context, cfg Config, k kernel) (*Tree, error) {
	cfg.Name = cmp.Or(cfg.Name, NewName("berth"))
	cfg.Root = cmp.Or(cfg.Root, "/")
	if !treeName().MatchString(cfg.Name) {
		return nil, fmt.Errorf("open cgroup tree: name %q is not <prefix>-<pid>-<random>", cfg.Name)
	}
	p, err := look(cfg.Root)
	if err != nil {
		return nil, fmt.Errorf("open cgroup tree: %w", err)
	}
	ways := []struct {
		how  string
		open func() (*Tree, string, error)
	}{
		{"v2", func() (*Tree, string, error) { return openV2(cfg, k, p) }},
		{"v2 delegated", func() (*Tree, string, error) { return openDelegated(ctx, cfg, k, p) }},
		{"v1", func() (*Tree, string, error) { return openV1(cfg, k, p) }},
	}
	var tried []Attempt
	for _, way := range ways {
		if way.how == "v2 delegated" && (cfg.Delegate == nil || bare(tried)) {
			continue
		}
		t, path, err := way.open()
		if err == nil {
			t.how = way.how
			if err = t.prove(ctx); err == nil {
				return t, nil
			}
			err = errors.Join(err, t.Close(ctx))
		}
		tried = append(tried, Attempt{How: way.how, Path: path, Err: err, Mend: mend(way.how, err)})
	}
	return nil, &UnavailableError{Tried: tried}
}

// prove does once what every slot will need.
func (t *Tree) prove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	g, err := t.Create("probe", slots.Limits{MemoryBytes: 64 << 20, Pids: 16, CPUs: 1})
	if err != nil {
		return err
	}
	pid, end, err := t.k.child()
	if err != nil {
		return errors.Join(err, g.Close(ctx))
	}
	err = g.Attach(pid)
	end()
	return errors.Join(err, g.Close(ctx))
}

// isOurs checks by its processes that dir is the cgroup this process is in.
func isOurs(k kernel, dir string) error {
	pids, err := listPids(dir, false)
	if errors.Is(err, fs.ErrNotExist) {
		return errNoMount
	}
	if err != nil {
		return err
	}
	if slices.Contains(pids, k.pid) {
		return nil
	}
	return fmt.Errorf("%s does not list this process: %w", filepath.Join(dir, "cgroup.procs"), errNoMount)
}
