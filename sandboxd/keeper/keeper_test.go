package keeper

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/sandboxd/execution"
	"berth/sandboxd/tool"
	"berth/slots"
)

func TestDrainGivesWhatRunsItsTimeAndRefusesTheRest(t *testing.T) {
	t.Parallel()
	bubble(t, Config{Slots: 2}, func(h *harness) {
		t := h.t
		running, waiting := h.Submit(t.Context(), call("sleep 10s")), h.Submit(t.Context(), call("never"))
		op := make(chan error, 1)
		go func() { op <- h.Do(context.Background(), "slot_1", nil, "read", 15*time.Second, nil, nil, nil) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		drained := make(chan error)
		go func() { drained <- h.Drain(ctx) }()
		synctest.Wait()

		<-waiting.Done()
		assert.Equal(t, slots.KindDraining, waiting.Result().Metadata.ErrorKind)
		assert.Equal(t, slots.ExecutedNever, waiting.Result().Metadata.Executed)
		assert.True(t, *waiting.Result().Metadata.Retryable)
		assert.Equal(t, "draining", h.Health().Status)
		assert.False(t, h.Ready())
		assert.Equal(t, slots.KindDraining, h.run(call("new")).Metadata.ErrorKind)
		_, err := h.Reset(t.Context(), "slot_0", nil)
		assert.Equal(t, slots.KindDraining, kind(err))
		_, err = h.Acquire("slot_1", api.LeaseRequest{Trajectory: "a"})
		assert.Equal(t, slots.KindDraining, kind(err))
		_, err = h.AcquireAny(api.LeaseRequest{Trajectory: "a"})
		assert.Equal(t, slots.KindDraining, kind(err))
		assert.Equal(t, slots.KindDraining, kind(h.Do(t.Context(), "slot_1", nil, "read", nil, nil, nil, nil)))

		require.NoError(t, <-drained)
		assert.Equal(t, 15*time.Second, time.Since(start))
		assert.True(t, running.Result().Success)
		require.NoError(t, <-op)
		assert.Equal(t, slots.StateClosed, h.state(0))
	})
}

func TestDrainEndsWhatRunsWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	bubble(t, Config{Slots: 2}, func(h *harness) {
		t := h.t
		running := h.Submit(t.Context(), call("sleep 25s"))
		op := make(chan error, 1)
		go func() { op <- h.Do(context.Background(), "slot_1", nil, "read", time.Hour, nil, nil, nil) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		start := time.Now()
		require.ErrorIs(t, h.Drain(ctx), context.DeadlineExceeded)
		assert.Equal(t, 5*time.Second, time.Since(start))
		assert.Equal(t, slots.KindDraining, running.Result().Metadata.ErrorKind)
		assert.Equal(t, slots.OutcomeCancelled, running.Result().Metadata.Outcome)
		assert.Equal(t, slots.ExecutedYes, running.Result().Metadata.Executed)
		assert.Equal(t, slots.KindDraining, kind(<-op))
		assert.NoError(t, h.Drain(t.Context()), "once more does no harm")
	})
}

func TestASecondDrainShortensTheFirst(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(h *harness) {
		t := h.t
		h.Submit(t.Context(), call("sleep 25s"))
		synctest.Wait()
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { assert.NoError(t, h.Drain(context.Background())) })
		synctest.Wait()
		require.NoError(t, h.Close())
		wg.Wait()
		assert.Zero(t, time.Since(start))
	})
}

func TestLeasesAndGenerationsSurviveARestart(t *testing.T) {
	t.Parallel()
	store := newStore()
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Config{}, store, nil)
		require.NoError(t, h.WaitReady(t.Context()))
		_, err := h.Reset(t.Context(), "slot_0", nil)
		require.NoError(t, err)
		lease := h.lease(t, "a", time.Hour)
		h.stop(t)
		time.Sleep(20 * time.Minute)

		h = start(t, Config{}, store, nil)
		require.NoError(t, h.WaitReady(t.Context()))
		assert.EqualValues(t, 1, h.box(0).generation)
		assert.Zero(t, h.box(0).swaps())
		c := call("true")
		assert.Equal(t, slots.KindFenced, h.run(c).Metadata.ErrorKind)
		c.Token = &lease.Token
		assert.True(t, h.run(c).Success)
		time.Sleep(41 * time.Minute)
		synctest.Wait()
		assert.Equal(t, 1, h.box(0).swaps(), "and it ends when it would have")
		assert.Greater(t, h.lease(t, "b", time.Minute).Token, lease.Token)
		h.stop(t)
	})
}

