package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"

	"github.com/labstack/echo/v4"

	"berth/sandboxd/api"
	"berth/sandboxd/execution"
	"berth/slots"
)

// execute answers POST /execute. What becomes of a call is always told with
// 200; other statuses are about the request.
func (s *Server) execute(c echo.Context) error {
	b, err := s.readBody(c)
	if err != nil {
		return err
	}
	call, err := decodeCall(b.Bytes())
	putBuffer(b)
	if err == errInvalidJSON { //nolint:errorlint // the one value, never wrapped
		return err
	}
	if err != nil {
		return s.answer(c, http.StatusOK, api.Refused(call.ExecutionID, err))
	}
	ctx := c.Request().Context()
	if m := streamed(c.Request()); m != plain {
		return s.stream(c, s.Executions.Follow(ctx, call), m, offsets{})
	}
	answer, err := s.wait(ctx, s.Executions.Run(ctx, call))
	if err != nil {
		return err
	}
	return s.send(c, http.StatusOK, answer)
}

// decodeCall reads one call. Errors other than errInvalidJSON leave what
// could be read in the call.
func decodeCall(text []byte) (api.Call, error) {
	var call api.Call
	if err := decodeLoose(text, &call); err != nil {
		return call, err
	}
	if args := bytes.TrimLeft(call.Args, " \t\r\n"); len(args) > 0 && args[0] != '{' && string(args) != "null" {
		return call, slots.Errorf(slots.KindBadRequest, "args must be an object")
	}
	return call, nil
}

// wait is the JSON of the execution's result. When the request ends first,
// that is the client's doing or the server's; the server's is told.
func (s *Server) wait(ctx context.Context, e *execution.Execution) ([]byte, error) {
	if e.Wait(ctx) == nil {
		return e.Answer(), nil
	}
	if cause := slots.AsError(context.Cause(ctx)); cause == errStopping {
		return interrupted(e).Encode()
	}
	return nil, context.Canceled
}

// interrupted is the result told of an execution that the server cannot wait
// for any longer.
func interrupted(e *execution.Execution) api.Result {
	err := errStopping
	if !e.Started() {
		err = err.WithExecuted(slots.ExecutedNever)
	}
	return api.Refused(e.ID(), err)
}

// batch answers POST /batch.
func (s *Server) batch(c echo.Context) error {
	elements, err := s.readBatch(c)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	// Everything is queued before anything is waited for, in the array's
	// order: that is the order in which a slot runs its calls.
	running := make([]pending, len(elements))
	for i, text := range elements {
		call, err := decodeCall(text)
		if err != nil {
			running[i].refused = api.Refused(call.ExecutionID, err)
			continue
		}
		running[i].execution = s.Executions.Submit(ctx, call)
	}
	if m := streamed(c.Request()); m != plain {
		return s.streamBatch(c, m, running)
	}
	b := getBuffer()
	defer putBuffer(b)
	b.WriteByte('[')
	for i, p := range running {
		answer, err := p.wait(ctx, s)
		if err != nil {
			return s.abandon(ctx, running[i:])
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(answer)
	}
	b.WriteByte(']')
	return s.send(c, http.StatusOK, b.Bytes())
}

// pending is one call of a batch: an execution, or why there is none.
type pending struct {
	execution *execution.Execution
	refused   api.Result
}

func (p pending) wait(ctx context.Context, s *Server) ([]byte, error) {
	if p.execution == nil {
		return p.refused.Encode()
	}
	return s.wait(ctx, p.execution)
}

// abandon tells the calls that ctx, which has ended, waited for them: those
// that have not started are cancelled by it.
func (s *Server) abandon(ctx context.Context, running []pending) error {
	for _, p := range running {
		_, _ = p.wait(ctx, s) // returns at once
	}
	return context.Canceled
}

// readBatch reads the array of a batch. The elements may be anything.
func (s *Server) readBatch(c echo.Context) ([]json.RawMessage, error) {
	b, err := s.readBody(c)
	if err != nil {
		return nil, err
	}
	defer putBuffer(b)
	text := bytes.TrimLeft(b.Bytes(), " \t\r\n")
	if len(text) == 0 || text[0] != '[' {
		return nil, errInvalidJSON
	}
	var elements []json.RawMessage
	if err := json.Unmarshal(text, &elements); err != nil {
		return nil, errInvalidJSON
	}
	if len(elements) > s.config.MaxBatch {
		return nil, slots.Errorf(slots.KindTooLarge, "batch has %d calls: at most %d", len(elements), s.config.MaxBatch)
	}
	return elements, nil
}

// streamBatch sends each result when it is ready, with its place in the
// batch.
func (s *Server) streamBatch(c echo.Context, m mode, running []pending) error {
	ctx, cancel := context.WithCancel(c.Request().Context())
	results := make(chan batchResult)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	for i, p := range running {
		waiting.Go(func() {
			answer, err := p.wait(ctx, s)
			if err != nil {
				return
			}
			select {
			case results <- batchResult{i, answer}:
			case <-ctx.Done():
			}
		})
	}
	out := s.newSink(c, m)
	for range running {
		select {
		case r := <-results:
			out.batchResult(r)
		case <-ctx.Done():
			return nil
		}
		if err := out.flush(); err != nil {
			return nil //nolint:nilerr // the client is gone
		}
	}
	return nil
}

// batchResult is the encoded result of the call at that place of its batch.
type batchResult struct {
	place  int
	answer []byte
}

// mode is the form of an answer.
type mode int

const (
	plain mode = iota
	ndjson
	eventStream
)

// streamed reads from the request in which form its client wants the answer.
func streamed(r *http.Request) mode {
	for _, accept := range r.Header[echo.HeaderAccept] {
		for part := range strings.SplitSeq(accept, ",") {
			name, _, _ := strings.Cut(part, ";")
			switch strings.ToLower(strings.TrimSpace(name)) {
			case api.TypeNDJSON:
				return ndjson
			case api.TypeEventStream:
				return eventStream
			}
		}
	}
	return plain
}
