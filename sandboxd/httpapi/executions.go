package httpapi

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"berth/sandboxd/api"
	"berth/sandboxd/execution"
	"berth/sandboxd/httpkit"
	"berth/slots"
	"berth/slots/process"
)

const (
	// cancelWait is how long a cancel waits for the end that it asked for.
	cancelWait = 10 * time.Second
	// outputBytes is what GET …/output answers when no length is asked for.
	outputBytes = 1 << 20
)

// Headers of GET …/output.
const (
	headerOffset = "Berth-Offset" // of the answer's first byte in the stream
	headerTotal  = "Berth-Total"  // length of the stream so far, in bytes
)

// param is the value of a path parameter.
func param(c echo.Context, name string) (string, error) {
	return httpkit.PathValue(c.Request(), c.Param(name))
}

// find is the execution that the path names.
func (s *Server) find(c echo.Context) (*execution.Execution, error) {
	id, err := param(c, "id")
	if err != nil {
		return nil, err
	}
	if e, ok := s.Registry.Get(id); ok {
		return e, nil
	}
	return nil, slots.Errorf(slots.KindNotFound, "Unknown execution: %.256s", id)
}

// execution answers GET /v1/executions/{id}.
func (s *Server) execution(c echo.Context) error {
	e, err := s.find(c)
	if err != nil {
		return err
	}
	return s.answerState(c, e)
}

// answerState answers with the result of an execution that has ended and with
// the state of another.
func (s *Server) answerState(c echo.Context, e *execution.Execution) error {
	select {
	case <-e.Done():
		return s.send(c, http.StatusOK, e.Answer())
	default:
	}
	state := api.StateQueued
	if e.Started() {
		state = api.StateRunning
	}
	return s.answer(c, http.StatusOK, api.ExecutionState{ExecutionID: e.ID(), State: state})
}

var errCancelled = slots.Errorf(slots.KindInterrupted, "execution was cancelled")

// cancel answers POST /v1/executions/{id}/cancel, with the result as soon as
// there is one. Cancelling what has ended changes nothing.
func (s *Server) cancel(c echo.Context) error {
	e, err := s.find(c)
	if err != nil {
		return err
	}
	e.Cancel(errCancelled)
	timer := time.NewTimer(cancelWait)
	defer timer.Stop()
	select {
	case <-e.Done():
	case <-timer.C:
	case <-c.Request().Context().Done():
	}
	return s.answerState(c, e)
}

// output answers GET /v1/executions/{id}/output: bytes of one stream as they
// are there now.
func (s *Server) output(c echo.Context) error {
	e, err := s.find(c)
	if err != nil {
		return err
	}
	stdout, stderr := e.Outputs()
	capture := stdout
	switch name := c.QueryParam("stream"); name {
	case streamStdout, "":
	case streamStderr:
		capture = stderr
	default:
		return slots.Errorf(slots.KindBadRequest, "stream must be stdout or stderr")
	}
	from, err := httpkit.QueryOffset(c.Request(), "offset", 0)
	if err != nil {
		return err
	}
	length, err := httpkit.QueryOffset(c.Request(), "length", outputBytes)
	if err != nil {
		return err
	}
	if capture == nil {
		return slots.Errorf(slots.KindNotFound, "output of execution %s is not kept", e.ID())
	}
	total := capture.Total()
	from = min(from, total)
	to := from + min(length, total-from)
	// What is promised of the length has to come: an answer ends where a gap
	// begins, and who asks on from there is told how long that is.
	if kept := capture.Reach(from); kept > from {
		to = min(to, kept)
	}
	return s.sendOutput(c, capture, from, to, total)
}

func (s *Server) sendOutput(c echo.Context, capture *process.Capture, from, to, total int64) error {
	w := c.Response()
	begin := func() {
		h := w.Header()
		h.Set(echo.HeaderContentType, echo.MIMEOctetStream)
		h.Set(echo.HeaderContentLength, strconv.FormatInt(to-from, 10))
		h.Set(headerOffset, strconv.FormatInt(from, 10))
		h.Set(headerTotal, strconv.FormatInt(total, 10))
	}
	out := &lateWriter{w: w, begin: begin}
	err := copyOutput(c.Request().Context(), out, capture, from, to)
	if gap, ok := errors.AsType[*process.GapError](err); ok {
		err = slots.Errorf(slots.KindNotFound, "%w", gap)
	}
	return out.end(err)
}
