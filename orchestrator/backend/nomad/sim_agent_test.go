package nomad_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	sandboxapi "berth/sandboxd/api"
	"berth/slots"
)

// pipes is a network in memory, so that a test that has its own time knows
// when everybody waits. No port is used twice.
type pipes struct {
	mu   sync.Mutex
	last int
	all  map[string]*pipeListener
}

type pipeListener struct {
	address *net.TCPAddr
	conns   chan net.Conn
	closed  chan struct{}
	close   func()
}

var errRefused = errors.New("connection refused")

func (n *pipes) listen() (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	l := &pipeListener{address: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: n.last}, conns: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	n.all[l.address.String()] = l
	return l, nil
}

func (n *pipes) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.all[address]
	n.mu.Unlock()
	if l == nil {
		return nil, errRefused
	}
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.closed:
		return nil, errRefused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// serveOver has the double be reached over a network in memory, and returns how.
func (d *double) serveOver(t *testing.T, n *pipes) *api.Config {
	t.Helper()
	d.listen = n.listen
	listener, err := n.listen()
	require.NoError(t, err)
	server := &http.Server{Handler: http.HandlerFunc(d.serve), ReadHeaderTimeout: time.Hour}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // until it is closed
	}()
	t.Cleanup(func() {
		d.end()
		_ = server.Close()
		<-served
	})
	at := api.DefaultConfig()
	at.Address = "http://" + listener.Addr().String()
	return at
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.close()
	return nil
}

func (l *pipeListener) Addr() net.Addr { return l.address }

// agent is the sandboxd of one allocation: it keeps leases by the rules of
// slots.Tenancy, as the real one does, and takes its time.
type agent struct {
	mu     sync.Mutex
	random *rand.Rand
	slots  []slots.Tenancy
	told   bool // to stop: it takes no more
	dead   bool
}

func newAgent(n int, seed uint64) *agent {
	a := &agent{random: rand.New(rand.NewPCG(seed, 1))} //nolint:gosec // of a test
	for i := range n {
		a.slots = append(a.slots, slots.Tenancy{SlotID: "slot_" + strconv.Itoa(i)})
	}
	return a
}

// leases are those of trajectories that hold now.
func (a *agent) leases() (all []slots.Lease) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.slots {
		if l := a.slots[i].Lease; l != nil && !a.slots[i].Expired(time.Now()) && strings.HasPrefix(l.Trajectory, "tr-") {
			all = append(all, *l)
		}
	}
	return all
}

// on carries a request out somewhere between its being sent and its answer.
func on[T any](ctx context.Context, a *agent, do func(now time.Time) (T, error)) (out T, err error) {
	a.mu.Lock()
	there, back := time.Duration(a.random.IntN(20))*time.Millisecond, time.Duration(a.random.IntN(20))*time.Millisecond
	a.mu.Unlock()
	pause(ctx, there)
	a.mu.Lock()
	if a.dead || ctx.Err() != nil {
		a.mu.Unlock()
		return out, slots.Errorf(slots.KindContainerUnreachable, "no answer")
	}
	for i := range a.slots {
		if a.slots[i].Expired(time.Now()) {
			a.slots[i].Lease = nil
		}
	}
	out, err = do(time.Now())
	a.mu.Unlock()
	pause(ctx, back)
	if ctx.Err() != nil {
		return out, slots.Errorf(slots.KindContainerUnreachable, "no answer in time")
	}
	return out, err
}

func (a *agent) slot(id string) (*slots.Tenancy, error) {
	for i := range a.slots {
		if a.slots[i].SlotID == id {
			return &a.slots[i], nil
		}
	}
	return nil, slots.Errorf(slots.KindNotFound, "unknown slot: %s", id)
}

// AcquireAny is pool.Remote's.
func (a *agent) AcquireAny(ctx context.Context, want sandboxapi.LeaseRequest) (slots.Lease, error) {
	return on(ctx, a, func(now time.Time) (slots.Lease, error) {
		if a.told {
			return slots.Lease{}, slots.Errorf(slots.KindDraining, "container is shutting down")
		}
		for i := range a.slots {
			if a.slots[i].Lease == nil {
				return a.slots[i].Acquire(now, want.Trajectory, time.Duration(want.TTLSeconds*float64(time.Second)), want.Labels)
			}
		}
		return slots.Lease{}, slots.Errorf(slots.KindPoolExhausted, "no slot is free")
	})
}

// Renew is pool.Remote's.
func (a *agent) Renew(ctx context.Context, id string, want sandboxapi.LeaseRenewal) (slots.Lease, error) {
	return on(ctx, a, func(now time.Time) (slots.Lease, error) {
		s, err := a.slot(id)
		if err != nil {
			return slots.Lease{}, err
		}
		ttl := time.Duration(want.TTLSeconds * float64(time.Second))
		if ttl == 0 && s.Lease != nil {
			ttl = s.Lease.TTL
		}
		return s.Renew(now, want.Token, max(ttl, 1))
	})
}

// Release is pool.Remote's.
func (a *agent) Release(ctx context.Context, id string, want sandboxapi.LeaseRelease) (*slots.Receipt, error) {
	return on(ctx, a, func(time.Time) (*slots.Receipt, error) {
		s, err := a.slot(id)
		if err != nil {
			return nil, err
		}
		return &slots.Receipt{Clean: true}, s.Release(want.Token)
	})
}

// Reset is pool.Remote's.
func (a *agent) Reset(ctx context.Context, id string, token *uint64) (slots.Receipt, error) {
	return on(ctx, a, func(now time.Time) (slots.Receipt, error) {
		s, err := a.slot(id)
		if err != nil {
			return slots.Receipt{}, err
		}
		return slots.Receipt{Clean: true}, s.Check(now, token)
	})
}

// Slots is pool.Remote's.
func (a *agent) Slots(ctx context.Context) ([]sandboxapi.Slot, error) {
	return on(ctx, a, func(time.Time) ([]sandboxapi.Slot, error) {
		var all []sandboxapi.Slot
		for i := range a.slots {
			one := sandboxapi.Slot{SlotID: a.slots[i].SlotID, State: slots.StateAvailable}
			if l := a.slots[i].Lease; l != nil {
				held := *l
				one.Lease = &held
			}
			all = append(all, one)
		}
		return all, nil
	})
}

// Health is pool.Remote's.
func (a *agent) Health(ctx context.Context) (sandboxapi.Health, error) {
	return on(ctx, a, func(time.Time) (sandboxapi.Health, error) {
		h := sandboxapi.Health{Status: sandboxapi.HealthOK, Slots: len(a.slots)}
		if a.told {
			h.Status = "draining"
		}
		for i := range a.slots {
			if a.slots[i].Lease != nil {
				h.Leased++
			}
		}
		return h, nil
	})
}

func (a *agent) String() string { return fmt.Sprintf("agent with %d leases", len(a.leases())) }
