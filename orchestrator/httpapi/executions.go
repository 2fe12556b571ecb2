package httpapi

import (
	"context"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"berth/orchestrator/calls"
	"berth/orchestrator/dispatch"
	"berth/orchestrator/pool"
	"berth/sandboxd/api"
	"berth/sandboxd/client"
	"berth/sandboxd/httpkit"
	"berth/slots"
)

// named is the execution that a path names: by its lease, and by the id that
// its call was given or that its result has. What became of it is the
// container's to say, for as long as it keeps it, which is longer than the
// lease may last.
type named struct {
	lease pool.Lease
	to    *client.Client
	name  string // as callers say
	id    string // in the container
	since time.Time
}

func (s *Server) execution(c echo.Context) (named, error) {
	since := time.Now()
	lease, err := s.locate(c)
	if err != nil {
		return named{}, err
	}
	name, err := param(c, "execution")
	if err != nil {
		return named{}, err
	}
	to, err := s.Calls.Client(lease)
	return named{lease, to, name, calls.ExecutionID(lease.Ref(), name), since}, err
}

// error is err in the words of the caller, who does not know the container's
// id of the execution.
func (e named) error(err error) error {
	had := slots.AsError(err)
	if had == nil || !strings.Contains(had.Message, e.id) {
		return err
	}
	told := *had
	told.Message = strings.ReplaceAll(told.Message, e.id, e.name)
	return &told
}

// answerExecution answers with the result of an execution that has ended and
// with the state of another.
func (s *Server) answerExecution(c echo.Context, e named, result api.Result, state string, err error) error {
	switch {
	case err != nil:
		return e.error(err)
	case state != "":
		return s.answer(c, http.StatusOK, api.ExecutionState{ExecutionID: e.name, State: state})
	}
	result.ExecutionID = e.name
	text, err := timed(result, newTiming(calls.Answer{Answer: dispatch.Answer{Timing: e.timing(result)}}))
	if err != nil {
		return err
	}
	s.send(c, http.StatusOK, text)
	return nil
}

// timing is that of the request, which ran nothing: the execution is another
// request's.
func (e named) timing(api.Result) dispatch.Timing {
	return dispatch.Timing{Transfer: time.Since(e.since)}
}

// getExecution answers GET /v1/leases/{lease}/executions/{id}; with wait_s it
// waits as long as that for the end.
func (s *Server) getExecution(c echo.Context) error {
	e, err := s.execution(c)
	if err != nil {
		return err
	}
	wait, err := queryWait(c)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	result, state, err := e.to.Result(ctx, e.id)
	if err == nil && state != "" && wait > 0 {
		e.await(ctx, wait)
		result, state, err = e.to.Result(ctx, e.id)
	}
	return s.answerExecution(c, e, result, state, err)
}

// await waits for the execution's end: by following it from behind all that
// it may ever print. How that ends is not heard, the state is asked for anew.
func (e named) await(ctx context.Context, wait time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	for event, err := range e.to.Follow(ctx, e.id, client.Offsets{Stdout: math.MaxInt64 >> 1, Stderr: math.MaxInt64 >> 1}) {
		if err != nil || event.Result != nil {
			return
		}
	}
}

// queryWait reads wait_s, which may be missing.
func queryWait(c echo.Context) (time.Duration, error) {
	text := c.QueryParam("wait_s")
	if text == "" {
		return 0, nil
	}
	s, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(s) {
		s = -1
	}
	return seconds("wait_s", s)
}

// cancelExecution answers POST /v1/leases/{lease}/executions/{id}/cancel and
// DELETE /v1/leases/{lease}/executions/{id}, as the container does: with the
// result as soon as there is one. Of a call that has not been sent yet nothing
// is known.
func (s *Server) cancelExecution(c echo.Context) error {
	e, err := s.execution(c)
	if err != nil {
		return err
	}
	result, state, err := e.to.Cancel(c.Request().Context(), e.id)
	return s.answerExecution(c, e, result, state, err)
}

// streamExecution answers GET /v1/leases/{lease}/executions/{id}/stream: with
// the events of an execution from two offsets on, which stand in the query or
// in the id of the last event that the client has had.
func (s *Server) streamExecution(c echo.Context) error {
	e, err := s.execution(c)
	if err != nil {
		return err
	}
	stdout, stderr, err := httpkit.ResumeAt(c.Request())
	if err != nil {
		return err
	}
	from := client.Offsets{Stdout: stdout, Stderr: stderr}
	m := httpkit.Streamed(c.Request())
	if m == httpkit.Plain {
		m = httpkit.EventStream
	}
	f := following{name: e.name, mode: m, from: from, timing: e.timing}
	_, err = s.passEvents(c, f, e.to.Follow(c.Request().Context(), e.id, from))
	if c.Response().Committed {
		return nil // the stream has told it
	}
	return e.error(err)
}

// outputExecution answers GET /v1/leases/{lease}/executions/{id}/output, as
// the container does.
func (s *Server) outputExecution(c echo.Context) error {
	e, err := s.execution(c)
	if err != nil {
		return err
	}
	m := message{path: "/v1/executions/" + url.PathEscape(e.id) + "/output", judge: true}
	if query := c.Request().URL.RawQuery; query != "" {
		m.path += "?" + query
	}
	return e.error(s.forward(c, e.lease, m))
}
