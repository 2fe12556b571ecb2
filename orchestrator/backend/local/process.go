package local

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// identity names a process for ever, which its pid does not.
type identity struct {
	PID   int    `json:"pid,omitempty"`
	Start uint64 `json:"start,omitempty"` // ticks from the boot to its start
	Boot  string `json:"boot,omitempty"`  // of the machine
}

// procfs is where the kernel tells of processes.
const procfs = "/proc"

// errGone means that there is no such process, any more.
var errGone = errors.New("process is gone")

// bootID names the time since the machine was started.
func bootID() string {
	text, err := os.ReadFile(filepath.Join(procfs, "sys/kernel/random/boot_id"))
	if err != nil {
		return "" // the ticks tell most of it
	}
	return strings.TrimSpace(string(text))
}

// stat reads the state letter and the start of a process.
func stat(pid int) (letter byte, start uint64, err error) {
	text, err := os.ReadFile(filepath.Join(procfs, strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, 0, errGone
	}
	return parseStat(text)
}

// parseStat reads /proc/<pid>/stat. The second field is a name in brackets
// that may hold anything, brackets as well.
func parseStat(text []byte) (letter byte, start uint64, err error) {
	const stateField, startField = 0, 19 // after the name
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) <= startField || len(fields[stateField]) != 1 {
		return 0, 0, fmt.Errorf("read state of process: %.100q", text)
	}
	start, err = strconv.ParseUint(string(fields[startField]), 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("read start of process: %w", err)
	}
	return fields[stateField][0], start, nil
}

// process is one that is ours. close ends the handle, not the process.
type process struct {
	identity
	handle *os.Process // of this very process, also when its pid is used again
	status string      // how it ended; "" while it runs or when nobody can know
	code   int         // its exit status; -1: not known, or a signal
}

// identify names the process that has the pid now.
func identify(pid int) (identity, error) {
	_, start, err := stat(pid)
	return identity{PID: pid, Start: start, Boot: bootID()}, err
}

// open returns the process of the identity if it runs and serves the data
// directory. Anything else is errGone.
func open(id identity, dataDir string) (*process, error) {
	if id.PID <= 0 || id.Boot != bootID() {
		return nil, errGone
	}
	handle, err := os.FindProcess(id.PID)
	if err != nil {
		return nil, errGone
	}
	// The handle first: what is found out now holds for what it means.
	p := &process{identity: id, handle: handle, code: -1}
	if p.ended() || !serves(id.PID, dataDir) {
		p.close()
		return nil, errGone
	}
	return p, nil
}

// serves reports whether the process was started to serve the data directory.
func serves(pid int, dataDir string) bool {
	text, err := os.ReadFile(filepath.Join(procfs, strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return false
	}
	return servesDirectory(string(text), dataDir)
}

// servesDirectory reads a /proc/<pid>/cmdline.
func servesDirectory(cmdline, dataDir string) bool {
	args := strings.Split(cmdline, "\x00")
	at := slices.Index(args, "--data-dir")
	return len(args) > 1 && args[1] == "serve" && at > 0 && at+1 < len(args) && args[at+1] == dataDir
}

// search finds the process that serves the data directory, for when its
// orchestrator was killed before it could note the pid. What runs in a slot
// may call itself anything, but it is younger than its sandboxd.
func search(dataDir string) (*process, error) {
	entries, err := os.ReadDir(procfs)
	if err != nil {
		return nil, fmt.Errorf("look for process: %w", err)
	}
	var oldest identity
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || !serves(pid, dataDir) || !isOurUser(pid) {
			continue
		}
		id, err := identify(pid)
		if err == nil && (oldest.PID == 0 || id.Start < oldest.Start) {
			oldest = id
		}
	}
	return open(oldest, dataDir)
}

// isOurUser reports whether the process runs as our user. Who owns its entry
// in /proc does not tell: that is root for every sandboxd.
func isOurUser(pid int) bool {
	text, err := os.ReadFile(filepath.Join(procfs, strconv.Itoa(pid), "status"))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(text), "\nUid:")
	fields := strings.Fields(after)
	return len(fields) > 1 && fields[1] == strconv.Itoa(os.Geteuid())
}

// ended looks whether the process has ended. One of ours that has is not left
// behind as a zombie, and says how.
func (p *process) ended() bool {
	letter, start, err := stat(p.PID)
	if err == nil && start == p.Start && letter != 'Z' && letter != 'X' {
		return false
	}
	if err == nil && start == p.Start {
		return p.reap()
	}
	return true
}

// reap takes the status of a child. Whoever is not its parent learns nothing.
// It is false while threads of the process still end.
func (p *process) reap() bool {
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(p.PID, &status, syscall.WNOHANG, nil)
	switch {
	case err != nil: // no child of ours
		return true
	case pid != p.PID:
		return false
	case status.Signaled():
		p.status = fmt.Sprintf("ended by signal %d (%v)", int(status.Signal()), status.Signal())
	default:
		p.code = status.ExitStatus()
		p.status = fmt.Sprintf("ended with status %d", p.code)
	}
	return true
}

// signal sends the signal to this process and no other.
func (p *process) signal(s os.Signal) error {
	if err := p.handle.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to process %d: %w", s, p.PID, err)
	}
	return nil
}

func (p *process) close() {
	// It only gives the handle back, and cannot fail for an open one.
	_ = p.handle.Release()
}

// How often a process is looked at that is about to end, and how long it may
// take to do so after SIGKILL.
const (
	endingLook = 10 * time.Millisecond
	killedTime = 30 * time.Second
)

// leastGrace lets a container that has nothing to do end in order.
const leastGrace = 2 * time.Second

// end asks the process to end, and kills it after grace.
func (p *process) end(grace time.Duration) error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	if p.endsWithin(grace) {
		return nil
	}
	return p.kill()
}

func (p *process) kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	if !p.endsWithin(killedTime) {
		return fmt.Errorf("process %d does not end", p.PID)
	}
	return nil
}

func (p *process) endsWithin(d time.Duration) bool {
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	tick := time.NewTicker(endingLook)
	defer tick.Stop()
	for !p.ended() {
		select {
		case <-tick.C:
		case <-deadline.C:
			return p.ended()
		}
	}
	return true
}
