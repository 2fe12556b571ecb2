package dispatch_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/dispatch"
	"berth/sandboxd/api"
	"berth/slots"
)

// streaming has a call under way that its submitter carries.
func streaming(t *testing.T, c *container, d *dispatch.Dispatcher, call dispatch.Call) (<-chan outcome, context.CancelCauseFunc) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	told := make(chan outcome, 1)
	go func() { // ends with the call
		answer, err := d.Stream(ctx, call, func(ctx context.Context, _ *dispatch.Pending) (api.Result, error) {
			return c.Execute(ctx, call.Call)
		})
		told <- outcome{answer, slots.AsError(err), time.Now()}
	}()
	synctest.Wait()
	return told, cancel
}

func TestStreamedCallsKeepTheirPlaceAmongTheOthersOfTheirLease(t *testing.T) {
	c := &container{latency: time.Millisecond}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		began := time.Now()
		all := []<-chan outcome{start(t.Context(), t, d, call("slot_0", "0", second))}
		add := func(told <-chan outcome, _ context.CancelCauseFunc) { all = append(all, told) }
		add(going(t, d, call("slot_0", "1", 10)))
		add(streaming(t, c, d, call("slot_0", "2", 10)))
		add(streaming(t, c, d, call("slot_0", "3", 10)))
		add(going(t, d, call("slot_0", "4", 10)))
		add(going(t, d, call("slot_0", "5", 10)))
		time.Sleep(10 * time.Millisecond)
		other, _ := streaming(t, c, d, call("slot_1", "other", 10))
		assert.LessOrEqual(t, (<-other).at.Sub(began), 100*time.Millisecond, "it waits for no other lease")
		for _, told := range all {
			require.Nil(t, (<-told).err)
		}
		assert.Equal(t, []string{"0", "other", "1", "2", "3", "4", "5"}, c.ran())
		assert.Equal(t, [][]string{{"0"}, {"other"}, {"1"}, {"2"}, {"3"}, {"4", "5"}}, c.handled(), "a streamed call goes alone")
	})
}

func TestAStreamedCallHasTheBoundsOfOthers(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{MaxPerLease: 1}, func(t *testing.T, d *dispatch.Dispatcher) {
		first, _ := streaming(t, c, d, call("slot_0", "0", second))
		next, _ := streaming(t, c, d, call("slot_0", "1", 10))
		late, leave := streaming(t, c, d, call("slot_0", "late", 10))
		assert.Equal(t, 2, d.Stats().Outside)
		leave(nil)
		assert.Equal(t, slots.ExecutedNever, (<-late).err.Executed)
		require.Nil(t, (<-first).err)
		assert.Equal(t, time.Second, (<-next).Timing.Queue)
		assert.Equal(t, []string{"0", "1"}, c.ran())
	})
}

func TestAStreamedCallWhoseCallerGoesBeforeItsTurnNeverRuns(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		first := start(t.Context(), t, d, call("slot_0", "0", second))
		gone, leave := streaming(t, c, d, call("slot_0", "gone", 10))
		last, _ := going(t, d, call("slot_0", "last", 10))
		leave(nil)
		o := <-gone
		assert.Equal(t, slots.ExecutedNever, o.err.Executed)
		assert.Equal(t, "gone", o.Result.ExecutionID)
		require.Nil(t, (<-first).err)
		require.Nil(t, (<-last).err)
		assert.Equal(t, []string{"0", "last"}, c.ran())
	})
}

func TestAStreamedCallWhoseCallerGoesHoldsItsPlaceUntilItEnds(t *testing.T) {
	for _, cancels := range []bool{false, true} {
		c := &container{latency: time.Millisecond}
		serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
			began := time.Now()
			one := call("slot_0", "gone", 10*second)
			one.CancelStarted = cancels
			gone, leave := streaming(t, c, d, one)
			next, _ := going(t, d, call("slot_0", "next", 10))
			time.Sleep(time.Second)
			leave(nil)
			assert.Equal(t, slots.ExecutedMaybe, (<-gone).err.Executed)
			o := <-next
			require.Nil(t, o.err)
			assert.Equal(t, []string{"gone", "next"}, c.ran())
			assert.Equal(t, cancels, c.cancels > 0)
			assert.Equal(t, cancels, o.at.Sub(began) < 2*time.Second, "it goes on unless it is cancelled")
		})
	}
}

func TestADispatcherEndsWithItsStreamedCalls(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		first, _ := streaming(t, c, d, call("slot_0", "0", second))
		next, _ := streaming(t, c, d, call("slot_0", "1", second))
		require.NoError(t, d.Close(t.Context()))
		require.Nil(t, (<-first).err)
		require.Nil(t, (<-next).err)
		late, _ := streaming(t, c, d, call("slot_0", "late", 10))
		assert.Equal(t, slots.KindDraining, (<-late).err.Kind)
	})
	c = &container{}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		first, _ := streaming(t, c, d, call("slot_0", "0", 3600*second))
		next, _ := streaming(t, c, d, call("slot_0", "1", 10))
		d.Abort(slots.Errorf(slots.KindSlotLost, "container is down"))
		for told, executed := range map[<-chan outcome]slots.Executed{first: slots.ExecutedMaybe, next: slots.ExecutedNever} {
			o := <-told
			assert.Equal(t, slots.KindSlotLost, o.err.Kind)
			assert.Equal(t, executed, o.err.Executed)
		}
	})
}

func TestAStreamedCallWhoseCallerGoesAtItsTurnHoldsNobodyUp(t *testing.T) {
	for range 100 { // which of the two is first is by chance
		c := &container{}
		serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
			first := start(t.Context(), t, d, call("slot_0", "0", second))
			gone, leave := streaming(t, c, d, call("slot_0", "gone", 10))
			next, _ := going(t, d, call("slot_0", "next", 10))
			time.AfterFunc(time.Second, func() { leave(nil) })
			require.Nil(t, (<-first).err)
			<-gone
			require.Nil(t, (<-next).err)
		})
	}
}
