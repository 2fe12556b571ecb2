package holder

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	sweepDeadline = 3 * time.Second
	sweepPause    = 5 * time.Millisecond
)

// Who belongs to whom: a kept process (the shell, a background command) is a
// subreaper, so all that descends from it stays below it while it lives.
// Every other process of the slot belongs to the one execution at work, or is
// what it left behind. A sweep therefore kills all but the kept and theirs.

func (s *server) answerSweep(f frame) {
	request, err := decode[sweepRequest](f.body)
	if err != nil {
		s.conn.say(kindSwept, f.id, encode(sweepReport{}))
		return
	}
	dropped := s.kept[request.Drop]
	delete(s.kept, request.Drop)
	var r sweepReport
	switch {
	case request.Session != 0:
		r = s.sweep(func(visit func(int)) error { return s.terminalOnly(dropped, request.Session, visit) })
	case request.Under != 0:
		if p := s.kept[request.Under]; p != nil {
			unix.Kill(p.pid, unix.SIGURG)
		}
		r = s.sweep(func(visit func(int)) error { return s.startedUnder(request.Under, visit) })
	default:
		r = s.sweep(s.unkept)
	}
	s.conn.say(kindSwept, f.id, encode(r))
}

// terminalOnly visits what was started on a terminal whose keeper, nil when it
// has ended, is kept no longer. What a dead keeper leaves is this process's
// children, as are the orphans of a command: while one is at work, only the
// session tells them apart. Where it is the holder's own it tells nothing.
func (s *server) terminalOnly(keeper *process, session int, visit func(pid int)) error {
	if keeper != nil && s.procs[keeper.pid] != keeper {
		keeper = nil
	}
	spare, alone := map[int]bool{}, true
	for pid, p := range s.procs {
		if p != keeper {
			spare[pid] = true
			alone = alone && s.kept[p.id] != nil
		}
	}
	if alone {
		return s.unkept(visit)
	}
	if own, err := unix.Getsid(0); err != nil || own == session {
		session = -1
	}
	// Without /proc nothing is known to be the terminal's.
	if keeper != nil {
		_ = s.descend(keeper.pid, nil, visit)
		visit(keeper.pid)
	}
	_ = s.descend(os.Getpid(), spare, func(pid int) {
		if sid, err := unix.Getsid(pid); err == nil && sid == session {
			visit(pid)
		}
	})
	return nil
}

// sweep kills what targets visits until it visits nothing, or the deadline
// passes. Each is killed when it is met, not when all are known: who forks and
// ends, again and again, is somebody else by then. New forks of the dying are
// met by the next round.
func (s *server) sweep(targets func(visit func(pid int)) error) sweepReport {
	deadline := time.Now().Add(sweepDeadline)
	before := s.gone
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, sweepPause) {
		s.reap()
		left := 0
		kill := func(pid int) {
			left++
			unix.Kill(pid, unix.SIGKILL)
		}
		if targets(kill) != nil {
			left = 0
			for _, pid := range s.known() {
				kill(pid)
			}
		}
		if left == 0 || time.Now().After(deadline) {
			return sweepReport{Killed: s.gone - before, Left: left}
		}
		// Not a timer: this thread has nothing else to do, and waking it by
		// another costs more than the wait.
		_ = unix.Nanosleep(&unix.Timespec{Nsec: int64(pause)}, nil) // a signal only wakes it early
	}
}

