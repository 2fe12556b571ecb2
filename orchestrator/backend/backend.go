package backend

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"time"
)

// Container is one running sandboxd as its backend knows it.
type Container struct {
	ID       string    // unique among all containers of the backend, never used twice
	Template string    // name of the template it was started from
	URL      string    // of its sandboxd, like http://127.0.0.1:8080
	Token    string    // bearer token of its sandboxd; secret: String, GoString and JSON leave it out
	Slots    int       // how many it serves
	Started  time.Time // for the first time; a restart after a crash does not change it

	// Rank says which containers can be spared: leases go to those of low rank
	// first, and idle ones of high rank are stopped first. 0 where the backend
	// can stop any as well as any other.
	Rank int

	// Draining says that whoever has the machine wants it empty: no new lease
	// is given, and the container is to be stopped when it has none left.
	Draining bool
	// Unheard says that whoever has the machine does not hear of it: no new
	// lease is given until it does, and nothing else changes. It may be reached
	// from here all the same.
	Unheard  bool
	Deadline time.Time // when what is left in a draining one is ended, or an unheard one is given up; the zero time: never, or it is not known

	// Wish is what operators want of it, where the backend keeps that for all
	// orchestrators, and for those that come later.
	Wish Wish

	// Version counts what the backend has told of the container since it was
	// opened: of two states of it the one of the higher version is the newer. 0:
	// the backend does not count. JSON leaves it out.
	Version uint64
}

// Sooner is the earlier of two deadlines, where the zero time is none.
func Sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// redacted stands where a secret is.
const redacted = "(redacted)"

// withoutToken is the container as anybody may see it.
func (c Container) withoutToken() Container {
	if c.Token != "" {
		c.Token = redacted
	}
	return c
}

// String describes the container without its token.
func (c Container) String() string { return fmt.Sprintf("%+v", plain(c.withoutToken())) }

// GoString describes the container in Go syntax without its token.
func (c Container) GoString() string {
	return fmt.Sprintf("backend.Container%+v", plain(c.withoutToken()))
}

// plain is a Container without its methods.
type plain Container

// MarshalJSON writes the container without its token:
// {id, template, url, slots, started}.
func (c Container) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		ID       string    `json:"id"`
		Template string    `json:"template"`
		URL      string    `json:"url"`
		Slots    int       `json:"slots"`
		Started  time.Time `json:"started"`
	}{c.ID, c.Template, c.URL, c.Slots, c.Started})
}

// EventKind says what happened to a container.
type EventKind string

// The two kinds of events.
const (
	Up   EventKind = "up"   // started or adopted, and answering
	Down EventKind = "down" // ended for good: not coming back under this ID
)

// Event is one change that Watch tells of. An up of a container that is up
// already replaces what was known of it: it may answer at another URL now.
type Event struct {
	Kind      EventKind
	Container Container
	Reason    string // why it is down; "" for an up
}

// Backend starts, stops, lists and watches containers. All methods may be
// called at once. The package's comment has the meaning of the errors.
type Backend interface {
	// Start starts what the Spec says and returns once the container answers
	// that it is ready. Starting the same ID again with the same Spec is
	// starting it once: the call joins the one under way, or returns the
	// container that runs. When ctx ends first, what was begun is undone,
	// unless another call waits for it too.
	Start(ctx context.Context, spec Spec) (Container, error)
	// Stop has the container end: it takes no new calls, running ones have
	// grace to end, then everything of it is killed and what it kept on disk
	// is removed. It returns when that is done. An ID that is unknown or has
	// ended is no error. Stopping one that is starting ends the start.
	Stop(ctx context.Context, id string, grace time.Duration) error
	// List returns the containers that are up, adopted ones included, sorted
	// by ID. One that crashed and is about to be restarted is among them, and
	// so is one that is being stopped until it has ended.
	List(ctx context.Context) ([]Container, error)
	// Watch yields an up for every container that List would return, then
	// every change, until ctx ends or the backend is closed. A watcher that is
	// slow holds up nobody and misses no down; several ups of one container
	// that it has not seen yet may come as the last of them.
	Watch(ctx context.Context) iter.Seq[Event]
	// Duty says who starts and stops the containers of the template. Where
	// several orchestrators share them it is one of them, and may become
	// another one at any time. What has begun when it does comes to no effect.
	Duty(template string) Duty
}
