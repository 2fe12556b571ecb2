package sandbox

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"berth/slots"
	"berth/slots/cgroup"
	"berth/slots/holder"
	"berth/slots/seccomp"
)

// instance is one sandbox's substance between two resets: its files, its
// holder, its cgroup and its uid. A spare is an instance that no slot has yet.
type instance struct {
	host   *Host
	how    mechanism
	name   string
	uid    int // of its files and, where there are uids, processes; 0 otherwise
	plan   holder.Plan
	group  *cgroup.Group // nil: none
	holder *holder.Holder
	born   time.Time
	work   *workplace // what it builds; nil: it is a slot's

	inMemory bool   // its files are in a file system of their own, see memoryDir
	project  uint32 // under which its files are counted; 0: none

	spawner *holder.Spawner // the holder's, which collects what outlives it

	atWork atWork
}

// newInstance makes an empty one and waits until its holder is ready.
func (h *Host) newInstance(ctx context.Context, m mechanism) (*instance, error) {
	return h.makeInstance(ctx, m, origin{})
}

// origin is what an instance begins with.
type origin struct {
	from string     // the workspace below it; "": an empty one
	work *workplace // what it builds; nil: nothing
}

// makeInstance makes one with what it begins with.
func (h *Host) makeInstance(ctx context.Context, m mechanism, o origin) (*instance, error) {
	from := o.from
	h.reopen(m)
	h.mu.Lock()
	h.next++
	i := &instance{host: h, how: m, work: o.work, name: fmt.Sprintf("%d-%s-%d", os.Getpid(), h.opened, h.next), born: time.Now()}
	var err error
	if m.ids {
		i.uid, err = h.uids.take()
	}
	h.mu.Unlock()
	if err != nil {
		return nil, err
	}
	err = errors.Join(i.makeFiles(from), i.makeWorkplace())
	if err == nil && from != "" {
		err = i.carry(from)
	}
	if err == nil {
		err = i.makePlan()
	}
	if err == nil && h.cgroups != nil {
		i.group, err = h.cgroups.Create("slot-"+i.name, h.config.Limits)
	}
	if err == nil {
		err = i.startHolder(ctx)
	}
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeDeadline)
		defer cancel()
		err = errors.Join(err, h.layout.giveBack(h.layout.instance(i.name), h.layout.held()))
		return nil, errors.Join(err, i.dispose(clean))
	}
	return i, nil
}

// reopen mends the way to the slots' files, which a slot can close where it runs
// as the agent's own uid and sees the agent's files.
func (h *Host) reopen(m mechanism) {
	if !m.ids && !m.namespaces {
		h.layout.reopen()
	}
}

// place is where the instance's files are, relative to the data directory.
func (i *instance) place() string {
	if i.inMemory {
		return filepath.Join("live", i.name, memoryDir)
	}
	return filepath.Join("live", i.name)
}

func (i *instance) dir(parts ...string) string {
	return i.host.layout.path(append([]string{i.place()}, parts...)...)
}

// makeFiles makes the instance's directories. Only what the slot may write is
// the slot's; the directory that holds them stays the agent's.
func (i *instance) makeFiles(from string) error {
	if err := i.roomFor(from); err != nil {
		return err
	}
	for name, mode := range map[string]os.FileMode{
		"workspace": 0o755, "tmp": os.ModeSticky | 0o777, "vartmp": os.ModeSticky | 0o777, "run": 0o700, "run/output": 0o700,
	} {
		if err := os.MkdirAll(i.dir(name), 0o700); err != nil {
			return fmt.Errorf("make sandbox directory: %w", err)
		}
		if err := os.Chmod(i.dir(name), mode); err != nil {
			return fmt.Errorf("make sandbox directory: %w", err)
		}
		if !i.how.ids {
			continue
		}
		if err := os.Chown(i.dir(name), i.uid, i.uid); err != nil {
			return fmt.Errorf("give sandbox directory to its slot: %w", err)
		}
	}
	if i.how.ids && !i.how.namespaces {
		// Without a mount namespace permissions alone keep neighbours out.
		for _, name := range []string{"workspace", "tmp", "vartmp"} {
			if err := os.Chmod(i.dir(name), 0o700); err != nil {
				return fmt.Errorf("close sandbox directory: %w", err)
			}
		}
	}
	return nil
}

