package nomad_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
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
	"berth/orchestrator/pool"
	"berth/slots"
)

// world is a cluster with its orchestrators, in a time of its own, and the
// oracle: what every trajectory holds and must not lose.
type world struct {
	t      *testing.T
	d      *double
	net    *pipes
	random *rand.Rand
	seats  []*orchestra
	config nomad.Config

	mu      sync.Mutex        // guards what follows
	agents  map[string]*agent // by URL
	excused map[string]string // why what was in an agent could be lost
	cut     map[string]bool   // orchestrators that Nomad does not answer
	errors  int               // of 10 requests to Nomad that fail with 500
	dice    *rand.Rand        // of those
	held    map[string]pool.Lease
	made    int // trajectories
	counts  map[string]int
}

// orchestra is one orchestrator.
type orchestra struct {
	name    string
	backend *nomad.Backend
	pools   *pool.Pools
}

const (
	simSlots = 3
	simNodes = 4
)

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{
		t: t, d: newDoubleWithoutServer(t), net: &pipes{all: map[string]*pipeListener{}},
		random: rand.New(rand.NewPCG(seed, 0)), dice: rand.New(rand.NewPCG(seed, 2)), //nolint:gosec // of a test
		agents: map[string]*agent{}, excused: map[string]string{}, cut: map[string]bool{}, held: map[string]pool.Lease{}, counts: map[string]int{},
	}
	d := w.d
	d.listen, d.again, d.stopping, d.starting = w.net.listen, 2*time.Second, 3*time.Second, time.Second
	d.pick, d.stops, d.gives, d.fault = w.place, w.stops, w.gives, w.fault
	w.config = nomad.Config{
		API: d.serveOver(t, w.net), Job: jobs.Template{Driver: jobs.RawExec}, Relist: 30 * time.Second, Spare: 20 * time.Second,
		Pools: []backend.Spec{{Template: "t", Slots: simSlots}},
	}.Over(w.net.dial)
	return w
}

// place says where the next allocation goes: to a node that is not drained.
func (w *world) place() string {
	for i := 0; ; i++ {
		id := fmt.Sprintf("node-%d", (len(w.d.allocs)+i)%simNodes)
		if n := w.d.nodes[id]; (n == nil || n.DrainStrategy == nil) && !w.d.unheard(id) {
			return id
		}
	}
}

// gives is the oracle of what is given up because its node is not heard of.
func (w *world) gives(allocID string) {
	one := w.agent(urlOf(w.d.allocs[allocID]))
	w.excuse(urlOf(w.d.allocs[allocID]), "its node was not heard of for too long", len(one.leases()))
	one.mu.Lock()
	one.dead = true
	one.mu.Unlock()
}

// stops is the oracle of stopping: an allocation that is told to stop has no
// lease in it, unless its node's drain has come to its deadline.
func (w *world) stops(allocID string) {
	a := w.d.allocs[allocID]
	one := w.agent(urlOf(a))
	one.mu.Lock()
	one.told = true
	one.mu.Unlock()
	n := w.d.nodes[a.NodeID]
	forced := n != nil && n.DrainStrategy != nil && !n.DrainStrategy.ForceDeadline.IsZero() && !time.Now().Before(n.DrainStrategy.ForceDeadline)
	leases := one.leases()
	if forced {
		w.excuse(urlOf(a), "the drain of its node is over", len(leases))
	} else if len(leases) > 0 {
		assert.Fail(w.t, "a leased slot was stopped before its deadline", "%s %s: %v", a.Name, a.NodeID, leases)
	}
	time.AfterFunc(w.d.stopping, func() {
		one.mu.Lock()
		one.dead = true
		one.mu.Unlock()
	})
}

func urlOf(a *api.Allocation) string {
	return "http://127.0.0.1:" + strconv.Itoa(a.AllocatedResources.Shared.Ports[0].Value)
}

