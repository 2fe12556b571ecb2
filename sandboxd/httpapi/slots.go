package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/common/expfmt"

	"berth/sandboxd/api"
	"berth/sandboxd/httpkit"
	"berth/slots"
)

// health answers GET /health. It is 200 whatever the status says: clients
// read the word.
func (s *Server) health(c echo.Context) error {
	return s.answer(c, http.StatusOK, s.Slots.Health())
}

type word struct {
	Status string `json:"status"`
}

// live answers GET /livez: the process serves.
func (s *Server) live(c echo.Context) error {
	return s.answer(c, http.StatusOK, word{api.HealthOK})
}

// ready answers GET /readyz: the slots take work.
func (s *Server) ready(c echo.Context) error {
	if !s.Slots.Ready() {
		return s.answer(c, http.StatusServiceUnavailable, word{s.Slots.Health().Status})
	}
	return s.answer(c, http.StatusOK, word{api.HealthOK})
}

// listSlots answers GET /slots.
func (s *Server) listSlots(c echo.Context) error {
	list := s.Slots.Slots()
	if list == nil {
		list = []api.Slot{}
	}
	return s.answer(c, http.StatusOK, api.Slots{Slots: list})
}

// reset answers POST /reset.
func (s *Server) reset(c echo.Context) error {
	var req api.ResetRequest
	if err := s.readLoose(c, &req); err != nil {
		return err
	}
	receipt, err := s.Slots.Reset(c.Request().Context(), req.SlotID, req.Token)
	return s.answer(c, http.StatusOK, api.NewResetAnswer(req.SlotID, receipt, err))
}

// metricsText answers GET /metrics in the text format.
func (s *Server) metricsText(c echo.Context) error {
	families, err := s.Metrics.registry.Gather()
	if err != nil && len(families) == 0 {
		return slots.Errorf(slots.KindInternal, "gather metrics: %w", err)
	}
	b := httpkit.GetBuffer()
	defer httpkit.PutBuffer(b)
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(b, f); err != nil {
			return slots.Errorf(slots.KindInternal, "encode metrics: %w", err)
		}
	}
	return c.Blob(http.StatusOK, "text/plain; version=0.0.4; charset=utf-8", b.Bytes())
}
