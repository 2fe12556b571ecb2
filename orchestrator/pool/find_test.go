package pool_test

import (
	"context"
	"errors"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
	"berth/orchestrator/pool"
	"berth/slots"
)

// late is a seat of a fleet that hears of a container when it is asked for it.
type late struct {
	*seat
	refuse error         // what Find answers, if not nil
	lag    time.Duration // until Watch tells of what was found
	tells  chan backend.Event
}

func (l *late) List(context.Context) ([]backend.Container, error) { return nil, nil }

func (l *late) Watch(ctx context.Context) iter.Seq[backend.Event] {
	return func(yield func(backend.Event) bool) {
		for {
			select {
			case e := <-l.tells:
				if sleep(ctx, l.lag) != nil || !yield(e) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

func (l *late) Find(_ context.Context, id string) (up bool, err error) {
	if l.refuse != nil {
		return false, l.refuse
	}
	for _, c := range l.all() {
		if c.known.ID == id {
			l.tells <- backend.Event{Kind: backend.Up, Container: c.known}
			return true, nil
		}
	}
	return false, nil
}

// hearsLate is an orchestrator that knows nothing of what the fleet has, and a
// lease of another one's.
func hearsLate(t *testing.T) (l *late, p *pool.Pools, of pool.Lease) {
	t.Helper()
	f := newFleet()
	f.add("a", "t", 1)
	_, giving := join(t, f, fixed())
	l = &late{seat: &seat{fleet: f}, tells: make(chan backend.Event, 10)}
	p, err := pool.New(l, f.connect, pool.Config{Templates: []pool.Template{fixed()}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	pass(2 * time.Second)
	of = acquire(t, giving, "x")
	require.Empty(t, p.Containers())
	return l, p, of
}

// uses are what is done with a lease.
var uses = map[string]func(ctx context.Context, p *pool.Pools, ref pool.Ref) error{
	"locate": func(ctx context.Context, p *pool.Pools, ref pool.Ref) error {
		_, err := p.Locate(ctx, ref)
		return err
	},
	"renew": func(ctx context.Context, p *pool.Pools, ref pool.Ref) error {
		_, err := p.Renew(ctx, ref, 0)
		return err
	},
	"reset": func(ctx context.Context, p *pool.Pools, ref pool.Ref) error {
		_, err := p.Reset(ctx, ref)
		return err
	},
	"release": func(ctx context.Context, p *pool.Pools, ref pool.Ref) error {
		_, err := p.Release(ctx, ref, true)
		return err
	},
}

func TestALeaseHoldsWhereNobodyHasHeardOfItsContainer(t *testing.T) {
	for name, use := range uses {
		for _, lag := range []time.Duration{0, time.Second} {
			t.Run(name+" after "+lag.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l, p, held := hearsLate(t)
					l.lag = lag
					require.NoError(t, use(t.Context(), p, held.Ref()))
					require.Len(t, p.Containers(), 1)
					if name == "locate" {
						require.Len(t, p.Containers()[0].Slots, 1, "and its slots have been read")
						assert.Equal(t, held.Slot.Token, p.Containers()[0].Slots[0].Lease.Token)
					}
				})
			})
		}
	}
}

func TestALeaseIsNotLostAsLongAsNobodyCanSaySo(t *testing.T) {
	for name, use := range uses {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, p, held := hearsLate(t)
				l.refuse = errors.New("no route to host")
				err := use(t.Context(), p, held.Ref())
				assert.Equal(t, slots.KindContainerUnreachable, kind(err))
				require.ErrorContains(t, err, "no route to host")
				assert.True(t, slots.AsError(err).Retryable)
				assert.Equal(t, slots.ExecutedNever, slots.AsError(err).Executed)
				l.refuse, l.lag = nil, time.Hour
				assert.Equal(t, slots.KindContainerUnreachable, kind(use(t.Context(), p, held.Ref())), "it was found, and Watch does not tell")
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				assert.Equal(t, slots.KindInterrupted, kind(use(ctx, p, held.Ref())))
			})
		})
	}
}

func TestALeaseOfAContainerThatIsNotFoundIsLost(t *testing.T) {
	for name, use := range uses {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, p, held := hearsLate(t)
				l.kill("a", "exit status 2")
				assert.Equal(t, slots.KindSlotLost, kind(use(t.Context(), p, held.Ref())))
			})
		})
	}
}

func TestALeaseIsReleasedBeforeItsContainerWasRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p, held := hearsLate(t)
		a := l.all()[0]
		a.set(func() { a.lag = map[string]time.Duration{"slots": time.Second} })
		receipt, err := p.Release(t.Context(), held.Ref(), true)
		require.NoError(t, err)
		assert.True(t, receipt.Clean)
		assert.Equal(t, pool.ContainerReading, p.Containers()[0].State)
		assert.Zero(t, a.leased())
	})
}
