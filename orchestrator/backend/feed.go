package backend

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"
)

// Feed is the containers of a backend that are up, and who wants to hear of
// changes. Backends keep one and answer List and Watch from it, so that all
// of them keep the promises of Watch in the same way. The zero value is ready.
type Feed struct {
	// mu guards everything below. Nobody is called while it is held.
	mu       sync.Mutex
	up       map[string]Container
	watchers map[*watcher]struct{}
	closed   bool
}

// watcher is what one Watch has not yielded yet: at most one up and one down
// for each container, since no ID is used twice.
type watcher struct {
	pending []Event
	ups     map[string]int // where in pending the up of a container is
	wake    chan struct{}  // has room for one: there is news
}

func (w *watcher) add(e Event) {
	if at, waiting := w.ups[e.Container.ID]; waiting && e.Kind == Up {
		w.pending[at] = e
		return
	}
	if e.Kind == Up {
		w.ups[e.Container.ID] = len(w.pending)
	}
	w.pending = append(w.pending, e)
	w.nudge()
}

func (w *watcher) nudge() {
	select {
	case w.wake <- struct{}{}:
	default: // it has not looked since the last one
	}
}

// Up says that the container answers. What is known already is not told again;
// whatever else is told has the next Version.
func (f *Feed) Up(c Container) {
	f.mu.Lock()
	defer f.mu.Unlock()
	known, ok := f.up[c.ID]
	c.Version = known.Version
	if f.closed || ok && known == c {
		return
	}
	c.Version++
	if f.up == nil {
		f.up = map[string]Container{}
	}
	f.up[c.ID] = c
	f.tellLocked(Event{Kind: Up, Container: c})
}

// Down says that the container has ended for good. One that never was up is
// not spoken of.
func (f *Feed) Down(id, reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.up[id]
	if f.closed || !ok {
		return
	}
	delete(f.up, id)
	f.tellLocked(Event{Kind: Down, Container: c, Reason: reason})
}

func (f *Feed) tellLocked(e Event) {
	for w := range f.watchers {
		w.add(e)
	}
}

// Get returns the container if it is up.
func (f *Feed) Get(id string) (Container, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, ok := f.up[id]
	return c, ok
}

// List returns the containers that are up, sorted by ID.
func (f *Feed) List() []Container {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listLocked()
}

func (f *Feed) listLocked() []Container {
	all := make([]Container, 0, len(f.up))
	for _, c := range f.up {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b Container) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// Watch is Backend.Watch.
func (f *Feed) Watch(ctx context.Context) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		w := f.subscribe()
		defer f.unsubscribe(w)
		for {
			events, closed := f.take(w)
			for _, e := range events {
				if ctx.Err() != nil || !yield(e) {
					return
				}
			}
			if closed {
				return
			}
			select {
			case <-w.wake:
			case <-ctx.Done():
				return
			}
		}
	}
}

// subscribe adds a watcher that has an up for everything that is up now, so
// that nothing falls between those and the changes.
func (f *Feed) subscribe() *watcher {
	w := &watcher{ups: map[string]int{}, wake: make(chan struct{}, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.listLocked() {
		w.add(Event{Kind: Up, Container: c})
	}
	if f.watchers == nil {
		f.watchers = map[*watcher]struct{}{}
	}
	f.watchers[w] = struct{}{}
	return w
}

func (f *Feed) unsubscribe(w *watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.watchers, w)
}

func (f *Feed) take(w *watcher) (events []Event, closed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	events, w.pending = w.pending, nil
	clear(w.ups)
	return events, f.closed
}

// Close ends every Watch once it has yielded what it owes. What is up stays
// listed; later changes are told to nobody.
func (f *Feed) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for w := range f.watchers {
		w.nudge()
	}
}
