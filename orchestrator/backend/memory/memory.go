// Package memory is a backend for tests and simulations. Its containers are
// names that nothing serves: nobody answers at their URLs. It runs under
// testing/synctest.
package memory

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"berth/orchestrator/backend"
	"berth/slots"
)

// Config says how the containers behave. The zero value starts any number of
// them at once.
type Config struct {
	Max   int                           // how many may be there at once; 0: any number
	Start time.Duration                 // how long a start takes
	Stop  time.Duration                 // how long a container takes to end, if its grace allows
	URL   func(id string, n int) string // address in its nth life, from 0 on; nil: one that nobody serves
	Fail  func(spec backend.Spec) error // why it does not start, or nil; nil: everything starts

	// Duty says who starts and stops containers; nil: this backend's user alone.
	Duty func(template string) backend.Duty
}

// errClosed is what calls hear that wait while the backend is closed.
var errClosed = errors.New("backend is closed")

// Backend starts containers that are not there. It satisfies backend.Backend.
type Backend struct {
	config Config
	feed   backend.Feed
	work   sync.WaitGroup // starts and ends under way
	closed chan struct{}

	// mu guards what follows. Nothing waits while it is held.
	mu    sync.Mutex
	all   map[string]*container
	ended map[string]bool // IDs that are used up
}

var _ backend.Backend = (*Backend)(nil)

// container is one that was asked for and has not ended. Its fields but the
// channels are guarded by the backend's mutex.
type container struct {
	spec    backend.Spec
	lives   int           // how often it was up
	waiting int           // calls of Start that wait for it
	err     error         // why it never came up; set before begun is closed
	stopped bool          // stop is closed
	stop    chan struct{} // closed when it is to end
	begun   chan struct{} // closed when it is up, or never will be
	over    chan struct{} // closed when it has ended
}

// New makes a backend without containers. Close ends it.
func New(config Config) *Backend {
	if config.URL == nil {
		config.URL = func(id string, n int) string { return fmt.Sprintf("http://%s.invalid:%d", id, 8080+n) }
	}
	if config.Duty == nil {
		config.Duty = func(string) backend.Duty { return backend.Duty{Held: true} }
	}
	return &Backend{config: config, closed: make(chan struct{}), all: map[string]*container{}, ended: map[string]bool{}}
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
		if b.leave(c) {
			return backend.Container{}, backend.Interrupted("start", spec.ID, context.Cause(ctx))
		}
	}
	if c.err != nil {
		return backend.Container{}, c.err
	}
	if up, ok := b.feed.Get(spec.ID); ok {
		return up, nil
	}
	return backend.Container{}, backend.Ended(spec.ID, "it was stopped, or its machine is gone")
}

// join returns the container of the spec, which it begins to start when there
// is none yet.
func (b *Backend) join(spec backend.Spec) (*container, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.all[spec.ID]
	switch {
	case b.isClosed():
		return nil, backend.Interrupted("start", spec.ID, errClosed)
	case b.ended[spec.ID]:
		return nil, backend.Ended(spec.ID, "it was stopped, or its machine is gone")
	case c != nil && c.stopped:
		return nil, backend.Stopping(spec.ID)
	case c != nil && !c.spec.Equal(spec):
		return nil, backend.OtherSpec(spec.ID)
	case c == nil && b.config.Max > 0 && len(b.all) >= b.config.Max:
		return nil, slots.Errorf(slots.KindPoolExhausted, "start container %s: there are %d already", spec.ID, len(b.all))
	case c == nil:
		c = &container{spec: spec, stop: make(chan struct{}), begun: make(chan struct{}), over: make(chan struct{})}
		b.all[spec.ID] = c
		b.work.Go(func() { b.begin(c) })
	}
	c.waiting++
	return c, nil
}

// leave is a call that waits no longer. The last one takes what it began
// along. It is false when the start has come to its end meanwhile.
func (b *Backend) leave(c *container) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-c.begun:
		return false
	default:
	}
	if c.waiting--; c.waiting == 0 {
		c.err = backend.Interrupted("start", c.spec.ID, context.Canceled)
		b.dropLocked(c)
	}
	return true
}

