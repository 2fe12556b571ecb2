package calls

import (
	"context"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"berth/orchestrator/backend"
	"berth/orchestrator/dispatch"
	"berth/sandboxd/api"
	"berth/sandboxd/client"
	"berth/slots"
)

// links are the containers that calls were carried to.
type links struct {
	mu   sync.RWMutex // guards byID; no container is asked under it
	byID map[string]*link
}

// link is one container. It is a dispatch.Remote that outlives a change of the
// container's address.
type link struct {
	dispatcher *dispatch.Dispatcher
	now        atomic.Pointer[connection]
	silent     atomic.Pointer[slots.Error] // why it takes no calls now; nil: it does
}

// connection is a link at one address.
type connection struct {
	container backend.Container
	client    *client.Client
}

// Execute is dispatch.Remote's.
func (l *link) Execute(ctx context.Context, call api.Call) (api.Result, error) {
	return l.now.Load().client.Execute(ctx, call)
}

// BatchStream is dispatch.Remote's.
func (l *link) BatchStream(ctx context.Context, calls []api.Call) iter.Seq2[api.Result, error] {
	return l.now.Load().client.BatchStream(ctx, calls)
}

// Result is dispatch.Remote's.
func (l *link) Result(ctx context.Context, executionID string) (api.Result, string, error) {
	return l.now.Load().client.Result(ctx, executionID)
}

// Cancel is dispatch.Remote's.
func (l *link) Cancel(ctx context.Context, executionID string) (api.Result, string, error) {
	return l.now.Load().client.Cancel(ctx, executionID)
}

// at reports whether the link leads to where the container is now.
func (l *link) at(c backend.Container) bool {
	have := l.now.Load().container
	return have.URL == c.URL && have.Token == c.Token
}

// link finds or makes the link to a container that the pools know.
func (c *Carrier) link(to backend.Container) (*link, error) {
	c.links.mu.RLock()
	l := c.links.byID[to.ID]
	c.links.mu.RUnlock()
	if l != nil && l.at(to) {
		return l.speaking()
	}
	made, err := c.config.Connect(to)
	if err != nil {
		return nil, slots.Errorf(slots.KindInternal, "connect to container %s: %w", to.ID, err).WithExecuted(slots.ExecutedNever)
	}
	l, old, err := c.put(to, made)
	if old != nil {
		old.Close()
	}
	if err != nil {
		return nil, err
	}
	return l.speaking()
}

// speaking is the link, unless its container is silent.
func (l *link) speaking() (*link, error) {
	if silent := l.silent.Load(); silent != nil {
		return nil, silent.WithExecuted(slots.ExecutedNever)
	}
	return l, nil
}

// put has the link lead to where the container is now. It returns the client
// that is of no use any more.
func (c *Carrier) put(to backend.Container, made *client.Client) (l *link, old *client.Client, err error) {
	c.links.mu.Lock()
	defer c.links.mu.Unlock()
	if l = c.links.byID[to.ID]; l != nil {
		if l.at(to) {
			return l, made, nil // somebody else was faster
		}
		return l, l.now.Swap(&connection{to, made}).client, nil
	}
	l = &link{}
	l.now.Store(&connection{to, made})
	if err := c.router.Add(to.ID, l); err != nil {
		return nil, made, slots.AsError(err).WithExecuted(slots.ExecutedNever)
	}
	if l.dispatcher, err = c.router.Of(to.ID); err != nil {
		return nil, made, err
	}
	c.links.byID[to.ID] = l
	gone := c.pools.Gone(to.ID)
	c.tasks.Go(func() { c.part(to.ID, l, gone) })
	return l, nil, nil
}

// listenEvery is how often it is seen whether a container has become silent, or
// is heard again.
const listenEvery = time.Second

// part ends the link when its container is gone. Until then it ends the calls
// of one that has become silent: nothing else would before the lease is over,
// since a call may take as long as it likes. The leases stay, so who sends such
// a call again under its id when the container is back hears what became of it.
func (c *Carrier) part(id string, l *link, gone <-chan struct{}) {
	defer func() { l.now.Load().client.Close() }()
	listen := time.NewTicker(listenEvery)
	defer listen.Stop()
	for {
		select {
		case <-gone:
			c.links.mu.Lock()
			delete(c.links.byID, id)
			c.links.mu.Unlock()
			c.router.Remove(id, "it ended")
			return
		case <-c.closed:
			return
		case <-listen.C:
		}
		silent := c.pools.Silent(id, l.now.Load().client.Heard())
		l.silent.Store(silent)
		if silent != nil {
			l.dispatcher.Cut(silent)
		}
	}
}
