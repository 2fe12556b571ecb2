package httpapi

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"berth/sandboxd/api"
	"berth/slots"
)

// keptBuffer is the largest buffer that is kept for the next request.
const keptBuffer = 1 << 20

// buffers holds *bytes.Buffer for bodies and answers.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func getBuffer() *bytes.Buffer {
	b, ok := buffers.Get().(*bytes.Buffer)
	if !ok {
		return new(bytes.Buffer)
	}
	b.Reset()
	return b
}

func putBuffer(b *bytes.Buffer) {
	if b.Cap() <= keptBuffer {
		buffers.Put(b)
	}
}

// patientReader reads a body and fails when nothing comes for stall. Its
// deadline ends with the body, because then the server waits on the same
// connection for the client to go away. A body that is not read to its end
// keeps the deadline: the server reads on to find the next request.
type patientReader struct {
	body  io.Reader
	conn  *conn // nil: no deadline can be set
	stall time.Duration
	armed time.Time
}

// Read reads from the body.
func (r *patientReader) Read(p []byte) (int, error) {
	if r.conn == nil {
		return r.body.Read(p)
	}
	if now := time.Now(); now.Sub(r.armed) > r.stall/10 {
		if err := r.conn.SetReadDeadline(now.Add(r.stall)); err != nil {
			return 0, err
		}
		r.armed = now
	}
	n, err := r.body.Read(p)
	if errors.Is(err, io.EOF) {
		_ = r.conn.SetReadDeadline(time.Time{}) // a closed connection is found by the next read
		r.armed = time.Time{}
	}
	return n, err
}

// patient is the request's body under the server's stall limit.
func (s *Server) patient(r *http.Request) *patientReader {
	return &patientReader{body: r.Body, conn: connOf(r.Context()), stall: s.config.Stall}
}

// watchBody bounds how long the server waits for a body that nobody reads: it
// does so before it answers.
func (s *Server) watchBody(r *http.Request) {
	if c := connOf(r.Context()); c != nil && r.ContentLength != 0 {
		_ = c.SetReadDeadline(time.Now().Add(s.config.Stall)) // a closed connection is found by the next read
	}
}

// readBody reads the whole body into a buffer, which the caller gives back
// with putBuffer.
func (s *Server) readBody(c echo.Context) (*bytes.Buffer, error) {
	r := c.Request()
	most := s.config.MaxBody
	if r.ContentLength > most {
		s.discard(r)
		return nil, tooLarge(most)
	}
	b := getBuffer()
	if r.Body == nil || r.Body == http.NoBody {
		return b, nil
	}
	if r.ContentLength > 0 {
		// What is promised is not yet there: no more than a usual body is
		// reserved before it came.
		b.Grow(int(min(r.ContentLength, keptBuffer/2)) + bytes.MinRead)
	}
	_, err := b.ReadFrom(io.LimitReader(s.patient(r), most+1))
	switch {
	case err != nil:
		putBuffer(b)
		return nil, bodyError(err)
	case int64(b.Len()) > most:
		putBuffer(b)
		s.discard(r)
		return nil, tooLarge(most)
	}
	return b, nil
}

// discard reads on in a body that is refused for its size: many clients send
// all of it before they look for an answer, and a connection that is closed
// before that takes the answer with it. It gives up after as much again as a
// body may have; a client that asked first is answered at once.
func (s *Server) discard(r *http.Request) {
	if r.Header.Get("Expect") == "" {
		_, _ = io.CopyN(io.Discard, s.patient(r), 2*s.config.MaxBody) // it is refused either way
	}
}

func tooLarge(most int64) error {
	return slots.Errorf(slots.KindTooLarge, "request body is larger than %d bytes", most)
}

// bodyError names why a body could not be read.
func bodyError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &statusError{http.StatusRequestTimeout, slots.Errorf(slots.KindBadRequest, "request body came too slowly")}
	}
	return slots.Errorf(slots.KindBadRequest, "read request body: %w", err)
}

// readLoose reads the body as api.Decode does.
func (s *Server) readLoose(c echo.Context, v any) error {
	b, err := s.readBody(c)
	if err != nil {
		return err
	}
	defer putBuffer(b)
	return api.Decode(b.Bytes(), v)
}

// readStrict reads the body as api.DecodeStrict does.
func (s *Server) readStrict(c echo.Context, v any) error {
	b, err := s.readBody(c)
	if err != nil {
		return err
	}
	defer putBuffer(b)
	return api.DecodeStrict(b.Bytes(), v)
}
