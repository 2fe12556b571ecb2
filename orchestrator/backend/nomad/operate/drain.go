package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// leastPrefix is how much of an ID names it.
const leastPrefix = 4

// Find finds the allocation of the job that is meant by the ID of a container,
// or by the beginning of its own. The error is a *NotFoundError when there is
// none.
func (o *Operator) Find(ctx context.Context, job, name string) (Allocation, error) {
	all, err := o.allocations(ctx, job)
	if err != nil {
		return Allocation{}, err
	}
	var found []Allocation
	for _, a := range all {
		if a.Ended() {
			continue
		}
		if a.Container == name {
			return a, nil
		}
		if len(name) >= leastPrefix && strings.HasPrefix(a.ID, name) {
			found = append(found, a)
		}
	}
	switch len(found) {
	case 0:
		return Allocation{}, &NotFoundError{fmt.Sprintf("container or allocation %q of job %s", name, job), `"berth nomad status" lists them`}
	case 1:
		return found[0], nil
	}
	return Allocation{}, fmt.Errorf("find allocation %q: it is the beginning of %d", name, len(found))
}

// Stop has Nomad stop the allocation, whatever runs in it, and put another in
// its place. Its running calls have the job's kill timeout.
func (o *Operator) Stop(ctx context.Context, id string) error {
	if _, err := o.client.Allocations().Stop(&api.Allocation{ID: id}, new(api.QueryOptions).WithContext(ctx)); err != nil {
		return fmt.Errorf("stop allocation %.8s: %w", id, err)
	}
	return nil
}

// Gone waits until the allocation has ended.
func (o *Operator) Gone(ctx context.Context, id string) error {
	q := &api.QueryOptions{WaitTime: look}
	for {
		a, meta, err := o.client.Allocations().Info(id, q.WithContext(ctx))
		switch {
		case missing(err):
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("follow allocation %.8s: %w", id, context.Cause(ctx))
		case err != nil:
			return fmt.Errorf("follow allocation %.8s: %w", id, err)
		case a.ClientTerminalStatus():
			return nil
		}
		q.WaitIndex = meta.LastIndex
	}
}

// Node finds the machine that is meant by its name or the beginning of its ID,
// and the allocations of the job on it. The error is a *NotFoundError when
// there is none.
func (o *Operator) Node(ctx context.Context, job, name string) (id string, on []Allocation, err error) {
	nodes, _, err := o.client.Nodes().List(new(api.QueryOptions).WithContext(ctx))
	if err != nil {
		return "", nil, fmt.Errorf("list nodes: %w", err)
	}
	for _, n := range nodes {
		if n.Name == name || len(name) >= leastPrefix && strings.HasPrefix(n.ID, name) {
			if id != "" {
				return "", nil, fmt.Errorf("find node %q: it may be %.8s or %.8s", name, id, n.ID)
			}
			id = n.ID
		}
	}
	if id == "" {
		return "", nil, &NotFoundError{fmt.Sprintf("node %q", name), `"nomad node status" lists them`}
	}
	all, err := o.allocations(ctx, job)
	for _, a := range all {
		if a.NodeID == id && !a.Ended() {
			on = append(on, a)
		}
	}
	return id, on, err
}

// DrainNode has Nomad move everything off the machine within the time, and keep
// new work away from it. Drained follows that, from the index. After an error
// the machine is not drained, unless no Nomad can be asked any more.
func (o *Operator) DrainNode(ctx context.Context, id string, within time.Duration) (index uint64, err error) {
	answer, err := o.client.Nodes().UpdateDrainOpts(id, &api.DrainOptions{
		DrainSpec: &api.DrainSpec{Deadline: within}, Meta: map[string]string{"message": "berth nomad drain"},
	}, new(api.WriteOptions).WithContext(ctx))
	if err == nil {
		return answer.LastIndex, nil
	}
	if _, answered := errors.AsType[api.UnexpectedResponseError](err); !answered && o.drains(ctx, id) {
		return 0, nil // only the answer was lost
	}
	return 0, fmt.Errorf("drain node %.8s: %w", id, err)
}

// drains reports whether the machine is being drained, also when ctx has ended.
func (o *Operator) drains(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
	defer cancel()
	node, _, err := o.client.Nodes().Info(id, new(api.QueryOptions).WithContext(ctx))
	return err == nil && node.DrainStrategy != nil
}

// afterwards bounds what is asked when the caller waits no longer.
const afterwards = 5 * time.Second

// ErrTakenBack is that somebody has ended a drain before it was done.
var ErrTakenBack = errors.New("somebody has taken the drain back")

// Drained waits until all has left the machine. The error is ErrTakenBack, or
// ErrGoesOn when it is not followed to its end.
func (o *Operator) Drained(ctx context.Context, id string, index uint64, progress Progress) error {
	for m := range o.client.Nodes().MonitorDrain(ctx, id, index, false) {
		if m.Level == api.MonitorMsgLevelError {
			return fmt.Errorf("follow drain of node %.8s: %s: %w", id, m.Message, ErrGoesOn)
		}
		progress("%s", m.Message)
		if m.Level != api.MonitorMsgLevelInfo { // else the drain may have ended
			continue
		}
		node, _, err := o.client.Nodes().Info(id, new(api.QueryOptions).WithContext(ctx))
		if err == nil && node.DrainStrategy == nil && node.LastDrain != nil && node.LastDrain.Status == api.DrainStatusCanceled {
			return fmt.Errorf("follow drain of node %.8s: %w", id, ErrTakenBack)
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("follow drain of node %.8s: %w: %w", id, context.Cause(ctx), ErrGoesOn)
	}
	return nil
}
