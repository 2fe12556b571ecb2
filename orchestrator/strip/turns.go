package strip

import (
	"context"
	"sync"
)

// turns are given to so many at once, and to each tenant one at a time: who
// sends what takes long waits for himself.
type turns struct {
	places chan struct{} // holds one for each that has a turn

	mu      sync.Mutex // guards what is below
	tenants map[string]*tenant
}

// tenant is one that has a turn or waits for it.
type tenant struct {
	turn  chan struct{} // holds one while he has it
	wants int
}

func newTurns(atOnce int) *turns {
	return &turns{places: make(chan struct{}, atOnce), tenants: map[string]*tenant{}}
}

// take waits for a turn of the tenant's. give ends it. The error is the
// context's.
func (t *turns) take(ctx context.Context, whose string) (give func(), err error) {
	t.mu.Lock()
	one := t.tenants[whose]
	if one == nil {
		one = &tenant{turn: make(chan struct{}, 1)}
		t.tenants[whose] = one
	}
	one.wants++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if one.wants--; one.wants == 0 {
			delete(t.tenants, whose)
		}
	}
	select {
	case one.turn <- struct{}{}:
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
	select {
	case t.places <- struct{}{}:
		return func() {
			<-t.places
			<-one.turn
			leave()
		}, nil
	case <-ctx.Done():
		<-one.turn
		leave()
		return nil, context.Cause(ctx)
	}
}
