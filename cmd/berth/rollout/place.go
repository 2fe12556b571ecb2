package rollout

import (
	"context"
	"time"
)

// Target is where trajectories are played: a Client, on the slots of one
// container, or a Pool, on slots that it leases.
type Target interface {
	// prepare says how many slots there are, and what gives a trajectory one.
	// That waits for a free one, until ctx ends.
	prepare(ctx context.Context) (slots int, take func(ctx context.Context, trajectory int) (place, error), err error)
}

// place is the slot of one trajectory.
type place interface {
	name() string
	execute(ctx context.Context, call Call) (Answer, time.Duration, error)
	batch(ctx context.Context, calls []Call) ([]Answer, error)
	reset(ctx context.Context) error
	artifact(ctx context.Context, path string) (Artifact, error)
	leave(ctx context.Context) error // is always called, and last
}

// slot is a place in a container.
type slot struct {
	client Client
	id     string
	free   chan<- string
}

func (c Client) prepare(ctx context.Context) (slots int, take func(context.Context, int) (place, error), err error) {
	ids, err := c.Slots(ctx)
	if err != nil {
		return 0, nil, err
	}
	free := make(chan string, len(ids))
	for _, id := range ids {
		free <- id
	}
	return len(ids), func(context.Context, int) (place, error) {
		// Those who have one end with ctx, so that there is always a next one.
		return &slot{c, <-free, free}, nil
	}, nil
}

func (s *slot) name() string { return s.id }

func (s *slot) execute(ctx context.Context, call Call) (Answer, time.Duration, error) {
	return s.client.Execute(ctx, call)
}

func (s *slot) batch(ctx context.Context, calls []Call) ([]Answer, error) {
	return s.client.Batch(ctx, calls)
}

func (s *slot) reset(ctx context.Context) error { return s.client.Reset(ctx, s.id) }

func (s *slot) artifact(ctx context.Context, path string) (Artifact, error) {
	return s.client.ReadArtifact(ctx, s.id, path)
}

func (s *slot) leave(context.Context) error {
	s.free <- s.id
	return nil
}
