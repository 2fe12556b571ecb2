package seccomp

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Arch is a syscall ABI, by the number under which the kernel reports it to a filter.
type Arch uint32

// The architectures that slots run on.
const (
	AMD64 Arch = unix.AUDIT_ARCH_X86_64
	ARM64 Arch = unix.AUDIT_ARCH_AARCH64
)

// Arches lists the architectures that Compile knows.
func Arches() []Arch { return []Arch{AMD64, ARM64} }

// String returns the architecture's Go name.
func (a Arch) String() string {
	switch a {
	case AMD64:
		return "amd64"
	case ARM64:
		return "arm64"
	}
	return fmt.Sprintf("arch(%#x)", uint32(a))
}

// HostArch returns the architecture of this binary. On others than AMD64 and
// ARM64 it is an error.
func HostArch() (Arch, error) {
	for _, a := range Arches() {
		if a.String() == runtime.GOARCH {
			return a, nil
		}
	}
	return 0, fmt.Errorf("choose syscall table: no table for %s", runtime.GOARCH)
}

// absent marks a call that an architecture does not have.
const absent = -1

// newest is the highest number in this package's judgement: everything up to it
// was looked at when the slot's denylist was written. A test compares it with
// x/sys/unix. Numbers from 424 on are the same on every architecture.
const newest = 471 // rseq_slice_yield

// numbers are a call's number on each architecture.
type numbers struct{ amd64, arm64 int64 }

// number returns the call's number on the architecture, or absent.
func (n numbers) number(a Arch) int64 {
	switch a {
	case AMD64:
		return n.amd64
	case ARM64:
		return n.arm64
	}
	return absent
}

// syscalls holds every call that a profile can name. It is a table and not
// x/sys/unix constants, so that the programs of both architectures are made and
// tested on either.
var syscalls = map[string]numbers{
	"acct":                    {163, 89},
	"add_key":                 {248, 217},
	"adjtimex":                {159, 171},
	"bpf":                     {321, 280},
	"chroot":                  {161, 51},
	"clock_adjtime":           {305, 266},
	"clock_settime":           {227, 112},
	"clone":                   {56, 220},
	"clone3":                  {435, 435},
	"delete_module":           {176, 106},
	"fanotify_init":           {300, 262},
	"fcntl":                   {72, 25},
	"file_setattr":            {469, 469},
	"finit_module":            {313, 273},
	"fsconfig":                {431, 431},
	"fsmount":                 {432, 432},
	"fsopen":                  {430, 430},
	"fspick":                  {433, 433},
	"init_module":             {175, 105},
	"io_uring_enter":          {426, 426},
	"io_uring_register":       {427, 427},
	"io_uring_setup":          {425, 425},
	"ioctl":                   {16, 29},
	"ioperm":                  {173, absent},
	"iopl":                    {172, absent},
	"ioprio_set":              {251, 30},
	"kcmp":                    {312, 272},
	"kexec_file_load":         {320, 294},
	"kexec_load":              {246, 104},
	"keyctl":                  {250, 219},
	"listmount":               {458, 458},
	"listns":                  {470, 470},
	"lookup_dcookie":          {212, 18},
	"lsm_set_self_attr":       {460, 460},
	"mbind":                   {237, 235},
	"memfd_secret":            {447, 447},
	"migrate_pages":           {256, 238},
	"modify_ldt":              {154, absent},
	"mount":                   {165, 40},
	"mount_setattr":           {442, 442},
	"move_mount":              {429, 429},
	"move_pages":              {279, 239},
	"mq_open":                 {240, 180},
	"mq_unlink":               {241, 181},
	"msgctl":                  {71, 187},
	"msgget":                  {68, 186},
	"msgrcv":                  {70, 188},
	"msgsnd":                  {69, 189},
	"name_to_handle_at":       {303, 264},
	"open_by_handle_at":       {304, 265},
	"open_tree":               {428, 428},
	"open_tree_attr":          {467, 467},
	"perf_event_open":         {298, 241},
	"personality":             {135, 92},
	"pidfd_getfd":             {438, 438},
	"pivot_root":              {155, 41},
	"prlimit64":               {302, 261},
	"process_madvise":         {440, 440},
	"process_vm_readv":        {310, 270},
	"process_vm_writev":       {311, 271},
	"ptrace":                  {101, 117},
	"quotactl":                {179, 60},
	"quotactl_fd":             {443, 443},
	"reboot":                  {169, 142},
	"request_key":             {249, 218},
	"sched_setaffinity":       {203, 122},
	"sched_setattr":           {314, 274},
	"sched_setparam":          {142, 118},
	"sched_setscheduler":      {144, 119},
	"semctl":                  {66, 191},
	"semget":                  {64, 190},
	"semop":                   {65, 193},
	"semtimedop":              {220, 192},
	"sendmmsg":                {307, 269},
	"sendmsg":                 {46, 211},
	"sendto":                  {44, 206},
	"set_mempolicy_home_node": {450, 450},
	"setdomainname":           {171, 162},
	"sethostname":             {170, 161},
	"setns":                   {308, 268},
	"setpriority":             {141, 140},
	"setsockopt":              {54, 208},
	"settimeofday":            {164, 170},
	"shmat":                   {30, 196},
	"shmctl":                  {31, 195},
	"shmget":                  {29, 194},
	"socket":                  {41, 198},
	"socketpair":              {53, 199},
	"statmount":               {457, 457},
	"swapoff":                 {168, 225},
	"swapon":                  {167, 224},
	"syslog":                  {103, 116},
	"umount2":                 {166, 39},
	"unshare":                 {272, 97},
	"uselib":                  {134, absent},
	"userfaultfd":             {323, 282},
	"vhangup":                 {153, 58},
}
