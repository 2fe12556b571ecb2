package sandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/slots"
	"berth/slots/quota"
	"berth/slots/workspace"
)

// DiskBackend is what holds slots to their disk limit.
type DiskBackend string

// The backends. With the first two the kernel refuses the write that goes
// beyond; the watcher sees it afterwards and ends the command.
const (
	DiskAuto    DiskBackend = ""        // project quota where it works, else the watcher
	DiskQuota   DiskBackend = "quota"   // project quota of the data directory's file system
	DiskTmpfs   DiskBackend = "tmpfs"   // files in memory, which count as the slot's
	DiskWatcher DiskBackend = "watcher" // looks while a command runs, and ends it
)

// diskAxis is what each of them is on slots.AxisDisk.
var diskAxis = map[DiskBackend]string{DiskQuota: "quota", DiskTmpfs: "tmpfs-size", DiskWatcher: "watcher"}

// memoryDir is where an instance's file system in memory is mounted, below the
// instance's directory: a mount point itself could not be renamed.
const memoryDir = "fs"

// takenDir holds the workspace that came with a file system in memory until
// it has its new owner.
const takenDir = "taken"

// ownFiles is how many files of an instance are not the slot's: its directories.
const ownFiles = 16

// openDisk finds what holds the disk limits. Without a limit nothing has to.
func (h *Host) openDisk() error {
	limits, wanted := h.config.Limits, h.config.Disk
	if limits.DiskBytes == 0 && limits.DiskFiles == 0 {
		return nil
	}
	var err error
	switch wanted {
	case DiskAuto, DiskQuota:
		h.quota, err = quota.Open(h.layout.dir)
		h.disk = DiskQuota
	case DiskTmpfs:
		err = h.proveMemory()
		h.disk = DiskTmpfs
	case DiskWatcher:
		h.disk = DiskWatcher
	default:
		return fmt.Errorf("open disk limits: unknown backend %q", wanted)
	}
	if err == nil {
		return nil
	}
	h.attempts = append(h.attempts, refusedDisk(h.disk, err))
	h.disk = DiskWatcher
	if wanted == DiskAuto {
		return nil
	}
	unmet := &UnmetError{Required: h.config.Require, Got: slots.NewIsolation(nil), Attempts: h.attempts}
	unmet.Required.Axes = maps.Clone(unmet.Required.Axes)
	if unmet.Required.Axes == nil {
		unmet.Required.Axes = slots.Axes{}
	}
	unmet.Required.Axes[slots.AxisDisk] = diskAxis[wanted]
	unmet.Shortfall = []slots.Shortfall{{Axis: string(slots.AxisDisk), Wanted: diskAxis[wanted], Got: diskAxis[DiskWatcher]}}
	return unmet
}

func refusedDisk(wanted DiskBackend, err error) Attempt {
	a := Attempt{Mechanism: "disk limit by " + string(wanted), Stage: "disk", Error: err.Error()}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		a.Errno = unix.ErrnoName(errno)
	}
	if u, ok := errors.AsType[*quota.UnavailableError](err); ok {
		a.Mend = u.Mend
	} else if errors.Is(err, unix.EPERM) {
		a.Mend = "run the agent with CAP_SYS_ADMIN over its own mounts: as root of the machine, or in a container with cap_add sys_admin"
	} else if errors.Is(err, unix.EACCES) {
		a.Mend = `docker security_opt "apparmor=unconfined", or a profile that allows mount`
	}
	return a
}

// diskReport says what holds the limit, for people.
func (h *Host) diskReport() string {
	switch h.disk {
	case DiskQuota:
		return "quota: the kernel refuses what goes beyond the limit"
	case DiskTmpfs:
		return "tmpfs: the kernel refuses what goes beyond the limit; files are in memory, count as the slot's, and end with the machine or container"
	case DiskWatcher:
		return "watcher: commands that go beyond the limit are ended a moment later, or told at their end; quota or --disk-backend tmpfs refuse at once"
	case DiskAuto:
	}
	return "none: no limit is set"
}

// proveMemory mounts once what every instance will need.
func (h *Host) proveMemory() error {
	at, err := os.MkdirTemp(h.layout.path("trash"), "memory-proof-")
	if err != nil {
		return fmt.Errorf("prove tmpfs: %w", err)
	}
	err = mountMemory(at, h.config.Limits, 0)
	if err == nil {
		err = unix.Unmount(at, unix.MNT_DETACH)
	}
	return errors.Join(err, os.Remove(at))
}

// mountMemory mounts a file system in memory, or, with MS_REMOUNT, gives one
// other limits.
func mountMemory(at string, l slots.Limits, flags uintptr) error {
	const page = 4096 // what the smallest file takes that is not empty
	files := l.DiskFiles
	if files == 0 {
		files = l.DiskBytes / page
	}
	options := fmt.Sprintf("mode=711,nr_inodes=%d", files+ownFiles)
	if l.DiskBytes > 0 {
		options += fmt.Sprintf(",size=%d", l.DiskBytes)
	}
	if err := unix.Mount("berth-slot", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|flags, options); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	return nil
}

