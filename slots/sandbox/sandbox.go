package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"berth/slots"
	"berth/slots/holder"
)

// Sandbox is one slot's sandbox. It stays the same object across resets.
type Sandbox struct {
	host *Host
	slot string

	resetting sync.Mutex // held through a reset; commands do not take it

	mu          sync.Mutex // guards what follows; nothing is awaited under it
	current     *instance
	spareNeeded func(bool)     // has the spare be made at once, or not at all
	spare       chan *instance // receives one instance, or is closed when none could be made
	generation  uint64
	shell       *shell
	warm        map[string]*line // processes that wait for a job, by interpreter
	revival     chan struct{}    // not nil while a dead holder is being replaced
	closed      bool
}

// The first spare leaves the machine to the slots of the container that are
// still to be opened; the next ones let the new tenant's first calls go first.
const (
	firstSparePause = 250 * time.Millisecond
	sparePause      = 5 * time.Millisecond
)

// NewSandbox makes the sandbox of a slot, and behind its back a spare for the
// first reset. The generation counts on from the one given.
func (h *Host) NewSandbox(ctx context.Context, slot string, generation uint64) (*Sandbox, error) {
	return h.open(ctx, slot, generation, false)
}

// makeSpare begins to make the next instance, after a pause that leaves the
// machine to whoever is waiting for something now, and not while the sandbox of
// another slot is being opened, unless this one is needed.
func (s *Sandbox) makeSpare(pause time.Duration) {
	ready, needed := make(chan *instance, 1), make(chan bool, 1)
	s.mu.Lock()
	s.spare = ready
	s.spareNeeded = func(wanted bool) {
		select {
		case needed <- wanted:
		default: // said before
		}
	}
	s.mu.Unlock()
	s.host.disposal.Go(func() {
		defer close(ready)
		for due := false; !due; {
			select {
			case <-time.After(pause):
				due = s.host.opening.Load() == 0
			case due = <-needed:
				if !due {
					return
				}
			case <-s.host.ctx.Done():
				return
			}
		}
		i, err := s.host.newInstance(s.host.ctx, s.host.how)
		if err == nil {
			ready <- i
		}
	})
}

// Workspace is the directory of the slot's files, as the agent sees it. The
// path is a link that a reset points elsewhere.
func (s *Sandbox) Workspace() string { return s.host.layout.path("slots", s.slot, "workspace") }

// Generation is how many times the slot has been reset.
func (s *Sandbox) Generation() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.generation
}

// live is the current instance with a holder that answers. A holder that has
// ended is replaced; the files stay.
func (s *Sandbox) live(ctx context.Context) (*instance, error) {
	s.mu.Lock()
	i, closed, revival := s.current, s.closed, s.revival
	i.host.reopen(i.how)
	if closed {
		s.mu.Unlock()
		return nil, slots.Errorf(slots.KindSlotLost, "the slot is closed").WithExecuted(slots.ExecutedNever)
	}
	select {
	case <-i.holder.Done():
	default:
		s.mu.Unlock()
		return i, nil
	}
	if revival == nil {
		s.revival = make(chan struct{})
	}
	s.mu.Unlock()
	if revival != nil {
		select {
		case <-revival:
			return s.live(ctx)
		case <-ctx.Done():
			return nil, slots.Errorf(slots.KindSlotLost, "the slot's holder is being replaced: %w", context.Cause(ctx)).WithExecuted(slots.ExecutedNever)
		}
	}
	return s.revive(ctx, i)
}

// revive gives an instance whose holder has ended a new one.
// Resets and Close wait for it, so the old one is the current one throughout.
func (s *Sandbox) revive(ctx context.Context, old *instance) (*instance, error) {
	// Others wait for it too: it goes on when this caller has gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*closeDeadline)
	defer cancel()
	next, err := old.again(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.revival)
	s.revival = nil
	if err != nil {
		return nil, slots.Errorf(slots.KindUnavailable, "replace the slot's holder: %w", err)
	}
	s.current = next
	return next, nil
}

// lockSettled locks s.mu at a moment when no holder is being replaced.
func (s *Sandbox) lockSettled() {
	for {
		s.mu.Lock()
		if s.revival == nil {
			return
		}
		revival := s.revival
		s.mu.Unlock()
		<-revival
	}
}

