package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"berth/orchestrator/backend"
	"berth/slots"
)

// container is one that is not known to have ended. One goroutine lives its
// life, see run.
type container struct {
	b    *Backend
	dir  directory
	spec backend.Spec
	log  hclog.Logger
	ran  bool // its process ran when we found it

	cancel context.CancelCauseFunc // interrupts its life; told says what for
	begun  chan struct{}           // closed when it is up, or never will be
	over   chan struct{}           // closed when its life is over
	err    error                   // why it never came up; set before begun is closed
	// stopErr is what went wrong with its end; set before over is closed.
	stopErr error

	// These are guarded by the backend's mutex.
	ours    bool // we begin it, and nobody else knows of it yet
	waiting int  // calls of Start
	told    error
	grace   time.Duration
}

// tellLocked interrupts the container's life. The first reason holds, but a
// start that was abandoned can still be stopped.
func (c *container) tellLocked(why error, grace time.Duration) {
	if c.told != nil && (!errors.Is(why, errStopped) || errors.Is(c.told, errStopped)) {
		return
	}
	c.told, c.grace = why, grace
	c.cancel(why)
}

// order is what the container was told, and the grace it has for it.
func (c *container) order() (grace time.Duration, ours bool, why error) {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	return max(c.grace, leastGrace), c.ours, c.told
}

// run is the container's life as we see it: we look after it, or we watch
// another orchestrator that does. life ends when the backend is closed, own
// also when the container is to end.
func (c *container) run(life, own context.Context) {
	defer close(c.over)
	if err := c.makePlace(); err != nil {
		c.neverUp(slots.Errorf(slots.KindInternal, "start container %s: %w", c.spec.ID, err))
		c.forget("")
		return
	}
	lock, err := c.dir.lock(os.O_CREATE)
	if errors.Is(err, errLocked) {
		lock, err = c.observe(life, own)
	}
	switch {
	case err == nil:
		c.lookAfter(own, lock)
	case errors.Is(err, errClosed):
		c.neverUp(backend.Interrupted("start", c.spec.ID, errClosed))
		c.forget("")
	case errors.Is(err, fs.ErrNotExist):
		c.vanished()
	default:
		c.broken(err)
	}
}

// vanished is a container that another orchestrator has removed: it was
// stopped, or its start has failed there, and then its ID may be used again.
func (c *container) vanished() {
	if c.isBegun() {
		c.gone("stopped")
		return
	}
	c.forget("")
	c.neverUp(slots.Errorf(slots.KindInternal, "start container %s: another orchestrator has removed it meanwhile", c.spec.ID))
}

// makePlace makes the directory of a container that begins.
func (c *container) makePlace() error {
	if _, ours, _ := c.order(); !ours {
		return nil
	}
	err := os.Mkdir(string(c.dir), 0o711) //nolint:gosec // slots pass through it
	if errors.Is(err, fs.ErrExist) {
		return nil // left by somebody who got no further, or begun by another orchestrator
	}
	return err
}

// up tells that the container answers at the address.
func (c *container) up(s *state, token string) {
	c.b.feed.Up(backend.Container{
		ID: c.spec.ID, Template: c.spec.Template, URL: "http://" + s.Address, Token: token, Slots: c.spec.Slots, Started: s.Started,
	})
	c.b.mu.Lock()
	c.ours = false
	c.b.mu.Unlock()
	c.answer(nil)
}

// neverUp answers the calls that wait for a start that is not to be.
func (c *container) neverUp(err error) { c.answer(err) }

// answer has Start return. Only the first answer counts.
func (c *container) answer(err error) {
	select {
	case <-c.begun:
	default:
		c.err = err
		close(c.begun)
	}
}

// gone is the end of the container's life for good.
func (c *container) gone(reason string) {
	c.forget(reason)
	c.b.feed.Down(c.spec.ID, reason)
	c.neverUp(backend.Ended(c.spec.ID, reason))
}

// broken is a container that we can do nothing for. It stays where it is.
func (c *container) broken(err error) {
	c.log.Error("cannot look after container", "error", err)
	c.stopErr = slots.Errorf(slots.KindInternal, "stop container %s: %w", c.spec.ID, err)
	c.forget(err.Error())
	c.b.feed.Down(c.spec.ID, err.Error())
	c.neverUp(slots.Errorf(slots.KindInternal, "start container %s: %w", c.spec.ID, err))
}

// forget takes the container out of the backend. Its ID is used up when there
// is a reason.
func (c *container) forget(reason string) {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	delete(c.b.all, c.spec.ID)
	if reason != "" {
		c.b.ended[c.spec.ID] = reason
	}
}

