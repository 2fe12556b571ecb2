package dispatch

import (
	"context"
	"errors"
	"sync"

	"berth/sandboxd/api"
	"berth/slots"
)

// Router holds the Dispatchers of all containers by the containers' ids, which
// are never used twice. All methods may be called at once.
type Router struct {
	config Config

	// mu guards what is below. No Dispatcher is called under it.
	mu     sync.RWMutex
	byID   map[string]*Dispatcher
	closed bool
}

// NewRouter makes a Router without containers, whose Dispatchers will have the
// config.
func NewRouter(config Config) *Router {
	return &Router{config: config, byID: map[string]*Dispatcher{}}
}

// Add begins to dispatch to a container. One that is there already stays as it
// is. After Close it is KindDraining.
func (r *Router) Add(id string, remote Remote) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return slots.Errorf(slots.KindDraining, "router takes no more containers")
	}
	if r.byID[id] == nil {
		r.byID[id] = New(remote, r.config)
	}
	return nil
}

// Remove forgets a container that is down. Its calls end with KindSlotLost and
// the reason; those that were not sent were never executed.
func (r *Router) Remove(id, reason string) {
	r.mu.Lock()
	d := r.byID[id]
	delete(r.byID, id)
	r.mu.Unlock()
	if d != nil {
		d.Abort(slots.Errorf(slots.KindSlotLost, "container %s is down: %s", id, reason))
	}
}

// Of returns the Dispatcher of a container. One that is not there, or no
// longer, is KindSlotLost.
func (r *Router) Of(id string) (*Dispatcher, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if d := r.byID[id]; d != nil {
		return d, nil
	}
	if r.closed {
		return nil, slots.Errorf(slots.KindDraining, "router takes no more calls")
	}
	return nil, slots.Errorf(slots.KindSlotLost, "container %s is not there", id).WithExecuted(slots.ExecutedNever)
}

// Do runs a call in a container, see Dispatcher.Do.
func (r *Router) Do(ctx context.Context, id string, call Call) (Answer, error) {
	d, err := r.Of(id)
	if err != nil {
		return Answer{Result: api.Result{ExecutionID: call.ExecutionID}}, err
	}
	return d.Do(ctx, call)
}

// Stats returns the numbers of every container by its id.
func (r *Router) Stats() map[string]Stats {
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := make(map[string]Stats, len(r.byID))
	for id, d := range r.byID {
		all[id] = d.Stats()
	}
	return all
}

// Close closes the Dispatchers of all containers at once, see
// Dispatcher.Close.
func (r *Router) Close(ctx context.Context) error {
	r.mu.Lock()
	all := r.byID
	r.byID, r.closed = map[string]*Dispatcher{}, true
	r.mu.Unlock()
	errs := make(chan error, len(all))
	for _, d := range all {
		go func() { errs <- d.Close(ctx) }() // waited for below
	}
	var err error
	for range all {
		err = errors.Join(err, <-errs)
	}
	return err
}
