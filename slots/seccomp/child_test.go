package seccomp

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A filter cannot be taken off, so whatever installs one happens in a child: the
// test binary again, with the name of a scenario in its environment. The child
// prints a report.
const scenarioVariable = "BERTH_TEST_SCENARIO"

// report maps what was tried to how it ended: "ok", an errno's name, or a text.
type report map[string]string

var scenarios = map[string]func() report{
	"nothing":  func() report { return nil },
	"bare":     tryForbidden,
	"filtered": func() report { return under(Options{SharedIPC: true}, tryForbidden) },
	"ordinary": func() report { return under(Options{SharedIPC: true}, tryOrdinary) },
	"offline":  func() report { return under(Options{NoNetwork: true}, tryNetwork) },
	"online":   func() report { return under(Options{}, tryNetwork) },
	"threads":  tryThreads,
	"diverged": tryDiverged,
	"tracing":  func() report { return under(Options{AllowPtrace: true}, tryTracing) },
	"foreign":  func() report { return under(Options{}, tryForeign) },
	"cost":     tryCost,
}

func TestMain(m *testing.M) {
	if run, ok := scenarios[os.Getenv(scenarioVariable)]; ok {
		if err := json.NewEncoder(os.Stdout).Encode(run()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// under installs the slot's filter and then tries.
func under(o Options, try func() report) report {
	if err := install(o); err != nil {
		return report{"install": err.Error()}
	}
	return try()
}

func install(o Options) error {
	arch, err := HostArch()
	if err != nil {
		return err
	}
	program, err := Compile(ForSlot(o), arch)
	if err != nil {
		return err
	}
	return Install(program)
}

func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

// again is this program in a scenario that does nothing.
func again() *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{scenarioVariable + "=nothing"}
	return cmd
}

// raw makes a call whose arguments can do no harm should it be let through.
func raw(number uintptr, args ...uintptr) string {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, errno := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
		return unix.ErrnoName(errno)
	}
	return "ok"
}

const badFD = ^uintptr(0)

// tryForbidden makes calls that the kernel itself answers otherwise for root:
// with success, or with a complaint about a null pointer or a bad descriptor.
func tryForbidden() report {
	runtime.LockOSThread() // some of these would change the thread
	out := report{
		"mount":             raw(unix.SYS_MOUNT),
		"umount2":           raw(unix.SYS_UMOUNT2),
		"pivot_root":        raw(unix.SYS_PIVOT_ROOT),
		"chroot":            raw(unix.SYS_CHROOT),
		"fsopen":            raw(unix.SYS_FSOPEN),
		"open_tree":         raw(unix.SYS_OPEN_TREE, badFD),
		"mount_setattr":     raw(unix.SYS_MOUNT_SETATTR, badFD),
		"setns":             raw(unix.SYS_SETNS, badFD),
		"unshare uts":       raw(unix.SYS_UNSHARE, unix.CLONE_NEWUTS),
		"unshare time":      raw(unix.SYS_UNSHARE, unix.CLONE_NEWTIME),
		"unshare user":      raw(unix.SYS_UNSHARE, 1<<40|unix.CLONE_NEWUSER),
		"ptrace":            raw(unix.SYS_PTRACE, unix.PTRACE_PEEKDATA, 1<<30),
		"process_vm_readv":  raw(unix.SYS_PROCESS_VM_READV, uintptr(os.Getpid())),
		"pidfd_getfd":       raw(unix.SYS_PIDFD_GETFD, badFD),
		"bpf":               raw(unix.SYS_BPF, badFD),
		"perf_event_open":   raw(unix.SYS_PERF_EVENT_OPEN),
		"keyctl":            raw(unix.SYS_KEYCTL, 0, 1<<20),
		"add_key":           raw(unix.SYS_ADD_KEY),
		"request_key":       raw(unix.SYS_REQUEST_KEY),
		"open_by_handle_at": raw(unix.SYS_OPEN_BY_HANDLE_AT, badFD),
		"name_to_handle_at": raw(unix.SYS_NAME_TO_HANDLE_AT, badFD),
		"quotactl":          raw(unix.SYS_QUOTACTL, 0xffff),
		"fanotify_init":     raw(unix.SYS_FANOTIFY_INIT, 0xffff),
		"move_pages":        raw(unix.SYS_MOVE_PAGES, 0, 0, 0, 0, 0, 0xff),
		"settimeofday":      raw(unix.SYS_SETTIMEOFDAY),
		"personality":       raw(unix.SYS_PERSONALITY, 0x400000),
		"vsock":             raw(unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM),
		"vsock, high word":  raw(unix.SYS_SOCKET, 1<<32|unix.AF_VSOCK, unix.SOCK_STREAM),
		"packet":            raw(unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW),
		"inet packet":       raw(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_PACKET),
		"uevent":            raw(unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT),
		"audit":             raw(unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT),
		"alg":               raw(unix.SYS_SOCKET, unix.AF_ALG, unix.SOCK_SEQPACKET),
		"TIOCSTI":           raw(unix.SYS_IOCTL, badFD, unix.TIOCSTI),
		"TIOCLINUX":         raw(unix.SYS_IOCTL, badFD, 1<<32|unix.TIOCLINUX),
		"FSSETXATTR":        raw(unix.SYS_IOCTL, badFD, fsIocFSSetXattr),
		"SETFLAGS":          raw(unix.SYS_IOCTL, badFD, 1<<63|unix.FS_IOC_SETFLAGS),
		"file_setattr":      raw(unix.SYS_FILE_SETATTR, badFD),
		"shmget":            raw(unix.SYS_SHMGET, 1<<30, 4096),
		"shmat":             raw(unix.SYS_SHMAT, badFD),
		"msgget":            raw(unix.SYS_MSGGET, 1<<30),
		"semctl":            raw(unix.SYS_SEMCTL, badFD),
		"mq_open":           raw(unix.SYS_MQ_OPEN),
		"clone3":            raw(unix.SYS_CLONE3),
		"io_uring_setup":    raw(unix.SYS_IO_URING_SETUP),
		"statmount":         raw(unix.SYS_STATMOUNT),
		"from the future":   raw(newest + 1),
	}
	for name, flags := range map[string]uintptr{"clone user": unix.CLONE_NEWUSER, "clone uts": unix.CLONE_NEWUTS} {
		cmd := again()
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		out[name] = outcome(cmd.Run())
	}
	return out
}

// tryOrdinary does what the holder and the programs of a slot live on.
func tryOrdinary() report {
	dir, err := os.MkdirTemp("", "seccomp")
	if err != nil {
		return report{"temporary directory": err.Error()}
	}
	defer func() { _ = os.RemoveAll(dir) }()
	out := report{
		"files":        outcome(useFiles(dir)),
		"exec":         outcome(again().Run()),
		"shell":        outcome(shellSays(`x=$(printf 'b\na\n' | sort | head -1); (exit 3) & wait $!; test "$x$?" = a3`)),
		"job control":  outcome(shellSays(`set -m; sleep 0 & wait %1`)),
		"threads":      outcome(useThreads(40)),
		"unix sockets": outcome(useListener("unix", filepath.Join(dir, "s"))),
		"unshare fs":   raw(unix.SYS_UNSHARE, unix.CLONE_FS),
		"personality":  raw(unix.SYS_PERSONALITY, 0xffffffff),
		"memfd": outcome(func() error {
			fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
			return errors.Join(err, unix.Close(fd))
		}()),
		"socketpair": outcome(func() error {
			_, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
			return err
		}()),
		"pidfd": outcome(func() error {
			fd, err := unix.PidfdOpen(os.Getpid(), 0)
			return errors.Join(err, unix.Close(fd))
		}()),
		"vfork with pidfd": outcome(vforkWithPidfd()),
	}
	if python, err := exec.LookPath("python3"); err == nil {
		out["python"] = outcome(runPython(python))
	}
	return out
}

func tryNetwork() report {
	_, interfaces := net.Interfaces()
	return report{
		"unix": outcome(useListener("unix", fmt.Sprintf("@berth-seccomp-%d", os.Getpid()))),
		"tcp4": outcome(useListener("tcp4", "127.0.0.1:0")),
		"udp4": raw(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM),
		"udp6": raw(unix.SYS_SOCKET, unix.AF_INET6, unix.SOCK_DGRAM),
		// the list of interfaces comes over NETLINK_ROUTE
		"interfaces": outcome(interfaces),
	}
}

func useFiles(dir string) error {
	name := filepath.Join(dir, "a")
	if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
		return err
	}
	if err := errors.Join(os.Chmod(name, 0o755), os.Symlink(name, name+"l"), os.Link(name, name+"h"), os.Rename(name, name+"2")); err != nil {
		return err
	}
	_, err := os.ReadFile(name + "h")
	_, listed := os.ReadDir(dir)
	return errors.Join(err, listed, syscall.Mkfifo(name+"f", 0o600), os.RemoveAll(name+"2"))
}

