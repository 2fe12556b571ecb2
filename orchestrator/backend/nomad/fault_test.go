package nomad_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator/backend"
	"berth/orchestrator/backend/nomad"
	"berth/slots"
)

func TestAnotherOrchestratorFindsWhatThereIs(t *testing.T) {
	d := newDouble(t)
	first := open(t, d.config(t))
	all := start(t, first, "c-0", "c-1")
	second := open(t, d.config(t))
	assert.Equal(t, all, list(t, second))
	again, err := second.Start(t.Context(), spec("c-1"))
	require.NoError(t, err)
	assert.Equal(t, all[1], again, "starting it is joining it")

	later := start(t, first, "c-2")
	assert.Eventually(t, func() bool { return slices.Contains(list(t, second), later[0]) }, patience, time.Millisecond, "the second hears of it")
	require.NoError(t, first.Close())
	assert.Equal(t, 3, d.count(), "a close leaves everything as it is")
	require.NoError(t, second.Stop(t.Context(), "c-2", 0))
	assert.Equal(t, 2, d.count())
	assert.Equal(t, all, list(t, second))
}

func TestWhatAnOperatorHasStartedIsUsed(t *testing.T) {
	d := newDouble(t)
	first := open(t, d.config(t))
	start(t, first, "c-0")
	require.NoError(t, first.Close())
	at := api.DefaultConfig()
	at.Address = d.server.URL
	operator, err := api.NewClient(at)
	require.NoError(t, err)
	_, _, err = operator.Jobs().Scale(job, jobs.Group, new(3), "by hand", false, nil, nil)
	require.NoError(t, err)
	b := open(t, d.config(t))
	start(t, b, "c-1", "c-2")
	assert.Equal(t, 3, d.count())
	assert.Len(t, list(t, b), 3)
}

// faults are what may go wrong with the API while everything has to come right.
var faults = map[string]func(d *double, c *nomad.Config){
	"every third answer is 429": func(d *double, _ *nomad.Config) { d.fault = sometimes(3, http.StatusTooManyRequests) },
	"every other answer is 500": func(d *double, _ *nomad.Config) { d.fault = sometimes(2, http.StatusInternalServerError) },
	"streams are closed again and again": func(d *double, _ *nomad.Config) {
		go func() { // ends with the test
			for d.t.Context().Err() == nil {
				d.do(func() { d.epoch++ })
				pause(d.t.Context(), 3*time.Millisecond)
			}
		}()
	},
	"no event comes through": func(d *double, c *nomad.Config) { d.silent, c.Relist = true, 20*time.Millisecond },
	"the event stream is refused": func(d *double, c *nomad.Config) {
		c.Relist = 20 * time.Millisecond
		d.fault = func(r *http.Request) (int, string) {
			if strings.HasPrefix(r.URL.Path, "/v1/event") {
				return http.StatusServiceUnavailable, "no cluster leader"
			}
			return 0, ""
		}
	},
	"events come twice and late": func(d *double, _ *nomad.Config) {
		go func() { // ends with the test
			for d.t.Context().Err() == nil {
				d.do(func() {
					if n := len(d.events); n > 0 {
						old := d.events[rand.IntN(n)] //nolint:gosec // of a test
						old.Index = d.index
						d.events = append(d.events, old)
					}
				})
				pause(d.t.Context(), time.Millisecond)
			}
		}()
	},
	"a new leader counts from an older index": func(d *double, _ *nomad.Config) {
		go func() { // ends with the test
			for d.t.Context().Err() == nil {
				d.do(func() {
					if n := len(d.events); n > 0 {
						old := d.events[0]
						d.events = append(d.events, old)
					}
				})
				pause(d.t.Context(), 5*time.Millisecond)
			}
		}()
	},
	"somebody changes the job all the time": func(d *double, _ *nomad.Config) {
		go func() { // ends with the test
			for d.t.Context().Err() == nil {
				d.do(func() {
					if j := d.jobs[job]; j != nil {
						d.index++
						next := *j
						next.JobModifyIndex = new(d.index)
						d.jobs[job] = &next
					}
				})
				pause(d.t.Context(), 20*time.Millisecond)
			}
		}()
	},
}

