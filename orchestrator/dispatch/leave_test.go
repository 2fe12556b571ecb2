package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/dispatch"
	"berth/sandboxd/api"
	"berth/slots"
)

// going submits a call and returns what ends its caller's context.
func going(t *testing.T, d *dispatch.Dispatcher, call dispatch.Call) (<-chan outcome, context.CancelCauseFunc) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	return start(ctx, t, d, call), cancel
}

// doing is going for a call that its caller may carry.
func doing(t *testing.T, d *dispatch.Dispatcher, call dispatch.Call) (<-chan outcome, context.CancelCauseFunc) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	told := make(chan outcome, 1)
	go func() {
		answer, err := d.Do(ctx, call)
		told <- outcome{answer, slots.AsError(err), time.Now()}
	}()
	synctest.Wait()
	return told, cancel
}

// callers are the two ways to have a call under way.
var callers = map[string]func(t *testing.T, d *dispatch.Dispatcher, call dispatch.Call) (<-chan outcome, context.CancelCauseFunc){
	"Submit": going, "Do": doing,
}

func TestACallThatWasNotSentNeverRunsWithoutItsCaller(t *testing.T) {
	root := errors.New("its time is over")
	expired := slots.Errorf(slots.KindLeaseExpired, "lease is over: %w", root).WithExecuted(slots.ExecutedMaybe)
	for name, test := range map[string]struct {
		end   func(ctx context.Context) (context.Context, context.CancelFunc)
		kind  slots.Kind
		cause error
	}{
		"at its deadline": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Second)
		}, slots.KindQueueTimeout, context.DeadlineExceeded},
		"when it hangs up": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Second, cancel)
			return ctx, cancel
		}, slots.KindInterrupted, context.Canceled},
		"for a cause with a kind": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeoutCause(ctx, time.Second, expired)
		}, slots.KindLeaseExpired, root},
	} {
		t.Run(name, func(t *testing.T) {
			c := &container{}
			serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
				before := start(t.Context(), t, d, call("slot_0", "before", 10*second))
				ctx, cancel := test.end(t.Context())
				defer cancel()
				left := start(ctx, t, d, call("slot_0", "left", 1))
				after := start(t.Context(), t, d, call("slot_0", "after", 1))
				o := <-left
				assert.Equal(t, test.kind, o.err.Kind)
				assert.Equal(t, slots.ExecutedNever, o.err.Executed)
				require.ErrorIs(t, o.err, test.cause)
				assert.Equal(t, "left", o.Result.ExecutionID)
				assert.Equal(t, time.Second, o.Timing.Queue)
				<-before
				<-after
				assert.Equal(t, []string{"before", "after"}, c.ran())
			})
		})
	}
}

func TestACollectedCallLeavesItsBatch(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		occupy(t, d, 60, second)
		left, leave := going(t, d, call("slot_0", "left", 1))
		leave(nil)
		stays := start(t.Context(), t, d, call("slot_1", "stays", 1))
		o := <-left
		assert.Equal(t, slots.ExecutedNever, o.err.Executed)
		assert.Nil(t, (<-stays).err)
		assert.NotContains(t, c.ran(), "left")
		// It was the only one of its lease: nothing is left of that.
		a, err := d.Do(t.Context(), call("slot_0", "later", 1))
		require.NoError(t, err)
		assert.Zero(t, a.Timing.Queue)
	})
}

func TestACallThatHasStartedGoesOnWithoutItsCaller(t *testing.T) {
	for name, caller := range callers {
		t.Run(name, func(t *testing.T) {
			c := &container{latency: time.Millisecond}
			serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
				left, leave := caller(t, d, call("slot_0", "left", 10*second))
				time.Sleep(time.Second)
				leave(nil)
				o := <-left
				assert.Equal(t, slots.KindInterrupted, o.err.Kind)
				assert.Equal(t, slots.ExecutedMaybe, o.err.Executed)
				assert.Equal(t, "left", o.Result.ExecutionID)
				// Its connection is closed, so that it holds nothing here.
				time.Sleep(100 * time.Millisecond)
				assert.Zero(t, d.Stats().Sent)
				_, state, err := c.Result(t.Context(), "left")
				require.NoError(t, err)
				assert.Equal(t, api.StateRunning, state)
				time.Sleep(10 * time.Second)
				r, _, err := c.Result(t.Context(), "left")
				require.NoError(t, err)
				assert.Equal(t, slots.OutcomeExited, r.Metadata.Outcome)
				assert.Zero(t, c.cancels)
				// Who comes back with the same id gets its result.
				a, err := d.Do(t.Context(), call("slot_0", "left", 10*second))
				require.NoError(t, err)
				assert.Equal(t, "left", a.Result.Output)
				assert.Equal(t, []string{"left"}, c.ran())
			})
		})
	}
}

func TestCallsThatHaveNotStartedEndWithTheLastCallerOfTheirBatch(t *testing.T) {
	c := &container{latency: time.Millisecond}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		first := start(t.Context(), t, d, call("slot_0", "first", 10))
		runs, leave1 := going(t, d, call("slot_0", "runs", 10*second))
		waits, leave2 := going(t, d, call("slot_0", "waits", 10*second))
		quick := start(t.Context(), t, d, call("slot_0", "never runs", 0)) // of another caller
		<-first
		time.Sleep(100 * time.Millisecond)
		require.Len(t, c.handled(), 2, "they are one batch")
		leave1(nil)
		leave2(nil)
		assert.Equal(t, slots.ExecutedMaybe, (<-runs).err.Executed)
		assert.Equal(t, slots.ExecutedMaybe, (<-waits).err.Executed)
		// Somebody still waits for one of them: nothing is cancelled.
		assert.Nil(t, (<-quick).err)
		assert.Equal(t, []string{"first", "runs", "waits", "never runs"}, c.ran())
	})
	c = &container{latency: time.Millisecond}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		first := start(t.Context(), t, d, call("slot_0", "first", 10))
		runs, leave1 := going(t, d, call("slot_0", "runs", 10*second))
		waits, leave2 := going(t, d, call("slot_0", "waits", 10*second))
		<-first
		time.Sleep(100 * time.Millisecond)
		leave1(nil)
		leave2(nil)
		<-runs
		<-waits
		a, err := d.Do(t.Context(), call("slot_0", "next", 10))
		require.NoError(t, err)
		assert.NotZero(t, a.Timing.Queue)
		assert.Equal(t, []string{"first", "runs", "next"}, c.ran())
	})
}