// again is the instance with a new holder on the same files.
func (i *instance) again(ctx context.Context) (*instance, error) {
	for _, c := range i.end(ctx) {
		if !c.OK {
			return nil, fmt.Errorf("%s: %s", c.Name, c.Note)
		}
	}
	next := &instance{host: i.host, how: i.how, name: i.name, uid: i.uid, plan: i.plan, inMemory: i.inMemory, project: i.project, born: time.Now()}
	if i.host.cgroups != nil {
		group, err := i.host.cgroups.Create("slot-"+i.name+"-"+fmt.Sprint(next.born.UnixNano()), i.host.config.Limits)
		if err != nil {
			return nil, err
		}
		next.group = group
	}
	if err := next.startHolder(ctx); err != nil {
		if next.group != nil {
			err = errors.Join(err, next.group.Close(ctx))
		}
		return nil, errors.Join(err, errors.New("its files are kept"))
	}
	return next, nil
}

// Run executes one command and waits for it: for its own process, for its
// output, and for the end of what it left behind. The end of ctx kills every
// process of the command; the cause says which outcome that is. Errors are
// *slots.Error.
func (s *Sandbox) Run(ctx context.Context, c Command) (exit slots.Exit, err error) {
	i, err := s.live(ctx)
	if err != nil {
		return slots.Exit{}, err
	}
	ctx, stop := i.watchDisk(ctx, aCommand)
	defer func() { tellDisk(&exit, stop()) }()
	return i.run(ctx, c)
}

// Do runs a file operation of package workspace as the slot, by name. Errors
// are *slots.Error.
func (s *Sandbox) Do(ctx context.Context, op string, args, reply any, in io.Reader, out io.Writer) (err error) { //nolint:revive // an operation has this many sides
	if err := wanted(ctx); err != nil {
		return err
	}
	i, err := s.live(ctx)
	if err != nil {
		return err
	}
	if in != nil { // it writes
		var stop func() bool
		ctx, stop = i.watchDisk(ctx, aCommand)
		defer func() {
			if stop() && err == nil {
				err = slots.Errorf(slots.KindTooLarge, "the slot's disk limit is passed by what was written").WithExecuted(slots.ExecutedYes)
			}
		}()
	}
	err = overDisk(ctx, i.holder.Do(ctx, op, args, reply, in, out))
	if _, typed := errors.AsType[*slots.Error](err); err == nil || typed {
		return err
	}
	switch {
	case errors.Is(err, holder.ErrGone):
		return slots.Errorf(slots.KindSlotLost, "the slot's holder ended: %w", err)
	case ctx.Err() != nil:
		return slots.Errorf(slots.KindInterrupted, "%w", err)
	}
	return slots.Errorf(slots.KindInternal, "%w", err)
}

// OpenSpill makes a file of the slot's for output that outgrows memory. The
// path is the slot's own name of it.
func (s *Sandbox) OpenSpill(ctx context.Context, name string) (*os.File, string, error) {
	i, err := s.live(ctx)
	if err != nil {
		return nil, "", err
	}
	f, path, err := i.holder.OpenFile(ctx, name)
	if err != nil {
		return nil, "", i.translate(err)
	}
	return f, path, nil
}

// Close ends every process of the slot. Its files stay until the host is
// opened again.
func (s *Sandbox) Close() error {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	s.mu.Unlock()
	if again {
		return nil
	}
	s.resetting.Lock() // a reset under way would leave what it puts in place
	defer s.resetting.Unlock()
	s.lockSettled()
	i, spare, needed := s.current, s.spare, s.spareNeeded
	s.shell = nil
	idle := s.coolLocked()
	s.mu.Unlock()
	endWarm(idle)
	ctx, cancel := context.WithTimeout(context.Background(), closeDeadline)
	defer cancel()
	var errs []error
	for _, c := range i.end(ctx) {
		if !c.OK {
			errs = append(errs, fmt.Errorf("close %s: %s: %s", s.slot, c.Name, c.Note))
		}
	}
	needed(false)
	if unused, ok := <-spare; ok {
		errs = append(errs, unused.dispose(ctx))
	}
	return errors.Join(errs...)
}
