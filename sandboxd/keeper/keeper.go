package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"berth/sandboxd/execution"
	"berth/sandboxd/tool"
	"berth/slots"
	"berth/slots/sandbox"
)

// Sandbox is what the keeper drives of a slot. Every method returns soon
// after ctx ends. A sandbox whose holder dies replaces it by itself and
// answers the calls it lost with slots.KindSlotLost.
type Sandbox interface {
	tool.Slot
	// OpenSpill makes the file that takes an output stream too long for
	// memory, and says under which path the slot sees it.
	OpenSpill(ctx context.Context, name string) (*os.File, string, error)
	// Terminal runs a process on a terminal, beside everything else, and
	// returns when it runs. The end of ctx ends it.
	Terminal(ctx context.Context, c sandbox.TerminalCommand) (sandbox.Terminal, error)
	// Reset makes the slot pristine. The receipt's generation is larger than
	// the one before. A receipt that is not clean, like an error, means that
	// nothing is known about the slot.
	Reset(ctx context.Context) (slots.Receipt, error)
	Close() error
}

// Deps are the collaborators of a Keeper.
type Deps struct {
	Logger   hclog.Logger        // nil discards
	Registry *execution.Registry // required
	Tools    *tool.Registry      // required
	// Open makes the sandbox of a slot: at the start, and again at a reset
	// when it failed before. files: with those that the slot had when the last
	// agent ended. Required.
	Open     func(ctx context.Context, slotID string, generation uint64, files bool) (Sandbox, error)
	Store    Store    // nil: files in Config.StateDir
	Observer Observer // nil: nobody is told
}

// Config is how a Keeper behaves. Zero fields mean the default.
type Config struct {
	Slots          int           // number of slots, named slot_0, slot_1, ...; default 1
	StateDir       string        // directory of the slots' records; needed without Deps.Store
	DefaultTimeout time.Duration // of a call that names none; default 30 s
	MaxTimeout     time.Duration // of any call; default 1 h
	QueueMax       int           // calls waiting in one slot; default 1024
	OpsMax         int           // Do calls at work in one slot; default 8
	TerminalsMax   int           // terminals of one slot; default 8
	ResetTimeout   time.Duration // after which a reset has failed; default 1 min
	DefaultTTL     time.Duration // of a lease that names none; default 5 min
	MaxTTL         time.Duration // of any lease; default 24 h
	OutputLimit    int64         // bytes of one output stream that end a call; 0: none
	SpillMax       int64         // bytes of one output stream kept in a file; 0: the capture's default

	// Isolation holds for every slot and is reported with every result.
	Isolation slots.Isolation
	// WorkspaceDir is a slot's workspace as the slot sees it; nil: /workspace.
	WorkspaceDir func(slotID string) string
	DataDir      string // reported by Health
	Version      string // reported by Health
}

// opsGrace is how long a reset waits for Do calls that it has cancelled. They
// cannot reach the new workspace, so a caller that does not give its upload
// up must not hold the reset either.
const opsGrace = 2 * time.Second

func (c Config) withDefaults() Config {
	c.Slots = orDefault(c.Slots, 1)
	c.MaxTimeout = orDefault(c.MaxTimeout, time.Hour)
	c.DefaultTimeout = min(orDefault(c.DefaultTimeout, 30*time.Second), c.MaxTimeout)
	c.QueueMax = orDefault(c.QueueMax, 1024)
	c.OpsMax = orDefault(c.OpsMax, 8)
	c.TerminalsMax = orDefault(c.TerminalsMax, 8)
	c.ResetTimeout = orDefault(c.ResetTimeout, time.Minute)
	c.MaxTTL = orDefault(c.MaxTTL, 24*time.Hour)
	c.DefaultTTL = min(orDefault(c.DefaultTTL, 5*time.Minute), c.MaxTTL)
	if c.WorkspaceDir == nil {
		c.WorkspaceDir = func(string) string { return "/workspace" }
	}
	return c
}

func orDefault[T ~int | ~int64](v, byDefault T) T {
	if v == 0 {
		return byDefault
	}
	return v
}

// Keeper keeps the slots of one container. All methods may be called at once.
type Keeper struct {
	Deps
	cfg     Config
	log     hclog.Logger
	slots   []*slot
	byID    map[string]*slot
	started time.Time
	next    atomic.Uint32 // where the search for a free slot begins

	ctx      context.Context         //nolint:containedctx // of what runs in slots, whoever asked for it
	cancel   context.CancelCauseFunc // ends it: slots must be left as they are
	draining atomic.Bool
	deadline atomic.Pointer[time.Time] // of the drain that is under way; nil: there is none
	over     chan struct{}             // has room for one: a lease has ended
	runners  sync.WaitGroup
	drained  func() error // once: close what the runners have left
}

