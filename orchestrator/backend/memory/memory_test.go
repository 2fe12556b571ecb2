package memory_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
	"berth/orchestrator/backend/backendtest"
	"berth/orchestrator/backend/memory"
	"berth/slots"
)

func open(t *testing.T, config memory.Config) *memory.Backend {
	t.Helper()
	b := memory.New(config)
	t.Cleanup(func() { assert.NoError(t, b.Close()) })
	return b
}

func spec(id string) backend.Spec { return backend.Spec{ID: id, Template: "t", Slots: 2} }

func TestItKeepsThePromisesOfABackend(t *testing.T) {
	backendtest.Run(t, backendtest.Subject{
		New: func(t *testing.T) backend.Backend {
			return open(t, memory.Config{Start: 40 * time.Millisecond, Stop: time.Millisecond})
		},
		Starting: func(b backend.Backend, id string) bool { return b.(*memory.Backend).Starting(id) },
		Crash: func(t *testing.T, b backend.Backend, c backend.Container) {
			assert.True(t, b.(*memory.Backend).Crash(c.ID, "told to"))
		},
		Spec: spec(""),
	})
}

func TestThereIsRoomForAsManyAsItWasTold(t *testing.T) {
	b := open(t, memory.Config{Max: 1})
	_, err := b.Start(t.Context(), spec("a"))
	require.NoError(t, err)
	_, err = b.Start(t.Context(), spec("b"))
	e := slots.AsError(err)
	assert.Equal(t, slots.KindPoolExhausted, e.Kind)
	assert.True(t, e.Retryable)
	require.NoError(t, b.Stop(t.Context(), "a", 0))
	_, err = b.Start(t.Context(), spec("b"))
	assert.NoError(t, err)
}

func TestAStartThatFailsSaysWhyAndMayBeRepeated(t *testing.T) {
	cause := errors.New("no kernel")
	b := open(t, memory.Config{Fail: func(backend.Spec) error {
		defer func() { cause = nil }()
		return cause
	}})
	why := cause
	_, err := b.Start(t.Context(), spec("a"))
	assert.Equal(t, slots.KindInternal, slots.AsError(err).Kind)
	require.ErrorIs(t, err, why)
	_, err = b.Start(t.Context(), spec("a"))
	assert.NoError(t, err)
}

func TestAFlapMovesTheContainerAndACrashEndsIt(t *testing.T) {
	b := open(t, memory.Config{URL: func(id string, n int) string { return fmt.Sprintf("http://%s/%d", id, n) }})
	assert.False(t, b.Flap("a"))
	assert.False(t, b.Crash("a", "x"))
	before, err := b.Start(t.Context(), spec("a"))
	require.NoError(t, err)
	next, stop := iter.Pull(b.Watch(t.Context()))
	defer stop()
	_, _ = next()
	assert.True(t, b.Flap("a"))
	e, _ := next()
	after := before
	after.URL, after.Version = "http://a/1", 2
	assert.Equal(t, backend.Event{Kind: backend.Up, Container: after}, e)
	assert.True(t, b.Crash("a", "out of memory"))
	e, _ = next()
	assert.Equal(t, backend.Event{Kind: backend.Down, Container: after, Reason: "out of memory"}, e)
	assert.False(t, b.Crash("a", "again"))
	assert.False(t, b.Flap("a"))
}

func TestTimeIsTheSimulations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New(memory.Config{Start: time.Hour, Stop: time.Minute})
		begun := time.Now()
		_, err := b.Start(t.Context(), spec("a"))
		require.NoError(t, err)
		assert.Equal(t, time.Hour, time.Since(begun))
		require.NoError(t, b.Stop(t.Context(), "a", time.Hour))
		assert.Equal(t, time.Hour+time.Minute, time.Since(begun), "it needs less than its grace")
		_, err = b.Start(t.Context(), spec("b"))
		require.NoError(t, err)
		begun = time.Now()
		require.NoError(t, b.Stop(t.Context(), "b", time.Second))
		assert.Equal(t, time.Second, time.Since(begun), "its grace is shorter")
		assert.NoError(t, b.Close())
	})
}

func TestACloseEndsWatchesAndStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New(memory.Config{Start: time.Hour})
		var startErr error
		go func() { _, startErr = b.Start(context.Background(), spec("a")) }()
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			for range b.Watch(context.Background()) {
			}
		}()
		synctest.Wait()
		require.NoError(t, b.Close())
		require.NoError(t, b.Close())
		<-watched
		synctest.Wait()
		assert.Equal(t, slots.KindInterrupted, slots.AsError(startErr).Kind)
		_, err := b.Start(t.Context(), spec("b"))
		assert.Equal(t, slots.KindInterrupted, slots.AsError(err).Kind)
	})
}

func TestADrainOfTheMachineIsAnnounced(t *testing.T) {
	b := open(t, memory.Config{})
	up, err := b.Start(t.Context(), spec("c-0"))
	require.NoError(t, err)
	by := time.Now().Add(time.Minute)
	assert.True(t, b.Drain("c-0", true, by))
	up.Draining, up.Deadline, up.Version = true, by, 2
	all, err := b.List(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []backend.Container{up}, all)
	assert.False(t, b.Drain("c-1", true, by))
}
