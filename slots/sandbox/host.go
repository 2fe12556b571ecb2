package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"berth/slots"
	"berth/slots/cgroup"
	"berth/slots/holder"
	"berth/slots/probe"
	"berth/slots/quota"
)

// Config says what slots are to be like. Zero fields have the named defaults.
type Config struct {
	DataDir string // absolute; everything of the slots lies below it
	Exe     string // the agent's binary; default the running one
	Slots   int    // how many there will be; default 1

	Attempt slots.Level       // the strongest level to try
	Require slots.Requirement // the least to accept

	Limits      slots.Limits // of each slot
	Disk        DiskBackend  // of Limits.DiskBytes and DiskFiles; one that is named must work
	Network     bool         // slots share the container's network; else loopback only
	PrivateRoot bool         // slots may write everywhere, and a reset takes it back

	// AgentPort is the agent's TCP port, which slots must not reach; 0: none.
	AgentPort int
	// RefusesUIDs is set by an agent that itself refuses connections from the
	// slots' uids, see IsSlotUID.
	RefusesUIDs bool

	// Home is an absolute path of a directory that all slots see and may write
	// to, and that outlives them; it is made. "": there is none. It is for slots
	// of one owner, and none of a private root: their root would be root there.
	Home string

	FirstUID int      // first uid and gid of slots; default 61000
	Env      []string // K=V for every process of a slot, above our own
	Hide     []string // absolute paths that slots must not see, besides DataDir
	// Secrets are absolute paths of files that slots must not see, nor a file
	// that takes the place of one. Where slots have the agent's user they do not
	// see the directories of these files, and Open refuses those that slots need.
	Secrets []string
	CPUs    float64 // of the container, for parallelism hints; default measured

	// JobIdle is how long an interpreter waits for its next job before it is
	// ended; default 5 minutes.
	JobIdle time.Duration

	// NoCgroup leaves cgroups alone even where they work.
	NoCgroup bool
	// Stderr takes what a crashing holder prints; nil is the agent's own.
	Stderr *os.File
}

func (c Config) withDefaults() (Config, error) {
	if !filepath.IsAbs(c.DataDir) {
		return c, fmt.Errorf("data directory %q is not absolute", c.DataDir)
	}
	c.DataDir = filepath.Clean(c.DataDir)
	if c.Home != "" && (!filepath.IsAbs(c.Home) || c.PrivateRoot) {
		return c, fmt.Errorf("home %q is not absolute, or for slots with a private root", c.Home)
	}
	if c.Exe == "" {
		exe, err := os.Executable()
		if err != nil {
			return c, fmt.Errorf("find own binary: %w", err)
		}
		c.Exe = exe
	}
	c.Slots = max(1, c.Slots)
	if c.JobIdle <= 0 {
		c.JobIdle = 5 * time.Minute
	}
	if c.FirstUID == 0 {
		c.FirstUID = 61000
	}
	if c.CPUs == 0 {
		c.CPUs = cgroup.CPUs("/")
	}
	l := &c.Limits
	l.Pids = orDefault(l.Pids, 512)
	l.ShmBytes = orDefault(l.ShmBytes, 64<<20)
	l.OpenFiles = orDefault(l.OpenFiles, 4096)
	l.StackBytes = orDefault(l.StackBytes, 8<<20)
	l.LockedBytes = orDefault(l.LockedBytes, 64<<10)
	l.QueuedSignals = orDefault(l.QueuedSignals, 1024)
	l.MsgQueueBytes = orDefault(l.MsgQueueBytes, 800<<10)
	return c, nil
}

func orDefault(v, byDefault int64) int64 {
	if v == 0 {
		return byDefault
	}
	return v
}

// Host is what the sandboxes of a container share.
type Host struct {
	config   Config
	facts    probe.Facts
	layout   layout
	how      mechanism
	attempts []Attempt
	attacks  []probe.Result
	isolated slots.Isolation
	opened   string       // when; with the pid, which a container may give to every agent, it names the host's instances
	cgroups  *cgroup.Tree // nil: none can be written
	noGroups error        // why cgroups is nil
	disk     DiskBackend  // what is in force; "": slots have no disk limit
	quota    *quota.System
	opening  atomic.Int32 // how many sandboxes are being opened now

	restarting sync.Mutex // held while a spawner that has ended is replaced

	mu       sync.Mutex // guards what follows
	spawner  *holder.Spawner
	uids     uidPool
	next     int
	closed   bool
	disposal sync.WaitGroup  // trash being emptied, spares being made
	ctx      context.Context //nolint:containedctx // the host's own lifetime, for work that Close waits for
	stop     context.CancelFunc
}

