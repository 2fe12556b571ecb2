package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// shared are places where anybody may leave files, if they can be reached.
var shared = []string{"/tmp", "/var/tmp", "/dev/shm", "/run", "/run/lock", "/dev/mqueue", "/var/lock"}

// hold makes what the attacker in the other slot is after, and stays.
func hold(t *targets) {
	h := held{Abstract: "@berth-hostile-" + t.Secret, Path: "s"}
	note := func(what string, err error) {
		if err != nil {
			h.Notes = append(h.Notes, what+": "+err.Error())
		}
	}
	home, _ := os.Getwd()
	note("secret", os.WriteFile("secret", []byte(t.Secret), 0o666))
	os.Chmod("secret", 0o666)
	root, err := unix.Open(".", unix.O_PATH|unix.O_DIRECTORY, 0)
	note("root", err)
	serve := func(name string) {
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
		if err != nil {
			note("listen "+name, err)
			return
		}
		os.Chmod(name, 0o777)
		go func() { // gives everything away to whoever comes
			for {
				c, err := ln.AcceptUnix()
				if err != nil {
					return
				}
				c.WriteMsgUnix([]byte(t.Secret), unix.UnixRights(root), nil)
				c.Close()
			}
		}()
	}
	serve(h.Abstract)
	serve(h.Path)
	h.Path = filepath.Join(home, h.Path)
	leave(t, &h)
	if ln, err := net.Listen("tcp4", "127.0.0.1:0"); err == nil {
		h.TCP = ln.Addr().String()
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				c.Write([]byte(t.Secret))
				c.Close()
			}
		}()
	}
	if pc, err := net.ListenPacket("udp4", "127.0.0.1:0"); err == nil {
		h.UDP = pc.LocalAddr().String()
		go func() {
			b := make([]byte, 64)
			for {
				_, from, err := pc.ReadFrom(b)
				if err != nil {
					return
				}
				pc.WriteTo([]byte(t.Secret), from)
			}
		}()
	}
	if fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err == nil {
		if n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN); err == nil {
			unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
			h.Pty = "/dev/pts/" + strconv.Itoa(n)
		}
	}
	json.NewEncoder(os.Stdout).Encode(h)
	os.Stdout.Close()
	time.Sleep(10 * time.Minute)
}

// leave puts the secret wherever others may look.
func leave(t *targets, h *held) {
	for _, dir := range shared {
		path := filepath.Join(dir, "berth-hostile-"+t.Secret)
		if os.WriteFile(path, []byte(t.Secret), 0o666) == nil {
			os.Chmod(path, 0o666)
			h.Left = append(h.Left, path)
		}
		if os.Mkdir(path+".d", 0o777) == nil {
			os.Chmod(path+".d", 0o777)
			os.WriteFile(path+".d/f", []byte(t.Secret), 0o666)
			h.Left = append(h.Left, path+".d/f")
		}
	}
	if id, err := unix.SysvShmGet(t.Key, 4096, unix.IPC_CREAT|0o666); err == nil {
		if b, err := unix.SysvShmAttach(id, 0, 0); err == nil {
			copy(b, t.Secret)
			unix.SysvShmDetach(b)
		}
	} else {
		h.Notes = append(h.Notes, "shm: "+err.Error())
	}
	unix.RawSyscall(unix.SYS_SEMGET, uintptr(t.Key), 1, unix.IPC_CREAT|0o666)
	if id, _, errno := unix.RawSyscall(unix.SYS_MSGGET, uintptr(t.Key), unix.IPC_CREAT|0o666, 0); errno == 0 {
		message := append([]byte{1, 0, 0, 0, 0, 0, 0, 0}, t.Secret...)
		unix.RawSyscall6(unix.SYS_MSGSND, id, uintptr(unsafe.Pointer(&message[0])), uintptr(len(t.Secret)), unix.IPC_NOWAIT, 0, 0)
	}
	name, _ := unix.BytePtrFromString("berth-hostile-" + strconv.Itoa(t.Key))
	if fd, _, errno := unix.RawSyscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_CREAT|unix.O_RDWR, 0o666, 0, 0, 0); errno != 0 {
		h.Notes = append(h.Notes, "mq: "+errno.Error())
	} else {
		unix.Close(int(fd))
	}
	desc, _ := unix.BytePtrFromString("berth-hostile")
	kind, _ := unix.BytePtrFromString("user")
	payload := []byte(t.Secret)
	for _, ring := range []int{unix.KEY_SPEC_USER_KEYRING, unix.KEY_SPEC_SESSION_KEYRING} {
		unix.RawSyscall6(unix.SYS_ADD_KEY, uintptr(unsafe.Pointer(kind)), uintptr(unsafe.Pointer(desc)), uintptr(unsafe.Pointer(&payload[0])), uintptr(len(payload)), uintptr(ring), 0)
	}
}