// sometimes answers one request of n with the status.
func sometimes(n, status int) func(*http.Request) (int, string) {
	return func(*http.Request) (int, string) {
		if rand.IntN(n) == 0 { //nolint:gosec // of a test
			return status, "try again later"
		}
		return 0, ""
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func TestFaultsOfTheAPIDelayAndLoseNothing(t *testing.T) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			d := newDouble(t)
			c := d.config(t)
			var b *nomad.Backend
			d.mu.Lock()
			fault(d, &c)
			d.mu.Unlock()
			require.Eventually(t, func() bool { // an Open says at once that Nomad cannot be asked
				var err error
				b, err = nomad.Open(t.Context(), c)
				return err == nil
			}, patience, time.Millisecond)
			t.Cleanup(func() { assert.NoError(t, b.Close()) })
			all := start(t, b, "c-0", "c-1", "c-2", "c-3")
			require.NoError(t, b.Stop(t.Context(), "c-1", 0))
			require.NoError(t, b.Stop(t.Context(), "c-3", 0))
			all = append(all, start(t, b, "c-4")...)
			d.do(func() { d.fail(d.allocOf(all[2]), api.TaskTerminated, "Exit Code: 137") })
			want := []backend.Container{all[0], all[4]}
			assert.Eventually(t, func() bool { return assert.ObjectsAreEqual(want, list(t, b)) }, patience, time.Millisecond)
		})
	}
}

func TestWhatNomadRefusesIsSaidAtOnce(t *testing.T) {
	d := newDouble(t)
	b := open(t, d.config(t))
	d.do(func() {
		d.fault = func(r *http.Request) (int, string) {
			if r.Method == http.MethodPut {
				return http.StatusForbidden, "Permission denied"
			}
			return 0, ""
		}
	})
	_, err := b.Start(t.Context(), spec("c-0"))
	assert.Equal(t, slots.KindInternal, slots.AsError(err).Kind)
	assert.ErrorContains(t, err, "Permission denied")
}

func TestAStartThatWaitsInVainSaysWhatNomadSaidLast(t *testing.T) {
	d := newDouble(t)
	b := open(t, d.config(t))
	d.do(func() {
		d.fault = func(*http.Request) (int, string) { return http.StatusInternalServerError, "No cluster leader" }
	})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := b.Start(ctx, spec("c-0"))
	assert.Equal(t, slots.KindInterrupted, slots.AsError(err).Kind)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "No cluster leader")
}

func TestAnAgentThatCannotBeAskedIsNoBackend(t *testing.T) {
	d := newDouble(t)
	d.fault = func(*http.Request) (int, string) { return http.StatusForbidden, "Permission denied" }
	_, err := nomad.Open(t.Context(), d.config(t))
	require.ErrorContains(t, err, "Permission denied")
	_, err = nomad.Open(t.Context(), nomad.Config{Prefix: "a/b"})
	assert.ErrorContains(t, err, "prefix")
}

// next pulls events of a watch.
func next(t *testing.T, b *nomad.Backend) func() backend.Event {
	t.Helper()
	pull, stop := iter.Pull(b.Watch(t.Context()))
	t.Cleanup(stop)
	return func() backend.Event {
		t.Helper()
		e, ok := pull()
		require.True(t, ok)
		return e
	}
}

func TestTokensAreMadeOfASecretThatCanBeRotated(t *testing.T) {
	d := newDouble(t)
	c := d.config(t)
	c.Rotate = 50 * time.Millisecond
	b := open(t, c)
	before := start(t, b, "c-0")[0]
	token := func(secret string) string {
		d.mu.Lock()
		defer d.mu.Unlock()
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(d.allocOf(before)))
		return hex.EncodeToString(mac.Sum(nil))
	}
	path := jobs.VariablePath(job)
	d.mu.Lock()
	secret := d.variables[path].Items[jobs.Secret]
	d.mu.Unlock()
	assert.GreaterOrEqual(t, len(secret), 32)
	assert.Equal(t, token(secret), before.Token, "as the job's template makes it")
	heard := next(t, b)
	heard()
	d.do(func() {
		d.index++
		v := *d.variables[path]
		v.Items = map[string]string{jobs.Secret: "another", jobs.EnvItem: v.Items[jobs.EnvItem]}
		v.ModifyIndex = d.index
		d.variables[path] = &v
	})
	after := before
	after.Token = token("another")
	after.Version = 2
	assert.Equal(t, backend.Event{Kind: backend.Up, Container: after}, heard())
}

