package calls

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"strconv"
	"time"

	"berth/orchestrator/dispatch"
	"berth/orchestrator/pool"
	"berth/sandboxd/api"
	"berth/sandboxd/client"
	"berth/slots"
)

// Answer is what came of a call.
type Answer struct {
	dispatch.Answer
	Acquire time.Duration // until the call had its slot; 0: the trajectory held it already
	Lease   pool.Ref      // of the slot; zero: it never had one
}

// Execute runs a call of a trajectory in its slot, which the first call
// acquires. call.ExecutionID is the trajectory's own name for the call and
// need be unique among its calls only; SlotID and Token are not the caller's
// to say. The error says why the call could not be carried out; when the
// container said so, the result holds it as well.
func (c *Carrier) Execute(ctx context.Context, trajectory string, call api.Call) (Answer, error) {
	began := time.Now()
	lease, fresh, err := c.acquire(ctx, trajectory)
	var took time.Duration
	if fresh {
		took = time.Since(began)
	}
	if err != nil {
		c.noteRefused(trajectory, call.Tool, took, err)
		return Answer{Answer: dispatch.Answer{Result: api.Result{ExecutionID: call.ExecutionID}}, Acquire: took}, err
	}
	done, err := c.use(ctx, lease)
	if err != nil {
		return Answer{Answer: dispatch.Answer{Result: api.Result{ExecutionID: call.ExecutionID}}, Acquire: took, Lease: lease.Ref()}, c.Told(trajectory, lease, err)
	}
	defer done()
	answer, err := c.do(ctx, lease, dispatch.Call{Call: call}, took)
	return Answer{answer, took, lease.Ref()}, c.Told(trajectory, lease, err)
}

// Do runs a call in the slot of the lease, with the lease's token.
// call.ExecutionID need be unique among the calls of the lease only.
func (c *Carrier) Do(ctx context.Context, lease pool.Lease, call dispatch.Call) (dispatch.Answer, error) {
	return c.do(ctx, lease, call, 0)
}

func (c *Carrier) do(ctx context.Context, lease pool.Lease, call dispatch.Call, acquire time.Duration) (dispatch.Answer, error) {
	l, err := c.link(lease.Container)
	if err != nil {
		return dispatch.Answer{Result: api.Result{ExecutionID: call.ExecutionID}}, err
	}
	// It may run on this goroutine, which Submit and Wait cannot.
	p := &Pending{c: c, ref: lease.Ref(), name: call.ExecutionID}
	noted := c.Note(lease, call.Tool)
	noted.Acquire = acquire
	answer, err := p.answered(l.dispatcher.Do(ctx, p.addressed(call)))
	noted.Ended(answer, err)
	return answer, err
}

// Stream is Do for a call whose caller looks on while it runs: when it is its
// turn, look is called with the events of the execution, and the timing that
// its result will have. It returns the result, or why it has none.
func (c *Carrier) Stream(ctx context.Context, lease pool.Lease, call dispatch.Call, look func(events iter.Seq2[api.Event, error], timing func(api.Result) dispatch.Timing) (api.Result, error)) (dispatch.Answer, error) {
	l, err := c.link(lease.Container)
	if err != nil {
		return dispatch.Answer{Result: api.Result{ExecutionID: call.ExecutionID}}, err
	}
	p := &Pending{c: c, ref: lease.Ref(), name: call.ExecutionID}
	noted := c.Note(lease, call.Tool)
	call = p.addressed(call)
	answer, err := p.answered(l.dispatcher.Stream(ctx, call, func(ctx context.Context, sent *dispatch.Pending) (api.Result, error) {
		return look(l.now.Load().client.Stream(ctx, call.Call), func(r api.Result) dispatch.Timing { return sent.Timing(&r) })
	}))
	noted.Ended(answer, err)
	return answer, err
}

// Pending is a call that was submitted.
type Pending struct {
	c    *Carrier
	ref  pool.Ref
	name string // of the call, as its caller says
	sent *dispatch.Pending
	note Note
}

// Submit is Do that returns when the call has its place; calls of one lease
// run in the order of their Submits. Somebody has to Wait for the call.
func (c *Carrier) Submit(ctx context.Context, lease pool.Lease, call dispatch.Call) (*Pending, error) {
	l, err := c.link(lease.Container)
	if err != nil {
		return nil, err
	}
	p := &Pending{c: c, ref: lease.Ref(), name: call.ExecutionID}
	if p.sent, err = l.dispatcher.Submit(ctx, p.addressed(call)); err != nil {
		_, err = p.answered(dispatch.Answer{}, err)
		return nil, err
	}
	p.note = c.Note(lease, call.Tool)
	return p, nil
}

// Wait returns what came of the call, see dispatch.Pending. It is called once.
func (p *Pending) Wait(ctx context.Context) (dispatch.Answer, error) {
	answer, err := p.answered(p.sent.Wait(ctx))
	p.note.Ended(answer, err)
	return answer, err
}

// addressed is the call as the container wants it.
func (p *Pending) addressed(call dispatch.Call) dispatch.Call {
	call.SlotID, call.Token, call.ExecutionID = p.ref.SlotID, &p.ref.Token, ExecutionID(p.ref, p.name)
	return call
}

