package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"berth/sandboxd/api"
)

// acquire answers POST /v1/slots/{slot}/lease.
func (s *Server) acquire(c echo.Context) error {
	slotID, err := param(c, "slot")
	if err != nil {
		return err
	}
	var want api.LeaseRequest
	if err := s.readStrict(c, &want); err != nil {
		return err
	}
	lease, err := s.Leases.Acquire(slotID, want)
	if err != nil {
		return err
	}
	return s.answer(c, http.StatusOK, lease)
}

// acquireAny answers POST /v1/leases.
func (s *Server) acquireAny(c echo.Context) error {
	var want api.LeaseRequest
	if err := s.readStrict(c, &want); err != nil {
		return err
	}
	lease, err := s.Leases.AcquireAny(want)
	if err != nil {
		return err
	}
	return s.answer(c, http.StatusOK, lease)
}

// renew answers PUT /v1/slots/{slot}/lease.
func (s *Server) renew(c echo.Context) error {
	slotID, err := param(c, "slot")
	if err != nil {
		return err
	}
	var want api.LeaseRenewal
	if err := s.readStrict(c, &want); err != nil {
		return err
	}
	lease, err := s.Leases.Renew(slotID, want)
	if err != nil {
		return err
	}
	return s.answer(c, http.StatusOK, lease)
}

// release answers DELETE /v1/slots/{slot}/lease.
func (s *Server) release(c echo.Context) error {
	slotID, err := param(c, "slot")
	if err != nil {
		return err
	}
	var want api.LeaseRelease
	if err := s.readStrict(c, &want); err != nil {
		return err
	}
	reset := want.Reset == nil || *want.Reset
	receipt, err := s.Leases.Release(c.Request().Context(), slotID, want.Token, reset)
	if err != nil {
		return err
	}
	answer := api.ReleaseAnswer{SlotID: slotID}
	if reset {
		answer.Reset = &receipt
	}
	return s.answer(c, http.StatusOK, answer)
}

// listLeases answers GET /v1/leases.
func (s *Server) listLeases(c echo.Context) error {
	return s.answer(c, http.StatusOK, api.Leases{Leases: s.Leases.Leases()})
}
