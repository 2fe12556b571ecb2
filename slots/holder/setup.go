package holder

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/slots/seccomp"
)

// stage names the step that failed; it crosses the socket as failure.Stage.
type stageError struct {
	stage string
	err   error
}

func (e *stageError) Error() string { return e.stage + ": " + e.err.Error() }
func (e *stageError) Unwrap() error { return e.err }

func asFailure(err error) failure {
	f := failure{Stage: "unknown", Text: err.Error()}
	if s, ok := errors.AsType[*stageError](err); ok {
		f.Stage = s.stage
	}
	f.Errno = errnoOf(err)
	return f
}

// errnoOf is the system call error in err's chain, or 0.
func errnoOf(err error) int {
	errno, _ := errors.AsType[syscall.Errno](err)
	return int(errno)
}

// setUp confines the calling thread as the plan says. It runs once, in this
// order, because each step needs something that a later one takes away. The
// thread then becomes the holder by exec, which ends all other threads: so
// what holds for it holds for the whole process, and no thread is missed.
func setUp(p *Plan) error {
	steps := []struct {
		name string
		do   func(*Plan) error
	}{
		// While /proc is still the container's and this process still dumpable:
		// both are needed to write our own oom_score_adj.
		{"oom_score_adj", setOOMScore},
		// A subreaper collects what its descendants leave; with an own pid
		// namespace the kernel gives PID 1 the same duty.
		{"subreaper", setSubreaper},
		// Needs CAP_SYS_ADMIN over the mount namespace; a process under
		// Landlock may not mount, and after this the container's paths are gone.
		{"root", setRoot},
		{"loopback", setLoopback}, // CAP_NET_ADMIN over the network namespace
		{"hostname", setHostname}, // CAP_SYS_ADMIN over the UTS namespace
		{"session", setSession},
		{"priority", setPriority}, // seccomp leaves nobody but oneself to it, and what is started here inherits it
		// The bounding set needs CAP_SETPCAP and the ids CAP_SETUID and
		// CAP_SETGID, so capabilities are emptied last of the three.
		{"groups", dropGroups},
		{"bounding set", dropBounding},
		{"ids", setIDs},
		{"capabilities", dropCapabilities},
		// From here on nothing can be gained by exec; Landlock and seccomp of
		// an unprivileged process insist on it.
		{"no_new_privs", setNoNewPrivs},
		{"landlock", setLandlock},
		// Never raised, so no capability is needed. Landlock signals the threads,
		// for which a neighbour of the same user may have left no room below the
		// limit of pending signals.
		{"rlimits", setRlimits},
		{"seccomp", setSeccomp}, // last: it denies most of the above
	}
	for _, s := range steps {
		if err := s.do(p); err != nil {
			return &stageError{s.name, err}
		}
	}
	return nil
}

func setSubreaper(p *Plan) error {
	if p.Namespaces.PID {
		return nil
	}
	return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
}

func setRoot(p *Plan) error {
	if p.View == nil {
		return nil
	}
	if err := makeRoot(p); err != nil {
		return err
	}
	return os.Chdir(p.Workspace)
}

func setLoopback(p *Plan) error {
	if !p.Namespaces.Net {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifreq, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifreq.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	err = unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifreq)
	if errors.Is(err, unix.EPERM) {
		return nil // root without CAP_NET_ADMIN: no loopback, which isolates more, not less
	}
	return err
}

func setHostname(p *Plan) error {
	if !p.Namespaces.UTS {
		return nil
	}
	return unix.Sethostname([]byte(p.Slot))
}

func setSession(*Plan) error {
	if _, err := unix.Setsid(); err != nil && !errors.Is(err, unix.EPERM) {
		return err // EPERM: we lead a group already
	}
	unix.Umask(0o022)
	return nil
}

// yield is by how much a slot's processes are nicer than the agent. In a
// container whose slots have no cgroups of their own they compete with the
// agent one by one: beside a hundred that compute, an equal's turn comes every
// few hundred milliseconds. Towards other containers it means nothing.
const yield = 10

// setPriority has the calling thread, and the process that it becomes, give way
// to the agent. Where that is refused slots and agent are equals.
func setPriority(*Plan) error {
	const nicest, asMany = 19, 20 // the system call counts from 20 down to 1
	have, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err == nil {
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, min(nicest, asMany-have+yield))
	}
	return nil
}

func setRlimits(p *Plan) error {
	for _, want := range p.Rlimits {
		var have syscall.Rlimit
		if err := syscall.Getrlimit(want.Resource, &have); err != nil {
			return fmt.Errorf("get rlimit %d: %w", want.Resource, err)
		}
		value := min(want.Value, have.Max)
		// The syscall package's own Setrlimit: it also stops Go from restoring
		// the container's RLIMIT_NOFILE in children.
		if err := syscall.Setrlimit(want.Resource, &syscall.Rlimit{Cur: value, Max: value}); err != nil {
			return fmt.Errorf("set rlimit %d to %d: %w", want.Resource, value, err)
		}
	}
	return nil
}

func dropGroups(p *Plan) error {
	err := thread(unix.SYS_SETGROUPS, 0, 0, 0)
	if errors.Is(err, unix.EPERM) && (!p.IDs.Switch || p.Namespaces.User) {
		return nil // an unprivileged user namespace denies setgroups; its groups map to nobody
	}
	return err
}

// thread makes a system call for the calling thread alone, where the syscall
// package would make it for all: exec is going to end the others.
func thread(call, a, b, c uintptr) error {
	if _, _, errno := syscall.RawSyscall6(call, a, b, c, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

func dropBounding(p *Plan) error {
	if !p.IDs.Switch && !p.IDs.Bare {
		return nil
	}
	for c := range uintptr(unix.CAP_LAST_CAP + 1) {
		if keepsCap(p, int(c)) {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // the kernel knows fewer
		}
		if errors.Is(err, unix.EPERM) && !p.IDs.Switch {
			break // an agent without CAP_SETPCAP: no_new_privs keeps exec from drawing on the set
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func keepsCap(p *Plan, c int) bool {
	return slices.Contains(p.IDs.Caps, c)
}

func setIDs(p *Plan) error {
	if !p.IDs.Switch {
		return nil
	}
	uid, gid := uintptr(p.IDs.UID), uintptr(p.IDs.GID)
	if err := thread(unix.SYS_SETRESGID, gid, gid, gid); err != nil {
		return fmt.Errorf("set gid %d: %w", p.IDs.GID, err)
	}
	if err := thread(unix.SYS_SETRESUID, uid, uid, uid); err != nil {
		return fmt.Errorf("set uid %d: %w", p.IDs.UID, err)
	}
	return nil
}

// dropCapabilities empties the ambient set, which a change of uid alone would
// leave to a process that got its capabilities that way, and then the others.
func dropCapabilities(p *Plan) error {
	err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("clear ambient set: %w", err)
	}
	if !p.IDs.Switch && !p.IDs.Bare {
		return nil
	}
	return setCapabilities(p.IDs.Caps)
}

func setNoNewPrivs(p *Plan) error {
	if !p.NoNewPrivs {
		return nil
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

func setSeccomp(p *Plan) error {
	if p.Seccomp == nil {
		return nil
	}
	arch, err := seccomp.HostArch()
	if err != nil {
		return err
	}
	program, err := seccomp.Compile(seccomp.ForSlot(*p.Seccomp), arch)
	if err != nil {
		return fmt.Errorf("compile filter: %w", err)
	}
	return seccomp.Install(program)
}
