package execution

import (
	"container/list"
	"errors"
	"time"

	"berth/slots/process"
)

// What bounds the outputs of finished executions. Results are kept longer
// than the outputs they were cut from.
const (
	runOverhead  = 1 << 10 // bytes that a run takes in memory besides its result
	outputsShare = 4       // outputs get 1/outputsShare of KeepBytes
	maxSpills    = 64      // open spill files
)

// outputs is what captures hold.
type outputs struct {
	bytes  int64 // memory
	spills int   // open files
	place  *list.Element
}

// captures are to be released once the registry's mutex is free: that closes
// files.
type captures []*process.Capture

// release also reports what closing the files said, for callers who can tell
// somebody.
func (c captures) release() error {
	var errs []error
	for _, capture := range c {
		errs = append(errs, capture.Release())
	}
	return errors.Join(errs...)
}

// sizeOf is what a finished run counts against KeepBytes.
func sizeOf(id string, encoded []byte) int64 {
	return int64(len(id)) + int64(len(encoded)) + runOverhead
}

func oldest(l *list.List) *run { return l.Front().Value.(*run) }

// retain sets the run's result and keeps it, unless another run took its id
// in the meantime.
func (r *Registry) retain(run *run, answer []byte, at time.Time) {
	r.mu.Lock()
	live := run.capturesLocked()
	r.mu.Unlock()
	for _, c := range live {
		// The end of a Capture cannot fail.
		_ = c.Close()
	}
	r.mu.Lock()
	run.stdout, run.stderr = kept(run.stdout), kept(run.stderr)
	run.answer, run.finishedAt, run.finished = answer, at, true
	run.size = sizeOf(run.id, answer)
	if !run.hasOutputs {
		run.hasOutputs = true
		close(run.attached)
	}
	var drop captures
	if r.runs[run.id] == run && !r.closed {
		r.keepLocked(run)
		drop = r.evictLocked(time.Now())
	} else {
		drop = r.releaseOutputsLocked(run)
	}
	r.mu.Unlock()
	// Output of the past; the spill's files are the slot's to clean up.
	_ = drop.release()
}

// kept is what is held of an ended stream: most have no output, and a window
// of their own costs as much memory as their result.
func kept(c *process.Capture) *process.Capture {
	if c != nil && c.Total() == 0 {
		return process.Silence()
	}
	return c
}

// keepLocked counts the finished run as kept.
func (r *Registry) keepLocked(run *run) {
	run.place = r.finished.PushBack(run)
	r.bytes += run.size
	for _, c := range run.capturesLocked() {
		run.outputs.bytes += c.Kept()
		if c.Spilled() > 0 {
			run.outputs.spills++
		}
	}
	if run.outputs.bytes > 0 {
		run.outputs.place = r.withOutputs.PushBack(run)
		r.held.bytes += run.outputs.bytes
		r.held.spills += run.outputs.spills
	}
	r.armLocked(time.Now())
}

// armLocked sets the timer for the end of the oldest kept run's time, unless
// it is set or there is none.
func (r *Registry) armLocked(now time.Time) {
	if r.timer == nil && r.finished.Len() > 0 && !r.closed {
		due := oldest(&r.finished).finishedAt.Add(r.keep)
		r.timer = time.AfterFunc(max(0, due.Sub(now)), r.expire)
	}
}

func (r *run) capturesLocked() captures {
	var all captures
	for _, c := range []*process.Capture{r.stdout, r.stderr} {
		if c != nil {
			all = append(all, c)
		}
	}
	return all
}

// expire runs when the time of a kept run is over, and sets the timer for the
// next.
func (r *Registry) expire() {
	now := time.Now()
	r.mu.Lock()
	r.timer = nil
	drop := r.evictLocked(now)
	r.armLocked(now)
	r.mu.Unlock()
	_ = drop.release()
	if r.journal == nil {
		return
	}
	if err := r.journal.expire(now.Add(-r.keep)); err != nil {
		r.journaled(err)
	}
}

// evictLocked forgets, oldest first, what is past its time or beyond the
// bounds. The newest result and output stay whatever their size: their caller
// may not have read them yet.
func (r *Registry) evictLocked(now time.Time) captures {
	var drop captures
	for r.finished.Len() > 0 {
		run := oldest(&r.finished)
		if now.Sub(run.finishedAt) < r.keep && (r.bytes <= r.keepBytes || r.finished.Len() == 1) {
			break
		}
		drop = append(drop, r.forgetLocked(run)...)
	}
	for r.withOutputs.Len() > 1 && (r.held.bytes > r.keepBytes/outputsShare || r.held.spills > maxSpills) {
		drop = append(drop, r.releaseOutputsLocked(oldest(&r.withOutputs))...)
	}
	return drop
}

// forgetLocked takes the run out of the registry. Handles on it stay valid.
func (r *Registry) forgetLocked(run *run) captures {
	if r.runs[run.id] == run {
		delete(r.runs, run.id)
	}
	if run.place != nil {
		r.finished.Remove(run.place)
		r.bytes -= run.size
		run.place = nil
	}
	return r.releaseOutputsLocked(run)
}

// releaseOutputsLocked gives up the captures of a finished run. Who follows
// them gets a gap up to their end.
func (r *Registry) releaseOutputsLocked(run *run) captures {
	if run.outputs.place != nil {
		r.withOutputs.Remove(run.outputs.place)
		r.held.bytes -= run.outputs.bytes
		r.held.spills -= run.outputs.spills
		run.outputs = outputs{}
	}
	if !run.finished {
		return nil
	}
	return run.capturesLocked()
}
