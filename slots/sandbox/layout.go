package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// layout is where things lie below the data directory:
//
//	live/<instance>/{workspace,tmp,vartmp,run}   one sandbox's files, for its whole life
//	live/<instance>/fs/{workspace,...}           the same in memory, mounted there
//	slots/<slot> -> ../live/<instance>[/fs]      whose files are the slot's now
//	kept/<instance>                              of an earlier agent's, until the slot is opened again
//	trash/<instance>                             of sandboxes that were, being deleted
//	view/{agent,passwd,group}                    shown inside slots
//	environments/                                read by every slot, see environmentsDir
//	root/                                        where holders mount their root, each its own
type layout struct{ dir string }

func (l layout) path(parts ...string) string {
	return filepath.Join(append([]string{l.dir}, parts...)...)
}

func (l layout) instance(name string) string { return l.path("live", name) }

// prepare makes the directories and sets aside whatever an earlier agent left.
// The data directory and those that lead to a workspace can be searched but not
// listed: slots with a uid of their own pass through.
func (l layout) prepare(exe string) error {
	if err := os.MkdirAll(l.dir, 0o711); err != nil {
		return fmt.Errorf("make data directory: %w", err)
	}
	for _, d := range layoutDirs {
		at := l.path(d.name)
		if err := os.MkdirAll(at, d.mode); err != nil {
			return fmt.Errorf("make data directory: %w", err)
		}
		if err := os.Chmod(at, d.mode); err != nil {
			return fmt.Errorf("make data directory: %w", err)
		}
	}
	if err := l.setAside(); err != nil {
		return err
	}
	if err := l.provideAgent(exe); err != nil {
		return fmt.Errorf("provide agent binary: %w", err)
	}
	return l.provideAccounts()
}

// layoutDirs are the directories with their modes, each after the one it is in.
var layoutDirs = []struct {
	name string
	mode os.FileMode
}{{"", 0o711}, {"live", 0o711}, {"slots", 0o711}, {"kept", 0o700}, {"trash", 0o700}, {"view", 0o711}, {"root", 0o755}, {environmentsDir, 0o711}}

// reopen gives the directories the modes back that a slot of the agent's own
// uid can take from them: without them no slot has any files.
func (l layout) reopen() {
	for _, d := range layoutDirs {
		at := l.path(d.name)
		if st, err := os.Stat(at); err == nil && st.Mode().Perm() != d.mode {
			_ = os.Chmod(at, d.mode) // what needs it says so
		}
	}
}

// discard moves an instance's files out of the way: constant time, whatever
// they are.
func (l layout) discard(name string) error {
	to := l.path("trash", name)
	err := os.Rename(l.instance(name), to)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("move files of %s to the trash: %w", name, err)
	}
	return nil
}

// emptyTrash deletes what was discarded. What cannot be deleted stays there,
// outside every slot's sight, for the next start to try.
func (h *Host) emptyTrash(ctx context.Context) {
	trash, err := os.Open(h.layout.path("trash"))
	if err != nil {
		return
	}
	defer trash.Close()
	names, err := trash.Readdirnames(-1)
	if err != nil {
		return
	}
	for _, name := range names {
		h.throwAway(ctx, trash, name)
	}
}

// point makes the slot's link lead to the instance's files, atomically.
func (l layout) point(slot, place string) error {
	next := l.path("slots", "."+slot)
	_ = os.Remove(next) // of an agent that ended in between
	if err := os.Symlink(filepath.Join("..", place), next); err != nil {
		return fmt.Errorf("link slot to its files: %w", err)
	}
	if err := os.Rename(next, l.path("slots", slot)); err != nil {
		return fmt.Errorf("link slot to its files: %w", err)
	}
	return nil
}

// provideAgent puts the agent's binary where slots may run it as the confine
// trampoline, whatever the permissions on the way to the original.
func (l layout) provideAgent(exe string) error {
	at := l.path("view", "agent")
	next := at + ".next"
	_ = os.Remove(next) // as above
	st, err := os.Stat(exe)
	if err != nil {
		return err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(l.dir, &fs); err != nil {
		return err
	}
	if fs.Flags&unix.ST_NOEXEC != 0 {
		// Nothing runs from here, as from a container's --tmpfs: slots run the
		// original, and have to be able to get at it.
		if exe, err = filepath.Abs(exe); err == nil {
			err = os.Symlink(exe, next)
		}
		if err != nil {
			return err
		}
		return os.Rename(next, at)
	}
	// A link has the original's permissions.
	if st.Mode().Perm()&0o005 != 0o005 || os.Link(exe, next) != nil {
		if err := copyFile(exe, next); err != nil {
			return err
		}
	}
	return os.Rename(next, at)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// The id that a slot in a user namespace has, and its name.
const (
	insideID   = 1000
	insideName = "slot"
)

// provideAccounts writes the container's passwd and group with a line for the
// slot's own id, so that programs which ask for the user's name get one.
func (l layout) provideAccounts() error {
	for _, f := range []struct{ name, line string }{
		{"passwd", fmt.Sprintf("%s:x:%d:%d:Berth slot:/workspace:/bin/bash\n", insideName, insideID, insideID)},
		{"group", fmt.Sprintf("%s:x:%d:\n", insideName, insideID)},
	} {
		text, err := os.ReadFile("/etc/" + f.name)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("read accounts: %w", err)
		}
		if !strings.Contains("\n"+string(text), fmt.Sprintf(":x:%d:", insideID)) {
			text = append([]byte(f.line), text...)
		}
		if err := os.WriteFile(l.path("view", f.name), text, 0o644); err != nil {
			return fmt.Errorf("write accounts: %w", err)
		}
	}
	return nil
}