func TestACallerThatHadItsAnswerKeepsNoBatchAlive(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		occupy(t, d, 60, second)
		quick := start(t.Context(), t, d, call("slot_0", "quick", 100))
		long, leave := going(t, d, call("slot_1", "long", 60*second))
		time.Sleep(50 * time.Millisecond)
		leave(nil)
		<-long
		<-quick
		time.Sleep(2 * time.Second)
		assert.Zero(t, d.Stats().Sent, "the long call holds no connection")
	})
}

func TestARequestThatIsNotReadYetIsNotOvertaken(t *testing.T) {
	for name, caller := range callers {
		t.Run(name, func(t *testing.T) {
			// Closing its connection would not keep the container from reading it.
			c := &container{unread: func(n int) time.Duration { return time.Duration(2-min(n, 2)) * 10 * time.Second }}
			serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
				left, leave := caller(t, d, call("slot_0", "first", 60*second))
				began := time.Now()
				leave(nil)
				o := <-left
				assert.Equal(t, slots.ExecutedMaybe, o.err.Executed)
				assert.Zero(t, o.at.Sub(began), "a caller that leaves waits for nothing")
				_, err := d.Do(t.Context(), call("slot_0", "second", 10))
				require.NoError(t, err)
				assert.Equal(t, []string{"first", "second"}, c.ran())
			})
		})
	}
}

func TestACallIsCancelledInTheContainerWhenItsCallerAskedForThat(t *testing.T) {
	for name, caller := range callers {
		for where, unread := range map[string]time.Duration{"that has it": 0, "that reads late": 2 * time.Second} {
			t.Run(name+" in a container "+where, func(t *testing.T) {
				c := &container{latency: time.Millisecond, unread: func(int) time.Duration { return unread }}
				serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
					asked := call("slot_0", "asked", 60*second)
					asked.CancelStarted = true
					began := time.Now()
					left, leave := caller(t, d, asked)
					time.Sleep(time.Second)
					leave(nil)
					assert.Equal(t, slots.ExecutedMaybe, (<-left).err.Executed)
					_, err := d.Do(t.Context(), call("slot_0", "next", 10))
					require.NoError(t, err)
					assert.Less(t, time.Since(began), 10*time.Second)
					r, _, err := c.Result(t.Context(), "asked")
					require.NoError(t, err)
					assert.False(t, r.Success, "it was ended, if it started at all")
					assert.Equal(t, "next", c.ran()[len(c.ran())-1])
				})
			})
		}
	}
}

func TestNobodyElsesCallIsCancelled(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		occupy(t, d, 60, second)
		asked := call("slot_0", "asked", 60*second)
		asked.CancelStarted = true
		left, leave := going(t, d, asked)
		stays := start(t.Context(), t, d, call("slot_1", "stays", second))
		time.Sleep(100 * time.Millisecond)
		leave(nil)
		<-left
		o := <-stays
		assert.Nil(t, o.err)
		assert.Equal(t, slots.OutcomeExited, o.Result.Metadata.Outcome)
		assert.Equal(t, 1, c.cancels)
	})
}

func TestAResultThatIsThereIsGivenToACallerThatLeaves(t *testing.T) {
	c := &container{}
	serve(t, c, dispatch.Config{}, func(t *testing.T, d *dispatch.Dispatcher) {
		p, err := d.Submit(t.Context(), call("slot_0", "a", 1))
		require.NoError(t, err)
		time.Sleep(time.Second)
		for range 2 { // it can be asked for again
			a, err := p.Wait(canceled(t))
			require.NoError(t, err)
			assert.Equal(t, "a", a.Result.Output)
		}
		p, err = d.Submit(t.Context(), call("slot_0", "b", second))
		require.NoError(t, err)
		synctest.Wait()
		for range 3 { // to leave more than once is to leave once
			_, err = p.Wait(canceled(t))
			assert.Equal(t, slots.ExecutedMaybe, slots.AsError(err).Executed)
		}
	})
}

func TestManyThatLeaveAtOnceLeaveNothingBehind(t *testing.T) {
	c := &container{latency: time.Millisecond}
	serve(t, c, dispatch.Config{MaxInFlight: 100, MaxPerLease: 50}, func(t *testing.T, d *dispatch.Dispatcher) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		left := make(chan error, 500)
		for i := range 500 {
			go func() {
				next := call(fmt.Sprint("slot_", i%7), fmt.Sprint(i), 20)
				next.CancelStarted = i%5 == 0
				_, err := d.Do(ctx, next)
				left <- err
			}()
		}
		for range 500 {
			if err := <-left; err != nil {
				assert.NotEqual(t, slots.ExecutedYes, slots.AsError(err).Executed)
			}
		}
		time.Sleep(10 * time.Second)
		s := d.Stats()
		assert.Zero(t, s.Waiting+s.Sent+s.Outside)
		assert.Less(t, len(c.ran()), 200)
	})
}
