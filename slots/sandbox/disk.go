package sandbox

import (
	"context"
	"errors"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"berth/slots"
	"berth/slots/workspace"
)

// These are the shortest times between two looks at a slot's disk usage. A look
// costs a walk, so large trees are looked at less often.
const (
	diskPause       = 200 * time.Millisecond
	diskPauseBeyond = 20 * time.Millisecond // of a slot that is over its limit
)

// Nothing writes more than that in a second: so long it takes to a limit at
// least, except by fallocate, which the file system's free space tells.
const (
	diskBytesRate = 4 << 30
	diskFilesRate = 1 << 20
)

// watchDisk ends the returned context with ErrDiskLimited once the instance
// holds more than its limit and more than when it was last looked at, before
// the command if need be: who is over the limit may still tidy up. stop ends
// the watching, and tells whether that came to pass. It looks once more after a
// command that may have gone beyond unseen: most end before a second look.
//
// What has grown while a command was at work is the command's: a terminal is
// not looked at meanwhile. What has grown while there were terminals only ends
// them all, for nobody can say which of them wrote. So one that writes while a
// command is at work may cost that its end, and meets its own when it writes on.
func (i *instance) watchDisk(ctx context.Context, who worker) (_ context.Context, stop func() (over bool)) {
	leave := i.enter(who)
	if i.host.disk != DiskWatcher {
		return ctx, func() bool { leave(); return false }
	}
	if who == aCommand && i.present().terminal {
		i.noteDisk(ctx, (*atWork).beginLocked)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	w := diskWatch{in: i, who: who, since: time.Now()}
	go func() {
		defer close(done)
		// What the first one misses was there before.
		for look := i.visible; ; look = i.usage {
			began := time.Now()
			if w.over = w.look(ctx, look); w.over {
				cancel(ErrDiskLimited)
				return
			}
			select {
			case <-time.After(max(w.pause(), 10*time.Since(began))):
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() bool {
		defer leave()
		cancel(nil)
		<-done
		ctx := context.WithoutCancel(ctx)
		if w.over || i.present().terminal {
			i.noteDisk(ctx, func(a *atWork, now diskSize) {
				a.diskEnd = now
				if w.over {
					// It went on writing until it was dead: the next command must not be
					// held to have grown by that.
					a.disk = now
				}
			})
		}
		return w.over || w.lookLast(ctx)
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
	in    *instance
	who   worker
	since time.Time // what was written after that it has not looked at
	over  bool

	// Of a terminal:
	looked   bool
	last     diskSize // at its last look
	commands int      // so many there were by then
}

// look reports whether who is watched has to end. What cannot be looked at has
// not grown.
func (w *diskWatch) look(ctx context.Context, how func(context.Context) (bytes, files int64, err error)) bool {
	before, began := w.in.present(), time.Now()
	if w.who == aTerminal && before.command {
		return false
	}
	free := w.in.free()
	bytes, files, err := how(ctx)
	if err != nil {
		return false
	}
	now := diskSize{bytes, files}
	if w.who == aCommand {
		w.since = began
		return w.in.grewBeyond(now, free, time.Since(began))
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

// lookLast looks at what a command leaves behind, if it may be more than the
// limit and the look takes no longer than what it is to find out about: a large
// tree is not walked after each short command. What those before wrote unseen
// counts in.
func (w *diskWatch) lookLast(ctx context.Context) (over bool) {
	if w.who != aCommand {
		return false
	}
	free := w.in.free()
	a, l := &w.in.atWork, w.in.host.config.Limits
	a.mu.Lock()
	a.unseen += time.Since(w.since)
	due := a.mayBeBeyondLocked(l, free) && a.unseen >= a.diskTook
	a.mu.Unlock()
	if !due {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	over = w.look(ctx, w.in.visible)
	if ctx.Err() != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.diskTook, a.unseen = time.Second, 0 // not so soon again
	}
	return over
}

// pause is how long a look is good for.
func (w *diskWatch) pause() time.Duration {
	a := &w.in.atWork
	a.mu.Lock()
	defer a.mu.Unlock()
	if w.who == aCommand && a.disk.beyond(w.in.host.config.Limits, diskSize{}) {
		return diskPauseBeyond
	}
	return diskPause
}

// mayBeBeyondLocked reports whether the instance can have gone beyond a limit
// since it was last seen, by its time or by what has gone from the file system.
func (a *atWork) mayBeBeyondLocked(l slots.Limits, free int64) bool {
	return a.unseen >= a.soonestLocked(l) || l.DiskBytes > 0 && a.disk.bytes+a.diskFree-free > l.DiskBytes
}

// soonestLocked is how long it takes at least from what was last seen to a
// limit; 0: it is passed.
func (a *atWork) soonestLocked(l slots.Limits) time.Duration {
	soonest := time.Duration(math.MaxInt64)
	for _, x := range []struct{ limit, now, rate int64 }{{l.DiskBytes, a.disk.bytes, diskBytesRate}, {l.DiskFiles, a.disk.files, diskFilesRate}} {
		if x.limit > 0 {
			room := float64(max(0, x.limit-x.now)) / float64(x.rate)
			soonest = min(soonest, time.Duration(min(room, 3600)*float64(time.Second)))
		}
	}
	return soonest
}

// visible is what the instance's directories show.
func (i *instance) visible(ctx context.Context) (bytes, files int64, err error) {
	return workspace.Usage(ctx, i.dir())
}

// usage is visible and what processes of the slot hold open after they have
// deleted it. Where a holder can tell them from a neighbour's it tells; it is
// untrusted, and can but raise the count. Without namespaces and users of their
// own, where it may not look, the names that the files had tell whose they are.
func (i *instance) usage(ctx context.Context) (bytes, files int64, err error) {
	bytes, files, err = i.visible(ctx)
	if err != nil {
		return bytes, files, err
	}
	ask, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var hidden workspace.DeletedReply
	switch {
	case !i.how.namespaces && !i.how.ids:
		hidden, err = workspace.DeletedBelow(ask, i.dir())
	case i.how.ids && !i.how.namespaces || i.how.proc == "fresh":
		err = i.holder.Do(ask, "deleted", workspace.DeletedArgs{}, &hidden, nil, nil)
	}
	if err == nil {
		bytes, files = bytes+max(0, hidden.Bytes), files+max(0, hidden.Files)
	}
	return bytes, files, nil
}

// free is what all have left on the file system of the instance.
func (i *instance) free() int64 {
	var fs unix.Statfs_t
	if err := unix.Statfs(i.dir(), &fs); err != nil {
		return 0
	}
	return int64(fs.Bfree) * fs.Bsize //nolint:gosec // of a disk
}

// grewBeyond remembers what the instance holds, and reports whether that is
// over a limit and more than a command has met before.
func (i *instance) grewBeyond(now diskSize, free int64, took time.Duration) bool {
	i.atWork.mu.Lock()
	defer i.atWork.mu.Unlock()
	a := &i.atWork
	grew := now.beyond(i.host.config.Limits, a.disk)
	a.disk, a.diskFree, a.diskTook, a.unseen = now, free, took, 0
	return grew
}

// tellDisk gives the ending of a command that left more than the slot may hold
// that outcome, also where it ended by itself.
func tellDisk(e *slots.Exit, over bool) {
	if !over {
		return
	}
	e.DiskFull = true
	if e.Outcome == slots.OutcomeExited || e.Outcome == slots.OutcomeSignaled {
		e.Outcome = slots.OutcomeDiskLimited
	}
}

// overDisk gives the error of an operation that the watcher has ended its
// kind.
func overDisk(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), ErrDiskLimited) {
		return slots.Errorf(slots.KindTooLarge, "the slot's disk limit is reached: %w", err).WithExecuted(slots.ExecutedMaybe)
	}
	return err
}
