package cgroup

import (
	"math"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// CPUs is the real share of the CPU that this process has, in CPUs' worth of
// time per second: the smallest of its affinity mask and of the quotas of its
// cgroup and of the ancestors that can be seen. root is "/" or a directory
// with proc and sys below it.
func CPUs(root string) float64 {
	share := float64(runtime.NumCPU())
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err == nil && set.Count() > 0 {
		share = float64(set.Count())
	}
	p, err := look(root)
	if err != nil {
		return share
	}
	if s, ok := p.v2(); ok {
		for _, dir := range s.upwards() {
			if text, err := readText(filepath.Join(dir, "cpu.max")); err == nil {
				share = min(share, parseCPUMax(text))
			}
		}
	}
	if s, ok := p.v1(cpu); ok {
		for _, dir := range s.upwards() {
			quota, errQuota := readText(filepath.Join(dir, "cpu.cfs_quota_us"))
			period, errPeriod := readText(filepath.Join(dir, "cpu.cfs_period_us"))
			if errQuota == nil && errPeriod == nil {
				share = min(share, parseCPUMax(quota+" "+period))
			}
		}
	}
	return share
}

// parseCPUMax reads "quota period" in microseconds as CPUs; a quota of "max"
// or below zero, and text that makes no sense, is no limit.
func parseCPUMax(text string) float64 {
	quota, period, _ := strings.Cut(text, " ")
	q, errQuota := strconv.ParseInt(quota, 10, 64)
	p, errPeriod := strconv.ParseInt(strings.TrimSpace(period), 10, 64)
	if errQuota != nil || errPeriod != nil || q <= 0 || p <= 0 {
		return math.Inf(1)
	}
	return float64(q) / float64(p)
}

// upwards lists the directory of our cgroup and those of its visible ancestors.
func (s seat) upwards() []string {
	dirs := []string{s.dir}
	for range s.above {
		dirs = append(dirs, filepath.Dir(dirs[len(dirs)-1]))
	}
	return dirs
}

// parseKeyed reads lines of "key number". Lines of another shape are left out.
func parseKeyed(text string) map[string]int64 {
	out := map[string]int64{}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		v, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			continue
		}
		out[key] = v
	}
	return out
}
