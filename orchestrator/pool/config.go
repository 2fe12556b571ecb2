package pool

import (
	"context"
	"iter"
	"time"

	"github.com/hashicorp/go-hclog"

	"berth/orchestrator/backend"
	"berth/sandboxd/api"
	"berth/slots"
)

// Remote is one container as the pool uses it. *client.Client is one. If it
// has a method Close(), that is called when the container is gone.
type Remote interface {
	AcquireAny(ctx context.Context, want api.LeaseRequest) (slots.Lease, error)
	Renew(ctx context.Context, slotID string, want api.LeaseRenewal) (slots.Lease, error)
	Release(ctx context.Context, slotID string, want api.LeaseRelease) (*slots.Receipt, error)
	Reset(ctx context.Context, slotID string, token *uint64) (slots.Receipt, error)
	Slots(ctx context.Context) ([]api.Slot, error)
	Health(ctx context.Context) (api.Health, error)
}

// Fleet is where containers come from. A backend.Backend is one.
type Fleet interface {
	Start(ctx context.Context, spec backend.Spec) (backend.Container, error)
	Stop(ctx context.Context, id string, grace time.Duration) error
	List(ctx context.Context) ([]backend.Container, error)
	Watch(ctx context.Context) iter.Seq[backend.Event]
	Duty(template string) backend.Duty
}

// asker is a Fleet that tells whoever scales a pool how many callers wait at
// this orchestrator.
type asker interface {
	Ask(template string, here backend.Demand)
}

// keeper is a Fleet that keeps what operators want of containers where all
// orchestrators see it: each learns of it by backend.Container.Wish.
type keeper interface {
	// Wish makes of the container's wish what change says, which may be called
	// several times, also with what it has returned, and leaves that as it is. It
	// returns the container as it is told of from now on, with its Version.
	Wish(ctx context.Context, id string, change func(backend.Wish) backend.Wish) (backend.Container, error)
}

// Connect makes the Remote of a container. It must not wait for anything.
type Connect func(backend.Container) (Remote, error)

// Observer is told what happens, for metrics. Its methods are called without
// any lock held and must not block; several at once.
type Observer interface {
	// Acquired tells of an acquire that ended: with a lease, or with err.
	Acquired(template string, waited time.Duration, err error)
	// Released tells of a release that ended.
	Released(template string, took time.Duration, err error)
	// Ended tells of a lease that ended without being released by this pool:
	// slots.KindLeaseExpired or slots.KindSlotLost.
	Ended(template string, kind slots.Kind)
	// Scaled tells of a decision to start and drain containers.
	Scaled(template string, start, drain int)
	// Started tells of a start that ended: with a container, or with err.
	Started(template string, err error)
}

// Bounds of what may be asked for. A container gives no longer leases; shorter
// ones may be over before whoever asked has heard of them.
const (
	MinTTL         = time.Second
	MaxTTL         = 24 * time.Hour
	DefaultMaxWait = time.Hour // of Config.MaxWait
)

// Config is what may be chosen about Pools. Zero fields mean the defaults.
type Config struct {
	Templates []Template // at least one
	Log       hclog.Logger
	Observer  Observer

	QueueMax int           // callers that may wait per pool; default 10 000
	MaxWait  time.Duration // longest wait that a caller may ask for; default DefaultMaxWait

	ProbeEvery   time.Duration // between two looks at a container; default 1 s
	SyncEvery    time.Duration // between two full readings of its slots at most; default 5 s
	ProbeTimeout time.Duration // of one look; default 5 s
	Misses       int           // failed looks in a row after which a container gets no new leases; default 3
	LostAfter    time.Duration // silence after which a container's calls are ended, and it is given up if it has no leases; default 1 minute

	GrantTimeout   time.Duration // for a container to answer an acquire; default 5 s
	ReleaseTimeout time.Duration // for a container to answer a release or reset; default 1 minute
	StartTimeout   time.Duration // for a container to start; default 2 minutes
	StopGrace      time.Duration // for what runs in a container that is stopped; default 10 s

	ScaleEvery time.Duration // between two decisions about the number of containers; default 0.5 s
	ResetTries int           // resets of a quarantined slot before it is given up; default 5
	Remember   time.Duration // how long a trajectory can hear that its lease ended; default 30 minutes
}

func orDefault[T comparable](v, byDefault T) T {
	var zero T
	if v == zero {
		return byDefault
	}
	return v
}

func (c Config) withDefaults() Config {
	if c.Log == nil {
		c.Log = hclog.NewNullLogger()
	}
	if c.Observer == nil {
		c.Observer = nobody{}
	}
	c.QueueMax = orDefault(c.QueueMax, 10_000)
	c.MaxWait = orDefault(c.MaxWait, DefaultMaxWait)
	c.ProbeEvery = orDefault(c.ProbeEvery, time.Second)
	c.SyncEvery = orDefault(c.SyncEvery, 5*time.Second)
	c.ProbeTimeout = orDefault(c.ProbeTimeout, 5*time.Second)
	c.Misses = orDefault(c.Misses, 3)
	c.LostAfter = orDefault(c.LostAfter, time.Minute)
	c.GrantTimeout = orDefault(c.GrantTimeout, 5*time.Second)
	c.ReleaseTimeout = orDefault(c.ReleaseTimeout, time.Minute)
	c.StartTimeout = orDefault(c.StartTimeout, 2*time.Minute)
	c.StopGrace = orDefault(c.StopGrace, 10*time.Second)
	c.ScaleEvery = orDefault(c.ScaleEvery, time.Second/2)
	c.ResetTries = orDefault(c.ResetTries, 5)
	c.Remember = orDefault(c.Remember, 30*time.Minute)
	return c
}

func (c Config) check() error {
	if len(c.Templates) == 0 {
		return slots.Errorf(slots.KindBadRequest, "there is no template")
	}
	names := map[string]bool{}
	for _, t := range c.Templates {
		if err := t.Check(); err != nil {
			return err
		}
		if names[t.Name] {
			return slots.Errorf(slots.KindBadRequest, "template %q is there twice", t.Name)
		}
		names[t.Name] = true
	}
	return nil
}

// nobody is an Observer that does not care.
type nobody struct{}

func (nobody) Acquired(string, time.Duration, error) {}
func (nobody) Released(string, time.Duration, error) {}
func (nobody) Ended(string, slots.Kind)              {}
func (nobody) Scaled(string, int, int)               {}
func (nobody) Started(string, error)                 {}
