package nomad_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend/nomad"
	"berth/slots"
)

const (
	headerWho = "X-Test-Who" // which orchestrator a request to the double is of
	dutyPath  = "nomad/jobs/" + job + "/duty"
)

// named is one of several orchestrators, with a short lock.
func (d *double) named(t *testing.T, name string) nomad.Config {
	t.Helper()
	c := d.config(t)
	c.Name, c.LockTTL, c.LockDelay = name, 3100*time.Millisecond, 20*time.Millisecond
	c.API.Headers = http.Header{headerWho: {name}}
	return c
}

func leads(t *testing.T, b *nomad.Backend) func() bool {
	t.Helper()
	return func() bool { return b.Duty("t").Held }
}

// cutOff has Nomad not answer one of the orchestrators.
func (d *double) cutOff(name string) {
	d.do(func() {
		d.fault = func(r *http.Request) (int, string) {
			if r.Header.Get(headerWho) == name {
				return http.StatusServiceUnavailable, "No route to host"
			}
			return 0, ""
		}
	})
}

// never fails the test if both lead at any time until the test ends.
func never(t *testing.T, both ...*nomad.Backend) {
	t.Helper()
	var watching sync.WaitGroup
	stop := make(chan struct{})
	watching.Go(func() {
		for {
			n := 0
			for _, b := range both {
				if b.Duty("t").Held {
					n++
				}
			}
			if n > 1 && leads(t, both[0])() && leads(t, both[1])() {
				assert.Fail(t, "two lead")
				return
			}
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Microsecond):
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		watching.Wait()
	})
}

func TestOneOfSeveralScales(t *testing.T) {
	d := newDouble(t)
	first := open(t, d.named(t, "first"))
	require.Eventually(t, leads(t, first), patience, time.Millisecond)
	assert.Equal(t, "first", first.Duty("t").Holder)
	assert.True(t, first.Duty("t").Shared)
	start(t, first, "c-0")
	second := open(t, d.named(t, "second"))
	never(t, first, second)
	require.Eventually(t, func() bool { return second.Duty("t").Holder == "first" }, patience, time.Millisecond)

	started := make(chan error, 1)
	go func() {
		_, err := second.Start(t.Context(), spec("c-1"))
		started <- err
	}()
	require.Eventually(t, func() bool { return second.Starting("c-1") }, patience, time.Millisecond)
	pause(t.Context(), 4*time.Second) // several lives of the lock
	assert.Equal(t, 1, d.count(), "it is not on the second to scale")
	assert.Empty(t, started)
	assert.True(t, first.Duty("t").Held)

	began := time.Now()
	require.NoError(t, first.Close())
	require.NoError(t, <-started)
	t.Log("given back: another scaled after", time.Since(began))
	assert.Less(t, time.Since(began), 1500*time.Millisecond, "it did not have to wait for the lock's end")
	assert.Equal(t, "second", second.Duty("t").Holder)
	assert.Len(t, list(t, second), 2)
}

func TestTheDutyOfAnOrchestratorThatDiedGoesToAnother(t *testing.T) {
	d := newDouble(t)
	first := open(t, d.named(t, "first"))
	start(t, first, "c-0", "c-1")
	second := open(t, d.named(t, "second"))
	never(t, first, second)
	require.Eventually(t, func() bool { return second.Duty("t").Holder == "first" }, patience, time.Millisecond)
	d.cutOff("first") // to Nomad there is no difference
	require.Eventually(t, leads(t, second), patience, time.Millisecond)
	assert.False(t, first.Duty("t").Held)
	start(t, second, "c-2")
	require.NoError(t, second.Stop(t.Context(), "c-1", 0))
	assert.Equal(t, 3, d.count())

	d.do(func() { d.fault = nil })
	pause(t.Context(), time.Second)
	assert.True(t, second.Duty("t").Held, "what is back does not take it away")
}

func TestTheDutyMovesWithinTheTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		named := func(name string) *nomad.Backend {
			c, at := w.config, *w.config.API
			at.Headers = http.Header{headerWho: {name}}
			c.API, c.Name, c.Relist = &at, name, 5*time.Minute
			return open(t, c)
		}
		leads, waits := named("a"), named("b")
		who := map[*nomad.Backend]string{leads: "a", waits: "b"}
		for !leads.Duty("t").Held && !waits.Duty("t").Held {
			time.Sleep(time.Second)
		}
		if waits.Duty("t").Held {
			leads, waits = waits, leads
		}
		for i := range 12 { // at every moment between two renewals
			time.Sleep(time.Minute + time.Duration(i)*time.Second)
			require.True(t, leads.Duty("t").Held)
			began := time.Now()
			w.set(func() { w.cut[who[leads]] = true })
			for !waits.Duty("t").Held && time.Since(began) < time.Hour {
				time.Sleep(10 * time.Millisecond)
				require.False(t, leads.Duty("t").Held && waits.Duty("t").Held)
			}
			assert.LessOrEqual(t, time.Since(began), nomad.DefaultLockTTL)
			w.set(func() { w.cut = map[string]bool{} })
			leads, waits = waits, leads
		}
	})
}