func TestTheJobTellsNoSecret(t *testing.T) {
	d := newDouble(t)
	b := open(t, d.config(t))
	c := start(t, b, "c-0")[0]
	d.mu.Lock()
	defer d.mu.Unlock()
	text, err := json.Marshal(d.jobs[job])
	require.NoError(t, err)
	assert.NotContains(t, string(text), "s3cret")
	assert.NotContains(t, string(text), c.Token)
	assert.Equal(t, "KEY=s3cret", d.variables[jobs.VariablePath(job)].Items[jobs.EnvItem])
}

func TestAnotherSpecIsANewVersionOfTheJob(t *testing.T) {
	d := newDouble(t)
	b := open(t, d.config(t))
	start(t, b, "c-0")
	d.do(func() { // an operator's, which nobody here has made
		d.index++
		v := *d.variables[jobs.VariablePath(job)]
		v.Items = maps.Clone(v.Items)
		v.Items[jobs.Metrics], v.ModifyIndex = "looks-on", d.index
		d.variables[v.Path] = &v
	})
	for what, change := range map[string]func(*backend.Spec){
		"slots":  func(s *backend.Spec) { s.Slots = 3 },
		"limits": func(s *backend.Spec) { s.Slots, s.Limits.Pids = 3, 700 },
	} {
		d.mu.Lock()
		before := *d.jobs[job].JobModifyIndex
		d.mu.Unlock()
		s := spec("c-" + what)
		change(&s)
		_, err := b.Start(t.Context(), s)
		require.NoError(t, err, what)
		registered := d.asked("PUT jobs")
		d.mu.Lock()
		assert.Greater(t, *d.jobs[job].JobModifyIndex, before)
		d.mu.Unlock()
		s.ID += "-2"
		_, err = b.Start(t.Context(), s)
		require.NoError(t, err)
		assert.Equal(t, registered, d.asked("PUT jobs"), "once")
	}
	assert.Len(t, list(t, b), 5, "the count is kept")
	d.mu.Lock()
	defer d.mu.Unlock()
	assert.Equal(t, "looks-on", d.variables[jobs.VariablePath(job)].Items[jobs.Metrics], "of the variable the environment alone is another one")
}

func TestNothingIsAskedWhenNothingHappens(t *testing.T) {
	for _, n := range []int{10, 200} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			d := newDouble(t)
			d.starting = time.Millisecond
			b := open(t, d.config(t))
			started := make(chan error, n)
			for i := range n {
				go func() {
					_, err := b.Start(t.Context(), spec(fmt.Sprintf("c-%d", i)))
					started <- err
				}()
			}
			for range n {
				require.NoError(t, <-started)
			}
			total := func() (sum int) {
				d.mu.Lock()
				defer d.mu.Unlock()
				for _, n := range d.requests {
					sum += n
				}
				return sum
			}
			settled := total()
			require.Eventually(t, func() bool { // what the last claims have set off comes to an end
				before := total()
				pause(t.Context(), 300*time.Millisecond)
				settled = total()
				return before == settled
			}, patience, time.Millisecond)
			pause(t.Context(), time.Second)
			assert.LessOrEqual(t, total(), settled+5, "what is asked again and again is asked hundreds of times by then")
			assert.Less(t, settled, 60+3*n, "starting takes few requests for each container")
		})
	}
}

func TestAJobThatWasPurgedIsRegisteredAnew(t *testing.T) {
	d := newDouble(t)
	c := d.config(t)
	c.Purge = true
	b := open(t, c)
	start(t, b, "c-0")
	d.do(func() {
		d.index++
		stopped := *d.jobs[job]
		stopped.Stop, stopped.JobModifyIndex = new(true), new(d.index)
		d.jobs[job] = &stopped
		d.emit(api.TopicJob, "JobDeregistered", job, "Job", &stopped)
		d.schedule(job)
	})
	require.Eventually(t, func() bool { return len(list(t, b)) == 0 }, patience, time.Millisecond)
	start(t, b, "c-1")
	require.NoError(t, b.Close())
	d.mu.Lock()
	defer d.mu.Unlock()
	assert.True(t, *d.jobs[job].Stop, "it was told to purge")
}