// begin has the container come up after its time, unless it is stopped first.
func (b *Backend) begin(c *container) {
	timer := time.NewTimer(b.config.Start)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.stop:
	case <-b.closed:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.all[c.spec.ID] != c: // left
		return
	case c.stopped:
		c.err = slots.Errorf(slots.KindConflict, "container %s was stopped while it was starting", c.spec.ID)
		b.ended[c.spec.ID] = true
	case b.isClosed():
		c.err = backend.Interrupted("start", c.spec.ID, errClosed)
	case b.config.Fail != nil:
		if err := b.config.Fail(c.spec); err != nil {
			c.err = slots.Errorf(slots.KindInternal, "start container %s: %w", c.spec.ID, err)
		}
	}
	if c.err != nil {
		b.dropLocked(c)
		return
	}
	b.feed.Up(backend.Container{
		ID: c.spec.ID, Template: c.spec.Template, URL: b.config.URL(c.spec.ID, 0), Token: rand.Text(),
		Slots: c.spec.Slots, Started: time.Now(),
	})
	c.lives = 1
	close(c.begun)
}

// dropLocked forgets a container that never came up.
func (b *Backend) dropLocked(c *container) {
	delete(b.all, c.spec.ID)
	close(c.begun)
	close(c.over)
}

// Stop is backend.Backend's.
func (b *Backend) Stop(ctx context.Context, id string, grace time.Duration) error {
	b.mu.Lock()
	c := b.all[id]
	if c == nil {
		b.mu.Unlock()
		return nil
	}
	if !c.stopped {
		c.stopped = true
		close(c.stop)
		if c.lives > 0 {
			b.work.Go(func() { b.end(c, min(b.config.Stop, max(grace, 0))) })
		}
	}
	b.mu.Unlock()
	select {
	case <-c.over:
		return nil
	case <-ctx.Done():
		return backend.Interrupted("stop", id, context.Cause(ctx))
	}
}

func (b *Backend) end(c *container, after time.Duration) {
	timer := time.NewTimer(after)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.over: // crashed
	case <-b.closed:
	}
	b.finish(c, "stopped")
}

// finish ends a container that is up. It is false when it has ended already.
func (b *Backend) finish(c *container, reason string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c == nil || c.lives == 0 || b.all[c.spec.ID] != c {
		return false
	}
	delete(b.all, c.spec.ID)
	b.ended[c.spec.ID] = true
	b.feed.Down(c.spec.ID, reason)
	close(c.over)
	return true
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

// Duty is backend.Backend's.
func (b *Backend) Duty(template string) backend.Duty { return b.config.Duty(template) }

// Crash ends a container that is up for good, for the reason. It is false
// when there is none.
func (b *Backend) Crash(id, reason string) bool {
	b.mu.Lock()
	c := b.all[id]
	b.mu.Unlock()
	return b.finish(c, reason)
}

// Flap is a crash that the container comes back from, at another address if
// Config.URL says so. It is false when there is none that is up.
func (b *Backend) Flap(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.all[id]
	up, ok := b.feed.Get(id)
	if c == nil || !ok {
		return false
	}
	up.URL = b.config.URL(id, c.lives)
	c.lives++
	b.feed.Up(up)
	return true
}

// Drain announces that the container's machine is drained until the deadline,
// or is not any more. It is false when there is none that is up.
func (b *Backend) Drain(id string, draining bool, deadline time.Time) bool {
	return b.tell(id, func(up *backend.Container) { up.Draining, up.Deadline = draining, deadline })
}

// Unhear announces that the container's machine is not heard of, and when it is
// given up, or that it is heard of again. It is false when there is none that is
// up.
func (b *Backend) Unhear(id string, unheard bool, deadline time.Time) bool {
	return b.tell(id, func(up *backend.Container) { up.Unheard, up.Deadline = unheard, deadline })
}

// tell announces another state of a container. It is false when there is none
// that is up.
func (b *Backend) tell(id string, change func(up *backend.Container)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	up, ok := b.feed.Get(id)
	if !ok {
		return false
	}
	change(&up)
	b.feed.Up(up)
	return true
}

// Starting reports whether the container was asked for and is not up yet.
func (b *Backend) Starting(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.all[id]
	return c != nil && c.lives == 0
}

// Close ends every Watch and what is under way. It always succeeds.
func (b *Backend) Close() error {
	b.mu.Lock()
	if !b.isClosed() {
		close(b.closed)
	}
	b.mu.Unlock()
	b.work.Wait()
	b.feed.Close()
	return nil
}

func (b *Backend) isClosed() bool {
	select {
	case <-b.closed:
		return true
	default:
		return false
	}
}