func (w *world) excuse(url, why string, leases int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.excused[url] = why
	w.counts["leases lost with cause"] += leases
}

func (w *world) agent(url string) *agent {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.agents[url] == nil {
		w.agents[url] = newAgent(simSlots, uint64(len(w.agents)))
	}
	return w.agents[url]
}

func (w *world) connect(c backend.Container) (pool.Remote, error) { return w.agent(c.URL), nil }

// fault is what goes wrong with requests to Nomad.
func (w *world) fault(r *http.Request) (int, string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.cut[r.Header.Get(headerWho)]:
		return http.StatusServiceUnavailable, "No route to host"
	case w.dice.IntN(10) < w.errors:
		return http.StatusInternalServerError, "rpc error: No cluster leader"
	}
	return 0, ""
}

// open opens an orchestrator.
func (w *world) open(name string) *orchestra {
	c, at := w.config, *w.config.API
	at.Headers = http.Header{headerWho: {name}}
	c.API, c.Name = &at, name
	o := &orchestra{name: name}
	for {
		var err error
		if o.backend, err = nomad.Open(w.t.Context(), c); err == nil {
			break
		}
		time.Sleep(time.Second)
	}
	template := pool.Template{
		Name: "t", Slots: simSlots, TTL: 24 * time.Hour, MinContainers: 1, MaxContainers: 8, FreeMargin: 2,
		IdleAfter: 5 * time.Second, GrowCooldown: time.Second, ShrinkCooldown: 2 * time.Second,
	}
	var err error
	o.pools, err = pool.New(o.backend, w.connect, pool.Config{Templates: []pool.Template{template}})
	require.NoError(w.t, err)
	return o
}

func (o *orchestra) close(t *testing.T) {
	t.Helper()
	assert.NoError(t, o.pools.Close())
	assert.NoError(t, o.backend.Close())
}

func (w *world) any() *orchestra { return w.seats[w.random.IntN(len(w.seats))] }

// acquire has a new trajectory ask for a slot, which it may not get.
func (w *world) acquire(ctx context.Context, o *orchestra, wait time.Duration) {
	w.mu.Lock()
	w.made++
	name := fmt.Sprintf("tr-%d", w.made)
	w.mu.Unlock()
	l, err := o.pools.Acquire(ctx, pool.Request{Template: "t", Trajectory: name, Wait: wait})
	if err != nil {
		assert.Contains(w.t, []slots.Kind{slots.KindPoolExhausted}, slots.AsError(err).Kind, "%v", err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts["leases"]++
	for other, has := range w.held {
		if has.Container.ID == l.Container.ID && has.Slot.SlotID == l.Slot.SlotID && w.excused[has.Container.URL] == "" {
			assert.Fail(w.t, "a slot has two holders", "%s and %s: %s", other, name, l.Ref())
		}
	}
	w.held[name] = l
}

// release gives back what a trajectory holds, by any orchestrator.
func (w *world) release(o *orchestra, name string) {
	w.mu.Lock()
	l := w.held[name]
	delete(w.held, name)
	excused := w.excused[l.Container.URL]
	w.mu.Unlock()
	_, err := o.pools.Release(w.t.Context(), l.Ref(), true)
	if err != nil && excused == "" {
		// An orchestrator that does not know the container yet cannot release it:
		// the next one does.
		for _, other := range w.seats {
			if _, err = other.pools.Release(w.t.Context(), l.Ref(), true); err == nil {
				return
			}
		}
		assert.Fail(w.t, "a lease was lost", "%s of %s: %v", l.Ref(), name, err)
	}
}

// check is the oracle of leases: what is held is there.
func (w *world) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, l := range w.held {
		if w.excused[l.Container.URL] != "" {
			delete(w.held, name)
			continue
		}
		found := slices.ContainsFunc(w.agents[l.Container.URL].leases(), func(s slots.Lease) bool {
			return s.SlotID == l.Slot.SlotID && s.Token == l.Slot.Token && s.Trajectory == name
		})
		if !assert.True(w.t, found && !w.agents[l.Container.URL].dead, "a lease was lost: %s of %s", l.Ref(), name) {
			delete(w.held, name)
		}
	}
}

func (w *world) holders() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.held))
}