func TestALeaseThatEndedWhileNobodyWatchedResetsTheSlotAtTheStart(t *testing.T) {
	t.Parallel()
	store := newStore()
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Config{}, store, nil)
		require.NoError(t, h.WaitReady(t.Context()))
		h.lease(t, "a", time.Minute)
		h.stop(t)
		time.Sleep(time.Hour)
		h = start(t, Config{}, store, nil)
		require.NoError(t, h.WaitReady(t.Context()))
		assert.Equal(t, 1, h.box(0).swaps())
		assert.Empty(t, h.Leases())
		h.stop(t)
	})
}

func TestALeaseEndsWithTheFilesThatItsSlotHasLost(t *testing.T) {
	t.Parallel()
	store := newStore()
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Config{}, store, nil)
		require.NoError(t, h.WaitReady(t.Context()))
		lease := h.lease(t, "a", time.Hour)
		h.stop(t)
		h = start(t, Config{}, store, nil, func(h *harness) { h.lost = true })
		require.NoError(t, h.WaitReady(t.Context()))
		assert.False(t, h.box(0).files)
		c := call("true")
		c.Token = &lease.Token
		r := h.run(c)
		assert.False(t, r.Success)
		assert.Equal(t, slots.KindFenced, r.Metadata.ErrorKind, "its tenant hears of it")
		assert.EqualValues(t, 1, h.Slots()[0].Generation, "the slot is as after a reset")
		assert.Empty(t, h.Leases())
		h.stop(t)
	})
}

func TestAResetThatACrashCutShortIsDoneAtTheStart(t *testing.T) {
	t.Parallel()
	store := newStore()
	require.NoError(t, store.Save("slot_0", Record{Generation: 7, ResetDue: true, Tenancy: slots.Tenancy{LastToken: 4}}))
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Config{}, store, nil)
		require.NoError(t, h.WaitReady(t.Context()))
		assert.Equal(t, 1, h.box(0).swaps())
		assert.EqualValues(t, 8, h.Slots()[0].Generation)
		assert.EqualValues(t, 5, h.lease(t, "a", time.Minute).Token)
		record, err := store.Load("slot_0")
		require.NoError(t, err)
		assert.False(t, record.ResetDue)
		h.stop(t)
	})
}

func TestAReleaseDuringADrainIsMadeGoodAtTheNextStart(t *testing.T) {
	t.Parallel()
	store := newStore()
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Config{}, store, nil)
		require.NoError(t, h.WaitReady(t.Context()))
		lease := h.lease(t, "a", time.Hour)
		c := call("sleep 10s")
		c.Token = &lease.Token
		h.Submit(t.Context(), c)
		synctest.Wait()
		go func() { _ = h.Drain(context.Background()) }()
		synctest.Wait()
		_, err := h.Release(t.Context(), "slot_0", lease.Token, true)
		assert.Equal(t, slots.KindDraining, kind(err))
		time.Sleep(time.Minute)
		h.stop(t)
		h = start(t, Config{}, store, nil)
		require.NoError(t, h.WaitReady(t.Context()))
		assert.Empty(t, h.Leases())
		assert.Equal(t, 1, h.box(0).swaps())
		h.stop(t)
	})
}

func TestCallsBeforeTheSlotIsOpenWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Config{}, newStore(), nil, func(h *harness) { h.opening = time.Second })
		assert.False(t, h.Ready())
		assert.Equal(t, "starting", h.Health().Status)
		e := h.Submit(t.Context(), call("true"))
		_, err := h.Acquire("slot_0", api.LeaseRequest{Trajectory: "a"})
		assert.Equal(t, slots.KindConflict, kind(err))
		begun := time.Now()
		require.NoError(t, h.Do(t.Context(), "slot_0", nil, "read", nil, nil, nil, nil))
		assert.Equal(t, time.Second, time.Since(begun))
		r, err := waited(t.Context(), e)
		require.NoError(t, err)
		assert.True(t, r.Success)
		h.stop(t)
	})
}

func TestAKeeperCanBeClosedWhileItStarts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := start(t, Config{Slots: 3}, newStore(), nil, func(h *harness) { h.opening = time.Hour })
		synctest.Wait()
		begun := time.Now()
		h.stop(t)
		assert.Zero(t, time.Since(begun))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		assert.Error(t, h.WaitReady(ctx))
	})
}