// roomFor makes the instance's directory and puts it under its limit. With from
// it takes over the limit's accounting of an earlier instance.
func (i *instance) roomFor(from string) error {
	h, at := i.host, i.host.layout.instance(i.name)
	if err := checkKept(from, h.disk); err != nil {
		return err
	}
	if err := os.Mkdir(at, 0o711); err != nil {
		return fmt.Errorf("make sandbox directory: %w", err)
	}
	if from != "" {
		if err := os.Symlink(filepath.Base(from), filepath.Join(at, carriedFrom)); err != nil {
			return fmt.Errorf("carry workspace over: %w", err)
		}
	}
	l := h.config.Limits
	switch h.disk {
	case DiskQuota:
		return i.takeProject(at, from, quota.Limits{Bytes: l.DiskBytes, Files: filesOf(l)})
	case DiskTmpfs:
		i.inMemory = true
		if err := os.Mkdir(i.dir(), 0o711); err != nil {
			return fmt.Errorf("make sandbox directory: %w", err)
		}
		if from != "" {
			return i.takeMemory(filepath.Join(from, memoryDir))
		}
		return mountMemory(i.dir(), l, 0)
	case DiskAuto, DiskWatcher: // nothing is prepared
	}
	return nil
}

func filesOf(l slots.Limits) int64 {
	if l.DiskFiles == 0 {
		return 0
	}
	return l.DiskFiles + ownFiles
}

// takeProject claims a project, or goes on with the one that the files of from
// are counted under.
func (i *instance) takeProject(at, from string, l quota.Limits) (err error) {
	if from != "" {
		files := filepath.Join(from, "workspace")
		if i.project, err = quota.ProjectOf(files); err != nil {
			return err
		}
		if i.project != 0 {
			return i.host.quota.Adopt(at, i.project, l)
		}
	}
	if i.project, err = i.host.quota.Claim(at, l); err != nil || from == "" {
		return err
	}
	return quota.Move(i.host.ctx, filepath.Join(from, "workspace"), i.project)
}

// moveMemory moves the file system of an instance to another's directory. It is
// bound and detached, because one below a shared mount cannot be moved. An agent
// may end between the two: both then show the same files.
func moveMemory(from, to string) error {
	if !isMount(to) {
		if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("move tmpfs: %w", err)
		}
	}
	if err := unix.Unmount(from, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("move tmpfs: %w", err)
	}
	return nil
}

// takeMemory takes over the file system of an earlier instance, and of what is
// in it the workspace.
func (i *instance) takeMemory(from string) error {
	if err := moveMemory(from, i.dir()); err != nil {
		return err
	}
	if err := mountMemory(i.dir(), i.host.config.Limits, unix.MS_REMOUNT); err != nil {
		return err
	}
	top, err := os.Open(i.dir())
	if err != nil {
		return fmt.Errorf("take over tmpfs: %w", err)
	}
	defer top.Close()
	names, err := top.Readdirnames(-1)
	if slices.Contains(names, takenDir) { // an agent has ended in the middle of this
		err = errors.Join(err, workspace.RemoveAll(i.host.ctx, top, "workspace"), os.Rename(i.dir(takenDir), i.dir("workspace")))
		names = slices.DeleteFunc(names, func(name string) bool { return name == takenDir })
	}
	for _, name := range names {
		if name != "workspace" {
			err = errors.Join(err, workspace.RemoveAll(i.host.ctx, top, name))
		}
	}
	if err == nil {
		err = os.Rename(i.dir("workspace"), i.dir(takenDir))
	}
	if err != nil {
		return fmt.Errorf("empty what is taken over: %w", err)
	}
	return nil
}

// checkKept refuses what an earlier agent kept and this one cannot take over.
func checkKept(from string, disk DiskBackend) error {
	if from == "" {
		return nil
	}
	inner := filepath.Join(from, memoryDir)
	_, err := os.Lstat(inner)
	kept := err == nil
	switch {
	case kept && !isMount(inner):
		return slots.Errorf(slots.KindSlotLost, "the slot's files were in memory, which did not outlive the machine or container")
	case kept && disk != DiskTmpfs:
		return fmt.Errorf("the slot's files are in memory: start the agent with disk backend %s, or reset the slot", DiskTmpfs)
	case !kept && disk == DiskTmpfs:
		return fmt.Errorf("the slot's files are on disk: start the agent without disk backend %s, or reset the slot", DiskTmpfs)
	}
	return nil
}

// isMount reports whether something is mounted at the directory.
func isMount(dir string) bool {
	var at, above unix.Stat_t
	return unix.Lstat(dir, &at) == nil && unix.Lstat(filepath.Dir(dir), &above) == nil && at.Dev != above.Dev
}

// releaseMemory gives the memory of a discarded instance back whole. One whose
// files are on disk has nothing mounted there.
func releaseMemory(at string) {
	_ = unix.Unmount(filepath.Join(at, memoryDir), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
}

// throwAway deletes one directory of the trash, and with it what held its
// files to a limit.
func (h *Host) throwAway(ctx context.Context, trash *os.File, name string) {
	at := filepath.Join(trash.Name(), name)
	releaseMemory(at)
	var project uint32
	if h.quota != nil {
		project, _ = quota.ProjectOf(at) // what is no directory of ours has none
	}
	if err := workspace.RemoveAll(ctx, trash, name); err == nil && project != 0 {
		_ = h.quota.Release(project) // an id that keeps its limits is an id less of 2^30
	}
}

// full reports whether the instance's limit leaves room for hardly a page: a
// command that failed has then most likely failed for that.
func (i *instance) full() bool {
	const least = 16 << 10
	l := i.host.config.Limits
	switch i.host.disk {
	case DiskQuota:
		u, err := i.host.quota.Usage(i.project)
		return err == nil && (l.DiskBytes > 0 && u.Bytes > l.DiskBytes-least || l.DiskFiles > 0 && u.Files >= filesOf(l))
	case DiskTmpfs:
		var st unix.Statfs_t
		err := unix.Statfs(i.dir(), &st)
		return err == nil && (int64(st.Bfree)*st.Bsize < least || st.Ffree == 0)
	case DiskAuto, DiskWatcher: // nothing tells
	}
	return false
}
