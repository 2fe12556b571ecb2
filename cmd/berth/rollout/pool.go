package rollout

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
)

const (
	queueFor   = 120                    // seconds that a trajectory waits for its slot
	startLook  = 100 * time.Millisecond // between two looks for the first container
	startsSoon = time.Minute            // until it is there
)

// Pool is the slots of an orchestrator. Each trajectory leases one, and waits
// in the queue for it.
type Pool struct {
	Client *client.Client
	Slots  int           // that the pool is going to have, for the report; 0: as many as it has at the start
	Within time.Duration // until its first container is there; default 1 min
}

// leased is a place in a pool.
type leased struct {
	client *client.Client
	lease  poolapi.Lease
	done   func() // ends the renewals
}

// prepare waits for the first container, so that a pool which never has one is
// an error at once and not one of each trajectory.
func (p Pool) prepare(ctx context.Context) (slots int, take func(context.Context, int) (place, error), err error) {
	there, err := p.Started(ctx)
	if err != nil {
		return 0, nil, err
	}
	if slots = p.Slots; slots == 0 {
		for _, c := range there {
			slots += len(c.Slots)
		}
	}
	return slots, func(ctx context.Context, trajectory int) (place, error) {
		lease, err := p.Client.Acquire(ctx, poolapi.LeaseRequest{Trajectory: fmt.Sprintf("demo-%d", trajectory), WaitS: queueFor})
		if err != nil {
			return nil, fmt.Errorf("acquire a slot: %w", err)
		}
		// Whether the lease still holds is told by the next call.
		_, done := p.Client.Hold(ctx, lease)
		return &leased{p.Client, lease, done}, nil
	}, nil
}

// Started waits until slots of the pool are known and returns its containers.
func (p Pool) Started(ctx context.Context) ([]poolapi.Container, error) {
	within := cmp.Or(p.Within, startsSoon)
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("none of its slots is there after %v", within))
	defer cancel()
	for {
		there, err := p.Client.Containers(ctx)
		if err == nil && slices.ContainsFunc(there, func(c poolapi.Container) bool { return len(c.Slots) > 0 }) {
			return there, nil
		}
		select {
		case <-time.After(startLook):
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for pool: %w", context.Cause(ctx))
		}
	}
}

func (l *leased) name() string { return l.lease.Container + "/" + l.lease.SlotID }

func (l *leased) execute(ctx context.Context, call Call) (Answer, time.Duration, error) {
	want, err := poolCall(call)
	if err != nil {
		return Answer{}, 0, err
	}
	start := time.Now()
	result, err := l.client.Execute(ctx, l.lease.ID, want)
	took := time.Since(start)
	if err != nil {
		return Answer{}, took, fmt.Errorf("call %s: %w", call.Tool, err)
	}
	return newAnswer(result), took, nil
}

func (l *leased) batch(ctx context.Context, calls []Call) ([]Answer, error) {
	want := make([]poolapi.Call, len(calls))
	for i, call := range calls {
		var err error
		if want[i], err = poolCall(call); err != nil {
			return nil, err
		}
	}
	results, err := l.client.Batch(ctx, l.lease.ID, want)
	if err != nil {
		return nil, fmt.Errorf("call a batch: %w", err)
	}
	answers := make([]Answer, len(results))
	for i, r := range results {
		answers[i] = newAnswer(r)
	}
	return answers, nil
}

func (l *leased) reset(ctx context.Context) error {
	receipt, err := l.client.Reset(ctx, l.lease.ID)
	if err == nil && !receipt.Clean {
		err = errors.New("it is not clean")
	}
	return err
}

func (l *leased) artifact(ctx context.Context, path string) (Artifact, error) {
	a, err := l.client.ReadArtifact(ctx, l.lease.ID, api.ReadRequest{Path: path, IncludeSHA256: true})
	return Artifact{
		Success: a.Success, Content: a.Content, Encoding: a.Encoding, Truncated: a.Truncated, Bytes: a.Bytes, SHA256: a.SHA256,
	}, err
}

// leave releases the lease, also when ctx has ended.
func (l *leased) leave(ctx context.Context) error {
	l.done()
	receipt, err := l.client.Release(context.WithoutCancel(ctx), l.lease.ID)
	switch {
	case err != nil:
		return fmt.Errorf("release the slot: %w", err)
	case receipt == nil || !receipt.Clean:
		return errors.New("release the slot: nothing proves that it is clean")
	}
	return nil
}

func poolCall(call Call) (poolapi.Call, error) {
	args, err := json.Marshal(call.Args)
	if err != nil {
		return poolapi.Call{}, fmt.Errorf("encode arguments: %w", err)
	}
	return poolapi.Call{Tool: call.Tool, Args: args, ExecutionID: call.ExecutionID, TimeoutS: api.Seconds(call.Timeout)}, nil
}

// newAnswer is the result with what of its metadata a rollout looks at.
func newAnswer(r api.Result) Answer {
	a := Answer{Success: r.Success, Output: r.Output, Error: r.Error, ExecutionID: r.ExecutionID}
	if r.Metadata.Receipt != nil {
		a.Metadata = map[string]any{"exit_code": float64(r.Metadata.ExitCode)}
	}
	return a
}
