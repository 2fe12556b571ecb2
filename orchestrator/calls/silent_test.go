package calls_test

import (
	"context"
	"encoding/json"
	"iter"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
	"berth/orchestrator/backend/memory"
	"berth/orchestrator/calls"
	"berth/orchestrator/dispatch"
	"berth/orchestrator/pool"
	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/sandboxd/client"
	"berth/slots"
)

// A container whose agent is stopped takes connections and answers nothing, so
// that nothing breaks a call but its own end.
func TestCallsInASilentContainerEndLongBeforeTheLease(t *testing.T) {
	a := agenttest.Start(t, agenttest.Options{Level: slots.LevelNone, Slots: 2})
	fleet := memory.New(memory.Config{URL: func(string, int) string { return a.URL }})
	t.Cleanup(func() { assert.NoError(t, fleet.Close()) })
	connect := func(c backend.Container) (*client.Client, error) {
		return client.New(client.Config{URL: c.URL, Token: a.Token})
	}
	const lostAfter = 2 * time.Second
	pools, err := pool.New(fleet, func(c backend.Container) (pool.Remote, error) { return connect(c) }, pool.Config{
		Templates:  []pool.Template{{Name: "t", Slots: 2, MinContainers: 1, MaxContainers: 1, TTL: 10 * time.Minute}},
		ProbeEvery: 100 * time.Millisecond, ProbeTimeout: 300 * time.Millisecond, LostAfter: lostAfter,
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, pools.Close()) })
	carrier := calls.New(pools, calls.Config{Template: "t", Connect: connect})
	t.Cleanup(func() { assert.NoError(t, carrier.Close(context.Background())) })
	var leases []pool.Lease
	for _, who := range []string{"x", "y"} {
		lease, err := pools.Acquire(t.Context(), pool.Request{Template: "t", Trajectory: who, Wait: 30 * time.Second})
		require.NoError(t, err)
		leases = append(leases, lease)
	}
	bash := func(id, command string) dispatch.Call {
		args, err := json.Marshal(map[string]string{"command": command})
		require.NoError(t, err)
		return dispatch.Call{Call: api.Call{Tool: "bash", ExecutionID: id, Args: args}}
	}
	freeze := func(signal syscall.Signal) { require.NoError(t, syscall.Kill(a.PID, signal)) }

	answer, err := carrier.Do(t.Context(), leases[0], bash("long", "sleep 3; echo well"))
	require.NoError(t, err, "a call may take longer than a silence")
	assert.Equal(t, "well", answer.Result.Output)

	running := make(chan *slots.Error, 2)
	go func() {
		_, err := carrier.Do(t.Context(), leases[0], bash("a", "echo run >> runs; sleep 1; cat runs"))
		running <- slots.AsError(err)
	}()
	begun := make(chan struct{})
	go func() {
		_, err := carrier.Stream(t.Context(), leases[1], bash("b", "echo b; sleep 1"), func(events iter.Seq2[api.Event, error], _ func(api.Result) dispatch.Timing) (api.Result, error) {
			for e, err := range events {
				switch {
				case err != nil:
					return api.Result{}, err
				case e.Name == api.EventResult:
					return *e.Result, nil
				case e.Name == api.EventChunk:
					close(begun)
				}
			}
			return api.Result{}, nil
		})
		running <- slots.AsError(err)
	}()
	<-begun
	require.Eventually(t, func() bool {
		_, state, err := a.Result(t.Context(), calls.ExecutionID(leases[0].Ref(), "a"))
		return err == nil && state == api.StateRunning
	}, 30*time.Second, 5*time.Millisecond)
	freeze(syscall.SIGSTOP)
	t.Cleanup(func() { freeze(syscall.SIGCONT) })
	frozen := time.Now()
	for range 2 {
		select {
		case e := <-running:
			require.NotNil(t, e)
			assert.Equal(t, slots.KindContainerUnreachable, e.Kind, e.Message)
			assert.Equal(t, slots.ExecutedMaybe, e.Executed)
			assert.True(t, e.Retryable)
			assert.Contains(t, e.Message, "is silent")
			assert.Greater(t, time.Since(frozen), lostAfter/2)
		case <-time.After(time.Minute):
			t.Fatal("the call hangs")
		}
	}
	_, err = carrier.Do(t.Context(), leases[0], bash("c", "echo c >> runs"))
	require.Error(t, err)
	assert.Equal(t, slots.KindContainerUnreachable, slots.AsError(err).Kind)
	assert.Equal(t, slots.ExecutedNever, slots.AsError(err).Executed, "nothing is sent to who does not listen")

	freeze(syscall.SIGCONT)
	require.Eventually(t, func() bool {
		answer, err = carrier.Do(t.Context(), leases[0], bash("a", "echo run >> runs; sleep 1; cat runs"))
		return err == nil
	}, 30*time.Second, 50*time.Millisecond)
	assert.Equal(t, "run", answer.Result.Output, "the lease is as it was, and the call ran once")
}
