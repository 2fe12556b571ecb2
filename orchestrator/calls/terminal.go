package calls

import (
	"context"
	"errors"
	"sync"

	"berth/orchestrator/pool"
	"berth/sandboxd/api"
	"berth/sandboxd/terminal"
	"berth/slots"
)

// Terminal starts a command on a terminal in the slot of the lease, which is
// renewed until the terminal is closed.
func (c *Carrier) Terminal(ctx context.Context, ref pool.Ref, want api.TerminalRequest) (terminal.TTY, error) {
	lease, err := c.Locate(ctx, ref)
	if err != nil {
		return nil, err
	}
	to, err := c.Client(lease)
	if err != nil {
		return nil, err
	}
	renewed, err := c.pools.Renew(ctx, ref, 0)
	if err != nil {
		return nil, err
	}
	done, err := c.use(ctx, renewed)
	if err != nil {
		return nil, err
	}
	session, err := to.Terminal(ctx, ref.SlotID, &ref.Token, want)
	if err != nil {
		done()
		return nil, c.lostOr(ref, err)
	}
	return &remote{Session: session, c: c, ref: ref, done: sync.OnceFunc(done)}, nil
}

// lostOr is the error, or that the lease is lost if it means that.
func (c *Carrier) lostOr(ref pool.Ref, err error) error {
	if e, ok := errors.AsType[*slots.Error](err); ok && e.Kind == slots.KindUnauthorized {
		return slots.Errorf(slots.KindInternal, "container does not know our token")
	}
	if lost := c.pools.Lost(ref, slots.ExecutedMaybe); lost != nil {
		return lost
	}
	return err
}

// remote is a terminal in a container.
type remote struct {
	*terminal.Session
	c    *Carrier
	ref  pool.Ref
	done func()
}

// Wait is terminal.TTY's.
func (r *remote) Wait() (api.TerminalExit, error) {
	exit, err := r.Session.Wait()
	if err != nil {
		err = r.c.lostOr(r.ref, err)
	}
	return exit, err
}

// Close is terminal.TTY's.
func (r *remote) Close() error {
	r.done()
	return r.Session.Close()
}
