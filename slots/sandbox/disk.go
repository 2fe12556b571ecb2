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
// holds more than its limit and more than it held at the beginning: who is
// over the limit may still tidy up. stop ends the watching.
func (i *instance) watchDisk(ctx context.Context) (_ context.Context, stop func()) {
	limits := i.host.config.Limits
	if limits.DiskBytes == 0 && limits.DiskFiles == 0 {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var firstBytes, firstFiles int64 = -1, -1
		for {
			began := time.Now()
			bytes, files, err := workspace.Usage(ctx, i.dir())
			if err == nil && firstBytes < 0 {
				firstBytes, firstFiles = bytes, files
			}
			if err == nil && (exceeds(bytes, firstBytes, limits.DiskBytes) || exceeds(files, firstFiles, limits.DiskFiles)) {
				cancel(ErrDiskLimited)
				return
			}
			pause := max(diskPause, 10*time.Since(began))
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}

func exceeds(now, first, limit int64) bool { return limit > 0 && now > limit && now > first }

// overDisk gives the error of an operation that the watcher has ended its
// kind.
func overDisk(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), ErrDiskLimited) {
		return slots.Errorf(slots.KindTooLarge, "the slot's disk limit is reached: %w", err).WithExecuted(slots.ExecutedMaybe)
	}
	return err
}
