package pool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"berth/orchestrator/backend"
	"berth/slots"
)

// Pools are the pools of all templates of one orchestrator. All methods may be
// called at once.
type Pools struct {
	fleet   Fleet
	connect Connect
	cfg     Config
	pools   map[string]*pool // by template; fixed
	names   []string         // of the templates, sorted; fixed

	ctx    context.Context //nolint:containedctx // the life of everything that a caller's leaving must not end
	cancel context.CancelCauseFunc
	ready  chan struct{} // closed when the view was rebuilt
	ending chan struct{} // closed when nobody may wait any more
	end    func()        // closes it
	scaled chan struct{} // holds a token when a decision should not wait for its time

	// tasks are all goroutines. Under mu, so that none begins after Close.
	mu         sync.RWMutex
	closed     bool
	tasks      sync.WaitGroup
	containers map[string]*container // of all pools
	came       chan struct{}         // closed when there is another one, for a new channel
	foreign    map[string]bool       // containers of templates that are not known, told once
}

// New makes the pools of the templates and begins to rebuild their view; what
// needs it waits until that is done. Close ends it.
func New(fleet Fleet, connect Connect, cfg Config) (*Pools, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	p := &Pools{
		fleet: fleet, connect: connect, cfg: cfg.withDefaults(), pools: map[string]*pool{},
		ctx: ctx, cancel: cancel, ready: make(chan struct{}), scaled: make(chan struct{}, 1),
		containers: map[string]*container{}, came: make(chan struct{}), foreign: map[string]bool{},
	}
	for _, t := range cfg.Templates {
		p.pools[t.Name] = newPool(p, t.withDefaults())
	}
	p.ending = make(chan struct{})
	p.end = sync.OnceFunc(func() { close(p.ending) })
	p.names = slices.Sorted(maps.Keys(p.pools))
	p.spawn(p.run)
	p.spawn(p.scale)
	return p, nil
}

// spawn runs f until it returns; Close ends its context and waits for it. After
// Close it does nothing. It may be called with a pool's mutex held.
func (p *Pools) spawn(f func(ctx context.Context)) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return false
	}
	p.tasks.Go(func() { f(p.ctx) })
	return true
}

// EndQueues refuses those who wait for a slot or for the view, now and from now
// on, with slots.KindDraining. What needs no wait is done as before, until
// Close.
func (p *Pools) EndQueues() {
	p.end()
	for _, pool := range p.pools {
		pool.mu.Lock()
		for w := range pool.queue.all() {
			pool.endLocked(w, nil, errClosed())
		}
		pool.mu.Unlock()
	}
}

// ended reports whether EndQueues was called.
func (p *Pools) ended() bool {
	select {
	case <-p.ending:
		return true
	default:
		return false
	}
}

// Close refuses those who wait, ends all watching and waits for it. Leases and
// containers stay as they are.
func (p *Pools) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel(errClosed())
	p.EndQueues()
	p.tasks.Wait()
	return nil
}

func errClosed() *slots.Error {
	return slots.Errorf(slots.KindDraining, "the pool is shutting down")
}

// Ready waits until the view was rebuilt from the containers.
func (p *Pools) Ready(ctx context.Context) error {
	select {
	case <-p.ready:
		return nil
	default:
	}
	select {
	case <-p.ready:
		return nil
	case <-ctx.Done():
		return left(ctx, "wait for pools to be read")
	case <-p.ending:
		return errClosed()
	}
}

// left is the error of a caller that did not wait for the end: of the kind
// that it was sent away with, if it was.
func left(ctx context.Context, doing string) *slots.Error {
	cause := context.Cause(ctx)
	if e, ok := errors.AsType[*slots.Error](cause); ok {
		return e.WithExecuted(slots.ExecutedNever)
	}
	return slots.Errorf(slots.KindInterrupted, "%s: %w", doing, cause).WithExecuted(slots.ExecutedNever)
}

// pool finds the pool of a template.
func (p *Pools) pool(template string) (*pool, error) {
	if pool, ok := p.pools[template]; ok {
		return pool, nil
	}
	return nil, slots.Errorf(slots.KindNotFound, "template %.80q is not known", template)
}

// container finds a container of any pool; nil if there is none.
func (p *Pools) container(id string) *container {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.containers[id]
}

