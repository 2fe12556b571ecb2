package nomad

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"berth/orchestrator/backend"
	"berth/slots"
)

var errClosed = errors.New("backend is closed")

// Backend runs containers as allocations. It satisfies backend.Backend.
type Backend struct {
	config Config
	client *api.Client
	http   *http.Client
	feed   backend.Feed
	life   context.Context //nolint:containedctx // of the goroutines, until Close
	cancel context.CancelCauseFunc
	work   sync.WaitGroup
	item   string        // of this orchestrator in variables that several write; another one for each Open
	newJob chan struct{} // has room for one: there is a pool that the stream does not tell of
	seeks  chan struct{} // has room for one: somebody asks for what is not known

	// mu guards what follows and the fields of pools, containers and
	// allocations. Nothing waits while it is held.
	mu     sync.Mutex
	closed bool
	pools  map[string]*pool // by job
	all    map[string]*container
	nodes  map[string]node // that are drained, by ID
	blind  bool            // we may not know of machines
	ended  map[string]end  // IDs that are used up
	sought *sought         // the next reading for those who ask for what is not known; nil: nobody does
}

var _ backend.Backend = (*Backend)(nil)

// Open finds the containers of Config.Pools. It fails when Nomad cannot be
// asked. Close ends it; ctx is for opening only.
func Open(ctx context.Context, config Config) (*Backend, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("open nomad backend: %w", err)
	}
	b := &Backend{
		config: config, newJob: make(chan struct{}, 1), seeks: make(chan struct{}, 1), item: strings.ToLower(rand.Text()[:12]), pools: map[string]*pool{}, all: map[string]*container{}, nodes: map[string]node{}, ended: map[string]end{},
		http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: config.dial}},
	}
	if b.client, err = connect(*config.API, config.dial); err != nil {
		return nil, fmt.Errorf("open nomad backend: %w", err)
	}
	b.life, b.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	for _, spec := range config.Pools {
		p := b.newPool(spec)
		b.pools[p.job] = p
		if _, err := p.readVariables(ctx, 0, 0); err != nil {
			return nil, fmt.Errorf("open nomad backend: %w", err)
		}
	}
	index, err := b.list(ctx, b.jobs())
	if err != nil {
		return nil, fmt.Errorf("open nomad backend: %w", err)
	}
	for _, p := range b.pools {
		b.spawn(p)
	}
	b.work.Go(func() { b.follow(index) })
	b.work.Go(b.seek)
	return b, nil
}

// spawn begins to look after a pool.
func (b *Backend) spawn(p *pool) {
	b.work.Go(func() { p.run(b.life) })
	b.work.Go(func() { p.attend(b.life) })
	b.work.Go(func() { p.tellDemand(b.life) })
}

// Start is backend.Backend's.
func (b *Backend) Start(ctx context.Context, spec backend.Spec) (backend.Container, error) {
	if err := spec.Check(); err != nil {
		return backend.Container{}, err
	}
	if ctx.Err() != nil {
		return backend.Container{}, backend.Interrupted("start", spec.ID, context.Cause(ctx))
	}
	c, err := b.join(spec.Clone())
	if err != nil {
		return backend.Container{}, err
	}
	select {
	case <-c.begun:
	case <-ctx.Done():
		if words, left := b.leave(c); left {
			return backend.Container{}, backend.Interrupted("start", spec.ID, fmt.Errorf("%w%s", context.Cause(ctx), words))
		}
		<-c.begun
	case <-b.life.Done():
		return backend.Container{}, backend.Interrupted("start", spec.ID, errClosed)
	}
	if c.err != nil {
		return backend.Container{}, c.err
	}
	if up, ok := b.feed.Get(spec.ID); ok {
		return up, nil
	}
	return backend.Container{}, backend.Ended(spec.ID, "it is not up any more")
}

// join returns the container of the spec, which it begins to start when there
// is none yet.
func (b *Backend) join(spec backend.Spec) (*container, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.all[spec.ID]
	switch {
	case b.closed:
		return nil, backend.Interrupted("start", spec.ID, errClosed)
	case b.ended[spec.ID].reason != "":
		return nil, backend.Ended(spec.ID, b.ended[spec.ID].reason)
	case c != nil && c.ending():
		return nil, backend.Stopping(spec.ID)
	case c != nil && !c.spec.Equal(spec):
		return nil, backend.OtherSpec(spec.ID)
	case c == nil:
		p := b.pools[b.jobID(spec.Template)]
		if p == nil {
			p = b.newPool(spec)
			b.pools[p.job] = p
			b.spawn(p)
			nudge(b.newJob)
		}
		p.wantLocked(spec)
		c = newContainer(p, spec)
		b.all[spec.ID] = c
		p.waiting = append(p.waiting, c)
		nudge(p.nudge)
	}
	c.waiting++
	return c, nil
}

