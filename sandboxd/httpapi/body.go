package httpapi

import (
	"bytes"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"berth/sandboxd/api"
	"berth/sandboxd/httpkit"
)

// patient is the request's body under the server's stall limit.
func (s *Server) patient(r *http.Request) *httpkit.PatientReader {
	body := &httpkit.PatientReader{Body: r.Body, Stall: s.config.Stall}
	if c := connOf(r.Context()); c != nil {
		body.Conn = c
	}
	return body
}

// watchBody bounds how long the server waits for a body that nobody reads: it
// does so before it answers.
func (s *Server) watchBody(r *http.Request) {
	if c := connOf(r.Context()); c != nil && r.ContentLength != 0 {
		_ = c.SetReadDeadline(time.Now().Add(s.config.Stall)) // a closed connection is found by the next read
	}
}

// readBody reads the whole body into a buffer, which the caller gives back
// with httpkit.PutBuffer.
func (s *Server) readBody(c echo.Context) (*bytes.Buffer, error) {
	body := s.patient(c.Request())
	body.Armed = time.Now() // by watchBody
	return httpkit.ReadBody(c.Request(), body, s.config.MaxBody)
}

// readLoose reads the body as api.Decode does.
func (s *Server) readLoose(c echo.Context, v any) error {
	b, err := s.readBody(c)
	if err != nil {
		return err
	}
	defer httpkit.PutBuffer(b)
	return api.Decode(b.Bytes(), v)
}

// readStrict reads the body as api.DecodeStrict does.
func (s *Server) readStrict(c echo.Context, v any) error {
	b, err := s.readBody(c)
	if err != nil {
		return err
	}
	defer httpkit.PutBuffer(b)
	return api.DecodeStrict(b.Bytes(), v)
}
