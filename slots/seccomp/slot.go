package seccomp

import "golang.org/x/sys/unix"

// Options adapts the slot's denylist to the isolation level.
type Options struct {
	// SharedIPC is for levels on which slots share a uid and an IPC namespace: it
	// refuses System V IPC altogether (ids can be guessed, so refusing only the
	// calls that make objects would not do) and POSIX message queues by name.
	SharedIPC bool
	// SharedUID is for slots that share a uid. It refuses leases on files, which
	// the owner of a file may take. Together with SharedIPC, which says that no
	// namespace keeps them apart either, it refuses to set limits and priorities
	// of other processes: the kernel allows that within a uid, and Landlock does
	// not know it.
	SharedUID bool
	// PortRules is for slots that Landlock keeps from a port. It refuses what
	// connects past Landlock's rules.
	PortRules bool
	// NoNetwork refuses every socket family but AF_UNIX.
	NoNetwork bool
	// AllowPtrace lets debuggers, strace and leak checkers work. It is sound only
	// where a pid namespace, or a uid of its own, keeps other slots out of reach.
	AllowPtrace bool
}

// denied are refused with EPERM whatever their arguments.
var denied = []string{
	// The view of files: everything here was set up before the filter came.
	"mount", "umount2", "pivot_root", "chroot",
	"open_tree", "open_tree_attr", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr",
	"open_by_handle_at", "name_to_handle_at", // by handle, a file is reached without a path
	"fanotify_init", "lookup_dcookie", "uselib",
	"quotactl", "quotactl_fd",
	"file_setattr", // leaves a project quota, or pins a file against deletion; the ioctls below in newer clothes
	// Other namespaces and processes.
	"setns", "kcmp", "pidfd_getfd", "process_madvise", "lsm_set_self_attr",
	// Kernel interfaces with a history of holes and no use in a slot.
	"bpf", "perf_event_open", "userfaultfd", "memfd_secret",
	"keyctl", "add_key", "request_key", // keyrings belong to the uid, not to the namespace
	// The machine.
	"acct", "swapon", "swapoff", "reboot", "kexec_load", "kexec_file_load",
	"init_module", "finit_module", "delete_module", "syslog", "vhangup",
	"settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname", "setdomainname",
	"mbind", "migrate_pages", "move_pages", "set_mempolicy_home_node",
	"iopl", "ioperm", "modify_ldt",
}

// missing answer ENOSYS: programs take that for an older kernel and do the same
// thing in another way.
var missing = []string{
	"clone3",                                                // its flags lie in memory, where no filter sees them; libraries fall back to clone
	"io_uring_setup", "io_uring_enter", "io_uring_register", // does the work of other calls past the filter
	"statmount", "listmount", "listns", // /proc/self/mountinfo is the fallback
}

// tracing reads and changes other processes of the same uid.
var tracing = []string{"ptrace", "process_vm_readv", "process_vm_writev"}

// sharedIPC reaches objects that every process of the uid and IPC namespace shares.
var sharedIPC = []string{
	"shmget", "shmat", "shmctl", "msgget", "msgsnd", "msgrcv", "msgctl",
	"semget", "semop", "semtimedop", "semctl", "mq_open", "mq_unlink",
}

// tuning are the calls that set a limit or a priority, with the argument that
// names whose; zero is the caller's own.
var tuning = []struct {
	call string
	arg  int
}{
	{"setpriority", 1},
	{"ioprio_set", 1},
	{"sched_setaffinity", 0},
	{"sched_setscheduler", 0},
	{"sched_setparam", 0},
	{"sched_setattr", 0},
}

// cloneNamespaces are the flags with which clone makes a namespace. CLONE_NEWTIME
// is not one of them: its bit is part of the exit signal there.
const cloneNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// unshareOwn are the flags of unshare that make no namespace. Whatever else is
// set is refused, because unshare gives bits of its own meaning: CLONE_NEWTIME
// shares its bit with clone's exit signal, and UNSHARE_EMPTY_MNTNS (Linux 7.1), which
// makes a mount namespace, has that of CLONE_PARENT_SETTID.
const unshareOwn = unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SYSVSEM |
	unix.CLONE_THREAD | unix.CLONE_SIGHAND | unix.CLONE_VM

// The ioctl commands that x/sys/unix does not name.
const fsIocFSSetXattr = 0x401c5820

// deniedIoctls are refused on every descriptor.
var deniedIoctls = []uint64{
	unix.TIOCSTI,         // types into a terminal that somebody else reads
	unix.TIOCLINUX,       // pastes into a virtual console
	unix.TIOCSETD,        // loads line disciplines
	unix.FS_IOC_SETFLAGS, // immutable and append-only files would outlive a reset
	fsIocFSSetXattr,      // changes a file's quota project
}

// leases make whoever opens the file wait for the one who holds it. Slots of
// one uid could stop each other so, by a file that all may read.
var leases = []uint64{unix.F_SETLEASE, 1040 /* F_SETDELEG */}

// personalities are those that change nothing: Linux, Linux that says 2.6, and the query.
var personalities = []uint64{0, 0x20000, 0xffffffff}

// tcpInDisguise are the protocols that speak TCP, and reach whoever listens
// for TCP, without being it for Landlock's rules about ports.
var tcpInDisguise = []uint64{unix.IPPROTO_MPTCP, 256 /* IPPROTO_SMC */}

