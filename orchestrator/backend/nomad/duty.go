package nomad

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/hashicorp/nomad/api"

	"berth/jobs"
	"berth/orchestrator/backend"
	"berth/slots"
)

// duty is the lock of a pool: who holds it scales the job. The backend's mutex
// guards it.
type duty struct {
	id     string    // of the lock; "": it is another's, or nobody's
	until  time.Time // when it may be another's, unless it was renewed before
	modify uint64    // of its variable, as it was read last
	holder string    // who has it, as the variable says
	moved  bool      // its variable was changed, and not by us: it may have come free, or be another's
}

// itemHolder is the item of the lock's variable that names who has it.
const itemHolder = "holder"

var (
	errHeld    = errors.New("another orchestrator holds the lock")
	errMoved   = errors.New("the lock has been changed meanwhile")
	errUnknown = errors.New("this Nomad knows no locks on variables, and is too old: it takes 1.8.2 or newer")
)

// dutyPath is the variable that the lock is on.
func (p *pool) dutyPath() string { return jobs.VariablePath(p.job) + "/duty" }

// leadsLocked reports whether it is on us to scale the job. It goes by our own
// clock, so that it is not when we were not heard for too long, whatever Nomad
// makes of that.
func (p *pool) leadsLocked() bool { return p.duty.id != "" && time.Now().Before(p.duty.until) }

// Duty is backend.Backend's. A template that no container was started of has
// no job yet, and nobody scales it.
func (b *Backend) Duty(template string) backend.Duty {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pools[b.jobID(template)]
	if p == nil {
		return backend.Duty{Shared: true}
	}
	return backend.Duty{Held: p.leadsLocked(), Shared: true, Holder: p.duty.holder, Demand: p.demandLocked(), Trouble: p.trouble.String()}
}

// takeDuty takes the lock. The error is errHeld when another has it.
func (p *pool) takeDuty(ctx context.Context) error {
	c := p.b.config
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, c.lease())
	defer cancel()
	locked, _, err := p.b.client.Variables().AcquireLock(&api.Variable{
		Path: p.dutyPath(), Items: map[string]string{itemHolder: c.Name},
		Lock: &api.VariableLock{TTL: c.lease().String(), LockDelay: c.LockDelay.String()},
	}, new(api.WriteOptions).WithContext(ctx))
	switch {
	case statusOf(err) == http.StatusConflict:
		return errHeld
	case err != nil:
		return fmt.Errorf("lock variable %s: %w", p.dutyPath(), err)
	case locked.LockID() == "":
		return fmt.Errorf("lock variable %s: %w", p.dutyPath(), errUnknown)
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	p.duty = duty{id: locked.LockID(), until: began.Add(c.lease()), modify: locked.ModifyIndex, holder: c.Name}
	p.trouble.request, p.known.read = "", false // the one before may have changed the job
	p.b.config.Logger.Info("this orchestrator scales the job", "job", p.job, "holder", c.Name)
	nudge(p.nudge)
	return nil
}

// renewDuty has the lock last for another TTL from began on.
func (p *pool) renewDuty(ctx context.Context, began time.Time) error {
	p.b.mu.Lock()
	id, until := p.duty.id, p.duty.until
	p.b.mu.Unlock()
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	v := &api.Variable{Path: p.dutyPath(), Items: map[string]string{itemHolder: p.b.config.Name}, Lock: &api.VariableLock{ID: id}}
	if _, _, err := p.b.client.Variables().RenewLock(v, new(api.WriteOptions).WithContext(ctx)); err != nil {
		return fmt.Errorf("renew lock of variable %s: %w", p.dutyPath(), err)
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	p.duty.until = began.Add(p.b.config.lease())
	nudge(p.nudge) // after a while without, there may be something to do
	return nil
}

// loseDuty ends what was begun while the lock was ours.
func (p *pool) loseDuty(why error) {
	p.b.config.Logger.Warn("this orchestrator scales the job no more", "job", p.job, "error", why)
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	p.duty.id, p.duty.holder = "", ""
	for len(p.waiting) > 0 {
		c := p.waiting[0]
		p.giveUpLocked(c, slots.Errorf(slots.KindInterrupted, "start container %s: the lock of job %s was lost, and another orchestrator may scale it", c.spec.ID, p.job))
	}
}

// readDuty takes in who has the lock.
func (p *pool) readDuty(ctx context.Context, one *api.VariableMetadata) error {
	p.b.mu.Lock()
	known := p.duty.modify >= one.ModifyIndex
	p.b.mu.Unlock()
	if known {
		return nil
	}
	v, _, err := p.b.client.Variables().Peek(one.Path, new(api.QueryOptions).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("read variable %s: %w", one.Path, err)
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if v != nil && v.ModifyIndex > p.duty.modify {
		p.duty.modify, p.duty.moved = v.ModifyIndex, true
		if p.duty.id == "" {
			p.duty.holder = v.Items[itemHolder]
		}
	}
	return nil
}

// dutyMoved reports, once, whether the lock's variable was changed.
func (p *pool) dutyMoved() bool {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	moved := p.duty.moved
	p.duty.moved = false
	return moved
}

// leaveTimeout bounds what a Close does for who scales next.
const leaveTimeout = 2 * time.Second

// leaveDuties gives the locks back, so that nobody waits for them. What cannot
// be given back ends by itself.
func (b *Backend) leaveDuties() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	for _, p := range b.pools {
		b.mu.Lock() // who asks for the Duty need not know of the Close
		id := p.duty.id
		p.duty.id = ""
		b.mu.Unlock()
		if id == "" {
			continue
		}
		v := &api.Variable{Path: p.dutyPath(), Lock: &api.VariableLock{ID: id}} // a release takes no items
		if _, _, err := b.client.Variables().ReleaseLock(v, new(api.WriteOptions).WithContext(ctx)); err != nil {
			b.config.Logger.Debug("lock is left to end by itself", "job", p.job, "error", err)
		}
	}
}
