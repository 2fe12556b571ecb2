package cgroup

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"time"
)

// Stats is what a group has used since it was made. What the kernel does not
// count here (a controller that is missing, a file that is too new) is zero.
type Stats struct {
	MemoryBytes     int64         // charged now: anonymous memory, page cache, tmpfs files, kernel memory
	MemoryPeakBytes int64         // the most that was ever charged; v2: Linux 5.19
	OOMKills        int64         // as Group.OOMKills
	Pids            int64         // processes and threads now, zombies included
	PidsRefused     int64         // forks that failed at pids.max
	CPU             time.Duration // user and system time
	Throttled       time.Duration // time spent waiting for the next quota
}

// Stats reads the counters.
func (g *Group) Stats() (Stats, error) {
	var s Stats
	r := reader{}
	s.Pids = r.number(g.by[pids], "pids.current")
	s.PidsRefused = r.keyed(g.by[pids], "pids.events", "max")
	if g.tree.version == 2 {
		s.MemoryBytes = r.number(g.by[memory], "memory.current")
		s.MemoryPeakBytes = r.number(g.by[memory], "memory.peak")
		s.OOMKills = r.keyed(g.by[memory], "memory.events", "oom_kill")
		// cpu.stat is there without the controller, but for the throttling.
		s.CPU = time.Duration(r.keyed(g.dirs[0], "cpu.stat", "usage_usec")) * time.Microsecond
		s.Throttled = time.Duration(r.keyed(g.by[cpu], "cpu.stat", "throttled_usec")) * time.Microsecond
	} else {
		s.MemoryBytes = r.number(g.by[memory], "memory.usage_in_bytes")
		s.MemoryPeakBytes = r.number(g.by[memory], "memory.max_usage_in_bytes")
		s.OOMKills = r.keyed(g.by[memory], "memory.oom_control", "oom_kill")
		s.CPU = time.Duration(r.number(g.by[cpuacct], "cpuacct.usage"))
		s.Throttled = time.Duration(r.keyed(g.by[cpu], "cpu.stat", "throttled_time"))
	}
	if r.err != nil {
		return s, fmt.Errorf("read stats of cgroup %s: %w", g.name, r.err)
	}
	return s, nil
}

// OOMKills grows with each process of the group that the kernel kills for want
// of memory: one read of a file that is open. Compare it with its value before;
// on v2 the whole group dies at once and the kernel counts the first victim
// twice. Zero where memory is not limited, and on v1 before Linux 4.13.
func (g *Group) OOMKills() (int64, error) {
	if g.oom == nil {
		return 0, nil
	}
	var buf [512]byte
	n, err := g.oom.ReadAt(buf[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("count oom kills of cgroup %s: %w", g.name, err)
	}
	return parseKeyed(string(buf[:n]))["oom_kill"], nil
}

// reader reads single values and keeps the first failure. An empty directory
// stands for a controller that is missing; so does a file that is.
type reader struct{ err error }

func (r *reader) text(dir, file string) string {
	if dir == "" {
		return ""
	}
	text, err := readText(filepath.Join(dir, file))
	if err != nil && r.err == nil && (!gone(err) || !exists(dir)) {
		r.err = err
	}
	return text
}

func (r *reader) keyed(dir, file, key string) int64 { return parseKeyed(r.text(dir, file))[key] }

func (r *reader) number(dir, file string) int64 {
	v, _ := strconv.ParseInt(r.text(dir, file), 10, 64) // "max" and nothing are zero
	return v
}

func readNumber(file string) int64 {
	r := reader{}
	return r.number(filepath.Dir(file), filepath.Base(file))
}