// Open finds the strongest isolation that works here and stands ready to make
// sandboxes. What is left of an earlier agent below the data directory is
// thrown away. The error is an *UnmetError when the requirement is not met.
func Open(ctx context.Context, c Config) (*Host, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	h := &Host{config: c, facts: probe.Take(), layout: layout{c.DataDir}, opened: strconv.FormatInt(time.Now().UnixNano(), 36)}
	h.ctx, h.stop = context.WithCancel(context.WithoutCancel(ctx))
	h.uids.first, h.uids.width = c.FirstUID, 1
	if c.PrivateRoot {
		h.uids.first, h.uids.width = privateFirst, privateWidth
	}
	if h.facts.CanSwitch() {
		h.uids.open()
	}
	if err := errors.Join(h.layout.prepare(c.Exe), h.makeHome()); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	if err := h.openCgroups(ctx); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	if err := h.openDisk(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	if err := h.startSpawner(ctx); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	if err := h.choose(ctx); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	if err := errors.Join(h.checkSecrets(), h.giveHome()); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	if unmet := c.Require.Unmet(h.isolated); len(unmet) > 0 {
		err := &UnmetError{Required: c.Require, Got: h.isolated, Shortfall: unmet, Attempts: h.attempts}
		return nil, errors.Join(err, h.Close())
	}
	h.disposal.Go(func() { h.emptyTrash(h.ctx) })
	return h, nil
}

func (h *Host) openCgroups(ctx context.Context) error {
	if h.config.NoCgroup || h.config.Attempt < slots.LevelBasic {
		h.noGroups = errors.New("not attempted")
		return nil
	}
	c := cgroup.Config{}
	if h.facts.UID == 0 { // the cgroup's files are root's
		c.Delegate = h.delegateCgroup
	}
	tree, err := cgroup.Open(ctx, c)
	if unavailable, ok := errors.AsType[*cgroup.UnavailableError](err); ok {
		h.noGroups = unavailable
		return nil
	}
	if err != nil {
		return fmt.Errorf("open cgroups: %w", err)
	}
	h.cgroups = tree
	_, _ = tree.Sweep(ctx, "berth") // an earlier agent's tree that stays does not harm ours
	return nil
}

// hidesPort reports whether holders need Landlock's port rules: they cannot
// be told apart from the agent by uid.
func (h *Host) hidesPort() bool {
	return h.config.Network && h.config.AgentPort != 0 && h.facts.LandlockABI >= 4 &&
		!h.refusesSlots()
}

// refusesSlots reports whether the agent tells slots from others by their uid:
// it can when they get one of their own, which weaker levels do not try.
func (h *Host) refusesSlots() bool {
	return h.config.RefusesUIDs && h.facts.CanSwitch() && h.config.Attempt >= slots.LevelUID
}

func (h *Host) startSpawner(ctx context.Context) error {
	c := holder.SpawnerConfig{Exe: h.config.Exe, Stderr: h.config.Stderr}
	if h.hidesPort() {
		c.HidePort = h.config.AgentPort
	}
	spawner, err := holder.StartSpawner(ctx, c)
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.spawner = spawner
	h.mu.Unlock()
	return nil
}

// liveSpawner is the spawner, started anew if the last one has ended.
func (h *Host) liveSpawner(ctx context.Context) (*holder.Spawner, error) {
	h.restarting.Lock() // one for all slots that have lost the same one
	defer h.restarting.Unlock()
	h.mu.Lock()
	s, closed := h.spawner, h.closed
	h.mu.Unlock()
	if closed {
		return nil, errors.New("host is closed")
	}
	select {
	case <-s.Done():
		_ = s.Close() // how it ended is not needed to start another
		if err := h.startSpawner(ctx); err != nil {
			return nil, err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.spawner, nil
	default:
		return s, nil
	}
}

// Isolation is what is in force.
func (h *Host) Isolation() slots.Isolation { return h.isolated }

// Report is what the probe found, for people and for the start log.
type Report struct {
	Facts     probe.Facts     `json:"facts"`
	Isolation slots.Isolation `json:"isolation"`
	Mechanism string          `json:"mechanism"`
	Attempts  []Attempt       `json:"attempts"`
	Attacks   []probe.Result  `json:"attacks"`
	Cgroup    string          `json:"cgroup"` // how, or why not
	Disk      string          `json:"disk"`   // what holds the disk limit, and what would do better
}

// Report returns what the probe found.
func (h *Host) Report() Report {
	r := Report{Facts: h.facts, Isolation: h.isolated, Mechanism: h.how.name, Attempts: h.attempts, Attacks: h.attacks}
	r.Disk = h.diskReport()
	if h.cgroups != nil {
		r.Cgroup = fmt.Sprintf("%s: %v", h.cgroups.How(), h.cgroups.Controllers())
	} else if h.noGroups != nil {
		r.Cgroup = "none: " + h.noGroups.Error()
	}
	return r
}

// closeDeadline bounds how long Close waits for processes and files.
const closeDeadline = 10 * time.Second

// Close ends every process of every slot and removes what only a running
// agent needs. Sandboxes must have been closed or abandoned.
func (h *Host) Close() error {
	h.restarting.Lock() // no spawner is made from here on
	h.mu.Lock()
	spawner := h.spawner
	again := h.closed
	h.closed = true
	h.mu.Unlock()
	h.restarting.Unlock()
	if again {
		return nil
	}
	h.stop()
	h.disposal.Wait()
	var errs []error
	if spawner != nil {
		errs = append(errs, spawner.Close())
	}
	if h.cgroups != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeDeadline)
		defer cancel()
		errs = append(errs, h.cgroups.Close(ctx))
	}
	if h.quota != nil {
		errs = append(errs, h.quota.Close())
	}
	errs = append(errs, h.uids.close()) // last: until then something may run as one of them
	return errors.Join(errs...)
}
