package jobs

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"

	"berth/slots"
)

// Driver is how Nomad runs a task.
type Driver string

// The drivers that sandboxd runs under.
const (
	Docker  Driver = "docker"   // in a container of an image
	Exec    Driver = "exec"     // a program of the machine, in a root of Nomad's making
	RawExec Driver = "raw_exec" // a program of the machine, as it is
)

// Drivers are all of them.
func Drivers() []Driver { return []Driver{Docker, Exec, RawExec} }

// Names of what is in the job of a pool.
const (
	Group   = "sandboxd" // group, task and service
	Port    = "http"     // label of sandboxd's port
	Secret  = "token"    // item of the job's variable: what tokens are derived from
	EnvItem = "env"      // item of the job's variable: the slots' environment, K=V a line
	Metrics = "metrics"  // item of the job's variable, which may be absent: the token that opens the metrics alone
)

// Meta that the job of a pool carries.
const (
	MetaTemplate = "berth_template" // name of the template
	MetaSpec     = "berth_spec"     // what the orchestrator asked for, to know its job again
	MetaEnv      = "berth_env"      // names the version that the slots' environment had when the job was registered
)

// Template is what the job of a pool is made of. Zero fields but Job mean the
// defaults.
type Template struct {
	Job         string // ID of the job; required
	Namespace   string
	Region      string
	Datacenters []string // default: all
	NodePool    string
	Priority    int

	Driver   Driver   // default: docker
	Image    string   // of the docker driver; default: berth/sandboxd:local
	Runtime  string   // of the docker driver: runsc, kata; default: the engine's own
	Seccomp  string   // of the docker driver: where the client's disk has the profile of images/; default /etc/berth/seccomp-slots.json
	Command  string   // of the other drivers; default /usr/local/bin/sandboxd
	Args     []string // more of sandboxd's flags
	Writable bool     // of the docker driver: the image's files may be written to

	Count     int // of containers
	Slots     int // of each container; default 8
	Isolation string
	NoNetwork bool          // slots have loopback only
	Longest   time.Duration // longest timeout that a call may name; default 1 h
	Drain     time.Duration // that running work gets when a container is stopped; default 25 s, as much as Nomad's clients allow without more configuration

	SlotMemory int64   // bytes of memory of one slot; 0: no limit
	SlotPids   int64   // processes of one slot; default 512
	SlotCPUs   float64 // 0: no limit
	SlotDisk   int64   // bytes of disk of one slot; 0: no limit

	Cores       int // whole cores, so that nproc is true; 0: CPU counts
	CPU         int // MHz; default 1000 when there are no Cores
	MemoryMB    int // default 1024
	MemoryMaxMB int // what a container may use when the machine has it to spare; 0: no more than MemoryMB. Only schedulers that allow memory oversubscription heed it, others warn
	DiskMB      int // default 2048

	Meta map[string]string // more of it
}

// Slots of a container, and processes of a slot, where none are said.
const (
	defaultSlots = 8
	defaultPids  = 512
)

var jobPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)

// Complete is the template with its defaults filled in. The error is that it
// makes no job.
func (t Template) Complete() (Template, error) {
	if !jobPattern.MatchString(t.Job) {
		return t, fmt.Errorf("job %.80q: want 1 to 63 letters, digits, - and _", t.Job)
	}
	if t.Job == OrchestratorJob || t.Job == PrepullJob {
		return t, fmt.Errorf("job %s: it is no pool's", t.Job)
	}
	or(&t.Driver, Docker)
	switch t.Driver {
	case Docker, Exec, RawExec:
	default:
		return t, fmt.Errorf("driver %q: want docker, exec or raw_exec", t.Driver)
	}
	or(&t.Image, "berth/sandboxd:local")
	or(&t.Seccomp, "/etc/berth/seccomp-slots.json")
	or(&t.Command, "/usr/local/bin/sandboxd")
	or(&t.Slots, defaultSlots)
	or(&t.Longest, time.Hour)
	or(&t.Drain, defaultDrain)
	or(&t.SlotPids, defaultPids)
	or(&t.MemoryMB, 1024)
	or(&t.DiskMB, 2048)
	if t.Cores == 0 {
		or(&t.CPU, 1000)
	} else {
		t.CPU = 0 // cores are what counts
	}
	if len(t.Datacenters) == 0 {
		t.Datacenters = []string{"*"}
	}
	if err := t.bounds(); err != nil {
		return t, err
	}
	if _, err := slots.ParseRequirement(t.Isolation); err != nil {
		return t, fmt.Errorf("isolation: %w", err)
	}
	for _, text := range append([]string{t.Image, t.Runtime, t.Seccomp, t.Command}, t.Args...) {
		if strings.ContainsAny(text, "\n\x00") {
			return t, fmt.Errorf("%.80q has a line break or a zero byte", text)
		}
	}
	return t, nil
}

// Bounds of what the orchestrator and sandboxd take.
const (
	mostContainers = 1 << 16
	mostSlots      = 2000
	mostCores      = 1 << 10
	most           = 1 << 24 // of MHz and MB
	leastDisk      = 10
	leastMemory    = 10 // Nomad takes no less
	mostPriority   = 1<<15 - 1
)

// bounds is the error that a number is not what the orchestrator and sandboxd
// take: they would not start.
func (t Template) bounds() error {
	leastCPU, leastMax := 1, 0
	if t.Cores != 0 {
		leastCPU = 0
	}
	if t.MemoryMaxMB != 0 {
		leastMax = t.MemoryMB
	}
	for _, b := range []struct {
		what            string
		is, least, most int
	}{
		{"count", t.Count, 0, mostContainers},
		{"slots", t.Slots, 1, mostSlots},
		{"priority", t.Priority, 0, mostPriority},
		{"cores", t.Cores, 0, mostCores},
		{"cpu", t.CPU, leastCPU, most},
		{"memory", t.MemoryMB, leastMemory, most},
		{"memory-max", t.MemoryMaxMB, leastMax, most},
		{"disk", t.DiskMB, leastDisk, most},
	} {
		if b.is < b.least || b.is > b.most {
			return fmt.Errorf("%s: want %d to %d, got %d", b.what, b.least, b.most, b.is)
		}
	}
	for what, n := range map[string]int64{"memory": t.SlotMemory, "processes": t.SlotPids, "disk": t.SlotDisk} {
		if n < 0 {
			return fmt.Errorf("%s of a slot: want 0 or more, got %d", what, n)
		}
	}
	if !(t.SlotCPUs >= 0) || math.IsInf(t.SlotCPUs, 0) {
		return fmt.Errorf("CPUs of a slot: want a number of 0 or more, got %v", t.SlotCPUs)
	}
	for what, d := range map[string]time.Duration{"longest timeout": t.Longest, "drain": t.Drain} {
		if d <= 0 {
			return fmt.Errorf("%s: want a time above 0, got %v", what, d)
		}
	}
	return nil
}

// or gives the value its default.
func or[T comparable](value *T, byDefault T) {
	if *value == *new(T) {
		*value = byDefault
	}
}