// makePlan decides what the holder does to itself.
func (i *instance) makePlan() error {
	h, m := i.host, i.how
	p := &i.plan
	*p = holder.Plan{
		Slot: "slot", Dir: h.layout.dir, NoNewPrivs: m.confined, Threads: 8,
		Workspace: i.dir("workspace"), Run: i.dir("run"), Output: i.dir("run", "output"), Confine: h.layout.path("view", "agent"),
	}
	if m.namespaces {
		p.Namespaces = holder.Namespaces{User: m.userns, PID: true, Mount: true, IPC: true, UTS: true, Cgroup: true, Net: h.netns(m)}
		p.Workspace, p.Run, p.Output, p.Confine = viewWorkspace, viewRun, viewRun+"/output", viewAgent
		view, err := h.view(m, i.place())
		if err != nil {
			return err
		}
		if h.config.PrivateRoot {
			if err := i.layer(view); err != nil {
				return err
			}
		}
		view.Mounts = append(view.Mounts, i.environmentMounts()...)
		i.showHome(view)
		p.View = view
	}
	i.planIDs(p)
	if m.confined {
		p.OOMScoreAdj = 1000
		if h.cgroups != nil {
			p.MemoryBytes = h.config.Limits.MemoryBytes
		}
		p.Rlimits = i.rlimits()
		p.Landlock = i.landlock()
		p.Seccomp = &seccomp.Options{
			SharedIPC: !m.namespaces, SharedUID: !m.ids, AllowPtrace: m.namespaces,
			PortRules: p.Landlock != nil && p.Landlock.HidePort,
		}
	}
	p.Env = i.environment()
	return nil
}

func (i *instance) planIDs(p *holder.Plan) {
	switch {
	case i.how.userns:
		outsideUID, outsideGID := i.uid, i.uid
		if !i.how.ids {
			outsideUID, outsideGID = os.Geteuid(), os.Getegid()
		}
		p.IDs = holder.IDs{
			Switch: true, UID: insideID, GID: insideID,
			Map: []holder.IDMap{{Inside: insideID, OutsideUID: outsideUID, OutsideGID: outsideGID, Size: 1}},
		}
		if i.host.config.PrivateRoot {
			p.IDs = holder.IDs{
				Switch: true, Caps: rootCaps,
				Map: []holder.IDMap{{OutsideUID: outsideUID, OutsideGID: outsideGID, Size: privateWidth}},
			}
		}
	case i.how.ids:
		p.IDs = holder.IDs{Switch: true, UID: i.uid, GID: i.uid}
	case i.how.confined:
		p.IDs = holder.IDs{Bare: true}
	}
}

// rootCaps are what the root of a slot with a private root keeps, over its own
// files and processes only: what installing packages takes.
var rootCaps = []int{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL,
	unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_SETFCAP, unix.CAP_NET_BIND_SERVICE,
}

// netns reports whether slots get a network namespace of their own.
func (h *Host) netns(m mechanism) bool { return m.namespaces && !h.config.Network }

func (i *instance) rlimits() []holder.Rlimit {
	l := i.host.config.Limits
	limits := []holder.Rlimit{
		// Not 0: that leaves a host's piped handler to run. 1 forbids both.
		{Resource: unix.RLIMIT_CORE, Value: 1},
		{Resource: unix.RLIMIT_NOFILE, Value: uint64(l.OpenFiles)},
		{Resource: unix.RLIMIT_STACK, Value: uint64(l.StackBytes)},
		{Resource: unix.RLIMIT_MEMLOCK, Value: uint64(l.LockedBytes)},
		{Resource: unix.RLIMIT_SIGPENDING, Value: uint64(l.QueuedSignals)},
		{Resource: unix.RLIMIT_MSGQUEUE, Value: uint64(l.MsgQueueBytes)},
		{Resource: unix.RLIMIT_NICE, Value: 0},
		{Resource: unix.RLIMIT_RTPRIO, Value: 0},
	}
	pids := uint64(l.Pids)
	if !i.how.ids {
		// Descriptors on their way through sockets are counted for all slots and
		// the agent together: it has to have room above theirs, see holder.
		var own unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_NOFILE, &own) == nil && limits[1].Value > own.Max/2 {
			limits[1].Value = own.Max / 2
		}
	}
	if !i.how.ids && !i.how.userns {
		// Counted per uid, the agent's own threads and all slots together.
		pids = pids*uint64(i.host.config.Slots) + 1024
	}
	limits = append(limits, holder.Rlimit{Resource: unix.RLIMIT_NPROC, Value: pids})
	if l.FileBytes > 0 {
		limits = append(limits, holder.Rlimit{Resource: unix.RLIMIT_FSIZE, Value: uint64(l.FileBytes)})
	}
	if l.AddressBytes > 0 {
		limits = append(limits, holder.Rlimit{Resource: unix.RLIMIT_AS, Value: uint64(l.AddressBytes)})
	}
	return limits
}

