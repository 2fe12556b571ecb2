package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// kernel is everything that changes the machine. Tests put a directory of
// plain files behind it that follows the kernel's rules; reading is always
// done on the files themselves.
type kernel struct {
	mkdir  func(dir string) error
	rmdir  func(dir string) error
	write  func(file, value string) error
	signal func(pids []int, still func() []int) error // SIGKILL to those that still() lists as well
	child  func() (pid int, end func(), err error)    // a process that executes nothing until end
	alive  func(pid int) bool
	pid    int // our own
}

func machine() kernel {
	return kernel{
		mkdir:  func(dir string) error { return os.Mkdir(dir, 0o755) },
		rmdir:  unix.Rmdir,
		write:  writeFile,
		signal: killPids,
		child:  stoppedChild,
		alive:  func(pid int) bool { return !errors.Is(unix.Kill(pid, 0), unix.ESRCH) },
		pid:    os.Getpid(),
	}
}

// writeFile hands value to the kernel in one write(2): control files take one
// command per write.
func writeFile(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// killPids sends SIGKILL through pidfds. A pid that was reused between its
// listing and the opening of its pidfd is no longer listed by still, so no
// stranger is hit.
func killPids(pids []int, still func() []int) error {
	fds := make(map[int]int, len(pids))
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	var errs []error
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		switch {
		case errors.Is(err, unix.ESRCH):
		case err != nil:
			errs = append(errs, fmt.Errorf("open pidfd of process %d: %w", pid, err))
		default:
			fds[pid] = fd
		}
		// A bomb may list more processes than we may have descriptors.
		if len(fds) >= 64 {
			break
		}
	}
	listed := still()
	for pid, fd := range fds {
		if !slices.Contains(listed, pid) {
			continue
		}
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("kill process %d: %w", pid, err))
		}
	}
	return errors.Join(errs...)
}

// stoppedChild starts this very binary under ptrace, which stops it before
// its first instruction: a process to attach that needs no program in the
// container and runs none. The calling goroutine stays on its thread until
// end, because a tracer is a thread.
func stoppedChild() (int, func(), error) {
	runtime.LockOSThread()
	p, err := os.StartProcess("/proc/self/exe", []string{"berth-probe"}, &os.ProcAttr{
		Env: []string{},
		Sys: &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		runtime.UnlockOSThread()
		return 0, nil, fmt.Errorf("start probe process: %w", err)
	}
	return p.Pid, func() {
		_ = p.Kill()
		_, _ = p.Wait() // an agent that reaps every child may have been faster
		runtime.UnlockOSThread()
	}, nil
}

// poll calls done with growing pauses until it says true, fails, or ctx ends.
func poll(ctx context.Context, done func() (bool, error)) error {
	pause := 200 * time.Microsecond
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		}
		pause = min(2*pause, 20*time.Millisecond)
	}
}

// readText is the content of a control file without the final newline.
func readText(file string) (string, error) {
	b, err := os.ReadFile(file)
	return strings.TrimSpace(string(b)), err
}

// listPids reads the processes of dir and of everything below it, or of dir
// alone. Processes outside our pid namespace are listed as 0.
func listPids(dir string, below bool) ([]int, error) {
	dirs := []string{dir}
	if below {
		dirs = append(descend(dir), dir)
	}
	var pids []int
	for _, d := range dirs {
		text, err := readText(filepath.Join(d, "cgroup.procs"))
		if gone(err) && d != dir {
			continue
		}
		if err != nil {
			return nil, err
		}
		for word := range strings.FieldsSeq(text) {
			pid, err := strconv.Atoi(word)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", filepath.Join(d, "cgroup.procs"), err)
			}
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// descend lists the directories below dir, children before their parents.
func descend(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			child := filepath.Join(dir, e.Name())
			out = append(append(out, descend(child)...), child)
		}
	}
	return out
}

// gone says that a group was removed: its files do not exist, or were open
// and answer ENODEV.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