// later does something after a random time of up to most.
func (w *world) later(most time.Duration, do func()) {
	time.AfterFunc(time.Second+time.Duration(w.random.Int64N(int64(most))), do)
}

// operations are what may happen, with their weights.
var operations = []struct {
	name   string
	weight int
	do     func(w *world)
}{
	{"acquire", 30, func(w *world) { w.acquire(w.t.Context(), w.any(), time.Duration(w.random.IntN(10))*time.Second) }},
	{"release", 28, func(w *world) {
		if all := w.holders(); len(all) > 0 {
			w.release(w.any(), all[w.random.IntN(len(all))])
		}
	}},
	{"pressure", 5, func(w *world) {
		var asking sync.WaitGroup
		for range 1 + w.random.IntN(8) {
			o := w.any()
			asking.Go(func() { w.acquire(w.t.Context(), o, 15*time.Second) })
		}
		asking.Wait()
	}},
	{"relief", 5, func(w *world) {
		for _, name := range w.holders() {
			if w.random.IntN(3) > 0 {
				w.release(w.any(), name)
			}
		}
	}},
	{"cordon", 5, func(w *world) {
		o := w.any()
		if all := o.pools.Containers(); len(all) > 0 {
			_ = o.pools.Cordon(w.t.Context(), all[w.random.IntN(len(all))].Container.ID, w.random.IntN(3) == 0) // it may be gone by now
		}
	}},
	{"drain", 5, func(w *world) {
		o := w.any()
		if all := o.pools.Containers(); len(all) > 0 {
			_ = o.pools.Drain(w.t.Context(), all[w.random.IntN(len(all))].Container.ID, 0) // as above
		}
	}},
	{"node drain", 4, (*world).drainNode},
	{"node disconnected", 3, (*world).disconnectNode},
	{"leader cut off", 3, func(w *world) {
		o := w.any()
		for _, one := range w.seats {
			if one.backend.Duty("t").Held {
				o = one
			}
		}
		w.set(func() { w.cut[o.name] = true })
		w.later(time.Minute, func() { w.set(func() { w.cut[o.name] = false }) })
	}},
	{"lock lost", 2, func(w *world) {
		w.d.do(func() {
			if v := w.d.variables[dutyPath]; v.LockID() != "" {
				w.d.unlock(dutyPath, v.LockID())
			}
		})
	}},
	{"restart", 2, func(w *world) {
		at := w.random.IntN(len(w.seats))
		w.seats[at].close(w.t)
		w.set(func() { w.cut = map[string]bool{} })
		w.seats[at] = w.open(w.seats[at].name)
	}},
	{"allocation lost", 3, func(w *world) {
		w.d.do(func() {
			all := w.d.counted(job)
			if len(all) == 0 {
				return
			}
			a := all[w.random.IntN(len(all))]
			if w.d.unheard(a.NodeID) {
				return
			}
			one := w.agent(urlOf(a))
			w.excuse(urlOf(a), "it was lost", len(one.leases()))
			one.mu.Lock()
			one.dead = true
			one.mu.Unlock()
			w.d.fail(a.ID, api.TaskTerminated, "Exit Code: 137")
		})
	}},
	{"events lost", 3, func(w *world) {
		w.d.do(func() { w.d.silent = true })
		w.later(20*time.Second, func() { w.d.do(func() { w.d.silent = false }) })
	}},
	{"streams closed", 3, func(w *world) { w.d.do(func() { w.d.epoch++ }) }},
	{"deployment", 3, func(w *world) {
		w.d.do(func() {
			if w.d.jobs[job] != nil {
				w.d.deploy(job, api.DeploymentStatusRunning)
			}
		})
		w.later(20*time.Second, func() {
			w.d.do(func() {
				if v := w.d.deployed[job]; v != nil && v.Status == api.DeploymentStatusRunning {
					w.d.deploy(job, api.DeploymentStatusSuccessful)
				}
			})
		})
	}},
	{"errors", 3, func(w *world) {
		w.set(func() { w.errors = 5 })
		w.later(15*time.Second, func() { w.set(func() { w.errors = 0 }) })
	}},
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// drainNode drains a node, with a deadline or without, while others are there
// to take its place.
func (w *world) drainNode() {
	id := fmt.Sprintf("node-%d", w.random.IntN(simNodes))
	var deadline time.Time
	if w.random.IntN(3) > 0 {
		deadline = time.Now().Add(time.Duration(5+w.random.IntN(60)) * time.Second).Truncate(time.Second)
	}
	w.d.do(func() {
		if w.spare(id) {
			w.d.drain(id, deadline)
			w.later(2*time.Minute, func() { w.d.do(func() { w.d.undrain(id) }) })
		}
	})
}

// spare reports whether the node is at work, and enough others are. d.mu is held.
func (w *world) spare(id string) bool {
	away := 0
	for i := range simNodes {
		other := fmt.Sprintf("node-%d", i)
		n := w.d.nodes[other]
		if n != nil && n.DrainStrategy != nil || w.d.unheard(other) {
			if other == id {
				return false
			}
			away++
		}
	}
	return away < simNodes/2
}

// disconnectNode has Nomad not hear of a node for a while, mostly for less than
// it waits.
func (w *world) disconnectNode() {
	id := fmt.Sprintf("node-%d", w.random.IntN(simNodes))
	w.d.do(func() {
		if w.spare(id) {
			w.d.disconnect(id)
			w.later([]time.Duration{2 * time.Minute, 2 * time.Minute, 20 * time.Minute}[w.random.IntN(3)], func() { w.d.do(func() { w.d.reconnect(id) }) })
		}
	})
}

// pick chooses an operation by its weight.
func (w *world) pick() int {
	sum := 0
	for _, o := range operations {
		sum += o.weight
	}
	n := w.random.IntN(sum)
	for i, o := range operations {
		if n -= o.weight; n < 0 {
			return i
		}
	}
	return 0
}

// seedOf is BERTH_NOMAD_SEED, or another at every run, which is told.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("BERTH_NOMAD_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("BERTH_NOMAD_SEED=%d", seed)
	return seed
}

