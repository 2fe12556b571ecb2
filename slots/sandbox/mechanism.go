package sandbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/slots"
	"berth/slots/holder"
	"berth/slots/probe"
)

// mechanism is one way to isolate slots: which kernel facilities stand in for
// which axis. The ladder of mechanisms is tried strongest first.
type mechanism struct {
	name       string
	namespaces bool   // pid, mount, ipc, uts, cgroup
	userns     bool   // inside a user namespace
	pivot      bool   // pivot_root; else MS_MOVE and chroot
	proc       string // fresh, rbind, none; "shared" without a mount namespace
	ids        bool   // a uid and gid per sandbox
	files      bool   // Landlock on files
	confined   bool   // no_new_privs, seccomp, rlimits
}

// ladder lists what to try on a machine with these facts, strongest first,
// none above attempt.
func ladder(f probe.Facts, attempt slots.Level) []mechanism {
	var all []mechanism
	admin := f.Can(unix.CAP_SYS_ADMIN)
	if attempt >= slots.LevelNS {
		ids := f.CanSwitch()
		all = append(all, mechanism{name: "user namespace, fresh /proc", namespaces: true, userns: true, pivot: true, proc: "fresh", ids: ids, confined: true})
		if admin && ids {
			all = append(all,
				mechanism{name: "namespaces of root, fresh /proc", namespaces: true, pivot: true, proc: "fresh", ids: true, confined: true},
				mechanism{name: "namespaces of root, moved root", namespaces: true, proc: "fresh", ids: true, confined: true})
		}
		all = append(all,
			mechanism{name: "user namespace, no /proc of its own", namespaces: true, userns: true, pivot: true, proc: "rbind", ids: ids, confined: true},
			mechanism{name: "user namespace, moved root, no /proc of its own", namespaces: true, userns: true, proc: "rbind", ids: ids, confined: true},
			mechanism{name: "user namespace, no /proc", namespaces: true, userns: true, pivot: true, proc: "none", ids: ids, confined: true})
	}
	if attempt >= slots.LevelUID && f.CanSwitch() {
		if attempt >= slots.LevelUIDLandlock && f.LandlockABI > 0 {
			all = append(all, mechanism{name: "uids and Landlock", ids: true, files: true, proc: "shared", confined: true})
		}
		all = append(all, mechanism{name: "uids", ids: true, proc: "shared", confined: true})
	}
	if attempt >= slots.LevelLandlock && f.LandlockABI > 0 {
		all = append(all, mechanism{name: "Landlock", files: true, proc: "shared", confined: true})
	}
	if attempt >= slots.LevelBasic {
		all = append(all, mechanism{name: "limits and filter", proc: "shared", confined: true})
	}
	return append(all, mechanism{name: "nothing", proc: "shared"})
}

// withPrivateRoot keeps those of the mechanisms that can give each slot a root
// of its own to write to: a user namespace over a range of ids, which takes a
// mount that maps them.
func withPrivateRoot(all []mechanism) []mechanism {
	return slices.DeleteFunc(all, func(m mechanism) bool { return !m.userns || !m.ids })
}

// axes are what the mechanism claims before the attacks judge it.
func (m mechanism) axes(h *Host) slots.Axes {
	a := slots.Axes{slots.AxisKill: "walk", slots.AxisProcfs: m.proc, slots.AxisAgent: "hidden"}
	switch {
	case m.namespaces:
		a[slots.AxisFS], a[slots.AxisProc], a[slots.AxisIPC], a[slots.AxisKill] = "mntns", "pidns", "ipcns", "pidns"
	case m.ids && m.files:
		a[slots.AxisFS], a[slots.AxisProc], a[slots.AxisIPC], a[slots.AxisKill] = "dac+landlock", "uid", "seccomp", "uid"
	case m.ids:
		a[slots.AxisFS], a[slots.AxisProc], a[slots.AxisIPC], a[slots.AxisKill] = "dac", "uid", "seccomp", "uid"
	case m.files:
		a[slots.AxisFS], a[slots.AxisProc], a[slots.AxisIPC] = "landlock", "nodump", "seccomp"
		if h.facts.LandlockABI >= 6 {
			a[slots.AxisProc] = "landlock-scope"
		}
	case m.confined:
		a[slots.AxisAgent] = "signals-only"
		a[slots.AxisIPC] = "seccomp"
	default:
		a[slots.AxisAgent] = "exposed"
	}
	if m.confined {
		a[slots.AxisPids], a[slots.AxisMemory], a[slots.AxisSyscalls] = "rlimit", "rlimit", "denylist+no-nested-userns"
		if h.config.Limits.AddressBytes == 0 {
			a[slots.AxisMemory] = "none"
		}
		if !m.ids && !m.userns && h.facts.UID == 0 {
			a[slots.AxisPids] = "none" // the kernel counts root's processes and never refuses one
		}
	}
	switch {
	case h.netns(m):
		a[slots.AxisNet] = "loopback-only"
	case m.confined && (h.hidesPort() || m.ids && h.refusesSlots() || h.config.AgentPort == 0):
		a[slots.AxisNet] = "host-minus-agent-port"
	}
	if h.cgroups != nil {
		for _, c := range h.cgroups.Controllers() {
			switch c {
			case "memory":
				a[slots.AxisMemory] = "cgroup"
			case "pids":
				a[slots.AxisPids] = "cgroup"
			case "cpu":
				a[slots.AxisCPU] = "cgroup"
			}
		}
	}
	switch {
	case h.disk == DiskQuota && !m.confined: // who owns a directory may give it another project
	case h.disk != "":
		a[slots.AxisDisk] = diskAxis[h.disk]
	case h.config.Limits.FileBytes > 0 && m.confined:
		a[slots.AxisDisk] = "fsize"
	}
	return a
}

