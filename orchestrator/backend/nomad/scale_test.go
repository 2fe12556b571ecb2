package nomad_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator/backend"
	"berth/orchestrator/backend/nomad"
	"berth/slots"
)

const job = "berth-t"

// start starts containers one after the other.
func start(t *testing.T, b *nomad.Backend, ids ...string) []backend.Container {
	t.Helper()
	var all []backend.Container
	for _, id := range ids {
		c, err := b.Start(t.Context(), spec(id))
		require.NoError(t, err, id)
		all = append(all, c)
	}
	return all
}

func list(t *testing.T, b *nomad.Backend) []backend.Container {
	t.Helper()
	all, err := b.List(t.Context())
	require.NoError(t, err)
	return all
}

// unversioned is what is up, as any backend of the job is to tell it: each counts
// for itself what it has told.
func unversioned(t *testing.T, b *nomad.Backend) []backend.Container {
	t.Helper()
	all := list(t, b)
	for i := range all {
		all[i].Version = 0
	}
	return all
}

// count is the job's.
func (d *double) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return *d.jobs[job].TaskGroups[0].Count
}

// asked is how many requests of the kind there were.
func (d *double) asked(kind string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.requests[kind]
}

// lowered are the indexes that lower counts have stopped.
func (d *double) lowered() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.stopped)
}

func TestTheCountFallsFromTheTopOnly(t *testing.T) {
	d := newDouble(t)
	b := open(t, d.config(t))
	start(t, b, "c-0", "c-1", "c-2", "c-3")
	require.NoError(t, b.Stop(t.Context(), "c-3", 0))
	assert.Equal(t, []int{3}, d.lowered())
	assert.Equal(t, 3, d.count())

	require.NoError(t, b.Stop(t.Context(), "c-1", 0))
	assert.Equal(t, []int{3}, d.lowered(), "c-2 is above it, and is not touched")
	assert.Equal(t, 3, d.count())
	assert.Equal(t, 1, d.asked("PUT allocation"))

	start(t, b, "c-4")
	assert.Equal(t, 3, d.count(), "what Nomad has put into its place is there to be used")
	require.NoError(t, b.Stop(t.Context(), "c-2", 0))
	assert.Equal(t, []int{3, 2}, d.lowered())
	assert.Equal(t, 2, d.count())
	assert.Len(t, list(t, b), 2)
}

func TestWhatNomadReplacesByItselfRaisesNoCount(t *testing.T) {
	d := newDouble(t)
	b := open(t, d.config(t))
	start(t, b, "c-0", "c-1")
	d.do(func() {
		d.stopping, d.starting = time.Hour, 200*time.Millisecond
		for _, a := range d.counted(job) {
			if at(a) == 0 {
				d.stop(a) // as an operator does; it has leases, and takes its time
			}
		}
		d.schedule(job)
	})
	require.Eventually(t, func() bool { return list(t, b)[0].Draining }, patience, time.Millisecond)
	fresh := start(t, b, "c-2")[0]
	assert.Zero(t, fresh.Rank, "it is what has come in its place")
	assert.Equal(t, 2, d.count())
	assert.Equal(t, 0, d.asked("PUT allocation"))
	assert.Len(t, list(t, b), 3)
}

func TestWhatNobodyClaimsIsGivenBackAfterAWhile(t *testing.T) {
	d := newDouble(t)
	c := d.config(t)
	c.Spare = 300 * time.Millisecond
	b := open(t, c)
	start(t, b, "c-0", "c-1", "c-2")
	require.NoError(t, b.Stop(t.Context(), "c-1", 0))
	pause(t.Context(), 3*c.Spare)
	assert.Equal(t, 3, d.count(), "c-2 keeps the count up")
	require.NoError(t, b.Stop(t.Context(), "c-2", 0))
	assert.Eventually(t, func() bool { return d.count() == 1 }, patience, time.Millisecond)
	assert.Equal(t, []int{2, 1}, d.lowered())
}

