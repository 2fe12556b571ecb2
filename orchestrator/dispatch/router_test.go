package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/dispatch"
	"berth/slots"
)

func TestARouterFindsTheContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := dispatch.NewRouter(dispatch.Config{})
		a, b := &container{}, &container{}
		require.NoError(t, r.Add("a", a))
		require.NoError(t, r.Add("b", b))
		require.NoError(t, r.Add("a", b), "adding twice is adding once")
		_, err := r.Do(t.Context(), "a", call("slot_0", "1", 1))
		require.NoError(t, err)
		_, err = r.Do(t.Context(), "b", call("slot_0", "2", 1))
		require.NoError(t, err)
		assert.Equal(t, []string{"1"}, a.ran())
		assert.Equal(t, []string{"2"}, b.ran())
		assert.Equal(t, map[string]dispatch.Stats{"a": {Requests: 1, Calls: 1}, "b": {Requests: 1, Calls: 1}}, r.Stats())
		_, err = r.Do(t.Context(), "c", call("slot_0", "3", 1))
		assert.Equal(t, slots.KindSlotLost, slots.AsError(err).Kind)
		assert.Equal(t, slots.ExecutedNever, slots.AsError(err).Executed)
		require.NoError(t, r.Close(t.Context()))
	})
}

func TestTheCallsOfAContainerThatIsDownAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := dispatch.NewRouter(dispatch.Config{MaxInFlight: 2})
		require.NoError(t, r.Add("a", &container{}))
		require.NoError(t, r.Add("b", &container{}))
		d, err := r.Of("a")
		require.NoError(t, err)
		running := start(t.Context(), t, d, call("slot_0", "runs", 60*second))
		queued := start(t.Context(), t, d, call("slot_0", "queued", second))
		outside := make(chan error)
		go func() {
			_, err := d.Do(t.Context(), call("slot_0", "outside", second))
			outside <- err
		}()
		elsewhere := make(chan error)
		go func() {
			_, err := r.Do(t.Context(), "b", call("slot_0", "elsewhere", second))
			elsewhere <- err
		}()
		synctest.Wait()
		began := time.Now()
		r.Remove("a", "exit status 137")
		r.Remove("a", "again")
		for name, lost := range map[string]struct {
			err      *slots.Error
			executed slots.Executed
		}{
			"sent": {(<-running).err, slots.ExecutedMaybe}, "waiting": {(<-queued).err, slots.ExecutedNever},
			"outside": {slots.AsError(<-outside), slots.ExecutedNever},
		} {
			assert.Equal(t, slots.KindSlotLost, lost.err.Kind, name)
			assert.Equal(t, lost.executed, lost.err.Executed, name)
			assert.Contains(t, lost.err.Message, "exit status 137", name)
		}
		assert.Zero(t, time.Since(began), "they hear of it at once")
		_, err = d.Do(t.Context(), call("slot_0", "late", 1)) // by who held it
		assert.Equal(t, slots.KindSlotLost, slots.AsError(err).Kind)
		_, err = r.Do(t.Context(), "a", call("slot_0", "late", 1))
		assert.Equal(t, slots.KindSlotLost, slots.AsError(err).Kind)
		assert.NoError(t, <-elsewhere)
		require.NoError(t, r.Close(t.Context()))
		time.Sleep(time.Minute)
	})
}

func TestAClosedRouterTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := dispatch.NewRouter(dispatch.Config{})
		require.NoError(t, r.Add("a", &container{}))
		require.NoError(t, r.Add("b", &container{}))
		d, err := r.Of("a")
		require.NoError(t, err)
		start(t.Context(), t, d, call("slot_0", "", 60*second))
		why := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, why)
		defer cancel()
		require.ErrorIs(t, r.Close(ctx), why)
		assert.Equal(t, slots.KindDraining, slots.AsError(r.Add("c", &container{})).Kind)
		_, err = r.Do(t.Context(), "a", call("slot_0", "", 1))
		assert.Equal(t, slots.KindDraining, slots.AsError(err).Kind)
		assert.Equal(t, slots.ExecutedNever, slots.AsError(err).Executed)
		require.NoError(t, r.Close(t.Context()), "closing twice is closing once")
		time.Sleep(time.Minute)
	})
}

func TestThousandsCallAtOnce(t *testing.T) {
	const callers, containers, slotsEach = 2000, 2, 16
	r := dispatch.NewRouter(dispatch.Config{MaxInFlight: 500})
	var all []*container
	for i := range containers {
		all = append(all, &container{})
		require.NoError(t, r.Add(fmt.Sprint(i), all[i]))
	}
	var group sync.WaitGroup
	for i := range callers {
		group.Go(func() {
			for n := range 5 {
				id := fmt.Sprintf("%d-%d", i, n)
				a, err := r.Do(t.Context(), fmt.Sprint(i%containers), call(fmt.Sprint("slot_", i/containers%slotsEach), id, 0))
				assert.Nil(t, slots.AsError(err))
				assert.Equal(t, id, a.Result.Output)
			}
		})
	}
	group.Wait()
	ran := 0
	for _, c := range all {
		ran += len(c.ran())
	}
	assert.Equal(t, 5*callers, ran)
	require.NoError(t, r.Close(t.Context()))
}