func useThreads(n int) error {
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			time.Sleep(time.Millisecond)
		})
	}
	wg.Wait()
	return nil
}

func useListener(network, address string) error {
	l, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	c, err := net.Dial(network, l.Addr().String())
	if err != nil {
		return err
	}
	return c.Close()
}

func shellSays(script string) error {
	cmd := exec.Command("/bin/sh", "-c", script)
	text, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	return nil
}

// vforkWithPidfd forks as the holder does.
func vforkWithPidfd() error {
	pidfd := -1
	cmd := exec.Command("/bin/sh", "-c", "exit 0")
	cmd.SysProcAttr = &syscall.SysProcAttr{PidFD: &pidfd, Setpgid: true}
	if err := cmd.Run(); err != nil {
		return err
	}
	if pidfd < 0 {
		return errors.New("no pidfd")
	}
	return unix.Close(pidfd)
}

const pythonScript = `
import asyncio, concurrent.futures as f, multiprocessing as m, os, socket, subprocess, tempfile, threading, ctypes, mmap
t = threading.Thread(target=lambda: None); t.start(); t.join()
assert subprocess.run(["sh", "-c", "exit 3"]).returncode == 3
async def main():
    p = await asyncio.create_subprocess_exec("true")
    await p.wait()
asyncio.run(main())
with m.get_context("fork").Pool(2) as p: assert p.map(abs, [-1, -2]) == [1, 2]
q = m.Queue(); q.put(1); assert q.get() == 1
with f.ThreadPoolExecutor(4) as e: assert list(e.map(abs, [-1])) == [1]
with tempfile.TemporaryFile() as x: x.write(b"1"); x.flush(); mmap.mmap(x.fileno(), 1)
a, b = socket.socketpair(); a.send(b"x"); assert b.recv(1) == b"x"
`