var neighbourProbes = map[string]probe{
	"X01.paths": func(t *targets) error {
		var a attempts
		for _, f := range t.Files {
			a.try("read "+f, holds(f, t.Secret))
			a.try("climb to "+f, holds(strings.Repeat("../", 40)+f[1:], t.Secret))
			link := "link" + strconv.Itoa(len(a.got)+a.n)
			os.Remove(link)
			if os.Symlink(f, link) == nil {
				a.try("link to "+f, holds(link, t.Secret))
			}
			if entries, err := os.ReadDir(filepath.Dir(f)); err == nil && len(entries) > 0 {
				a.try("list "+filepath.Dir(f), nil)
			} else {
				a.try("list", err)
			}
			a.try("write "+f, openable(f))
			a.try("make a file beside "+f, creatable(filepath.Dir(f)))
		}
		return a.result()
	},
	"X01.stat": func(t *targets) error { // which Landlock does not know
		var a attempts
		for _, f := range t.Files {
			_, err := os.Stat(f)
			a.try("stat "+f, err)
			a.try("chmod "+f, unix.Chmod(f, 0o666))
			a.try("setxattr "+f, unix.Setxattr(f, "user.x", []byte("x"), 0))
		}
		return a.result()
	},
	"X01.proc": func(t *targets) error {
		var a attempts
		entries, _ := os.ReadDir("/proc")
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			for _, way := range []string{"cwd/secret", "root/workspace/secret", "cwd/.canary"} {
				path := fmt.Sprintf("/proc/%d/%s", pid, way)
				err := holds(path, t.Secret)
				if err == nil || !errors.Is(err, unix.ENOENT) {
					a.try(path, err)
				}
			}
		}
		for _, pid := range t.Others {
			for _, f := range t.Files {
				a.try("root", holds(fmt.Sprintf("/proc/%d/root%s", pid, f), t.Secret))
			}
			for fd := range 16 {
				a.try("fd", holds(fmt.Sprintf("/proc/%d/fd/%d/secret", pid, fd), t.Secret))
			}
		}
		return a.result()
	},
	"X01.own": func(t *targets) error { // what lies around the workspace
		var a attempts
		dir, _ := os.Getwd()
		for range 8 {
			dir = filepath.Dir(dir)
			entries, err := os.ReadDir(dir)
			if err != nil || dir == "/" {
				continue
			}
			for _, e := range entries {
				a.try("found", holds(filepath.Join(dir, e.Name(), "secret"), t.Secret))
				a.try("found", holds(filepath.Join(dir, e.Name(), "workspace", "secret"), t.Secret))
			}
		}
		return a.result()
	},
	"X02.hardlink": func(t *targets) error {
		var a attempts
		for i, f := range t.Files {
			to := "hard" + strconv.Itoa(i)
			os.Remove(to)
			a.try("link", os.Link(f, to))
			for _, pid := range t.Others {
				a.try("linkat", unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/%d/cwd/secret", pid), unix.AT_FDCWD, to, unix.AT_SYMLINK_FOLLOW))
			}
		}
		return a.result()
	},
	"X03.signal": func(t *targets) error {
		var a attempts
		for _, pid := range t.Others {
			a.try(strconv.Itoa(pid), signals(pid))
		}
		return a.result()
	},
	"X03.trace": func(t *targets) error {
		var a attempts
		for _, pid := range t.Others {
			a.try("seize", trace(unix.PTRACE_SEIZE, pid))
			a.try("attach", trace(unix.PTRACE_ATTACH, pid))
			a.try("memory", foreignMemory(unix.ProcessVMReadv, pid))
			a.try("mem", openable(fmt.Sprintf("/proc/%d/mem", pid)))
		}
		return a.result()
	},
	"X03.renice": func(t *targets) error { return retune(t.Others) },
	"X04.abstract": func(t *targets) error {
		return takeFrom(t.Held.Abstract, t.Secret)
	},
	"X05.path": func(t *targets) error {
		var a attempts
		for _, s := range t.Sockets {
			a.try(s, takeFrom(s, t.Secret))
		}
		return a.result()
	},
	"X06.loopback": func(t *targets) error {
		var a attempts
		for _, network := range []string{"tcp", "udp"} {
			address := t.Held.TCP
			if network == "udp" {
				address = t.Held.UDP
			}
			if address == "" {
				continue
			}
			a.try(network, within(time.Second, func() error {
				c, err := net.DialTimeout(network, address, 300*time.Millisecond)
				if err != nil {
					return err
				}
				defer c.Close()
				c.SetDeadline(time.Now().Add(300 * time.Millisecond))
				if network == "udp" {
					c.Write([]byte("x"))
				}
				b := make([]byte, 64)
				n, err := c.Read(b)
				if n > 0 && strings.Contains(string(b[:n]), t.Secret) {
					return nil
				}
				return errors.Join(errNothing, err)
			}))
		}
		return a.result()
	},
	"X07.shared": func(t *targets) error {
		var a attempts
		for _, dir := range shared {
			path := filepath.Join(dir, "berth-hostile-"+t.Secret)
			a.try(path, holds(path, t.Secret))
			a.try(path+".d/f", holds(path+".d/f", t.Secret))
			if _, err := os.Lstat(path); err == nil {
				a.try("stat "+path, nil)
			}
		}
		return a.result()
	},
	"X08.sysv": func(t *targets) error {
		var a attempts
		id, err := unix.SysvShmGet(t.Key, 4096, 0)
		if err == nil {
			b, err := unix.SysvShmAttach(id, 0, unix.SHM_RDONLY)
			if err == nil && !strings.Contains(string(b), t.Secret) {
				err = errNothing
			}
			a.try("shm attach", err)
		}
		a.try("shmget", err)
		a.try("semget", plain(unix.SYS_SEMGET, uintptr(t.Key), 1, 0))
		a.try("msgget", plain(unix.SYS_MSGGET, uintptr(t.Key), 0))
		for id := range 64 { // ids can be guessed
			b, err := unix.SysvShmAttach(id, 0, unix.SHM_RDONLY)
			if err == nil {
				if strings.Contains(string(b), t.Secret) {
					a.try("shm by id", nil)
				}
				unix.SysvShmDetach(b)
			}
		}
		return a.result()
	},
	"X09.queue": func(t *targets) error {
		var a attempts
		name, _ := unix.BytePtrFromString("berth-hostile-" + strconv.Itoa(t.Key))
		a.try("mq_open", plain(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_RDONLY, 0, 0))
		_, err := os.Stat("/dev/mqueue/berth-hostile-" + strconv.Itoa(t.Key))
		a.try("mqueue", err)
		return a.result()
	},
	"X10.keyring": func(t *targets) error {
		var a attempts
		desc, _ := unix.BytePtrFromString("berth-hostile")
		kind, _ := unix.BytePtrFromString("user")
		for _, ring := range []int{unix.KEY_SPEC_USER_KEYRING, unix.KEY_SPEC_SESSION_KEYRING, unix.KEY_SPEC_USER_SESSION_KEYRING} {
			_, err := unix.KeyctlSearch(ring, "user", "berth-hostile", 0)
			a.try("search", err)
		}
		a.try("request_key", plain(unix.SYS_REQUEST_KEY, uintptr(unsafe.Pointer(kind)), uintptr(unsafe.Pointer(desc)), 0, 0))
		b := []byte("x")
		a.try("add_key", plain(unix.SYS_ADD_KEY, uintptr(unsafe.Pointer(kind)), uintptr(unsafe.Pointer(desc)), uintptr(unsafe.Pointer(&b[0])), 1, uintptr(0xfffffffd)))
		return a.result()
	},
	"X11.watch": func(t *targets) error {
		var a attempts
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			return err
		}
		for _, f := range t.Files {
			_, err := unix.InotifyAddWatch(fd, f, unix.IN_ALL_EVENTS)
			a.try("inotify "+f, err)
			_, err = unix.InotifyAddWatch(fd, filepath.Dir(f), unix.IN_ALL_EVENTS)
			a.try("inotify", err)
			file, err := os.Open(f)
			if err == nil {
				err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
				file.Close()
			}
			a.try("flock", err)
		}
		a.try("fanotify", plain(unix.SYS_FANOTIFY_INIT, 0, 0))
		return a.result()
	},
	// A lease makes others wait who open the file.
	"X11.lease": func(t *targets) error {
		var a attempts
		for _, path := range append([]string{"/etc/passwd", "/etc/hosts", "/etc/nsswitch.conf", "/usr/bin/env"}, t.Binaries...) {
			f, err := os.Open(path)
			if err != nil {
				continue
			}
			for _, kind := range []int{unix.F_RDLCK, unix.F_WRLCK} {
				_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, kind)
				if err == nil {
					unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
				}
				a.try(path, err)
			}
			f.Close()
		}
		return a.result()
	},
	"X12.environ": func(t *targets) error { return snoop(t, "environ", "maps", "io", "stack", "syscall", "fdinfo/0") },
	"X12.cmdline": func(t *targets) error { return snoop(t, "cmdline", "stat", "status", "comm") },
	"X12.net": func(t *targets) error {
		_, port, err := net.SplitHostPort(t.Held.TCP)
		if err != nil {
			return errNothing
		}
		n, _ := strconv.Atoi(port)
		return holds("/proc/net/tcp", fmt.Sprintf("0100007F:%04X", n))
	},
	"X13.load": func(*targets) error {
		b, err := os.ReadFile("/proc/loadavg")
		if err != nil {
			return err
		}
		return succeeded(b)
	},
	"X14.pty": func(t *targets) error {
		var a attempts
		paths, _ := filepath.Glob("/dev/pts/[0-9]*")
		for _, path := range append(paths, t.Held.Pty) {
			if path == "" {
				continue
			}
			fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
			if err == nil {
				unix.Close(fd)
			}
			a.try(path, err)
		}
		return a.result()
	},
	"X16.attributes": func(*targets) error {
		var a attempts
		for _, name := range []string{"user.left", "security.capability", "trusted.left", "system.posix_acl_access", "trusted.overlay.redirect"} {
			for _, path := range []string{".", "left"} {
				b := make([]byte, 64)
				n, err := unix.Getxattr(path, name, b)
				if err == nil && n > 0 {
					a.try(name+" on "+path, nil)
				}
			}
		}
		return a.result()
	},
	"X16.privileged": func(*targets) error { // attributes that give or hide something
		var a attempts
		os.WriteFile("left", nil, 0o755)
		unix.Setxattr(".", "user.left", []byte("x"), 0)
		unix.Setxattr("left", "user.left", []byte("x"), 0)
		caps := []byte{1, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}
		a.try("capability", unix.Setxattr("left", "security.capability", caps, 0))
		a.try("trusted", unix.Setxattr("left", "trusted.left", []byte("x"), 0))
		a.try("overlay", unix.Setxattr(".", "trusted.overlay.redirect", []byte("/etc"), 0))
		return a.result()
	},
	// Every directory that takes files beyond the slot's own, and every file
	// that can be written.
	"X19.writable": func(t *targets) error {
		var a attempts
		cwd, _ := os.Getwd()
		own := map[string]bool{cwd: true, "/proc": true, "/sys": true, filepath.Dir(cwd): true, "/workspace": true}
		for _, s := range shared {
			own[s] = true
		}
		_, private := os.Stat("/run/berth-agent")
		for _, dir := range []string{"/run", "/dev"} { // the slot's own where it has a root of its own
			own[dir] = private == nil
		}
		walk("/", own, time.Now().Add(3*time.Second), func(dir string) {
			if dir != t.Scratch && unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK, unix.AT_EACCESS) == nil {
				if err := creatable(dir); err == nil {
					a.try(dir, nil)
				}
			}
		})
		for _, f := range []string{"/etc/passwd", "/etc/ld.so.preload", "/etc/ld.so.cache", "/etc/profile", "/etc/bash.bashrc", "/usr/bin/env", "/proc/sys/fs/binfmt_misc/register", "/etc/crontab", "/etc/resolv.conf", "/etc/hosts"} {
			a.try(f, openable(f))
		}
		for _, dir := range []string{"/", "/etc", "/usr", "/usr/local/bin", "/usr/lib", "/var/spool/cron", "/var/spool/cron/crontabs", "/root", "/home", "/opt", "/etc/cron.d", "/dev", "/var/cache"} {
			if !own[dir] {
				a.try(dir, creatable(dir))
			}
		}
		return a.result()
	},
	"X22.families": func(*targets) error {
		var a attempts
		for name, family := range map[string]int{
			"vsock": unix.AF_VSOCK, "alg": unix.AF_ALG, "packet": unix.AF_PACKET, "bluetooth": unix.AF_BLUETOOTH, "can": unix.AF_CAN,
			"tipc": unix.AF_TIPC, "xdp": unix.AF_XDP, "rds": unix.AF_RDS, "key": unix.AF_KEY, "qipcrtr": unix.AF_QIPCRTR, "smc": unix.AF_SMC,
		} {
			for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET, unix.SOCK_RAW} {
				fd, err := unix.Socket(family, kind, 0)
				if err == nil {
					unix.Close(fd)
				}
				a.try(name, err)
			}
		}
		for _, protocol := range []int{unix.NETLINK_KOBJECT_UEVENT, unix.NETLINK_AUDIT, unix.NETLINK_SOCK_DIAG, unix.NETLINK_NETFILTER, unix.NETLINK_CONNECTOR, unix.NETLINK_GENERIC, unix.NETLINK_XFRM} {
			fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, protocol)
			if err == nil {
				unix.Close(fd)
			}
			a.try(fmt.Sprintf("netlink %d", protocol), err)
		}
		return a.result()
	},
	"X23.flags": func(*targets) error {
		var a attempts
		os.WriteFile("left", []byte("x"), 0o644)
		f, err := os.Open("left")
		if err != nil {
			return err
		}
		defer f.Close()
		attr := [28]byte{}
		flags := uint64(0x10 | 0x20) // immutable, append-only
		for _, high := range []uintptr{0, 1 << 32} {
			a.try("FSSETXATTR", call(unix.SYS_IOCTL, f.Fd(), 0x401c5820|high, uintptr(unsafe.Pointer(&attr))))
			a.try("SETFLAGS", call(unix.SYS_IOCTL, f.Fd(), unix.FS_IOC_SETFLAGS|high, uintptr(unsafe.Pointer(&flags))))
		}
		const fileSetattr = 469
		a.try("file_setattr", call(fileSetattr, 0, 0, 0, 0, 0))
		return a.result()
	},
}

