package keeper

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots"
)

// stress is many workers that do what comes to their mind with a few slots.
type stress struct {
	*harness
	slots   int
	tenants []atomic.Int64 // by slot: how many workers believe to hold its lease
	actions atomic.Int64
	// realTime keeps leases from expiring: a worker cannot stop believing in
	// its lease at the very moment of its end.
	realTime bool
}

// allowed lists, action by action, every error that the keeper may answer in
// a run without broken machines. "" is success.
var allowed = map[string]map[slots.Kind]bool{
	"acquire": {"": true, slots.KindConflict: true, slots.KindPoolExhausted: true, slots.KindDraining: true},
	"renew":   {"": true, slots.KindFenced: true, slots.KindLeaseExpired: true},
	"release": {"": true, slots.KindFenced: true, slots.KindDraining: true, slots.KindResetFailed: true},
	"call": {
		"": true, slots.KindFenced: true, slots.KindLeaseExpired: true, slots.KindInterrupted: true,
		slots.KindDraining: true, slots.KindQueueTimeout: true, slots.KindSlotLost: true,
	},
	"do": {
		"": true, slots.KindFenced: true, slots.KindLeaseExpired: true, slots.KindInterrupted: true,
		slots.KindDraining: true, slots.KindQueueTimeout: true,
	},
	"reset": {"": true, slots.KindFenced: true, slots.KindLeaseExpired: true, slots.KindDraining: true, slots.KindResetFailed: true},
}

func (s *stress) check(action string, got slots.Kind, err string) {
	s.actions.Add(1)
	assert.True(s.t, allowed[action][got], "%s answered %q: %s", action, got, err)
}

// worker does n random things. Whoever has a lease uses it for a while.
func (s *stress) worker(seed uint64, n int) {
	random := rand.New(rand.NewPCG(seed, seed))
	for range n {
		time.Sleep(time.Duration(random.IntN(2000)) * time.Microsecond)
		slotID := fmt.Sprintf("slot_%d", random.IntN(s.slots))
		switch random.IntN(6) {
		case 0, 1:
			s.rent(random, fmt.Sprintf("worker %d", seed))
		case 2, 3:
			s.use(random, slotID, nil)
		case 4:
			err := s.Do(context.Background(), slotID, nil, "read", time.Duration(random.IntN(3))*time.Millisecond, nil, nil, nil)
			s.check("do", kind(err), fmt.Sprint(err))
		case 5:
			_, err := s.Reset(context.Background(), slotID, nil)
			s.check("reset", kind(err), fmt.Sprint(err))
		}
	}
}

// rent takes any slot, uses it and gives it back or forgets it.
func (s *stress) rent(random *rand.Rand, trajectory string) {
	ttl := time.Duration(1+random.IntN(20)) * time.Millisecond
	if s.realTime {
		ttl = time.Hour
	}
	lease, err := s.AcquireAny(api.LeaseRequest{Trajectory: trajectory, TTLSeconds: ttl.Seconds()})
	s.check("acquire", kind(err), fmt.Sprint(err))
	if err != nil {
		return
	}
	tenants := &s.tenants[int(lease.SlotID[len("slot_")]-'0')]
	// The lease ends no later than this, so two overlaps are two leases.
	if held := tenants.Add(1); held != 1 {
		assert.Failf(s.t, "two leases", "%s has %d tenants", lease.SlotID, held)
	}
	end := lease.ExpiresAt.Add(-time.Nanosecond)
	for time.Now().Before(end) && random.IntN(8) > 0 {
		s.use(random, lease.SlotID, &lease)
	}
	if random.IntN(3) == 0 && !s.realTime {
		// It forgets the slot, and its belief ends right before the lease.
		time.Sleep(time.Until(end))
		tenants.Add(-1)
		return
	}
	tenants.Add(-1)
	_, err = s.Release(context.Background(), lease.SlotID, lease.Token, true)
	s.check("release", kind(err), fmt.Sprint(err))
}