// observe watches while another orchestrator looks after the container. It
// returns the lock when that has let go of it, fs.ErrNotExist when the
// container has ended, and errClosed when life does.
func (c *container) observe(life, own context.Context) (*os.File, error) {
	c.b.mu.Lock()
	c.ours = false
	c.b.mu.Unlock()
	tick := time.NewTicker(c.b.config.Look)
	defer tick.Stop()
	told := own.Done()
	for {
		select {
		case <-life.Done():
			return nil, errClosed
		case <-told:
			told = nil
			if grace, _, why := c.order(); errors.Is(why, errStopped) {
				if err := c.dir.askStop(grace); err != nil {
					return nil, err
				}
			}
		case <-tick.C:
		}
		if life.Err() != nil {
			return nil, errClosed
		}
		if err := c.glance(life); err != nil {
			return nil, err
		}
		lock, err := c.dir.lock(0)
		if errors.Is(err, fs.ErrNotExist) {
			os.Remove(string(c.dir)) //nolint:errcheck // who held the lock does the same next, unless it was killed
		}
		if !errors.Is(err, errLocked) {
			return lock, err
		}
	}
}

// glance tells of what another orchestrator has made of the container.
func (c *container) glance(ctx context.Context) error {
	s, err := c.dir.load()
	switch {
	case errors.Is(err, fs.ErrNotExist): // not yet, or not any more: the lock tells
		return nil
	case err != nil:
		return err
	case s.Ended != "":
		return nil // the lock is free in a moment
	case !s.Spec.Equal(c.spec):
		c.neverUp(backend.OtherSpec(c.spec.ID))
		return nil
	case s.Address == "":
		return nil
	}
	up, ok := c.b.feed.Get(c.spec.ID)
	if ok && up.URL == "http://"+s.Address {
		return nil
	}
	p, err := open(s.Process, c.dir.dataDir())
	if err != nil {
		return nil //nolint:nilerr // who looks after it sees to that
	}
	defer p.close()
	if token, err := c.dir.readToken(); err == nil && c.b.answers(ctx, s.Address, token) == nil {
		c.up(&s, token)
	}
	return nil
}

func (c *container) isBegun() bool {
	select {
	case <-c.begun:
		return true
	default:
		return false
	}
}

// lookAfter lives the container's life while we have its lock.
func (c *container) lookAfter(own context.Context, lock *os.File) {
	defer lock.Close()
	s, err := c.dir.load()
	_, ours, _ := c.order()
	switch {
	case errors.Is(err, fs.ErrNotExist) && ours:
		s, err = state{Spec: c.spec, Started: time.Now().UTC().Round(0)}, nil
	case errors.Is(err, fs.ErrNotExist): // what was half removed has no state
		if err := c.dir.remove(); err != nil {
			c.log.Error("cannot remove what is left of a container", "error", err)
		}
		c.vanished()
		return
	case err == nil && s.Ended != "":
		c.gone(s.Ended)
		return
	case err == nil && !s.Spec.Equal(c.spec):
		c.neverUp(backend.OtherSpec(c.spec.ID))
		c.forget("")
		return
	}
	var token string
	if err == nil {
		token, err = c.dir.readToken()
	}
	if err != nil {
		c.broken(err)
		return
	}
	if s.Stop {
		c.b.mu.Lock()
		c.tellLocked(errStopped, 0)
		c.b.mu.Unlock()
	}
	k := &keeping{container: c, state: s, token: token}
	if !ours {
		k.adoptProcess()
	}
	k.run(own)
}

// startError is the answer to calls that wait for the first start.
func (c *container) startError(words string) error {
	return slots.Errorf(slots.KindInternal, "start container %s: %s", c.spec.ID, strings.TrimSpace(words))
}

// askStop asks the orchestrator that looks after the container for its end.
func (d directory) askStop(grace time.Duration) error {
	if err := d.replace("stop", []byte(grace.String())); err != nil {
		return fmt.Errorf("ask for stop: %w", err)
	}
	return nil
}

// askedStop reports whether somebody has asked for the container's end.
func (d directory) askedStop() (grace time.Duration, asked bool) {
	text, err := os.ReadFile(d.join("stop"))
	if err != nil {
		return 0, false
	}
	grace, err = time.ParseDuration(string(text))
	return grace, err == nil
}

// removeUnused removes the directory of a container that has ended, unless
// somebody looks after it.
func (d directory) removeUnused() error {
	if _, err := os.Stat(string(d)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := d.lock(os.O_CREATE)
	if err != nil {
		return err
	}
	defer lock.Close()
	return d.remove()
}
