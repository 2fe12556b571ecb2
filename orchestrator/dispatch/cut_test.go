package dispatch_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/dispatch"
	"berth/slots"
)

func TestACutEndsTheCallsThatAreThereAndNoLaterOne(t *testing.T) {
	c := &container{latency: time.Millisecond}
	serve(t, c, dispatch.Config{MaxInFlight: 4}, func(t *testing.T, d *dispatch.Dispatcher) {
		long := func(id string) dispatch.Call { return leased(call("slot_0", id, 60_000), 1) }
		sent := start(t.Context(), t, d, long("sent"))
		own := make(chan outcome, 1)
		go func() {
			a, err := d.Do(t.Context(), call("slot_1", "own", 60_000))
			own <- outcome{a, slots.AsError(err), time.Now()}
		}()
		synctest.Wait()
		waiting := start(t.Context(), t, d, long("waiting"))
		outside := make(chan outcome, 1)
		start(t.Context(), t, d, long("last place"))
		go func() {
			a, err := d.Do(t.Context(), call("slot_2", "outside", 1))
			outside <- outcome{a, slots.AsError(err), time.Now()}
		}()
		time.Sleep(time.Second)
		require.Equal(t, dispatch.Stats{Requests: 2, Calls: 2, Waiting: 2, Sent: 2, Outside: 1}, d.Stats())

		cut := time.Now()
		d.Cut(slots.Errorf(slots.KindContainerUnreachable, "container is silent"))
		for told, executed := range map[<-chan outcome]slots.Executed{
			sent: slots.ExecutedMaybe, own: slots.ExecutedMaybe, waiting: slots.ExecutedNever, outside: slots.ExecutedNever,
		} {
			o := <-told
			require.NotNil(t, o.err)
			assert.Equal(t, slots.KindContainerUnreachable, o.err.Kind)
			assert.Equal(t, executed, o.err.Executed, o.Result.ExecutionID)
			assert.True(t, o.err.Retryable)
			assert.NotEmpty(t, o.Result.ExecutionID)
			assert.WithinDuration(t, cut, o.at, 10*time.Millisecond)
		}
		time.Sleep(time.Second)
		assert.Zero(t, d.Stats().Sent+d.Stats().Waiting+d.Stats().Outside)

		a, err := d.Do(t.Context(), long("sent"))
		require.NoError(t, err, "it is heard again, and the call with it")
		assert.Equal(t, "sent", a.Result.Output)
		assert.ElementsMatch(t, []string{"own", "sent"}, c.ran(), "it was joined, and what was not sent never ran")
	})
}