func (i *instance) landlock() *holder.Landlock {
	h := i.host
	abi := h.facts.LandlockABI
	l := &holder.Landlock{
		ABI:      abi,
		Files:    i.how.files,
		Scope:    abi >= 6,
		HidePort: h.hidesPort() && !h.netns(i.how),
	}
	if l.Files {
		l.Read, l.ReadFiles = h.readable(i.how)
		l.Write = []string{i.dir("workspace"), i.dir("tmp"), i.dir("run")}
		l.ReadFiles = append(l.ReadFiles, i.plan.Confine)
		i.environmentRules(l)
		if home := h.homeOf(i.how); home != "" && i.work == nil {
			l.Write = append(l.Write, home)
		}
		for _, d := range devices {
			l.Device = append(l.Device, "/dev/"+d)
		}
	}
	if !l.Files && !l.Scope && !l.HidePort {
		return nil
	}
	return l
}

// apart is the word that keeps a process from looking into others of the slot.
func (i *instance) apart() string {
	if i.how.files {
		return holder.ConfineApartFiles
	}
	return holder.ConfineApart
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment is all that a process of the slot finds; nothing of the agent's
// own is in it.
func (i *instance) environment() []string {
	c := i.host.config
	share := c.Limits.CPUs
	if share == 0 {
		share = c.CPUs / float64(c.Slots)
	}
	n := strconv.Itoa(max(1, int(math.Round(share))))
	user := insideName
	if c.PrivateRoot {
		user = "root"
	}
	env := []string{
		"PATH=" + defaultPath, "HOME=" + i.plan.Workspace, "USER=" + user, "LOGNAME=" + user,
		"SHELL=/bin/bash", "TERM=dumb", "PWD=" + i.plan.Workspace,
		// Text is UTF-8, and all else is as in the C locale. LANG would say the
		// same and have every program load twelve files for it, not one.
		"LC_CTYPE=C.UTF-8",
	}
	// Programs that count the machine's CPUs start too many threads for a slot.
	for _, name := range []string{
		"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "GOMAXPROCS",
		"RAYON_NUM_THREADS", "CARGO_BUILD_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL",
	} {
		env = append(env, name+"="+n)
	}
	env = append(env, "MAKEFLAGS=-j"+n)
	if !i.how.namespaces {
		env = append(env, "TMPDIR="+i.dir("tmp"))
	}
	return append(env, c.Env...)
}

func (i *instance) startHolder(ctx context.Context) error {
	spawner, err := i.host.liveSpawner(ctx)
	if err != nil {
		return err
	}
	i.spawner = spawner
	i.holder, err = spawner.Spawn(ctx, i.plan, func(pid int) error {
		if i.group == nil {
			return nil
		}
		return i.group.Attach(pid)
	})
	return err
}

// end kills every process of the instance and proves that none is left. The
// checks are what a receipt says of it.
func (i *instance) end(ctx context.Context) []slots.Check {
	var checks []slots.Check
	if i.holder != nil {
		checks = append(checks, checked("holder ended", i.holder.Close(ctx)))
	}
	if i.group != nil {
		checks = append(checks, checked("cgroup empty", i.group.Close(ctx)))
	}
	if i.holder != nil && !i.how.namespaces {
		checks = append(checks, checked("no process left", i.sweepOutside(ctx)))
	}
	return checks
}

// sweepOutside ends what outlived its holder where no pid namespace did it.
func (i *instance) sweepOutside(ctx context.Context) error {
	spawner, err := i.host.liveSpawner(ctx)
	if err != nil {
		return err
	}
	left, err := spawner.Sweep(ctx, i.uid)
	if err != nil {
		return err
	}
	if spawner != i.spawner && !i.how.ids {
		return errors.New("the spawner that collected the slot's processes has ended, and nothing else tells them apart")
	}
	if left > 0 {
		return fmt.Errorf("%d processes could not be killed", left)
	}
	if i.how.ids {
		return removeIPC(ctx, i.uid)
	}
	return nil
}

// dispose ends the instance and throws its files away. The uid is used again
// only if nothing of it is left.
func (i *instance) dispose(ctx context.Context) error {
	var errs []error
	for _, c := range i.end(ctx) {
		if !c.OK {
			errs = append(errs, errors.New(c.Name+": "+c.Note))
		}
	}
	if err := i.host.layout.discard(i.name); err != nil {
		errs = append(errs, err)
	} else if i.inMemory {
		// Nobody may be left to empty the trash.
		releaseMemory(i.host.layout.path("trash", i.name))
	}
	i.retire(len(errs) == 0)
	return errors.Join(errs...)
}

// retire gives the uid back.
func (i *instance) retire(clean bool) {
	if !i.how.ids || !clean {
		return
	}
	i.host.mu.Lock()
	defer i.host.mu.Unlock()
	i.host.uids.give(i.uid)
}