func TestRandomStartsAndStopsNeverCostAContainerThatWasNotTold(t *testing.T) {
	d := newDouble(t)
	d.starting, d.again = time.Millisecond, time.Millisecond
	c := d.config(t)
	c.Spare = 20 * time.Millisecond
	b := open(t, c)
	var mu sync.Mutex // guards told
	told := map[string]bool{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range b.Watch(t.Context()) {
			mu.Lock()
			if e.Kind == backend.Down && !told[e.Container.ID] {
				assert.Fail(t, "it was lost", "%s: %s", e.Container.ID, e.Reason)
			}
			mu.Unlock()
		}
	}()
	seed := seedOf(t)
	var workers sync.WaitGroup
	for w := range 6 {
		random := rand.New(rand.NewPCG(seed, uint64(w))) //nolint:gosec // of a test
		workers.Go(func() {
			var mine []string
			for i := range 40 {
				if len(mine) == 0 || random.IntN(5) < 3 {
					id := fmt.Sprintf("c-%d-%d", w, i)
					if _, err := b.Start(t.Context(), spec(id)); !assert.NoError(t, err) {
						return
					}
					mine = append(mine, id)
					continue
				}
				at := random.IntN(len(mine))
				id := mine[at]
				mine = slices.Delete(mine, at, at+1)
				mu.Lock()
				told[id] = true
				mu.Unlock()
				if !assert.NoError(t, b.Stop(t.Context(), id, 0)) {
					return
				}
			}
		})
	}
	workers.Wait()
	up := list(t, b)
	assert.NotEmpty(t, up)
	urls := map[string]bool{}
	for _, c := range up {
		assert.False(t, urls[c.URL], "two containers of one allocation")
		urls[c.URL] = true
	}
	require.NoError(t, b.Close())
	<-done
}

func TestADeploymentHoldsUpScalingUntilItEnds(t *testing.T) {
	d := newDouble(t)
	b := open(t, d.config(t))
	start(t, b, "c-0", "c-1")
	d.do(func() { d.deploy(job, api.DeploymentStatusRunning) })
	started := make(chan error, 1)
	go func() {
		_, err := b.Start(t.Context(), spec("c-2"))
		started <- err
	}()
	require.Eventually(t, func() bool { return d.asked("PUT job") > 2 }, patience, time.Millisecond, "it tries again")
	assert.Empty(t, started)
	running := ""
	d.do(func() { running = d.deployed[job].ID })
	trouble := func() string { return b.Duty(spec("c-0").Template).Trouble }
	require.Eventually(t, func() bool { return strings.Contains(trouble(), "nomad deployment fail "+running[:8]) }, patience, time.Millisecond, "who waits learns why")
	require.NoError(t, b.Stop(t.Context(), "c-1", 0), "an allocation can be stopped by itself all the same")
	d.do(func() { d.deploy(job, api.DeploymentStatusSuccessful) })
	require.NoError(t, <-started)
	assert.Empty(t, trouble())
	assert.Empty(t, d.lowered())
}

// byHand has an operator set the count, and waits until the allocations run.
func (d *double) byHand(t *testing.T, n int) {
	t.Helper()
	at := api.DefaultConfig()
	at.Address = d.server.URL
	operator, err := api.NewClient(at)
	require.NoError(t, err)
	_, _, err = operator.Jobs().Scale(job, jobs.Group, new(n), "by hand", false, nil, nil)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return d.runs(n) }, patience, time.Millisecond)
}

// runs reports whether n allocations run.
func (d *double) runs(n int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.counted(job)
	return len(all) == n && !slices.ContainsFunc(all, func(a *api.Allocation) bool { return a.ClientStatus != api.AllocClientStatusRunning })
}

func TestALoweringThatWasRefusedKeepsNothingFromBeingClaimed(t *testing.T) {
	for name, fault := range map[string]func(d *double){
		"somebody was faster": func(d *double) {
			d.index++
			next := *d.jobs[job]
			next.JobModifyIndex = new(d.index)
			d.jobs[job] = &next
		},
		"a deployment is under way": func(d *double) {
			if d.deployed[job] == nil {
				d.index++
				d.deployed[job] = &api.Deployment{ID: uuid(), JobID: job, Status: api.DeploymentStatusRunning, ModifyIndex: d.index}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDouble(t)
			c := d.config(t)
			c.Spare, c.Blocked = 500*time.Millisecond, time.Hour // what is on its way down is believed to be for long
			b := open(t, c)
			start(t, b, "c-0")
			refused := make(chan struct{}, 1000)
			d.byHand(t, 2)
			d.do(func() {
				d.fault = func(r *http.Request) (int, string) {
					if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/scale") {
						d.do(func() { fault(d) })
						refused <- struct{}{}
					}
					return 0, ""
				}
			})
			<-refused
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err := b.Start(ctx, spec("c-1"))
			require.NoError(t, err, "what is there is to be used")
			assert.Equal(t, 2, d.count())
		})
	}
}

