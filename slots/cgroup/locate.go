package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Controller names as the kernel writes them. Freezer exists on v2 as well,
// as a file of every group.
const (
	memory  = "memory"
	pids    = "pids"
	cpu     = "cpu"
	cpuacct = "cpuacct"
	freezer = "freezer"
)

// mount is one mounted cgroup hierarchy, as mountinfo shows it.
type mount struct {
	root        string // which cgroup of the hierarchy is mounted there
	point       string // where
	v2          bool
	controllers []string // v1 only
}

// parseMounts reads the cgroup mounts out of /proc/<pid>/mountinfo. Lines that
// are no cgroup mount, or make no sense, are left out.
func parseMounts(mountinfo string) []mount {
	var out []mount
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 6 || len(right) < 3 {
			continue
		}
		m := mount{root: unescape(left[3]), point: unescape(left[4])}
		switch right[0] {
		case "cgroup2":
			m.v2 = true
		case "cgroup":
			for option := range strings.SplitSeq(right[2], ",") {
				if slices.Contains([]string{memory, pids, cpu, cpuacct, freezer}, option) {
					m.controllers = append(m.controllers, option)
				}
			}
			if m.controllers == nil {
				continue // name=systemd and controllers that are none of ours
			}
		default:
			continue
		}
		out = append(out, m)
	}
	return out
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// membership says in which cgroup a process is.
type membership struct {
	v2 string            // path in the unified hierarchy, "" when there is none
	v1 map[string]string // path by controller
}

// parseMembership reads /proc/<pid>/cgroup.
func parseMembership(text string) membership {
	m := membership{v1: map[string]string{}}
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 || !strings.HasPrefix(parts[2], "/") {
			continue
		}
		if parts[0] == "0" && parts[1] == "" {
			m.v2 = parts[2]
			continue
		}
		for name := range strings.SplitSeq(parts[1], ",") {
			m.v1[name] = parts[2]
		}
	}
	return m
}

// under is where the cgroup at path can be seen through the mount; false when
// the mount shows another part of the hierarchy.
func (m mount) under(path string) (string, bool) {
	if m.root == "/" {
		return filepath.Join(m.point, path), true
	}
	if path == m.root {
		return m.point, true
	}
	below, ok := strings.CutPrefix(path, m.root+"/")
	return filepath.Join(m.point, below), ok
}

// place is where this machine's cgroups can be reached.
type place struct {
	root   string
	mounts []mount
	member membership
}

func look(root string) (place, error) {
	p := place{root: root}
	mountinfo, err := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return p, fmt.Errorf("find cgroup mounts: %w", err)
	}
	own, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return p, fmt.Errorf("find own cgroup: %w", err)
	}
	p.mounts, p.member = parseMounts(string(mountinfo)), parseMembership(string(own))
	return p, nil
}

// seat is our own cgroup in one hierarchy.
type seat struct {
	path  string // as /proc/self/cgroup names it
	dir   string // where it can be opened
	above int    // how many of its ancestors the mount shows
	whole bool   // the mount or the cgroup namespace begins here
}

func (p place) seatOf(m mount, path string) (seat, bool) {
	dir, ok := m.under(path)
	if !ok {
		return seat{}, false
	}
	rel, err := filepath.Rel(m.point, dir)
	if err != nil {
		return seat{}, false
	}
	s := seat{path: path, dir: filepath.Join(p.root, dir), whole: path == m.root}
	if rel != "." {
		s.above = strings.Count(rel, "/") + 1
	}
	return s, true
}

// v2 is our own cgroup at an existing mount of the unified hierarchy.
func (p place) v2() (seat, bool) {
	for _, m := range p.mounts {
		if m.v2 && p.member.v2 != "" {
			if s, ok := p.seatOf(m, p.member.v2); ok {
				return s, true
			}
		}
	}
	return seat{}, false
}

// v1 is our own cgroup at an existing mount of a controller's hierarchy.
func (p place) v1(controller string) (seat, bool) {
	for _, m := range p.mounts {
		if path := p.member.v1[controller]; path != "" && slices.Contains(m.controllers, controller) {
			if s, ok := p.seatOf(m, path); ok {
				return s, true
			}
		}
	}
	return seat{}, false
}
