package httpapi

import (
	"bytes"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"berth/sandboxd/api"
	"berth/sandboxd/httpkit"
)

// patient is the request's body under the server's stall limit, which begin
// has set.
func (s *Server) patient(c echo.Context) *httpkit.PatientReader {
	return &httpkit.PatientReader{
		Body: c.Request().Body, Conn: http.NewResponseController(c.Response().Writer), Stall: s.config.Stall, Armed: time.Now(),
	}
}

// readBody reads the whole body into a buffer, which the caller gives back
// with httpkit.PutBuffer.
func (s *Server) readBody(c echo.Context) (*bytes.Buffer, error) {
	return httpkit.ReadBody(c.Request(), s.patient(c), s.config.MaxBody)
}

// readLoose reads a JSON object and ignores the fields that v lacks.
func (s *Server) readLoose(c echo.Context, v any) error {
	b, err := s.readBody(c)
	if err != nil {
		return err
	}
	defer httpkit.PutBuffer(b)
	return api.Decode(b.Bytes(), v)
}

// readOptional is readStrict for a body that may be missing.
func (s *Server) readOptional(c echo.Context, v any) error {
	if c.Request().ContentLength == 0 {
		return nil
	}
	return s.readStrict(c, v)
}

// readStrict reads a JSON object and refuses the fields that v lacks.
func (s *Server) readStrict(c echo.Context, v any) error {
	b, err := s.readBody(c)
	if err != nil {
		return err
	}
	defer httpkit.PutBuffer(b)
	return api.DecodeStrict(b.Bytes(), v)
}

// param is the value of a path parameter.
func param(c echo.Context, name string) (string, error) {
	return httpkit.PathValue(c.Request(), c.Param(name))
}
