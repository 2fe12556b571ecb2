package operate

import (
	"context"
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
		return Allocation{}, &NotFoundError{fmt.Sprintf("container or allocation %q of job %s", name, job)}
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
		return "", nil, &NotFoundError{fmt.Sprintf("node %q", name)}
	}
	all, err := o.allocations(ctx, job)
	for _, a := range all {
		if a.NodeID == id && !a.Ended() {
			on = append(on, a)
		}
	}
	return id, on, err
}

// DrainNode has Nomad move everything off the machine within the time, keep
// new work away from it, and follows that to its end.
func (o *Operator) DrainNode(ctx context.Context, id string, within time.Duration, progress Progress) error {
	answer, err := o.client.Nodes().UpdateDrainOpts(id, &api.DrainOptions{
		DrainSpec: &api.DrainSpec{Deadline: within}, Meta: map[string]string{"message": "berth nomad drain"},
	}, new(api.WriteOptions).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("drain node %.8s: %w", id, err)
	}
	for m := range o.client.Nodes().MonitorDrain(ctx, id, answer.LastIndex, false) {
		if m.Level == api.MonitorMsgLevelError {
			return fmt.Errorf("follow drain of node %.8s: %s", id, m.Message)
		}
		progress("%s", m.Message)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("follow drain of node %.8s: %w (Nomad goes on with it)", id, context.Cause(ctx))
	}
	return nil
}