func TestHealthAndSlotsShowWhatIsGoingOn(t *testing.T) {
	t.Parallel()
	cfg := Config{Slots: 3, DataDir: "/data", Version: "1.2", WorkspaceDir: func(id string) string { return "/w/" + id }}
	bubble(t, cfg, func(h *harness) {
		t := h.t
		time.Sleep(90 * time.Second)
		running := h.Submit(t.Context(), call("sleep 10s"))
		h.Submit(t.Context(), call("true"))
		lease, err := h.Acquire("slot_2", api.LeaseRequest{Trajectory: "a", Labels: map[string]string{"k": "v"}})
		require.NoError(t, err)
		synctest.Wait()
		assert.Equal(t, api.Health{
			Status: "ok", Slots: 3, Available: 2, Executing: 1, Leased: 1, Queued: 1,
			DataDir: "/data", Version: "1.2", UptimeS: 90,
		}, h.Health())
		id := running.ID()
		assert.Equal(t, []api.Slot{
			{SlotID: "slot_0", State: slots.StateExecuting, WorkspaceDir: "/w/slot_0", CurrentExecutionID: &id, Queued: 1},
			{SlotID: "slot_1", State: slots.StateAvailable, WorkspaceDir: "/w/slot_1"},
			{SlotID: "slot_2", State: slots.StateAvailable, WorkspaceDir: "/w/slot_2", Lease: &lease},
		}, h.Slots())
	})
}

type recorder struct {
	mu     sync.Mutex
	ended  []string
	resets []time.Duration
}

func (r *recorder) ExecutionEnded(tool string, result *api.Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	how := "ok"
	switch m := result.Metadata; {
	case m.ErrorKind != "":
		how = string(m.ErrorKind)
	case m.Receipt != nil:
		how = string(m.Outcome)
	}
	r.ended = append(r.ended, tool+" "+how)
}

func (r *recorder) ResetEnded(_ bool, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resets = append(r.resets, took)
}

func TestTheObserverIsToldOfEachCallOnce(t *testing.T) {
	t.Parallel()
	seen := &recorder{}
	bubbleWith(t, Config{}, newStore(), seen, func(h *harness) {
		t := h.t
		c := call("true")
		c.ExecutionID = "id"
		h.run(c)
		h.run(c)
		h.run(call("lost"))
		c = call("sleep 9s")
		c.Timeout = api.Seconds(1)
		h.run(c)
		h.run(api.Call{SlotID: "slot_0", Tool: "made up"})
		h.run(api.Call{SlotID: "slot_0", Tool: "glob", Args: []byte(`{"pattern":"*"}`)})
		_, err := h.Reset(t.Context(), "slot_0", nil)
		require.NoError(t, err)
		assert.Equal(t, []string{"bash exited", "bash slot_lost", "bash timed_out", "unknown bad_request", "glob ok"}, seen.ended)
		assert.Len(t, seen.resets, 1)
	})
}

func TestNewSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	registry, err := execution.Open(execution.Config{})
	require.NoError(t, err)
	assert.Panics(t, func() { _, _ = New(Deps{}, Config{}) })
	deps := Deps{
		Registry: registry, Tools: tool.New(), Store: brokenStore{},
		Open: func(context.Context, string, uint64, bool) (Sandbox, error) { return nil, errors.New("never") },
	}
	_, err = New(deps, Config{})
	require.EqualError(t, err, "start keeper: unreadable")
	deps.Store = nil
	_, err = New(deps, Config{StateDir: "/dev/null/x"})
	assert.ErrorContains(t, err, "start keeper: open slot store")
}

type brokenStore struct{}

func (brokenStore) Load(string) (Record, error) { return Record{}, errors.New("unreadable") }
func (brokenStore) Save(string, Record) error   { return nil }

func TestASlotKeepsItsFilesUnlessItIsDueForAReset(t *testing.T) {
	t.Parallel()
	store := newStore()
	require.NoError(t, store.Save("slot_0", Record{Generation: 2}))
	require.NoError(t, store.Save("slot_1", Record{Generation: 2, ResetDue: true}))
	bubbleWith(t, Config{Slots: 2}, store, nil, func(h *harness) {
		t := h.t
		require.NoError(t, h.WaitReady(t.Context()))
		assert.True(t, h.box(0).files)
		assert.False(t, h.box(1).files)
		assert.Equal(t, 1, h.box(1).swaps())
	})
}
