package httpapi

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"berth/sandboxd/api"
	"berth/slots"
)

// Bounds of GET /v1/events.
const (
	maxViewers = 64                     // at once
	lookEvery  = time.Second            // between two events
	lookSoon   = 200 * time.Millisecond // before a viewer who came has to wait no longer
	backlog    = 4                      // events that wait for a viewer
)

// viewers are those who watch. While there are some, one goroutine looks at
// the pools for all of them: an event is made and encoded once, however many
// get it. A viewer that does not keep up misses events and gets a full one
// instead, so that nobody waits for it and nothing piles up.
type viewers struct {
	s *Server

	mu  sync.Mutex // guards what is below; nobody is written to under it
	now *showing   // nil: nobody watches
}

// showing is one stretch of watching, from the first viewer to the last.
type showing struct {
	all   map[*viewer]bool
	came  chan struct{} // holds a token when somebody has come
	stop  chan struct{} // closed when the last has left
	ended chan struct{} // closed when its goroutine has ended
}

// viewer is one who watches.
type viewer struct {
	events chan []byte
	behind bool // is to get a full event; guarded by viewers.mu
}

// join adds a viewer; leave has to be called for it.
func (v *viewers) join() (*viewer, *showing, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.now == nil {
		v.now = &showing{all: map[*viewer]bool{}, came: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{})}
		go v.show(v.now) // the last to leave waits for it
	}
	if len(v.now.all) >= maxViewers {
		return nil, nil, slots.Errorf(slots.KindPoolExhausted, "%d viewers are watching: that is the most", maxViewers)
	}
	one := &viewer{events: make(chan []byte, backlog), behind: true}
	v.now.all[one] = true
	select {
	case v.now.came <- struct{}{}:
	default:
	}
	return one, v.now, nil
}

// leave takes a viewer off.
func (v *viewers) leave(one *viewer, of *showing) {
	v.mu.Lock()
	delete(of.all, one)
	last := len(of.all) == 0
	if last {
		v.now = nil
	}
	v.mu.Unlock()
	if last {
		close(of.stop)
		<-of.ended
	}
}

// show makes events until the last viewer has left.
func (v *viewers) show(to *showing) {
	defer close(to.ended)
	at := scene{s: v.s, rows: map[string]json.RawMessage{}}
	next := time.NewTimer(0)
	defer next.Stop()
	looked := time.Time{}
	for {
		select {
		case <-to.stop:
			return
		case <-to.came:
			next.Reset(max(0, lookSoon-time.Since(looked)))
			continue
		case <-next.C:
		}
		looked = time.Now()
		next.Reset(lookEvery)
		if err := v.tell(to, &at, looked); err != nil {
			v.s.logger.Error("event not made", "error", err)
		}
	}
}

// tell looks and gives every viewer its event.
func (v *viewers) tell(to *showing, at *scene, now time.Time) error {
	change, err := at.look(now)
	if err != nil {
		return err
	}
	delta, err := encodeEvent("change", change)
	if err != nil {
		return err
	}
	v.mu.Lock()
	wanted := false
	for one := range to.all {
		wanted = wanted || one.behind
	}
	v.mu.Unlock()
	var full []byte
	if wanted {
		if full, err = encodeEvent("full", at.full()); err != nil {
			return err
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for one := range to.all {
		event := delta
		if one.behind {
			event = full
		}
		if event == nil {
			continue // it came meanwhile
		}
		select {
		case one.events <- event:
			one.behind = false
		default:
			one.behind = true
		}
	}
	return nil
}

// watch answers GET /v1/events: with how all stands, and then once a second
// with what has changed, until the client goes away or the server stops.
func (s *Server) watch(c echo.Context) error {
	ctx := c.Request().Context()
	if err := s.Pools.Ready(ctx); err != nil {
		return err
	}
	one, of, err := s.viewers.join()
	if err != nil {
		return err
	}
	defer s.viewers.leave(one, of)
	w := c.Response()
	streamHeader(w.Header(), api.TypeEventStream)
	s.extend(c, 0)
	w.WriteHeader(http.StatusOK)
	w.Flush()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.ending:
			return nil
		case event := <-one.events:
			s.extend(c, len(event))
			if _, err := w.Write(event); err != nil {
				return nil // the client is gone
			}
			w.Flush()
		}
	}
}
