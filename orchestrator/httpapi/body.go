package httpapi

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/labstack/echo/v4"

	"berth/sandboxd/api"
	"berth/slots"
)

// patientReader reads a body and fails when nothing comes for stall. Its
// deadline ends with the body, because then the server waits on the same
// connection for the client to go away.
type patientReader struct {
	body    io.Reader
	control *http.ResponseController
	stall   time.Duration
	armed   time.Time
}

// Read reads from the body.
func (r *patientReader) Read(p []byte) (int, error) {
	// A connection that takes no deadline is closed, or a test's recorder.
	if now := time.Now(); now.Sub(r.armed) > r.stall/10 {
		_ = r.control.SetReadDeadline(now.Add(r.stall))
		r.armed = now
	}
	n, err := r.body.Read(p)
	if errors.Is(err, io.EOF) {
		_ = r.control.SetReadDeadline(time.Time{})
		r.armed = time.Time{}
	}
	return n, err
}

// patient is the request's body under the server's stall limit.
func (s *Server) patient(c echo.Context) *patientReader {
	return &patientReader{
		body: c.Request().Body, control: http.NewResponseController(c.Response().Writer), stall: s.config.Stall, armed: time.Now(),
	}
}

// readBody reads the whole body into a buffer, which the caller gives back
// with putBuffer.
func (s *Server) readBody(c echo.Context) (*bytes.Buffer, error) {
	r := c.Request()
	most := s.config.MaxBody
	b := getBuffer()
	if r.Body == nil || r.Body == http.NoBody {
		return b, nil
	}
	var err error
	body := s.patient(c)
	if r.ContentLength <= most {
		if r.ContentLength > 0 {
			// What is promised is not yet there: no more than a usual body is
			// reserved before it came.
			b.Grow(int(min(r.ContentLength, keptBuffer/2)) + bytes.MinRead)
		}
		_, err = b.ReadFrom(io.LimitReader(body, most+1))
	}
	switch {
	case err != nil:
		putBuffer(b)
		return nil, bodyError(err)
	case r.ContentLength > most || int64(b.Len()) > most:
		putBuffer(b)
		// Many clients send all of it before they look for an answer, and a
		// connection that is closed before that takes the answer with it.
		if r.Header.Get("Expect") == "" {
			_, _ = io.CopyN(io.Discard, body, 2*most) // it is refused either way
		}
		return nil, slots.Errorf(slots.KindTooLarge, "request body is larger than %d bytes", most)
	}
	return b, nil
}

// bodyError names why a body could not be read.
func bodyError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &statusError{http.StatusRequestTimeout, slots.Errorf(slots.KindBadRequest, "request body came too slowly")}
	}
	return slots.Errorf(slots.KindBadRequest, "read request body: %w", err)
}

// readLoose reads a JSON object and ignores the fields that v lacks.
func (s *Server) readLoose(c echo.Context, v any) error {
	b, err := s.readBody(c)
	if err != nil {
		return err
	}
	defer putBuffer(b)
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
	defer putBuffer(b)
	return api.DecodeStrict(b.Bytes(), v)
}

// param is the value of a path parameter. The router matches the path as it
// was sent when that differs from its usual encoding, so the value is decoded
// here in that case, and only once.
func param(c echo.Context, name string) (string, error) {
	value := c.Param(name)
	if c.Request().URL.RawPath == "" {
		return value, nil
	}
	value, err := url.PathUnescape(value)
	if err != nil {
		return "", slots.Errorf(slots.KindBadRequest, "path is wrongly encoded")
	}
	return value, nil
}
