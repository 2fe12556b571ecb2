package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"berth/sandboxd/api"
	"berth/sandboxd/httpkit"
	"berth/slots"
)

// style is how a family of routes answers a request that it refuses.
type style int

const (
	styleOurs      style = iota // api.ErrorAnswer
	styleCall                   // api.Result with success false
	styleArtifacts              // api.ArtifactFailure
)

// The values of headers that every answer has, made once.
var (
	typeJSON = []string{"application/json"}
	noStore  = []string{"no-store"}
)

// answer sends v as JSON, in one write where it fits.
func (s *Server) answer(c echo.Context, code int, v any) error {
	b := httpkit.GetBuffer()
	defer httpkit.PutBuffer(b)
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return slots.Errorf(slots.KindInternal, "encode answer: %w", err)
	}
	return s.send(c, code, b.Bytes())
}

// send sends JSON that was encoded before.
func (*Server) send(c echo.Context, code int, text []byte) error {
	w := c.Response()
	h := w.Header()
	h[echo.HeaderContentType] = typeJSON
	h[echo.HeaderContentLength] = []string{strconv.Itoa(len(text))}
	w.WriteHeader(code)
	_, _ = w.Write(text) // the client is gone; nobody is left to be told
	return nil
}

// refuse answers err in the family's style. Only an internal error is news
// to an operator, so only that is logged; its text holds no request.
func (s *Server) refuse(c echo.Context, st style, err error) {
	if c.Response().Committed {
		return
	}
	if errors.Is(err, context.Canceled) && c.Request().Context().Err() != nil {
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
		body = api.Refused("", e)
	case styleArtifacts:
		body = artifactFailure(err)
	case styleOurs:
		body = api.NewErrorAnswer(e)
	}
	if err := s.answer(c, code, body); err != nil {
		s.logger.Error("answer failed", "route", c.Path(), "error", err)
	}
}

// panicked puts a panic on record.
func (s *Server) panicked(c echo.Context, p any) {
	s.logger.Error("handler panicked", "route", c.Path(), "error", fmt.Sprint(p), "stack", string(debug.Stack()))
}

// styleOf is the style for a path that no route has.
func styleOf(path string) style {
	switch {
	case strings.HasPrefix(path, "/artifacts/"):
		return styleArtifacts
	case path == "/execute", path == "/batch", path == "/reset":
		return styleCall
	default:
		return styleOurs
	}
}