// run keeps the set of containers what the fleet says it is.
func (p *Pools) run(ctx context.Context) {
	for rebuilt := false; ctx.Err() == nil; {
		listed, err := p.fleet.List(ctx)
		if err == nil {
			p.reconcile(listed)
			if !rebuilt {
				rebuilt = p.rebuilt(ctx)
			}
			for event := range p.fleet.Watch(ctx) {
				p.hear(event)
			}
		} else if ctx.Err() == nil {
			p.cfg.Log.Error("containers not listed", "error", err)
		}
		pause(ctx, time.Second)
	}
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// reconcile makes the known containers those that are listed.
func (p *Pools) reconcile(listed []backend.Container) {
	there := map[string]bool{}
	for _, c := range listed {
		there[c.ID] = true
		p.adopt(c)
	}
	p.mu.RLock()
	known := slices.Collect(maps.Values(p.containers))
	p.mu.RUnlock()
	for _, c := range known {
		if !there[c.id] {
			c.pool.drop(c, "it is not there any more")
		}
	}
}

// rebuilt waits until every container was read or found unreachable.
func (p *Pools) rebuilt(ctx context.Context) bool {
	p.mu.RLock()
	known := slices.Collect(maps.Values(p.containers))
	p.mu.RUnlock()
	for _, c := range known {
		select {
		case <-c.read:
		case <-c.gone:
		case <-ctx.Done():
			return false
		}
	}
	close(p.ready)
	return true
}

func (p *Pools) hear(event backend.Event) {
	switch event.Kind {
	case backend.Up:
		p.adopt(event.Container)
	case backend.Down:
		for _, pool := range p.pools {
			pool.fallen(event.Container.ID)
		}
		if c := p.container(event.Container.ID); c != nil {
			c.pool.drop(c, event.Reason)
		}
	}
}

// adopt takes up a container, or what has changed of one.
func (p *Pools) adopt(known backend.Container) {
	pool, ok := p.pools[known.Template]
	if !ok {
		if !p.foreign[known.ID] { // only run and starts of ours come here, and starts are of known templates
			p.foreign[known.ID] = true
			p.cfg.Log.Warn("container of an unknown template is left alone", "container", known.ID)
		}
		return
	}
	if err := pool.adopt(known); err != nil {
		p.cfg.Log.Error("container not connected", "container", known.ID, "error", err)
	}
}

// Known is what is known of a container now; false: there is no such one. It
// drains also while it is unheard, for those who hold leases there.
func (p *Pools) Known(container string) (backend.Container, bool) {
	c := p.container(container)
	if c == nil {
		return backend.Container{}, false
	}
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	return c.shown(), true
}

// Gone is closed once the container is no more, with everything that was in
// it. Of one that is not known it is closed.
func (p *Pools) Gone(container string) <-chan struct{} {
	if c := p.container(container); c != nil {
		return c.gone
	}
	gone := make(chan struct{})
	close(gone)
	return gone
}

// Lost says whether the lease is lost for a reason that its holder could not
// know: slots.KindSlotLost when its container is gone or was not reached for
// longer than the lease lasts, nil otherwise. executed is what the caller
// knows of the call that it asks for: slots.ExecutedNever when nothing was
// sent, slots.ExecutedMaybe when no answer came.
func (p *Pools) Lost(ref Ref, executed slots.Executed) error {
	c := p.container(ref.Container)
	if c == nil {
		return errGone(ref).WithExecuted(executed)
	}
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	s, ok := c.slots[ref.SlotID]
	if c.silent && (!ok || s.token > ref.Token || s.token == ref.Token && s.lease == nil) {
		return slots.Errorf(slots.KindSlotLost, "container %s was not reached for longer than lease %s lasts", c.id, ref).WithExecuted(executed)
	}
	return nil
}

// Silent says why the container counts as silent: slots.KindContainerUnreachable
// when it has failed Config.Misses looks and was not heard for Config.LostAfter,
// nil otherwise. heard is when something else came from it last, as far as the
// caller knows: a sign of life as good as the answer to a look.
func (p *Pools) Silent(container string, heard time.Time) *slots.Error {
	c := p.container(container)
	if c == nil {
		return nil
	}
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	now := time.Now()
	if !c.silent || now.Sub(c.seen) < p.cfg.LostAfter || now.Sub(heard) < p.cfg.LostAfter {
		return nil
	}
	return slots.Errorf(slots.KindContainerUnreachable, "container %s is silent: %s", c.id, describe(c, now))
}

func errGone(ref Ref) *slots.Error {
	return slots.Errorf(slots.KindSlotLost, "container %.80s is gone, and slot %.80s with it", ref.Container, ref.SlotID)
}

// describe is a container's silence for people.
func describe(c *container, now time.Time) string {
	return fmt.Sprintf("it did not answer for %v: %v", now.Sub(c.seen).Round(time.Millisecond), c.misread)
}