// use sends one call, some with a caller that loses patience, some twice.
func (s *stress) use(random *rand.Rand, slotID string, lease *slots.Lease) {
	commands := []string{"true", "sleep 1ms", "sleep 3ms", "lost", "flood 3000"}
	c := call(commands[random.IntN(len(commands))])
	c.SlotID = slotID
	ctx, cancel := context.Background(), func() {}
	if lease != nil {
		c.Token = &lease.Token
		// Nobody waits beyond the lease: the belief in it would be wrong.
		ctx, cancel = context.WithDeadlineCause(ctx, lease.ExpiresAt.Add(-time.Nanosecond), errors.New("lease is over"))
	} else if random.IntN(4) == 0 {
		ctx, cancel = context.WithTimeoutCause(ctx, time.Duration(random.IntN(3))*time.Millisecond, errors.New("no patience"))
	}
	defer cancel()
	if random.IntN(4) == 0 {
		c.ExecutionID = fmt.Sprintf("%s-%d", slotID, random.IntN(1<<30))
		s.Submit(ctx, c)
	}
	if random.IntN(6) == 0 {
		c.Timeout = api.Seconds(0.001)
	}
	submit := s.Submit
	if random.IntN(2) == 0 {
		submit = s.Run
	}
	r, err := waited(ctx, submit(ctx, c))
	if err != nil || ctx.Err() != nil {
		return
	}
	if r.Metadata.ErrorKind == slots.KindConflict {
		// The twin has another timeout.
		return
	}
	s.check("call", r.Metadata.ErrorKind, r.Error)
}

func (s *stress) run(workers, n int) {
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() { s.worker(uint64(i), n) })
	}
	wg.Wait()
}

// settled waits until nothing is due any more and asserts that nothing is
// left: no call without an answer, no lease, no reset without an end.
func (s *stress) settled() {
	time.Sleep(time.Second)
	synctest.Wait()
	for i, v := range s.Slots() {
		assert.Equal(s.t, slots.StateAvailable, v.State, v.SlotID)
		assert.Zero(s.t, v.Queued, v.SlotID)
		assert.Nil(s.t, v.Lease, v.SlotID)
		assert.Nil(s.t, v.CurrentExecutionID, v.SlotID)
		assert.Empty(s.t, s.box(i).violations)
	}
	for i := range s.tenants {
		assert.Zero(s.t, s.tenants[i].Load())
	}
}

func TestStress(t *testing.T) {
	t.Parallel()
	seen := &recorder{}
	bubbleWith(t, Config{Slots: 4, QueueMax: 6, OpsMax: 2}, newStore(), seen, func(h *harness) {
		t := h.t
		for i := range 4 {
			h.box(i).set(func(f *fakeSandbox) { f.resetTakes = time.Millisecond })
		}
		s := &stress{harness: h, slots: 4, tenants: make([]atomic.Int64, 4)}
		s.run(8, 300)
		s.settled()
		assert.Greater(t, s.actions.Load(), int64(2000))
		assert.NotEmpty(t, seen.resets)
	})
}

func TestStressThroughADrain(t *testing.T) {
	t.Parallel()
	for seed := range 20 {
		bubble(t, Config{Slots: 3, QueueMax: 6, OpsMax: 2}, func(h *harness) {
			t := h.t
			s := &stress{harness: h, slots: 3, tenants: make([]atomic.Int64, 3)}
			var wg sync.WaitGroup
			wg.Go(func() { s.run(6, 50) })
			time.Sleep(time.Duration(seed) * 2 * time.Millisecond)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(seed)*time.Millisecond/2)
			defer cancel()
			err := h.Drain(ctx)
			if err != nil {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			wg.Wait()
			assert.Zero(t, h.Health().Queued)
		})
	}
}

// TestStressInRealTime is for the race detector, which sees more when threads
// really run side by side.
func TestStressInRealTime(t *testing.T) {
	t.Parallel()
	h := start(t, Config{Slots: 4, QueueMax: 6, OpsMax: 2}, newStore(), nil)
	require.NoError(t, h.WaitReady(t.Context()))
	s := &stress{harness: h, slots: 4, tenants: make([]atomic.Int64, 4), realTime: true}
	s.run(8, 100)
	h.stop(t)
}