// passable is what slots with users of their own need of the directories above
// them.
const passable = "a data directory that others pass through (chmod o+x, and all above it)"

// mend says how to get past a step that the machine refused.
func mend(stage string, errno syscall.Errno) string {
	switch {
	case stage == "clone" && errno == unix.EPERM:
		return `allow namespaces: docker security_opt "seccomp=<Berth's profile>", or sysctl kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0`
	case stage == "clone" && (errno == unix.ENOSPC || errno == unix.EUSERS):
		return "raise sysctl user.max_user_namespaces"
	case stage == "root" && errno == unix.EACCES:
		return `docker security_opt "apparmor=unconfined", or a profile that allows mount; or ` + passable
	case errno == unix.EACCES && (stage == "landlock" || stage == "become server"):
		return passable
	case stage == "root" && errno == unix.EPERM:
		return "the container masks /proc or denies pivot_root; the next fallback is tried by itself"
	case stage == "private root":
		return "a shared root and no home; these need an agent with CAP_SYS_ADMIN and CAP_SYS_PTRACE, and a file system whose ids can be mapped, which a container engine's overlay is not"
	case stage == "hostname":
		return "a service manager that lets programs set the name of their own namespace (ProtectHostname=no)"
	case stage == "ids" || stage == "groups":
		return "run as root, or with CAP_SETUID and CAP_SETGID"
	case stage == "landlock":
		return "a kernel with Landlock enabled (5.13 or newer, lsm=landlock,...)"
	case stage == "seccomp":
		return "a kernel with seccomp filters"
	}
	return ""
}

// Attempt is one mechanism that was tried at start.
type Attempt struct {
	Mechanism string      `json:"mechanism"`
	Level     slots.Level `json:"level"` // what it reached; none when it did not start
	Stage     string      `json:"stage,omitempty"`
	Errno     string      `json:"errno,omitempty"`
	Error     string      `json:"error,omitempty"`
	Mend      string      `json:"mend,omitempty"`
}

func refused(m mechanism, err error) Attempt {
	a := Attempt{Mechanism: m.name, Error: err.Error()}
	if stage, ok := errors.AsType[*holder.StageError](err); ok {
		a.Stage = stage.Stage
		if stage.Errno != 0 {
			a.Errno = unix.ErrnoName(syscall.Errno(stage.Errno))
		}
		a.Mend = mend(stage.Stage, syscall.Errno(stage.Errno))
	}
	return a
}

// UnmetError is a required isolation that this machine does not give.
type UnmetError struct {
	Required  slots.Requirement
	Got       slots.Isolation
	Shortfall []slots.Shortfall
	Attempts  []Attempt
}

// Error names every axis with what was wanted and got, then what was tried
// and how to mend it.
func (e *UnmetError) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "isolation %s is required, this machine gives %s", e.Required, e.Got.Level)
	for _, s := range e.Shortfall {
		fmt.Fprintf(&text, "; axis %s: wanted %s, got %s", s.Axis, s.Wanted, s.Got)
	}
	mends := false
	for _, a := range e.Attempts {
		if a.Error == "" {
			continue
		}
		fmt.Fprintf(&text, "; tried %s: %s", a.Mechanism, a.Error)
		if a.Mend != "" {
			mends = true
			fmt.Fprintf(&text, " (mend: %s)", a.Mend)
		}
	}
	if !mends { // what was attempted works, and is less all the same
		text.WriteString("; mend: require less, or attempt more and mend what \"sandboxd probe\" then names")
	}
	return text.String()
}
