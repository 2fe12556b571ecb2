package bench

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// process is one process of this machine.
type process struct {
	pid, parent int
	state       byte // as in /proc/PID/stat; Z is a zombie
}

// processes are all that this user can see.
type processes []process

// readProcesses reads /proc.
func readProcesses() (processes, error) {
	names, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var table processes
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended meanwhile
		}
		if p, err := parseStat(string(text)); err == nil {
			table = append(table, p)
		}
	}
	if len(table) == 0 {
		return nil, errors.New("list processes: /proc shows none")
	}
	return table, nil
}

// parseStat reads /proc/PID/stat. The name stands in parentheses and may hold
// anything.
func parseStat(text string) (process, error) {
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 1 || end < open {
		return process{}, fmt.Errorf("%.60q is no process", text)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(text[:open]))
	if err != nil {
		return process{}, fmt.Errorf("%.60q is no process: %w", text, err)
	}
	fields := strings.Fields(text[end+1:])
	if len(fields) < 2 || len(fields[0]) != 1 {
		return process{}, fmt.Errorf("%.60q is no process", text)
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return process{}, fmt.Errorf("%.60q is no process: %w", text, err)
	}
	return process{pid: pid, parent: parent, state: fields[0][0]}, nil
}

// children are the processes that pid is the parent of.
func (t processes) children(pid int) []int {
	var found []int
	for _, p := range t {
		if p.parent == pid {
			found = append(found, p.pid)
		}
	}
	return found
}

// descendants are the children of pid, theirs, and so on.
func (t processes) descendants(pid int) []int {
	found := t.children(pid)
	for i := 0; i < len(found); i++ {
		found = append(found, t.children(found[i])...)
	}
	return found
}

// zombies counts those among the pids that have ended and were not waited for.
func (t processes) zombies(pids []int) int {
	n := 0
	for _, p := range t {
		if p.state == 'Z' && slices.Contains(pids, p.pid) {
			n++
		}
	}
	return n
}

// countDescriptors counts a process's open files.
func countDescriptors(pid int) (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0, explained(fmt.Errorf("count descriptors: %w", err))
	}
	return len(entries), nil
}

// memory is what /proc/PID/status says about a process, in bytes.
type memory struct {
	resident int64 // VmRSS
	peak     int64 // VmHWM, the most it ever had
}

func readMemory(pid int) (memory, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return memory{}, fmt.Errorf("read memory: %w", err)
	}
	resident, err := kilobytes(text, "VmRSS:")
	if err != nil {
		return memory{}, err
	}
	peak, err := kilobytes(text, "VmHWM:")
	return memory{resident: resident, peak: peak}, err
}

// readPSS is a process's proportional set size in bytes: pages that several
// processes share count in parts.
func readPSS(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, explained(fmt.Errorf("read memory: %w", err))
	}
	return kilobytes(text, "Pss:")
}

// kilobytes finds a line like "VmRSS:  1234 kB" and returns bytes.
func kilobytes(text []byte, key string) (int64, error) {
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) == 3 && string(fields[0]) == key && string(fields[2]) == "kB" {
			n, err := strconv.ParseInt(string(fields[1]), 10, 53)
			if err != nil {
				return 0, fmt.Errorf("read %s %w", key, err)
			}
			return n << 10, nil
		}
	}
	return 0, fmt.Errorf("found no line %s", key)
}

// explained says what a missing permission takes.
func explained(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w (the agent hides itself from everybody but root)", err)
	}
	return err
}
