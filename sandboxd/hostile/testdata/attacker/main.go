// Command attacker is what hostile code in a slot tries. Each probe does one
// thing that must not work and says whether it did.
//
//	attacker run TARGETS PROBE...   one JSON line for each probe
//	attacker hold TARGETS           be the neighbour: own things worth stealing
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// targets is what the attacker is told. Pids and paths are the container's.
type targets struct {
	AgentPID   int      `json:"agent_pid"`
	AgentPort  int      `json:"agent_port"`
	Token      string   `json:"token"`  // the agent's own, as if it had leaked
	Pids       []int    `json:"pids"`   // of the agent and its spawner
	Others     []int    `json:"others"` // of the neighbour and its holder
	Binaries   []string `json:"binaries"`
	Scratch    string   `json:"scratch"` // where the tests make their directories, which may be anybody's
	Secret     string   `json:"secret"` // what the neighbour's and the agent's files hold
	Files      []string `json:"files"`  // of the neighbour
	AgentFiles []string `json:"agent_files"`
	Scheduler  []string `json:"scheduler"` // files of the scheduler's that hold the secret
	Sockets    []string `json:"sockets"`   // paths, or @names
	Addresses  []string `json:"addresses"` // host:port that must not answer without a network
	Held       held     `json:"held"`
	Marker     string   `json:"marker"`
	Key        int      `json:"key"` // of System V objects
}

// held is what the neighbour says it has.
type held struct {
	TCP, UDP string
	Abstract string
	Path     string
	Pty      string
	Left     []string // files in places that may be shared
	Notes    []string
}

// errNothing is an attempt that was not refused and yet gained nothing.
var errNothing = errors.New("found nothing")

// probe returns nil when the attack succeeded.
type probe func(t *targets) error

// outcome is one line of the output.
type outcome struct {
	Name string `json:"name"`
	Open bool   `json:"open"`
	Note string `json:"note"`
}

// succeeded is an attack that worked, with what it got.
type succeeded string

func (s succeeded) Error() string { return string(s) }

func main() {
	fds := inherited() // before the runtime opens any of its own
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "attacker run|hold TARGETS PROBE...")
		os.Exit(64)
	}
	if os.Args[1] == "child" {
		child(os.Args[2])
		return
	}
	var t targets
	if err := json.Unmarshal([]byte(os.Args[2]), &t); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(64)
	}
	if os.Args[1] == "hold" {
		hold(&t)
		return
	}
	table := map[string]probe{"A11.fds": func(*targets) error { return fds }}
	for _, more := range []map[string]probe{agentProbes, networkProbes, neighbourProbes, escapeProbes} {
		for name, p := range more {
			table[name] = p
		}
	}
	enc := json.NewEncoder(os.Stdout)
	for _, name := range os.Args[3:] {
		p := table[name]
		o := outcome{Name: name, Open: true, Note: "succeeded"}
		err := fmt.Errorf("no probe %s", name)
		if p != nil {
			err = p(&t)
		} else {
			enc.Encode(outcome{Name: name, Open: true, Note: err.Error()})
			continue
		}
		var got succeeded
		if errors.As(err, &got) {
			o.Note = string(got)
		} else if err != nil {
			o.Open, o.Note = false, err.Error()
		}
		if len(o.Note) > 1000 {
			o.Note = o.Note[:1000]
		}
		enc.Encode(o)
	}
}

// inherited lists the descriptors beyond the first three.
func inherited() error {
	var got []string
	for fd := 3; fd < 8192; fd++ {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			name, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
			if strings.HasPrefix(name, "anon_inode:[event") || strings.HasPrefix(name, "/sys/fs/cgroup") {
				continue // the runtime's own
			}
			got = append(got, fmt.Sprintf("%d: %s", fd, name))
		}
	}
	if len(got) > 0 {
		return succeeded(strings.Join(got, ", "))
	}
	return errNothing
}

// any is open when one of the attempts is; the note says which.
type attempts struct {
	got  []string
	last error
	n    int
}

func (a *attempts) try(name string, err error) {
	a.n++
	var got succeeded
	switch {
	case err == nil:
		a.got = append(a.got, name)
	case errors.As(err, &got):
		a.got = append(a.got, name+" ("+string(got)+")")
	case a.last == nil || !errors.Is(err, errNothing):
		a.last = fmt.Errorf("%s: %w", name, err)
	}
}

func (a *attempts) result() error {
	if len(a.got) > 0 {
		return succeeded(strings.Join(a.got, ", "))
	}
	if a.last == nil {
		return errNothing
	}
	return fmt.Errorf("%d refused, as %w", a.n, a.last)
}

// holds reports whether a file holds the text; it does not wait on pipes.
func holds(path, text string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if text == "" || !bytes.Contains(b, []byte(text)) {
		return errors.Join(errNothing, err)
	}
	return nil
}

// openable opens for writing and writes nothing.
func openable(path string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3) && path != "/dev/null" {
		return fmt.Errorf("%s is hidden behind /dev/null", path)
	}
	return nil
}

// creatable makes a file without a name in a directory.
func creatable(dir string) error {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// denied tells a refusal from an error that only a call which got through
// gives.
func denied(errno unix.Errno) error {
	if errno == unix.EPERM || errno == unix.EACCES || errno == unix.ENOSYS || errno == unix.EAFNOSUPPORT || errno == unix.EPROTONOSUPPORT {
		return errno
	}
	return succeeded("the kernel answered " + errno.Error())
}

func call(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	_, _, errno := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	if errno == 0 {
		return nil
	}
	return denied(errno)
}

// within bounds a probe that might hang.
func within(d time.Duration, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(d):
		return errors.New("hangs")
	}
}

// walk calls f for each directory below root, as far as it gets, and bounds
// the work.
func walk(root string, skip map[string]bool, until time.Time, f func(dir string)) {
	pending := []string{root}
	for len(pending) > 0 && time.Now().Before(until) {
		dir := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		f(dir)
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if e.IsDir() && !skip[path] {
				pending = append(pending, path)
			}
		}
	}
}
