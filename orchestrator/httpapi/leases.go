package httpapi

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"berth/orchestrator/pool"
	"berth/sandboxd/api"
	"berth/slots"
)

// leaseRequest is the body of POST /v1/leases.
type leaseRequest struct {
	Template   string            `json:"template"` // "": the one of trajectories
	Trajectory string            `json:"trajectory"`
	Labels     map[string]string `json:"labels"`
	TTLS       float64           `json:"ttl_s"`   // 0: the template's
	WaitS      float64           `json:"wait_s"`  // in the queue; 0: not at all
	Further    bool              `json:"further"` // one more slot, also if the trajectory has one
}

// leaseAnswer is a lease on /v1.
type leaseAnswer struct {
	Lease      string            `json:"lease"` // names it for ever
	Template   string            `json:"template"`
	Trajectory string            `json:"trajectory"`
	Container  string            `json:"container"`
	SlotID     string            `json:"slot_id"`
	Labels     map[string]string `json:"labels"`
	Further    bool              `json:"further"`
	AcquiredAt time.Time         `json:"acquired_at"`
	ExpiresAt  time.Time         `json:"expires_at"`
	TTLS       float64           `json:"ttl_s"`
}

func newLeaseAnswer(l pool.Lease) leaseAnswer {
	labels := l.Slot.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	return leaseAnswer{
		Lease: l.Ref().String(), Template: l.Template, Trajectory: l.Slot.Trajectory, Container: l.Container.ID,
		SlotID: l.Slot.SlotID, Labels: labels, Further: l.Further,
		AcquiredAt: l.Slot.AcquiredAt, ExpiresAt: l.Slot.ExpiresAt, TTLS: l.Slot.TTL.Seconds(),
	}
}

// seconds reads a number of seconds. JSON has no NaN and no infinity.
func seconds(name string, s float64) (time.Duration, error) {
	if s < 0 || s > math.MaxInt64/float64(time.Second) {
		return 0, slots.Errorf(slots.KindBadRequest, "%s must be a number of seconds, 0 or more", name)
	}
	return time.Duration(s * float64(time.Second)), nil
}

// acquire answers POST /v1/leases.
func (s *Server) acquire(c echo.Context) error {
	var want leaseRequest
	if err := s.readStrict(c, &want); err != nil {
		return err
	}
	ttl, err := seconds("ttl_s", want.TTLS)
	if err != nil {
		return err
	}
	wait, err := seconds("wait_s", want.WaitS)
	if err != nil {
		return err
	}
	if want.Template == "" {
		want.Template = s.config.Template
	}
	lease, err := s.Pools.Acquire(c.Request().Context(), pool.Request{
		Template: want.Template, Trajectory: want.Trajectory, Labels: want.Labels, TTL: ttl, Wait: wait, Further: want.Further,
	})
	if err != nil {
		return err
	}
	return s.answer(c, http.StatusCreated, newLeaseAnswer(lease))
}

// filter reads which leases are meant from the query: template, trajectory,
// container, and label=NAME=VALUE, which may be repeated.
func filter(c echo.Context) (pool.Filter, error) {
	var f pool.Filter
	for name, values := range c.QueryParams() {
		at := map[string]*string{"template": &f.Template, "trajectory": &f.Trajectory, "container": &f.Container}[name]
		switch {
		case at != nil && len(values) == 1 && values[0] != "":
			*at = values[0]
		case at != nil:
			return f, slots.Errorf(slots.KindBadRequest, "%s wants one value", name)
		case name != "label":
			return f, slots.Errorf(slots.KindBadRequest, "unknown parameter %.80s", name)
		}
		for _, pair := range c.QueryParams()["label"] {
			name, value, ok := strings.Cut(pair, "=")
			if !ok || name == "" {
				return f, slots.Errorf(slots.KindBadRequest, "label wants NAME=VALUE")
			}
			if f.Labels == nil {
				f.Labels = map[string]string{}
			}
			f.Labels[name] = value
		}
	}
	return f, nil
}

// listLeases answers GET /v1/leases.
func (s *Server) listLeases(c echo.Context) error {
	f, err := filter(c)
	if err != nil {
		return err
	}
	leases, err := s.Pools.List(c.Request().Context(), f)
	if err != nil {
		return err
	}
	all := make([]leaseAnswer, len(leases))
	for i, l := range leases {
		all[i] = newLeaseAnswer(l)
	}
	return s.answer(c, http.StatusOK, struct {
		Leases []leaseAnswer `json:"leases"`
	}{all})
}

