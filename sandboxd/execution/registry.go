package execution

import (
	"bytes"
	"container/list"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"berth/sandboxd/api"
	"berth/slots"
)

// Defaults and bounds.
const (
	DefaultKeep      = 10 * time.Minute
	DefaultKeepBytes = 64 << 20
	MaxIDBytes       = 256
	MinKeepBytes     = 16 << 10
)

// Config says where the journal is and how long results are kept: until Keep
// or KeepBytes is exceeded, whichever comes first.
type Config struct {
	Journal   string        // directory, made if need be; "": memory only
	Keep      time.Duration // after the end of an execution; default DefaultKeep
	KeepBytes int64         // results in memory, and the journal on disk; default DefaultKeepBytes; a journal needs MinKeepBytes
	Logger    hclog.Logger  // default: none
}

// Recovery is what Open found in the journal.
type Recovery struct {
	Finished    int   // results that are answered again
	Interrupted int   // executions that had started and not finished
	TornBytes   int64 // skipped at the ends of segments
}

// Registry knows the executions that are under way and, for a time, those
// that have ended.
type Registry struct {
	keep      time.Duration
	keepBytes int64
	journal   *journal // nil: memory only
	recovery  Recovery
	log       hclog.Logger

	// mu guards all below and every run's state. No I/O happens under it.
	mu          sync.Mutex
	runs        map[string]*run
	finished    list.List // of *run, oldest first
	bytes       int64     // their sizes together
	withOutputs list.List // of *run: finished ones whose captures are held, oldest first
	held        outputs   // by their captures together
	timer       *time.Timer
	journalErr  error
	closed      bool
}

// Open makes a Registry. It reads the journal back: what had finished is
// answered again, what had started and not finished answers KindInterrupted.
func Open(config Config) (*Registry, error) {
	if config.Keep <= 0 {
		config.Keep = DefaultKeep
	}
	if config.KeepBytes <= 0 {
		config.KeepBytes = DefaultKeepBytes
	}
	if config.Logger == nil {
		config.Logger = hclog.NewNullLogger()
	}
	if config.Journal != "" && config.KeepBytes < MinKeepBytes {
		return nil, fmt.Errorf("open executions: %d bytes to keep are below the minimum of %d", config.KeepBytes, MinKeepBytes)
	}
	r := &Registry{keep: config.Keep, keepBytes: config.KeepBytes, log: config.Logger, runs: map[string]*run{}}
	if config.Journal == "" {
		return r, nil
	}
	journal, records, torn, err := openJournal(config.Journal, config.KeepBytes)
	if err != nil {
		return nil, fmt.Errorf("open executions: %w", err)
	}
	r.journal, r.recovery.TornBytes = journal, torn
	r.recover(records)
	if r.recovery != (Recovery{}) {
		r.log.Info("executions read back from the journal", "finished", r.recovery.Finished, "interrupted", r.recovery.Interrupted, "bytes_torn", r.recovery.TornBytes)
	}
	return r, nil
}

// recover makes runs of the records. Of each id the last record holds.
func (r *Registry) recover(records []record) {
	last := make(map[string]int, len(records))
	for i, rec := range records {
		last[rec.id] = i
	}
	now := time.Now()
	var ended, cut []record
	for i, rec := range records {
		switch {
		case last[rec.id] != i:
		case rec.event == eventStarted:
			cut = append(cut, rec)
		case now.Sub(rec.at) < r.keep:
			ended = append(ended, rec)
		}
	}
	for _, rec := range r.newest(ended) {
		r.recovery.Finished++
		// Clocks may have jumped since: nothing comes from the future.
		r.restore(rec, now.Add(-max(0, now.Sub(rec.at))))
	}
	r.interrupt(cut, now)
}

// newest is the end of the records that fits into memory.
func (r *Registry) newest(ended []record) []record {
	var sum int64
	for i, rec := range slices.Backward(ended) {
		if sum += sizeOf(rec.id, rec.result); sum > r.keepBytes {
			return ended[i+1:]
		}
	}
	return ended
}

