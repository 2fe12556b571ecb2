package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

var escapeProbes = map[string]probe{
	"E01.namespaces": func(*targets) error {
		var a attempts
		for _, flag := range []uintptr{unix.CLONE_NEWUSER, unix.CLONE_NEWNS, unix.CLONE_NEWPID, unix.CLONE_NEWNET, unix.CLONE_NEWIPC, unix.CLONE_NEWUTS, unix.CLONE_NEWCGROUP, unix.CLONE_NEWTIME} {
			a.try(fmt.Sprintf("unshare %#x", flag), runChild(fmt.Sprintf("unshare:%d", flag)))
			if flag != unix.CLONE_NEWTIME { // part of the exit signal, for clone
				pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, flag|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
				if errno == 0 && pid == 0 {
					unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
				}
				if errno == 0 {
					unix.Wait4(int(pid), nil, 0, nil)
					a.try(fmt.Sprintf("clone %#x", flag), nil)
				} else {
					a.try("clone", errno)
				}
			}
			args := [11]uint64{uint64(flag), 0, 0, 0, uint64(unix.SIGCHLD)}
			pid, _, errno := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), 88, 0)
			if errno == 0 && pid == 0 {
				unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
			}
			if errno == 0 {
				unix.Wait4(int(pid), nil, 0, nil)
				a.try(fmt.Sprintf("clone3 %#x", flag), nil)
			} else {
				a.try("clone3", errno)
			}
		}
		return a.result()
	},
	"E01.mounts": func(*targets) error {
		var a attempts
		path, _ := unix.BytePtrFromString(".")
		p := uintptr(unsafe.Pointer(path))
		a.try("mount", call(unix.SYS_MOUNT, p, p, p, unix.MS_BIND, 0))
		a.try("umount", call(unix.SYS_UMOUNT2, p, unix.MNT_DETACH))
		a.try("pivot_root", call(unix.SYS_PIVOT_ROOT, p, p))
		at := ^uintptr(99) // AT_FDCWD
		a.try("open_tree", call(unix.SYS_OPEN_TREE, at, p, 1))
		a.try("move_mount", call(unix.SYS_MOVE_MOUNT, at, p, at, p, 0))
		a.try("fsopen", call(unix.SYS_FSOPEN, p, 0))
		a.try("fspick", call(unix.SYS_FSPICK, at, p, 0))
		a.try("fsmount", call(unix.SYS_FSMOUNT, ^uintptr(0), 0, 0))
		a.try("fsconfig", call(unix.SYS_FSCONFIG, ^uintptr(0), 0, 0, 0, 0))
		attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
		a.try("mount_setattr", call(unix.SYS_MOUNT_SETATTR, at, p, 0, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr)))
		a.try("chroot", call(unix.SYS_CHROOT, p))
		return a.result()
	},
	"E02.privileges": func(*targets) error {
		var a attempts
		text, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			value = strings.TrimSpace(value)
			switch name {
			case "CapInh", "CapPrm", "CapEff", "CapAmb":
				if strings.Trim(value, "0") != "" {
					a.try(name+" "+value, nil)
				}
			case "NoNewPrivs":
				if value != "1" {
					a.try(name+" "+value, nil)
				}
			case "Seccomp":
				if value != "2" {
					a.try(name+" "+value, nil)
				}
			}
		}
		return a.result()
	},
	"E02.bounding": func(*targets) error {
		text, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return err
		}
		_, value, _ := strings.Cut(string(text), "CapBnd:")
		value, _, _ = strings.Cut(strings.TrimSpace(value), "\n")
		if strings.Trim(value, "0") != "" {
			return succeeded(value)
		}
		return errNothing
	},
	"E02.setuid": func(*targets) error {
		var a attempts
		for _, mode := range []string{"suid", "sgid"} {
			if _, err := os.Stat(mode); err != nil {
				continue
			}
			var out strings.Builder
			cmd := exec.Command("./"+mode, "child", "whoami")
			cmd.Stdout = &out
			if err := cmd.Run(); err != nil {
				a.try(mode, err)
				continue
			}
			if out.String() != whoami() {
				a.try(mode, succeeded(out.String()+" from "+whoami()))
			}
		}
		return a.result()
	},
	"E03.make": func(*targets) error {
		var a attempts
		for name, device := range map[string]uint64{"mem": 0x101, "loop": 0x700, "fuse": 0xae5, "kmsg": 0x10b} {
			os.Remove("node-" + name)
			kind := uint32(unix.S_IFCHR)
			if name == "loop" {
				kind = unix.S_IFBLK
			}
			err := unix.Mknod("node-"+name, kind|0o666, int(device))
			if err == nil {
				var fd int
				if fd, err = unix.Open("node-"+name, unix.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
					unix.Close(fd)
				} else {
					err = succeeded("made, but opens with " + err.Error())
				}
				os.Remove("node-" + name)
			}
			a.try(name, err)
		}
		return a.result()
	},
	"E03.open": func(*targets) error {
		var a attempts
		paths := []string{
			"/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/dev/sda", "/dev/vda", "/dev/nvme0n1", "/dev/loop-control", "/dev/loop0", "/dev/fuse", "/dev/kvm",
			"/dev/vhost-net", "/dev/vhost-vsock", "/dev/vsock", "/dev/net/tun", "/dev/console", "/dev/tty0", "/dev/tty1", "/dev/ttyS0", "/dev/mapper/control",
			"/dev/hwrng", "/dev/snapshot", "/dev/uinput", "/dev/btrfs-control", "/dev/cpu/0/msr", "/proc/kcore", "/proc/kmsg", "/proc/kallsyms",
		}
		for _, path := range paths[:len(paths)-1] {
			fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
			if err == nil {
				unix.Close(fd)
			}
			a.try(path, err)
		}
		return a.result()
	},
	"E04.kernel": func(*targets) error {
		var a attempts
		paths := []string{
			"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/fs/binfmt_misc/register", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper",
			"/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/randomize_va_space", "/proc/sys/kernel/hostname", "/proc/sys/vm/drop_caches",
			"/proc/sys/net/ipv4/ip_forward", "/proc/sys/user/max_user_namespaces", "/proc/irq/default_smp_affinity", "/proc/timer_list", "/sys/power/state",
			"/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/release_agent", "/sys/fs/cgroup/pids/cgroup.procs", "/sys/fs/cgroup/release_agent", "/proc/acpi/wakeup", "/sys/firmware/efi/vars",
		}
		for _, path := range paths {
			a.try(path, openable(path))
		}
		walk("/sys/fs/cgroup", nil, time.Now().Add(time.Second), func(dir string) {
			for _, f := range []string{"cgroup.procs", "tasks", "memory.max", "pids.max", "memory.limit_in_bytes", "cgroup.kill"} {
				path := filepath.Join(dir, f)
				if openable(path) == nil {
					a.try(path, nil)
				}
			}
		})
		return a.result()
	},
	"E05.sockets": func(*targets) error {
		var a attempts
		for _, path := range []string{
			"/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/crio/crio.sock", "/run/dbus/system_bus_socket",
			"/run/systemd/private", "/run/docker/metrics.sock", "/run/snapd.socket",
		} {
			a.try(path, connectUnix(path))
		}
		return a.result()
	},
	"E05.scheduler": func(t *targets) error {
		var a attempts
		for _, path := range t.Sockets {
			a.try(path, connectUnix(path))
		}
		return a.result()
	},
	"E06.secrets": func(t *targets) error {
		var a attempts
		for _, f := range t.Scheduler {
			a.try(f, holds(f, t.Secret))
			entries, err := os.ReadDir(filepath.Dir(f))
			if err == nil && len(entries) > 0 {
				a.try("list "+filepath.Dir(f), nil)
			}
			a.try("write beside "+f, creatable(filepath.Dir(f)))
		}
		return a.result()
	},
	"E07.environment": func(t *targets) error {
		var a attempts
		for _, kv := range os.Environ() {
			if strings.Contains(kv, t.Secret) || strings.Contains(kv, t.Token) {
				a.try(kv, nil)
			}
			for _, name := range []string{"NOMAD_", "VAULT_", "AWS_", "CONSUL_", "SANDBOXD_", "SECRET_", "KUBERNETES_"} {
				if strings.HasPrefix(kv, name) {
					a.try(kv, nil)
				}
			}
		}
		return a.result()
	},
	"E07.others": func(t *targets) error {
		var a attempts
		entries, _ := filepath.Glob("/proc/[0-9]*/environ")
		entries = append(entries, fmt.Sprintf("/proc/%d/environ", os.Getppid()))
		for _, path := range entries {
			for _, text := range []string{t.Token, "NOMAD_TOKEN=", "VAULT_TOKEN="} {
				a.try(path, holds(path, text))
			}
		}
		return a.result()
	},
	"E10.syscalls": syscalls,
	"E10.foreign":  foreign,
	"E12.chroot": func(*targets) error {
		var a attempts
		os.Mkdir("jail", 0o755)
		a.try("chroot", runChild("chroot"))
		return a.result()
	},
	"E13.root": func(*targets) error {
		var a attempts
		var root, top unix.Stat_t
		if err := unix.Stat("/", &root); err != nil {
			return err
		}
		if err := unix.Stat(strings.Repeat("../", 64), &top); err == nil && (top.Ino != root.Ino || top.Dev != root.Dev) {
			a.try("above the root", nil)
		}
		for _, path := range []string{"/proc/1/root", "/proc/1/cwd", "/proc/self/root", fmt.Sprintf("/proc/%d/root", os.Getppid()), fmt.Sprintf("/proc/%d/cwd/..", os.Getppid())} {
			var st unix.Stat_t
			err := unix.Stat(path+"/.", &st)
			if err != nil {
				a.try(path, err)
				continue
			}
			if _, err := os.Stat(path + "/var/lib/dpkg/../../../boot"); strings.HasSuffix(path, "root") && (st.Ino != root.Ino || st.Dev != root.Dev) {
				a.try(path, errors.Join(nil, err))
			}
		}
		for fd := 3; fd < 64; fd++ {
			path := fmt.Sprintf("/proc/1/fd/%d", fd)
			if _, err := os.Readlink(path); err == nil {
				a.try(path, nil)
			}
		}
		if text, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
			for line := range strings.Lines(string(text)) {
				if f := strings.Fields(line); len(f) > 4 && (f[4] == "/secrets" || f[4] == "/boot" || strings.Contains(f[4], "/oldroot")) {
					a.try("mount "+f[4], nil)
				}
			}
		}
		return a.result()
	},
	"E14.init": func(t *targets) error {
		var a attempts
		for _, pid := range append([]int{1, t.AgentPID}, t.Pids...) {
			for _, ns := range []string{"mnt", "pid", "net", "user", "ipc", "uts", "cgroup"} {
				fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, ns), unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err != nil {
					a.try("open", err)
					continue
				}
				a.try("setns "+ns, runChild(fmt.Sprintf("setns:%d:%s", pid, ns)))
				unix.Close(fd)
			}
			if pidfd, err := unix.PidfdOpen(pid, 0); err == nil {
				a.try("setns pidfd", plain(unix.SYS_SETNS, uintptr(pidfd), unix.CLONE_NEWNS))
				unix.Close(pidfd)
			}
			entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/root/", pid))
			if err == nil && pid != 1 && len(entries) > 0 {
				a.try(fmt.Sprintf("root of %d", pid), nil)
			}
		}
		return a.result()
	},
	"E15.raw": func(*targets) error {
		var a attempts
		for _, s := range [][3]int{
			{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW}, {unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6},
			{unix.AF_PACKET, unix.SOCK_RAW, 0x0300}, {unix.AF_PACKET, unix.SOCK_DGRAM, 0x0608}, {unix.AF_INET, unix.SOCK_PACKET, 0x0300},
		} {
			fd, err := unix.Socket(s[0], s[1], s[2])
			if err == nil {
				unix.Close(fd)
			}
			a.try(fmt.Sprint(s), err)
		}
		return a.result()
	},
	"E16.time": func(*targets) error {
		var a attempts
		var now unix.Timespec
		unix.ClockGettime(unix.CLOCK_REALTIME, &now)
		a.try("clock_settime", plain(unix.SYS_CLOCK_SETTIME, 0, uintptr(unsafe.Pointer(&now))))
		a.try("settimeofday", call(unix.SYS_SETTIMEOFDAY, 0, 1))
		timex := unix.Timex{Modes: 0x8000}
		a.try("adjtimex", call(unix.SYS_ADJTIMEX, uintptr(unsafe.Pointer(&timex))))
		a.try("clock_adjtime", call(unix.SYS_CLOCK_ADJTIME, 0, uintptr(unsafe.Pointer(&timex))))
		fd, err := unix.Open("/dev/rtc0", unix.O_RDONLY, 0)
		if err == nil {
			unix.Close(fd)
		}
		a.try("rtc", err)
		return a.result()
	},
	"E17.remount": func(*targets) error {
		var a attempts
		for _, dir := range []string{"/usr", "/etc", "/", "/bin", "/lib"} {
			path, _ := unix.BytePtrFromString(dir)
			p := uintptr(unsafe.Pointer(path))
			a.try("remount "+dir, call(unix.SYS_MOUNT, 0, p, 0, unix.MS_REMOUNT|unix.MS_BIND, 0))
			attr := unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID}
			a.try("setattr "+dir, call(unix.SYS_MOUNT_SETATTR, ^uintptr(99), p, unix.AT_RECURSIVE, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr)))
		}
		return a.result()
	},
	"E18.nsenter": func(*targets) error {
		var a attempts
		for _, args := range [][]string{{"nsenter", "-t", "1", "-m", "-p", "true"}, {"nsenter", "-t", "1", "-n", "true"}, {"unshare", "-r", "true"}, {"unshare", "-Ur", "true"}, {"su", "-c", "true"}, {"sudo", "-n", "true"}} {
			a.try(strings.Join(args, " "), exec.Command(args[0], args[1:]...).Run())
			if args[0] == "su" && os.Geteuid() == 0 {
				a.got = nil // root need not become root
			}
		}
		return a.result()
	},
	"E19.overlay": func(*targets) error {
		var a attempts
		os.Mkdir("redirected", 0o755)
		for _, name := range []string{"trusted.overlay.redirect", "trusted.overlay.opaque", "trusted.overlay.metacopy"} {
			a.try(name, unix.Setxattr("redirected", name, []byte("/etc/shadow"), 0))
		}
		// These can be set by anybody, and must mean nothing.
		unix.Setxattr("redirected", "user.overlay.redirect", []byte("/etc"), 0)
		unix.Setxattr("redirected", "user.overlay.opaque", []byte("y"), 0)
		entries, _ := os.ReadDir("redirected")
		if len(entries) > 0 {
			a.try("redirected", nil)
		}
		return a.result()
	},
	"E20.groups": func(*targets) error {
		groups, err := os.Getgroups()
		if err != nil {
			return err
		}
		var bad []string
		for _, g := range groups {
			if g != os.Getgid() && g != 65534 {
				bad = append(bad, fmt.Sprint(g))
			}
		}
		if len(bad) > 0 {
			return succeeded("groups " + strings.Join(bad, " "))
		}
		return errNothing
	},
	"E20.zero": func(*targets) error {
		if os.Getgid() == 0 || os.Getegid() == 0 || os.Geteuid() == 0 {
			return succeeded(whoami())
		}
		return errNothing
	},
}

