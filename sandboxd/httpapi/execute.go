package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"

	"github.com/labstack/echo/v4"

	"berth/sandboxd/api"
	"berth/sandboxd/execution"
	"berth/sandboxd/httpkit"
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
	httpkit.PutBuffer(b)
	if err == api.ErrInvalidJSON { //nolint:errorlint // the one value, never wrapped
		return err
	}
	if err != nil {
		return s.answer(c, http.StatusOK, api.Refused(call.ExecutionID, err))
	}
	ctx := c.Request().Context()
	if m := httpkit.Streamed(c.Request()); m != httpkit.Plain {
		return s.stream(c, s.Executions.Follow(ctx, call), m, offsets{})
	}
	answer, err := s.wait(ctx, s.Executions.Run(ctx, call))
	if err != nil {
		return err
	}
	return s.send(c, http.StatusOK, answer)
}

// decodeCall reads one call. Errors other than api.ErrInvalidJSON leave what
// could be read in the call.
func decodeCall(text []byte) (api.Call, error) {
	var call api.Call
	if err := api.Decode(text, &call); err != nil {
		return call, err
	}
	if !api.IsArgs(call.Args) {
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
	if stopping(ctx) {
		return interrupted(e).Encode()
	}
	return nil, context.Canceled
}

// stopping reports whether the server's stop has ended ctx, and not its
// client.
func stopping(ctx context.Context) bool { return slots.AsError(context.Cause(ctx)) == errStopping }

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
	if m := httpkit.Streamed(c.Request()); m != httpkit.Plain {
		return s.streamBatch(c, m, running)
	}
	defer leave(running)
	for _, p := range running {
		if !p.await(ctx) && !stopping(ctx) {
			return context.Canceled
		}
	}
	b := httpkit.GetBuffer()
	defer httpkit.PutBuffer(b)
	b.WriteByte('[')
	for i, p := range running {
		if i > 0 {
			b.WriteByte(',')
		}
		answer, err := p.answer()
		if err != nil {
			return err
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

// await reports whether the call ended before ctx. It does not give it up.
func (p pending) await(ctx context.Context) bool {
	if p.execution == nil {
		return true
	}
	select {
	case <-p.execution.Done():
		return true
	case <-ctx.Done():
		return false
	}
}

// answer is the call's result, or that the server cannot wait for it.
func (p pending) answer() ([]byte, error) {
	if p.execution == nil {
		return p.refused.Encode()
	}
	select {
	case <-p.execution.Done():
		return p.execution.Answer(), nil
	default:
		return interrupted(p.execution).Encode()
	}
}

// leave gives up the calls that have not ended: those that have not started
// are cancelled by it. The last one goes first, because a slot begins with the
// next call in the order of the batch as soon as the one before it is gone.
func leave(running []pending) {
	for _, p := range slices.Backward(running) {
		if p.execution != nil {
			_ = p.execution.Wait(ended()) // returns at once
		}
	}
}

// readBatch reads the array of a batch. The elements may be anything.
func (s *Server) readBatch(c echo.Context) ([]json.RawMessage, error) {
	b, err := s.readBody(c)
	if err != nil {
		return nil, err
	}
	defer httpkit.PutBuffer(b)
	text := bytes.TrimLeft(b.Bytes(), " \t\r\n")
	if len(text) == 0 || text[0] != '[' {
		return nil, api.ErrInvalidJSON
	}
	var elements []json.RawMessage
	if err := json.Unmarshal(text, &elements); err != nil {
		return nil, api.ErrInvalidJSON
	}
	if len(elements) > s.config.MaxBatch {
		return nil, slots.Errorf(slots.KindTooLarge, "batch has %d calls: at most %d", len(elements), s.config.MaxBatch)
	}
	return elements, nil
}

// streamBatch sends each result when it is ready, with its place in the
// batch.
func (s *Server) streamBatch(c echo.Context, m httpkit.Mode, running []pending) error {
	defer leave(running)
	ctx, cancel := context.WithCancel(c.Request().Context())
	ready := make(chan int)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	for i, p := range running {
		waiting.Go(func() {
			if !p.await(ctx) {
				return
			}
			select {
			case ready <- i:
			case <-ctx.Done():
			}
		})
	}
	out := s.newSink(c, m)
	told := make([]bool, len(running))
	tell := func(i int) error {
		told[i] = true
		answer, err := running[i].answer()
		if err != nil {
			return err
		}
		out.batchResult(i, answer)
		return out.flush()
	}
	for range running {
		select {
		case i := <-ready:
			if tell(i) != nil {
				return nil // the client is gone
			}
			continue
		case <-ctx.Done():
		}
		for i := range running {
			if stopping(ctx) && !told[i] && tell(i) != nil {
				return nil // see above
			}
		}
		return nil
	}
	return nil
}
