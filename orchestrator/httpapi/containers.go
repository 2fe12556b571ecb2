package httpapi

import (
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"berth/orchestrator/pool"
	"berth/slots"
)

// slotAnswer is one slot of a container on /v1.
type slotAnswer struct {
	SlotID     string         `json:"slot_id"`
	State      slots.State    `json:"state"`
	Generation uint64         `json:"generation"`
	Reason     string         `json:"reason,omitempty"` // why it is quarantined
	Lease      *leaseAnswer   `json:"lease,omitempty"`
	Releasing  bool           `json:"releasing,omitempty"`
	Receipt    *slots.Receipt `json:"receipt,omitempty"` // of the last reset
}

// containerAnswer is one container on /v1.
type containerAnswer struct {
	ID       string              `json:"id"`
	Template string              `json:"template"`
	State    pool.ContainerState `json:"state"`
	Failure  string              `json:"failure,omitempty"` // of the last look, if it failed
	URL      string              `json:"url"`
	Started  time.Time           `json:"started_at"`
	Seen     time.Time           `json:"seen_at"`
	Slots    []slotAnswer        `json:"slots"`
}

func newContainerAnswer(v pool.ContainerView) containerAnswer {
	a := containerAnswer{
		ID: v.Container.ID, Template: v.Container.Template, State: v.State, Failure: v.Failure, URL: v.Container.URL,
		Started: v.Container.Started, Seen: v.Seen, Slots: make([]slotAnswer, len(v.Slots)),
	}
	for i, s := range v.Slots {
		a.Slots[i] = slotAnswer{
			SlotID: s.SlotID, State: s.State, Generation: s.Generation, Reason: s.Reason, Releasing: s.Releasing, Receipt: s.Receipt,
		}
		if s.Lease != nil {
			l := newLeaseAnswer(pool.Lease{Template: v.Container.Template, Container: v.Container, Slot: *s.Lease})
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
	all := make([]containerAnswer, len(views))
	for i, v := range views {
		all[i] = newContainerAnswer(v)
	}
	return s.answer(c, http.StatusOK, struct {
		Containers []containerAnswer `json:"containers"`
	}{all})
}

// operated answers with the container as it is now.
func (s *Server) operated(c echo.Context) error {
	id := c.Param("id")
	for _, v := range s.Pools.Containers() {
		if v.Container.ID == id {
			return s.answer(c, http.StatusOK, newContainerAnswer(v))
		}
	}
	return slots.Errorf(slots.KindNotFound, "container %.80s is gone", id)
}

// cordon answers POST /v1/containers/{id}/cordon.
func (s *Server) cordon(c echo.Context) error {
	var want struct {
		On *bool `json:"on"` // absent means true
	}
	if err := s.readOptional(c, &want); err != nil {
		return err
	}
	if err := s.Pools.Cordon(c.Param("id"), want.On == nil || *want.On); err != nil {
		return err
	}
	return s.operated(c)
}

// drain answers POST /v1/containers/{id}/drain.
func (s *Server) drain(c echo.Context) error { return s.empty(c, s.Pools.Drain) }

// recycle answers POST /v1/containers/{id}/recycle.
func (s *Server) recycle(c echo.Context) error { return s.empty(c, s.Pools.Recycle) }

func (s *Server) empty(c echo.Context, how func(id string, within time.Duration) error) error {
	var want struct {
		WithinS float64 `json:"within_s"` // after which also what has leases is stopped; 0: never
	}
	if err := s.readOptional(c, &want); err != nil {
		return err
	}
	within, err := seconds("within_s", want.WithinS)
	if err != nil {
		return err
	}
	if err := how(c.Param("id"), within); err != nil {
		return err
	}
	return s.operated(c)
}

// poolAnswer is one pool on /v1.
type poolAnswer struct {
	Template   string                      `json:"template"`
	Slots      int                         `json:"slots"`
	Available  int                         `json:"available"`
	Acquired   int                         `json:"acquired"`
	ByState    map[slots.State]int         `json:"slots_by_state"`
	Containers map[pool.ContainerState]int `json:"containers"`
	Starting   int                         `json:"starting"`
	Queue      int                         `json:"queue"`
	OldestS    float64                     `json:"oldest_s"` // wait of the first in the queue
	Waited     waitedAnswer                `json:"waited"`
}

// waitedAnswer is how long acquires took.
type waitedAnswer struct {
	Count    uint64  `json:"count"`
	P50S     float64 `json:"p50_s"`
	P99S     float64 `json:"p99_s"`
	LongestS float64 `json:"longest_s"`
}

// pools answers GET /v1/pools.
func (s *Server) pools(c echo.Context) error {
	stats := s.Pools.Stats()
	all := make([]poolAnswer, len(stats))
	for i, p := range stats {
		all[i] = poolAnswer{
			Template: p.Template, Slots: p.Slots, Available: p.Available, Acquired: p.Acquired, ByState: p.ByState,
			Containers: p.Containers, Starting: p.Starting, Queue: p.Queue, OldestS: p.Oldest.Seconds(),
			Waited: waitedAnswer{p.Waited.Count, p.Waited.P50.Seconds(), p.Waited.P99.Seconds(), p.Waited.Longest.Seconds()},
		}
	}
	return s.answer(c, http.StatusOK, struct {
		Pools []poolAnswer `json:"pools"`
	}{all})
}
