package nomadtest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
	"berth/slots"
)

// load is trajectories that lease slots of a pool and check all they get: that
// a slot is clean and nobody else's, and that what they did is there, once.
type load struct {
	cancel context.CancelFunc
	all    sync.WaitGroup

	mu      sync.Mutex // guards what follows
	pool    *client.Client
	holders map[string]string // trajectory, by container and slot
	wrong   []string          // what must never be
	losses  []loss
	refused []string // errors of acquires
	leases  int
	calls   int
}

// loss is a lease that its trajectory could not use until its end.
type loss struct {
	container string
	kind      slots.Kind
	words     string
	at        time.Time
}

// begin starts trajectories, so many at once. What they found is asserted by
// end.
func begin(t *testing.T, pool *client.Client, n int) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	l := &load{cancel: cancel, pool: pool, holders: map[string]string{}}
	for i := range n {
		l.all.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				l.play(ctx, fmt.Sprintf("%s-%d-%d", t.Name(), i, k), 3+(i+k)%8)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		l.all.Wait()
	})
	return l
}

// through is the pool that trajectories ask now.
func (l *load) through() *client.Client {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pool
}

// play is one trajectory.
func (l *load) play(ctx context.Context, name string, steps int) {
	pool := l.through()
	lease, err := pool.Acquire(ctx, poolapi.LeaseRequest{Trajectory: name, WaitS: 60, TTLSeconds: 60})
	if err != nil {
		if ctx.Err() == nil {
			l.note(func() { l.refused = append(l.refused, err.Error()) })
			wait(ctx, 100*time.Millisecond)
		}
		return
	}
	_, done := pool.Hold(ctx, lease)
	defer done()
	place := lease.Container + "/" + lease.SlotID
	l.note(func() {
		l.leases++
		if other := l.holders[place]; other != "" {
			l.wrong = append(l.wrong, fmt.Sprintf("slot %s of %s was given to %s", place, other, name))
		}
		l.holders[place] = name
	})
	lasting := context.WithoutCancel(ctx) // a lease is given back in any case
	err = l.steps(lasting, lease, name, steps)
	l.note(func() { delete(l.holders, place) })
	done()
	if err == nil {
		_, err = pool.Release(lasting, lease.ID)
	}
	if err != nil {
		l.note(func() {
			l.losses = append(l.losses, loss{lease.Container, slots.AsError(err).Kind, err.Error(), time.Now()})
		})
		_, _ = pool.Release(lasting, lease.ID) // it may be gone
	}
}

// steps are the calls of a trajectory.
func (l *load) steps(ctx context.Context, lease poolapi.Lease, name string, steps int) error {
	for n := range steps {
		command, want := "ls -A; echo "+name+" > owner; : > log", ""
		if n > 0 {
			command, want = "echo x >> log; wc -l < log; cat owner", fmt.Sprintf("%d\n%s", n, name)
		}
		args, err := json.Marshal(map[string]string{"command": command})
		if err != nil {
			return err
		}
		id := fmt.Sprintf("%s-%d", name, n)
		result, err := l.through().Execute(ctx, lease.ID, poolapi.Call{Tool: "bash", Args: args, ExecutionID: id, TimeoutS: api.Seconds(60)})
		if err != nil {
			return err
		}
		l.note(func() {
			l.calls++
			if got := strings.TrimSpace(result.Output); got != want || !result.Success || result.ExecutionID != id {
				l.wrong = append(l.wrong, fmt.Sprintf("call %s on %s: want %q, got %q %s", id, lease.Container, want, got, result.Error))
			}
		})
		wait(ctx, time.Duration(20+10*(n%5))*time.Millisecond)
	}
	return nil
}

func (l *load) note(what func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	what()
}

// progress waits until so many more leases were given.
func (l *load) progress(t *testing.T, more int) {
	t.Helper()
	count := func() (n int) {
		l.note(func() { n = l.leases })
		return n
	}
	from := count()
	require.Eventually(t, func() bool { return count() >= from+more }, patience, 20*time.Millisecond, "no more leases are given")
}

// end ends the trajectories and asserts that none saw anything wrong. It
// returns the leases that were lost.
func (l *load) end(t *testing.T) []loss {
	t.Helper()
	l.cancel()
	l.all.Wait()
	t.Logf("%d leases, %d calls, %d wrong, %d lost, %d refused", l.leases, l.calls, len(l.wrong), len(l.losses), len(l.refused))
	assert.Empty(t, l.wrong)
	assert.Empty(t, l.refused)
	assert.Positive(t, l.calls)
	return l.losses
}

// harmless asserts that no lease was lost.
func harmless(t *testing.T, losses []loss) {
	t.Helper()
	for _, one := range losses {
		assert.Fail(t, "a lease was lost", "%s in %s: %v: %s", one.at.Format(time.TimeOnly), one.container, one.kind, one.words)
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
