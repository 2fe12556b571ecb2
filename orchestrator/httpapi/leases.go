package httpapi

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"berth/orchestrator/pool"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
	"berth/slots"
)

func newLease(l pool.Lease) poolapi.Lease {
	labels := l.Slot.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	return poolapi.Lease{
		ID: l.Ref().String(), Template: l.Template, Trajectory: l.Slot.Trajectory, Container: l.Container.ID,
		SlotID: l.Slot.SlotID, Labels: labels, Further: l.Further,
		AcquiredAt: l.Slot.AcquiredAt, ExpiresAt: l.Slot.ExpiresAt, TTLSeconds: l.Slot.TTL.Seconds(),
		Draining: l.Container.Draining, Unheard: l.Container.Unheard, Deadline: l.Container.Deadline,
	}
}

// tellDraining lets the holder of the lease know that its container is to be
// stopped, or may be lost. It comes before the answer.
func (s *Server) tellDraining(c echo.Context, of pool.Ref) {
	known, _ := s.Pools.Known(of.Container)
	if !known.Draining {
		return
	}
	by := poolapi.DrainsLater
	if !known.Deadline.IsZero() {
		by = known.Deadline.UTC().Format(time.RFC3339)
	}
	c.Response().Header().Set(poolapi.HeaderDraining, by)
	if known.Unheard {
		c.Response().Header().Set(poolapi.HeaderUnheard, "true")
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
	var want poolapi.LeaseRequest
	if err := s.readStrict(c, &want); err != nil {
		return err
	}
	ttl, err := seconds("ttl_s", want.TTLSeconds)
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
	key, err := keyOf(c.Request())
	if err != nil {
		return err
	}
	lease, err := s.Pools.Acquire(c.Request().Context(), pool.Request{
		Template: want.Template, Trajectory: want.Trajectory, Labels: want.Labels, TTL: ttl, Wait: wait, Further: want.Further, Key: keyLabel(key),
	})
	if err != nil {
		return err
	}
	return s.answer(c, http.StatusCreated, newLease(lease))
}

// filter reads which leases are meant from the query: template, trajectory,
// container, and label=NAME=VALUE, which may be repeated.
func filter(c echo.Context) (pool.Filter, error) {
	var f pool.Filter
	single := map[string]*string{"template": &f.Template, "trajectory": &f.Trajectory, "container": &f.Container}
	for name, values := range c.QueryParams() {
		at := single[name]
		switch {
		case name == "label":
			labels, err := labelsOf(values)
			if err != nil {
				return f, err
			}
			f.Labels = labels
		case at == nil:
			return f, slots.Errorf(slots.KindBadRequest, "unknown parameter %.80s", name)
		case len(values) != 1 || values[0] == "":
			return f, slots.Errorf(slots.KindBadRequest, "%s wants one value", name)
		default:
			*at = values[0]
		}
	}
	return f, nil
}

// labelsOf reads pairs NAME=VALUE.
func labelsOf(pairs []string) (map[string]string, error) {
	labels := make(map[string]string, len(pairs))
	for _, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, slots.Errorf(slots.KindBadRequest, "label wants NAME=VALUE")
		}
		labels[name] = value
	}
	return labels, nil
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
	all := make([]poolapi.Lease, len(leases))
	for i, l := range leases {
		all[i] = newLease(l)
	}
	return s.answer(c, http.StatusOK, poolapi.Leases{Leases: all})
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
	all := make([]poolapi.Released, len(released))
	for i, r := range released {
		all[i] = poolapi.Released{Lease: r.Lease.Ref().String(), Reset: r.Receipt}
		if r.Err != nil {
			fault := api.NewErrorAnswer(r.Err).Error
			all[i].Error = &fault
		}
	}
	return s.answer(c, http.StatusOK, poolapi.ReleasedLeases{Released: all})
}

// ref is the lease that the path names.
func ref(c echo.Context) (pool.Ref, error) {
	text, err := param(c, "lease")
	if err != nil {
		return pool.Ref{}, err
	}
	return pool.ParseRef(text)
}

// getLease answers GET /v1/leases/{lease}.
func (s *Server) getLease(c echo.Context) error {
	want, err := ref(c)
	if err != nil {
		return err
	}
	if _, err := s.Pools.Locate(c.Request().Context(), want); err != nil {
		return err
	}
	leases, err := s.Pools.List(c.Request().Context(), pool.Filter{Container: want.Container})
	if err != nil {
		return err
	}
	for _, l := range leases {
		if l.Ref() == want {
			return s.answer(c, http.StatusOK, newLease(l))
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
	var want poolapi.LeaseRenewal
	if err := s.readOptional(c, &want); err != nil {
		return err
	}
	ttl, err := seconds("ttl_s", want.TTLSeconds)
	if err != nil {
		return err
	}
	lease, err := s.Pools.Renew(c.Request().Context(), which, ttl)
	if err != nil {
		return err
	}
	return s.answer(c, http.StatusOK, newLease(lease))
}

// releaseLease answers DELETE /v1/leases/{lease}.
func (s *Server) releaseLease(c echo.Context) error {
	which, err := ref(c)
	if err != nil {
		return err
	}
	var want poolapi.LeaseRelease
	if err := s.readOptional(c, &want); err != nil {
		return err
	}
	receipt, err := s.Pools.Release(c.Request().Context(), which, want.Reset == nil || *want.Reset)
	if err != nil {
		return err
	}
	return s.answer(c, http.StatusOK, poolapi.Released{Lease: which.String(), Reset: receipt})
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

func newExhausted(e *slots.Error, q *pool.QueueError) poolapi.Exhausted {
	return poolapi.Exhausted{Error: poolapi.ExhaustedFault{
		Fault: api.NewErrorAnswer(e).Error,
		Queue: poolapi.Queue{Place: q.Place, Length: q.Length, WaitedS: q.Waited.Seconds()},
	}}
}

// retryAfter is how long somebody at that place of the queue does well to
// wait, in seconds: nobody knows, but the later ones should ask less often.
func retryAfter(q *pool.QueueError) string { return strconv.Itoa(min(1+q.Place/16, 30)) }
