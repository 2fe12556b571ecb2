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
func (i *instance) watchDisk(ctx context.Context) (_ context.Context, stop func()) {
	limits := i.host.config.Limits
	if i.host.disk != DiskWatcher {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Most commands end before a second look. What the first one misses was
		// there before them.
		for look := i.visible; ; look = i.usage {
			began := time.Now()
			bytes, files, err := look(ctx)
			if err == nil && i.grewBeyond(limits, bytes, files) {
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
		cancel(nil)
		<-done
		if !errors.Is(context.Cause(ctx), ErrDiskLimited) {
			return
		}
		// It went on writing until it was dead: the next command must not be
		// held to have grown by that.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if bytes, files, err := i.usage(last); err == nil {
			i.grewBeyond(limits, bytes, files)
		}
	}
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

// grewBeyond remembers what the instance holds and reports whether that is
// over a limit and more than before.
func (i *instance) grewBeyond(l slots.Limits, bytes, files int64) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	grew := l.DiskBytes > 0 && bytes > max(l.DiskBytes, i.diskBytes) || l.DiskFiles > 0 && files > max(l.DiskFiles, i.diskFiles)
	i.diskBytes, i.diskFiles = bytes, files
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