func TestALockThatIsLostEndsWhatWasBegun(t *testing.T) {
	d := newDouble(t)
	first := open(t, d.named(t, "first"))
	start(t, first, "c-0")
	second := open(t, d.named(t, "second"))
	never(t, first, second)
	d.do(func() { d.room = 1 }) // so that a start waits
	c := d.named(t, "first")
	c.Unplaced = patience
	require.NoError(t, first.Close())
	require.Eventually(t, leads(t, second), patience, time.Millisecond)
	first = open(t, c)
	require.NoError(t, second.Close())
	require.Eventually(t, leads(t, first), patience, time.Millisecond)
	started := make(chan error, 1)
	go func() {
		_, err := first.Start(t.Context(), spec("c-1"))
		started <- err
	}()
	require.Eventually(t, func() bool { return d.count() == 2 }, patience, time.Millisecond)
	assert.Empty(t, started)
	third := open(t, d.named(t, "third"))
	require.Eventually(t, func() bool { return third.Duty("t").Holder == "first" }, patience, time.Millisecond)
	d.do(func() { d.unlock(dutyPath, d.variables[dutyPath].LockID()) })
	err := <-started
	assert.Equal(t, slots.KindInterrupted, slots.AsError(err).Kind, "%v", err)
	require.ErrorContains(t, err, "another orchestrator")
	require.Eventually(t, leads(t, third), patience, time.Millisecond)
}

func TestWithoutNomadNobodyLeadsUntilItIsBack(t *testing.T) {
	d := newDouble(t)
	b := open(t, d.named(t, "only"))
	start(t, b, "c-0")
	d.cutOff("only")
	require.Eventually(t, func() bool { return !b.Duty("t").Held }, patience, time.Millisecond, "it does not know whether it does")
	assert.Len(t, list(t, b), 1, "the containers are served all the same")
	d.do(func() { d.fault = nil })
	require.Eventually(t, func() bool {
		_, err := b.Start(t.Context(), spec("c-1")) // one that came before it was known to be lost is refused
		return err == nil
	}, patience, time.Millisecond)
	assert.True(t, b.Duty("t").Held)
}

func TestAScalingIsBrokenOffBeforeAnotherCanLead(t *testing.T) {
	d := newDouble(t)
	first := open(t, d.named(t, "first"))
	start(t, first, "c-0")
	second := open(t, d.named(t, "second"))
	require.Eventually(t, func() bool { return second.Duty("t").Holder == "first" }, patience, time.Millisecond)
	broken := make(chan time.Time, 100)
	d.do(func() {
		d.fault = func(r *http.Request) (int, string) {
			if r.Header.Get(headerWho) != "first" {
				return 0, ""
			}
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/scale") {
				_, _ = io.Copy(io.Discard, r.Body) // else nobody sees that the client leaves
				<-r.Context().Done()               // it is under way for as long as it may be
				broken <- time.Now()
			}
			return http.StatusServiceUnavailable, "No route to host"
		}
	})
	go func() { _, _ = first.Start(t.Context(), spec("c-1")) }() // ends with the backend
	require.Eventually(t, leads(t, second), patience, time.Millisecond)
	now := time.Now()
	for {
		select {
		case at := <-broken:
			assert.True(t, at.Before(now))
			continue
		default:
		}
		break
	}
	assert.Equal(t, 1, d.count())
}

func TestANomadWithoutLocksIsSaidToBeTooOld(t *testing.T) {
	d := newDouble(t)
	d.old = true
	b := open(t, d.named(t, "first"))
	require.Eventually(t, func() bool { return d.asked("PUT var") > 0 }, patience, time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := b.Start(ctx, spec("c-0"))
	require.ErrorContains(t, err, "1.8.2 or newer")
	assert.False(t, b.Duty("t").Held)
}

func TestATemplateWithoutJobIsNobodysDuty(t *testing.T) {
	d := newDouble(t)
	b := open(t, d.named(t, "first"))
	assert.False(t, b.Duty("other").Held)
	s := spec("c-0")
	s.Template = "other"
	_, err := b.Start(t.Context(), s)
	require.NoError(t, err)
	assert.True(t, b.Duty("other").Held)
}

func TestALockThatNobodyMayTakeIsToldWhereWaitersHearIt(t *testing.T) {
	d := newDouble(t)
	refuses := func(r *http.Request) (int, string) {
		if strings.HasPrefix(r.URL.Path, "/v1/var/") && r.Method == http.MethodPut {
			return http.StatusForbidden, "Permission denied"
		}
		return 0, ""
	}
	d.fault = refuses
	b := open(t, d.named(t, "first"))
	require.Eventually(t, func() bool { return strings.Contains(b.Duty("t").Trouble, "Permission denied") }, patience, time.Millisecond)
	assert.Empty(t, b.Duty("t").Holder)

	d.do(func() { d.fault = nil })
	require.Eventually(t, leads(t, b), patience, time.Millisecond)
	assert.Empty(t, b.Duty("t").Trouble)
	second := d.named(t, "second")
	d.do(func() { d.fault = refuses })
	other := open(t, second)
	require.Eventually(t, func() bool { return other.Duty("t").Trouble != "" }, patience, time.Millisecond)
	d.do(func() { d.fault = nil })
	require.Eventually(t, func() bool { return other.Duty("t").Trouble == "" }, patience, time.Millisecond, "that another has it is no trouble")
}