// known is what can be named without /proc: everything, where that is the
// slot's alone; elsewhere the processes that this one made itself, for -1
// would be the agent too.
func (s *server) known() []int {
	if !s.hasChildren() {
		return nil
	}
	if s.ownsEveryone() {
		return []int{-1}
	}
	var pids []int
	for pid, p := range s.procs {
		if s.kept[p.id] == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// sweepAll ends every process of the slot, the kept ones too.
func (s *server) sweepAll() {
	clear(s.kept)
	s.sweep(s.unkept)
}

// unkept visits what an ordinary sweep kills. When nothing is kept and this
// process can name "everyone but me", that is -1: one call that no fork can
// slip through.
func (s *server) unkept(visit func(pid int)) error {
	if !s.hasChildren() {
		return nil
	}
	spare := make(map[int]bool, len(s.kept))
	for _, p := range s.kept {
		spare[p.pid] = true
	}
	if len(spare) == 0 && s.ownsEveryone() {
		visit(-1)
		return nil
	}
	return s.descend(os.Getpid(), spare, visit)
}

// ownsEveryone reports whether kill(-1) reaches the slot's processes and
// nobody else's.
func (s *server) ownsEveryone() bool { return s.plan.Namespaces.PID || s.plan.IDs.Switch }

// startedUnder visits the descendants of a kept process that were not there at
// its last mark, nor come from one that was.
func (s *server) startedUnder(id uint64, visit func(pid int)) error {
	p := s.kept[id]
	if p == nil {
		return nil
	}
	// What was there already stays, with what it starts: a server from an
	// earlier command goes on forking for its clients.
	spare := make(map[int]bool, len(p.mark))
	for pid, at := range p.mark {
		if at == s.startTime(pid) {
			spare[pid] = true
		}
	}
	return s.descend(p.pid, spare, visit)
}

// markUnder remembers what a kept process has running now.
func (s *server) markUnder(id uint64) {
	p := s.kept[id]
	if p == nil {
		return
	}
	mark := map[int]uint64{}
	if s.descend(p.pid, nil, func(pid int) { mark[pid] = s.startTime(pid) }) == nil {
		p.mark = mark
	}
}

// alone reports whether nothing but kept processes is left.
func (s *server) alone() bool {
	others := 0
	err := s.unkept(func(int) { others++ })
	return err == nil && others == 0
}

// hasChildren asks the kernel, unless it has said that there are none and no
// process was made since.
func (s *server) hasChildren() bool {
	s.childless = s.childless || !hasChildren()
	return !s.childless
}

// hasChildren asks the kernel without reaping anything.
func hasChildren() bool {
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}

// descend visits all processes below pid, leaving out spared ones with what is
// below them. It walks in the numbering of /proc and visits in our own; who
// has children is visited before them.
func (s *server) descend(pid int, spare map[int]bool, visit func(pid int)) error {
	top, err := s.procName(pid)
	if errors.Is(err, os.ErrNotExist) {
		return nil // it has ended, and left what it had to this process
	}
	if err != nil {
		return err
	}
	pending := []string{top}
	for len(pending) > 0 {
		next := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		found, err := children(next)
		if err != nil && next == "self" {
			return err // any other may have ended
		}
		for _, child := range found {
			own := s.ownPID(child)
			if own > 1 && !spare[own] {
				visit(own)
				pending = append(pending, child)
			}
		}
	}
	return nil
}

// procName is the name below /proc of a process that we number pid.
func (s *server) procName(pid int) (string, error) {
	switch {
	case pid == os.Getpid():
		return "self", nil
	case !s.foreignProc():
		return strconv.Itoa(pid), nil
	}
	found, err := children("self")
	if err != nil {
		return "", err
	}
	for _, name := range found {
		if s.ownPID(name) == pid {
			return name, nil
		}
	}
	return "", fmt.Errorf("find process %d: %w", pid, os.ErrNotExist)
}

// children lists the direct children of a process by their names below /proc.
func children(name string) ([]string, error) {
	tasks, err := os.ReadDir("/proc/" + name + "/task")
	if err != nil {
		return nil, fmt.Errorf("list threads: %w", err)
	}
	var names []string
	for _, t := range tasks {
		text, err := os.ReadFile("/proc/" + name + "/task/" + t.Name() + "/children")
		if errors.Is(err, os.ErrNotExist) && name != "self" {
			continue // the thread has ended
		}
		if err != nil {
			return nil, fmt.Errorf("list children: %w", err)
		}
		names = append(names, strings.Fields(string(text))...)
	}
	return names, nil
}

// foreignProc reports whether /proc numbers processes as the container does.
func (s *server) foreignProc() bool { return s.plan.View != nil && s.plan.View.Proc == "rbind" }

// ownPID is our number of the process that /proc names so; 0 when it is gone.
func (s *server) ownPID(name string) int {
	if !s.foreignProc() {
		pid, _ := strconv.Atoi(name)
		return pid
	}
	text, err := os.ReadFile("/proc/" + name + "/status")
	if err != nil {
		return 0
	}
	_, line, _ := strings.Cut(string(text), "\nNSpid:")
	line, _, _ = strings.Cut(line, "\n")
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return 0
	}
	pid, _ := strconv.Atoi(fields[len(fields)-1])
	return pid
}

// startTime tells a process from a later one of the same number; 0 when it is
// gone.
func (s *server) startTime(pid int) uint64 {
	name, err := s.procName(pid)
	if err != nil {
		return 0
	}
	text, err := os.ReadFile("/proc/" + name + "/stat")
	if err != nil {
		return 0
	}
	// The name stands in brackets and may hold anything; fields count from the
	// last one.
	_, rest, _ := bytes.Cut(text[bytes.LastIndexByte(text, ')')+1:], []byte(" "))
	fields := bytes.Fields(rest)
	const startField = 22 - 3
	if len(fields) <= startField {
		return 0
	}
	at, _ := strconv.ParseUint(string(fields[startField]), 10, 64)
	return at
}