func runPython(python string) error {
	text, err := exec.Command(python, "-c", pythonScript).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	return nil
}

// tryThreads has threads running before the filter comes, and asks each of them.
func tryThreads() report {
	const n = 12
	out, installed, checked := report{}, make(chan struct{}), make(chan struct{})
	var ready, tried, ended sync.WaitGroup
	var mu sync.Mutex
	ready.Add(n)
	tried.Add(n)
	for i := range n {
		ended.Go(func() {
			runtime.LockOSThread()
			ready.Done()
			<-installed
			verdict := raw(unix.SYS_UNSHARE, unix.CLONE_NEWUSER|unix.CLONE_FS)
			mu.Lock()
			out[fmt.Sprint("thread ", i)] = verdict
			mu.Unlock()
			tried.Done()
			<-checked // a thread that is ending has no filter any more
		})
	}
	ready.Wait()
	err := install(Options{})
	close(installed)
	tried.Wait()
	for field, want := range map[string]string{"Seccomp": "2", "NoNewPrivs": "1"} {
		out[field] = allThreads(field, want)
	}
	close(checked)
	ended.Wait()
	if err != nil {
		return report{"install": err.Error()}
	}
	return out
}

// allThreads says "ok" when the field has the value in every thread's status.
func allThreads(field, want string) string {
	files, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil || len(files) < 12 {
		return fmt.Sprintf("%d threads: %v", len(files), err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return err.Error()
		}
		if !strings.Contains(string(text), "\n"+field+":\t"+want+"\n") {
			return f + " has another " + field
		}
	}
	return "ok"
}

// tryDiverged puts another thread under a filter of its own first.
func tryDiverged() report {
	diverged, done := make(chan string), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			diverged <- err.Error()
			return
		}
		fprog := unix.SockFprog{Len: 1, Filter: &allow[0]}
		_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&fprog)))
		if errno != 0 {
			diverged <- errno.Error()
			return
		}
		diverged <- "ok"
		<-done
	}()
	defer close(done)
	out := report{"diverged": <-diverged}
	err := install(Options{})
	out["install"] = fmt.Sprint(err)
	out["clone3 afterwards"] = raw(unix.SYS_CLONE3) // ENOSYS would be the filter's
	return out
}

// tryTracing starts a program under ptrace and lets it go.
func tryTracing() report {
	runtime.LockOSThread()
	cmd := exec.Command("/bin/sh", "-c", "exit 7")
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return report{"start": outcome(err)}
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(cmd.Process.Pid, &status, 0, nil); err != nil {
		return report{"wait": outcome(err)}
	}
	out := report{"stopped": fmt.Sprint(status.Stopped()), "detach": outcome(unix.PtraceDetach(cmd.Process.Pid))}
	_ = cmd.Wait()
	out["exit"] = fmt.Sprint(cmd.ProcessState.ExitCode())
	return out
}

// foreignVariable names an executable of another ABI.
const foreignVariable = "BERTH_TEST_FOREIGN"

func tryForeign() report {
	cmd := exec.Command(os.Getenv(foreignVariable))
	err := cmd.Run()
	return report{"x32 getpid": raw(x32Bit | 39), "x32 ptrace": raw(521), "i386": fmt.Sprint(err)}
}

// tryCost times a cheap call without and with the filter.
func tryCost() report {
	runtime.LockOSThread()
	const n = 300_000
	time1 := func(call func()) time.Duration {
		best := time.Hour
		for range 5 {
			start := time.Now()
			for range n / 5 {
				call()
			}
			best = min(best, time.Since(start)/(n/5))
		}
		return best
	}
	getppid := func() { unix.RawSyscallNoError(unix.SYS_GETPPID, 0, 0, 0) }
	ioctl := func() { _, _, _ = unix.RawSyscall(unix.SYS_IOCTL, badFD, unix.TCGETS, 0) }
	out := report{"getppid bare": time1(getppid).String(), "ioctl bare": time1(ioctl).String()}
	if err := install(Options{}); err != nil {
		return report{"install": err.Error()}
	}
	out["getppid filtered"], out["ioctl filtered"] = time1(getppid).String(), time1(ioctl).String()
	return out
}
