package sandbox

import (
	"context"
	"errors"
	"time"

	"berth/slots"
	"berth/slots/workspace"
)

// diskPause is the shortest time between two looks at a slot's disk usage.
// A look costs a walk, so large trees are looked at less often.
const diskPause = 200 * time.Millisecond

// watchDisk ends the returned context with ErrDiskLimited once the instance
// holds more than its limit and more than when it was last looked at, before
// the command if need be: who is over the limit may still tidy up. stop ends
// the watching.
//
// What has grown while a command was at work is the command's: a terminal is
// not looked at meanwhile. What has grown while there were terminals only ends
// them all, for nobody can say which of them wrote. So one that writes while a
// command is at work may cost that its end, and meets its own when it writes on.
func (i *instance) watchDisk(ctx context.Context, who worker) (_ context.Context, stop func()) {
	leave := i.enter(who)
	if i.host.disk != DiskWatcher {
		return ctx, leave
	}
	if who == aCommand && i.present().terminal {
		i.noteDisk(ctx, (*atWork).beginLocked)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		w := diskWatch{in: i, who: who}
		// Most commands end before a second look. What the first one misses was
		// there before them.
		for look := i.visible; ; look = i.usage {
			began := time.Now()
			if w.look(ctx, look) {
				cancel(ErrDiskLimited)
				return
			}
			select {
			case <-time.After(max(diskPause, 10*time.Since(began))):
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() {
		limited := errors.Is(context.Cause(ctx), ErrDiskLimited)
		cancel(nil)
		<-done
		defer leave()
		if !limited && !i.present().terminal {
			return
		}
		i.noteDisk(context.WithoutCancel(ctx), func(a *atWork, now diskSize) {
			a.diskEnd = now
			if limited {
				// It went on writing until it was dead: the next command must not be
				// held to have grown by that.
				a.disk = now
			}
		})
	}
}

// noteDisk tells what the instance holds, if that can be found out soon.
func (i *instance) noteDisk(ctx context.Context, to func(a *atWork, now diskSize)) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	bytes, files, err := i.usage(ctx)
	if err != nil {
		return
	}
	i.atWork.mu.Lock()
	defer i.atWork.mu.Unlock()
	to(&i.atWork, diskSize{bytes, files})
}

// beginLocked has a command answer for what it writes, and for what the one
// before it wrote unseen, but not for what terminals did between the two.
func (a *atWork) beginLocked(now diskSize) {
	theirs := func(disk, end, now int64) int64 { return min(disk+max(0, now-end), now) }
	a.disk.bytes = theirs(a.disk.bytes, a.diskEnd.bytes, now.bytes)
	a.disk.files = theirs(a.disk.files, a.diskEnd.files, now.files)
}

// diskSize is what an instance holds.
type diskSize struct{ bytes, files int64 }

// beyond reports whether it is over a limit and more than before.
func (d diskSize) beyond(l slots.Limits, before diskSize) bool {
	return l.DiskBytes > 0 && d.bytes > max(l.DiskBytes, before.bytes) || l.DiskFiles > 0 && d.files > max(l.DiskFiles, before.files)
}

// diskWatch looks for one command, or for one terminal.
type diskWatch struct {
	in  *instance
	who worker

	// Of a terminal:
	looked   bool
	last     diskSize // at its last look
	commands int      // so many there were by then
}

// look reports whether who is watched has to end. What cannot be looked at has
// not grown.
func (w *diskWatch) look(ctx context.Context, how func(context.Context) (bytes, files int64, err error)) bool {
	before := w.in.present()
	if w.who == aTerminal && before.command {
		return false
	}
	bytes, files, err := how(ctx)
	if err != nil {
		return false
	}
	now := diskSize{bytes, files}
	if w.who == aCommand {
		return w.in.grewBeyond(now)
	}
	first, after := !w.looked, w.in.present()
	w.looked = true
	if after.command || after.commands != before.commands {
		return false
	}
	last := w.last
	if after.commands != w.commands {
		last = after.diskEnd
	}
	w.last, w.commands = now, after.commands
	return !first && now.beyond(w.in.host.config.Limits, last)
}

// visible is what the instance's directories show.
func (i *instance) visible(ctx context.Context) (bytes, files int64, err error) {
	return workspace.Usage(ctx, i.dir())
}

// usage is visible and what processes of the slot hold open after they have
// deleted it. The holder tells, where it can tell them from a neighbour's; it
// is untrusted, and can but raise the count.
func (i *instance) usage(ctx context.Context) (bytes, files int64, err error) {
	bytes, files, err = i.visible(ctx)
	alone := i.how.namespaces && i.how.proc == "fresh" || i.how.ids && !i.how.namespaces
	if err != nil || !alone {
		return bytes, files, err
	}
	ask, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var hidden workspace.DeletedReply
	if err := i.holder.Do(ask, "deleted", workspace.DeletedArgs{}, &hidden, nil, nil); err == nil {
		bytes, files = bytes+max(0, hidden.Bytes), files+max(0, hidden.Files)
	}
	return bytes, files, nil
}

// grewBeyond remembers what the instance holds, and reports whether that is
// over a limit and more than a command has met before.
func (i *instance) grewBeyond(now diskSize) bool {
	i.atWork.mu.Lock()
	defer i.atWork.mu.Unlock()
	grew := now.beyond(i.host.config.Limits, i.atWork.disk)
	i.atWork.disk = now
	return grew
}

// overDisk gives the error of an operation that the watcher has ended its
// kind.
func overDisk(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), ErrDiskLimited) {
		return slots.Errorf(slots.KindTooLarge, "the slot's disk limit is reached: %w", err).WithExecuted(slots.ExecutedMaybe)
	}
	return err
}
