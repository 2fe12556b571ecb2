package httpapi

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"berth/sandboxd/api"
	"berth/sandboxd/execution"
	"berth/sandboxd/httpkit"
	"berth/slots/process"
)

// The names of output streams.
const (
	streamStdout = "stdout"
	streamStderr = "stderr"
)

const (
	// chunkBytes is the most that one chunk carries.
	chunkBytes = 32 << 10
	// stragglers is how long output may stay silent after its execution has
	// ended before it is taken for over. It only matters when somebody forgot
	// to end it.
	stragglers = time.Second
)

// stream answers with the execution's output from the offsets on while it is
// written, and its result. Whatever happens, the last event is a result, and
// there is one.
func (s *Server) stream(c echo.Context, e *execution.Execution, m httpkit.Mode, from offsets) error {
	out := s.newSink(c, m)
	out.at = from
	defer func() {
		if p := recover(); p != nil {
			s.panicked(c, p)
			result := api.Refused(e.ID(), errPanic)
			out.event(api.Event{Name: api.EventResult, Result: &result})
			_ = out.flush() // nobody is left to be told
		}
	}()
	out.event(api.Event{Name: api.EventStart, Start: &api.Start{ExecutionID: e.ID()}})
	if err := out.flush(); err != nil {
		// Waiting with a context that has ended tells a call that has not
		// started that nobody wants it.
		_ = e.Wait(ended())
		return nil
	}
	if answer := s.follow(c.Request().Context(), e, out); answer != nil {
		out.result(answer)
		_ = out.flush() // nobody is left to be told
	}
	return nil
}

// ended is a context that is over.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// follow sends the execution's output until it is over and returns the
// result's JSON; nil when the client is gone.
func (s *Server) follow(ctx context.Context, e *execution.Execution, out *sink) []byte {
	ctx, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()

	results := make(chan []byte, 1)
	working.Go(func() {
		defer close(results)
		if r, err := s.wait(ctx, e); err == nil {
			results <- r
		}
	})
	events := make(chan api.Event)
	working.Go(func() {
		defer close(events)
		produce(ctx, e, out.at, events)
	})

	alive := time.NewTicker(s.config.KeepAlive)
	defer alive.Stop()
	var result []byte
	var silence <-chan time.Time
	for events != nil || result == nil {
		select {
		case ev, more := <-events:
			if !more {
				events = nil
				continue
			}
			out.event(ev)
			if silence != nil {
				silence = time.After(stragglers)
			}
		case r, ok := <-results:
			if !ok {
				return nil
			}
			result, results = r, nil
			silence = time.After(stragglers)
			continue
		case <-silence:
			events = nil
			continue
		case <-alive.C:
			out.event(api.Event{Name: api.EventPing})
		}
		if out.flush() != nil {
			return nil
		}
	}
	return result
}

// produce sends events for both output streams until both are over.
func produce(ctx context.Context, e *execution.Execution, from offsets, events chan<- api.Event) {
	select {
	case <-e.Attached():
	case <-e.Done():
	case <-ctx.Done():
		return
	}
	stdout, stderr := e.Outputs()
	if stdout == nil || stderr == nil {
		produceLost(ctx, e, from, events)
		return
	}
	var both sync.WaitGroup
	both.Go(func() { produceStream(ctx, streamStdout, stdout, from.stdout, events) })
	both.Go(func() { produceStream(ctx, streamStderr, stderr, from.stderr, events) })
	both.Wait()
}

// produceLost tells of output that only its length is known of: the execution
// is answered from the journal.
func produceLost(ctx context.Context, e *execution.Execution, from offsets, events chan<- api.Event) {
	select {
	case <-e.Done():
	case <-ctx.Done():
		return
	}
	receipt := e.Result().Metadata.Receipt
	if receipt == nil {
		return
	}
	for _, gap := range []api.Gap{
		{Stream: streamStdout, From: from.stdout, To: receipt.StdoutBytes},
		{Stream: streamStderr, From: from.stderr, To: receipt.StderrBytes},
	} {
		if gap.From < gap.To {
			send(ctx, events, api.Event{Name: api.EventGap, Gap: &gap})
		}
	}
}

// produceStream sends chunks of one stream. A code point whose bytes have not
// all come is kept back until they have.
func produceStream(ctx context.Context, name string, c *process.Capture, at int64, events chan<- api.Event) {
	var held []byte
	chunk := func(p []byte) bool {
		ev := api.NewChunk(name, at, p)
		at += int64(len(p))
		return send(ctx, events, api.Event{Name: api.EventChunk, Chunk: &ev})
	}
	for {
		p, err := c.Next(ctx, at+int64(len(held)), chunkBytes)
		if err != nil && len(held) > 0 && ctx.Err() == nil {
			if !chunk(held) {
				return
			}
			held = nil
		}
		if gap, ok := errors.AsType[*process.GapError](err); ok && gap.To > at {
			if !send(ctx, events, api.Event{Name: api.EventGap, Gap: &api.Gap{Stream: name, From: at, To: gap.To}}) {
				return
			}
			at = gap.To
			continue
		}
		if err != nil {
			return
		}
		if len(held) > 0 {
			p = append(held, p...)
		}
		n := whole(p)
		held = p[n:]
		if n > 0 && !chunk(p[:n]) {
			return
		}
	}
}

func send(ctx context.Context, events chan<- api.Event, e api.Event) bool {
	select {
	case events <- e:
		return true
	case <-ctx.Done():
		return false
	}
}

// whole is the length of p without a code point that is cut off at its end.
func whole(p []byte) int {
	for i := len(p) - 1; i >= max(0, len(p)-utf8.UTFMax); i-- {
		if utf8.RuneStart(p[i]) {
			if utf8.FullRune(p[i:]) {
				break
			}
			return i
		}
	}
	return len(p)
}

// resume answers GET /v1/executions/{id}/stream.
func (s *Server) resume(c echo.Context) error {
	e, err := s.find(c)
	if err != nil {
		return err
	}
	stdout, stderr, err := httpkit.ResumeAt(c.Request())
	if err != nil {
		return err
	}
	m := httpkit.Streamed(c.Request())
	if m == httpkit.Plain {
		m = httpkit.EventStream
	}
	return s.stream(c, e, m, offsets{stdout, stderr})
}

// copyOutput copies [from, to) of a capture to w.
func copyOutput(ctx context.Context, w io.Writer, c *process.Capture, from, to int64) error {
	for from < to {
		p, err := c.Next(ctx, from, int(min(to-from, chunkBytes)))
		if err != nil {
			return err
		}
		if _, err := w.Write(p); err != nil {
			return err
		}
		from += int64(len(p))
	}
	return nil
}