func TestWithoutAStreamListsComeLessAndLessOften(t *testing.T) {
	d := newDouble(t)
	d.fault = func(r *http.Request) (int, string) {
		if strings.HasPrefix(r.URL.Path, "/v1/event") {
			return http.StatusForbidden, "Permission denied"
		}
		return 0, ""
	}
	b := open(t, d.config(t))
	start(t, b, "c-0")
	before := d.asked("GET allocations")
	pause(t.Context(), 2*time.Second)
	assert.Less(t, d.asked("GET allocations")-before, 60, "there would be a thousand without a pause")
	require.NoError(t, b.Stop(t.Context(), "c-0", 0))
}

func TestAJobThatIsGoneUnheardIsRegisteredAnew(t *testing.T) {
	d := newDouble(t)
	c := d.config(t)
	c.Relist = 50 * time.Millisecond
	b := open(t, c)
	start(t, b, "c-0")
	d.do(func() {
		for _, a := range d.counted(job) {
			d.stop(a)
		}
		delete(d.jobs, job)
	})
	require.Eventually(t, func() bool { return len(list(t, b)) == 0 }, patience, time.Millisecond)
	pause(t.Context(), 200*time.Millisecond) // it has been listed since, most likely
	start(t, b, "c-1")
}

func TestAListThatIsOlderThanTheStreamTakesNothingBack(t *testing.T) {
	d := newDouble(t)
	d.again, d.stopping = time.Millisecond, patience
	c := d.config(t)
	c.Relist = 30 * time.Millisecond
	b := open(t, c)
	start(t, b, "c-0")
	heard := next(t, b)
	heard()
	d.do(func() { d.stale = &listed{d.index, maps.Clone(d.allocs)} })
	lists := func() {
		t.Helper()
		n := d.asked("GET allocations")
		require.Eventually(t, func() bool { return d.asked("GET allocations") > n+2 }, patience, time.Millisecond)
	}
	later := start(t, b, "c-1")[0]
	lists()
	assert.Equal(t, "c-1", heard().Container.ID)
	assert.Len(t, list(t, b), 2, "what has come since is there")

	d.do(func() { d.stop(d.allocs[d.allocOf(list(t, b)[0])]) })
	e := heard()
	assert.Equal(t, "c-0", e.Container.ID)
	assert.True(t, e.Container.Draining)
	lists()
	assert.True(t, list(t, b)[0].Draining, "what was told to stop since was")
	d.do(func() { d.fail(d.allocOf(later), api.TaskTerminated, "Exit Code: 1") })
	e = heard()
	assert.Equal(t, backend.Down, e.Kind, "%v", e)
	assert.Equal(t, "c-1", e.Container.ID)
	lists()
	assert.Len(t, list(t, b), 1)
	start(t, b, "c-2") // one that failed before is told of again and again
}

func TestAStreamThatEndsOrGoesBackHasEverythingListed(t *testing.T) {
	for name, happens := range map[string]func(d *double){
		"it ends":           func(d *double) { d.epoch++ },
		"it goes back":      func(d *double) { d.events = append(d.events, d.events[0]) },
		"it cannot be read": func(d *double) { d.emit(api.TopicAllocation, "AllocationUpdated", job, "Allocation", "?") },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDouble(t)
			c := d.config(t)
			c.Relist = time.Hour
			b := open(t, c)
			all := start(t, b, "c-0", "c-1")
			d.do(func() {
				d.silent = true
				d.fail(d.allocOf(all[0]), api.TaskTerminated, "Exit Code: 1")
				d.silent = false
			})
			pause(t.Context(), 200*time.Millisecond)
			assert.Len(t, list(t, b), 2, "nobody has told of it")
			d.do(func() { happens(d) })
			require.Eventually(t, func() bool { return len(list(t, b)) == 1 }, 20*time.Second, time.Millisecond)
		})
	}
}

func TestAnEventThatWasLostIsMadeUpForAfterAWhile(t *testing.T) {
	d := newDouble(t)
	c := d.config(t)
	c.Relist = 300 * time.Millisecond
	b := open(t, c)
	one := start(t, b, "c-0")[0]
	d.do(func() {
		d.silent = true
		d.fail(d.allocOf(one), api.TaskTerminated, "Exit Code: 1")
	})
	require.Eventually(t, func() bool { return len(list(t, b)) == 0 }, 20*time.Second, time.Millisecond)
}
