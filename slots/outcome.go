package slots

import "time"

// Outcome says how a process that ran has ended.
type Outcome string

// The endings of a process. None of them is a fault of the infrastructure.
const (
	OutcomeExited        Outcome = "exited"
	OutcomeSignaled      Outcome = "signaled"
	OutcomeTimedOut      Outcome = "timed_out"
	OutcomeOOMKilled     Outcome = "oom_killed"
	OutcomeOutputLimited Outcome = "output_limited"
	OutcomeDiskLimited   Outcome = "disk_limited"
	OutcomeCancelled     Outcome = "cancelled"
)

// Exit is the end of one execution as the kernel and the holder report it.
type Exit struct {
	Outcome   Outcome
	Code      int           // exit code, or 128+signal as a shell reports it, -1 on timeout
	Signal    string        // name like "SIGKILL", empty unless a signal ended it
	Spawn     time.Duration // from the holder's receipt of the request until it knows that the process runs
	Duration  time.Duration // from the making of the process to its exit: no less than its life
	CPU       time.Duration // user + system of the waited process tree
	MaxRSS    int64         // bytes, largest of the waited process tree
	OOMKilled bool
	DiskFull  bool // the slot was at its disk limit when it ended; where a watcher looks, beyond it by this command
	Leftover  int  // processes that outlived the command and were killed
}

// Check is one thing that a reset proved, or could not prove.
type Check struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	Note string `json:"note,omitempty"`
}

// Receipt is the proof of a reset.
type Receipt struct {
	Clean      bool    `json:"clean"`
	Generation uint64  `json:"generation"`
	Checks     []Check `json:"checks"`
	MS         float64 `json:"ms"`
}

// Limits bounds what one slot may use. Zero means no limit of ours, except
// where a default is named.
type Limits struct {
	MemoryBytes   int64   `json:"memory_bytes"`    // cgroup memory, swap included
	Pids          int64   `json:"pids"`            // processes and threads; default 512
	CPUs          float64 `json:"cpus"`            // CPUs' worth of time per second
	DiskBytes     int64   `json:"disk_bytes"`      // workspace, /tmp and output together
	ShmBytes      int64   `json:"shm_bytes"`       // /dev/shm; default 64 MiB
	OpenFiles     int64   `json:"open_files"`      // RLIMIT_NOFILE; default 4096
	FileBytes     int64   `json:"file_bytes"`      // RLIMIT_FSIZE
	StackBytes    int64   `json:"stack_bytes"`     // RLIMIT_STACK; default 8 MiB
	AddressBytes  int64   `json:"address_bytes"`   // RLIMIT_AS
	DiskFiles     int64   `json:"disk_files"`      // files in workspace, /tmp and output together
	LockedBytes   int64   `json:"locked_bytes"`    // RLIMIT_MEMLOCK; default 64 KiB
	QueuedSignals int64   `json:"queued_signals"`  // RLIMIT_SIGPENDING; default 1024
	MsgQueueBytes int64   `json:"msg_queue_bytes"` // RLIMIT_MSGQUEUE; default 800 KiB
}
