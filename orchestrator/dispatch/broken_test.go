package dispatch_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/dispatch"
	"berth/sandboxd/api"
	"berth/slots"
)

// batchOf sends the calls as one batch and returns what came of each.
func batchOf(t *testing.T, d *dispatch.Dispatcher, calls ...dispatch.Call) []outcome {
	t.Helper()
	occupy(t, d, 12*len(calls), second)
	var told []<-chan outcome
	for _, next := range calls {
		told = append(told, start(t.Context(), t, d, next))
	}
	outcomes := make([]outcome, len(calls))
	for i := range told {
		outcomes[i] = <-told[i]
	}
	return outcomes
}

func TestABrokenStreamIsTakenUpAgain(t *testing.T) {
	c := &container{latency: time.Millisecond}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		var cuts atomic.Int64
		c.cut = func(try int, _ string) int {
			if try == 2 { // the client gives up after three
				return -1
			}
			cuts.Add(1)
			return try // lines
		}
		var told []<-chan outcome
		for i := range 200 {
			told = append(told, start(t.Context(), t, d, call(fmt.Sprint("slot_", i%50), fmt.Sprint(i), 10)))
		}
		for i := range told {
			o := <-told[i]
			require.Nil(t, o.err)
			assert.Equal(t, fmt.Sprint(i), o.Result.Output, "each caller gets the result of its own call")
		}
		assert.Len(t, c.ran(), 200, "each ran once")
		assert.Greater(t, cuts.Load(), int64(10))
	})
}

func TestAContainerThatIsNotThereHasExecutedNothing(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		c.refuse = func([]string) error {
			return slots.Errorf(slots.KindContainerUnreachable, "connection refused").WithExecuted(slots.ExecutedNever)
		}
		a, err := d.Do(t.Context(), call("slot_0", "a", 1))
		e := slots.AsError(err)
		assert.Equal(t, slots.KindContainerUnreachable, e.Kind)
		assert.Equal(t, slots.ExecutedNever, e.Executed)
		assert.True(t, e.Retryable)
		assert.Equal(t, "a", a.Result.ExecutionID)
		c.refuse = nil
		_, err = d.Do(t.Context(), call("slot_0", "b", 1))
		assert.NoError(t, err, "its next call goes well")
	})
}

func TestACallWhoseAnswersAreLostMayHaveRun(t *testing.T) {
	c := &container{cut: func(int, string) int { return 0 }}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		_, err := d.Do(t.Context(), call("slot_0", "a", 1))
		assert.Equal(t, slots.KindContainerUnreachable, slots.AsError(err).Kind)
		assert.Equal(t, slots.ExecutedMaybe, slots.AsError(err).Executed)
		assert.Equal(t, []string{"a"}, c.ran())
	})
}

func TestACallThatWasOnceSentIsNotSaidToBeNeverExecuted(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		// The container ends after the first line, and is not there any more
		// when the rest is asked for again.
		answered := false
		c.refuse = func(ids []string) error {
			if !answered || ids[0] != "b" {
				return nil
			}
			return slots.Errorf(slots.KindDraining, "not there").WithExecuted(slots.ExecutedNever)
		}
		c.cut = func(_ int, first string) int {
			if first != "a" {
				return -1
			}
			answered = true
			return 1
		}
		all := batchOf(t, d, call("slot_a", "a", 1), call("slot_b", "b", 5))
		assert.Nil(t, all[0].err)
		require.NotNil(t, all[1].err)
		assert.Equal(t, slots.KindDraining, all[1].err.Kind)
		assert.Equal(t, slots.ExecutedMaybe, all[1].err.Executed)
	})
}

func TestAContainerThatBreaksItsPromisesHangsNobody(t *testing.T) {
	for name, garble := range map[string]func(r *api.Result) bool{
		"leaves one out":       func(r *api.Result) bool { return r.ExecutionID != "b" },
		"answers another call": func(r *api.Result) bool { *r.Index += 1000; return true },
		"counts from below":    func(r *api.Result) bool { *r.Index = -1; return true },
		"forgets the index":    func(r *api.Result) bool { r.Index = nil; return true },
		"answers one twice":    func(r *api.Result) bool { *r.Index = 0; return true },
	} {
		t.Run(name, func(t *testing.T) {
			c := &container{}
			serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
				c.garble = func(r *api.Result) bool {
					return r.ExecutionID != "a" && r.ExecutionID != "b" || garble(r)
				}
				all := batchOf(t, d, call("slot_a", "a", 1), call("slot_b", "b", 2))
				require.NotNil(t, all[1].err)
				assert.Equal(t, slots.KindInternal, all[1].err.Kind)
				assert.Equal(t, slots.ExecutedMaybe, all[1].err.Executed)
			})
		})
	}
}

func TestAResultThatIsARefusalComesWithItsError(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		c.garble = func(r *api.Result) bool {
			if r.ExecutionID == "a" || r.ExecutionID == "b" {
				index := r.Index
				*r = api.Refused(r.ExecutionID, slots.Errorf(slots.KindFenced, "token is old"))
				r.Index = index
			}
			return true
		}
		alone := start(t.Context(), t, d, call("slot_x", "a", 1))
		for _, o := range append(batchOf(t, d, call("slot_a", "a", 1), call("slot_b", "b", 2)), <-alone) {
			require.NotNil(t, o.err)
			assert.Equal(t, slots.KindFenced, o.err.Kind)
			assert.Equal(t, slots.ExecutedNever, o.err.Executed)
			assert.Equal(t, slots.KindFenced, o.Result.Metadata.ErrorKind, "the result holds it as well")
		}
	})
}
