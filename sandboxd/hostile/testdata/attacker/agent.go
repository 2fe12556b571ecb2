package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

var agentProbes = map[string]probe{
	"A01.signals": func(t *targets) error {
		var a attempts
		for _, pid := range t.Pids {
			a.try(strconv.Itoa(pid), signals(pid))
		}
		return a.result()
	},
	"A01.survive":  survive,
	"A02.everyone": everyone,
	"A02.freeze":   freeze,
	"A02.init":     ownInit,
	"A03.trace": func(t *targets) error {
		var a attempts
		for _, pid := range t.Pids {
			a.try("seize "+strconv.Itoa(pid), trace(unix.PTRACE_SEIZE, pid))
			a.try("attach "+strconv.Itoa(pid), trace(unix.PTRACE_ATTACH, pid))
		}
		return a.result()
	},
	"A04.memory": func(t *targets) error {
		var a attempts
		for _, pid := range t.Pids {
			a.try("read "+strconv.Itoa(pid), foreignMemory(unix.ProcessVMReadv, pid))
			a.try("write "+strconv.Itoa(pid), foreignMemory(unix.ProcessVMWritev, pid))
		}
		return a.result()
	},
	"A05.agent":   func(t *targets) error { return procFiles(t.Pids[:1]) },
	"A05.spawner": func(t *targets) error { return procFiles(t.Pids[1:]) },
	"A05.files": func(t *targets) error {
		var a attempts
		for _, f := range t.AgentFiles {
			a.try(f, holds(f, t.Secret))
		}
		return a.result()
	},
	"A06.tuning": func(t *targets) error {
		var a attempts
		for _, pid := range t.Pids {
			for _, f := range []string{"oom_score_adj", "oom_adj", "coredump_filter", "timens_offsets", "clear_refs", "comm", "mem", "sched", "autogroup", "uid_map", "setgroups"} {
				path := fmt.Sprintf("/proc/%d/%s", pid, f)
				a.try(path, openable(path))
			}
		}
		return a.result()
	},
	"A07.scheduling": func(t *targets) error { return retune(t.Pids) },
	"A08.descriptors": func(t *targets) error {
		var a attempts
		for _, pid := range t.Pids {
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				a.try("pidfd_open", err)
				continue
			}
			for n := range 16 {
				a.try(fmt.Sprintf("pidfd_getfd %d", n), getFD(fd, n))
			}
			unix.Close(fd)
		}
		return a.result()
	},
	"A08.signal": func(t *targets) error {
		var a attempts
		for _, pid := range t.Pids {
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				a.try("pidfd_open", err)
				continue
			}
			a.try("pidfd_send_signal", unix.PidfdSendSignal(fd, 0, nil, 0))
			unix.Close(fd)
		}
		return a.result()
	},
	"A09.mode": func(t *targets) error { // which Landlock does not know
		var a attempts
		for _, path := range t.Binaries {
			a.try("chmod "+path, unix.Chmod(path, 0o755))
		}
		return a.result()
	},
	"A09.binary": func(t *targets) error {
		var a attempts
		paths := append([]string{"/proc/1/exe", fmt.Sprintf("/proc/%d/exe", t.AgentPID), fmt.Sprintf("/proc/%d/exe", os.Getppid())}, t.Binaries...)
		for _, p := range t.Pids {
			paths = append(paths, fmt.Sprintf("/proc/%d/exe", p))
		}
		for _, p := range t.Others {
			paths = append(paths, fmt.Sprintf("/proc/%d/exe", p))
		}
		for _, path := range paths {
			for range 20 { // between one execution of it and the next
				err := openable(path)
				a.try(path, err)
				if err == nil || !errors.Is(err, unix.ETXTBSY) {
					break // busy comes before everything but the file's permissions
				}
			}
		}
		for _, path := range t.Binaries {
			if filepath.Dir(path) != "/run" { // the slot's own
				a.try("make files beside "+path, creatable(filepath.Dir(path)))
			}
		}
		return a.result()
	},
	"A18.core": func(*targets) error {
		unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
		cmd := exec.Command("/proc/self/exe", "child", "crash")
		if _, err := os.Stat("/proc/self/exe"); err != nil {
			cmd = exec.Command(os.Args[0], "child", "crash")
		}
		cmd.Run()
		found, _ := filepath.Glob("core*")
		var a attempts
		for _, f := range found {
			a.try(f, nil)
		}
		return a.result()
	},
	"A18.agent": func(t *targets) error {
		var a attempts
		for _, pid := range t.Pids {
			limit := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
			a.try("allow a core", unix.Prlimit(pid, unix.RLIMIT_CORE, &limit, nil))
		}
		return a.result()
	},
	"A20.tty": func(*targets) error {
		var a attempts
		for fd := range 3 {
			for _, cmd := range []uintptr{unix.TIOCSTI, unix.TIOCLINUX, 1<<32 | unix.TIOCSTI} {
				b := [2]byte{'x'}
				a.try(fmt.Sprintf("ioctl %#x on %d", cmd, fd), call(unix.SYS_IOCTL, uintptr(fd), cmd, uintptr(unsafe.Pointer(&b))))
			}
		}
		fd, err := unix.Open("/dev/tty", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
		}
		a.try("controlling terminal", err)
		for _, path := range []string{"/dev/ptmx", "/dev/pts/ptmx"} {
			fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
			if err != nil {
				continue
			}
			b := byte('x')
			a.try("type into "+path, call(unix.SYS_IOCTL, uintptr(fd), unix.TIOCSTI, uintptr(unsafe.Pointer(&b))))
			unix.Close(fd)
		}
		return a.result()
	},
}