func TestNoLeasedSlotIsLostBeforeItsDeadline(t *testing.T) {
	n, err := strconv.Atoi(cmp.Or(os.Getenv("BERTH_NOMAD_OPERATIONS"), "1000"))
	require.NoError(t, err)
	seed := seedOf(t)
	t.Logf("%d operations", n)
	began := time.Now()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed)
		first := time.Now()
		for i := range 3 {
			w.seats = append(w.seats, w.open(fmt.Sprintf("o-%d", i)))
		}
		t.Cleanup(func() {
			for _, o := range w.seats {
				o.close(t)
			}
		})
		for range n {
			o := operations[w.pick()]
			w.set(func() { w.counts[o.name]++ })
			o.do(w)
			time.Sleep(time.Duration(w.random.IntN(3000)) * time.Millisecond)
			w.check()
			if t.Failed() {
				break
			}
		}
		t.Logf("simulated %v: %v", time.Since(first).Round(time.Second), w.counts)
		w.d.mu.Lock()
		t.Logf("allocations %d, counts lowered %d times, requests %v", len(w.d.allocs), len(w.d.stopped), w.d.requests)
		w.d.mu.Unlock()
		if n >= 1000 && !t.Failed() {
			assert.Greater(t, w.counts["leases"], n/10, "or little was tried")
			assert.NotEmpty(t, w.d.lowered())
		}
	})
	t.Log("took", time.Since(began).Round(time.Millisecond))
}