// takeFrom connects, and takes what is said and the directory that comes with it.
func takeFrom(name, secret string) error {
	if name == "" {
		return errNothing
	}
	return within(time.Second, func() error {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: name, Net: "unix"})
		if err != nil {
			return err
		}
		defer c.Close()
		b, oob := make([]byte, 128), make([]byte, 128)
		n, oobn, _, _, err := c.ReadMsgUnix(b, oob)
		if err != nil || !strings.Contains(string(b[:n]), secret) {
			return succeeded("connected")
		}
		if messages, err := syscall.ParseSocketControlMessage(oob[:oobn]); err == nil && len(messages) > 0 {
			if fds, err := syscall.ParseUnixRights(&messages[0]); err == nil && len(fds) > 0 {
				fd, err := unix.Openat(fds[0], "secret", unix.O_RDONLY, 0)
				if err == nil {
					unix.Close(fd)
					return succeeded("told the secret, and gave a directory to read")
				}
			}
		}
		return succeeded("told the secret")
	})
}

func snoop(t *targets, files ...string) error {
	var a attempts
	for _, pid := range t.Others {
		for _, f := range files {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, f))
			if err == nil && len(b) == 0 {
				err = errNothing
			}
			a.try(fmt.Sprintf("%d/%s", pid, f), err)
		}
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != os.Getpid() && pid != os.Getppid() {
			for _, f := range files {
				b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, f))
				if strings.Contains(string(b), t.Secret) && !strings.Contains(string(b), "X12.") {
					a.try(fmt.Sprintf("the secret in %d/%s", pid, f), nil)
				}
			}
		}
	}
	return a.result()
}
