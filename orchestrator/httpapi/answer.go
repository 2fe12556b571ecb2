package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"berth/orchestrator/pool"
	"berth/sandboxd/api"
	"berth/sandboxd/httpkit"
	"berth/slots"
)

// style is how a family of routes answers a request that it refuses.
type style int

const (
	styleOurs      style = iota // api.ErrorAnswer
	styleCall                   // callAnswer with success false
	styleArtifacts              // api.ArtifactFailure
)

// typeJSON is a header that every answer has, made once.
var typeJSON = []string{echo.MIMEApplicationJSON}

// slowest is how many bytes a second a client has to take at least, beyond
// what Config.Stall allows.
const slowest = 64 << 10

// answer sends v as JSON, in one write where it fits.
func (s *Server) answer(c echo.Context, code int, v any) error {
	b := httpkit.GetBuffer()
	defer httpkit.PutBuffer(b)
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
	e, code := slots.AsError(err), httpkit.Status(err)
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