// signals sends every signal, unless the harmless one tells enough.
func signals(pid int) error {
	if unix.Kill(pid, 0) == nil {
		return succeeded("signal 0 reaches it")
	}
	var a attempts
	for sig := unix.Signal(1); sig <= 64; sig++ {
		a.try(fmt.Sprintf("kill %d", sig), unix.Kill(pid, sig))
		a.try(fmt.Sprintf("tgkill %d", sig), unix.Tgkill(pid, pid, sig))
		info := [128]byte{}
		*(*int32)(unsafe.Pointer(&info[0])), *(*int32)(unsafe.Pointer(&info[8])) = int32(sig), -1
		_, _, errno := unix.RawSyscall(unix.SYS_RT_SIGQUEUEINFO, uintptr(pid), uintptr(sig), uintptr(unsafe.Pointer(&info)))
		if errno != 0 {
			a.try("sigqueue", errno)
		} else {
			a.try("sigqueue", nil)
		}
		a.try(fmt.Sprintf("group %d", sig), unix.Kill(-pid, sig))
	}
	return a.result()
}

// survive sends the agent all that may not end it, even where it can be
// signalled.
func survive(t *targets) error {
	sent := 0
	for sig := unix.Signal(1); sig <= 64; sig++ {
		switch sig {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGTERM, unix.SIGINT, 32, 33, 34: // the last three no Go program can catch
			continue
		}
		if unix.Kill(t.AgentPID, sig) == nil {
			sent++
		}
	}
	time.Sleep(50 * time.Millisecond)
	return fmt.Errorf("sent %d", sent)
}

var errReaches = errors.New("the agent can be signalled, so the rest is not tried")

// everyone kills all it can, after a look that the agent is not among them.
func everyone(t *targets) error {
	for _, pid := range append(append([]int{1}, t.Pids...), t.Others...) {
		if pid == 1 && t.Marker == "own pids" {
			continue
		}
		if unix.Kill(pid, 0) == nil {
			return succeeded(errReaches.Error())
		}
	}
	unix.Kill(0, unix.SIGCONT)
	for _, sig := range []unix.Signal{unix.SIGHUP, unix.SIGTERM, unix.SIGUSR1, unix.SIGKILL} {
		unix.Kill(-1, sig)
	}
	return errNothing
}

// freeze stops all it can, its holder too where that is in reach.
func freeze(t *targets) error {
	for _, pid := range append(append([]int{1}, t.Pids...), t.Others...) {
		if pid == 1 && t.Marker == "own pids" {
			continue
		}
		if unix.Kill(pid, 0) == nil {
			return succeeded(errReaches.Error())
		}
	}
	unix.Kill(-1, unix.SIGSTOP)
	return errNothing
}