// answered is what the caller hears: of the call by its own name, and of an
// error that the lease is lost if it means that.
func (p *Pending) answered(answer dispatch.Answer, err error) (dispatch.Answer, error) {
	if p.name != "" {
		answer.Result.ExecutionID = p.name
	}
	if err != nil {
		if lost := p.c.pools.Lost(p.ref, slots.AsError(err).Executed); lost != nil {
			err = lost
		}
	}
	return answer, err
}

// Locate finds the container of a lease that its holder names. Whether the
// lease holds is for the container to say.
func (c *Carrier) Locate(ctx context.Context, ref pool.Ref) (pool.Lease, error) {
	// The pools know where it is now, and by which token it is reached; a link
	// may be older.
	known, err := c.pools.Locate(ctx, ref)
	if err != nil {
		return pool.Lease{}, err
	}
	return pool.Lease{Container: known, Slot: slots.Lease{SlotID: ref.SlotID, Token: ref.Token}}, nil
}

// Client is the client of the container that the lease is in.
func (c *Carrier) Client(lease pool.Lease) (*client.Client, error) {
	l, err := c.link(lease.Container)
	if err != nil {
		return nil, err
	}
	return l.now.Load().client, nil
}

// maxName is the longest name that is part of an execution's id as it is.
const maxName = 128

// ExecutionID is the id in the container of the execution that the holder of
// the lease calls name: of two leases it is never the same, so that neither
// another trajectory nor a later one of the same name gets its result. ""
// stays "".
func ExecutionID(ref pool.Ref, name string) string {
	if name == "" {
		return ""
	}
	if len(name) > maxName {
		sum := sha256.Sum256([]byte(name))
		name = "sha256-" + hex.EncodeToString(sum[:])
	}
	return prefix(ref) + name
}

func prefix(ref pool.Ref) string {
	return ref.SlotID + ":" + strconv.FormatUint(ref.Token, 10) + ":"
}

// acquire finds the slot of the trajectory, or gets one; fresh says which.
func (c *Carrier) acquire(ctx context.Context, trajectory string) (lease pool.Lease, fresh bool, err error) {
	if !c.uses.doubted(trajectory) {
		lease, ok, err := c.Find(ctx, trajectory)
		if err != nil {
			// It is told once.
			c.pools.Forget(c.config.Template, trajectory)
			return pool.Lease{}, false, never(err)
		}
		if ok {
			return lease, false, nil
		}
	}
	lease, err = c.pools.Acquire(ctx, pool.Request{
		Template: c.config.Template, Trajectory: trajectory, TTL: c.config.Idle, Wait: c.config.Wait,
	})
	if err != nil {
		return pool.Lease{}, true, never(err)
	}
	c.uses.trust(trajectory)
	return lease, true, nil
}

// Find finds the slot of the trajectory. The error says why its lease ended
// without it.
func (c *Carrier) Find(ctx context.Context, trajectory string) (lease pool.Lease, ok bool, err error) {
	held, err := c.pools.Lookup(ctx, c.config.Template, trajectory)
	if err != nil || len(held) == 0 || held[0].Further {
		return pool.Lease{}, false, err
	}
	return held[0], true, nil
}

// never says of an error that nothing was sent.
func never(err error) error { return slots.AsError(err).WithExecuted(slots.ExecutedNever) }

// Told notes what the trajectory is about to hear of its lease: having heard
// that it is over, it may begin anew.
func (c *Carrier) Told(trajectory string, lease pool.Lease, err error) error {
	if err == nil {
		return nil
	}
	switch slots.AsError(err).Kind {
	case slots.KindSlotLost, slots.KindLeaseExpired, slots.KindFenced:
		c.uses.doubt(trajectory, lease.Ref())
		c.pools.Forget(c.config.Template, trajectory)
	default:
	}
	return err
}

// Release gives back the slot of the trajectory, pristine. Whatever goes wrong
// with that is not the trajectory's concern any more: the slot is released
// when its container answers, or set aside, or gone.
func (c *Carrier) Release(ctx context.Context, trajectory string) {
	// An error says that the lease has ended, which is what is wanted.
	lease, ok, _ := c.Find(ctx, trajectory)
	c.pools.Forget(c.config.Template, trajectory)
	c.uses.trust(trajectory)
	if !ok {
		return
	}
	if _, err := c.pools.Release(ctx, lease.Ref(), true); err != nil {
		c.log.Warn("slot was not released as it should", "lease", lease.Ref().String(), "error", err)
	}
}

// Use is Find for who is about to use the slot otherwise than by a call. done
// ends the use.
func (c *Carrier) Use(ctx context.Context, trajectory string) (lease pool.Lease, done func(), err error) {
	lease, ok, err := c.Find(ctx, trajectory)
	if err != nil {
		c.pools.Forget(c.config.Template, trajectory)
		return pool.Lease{}, nil, never(err)
	}
	if !ok {
		return pool.Lease{}, nil, ErrNoSlot
	}
	if done, err = c.use(ctx, lease); err != nil {
		return pool.Lease{}, nil, c.Told(trajectory, lease, err)
	}
	return lease, done, nil
}

// ErrNoSlot is a trajectory that holds no slot. Clients match on its text.
var ErrNoSlot = slots.Errorf(slots.KindNotFound, "No active slot for trajectory (run a sandbox tool first)")
