package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"berth/orchestrator/pool"
	"berth/orchestrator/poolapi"
	"berth/slots"
)

func newContainer(v pool.ContainerView) poolapi.Container {
	a := poolapi.Container{
		ID: v.Container.ID, Template: v.Container.Template, State: string(v.State), Failure: v.Failure, URL: v.Container.URL,
		Started: v.Container.Started, Seen: v.Seen, Deadline: v.Container.Deadline, Slots: make([]poolapi.Slot, len(v.Slots)),
	}
	for i, s := range v.Slots {
		a.Slots[i] = poolapi.Slot{
			SlotID: s.SlotID, State: s.State, Generation: s.Generation, Reason: s.Reason, Releasing: s.Releasing, Receipt: s.Receipt,
		}
		if s.Lease != nil {
			l := newLease(pool.Lease{Template: v.Container.Template, Container: v.Container, Slot: *s.Lease})
			a.Slots[i].Lease = &l
		}
	}
	return a
}

// containers answers GET /v1/containers.
func (s *Server) containers(c echo.Context) error {
	if err := s.Pools.Ready(c.Request().Context()); err != nil {
		return err
	}
	views := s.Pools.Containers()
	all := make([]poolapi.Container, len(views))
	for i, v := range views {
		all[i] = newContainer(v)
	}
	return s.answer(c, http.StatusOK, poolapi.Containers{Containers: all})
}

// operated answers with the container as it is now.
func (s *Server) operated(c echo.Context) error {
	id, err := param(c, "id")
	if err != nil {
		return err
	}
	for _, v := range s.Pools.Containers() {
		if v.Container.ID == id {
			return s.answer(c, http.StatusOK, newContainer(v))
		}
	}
	return slots.Errorf(slots.KindNotFound, "container %.80s is gone", id)
}

// cordon answers POST /v1/containers/{id}/cordon.
func (s *Server) cordon(c echo.Context) error {
	var want poolapi.Cordon
	if err := s.readOptional(c, &want); err != nil {
		return err
	}
	id, err := param(c, "id")
	if err != nil {
		return err
	}
	if err := s.Pools.Cordon(c.Request().Context(), id, want.On == nil || *want.On); err != nil {
		return err
	}
	return s.operated(c)
}

// drain answers POST /v1/containers/{id}/drain.
func (s *Server) drain(c echo.Context) error { return s.empty(c, s.Pools.Drain) }

// recycle answers POST /v1/containers/{id}/recycle.
func (s *Server) recycle(c echo.Context) error { return s.empty(c, s.Pools.Recycle) }

func (s *Server) empty(c echo.Context, how func(ctx context.Context, id string, within time.Duration) error) error {
	var want poolapi.Drain
	if err := s.readOptional(c, &want); err != nil {
		return err
	}
	within, err := seconds("within_s", want.WithinS)
	if err != nil {
		return err
	}
	id, err := param(c, "id")
	if err != nil {
		return err
	}
	if err := how(c.Request().Context(), id, within); err != nil {
		return err
	}
	return s.operated(c)
}

// pools answers GET /v1/pools.
func (s *Server) pools(c echo.Context) error {
	return s.answer(c, http.StatusOK, poolapi.Pools{Pools: s.poolAnswers()})
}

func (s *Server) poolAnswers() []poolapi.Pool {
	stats := s.Pools.Stats()
	all := make([]poolapi.Pool, len(stats))
	for i, p := range stats {
		containers := make(map[string]int, len(p.Containers))
		for state, n := range p.Containers {
			containers[string(state)] = n
		}
		all[i] = poolapi.Pool{
			Template: p.Template, Slots: p.Slots, Available: p.Available, Acquired: p.Acquired, ByState: p.ByState,
			Scales: p.Duty.Held, ScaledBy: p.Duty.Holder,
			Containers: containers, Starting: p.Starting, Queue: p.Queue, OldestS: p.Oldest.Seconds(),
			Waited: poolapi.Waited{
				Count: p.Waited.Count, P50S: p.Waited.P50.Seconds(), P99S: p.Waited.P99.Seconds(), LongestS: p.Waited.Longest.Seconds(),
			},
		}
		if t := p.Trouble; t != (pool.Trouble{}) {
			all[i].Trouble = &poolapi.Trouble{FailedStarts: t.Failed, Failed: t.At, Next: t.Next, Words: t.Words}
		}
	}
	return all
}