// sending are the calls that connect as they send when they are told to
// (MSG_FASTOPEN), with the argument that says so. Landlock looks at connect alone.
var sending = []struct {
	call string
	arg  int
}{
	{"sendto", 3},
	{"sendmsg", 2},
	{"sendmmsg", 3},
}

// The parts of a socket call that the kernel decodes itself.
const (
	socketTypeMask = 0xf // above are SOCK_CLOEXEC and SOCK_NONBLOCK
	socketPacket   = 10  // SOCK_PACKET turns AF_INET into AF_PACKET
)

// ForSlot returns the denylist that every process of a slot runs under.
func ForSlot(o Options) Profile {
	p := Profile{Newest: newest}
	p.refuse(unix.EPERM, denied...)
	p.refuse(unix.ENOSYS, missing...)
	if !o.AllowPtrace {
		p.refuse(unix.EPERM, tracing...)
	}
	if o.SharedIPC {
		p.refuse(unix.EPERM, sharedIPC...)
	}
	if o.SharedUID {
		p.refuseWhen("fcntl", unix.EACCES, Condition{Arg: 1, Op: In, Values: leases})
	}
	if o.SharedUID && o.SharedIPC {
		p.refuseTuning()
	}
	if o.PortRules {
		p.refuseHiddenConnects()
	}
	p.refuseWhen("clone", unix.EPERM, Condition{Arg: 0, Mask: cloneNamespaces, Op: NotIn, Values: []uint64{0}})
	p.refuseWhen("unshare", unix.EPERM, Condition{Arg: 0, Wide: true, Mask: ^uint64(unshareOwn), Op: NotIn, Values: []uint64{0}})
	p.refuseWhen("personality", unix.EPERM, Condition{Arg: 0, Op: NotIn, Values: personalities})
	p.refuseWhen("ioctl", unix.EPERM, Condition{Arg: 1, Op: In, Values: deniedIoctls})
	p.refuseSockets("socket", o.NoNetwork)
	p.refuseSockets("socketpair", o.NoNetwork)
	return p
}

// refuseSockets leaves AF_UNIX, and with a network AF_INET, AF_INET6 and the
// routing protocol of AF_NETLINK.
//
// Netlink is refused as by a kernel that lacks it, and not with EPERM: PAM and the
// shadow tools (su, useradd) open an audit socket, and give up unless they hear
// that there is no audit.
func (p *Profile) refuseSockets(call string, noNetwork bool) {
	netlink := Condition{Arg: 0, Op: In, Values: []uint64{unix.AF_NETLINK}}
	if noNetwork {
		p.refuseWhen(call, unix.EAFNOSUPPORT, netlink)
		p.refuseWhen(call, unix.EPERM, Condition{Arg: 0, Op: NotIn, Values: []uint64{unix.AF_UNIX}})
		return
	}
	p.refuseWhen(call, unix.EPERM, Condition{Arg: 0, Op: NotIn, Values: []uint64{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}})
	p.refuseWhen(call, unix.EPROTONOSUPPORT, netlink, Condition{Arg: 2, Op: NotIn, Values: []uint64{unix.NETLINK_ROUTE}})
	// As by a kernel without them: programs then take plain TCP.
	p.refuseWhen(call, unix.EPROTONOSUPPORT,
		Condition{Arg: 0, Op: In, Values: []uint64{unix.AF_INET, unix.AF_INET6}},
		Condition{Arg: 2, Op: In, Values: tcpInDisguise})
	p.refuseWhen(call, unix.EPERM,
		Condition{Arg: 0, Op: In, Values: []uint64{unix.AF_INET}},
		Condition{Arg: 1, Mask: socketTypeMask, Op: In, Values: []uint64{socketPacket}})
}

// refuseHiddenConnects refuses, as a kernel without them would, TCP Fast Open by
// a flag, and protocols above TCP: one of them, "smc", makes of a TCP socket
// another for Landlock, and which one is asked for lies in memory. The socket
// option TCP_FASTOPEN_CONNECT stays: it leaves the connecting to connect.
func (p *Profile) refuseHiddenConnects() {
	for _, s := range sending {
		p.refuseWhen(s.call, unix.EOPNOTSUPP, Condition{Arg: s.arg, Mask: unix.MSG_FASTOPEN, Op: In, Values: []uint64{unix.MSG_FASTOPEN}})
	}
	p.refuseWhen("setsockopt", unix.ENOENT,
		Condition{Arg: 1, Op: In, Values: []uint64{unix.IPPROTO_TCP}},
		Condition{Arg: 2, Op: In, Values: []uint64{unix.TCP_ULP}})
}

// refuseTuning refuses what names another process than the caller. Asking for
// a limit stays allowed.
func (p *Profile) refuseTuning() {
	for _, t := range tuning {
		p.refuseWhen(t.call, unix.EPERM, Condition{Arg: t.arg, Op: NotIn, Values: []uint64{0}})
	}
	p.refuseWhen("prlimit64", unix.EPERM,
		Condition{Arg: 0, Op: NotIn, Values: []uint64{0}},
		Condition{Arg: 2, Wide: true, Op: NotIn, Values: []uint64{0}})
}

func (p *Profile) refuse(errno unix.Errno, calls ...string) {
	for _, c := range calls {
		p.Rules = append(p.Rules, Rule{Syscall: c, Errno: errno})
	}
}

func (p *Profile) refuseWhen(call string, errno unix.Errno, when ...Condition) {
	p.Rules = append(p.Rules, Rule{Syscall: call, Errno: errno, When: when})
}