// New loads the slots' records and starts their runners, which open the
// sandboxes side by side; WaitReady tells when they have. End it with Drain.
func New(deps Deps, cfg Config) (*Keeper, error) {
	if deps.Registry == nil || deps.Tools == nil || deps.Open == nil {
		panic("keeper.New needs a Registry, Tools and Open")
	}
	cfg = cfg.withDefaults()
	if deps.Store == nil {
		store, err := OpenFileStore(cfg.StateDir)
		if err != nil {
			return nil, fmt.Errorf("start keeper: %w", err)
		}
		deps.Store = store
	}
	if deps.Logger == nil {
		deps.Logger = hclog.NewNullLogger()
	}
	if deps.Observer == nil {
		deps.Observer = unobserved{}
	}
	k := &Keeper{
		Deps: deps, cfg: cfg, log: deps.Logger.Named("keeper"),
		byID: make(map[string]*slot, cfg.Slots), started: time.Now(), over: make(chan struct{}, 1),
	}
	k.drained = sync.OnceValue(k.closeSandboxes)
	for i := range cfg.Slots {
		id := fmt.Sprintf("slot_%d", i)
		record, err := deps.Store.Load(id)
		if err != nil {
			return nil, fmt.Errorf("start keeper: %w", err)
		}
		s := newSlot(k, id, record)
		k.slots = append(k.slots, s)
		k.byID[id] = s
	}
	k.ctx, k.cancel = context.WithCancelCause(context.Background())
	for _, s := range k.slots {
		k.runners.Go(func() { s.run(k.ctx) })
	}
	return k, nil
}

// WaitReady returns when every slot was opened and, where its record asked
// for it, reset. The error joins those of the slots that are quarantined.
func (k *Keeper) WaitReady(ctx context.Context) error {
	var failed []error
	for _, s := range k.slots {
		select {
		case <-s.opened:
		case <-ctx.Done():
			return fmt.Errorf("wait for slots: %w", context.Cause(ctx))
		}
		if err := s.quarantine(); err != nil {
			failed = append(failed, err)
		}
	}
	if k.draining.Load() {
		failed = append(failed, errDraining())
	}
	return errors.Join(failed...)
}

// Ready reports whether every slot was opened and the keeper takes work.
func (k *Keeper) Ready() bool {
	for _, s := range k.slots {
		select {
		case <-s.opened:
		default:
			return false
		}
	}
	return !k.draining.Load()
}

// slot finds a slot. The error's text is the reference's.
func (k *Keeper) slot(id string) (*slot, error) {
	if s, ok := k.byID[id]; ok {
		return s, nil
	}
	return nil, slots.Errorf(slots.KindNotFound, "Unknown slot: %.80s", id)
}

func errDraining() *slots.Error {
	return slots.Errorf(slots.KindDraining, "container is shutting down")
}

// Retire gives no new leases, and serves those that hold until each has ended:
// only then its slot takes no more work. It returns when none is left, or when
// ctx ends; leases that keep slots from everybody are not waited for. Drain is
// to follow, with the same ctx.
func (k *Keeper) Retire(ctx context.Context) {
	k.announce(ctx)
	for {
		left := false
		for _, s := range k.slots {
			left = s.retire() || left
		}
		if !left {
			return
		}
		select {
		case <-k.over:
		case <-ctx.Done():
			return
		}
	}
}

// announce says from now on that the keeper drains, and until when.
func (k *Keeper) announce(ctx context.Context) {
	if by, ok := ctx.Deadline(); ok {
		k.deadline.Store(&by)
	}
	k.draining.Store(true)
}

// Drain refuses new work and what still waits, gives what runs until ctx
// ends, then ends it, and closes the slots. Leases stay on record for the
// next start. It returns when nothing of the keeper runs any more; the error
// is that of closing, or ctx's when work had to be cut short. It may be called
// again, to shorten the time that an earlier call gave.
func (k *Keeper) Drain(ctx context.Context) error {
	k.announce(ctx)
	for _, s := range k.slots {
		s.drain()
	}
	gone := make(chan struct{})
	go func() {
		k.runners.Wait()
		close(gone)
	}()
	var cut error
	select {
	case <-gone:
	case <-ctx.Done():
		cut = fmt.Errorf("drain slots: %w", context.Cause(ctx))
		k.cancel(errDraining())
		for _, s := range k.slots {
			s.cut()
		}
		<-gone
	}
	return errors.Join(cut, k.drained())
}

// Close is Drain without patience.
func (k *Keeper) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := k.Drain(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// closeSandboxes runs after the last runner has returned.
func (k *Keeper) closeSandboxes() error {
	k.cancel(errDraining())
	var failed []error
	for _, s := range k.slots {
		failed = append(failed, s.close())
	}
	return errors.Join(failed...)
}