// leave is a call that waits no longer; the last one takes along what it
// began. It is not left when the start has come to its end meanwhile. words
// are the last that Nomad had to say.
func (b *Backend) leave(c *container) (words string, left bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-c.begun:
		return "", false
	default:
	}
	switch p := c.pool; {
	case p.trouble.request != "":
		words = ": " + p.trouble.request
	case p.trouble.blocked != "":
		words = ": " + p.trouble.held()
	case !p.leadsLocked() && p.duty.holder != "":
		words = ": orchestrator " + p.duty.holder + " scales job " + p.job
	}
	if c.waiting--; c.waiting == 0 {
		c.pool.giveUpLocked(c, backend.Interrupted("start", c.spec.ID, context.Canceled))
	}
	return words, true
}

// Stop is backend.Backend's.
func (b *Backend) Stop(ctx context.Context, id string, _ time.Duration) error {
	b.mu.Lock()
	c := b.all[id]
	if c == nil {
		b.mu.Unlock()
		return nil
	}
	if !c.ending() {
		c.stopped = time.Now()
		if !c.up {
			b.ended[id] = end{"stopped while it was starting", c.stopped}
			c.pool.giveUpLocked(c, slots.Errorf(slots.KindConflict, "container %s was stopped while it was starting", id))
		}
	}
	nudge(c.pool.nudge)
	b.mu.Unlock()
	select {
	case <-c.over:
		return nil
	case <-b.life.Done():
		return backend.Interrupted("stop", id, errClosed)
	case <-ctx.Done():
		b.mu.Lock()
		words := c.pool.trouble.request
		b.mu.Unlock()
		if words != "" {
			words = ": " + words
		}
		return backend.Interrupted("stop", id, fmt.Errorf("%w%s", context.Cause(ctx), words))
	}
}

// end is how a container ended.
type end struct {
	reason string
	at     time.Time
}

// endKept is for how long at least the ID of a container that has ended is known
// to be used up: far longer than anybody goes on trying to start it, or a server
// of Nomad lags behind.
const endKept = time.Hour

// forgetLocked forgets the ends of long ago, but those of containers that an
// allocation is claimed for still: it is not to be taken for them.
func (b *Backend) forgetLocked(now time.Time) {
	claimed := map[string]bool{}
	for _, p := range b.pools {
		for id := range p.allocs {
			claimed[p.claimLocked(id)] = true
		}
	}
	maps.DeleteFunc(b.ended, func(id string, e end) bool { return !claimed[id] && now.Sub(e.at) > endKept })
}

// List is backend.Backend's.
func (b *Backend) List(ctx context.Context) ([]backend.Container, error) {
	if ctx.Err() != nil {
		return nil, slots.Errorf(slots.KindInterrupted, "list containers: %w", context.Cause(ctx))
	}
	return b.feed.List(), nil
}

// Watch is backend.Backend's.
func (b *Backend) Watch(ctx context.Context) iter.Seq[backend.Event] { return b.feed.Watch(ctx) }

// purgeTimeout bounds what a Close does to the jobs.
const purgeTimeout = 10 * time.Second

// Close ends every Watch and what is under way. The containers go on, and are
// found by the next Open, unless Config.Purge says otherwise.
func (b *Backend) Close() error {
	b.mu.Lock()
	closed := b.closed
	b.closed = true
	b.mu.Unlock()
	if closed {
		return nil
	}
	b.feed.Close()
	b.cancel(errClosed)
	b.work.Wait()
	b.leaveDuties()
	var errs []error
	if b.config.Purge {
		ctx, cancel := context.WithTimeout(context.Background(), purgeTimeout)
		defer cancel()
		for job := range b.pools {
			if _, _, err := b.client.Jobs().Deregister(job, true, new(api.WriteOptions).WithContext(ctx)); err != nil {
				errs = append(errs, fmt.Errorf("deregister job %s: %w", job, err))
			}
		}
	}
	b.client.Close()
	b.http.CloseIdleConnections()
	return errors.Join(errs...)
}

// nudge has the one that waits look again. It never blocks.
func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