// ownInit sends every signal to PID 1 of its own namespace.
func ownInit(*targets) error {
	for sig := unix.Signal(1); sig <= 64; sig++ {
		unix.Kill(1, sig)
	}
	time.Sleep(50 * time.Millisecond)
	return errNothing
}

func trace(request, pid int) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, uintptr(request), uintptr(pid), 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	unix.PtraceDetach(pid)
	return nil
}

func foreignMemory(f func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error), pid int) error {
	b := make([]byte, 8)
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(8)
	// Where the text of a static Go program is: readable, not writable.
	_, err := f(pid, local, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
	if errors.Is(err, unix.EFAULT) {
		return succeeded("the kernel looked")
	}
	return err
}

// procFiles opens everything of a process that tells or gives something.
func procFiles(pids []int) error {
	var a attempts
	for _, pid := range pids {
		dir := fmt.Sprintf("/proc/%d", pid)
		for _, f := range []string{"environ", "mem", "maps", "smaps", "auxv", "syscall", "stack", "pagemap", "personality", "io", "task/" + strconv.Itoa(pid) + "/environ"} {
			file, err := os.Open(filepath.Join(dir, f))
			if err == nil {
				n := 0
				if f != "mem" {
					n, err = file.Read(make([]byte, 64))
				}
				file.Close()
				if f != "mem" && n == 0 && err == nil {
					err = errNothing
				}
			}
			a.try(f, err)
		}
		// Names alone are nothing: a number of descriptors, a list of namespaces.
		for _, f := range []string{"fd", "map_files", "ns"} {
			entries, err := os.ReadDir(filepath.Join(dir, f))
			if err == nil {
				err = errNothing
			}
			for _, e := range entries {
				if to, failed := os.Readlink(filepath.Join(dir, f, e.Name())); failed == nil {
					err = succeeded(to)
				}
			}
			a.try(f, err)
		}
		for _, f := range []string{"root/etc", "cwd/."} {
			_, err := os.ReadDir(filepath.Join(dir, f))
			a.try(f, err)
		}
		for _, f := range []string{"exe", "root", "cwd"} {
			_, err := os.Readlink(filepath.Join(dir, f))
			a.try(f, err)
		}
	}
	return a.result()
}

// retune sets what can be set of other processes to what it is.
func retune(pids []int) error {
	var a attempts
	for _, pid := range pids {
		var limit unix.Rlimit
		err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit)
		if err == nil {
			err = unix.Prlimit(pid, unix.RLIMIT_NOFILE, &limit, nil)
		}
		a.try("prlimit", err)
		nice, err := unix.Getpriority(unix.PRIO_PROCESS, pid)
		if err == nil {
			err = unix.Setpriority(unix.PRIO_PROCESS, pid, 20-nice)
		}
		a.try("setpriority", err)
		var set unix.CPUSet
		err = unix.SchedGetaffinity(pid, &set)
		if err == nil {
			err = unix.SchedSetaffinity(pid, &set)
		}
		a.try("sched_setaffinity", err)
		param := int32(0)
		a.try("sched_setscheduler", plain(unix.SYS_SCHED_SETSCHEDULER, uintptr(pid), 0, uintptr(unsafe.Pointer(&param))))
		a.try("sched_setparam", plain(unix.SYS_SCHED_SETPARAM, uintptr(pid), uintptr(unsafe.Pointer(&param))))
		attr := [48]byte{48}
		a.try("sched_setattr", plain(unix.SYS_SCHED_SETATTR, uintptr(pid), uintptr(unsafe.Pointer(&attr))))
		const bestEffort4 = 2<<13 | 4
		a.try("ioprio_set", plain(unix.SYS_IOPRIO_SET, 1, uintptr(pid), bestEffort4))
		a.try("setpgid", unix.Setpgid(pid, pid))
	}
	return a.result()
}

func plain(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, errno := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
		return errno
	}
	return nil
}

func getFD(pidfd, n int) error {
	fd, err := unix.PidfdGetfd(pidfd, n, 0)
	if errors.Is(err, unix.EBADF) {
		return succeeded("the kernel looked")
	}
	if err == nil {
		unix.Close(fd)
	}
	return err
}