func TestWhatALoweringOfUnknownOutcomeMayEndIsNotClaimed(t *testing.T) {
	d := newDouble(t)
	c := d.config(t)
	c.Spare, c.Relist = 500*time.Millisecond, 100*time.Millisecond
	c.Blocked = 2 * time.Second
	b := open(t, c)
	start(t, b, "c-0")
	d.byHand(t, 3)
	pause(t.Context(), 100*time.Millisecond) // they are known to answer, most likely
	done := make(chan struct{})
	d.do(func() {
		d.stopping, d.silent = time.Second, true
		d.unanswered = func(r *http.Request) bool {
			if r.Method != http.MethodPut || !strings.HasSuffix(r.URL.Path, "/scale") {
				return false
			}
			d.unanswered = nil
			close(done)
			return true
		}
	})
	<-done
	fresh := start(t, b, "c-1")[0]
	d.mu.Lock()
	defer d.mu.Unlock()
	assert.Equal(t, api.AllocDesiredStatusRun, d.allocs[d.allocOf(fresh)].DesiredStatus)
}

func TestAStartDoesNotWaitForTheDeploymentOfTheOneBefore(t *testing.T) {
	d := newDouble(t)
	d.deploys = true
	b := open(t, d.config(t))
	start(t, b, "c-0", "c-1", "c-2") // none of the deployments ends
	assert.Equal(t, 3, d.asked("PUT jobs"), "a registration takes a deployment's place")
	require.NoError(t, b.Stop(t.Context(), "c-2", 0))
	assert.Empty(t, d.lowered(), "a count is not lowered over a deployment")

	d.do(func() {
		d.canaries = 1
		d.change(d.jobs[job])
	})
	started := make(chan error, 1)
	go func() {
		for _, id := range []string{"c-3", "c-4"} { // one is there
			if _, err := b.Start(t.Context(), spec(id)); err != nil {
				started <- err
				return
			}
		}
		started <- nil
	}()
	before := d.asked("PUT job")
	require.Eventually(t, func() bool { return d.asked("PUT job") > before+3 }, patience, time.Millisecond, "it tries again")
	assert.Empty(t, started, "a canary comes first")
	assert.Equal(t, 3, d.asked("PUT jobs"))
	d.do(func() { d.deployed[job].TaskGroups[jobs.Group].Promoted = true })
	require.NoError(t, <-started)
}

func TestWordsInNamesAreNoAnswers(t *testing.T) {
	d := newDouble(t)
	b := open(t, d.config(t))
	d.do(func() {
		d.fault = func(r *http.Request) (int, string) {
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/scale") {
				return http.StatusBadRequest, "job berth-deployment: group count was greater than scaling policy maximum: conflict with the modify index"
			}
			return 0, ""
		}
	})
	start(t, b, "c-0")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := b.Start(ctx, spec("c-1"))
	assert.Equal(t, slots.KindInternal, slots.AsError(err).Kind, "it is no deployment, whose end could be waited for")
	assert.ErrorContains(t, err, "scaling policy maximum")
}

func TestACountIsNotLoweredWhileAllocationsMove(t *testing.T) {
	d := newDouble(t)
	c := d.config(t)
	c.Spare = time.Millisecond
	b := open(t, c)
	all := start(t, b, "c-0", "c-1")
	d.do(func() {
		moving := *d.allocs[d.allocOf(all[0])]
		moving.DesiredTransition.Migrate = new(true)
		d.put(&moving)
	})
	require.Eventually(t, b.Moves, patience, time.Millisecond)
	require.NoError(t, b.Stop(t.Context(), "c-1", 0))
	assert.Empty(t, d.lowered(), "Nomad would have stopped the one that moves")
	assert.Equal(t, "c-0", list(t, b)[0].ID)
}

func TestNoRoomIsSaidInNomadsOwnWords(t *testing.T) {
	d := newDouble(t)
	d.room = 1
	b := open(t, d.config(t))
	start(t, b, "c-0")
	other := open(t, d.config(t))
	require.Eventually(t, func() bool { return other.Duty("t").Holder != "" }, patience, time.Millisecond)
	assert.Empty(t, b.Duty("t").Trouble)
	const full = `Resources exhausted on 3 nodes, Dimension "memory" exhausted on 3 nodes`
	for range 2 { // the second time there is nothing new that Nomad would tell
		_, err := b.Start(t.Context(), spec("c-1"))
		e := slots.AsError(err)
		assert.Equal(t, slots.KindPoolExhausted, e.Kind, "%v", err)
		assert.True(t, e.Retryable)
		assert.Contains(t, e.Message, full)
		assert.Equal(t, full, b.Duty("t").Trouble)
	}
	require.Eventually(t, func() bool { return other.Duty("t").Trouble == full }, patience, time.Millisecond, "another one hears it from Nomad as well")
	d.do(func() {
		d.room = 2
		d.schedule(job)
	})
	require.Eventually(t, func() bool { // what Nomad said last holds until it says more
		_, err := b.Start(t.Context(), spec("c-1"))
		return err == nil
	}, patience, 10*time.Millisecond)
	assert.Empty(t, b.Duty("t").Trouble)
	require.Eventually(t, func() bool { return other.Duty("t").Trouble == "" }, patience, time.Millisecond)
}

func TestNoRoomIsSaidWithinSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, n := newDoubleWithoutServer(t), &pipes{all: map[string]*pipeListener{}}
		d.room = 1
		b := open(t, nomad.Config{API: d.serveOver(t, n), Job: jobs.Template{Driver: jobs.RawExec}}.Over(n.dial))
		start(t, b, "c-0")
		for range 3 {
			began := time.Now()
			_, err := b.Start(t.Context(), spec("c-1"))
			assert.Equal(t, slots.KindPoolExhausted, slots.AsError(err).Kind, "%v", err)
			assert.LessOrEqual(t, time.Since(began), 4*time.Second, "of a time of its own, at the defaults")
		}
	})
}

func TestAnAllocationThatDoesNotStartSaysWhy(t *testing.T) {
	d := newDouble(t)
	d.broken = "Failed to pull image: manifest unknown"
	b := open(t, d.config(t))
	_, err := b.Start(t.Context(), spec("c-0"))
	assert.Equal(t, slots.KindInternal, slots.AsError(err).Kind)
	require.ErrorContains(t, err, "manifest unknown")
	assert.Empty(t, list(t, b))
	assert.Contains(t, b.Duty("t").Trouble, "manifest unknown")
	d.do(func() {
		d.broken = ""
		d.schedule(job)
	})
	start(t, b, "c-0")
	assert.Empty(t, b.Duty("t").Trouble)
}

// begin has the containers started, and returns what came of each once an
// allocation is pending for all of them and for what there is.
func begin(t *testing.T, d *double, b *nomad.Backend, ids ...string) chan error {
	t.Helper()
	started := make(chan error, len(ids))
	want := len(list(t, b)) + len(ids)
	for _, id := range ids {
		go func() {
			_, err := b.Start(t.Context(), spec(id))
			started <- err
		}()
	}
	require.Eventually(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.counted(job)) == want
	}, patience, time.Millisecond)
	return started
}

func TestAnAllocationThatDoesNotStartEndsOneStart(t *testing.T) {
	d := newDouble(t)
	d.starting, d.again = patience, 200*time.Millisecond
	b := open(t, d.config(t))
	started := begin(t, d, b, "c-0", "c-1")
	d.do(func() {
		d.starting = time.Millisecond // of what is placed instead
		d.fail(d.counted(job)[0].ID, api.TaskDriverFailure, "no such image")
	})
	require.ErrorContains(t, <-started, "no such image")
	require.NoError(t, <-started)
	assert.Empty(t, b.Duty("t").Trouble)
}

func TestACrashOfAContainerEndsNoStart(t *testing.T) {
	d := newDouble(t)
	d.again = 200 * time.Millisecond
	b := open(t, d.config(t))
	one := start(t, b, "c-0")[0]
	d.do(func() { d.starting = patience })
	started := begin(t, d, b, "c-1")
	d.do(func() {
		d.starting = time.Millisecond
		d.fail(d.allocOf(one), api.TaskTerminated, "Exit Code: 137")
	})
	require.Eventually(t, func() bool { return len(list(t, b)) == 0 }, patience, time.Millisecond)
	assert.Empty(t, b.Duty("t").Trouble, "it had come up")
	require.NoError(t, <-started)
}

func TestAContainerIsUpWhenItAnswersThatItIsReady(t *testing.T) {
	d := newDouble(t)
	d.ready = false
	b := open(t, d.config(t))
	started := make(chan error, 1)
	go func() {
		_, err := b.Start(t.Context(), spec("c-0"))
		started <- err
	}()
	require.Eventually(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.allocs) == 1 && d.counted(job)[0].ClientStatus == api.AllocClientStatusRunning
	}, patience, time.Millisecond)
	assert.Empty(t, started)
	assert.Empty(t, list(t, b))
	d.do(func() { d.ready = true })
	require.NoError(t, <-started)
}

func TestTheRankOfAContainerIsTheIndexOfItsAllocation(t *testing.T) {
	d := newDouble(t)
	b := open(t, d.config(t))
	for i, c := range start(t, b, "c-2", "c-1", "c-0") {
		assert.Equal(t, i, c.Rank)
	}
}