// releasedAnswer tells of one release of many.
type releasedAnswer struct {
	Lease string         `json:"lease"`
	Reset *slots.Receipt `json:"reset,omitempty"`
	Error *api.Fault     `json:"error,omitempty"`
}

// releaseLeases answers DELETE /v1/leases. It says of each lease what came of
// it, with 200 also when some could not be released as they should.
func (s *Server) releaseLeases(c echo.Context) error {
	f, err := filter(c)
	if err != nil {
		return err
	}
	released, err := s.Pools.ReleaseAll(c.Request().Context(), f, true)
	if err != nil && released == nil {
		return err
	}
	all := make([]releasedAnswer, len(released))
	for i, r := range released {
		all[i] = releasedAnswer{Lease: r.Lease.Ref().String(), Reset: r.Receipt}
		if r.Err != nil {
			fault := api.NewErrorAnswer(r.Err).Error
			all[i].Error = &fault
		}
	}
	return s.answer(c, http.StatusOK, struct {
		Released []releasedAnswer `json:"released"`
	}{all})
}

func ref(c echo.Context) (pool.Ref, error) { return pool.ParseRef(c.Param("lease")) }

// getLease answers GET /v1/leases/{lease}.
func (s *Server) getLease(c echo.Context) error {
	want, err := ref(c)
	if err != nil {
		return err
	}
	leases, err := s.Pools.List(c.Request().Context(), pool.Filter{Container: want.Container})
	if err != nil {
		return err
	}
	for _, l := range leases {
		if l.Ref() == want {
			return s.answer(c, http.StatusOK, newLeaseAnswer(l))
		}
	}
	if err := s.Pools.Lost(want, slots.ExecutedNever); err != nil {
		return err
	}
	return slots.Errorf(slots.KindNotFound, "lease %.200s does not hold", want)
}

// renewLease answers PUT /v1/leases/{lease}.
func (s *Server) renewLease(c echo.Context) error {
	which, err := ref(c)
	if err != nil {
		return err
	}
	var want struct {
		TTLS float64 `json:"ttl_s"` // 0: the TTL that it has
	}
	if err := s.readOptional(c, &want); err != nil {
		return err
	}
	ttl, err := seconds("ttl_s", want.TTLS)
	if err != nil {
		return err
	}
	lease, err := s.Pools.Renew(c.Request().Context(), which, ttl)
	if err != nil {
		return err
	}
	return s.answer(c, http.StatusOK, newLeaseAnswer(lease))
}

// releaseLease answers DELETE /v1/leases/{lease}.
func (s *Server) releaseLease(c echo.Context) error {
	which, err := ref(c)
	if err != nil {
		return err
	}
	var want struct {
		Reset *bool `json:"reset"` // absent means true
	}
	if err := s.readOptional(c, &want); err != nil {
		return err
	}
	receipt, err := s.Pools.Release(c.Request().Context(), which, want.Reset == nil || *want.Reset)
	if err != nil {
		return err
	}
	return s.answer(c, http.StatusOK, releasedAnswer{Lease: which.String(), Reset: receipt})
}

// resetLease answers POST /v1/leases/{lease}/reset.
func (s *Server) resetLease(c echo.Context) error {
	which, err := ref(c)
	if err != nil {
		return err
	}
	var none struct{}
	if err := s.readOptional(c, &none); err != nil {
		return err
	}
	receipt, err := s.Pools.Reset(c.Request().Context(), which)
	if err != nil {
		return err
	}
	return s.answer(c, http.StatusOK, receipt)
}

// queueAnswer says how it stood in the queue when a wait ended.
type queueAnswer struct {
	Place   int     `json:"place"` // 1 is next
	Length  int     `json:"length"`
	WaitedS float64 `json:"waited_s"`
}

// exhaustedAnswer is an api.ErrorAnswer with the queue.
type exhaustedAnswer struct {
	Error struct {
		api.Fault
		Queue queueAnswer `json:"queue"`
	} `json:"error"`
}

func newExhaustedAnswer(e *slots.Error, q *pool.QueueError) exhaustedAnswer {
	var a exhaustedAnswer
	a.Error.Fault = api.NewErrorAnswer(e).Error
	a.Error.Queue = queueAnswer{Place: q.Place, Length: q.Length, WaitedS: q.Waited.Seconds()}
	return a
}

// retryAfter is how long somebody at that place of the queue does well to
// wait, in seconds: nobody knows, but the later ones should ask less often.
func retryAfter(q *pool.QueueError) string { return strconv.Itoa(min(1+q.Place/16, 30)) }
