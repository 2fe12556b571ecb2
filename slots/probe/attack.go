package probe

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"berth/slots"
)

// Targets is what the attacker in one throw-away slot is told. Paths and pids
// are the container's own.
type Targets struct {
	NeighbourFile string `json:"neighbour_file"` // holds Secret
	NeighbourPID  int    `json:"neighbour_pid"`
	AgentPID      int    `json:"agent_pid"`
	AgentFile     string `json:"agent_file"`    // holds Secret, readable by the agent alone
	AgentAddress  string `json:"agent_address"` // "" when the agent does not listen
	AgentSecrets  []File `json:"agent_secrets,omitempty"`
	Abstract      string `json:"abstract"` // an abstract socket that the neighbour's side listens on
	Secret        string `json:"secret"`
	// OwnPIDs and OwnProc say that pids, and names below /proc, mean the
	// slot's own processes: an attack by number would only hit itself.
	OwnPIDs bool `json:"own_pids"`
	OwnProc bool `json:"own_proc"`
	// OwnIPC says that IPC objects are the slot's own too.
	OwnIPC bool `json:"own_ipc"`
}

// File is one that an attacker knows when it finds it, without its content.
type File struct {
	Path   string `json:"path"`
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// FileAt names the file at the path.
func FileAt(path string) (File, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return File{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return File{Path: path, Device: st.Dev, Inode: st.Ino}, nil
}

// Result is one attack's outcome.
type Result struct {
	Name string `json:"name"`
	Open bool   `json:"open"` // it succeeded
	Note string `json:"note"` // the error that stopped it, or what it got
}

// attack is one thing a slot must not be able to do. When it is open, axis is
// no better than falls; without an axis it is only named as a weakness.
type attack struct {
	name  string
	axis  slots.Axis
	falls string
	try   func(t Targets) error // nil: it succeeded
}

var attacks = []attack{
	{"read the neighbour's file by its path", slots.AxisFS, "shared", func(t Targets) error { return readSecret(t.NeighbourFile, t.Secret) }},
	{"read the neighbour's file through /proc", slots.AxisFS, "shared", func(t Targets) error {
		return readSecret("/proc/"+strconv.Itoa(t.NeighbourPID)+"/root"+t.NeighbourFile, t.Secret)
	}},
	{"read the agent's file", slots.AxisAgent, "exposed", func(t Targets) error { return readSecret(t.AgentFile, t.Secret) }},
	{"read the agent's tokens", slots.AxisAgent, "exposed", func(t Targets) error { return readAny(t.AgentSecrets) }},
	{"read the agent's environment", slots.AxisAgent, "exposed", func(t Targets) error { return open(t, "environ") }},
	{"read the agent's memory", slots.AxisAgent, "exposed", func(t Targets) error { return open(t, "mem") }},
	{"trace the agent", slots.AxisAgent, "exposed", func(t Targets) error { return trace(t, t.AgentPID) }},
	{"signal the agent", slots.AxisAgent, "signals-only", func(t Targets) error { return signal(t, t.AgentPID) }},
	{"signal the neighbour", slots.AxisProc, "nodump", func(t Targets) error { return signal(t, t.NeighbourPID) }},
	{"trace the neighbour", slots.AxisProc, "shared", func(t Targets) error { return trace(t, t.NeighbourPID) }},
	{"talk to the agent's port", slots.AxisNet, "host", func(t Targets) error { return talk(t.AgentAddress) }},
	{"reach the neighbour's abstract socket", "", "", func(t Targets) error { return dialAbstract(t.Abstract) }},
	{"make a user namespace", slots.AxisSyscalls, "inherited", func(Targets) error { return unix.Unshare(unix.CLONE_NEWUSER) }},
	{"load a bpf program", slots.AxisSyscalls, "inherited", func(Targets) error {
		_, _, errno := unix.Syscall(unix.SYS_BPF, 0, 0, 0)
		return denied(errno)
	}},
	{"make shared memory that others see", slots.AxisIPC, "shared", func(t Targets) error {
		if t.OwnIPC {
			return errSafe
		}
		id, err := unix.SysvShmGet(0x62657274, 4096, unix.IPC_CREAT|unix.IPC_EXCL|0o600)
		if err != nil {
			return err
		}
		_, err = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
		return err
	}},
}

// AttackMain runs the list against the targets read from stdin, inside a
// slot, and prints the results as one JSON array.
func AttackMain(stdin io.Reader, stdout io.Writer) int {
	var t Targets
	if err := json.NewDecoder(stdin).Decode(&t); err != nil {
		return 64
	}
	results := make([]Result, 0, len(attacks))
	for _, a := range attacks {
		r := Result{Name: a.name, Open: true, Note: "succeeded"}
		if err := a.try(t); err != nil {
			r.Open, r.Note = false, err.Error()
		}
		results = append(results, r)
	}
	if err := json.NewEncoder(stdout).Encode(results); err != nil {
		return 74
	}
	return 0
}

// Judge lowers the claimed axes to what the attacks left of them and names
// the weaknesses that cost no axis. privateIPC says that shared memory was
// made in a namespace of the slot's own.
func Judge(claimed slots.Axes, results []Result, privateIPC bool) (slots.Axes, []string) {
	axes := slots.Axes{}
	maps.Copy(axes, claimed)
	var weak []string
	open := map[string]bool{}
	for _, r := range results {
		open[r.Name] = r.Open
	}
	for _, a := range attacks {
		if !open[a.name] || a.axis == slots.AxisIPC && privateIPC {
			continue
		}
		if a.axis == "" {
			weak = append(weak, "a slot can "+a.name)
			continue
		}
		axes = axes.AtMost(a.axis, a.falls)
	}
	return axes, weak
}

var errSafe = errors.New("found nothing")

func readSecret(path, secret string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if string(b) != secret {
		return errSafe
	}
	return nil
}

func readAny(files []File) error {
	failed := errSafe
	for _, f := range files {
		at, err := os.Open(f.Path)
		if err != nil {
			failed = err
			continue
		}
		var st unix.Stat_t
		err = unix.Fstat(int(at.Fd()), &st)
		at.Close()
		if err == nil && st.Dev == f.Device && st.Ino == f.Inode {
			return nil
		}
	}
	return failed
}

func open(t Targets, file string) error {
	if t.OwnProc {
		return unix.ESRCH
	}
	f, err := os.Open("/proc/" + strconv.Itoa(t.AgentPID) + "/" + file)
	if err != nil {
		return err
	}
	defer f.Close()
	if file == "mem" { // address 0 is never mapped; the open was what mattered
		return nil
	}
	if n, err := f.Read(make([]byte, 1)); n == 0 {
		return errors.Join(errSafe, err)
	}
	return nil
}

func signal(t Targets, pid int) error {
	if t.OwnPIDs {
		return unix.ESRCH
	}
	return unix.Kill(pid, 0)
}

func trace(t Targets, pid int) error {
	if t.OwnPIDs {
		return unix.ESRCH
	}
	err := unix.PtraceSeize(pid)
	if err == nil {
		_ = unix.PtraceDetach(pid) // our own end lets go as well
	}
	return err
}

func dialAbstract(name string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: "@" + name})
}

// denied tells a refusal from an error that only a call which got through
// gives.
func denied(errno unix.Errno) error {
	if errno == unix.EPERM || errno == unix.EACCES || errno == unix.ENOSYS {
		return errno
	}
	return nil
}