func whoami() string {
	r, e, s := unix.Getresuid()
	rg, eg, sg := unix.Getresgid()
	text, _ := os.ReadFile("/proc/self/status")
	_, caps, _ := strings.Cut(string(text), "CapEff:")
	caps, _, _ = strings.Cut(caps, "\n")
	return fmt.Sprint(r, e, s, rg, eg, sg, strings.TrimSpace(caps))
}

func connectUnix(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if len(path) > 100 {
		return errors.New("path too long")
	}
	return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
}

// syscalls makes calls with arguments that do nothing, and tells a refusal
// from the kernel's own complaint about them.
func syscalls(*targets) error {
	var a attempts
	bad := ^uintptr(0)
	for _, c := range []struct {
		name string
		nr   uintptr
		args []uintptr
	}{
		{"bpf", unix.SYS_BPF, []uintptr{99}},
		{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, []uintptr{0}},
		{"userfaultfd", unix.SYS_USERFAULTFD, []uintptr{1}},
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, []uintptr{1}},
		{"io_uring_enter", unix.SYS_IO_URING_ENTER, []uintptr{bad}},
		{"io_uring_register", unix.SYS_IO_URING_REGISTER, []uintptr{bad}},
		{"kexec_load", unix.SYS_KEXEC_LOAD, []uintptr{0, 999}},
		{"kexec_file_load", unix.SYS_KEXEC_FILE_LOAD, []uintptr{bad, bad}},
		{"init_module", unix.SYS_INIT_MODULE, nil},
		{"finit_module", unix.SYS_FINIT_MODULE, []uintptr{bad}},
		{"delete_module", unix.SYS_DELETE_MODULE, nil},
		{"open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT, []uintptr{bad}},
		{"name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT, []uintptr{bad}},
		{"quotactl", unix.SYS_QUOTACTL, []uintptr{bad}},
		{"acct", unix.SYS_ACCT, []uintptr{bad}},
		{"swapon", unix.SYS_SWAPON, nil},
		{"swapoff", unix.SYS_SWAPOFF, nil},
		{"syslog", unix.SYS_SYSLOG, []uintptr{99}},
		{"syslog size", unix.SYS_SYSLOG, []uintptr{10}},
		{"personality", unix.SYS_PERSONALITY, []uintptr{0x0400000}},
		{"personality no random", unix.SYS_PERSONALITY, []uintptr{0x0040000}},
		{"reboot", unix.SYS_REBOOT, []uintptr{1, 2, 3}},
		{"setns", unix.SYS_SETNS, []uintptr{bad}},
		{"kcmp", unix.SYS_KCMP, []uintptr{1, 1, 0}},
		{"pidfd_getfd", unix.SYS_PIDFD_GETFD, []uintptr{bad}},
		{"process_madvise", unix.SYS_PROCESS_MADVISE, []uintptr{bad}},
		{"move_pages", unix.SYS_MOVE_PAGES, []uintptr{0, 1}},
		{"migrate_pages", unix.SYS_MIGRATE_PAGES, []uintptr{0, 1}},
		{"mbind", unix.SYS_MBIND, []uintptr{1}},
		{"vhangup", unix.SYS_VHANGUP, nil},
		{"sethostname", unix.SYS_SETHOSTNAME, []uintptr{0, 9999}},
		{"setdomainname", unix.SYS_SETDOMAINNAME, []uintptr{0, 9999}},
		{"fanotify_init", unix.SYS_FANOTIFY_INIT, []uintptr{bad}},
		{"memfd_secret", unix.SYS_MEMFD_SECRET, []uintptr{99}},
		{"lookup_dcookie", unix.SYS_LOOKUP_DCOOKIE, nil},
		{"add_key", unix.SYS_ADD_KEY, nil},
		{"keyctl", unix.SYS_KEYCTL, []uintptr{99}},
		{"request_key", unix.SYS_REQUEST_KEY, nil},
		{"nothing yet", 480, nil},
	} {
		a.try(c.name, call(c.nr, c.args...))
	}
	for name, nr := range machineCalls {
		a.try(name, call(nr, bad, 1))
	}
	return a.result()
}

// runChild does something to itself that this process would not survive.
func runChild(what string) error {
	self := "/proc/self/exe"
	if _, err := os.Stat(self); err != nil {
		self = os.Args[0]
	}
	out, err := exec.Command(self, "child", what).CombinedOutput()
	if err == nil {
		return nil
	}
	if status, ok := err.(*exec.ExitError); ok && status.Sys().(syscall.WaitStatus).Signaled() {
		return fmt.Errorf("killed by %v", status.Sys().(syscall.WaitStatus).Signal())
	}
	return fmt.Errorf("%s", strings.TrimSpace(string(out)))
}

// child ends with 0 when it got what it wanted.
func child(what string) {
	fail := func(err error) {
		fmt.Println(err)
		os.Exit(1)
	}
	word, rest, _ := strings.Cut(what, ":")
	var err error
	switch word {
	case "whoami":
		fmt.Print(whoami())
	case "crash":
		unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
		unix.Kill(os.Getpid(), unix.SIGKILL-unix.SIGKILL+unix.SIGABRT)
		time.Sleep(time.Second)
	case "unshare":
		var flag int
		fmt.Sscan(rest, &flag)
		err = unix.Unshare(flag)
	case "setns":
		var pid int
		n, ns, _ := strings.Cut(rest, ":")
		fmt.Sscan(n, &pid)
		var fd int
		if fd, err = unix.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, ns), unix.O_RDONLY, 0); err == nil {
			err = unix.Setns(fd, 0)
		}
	case "chroot":
		if err = unix.Chroot("jail"); err == nil {
			for range 64 {
				unix.Chdir("..")
			}
			err = unix.Chroot(".")
		}
	case "foreign":
		if err = foreignCall(rest); err == nil {
			return
		}
	}
	if err != nil {
		fail(err)
	}
}