// interrupt ends what ran when the journal broke off. It does so now, after
// all other ends: who ran it has only begun to ask. Writing the ends down is
// for the next restart, and can fail: until then the records of the starts
// say the same.
func (r *Registry) interrupt(started []record, now time.Time) {
	for _, rec := range started {
		r.recovery.Interrupted++
		result := api.Refused(rec.id, slots.Errorf(slots.KindInterrupted, "the agent ended while the execution ran"))
		rec.event, rec.at = eventFinished, now
		rec.result = encode(result)
		_ = r.record(rec)
		r.restore(rec, now)
	}
}

// restore makes a finished run of the record.
func (r *Registry) restore(rec record, finishedAt time.Time) {
	run := newRun(r, rec.id, rec.fingerprint)
	run.started, run.finishing = true, true
	r.mu.Lock()
	r.runs[rec.id] = run
	r.mu.Unlock()
	r.retain(run, bytes.Clone(rec.result), finishedAt)
	close(run.done)
	run.cancel(errEnded)
}

// Recovery is what Open found in the journal.
func (r *Registry) Recovery() Recovery { return r.recovery }

// Begin finds or makes the execution of the id; "" makes a new id. fresh is
// true for exactly one caller, who must call Finish. An id that stands for
// other content is refused with KindConflict, one that is too long or not
// UTF-8 with KindBadRequest. ctx is only looked at: a call whose caller has
// gone begins nothing.
func (r *Registry) Begin(ctx context.Context, id string, fingerprint [32]byte) (e *Execution, fresh bool, err error) {
	if len(id) > MaxIDBytes {
		return nil, false, slots.Errorf(slots.KindBadRequest, "execution_id must have at most %d bytes, got %d", MaxIDBytes, len(id))
	}
	if !utf8.ValidString(id) {
		return nil, false, slots.Errorf(slots.KindBadRequest, "execution_id must be UTF-8")
	}
	if ctx.Err() != nil {
		return nil, false, slots.Errorf(slots.KindInterrupted, "begin execution: %w", context.Cause(ctx)).WithExecuted(slots.ExecutedNever)
	}
	if id == "" {
		id = uuid.NewString()
	}
	made := newRun(r, id, fingerprint)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, false, slots.Errorf(slots.KindDraining, "the agent takes no more executions")
	}
	if old := r.runs[id]; old != nil && !old.voidLocked() {
		if old.fingerprint != fingerprint {
			return nil, false, slots.Errorf(slots.KindConflict, "execution_id was used for another call")
		}
		old.waiters++
		return &Execution{run: old, awaiting: true}, false, nil
	} else if old != nil {
		// It never started, so it has no output that would need releasing.
		r.forgetLocked(old)
	}
	r.runs[id] = made
	made.waiters = 1
	return &Execution{run: made, fresh: true, awaiting: true}, true, nil
}

// Get returns the execution of the id, running or kept.
func (r *Registry) Get(id string) (*Execution, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	run, ok := r.runs[id]
	if !ok {
		return nil, false
	}
	return &Execution{run: run}, true
}

// Len is how many executions are known, running or kept.
func (r *Registry) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.runs)
}

// JournalErr is why the last record could not be written, nil when it was.
func (r *Registry) JournalErr() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.journalErr
}

// record writes to the journal, if there is one.
func (r *Registry) record(rec record) error {
	if r.journal == nil {
		return nil
	}
	err := r.journal.add(rec)
	r.journaled(err)
	return err
}

// journaled notes how writing the journal went, and tells when that changes.
func (r *Registry) journaled(err error) {
	r.mu.Lock()
	was := r.journalErr
	r.journalErr = err
	told := (was == nil) == (err == nil) || r.closed // which ends the journal, and is no news
	r.mu.Unlock()
	switch {
	case told:
	case err != nil:
		r.log.Error("journal is not written: executions may be refused, and after a crash results are not known", "error", err)
	default:
		r.log.Info("journal is written again")
	}
}

// Close ends the journal and forgets what has ended. Executions that still
// run can finish, but in memory only: the journal says that they were
// interrupted.
func (r *Registry) Close() error {
	r.mu.Lock()
	r.closed = true
	if r.timer != nil {
		r.timer.Stop()
	}
	var drop captures
	for r.finished.Len() > 0 {
		drop = append(drop, r.forgetLocked(oldest(&r.finished))...)
	}
	r.mu.Unlock()
	if r.journal != nil {
		r.journal.close()
	}
	return drop.release()
}
