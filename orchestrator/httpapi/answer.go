package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"berth/orchestrator/pool"
	"berth/sandboxd/api"
	"berth/slots"
)

// style is how a family of routes answers a request that it refuses.
type style int

const (
	styleOurs      style = iota // api.ErrorAnswer
	styleCall                   // callAnswer with success false
	styleArtifacts              // api.ArtifactFailure
)

// statusError is an error whose status is not the one of its kind.
type statusError struct {
	status int
	err    *slots.Error
}

// Error returns the message.
func (e *statusError) Error() string { return e.err.Message }

// Unwrap returns the error that has a kind.
func (e *statusError) Unwrap() error { return e.err }

// status is the HTTP status for err.
func status(err error) int {
	if e, ok := errors.AsType[*statusError](err); ok {
		return e.status
	}
	return slots.AsError(err).Kind.Status()
}

// typeJSON is a header that every answer has, made once.
var typeJSON = []string{echo.MIMEApplicationJSON}

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

// slowest is how many bytes a second a client has to take at least, beyond
// what Config.Stall allows.
const slowest = 64 << 10

// answer sends v as JSON, in one write where it fits.
func (s *Server) answer(c echo.Context, code int, v any) error {
	b := getBuffer()
	defer putBuffer(b)
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return slots.Errorf(slots.KindInternal, "encode answer: %w", err)
	}
	s.send(c, code, b.Bytes())
	return nil
}

// send is answer for what is JSON already.
func (s *Server) send(c echo.Context, code int, text []byte) {
	w := c.Response()
	h := w.Header()
	h[echo.HeaderContentType] = typeJSON
	h[echo.HeaderContentLength] = []string{strconv.Itoa(len(text))}
	s.extend(c, len(text))
	w.WriteHeader(code)
	_, _ = w.Write(text) // the client is gone; nobody is left to be told
}

// extend bounds how long the client may take for the next n bytes. Before them
// the server may wait for the rest of a body that nobody reads, see begin.
func (s *Server) extend(c echo.Context, n int) {
	within := 2*s.config.Stall + time.Duration(n/slowest)*time.Second
	_ = http.NewResponseController(c.Response().Writer).SetWriteDeadline(time.Now().Add(within)) // see begin
}

// refuse answers err in the family's style. Only an internal error is news to
// an operator, so only that is logged; its text holds no request.
func (s *Server) refuse(c echo.Context, st style, err error) {
	if c.Response().Committed {
		return
	}
	ctx := c.Request().Context()
	if errors.Is(err, context.Canceled) && ctx.Err() != nil && slots.AsError(err).Kind == slots.KindInternal {
		err = slots.Errorf(slots.KindInterrupted, "request was cancelled")
	}
	if e := slots.AsError(err); e.Kind == slots.KindInternal {
		s.logger.Error("request failed", "route", c.Path(), "error", e)
	}
	s.write(c, st, err)
}

// write sends err in the family's style.
func (s *Server) write(c echo.Context, st style, err error) {
	e, code := slots.AsError(err), status(err)
	if code == http.StatusUnauthorized {
		c.Response().Header().Set(echo.HeaderWWWAuthenticate, "Bearer")
	}
	var body any
	switch st {
	case styleCall:
		text, err := refused(api.Refused("", e), nil)
		if err != nil {
			s.logger.Error("answer failed", "route", c.Path(), "error", err)
			return
		}
		s.send(c, code, text)
		return
	case styleArtifacts:
		body = api.NewArtifactFailure(err)
	case styleOurs:
		body = api.NewErrorAnswer(e)
		if q, ok := errors.AsType[*pool.QueueError](err); ok {
			c.Response().Header().Set(echo.HeaderRetryAfter, retryAfter(q))
			body = newExhausted(e, q)
		}
	}
	if err := s.answer(c, code, body); err != nil {
		s.logger.Error("answer failed", "route", c.Path(), "error", err)
	}
}

// styleOf is the style for a path that no route has.
func styleOf(path string) style {
	switch {
	case strings.HasPrefix(path, "/artifacts/"):
		return styleArtifacts
	case path == "/execute":
		return styleCall
	default:
		return styleOurs
	}
}
