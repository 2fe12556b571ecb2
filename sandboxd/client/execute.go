package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"berth/sandboxd/api"
	"berth/slots"
)

// maxLine bounds one line of a streamed answer, in bytes.
const maxLine = 128 << 20

// Execute runs one call and waits for its result. The error tells that the
// call could not be carried out; when the container said so, the result holds
// it as well. It is sent again after a broken connection when it has an
// ExecutionID.
func (c *Client) Execute(ctx context.Context, call api.Call) (api.Result, error) {
	r := Request{Method: http.MethodPost, Path: "/execute", Body: call, Again: call.ExecutionID != ""}
	var result api.Result
	for tried := 0; ; tried++ {
		err := c.call(ctx, r, &result)
		if err == nil {
			return result, result.Err()
		}
		// send has tried already what got no answer. Here it broke off.
		if !r.Again || !cut(err) || !c.pause(ctx, tried) {
			return api.Result{}, err
		}
		r.sent = r.sent || slots.AsError(err).Executed != slots.ExecutedNever
	}
}

// cut reports whether the error is that of a connection.
func cut(err error) bool {
	e, ok := errors.AsType[*slots.Error](err)
	return ok && e.Kind == slots.KindContainerUnreachable
}

// named reports whether every call has an ExecutionID.
func named(calls []api.Call) bool {
	return !slices.ContainsFunc(calls, func(c api.Call) bool { return c.ExecutionID == "" })
}

// Batch runs the calls and waits for all results, which come in the order of
// the calls. A result's own Err tells of a call that could not be carried
// out. It is sent again after a broken connection when every call has an
// ExecutionID.
func (c *Client) Batch(ctx context.Context, calls []api.Call) ([]api.Result, error) {
	if len(calls) == 0 {
		return nil, nil
	}
	var results []api.Result
	r := Request{Method: http.MethodPost, Path: "/batch", Body: calls, Again: named(calls)}
	if err := c.call(ctx, r, &results); err != nil {
		return nil, err
	}
	if len(results) != len(calls) {
		return nil, slots.Errorf(slots.KindInternal, "container answered %d calls with %d results", len(calls), len(results))
	}
	return results, nil
}

// BatchStream runs the calls and yields each result when it is ready; its
// Index is the place of its call. After an error nothing more comes. When the
// connection breaks and every call that is left has an ExecutionID, those are
// sent again.
func (c *Client) BatchStream(ctx context.Context, calls []api.Call) iter.Seq2[api.Result, error] {
	return Results(ctx, c, calls, func(sent []api.Call) Request {
		return Request{Method: http.MethodPost, Path: "/batch", Body: sent, Again: named(sent)}
	})
}

// Results sends a batch by the request that ask makes of the calls and yields
// its results as BatchStream does. The request may be made again of the calls
// that are left, if it says Again.
func Results[T any](ctx context.Context, c *Client, calls []T, ask func([]T) Request) iter.Seq2[api.Result, error] {
	return func(yield func(api.Result, error) bool) {
		left := make([]int, len(calls)) // places of the calls without result
		for i := range calls {
			left[i] = i
		}
		arrived := false
		for tried := 0; len(left) > 0; tried++ {
			sent := make([]T, len(left))
			for i, place := range left {
				sent[i] = calls[place]
			}
			before := len(left)
			r := ask(sent)
			r.sent = arrived
			rest, stopped, err := c.batchOnce(ctx, r, left, yield)
			if stopped || err == nil && len(rest) == 0 {
				return
			}
			if left = rest; len(left) < before {
				tried = -1 // it goes forward
			}
			if err == nil {
				err = slots.Errorf(slots.KindContainerUnreachable, "batch ended with %d results missing", len(left))
			}
			arrived = arrived || slots.AsError(err).Executed != slots.ExecutedNever
			if !cut(err) || !r.Again || !c.pause(ctx, max(tried, 0)) {
				yield(api.Result{}, err)
				return
			}
		}
	}
}

// batchOnce sends r, whose calls stand at places of the whole batch, yields
// what comes and returns the places that are left. stopped: the caller wants
// no more.
func (c *Client) batchOnce(ctx context.Context, r Request, places []int, yield func(api.Result, error) bool) (rest []int, stopped bool, err error) {
	rest = slices.Clone(places)
	r.Header = accepting(api.TypeNDJSON)
	answer, err := c.send(ctx, r)
	if err != nil {
		return rest, false, err
	}
	defer func() { _ = answer.Body.Close() }() // a rest of it is nothing to wait for
	for line, err := range c.lines(answer.Body) {
		if err != nil {
			return rest, false, broken(ctx, err)
		}
		result, err := c.result(bytes.Clone(line)) // which it may keep
		if err != nil {
			return rest, false, slots.Errorf(slots.KindInternal, "decode result: %w", err)
		}
		if result.Index == nil || *result.Index < 0 || *result.Index >= len(places) {
			return rest, false, slots.Errorf(slots.KindInternal, "container answered a call that was not sent")
		}
		place := places[*result.Index]
		result.Index = &place
		rest = slices.DeleteFunc(rest, func(p int) bool { return p == place })
		if !yield(result, nil) {
			return rest, true, nil
		}
	}
	return rest, false, nil
}

func accepting(kind string) http.Header { return http.Header{"Accept": {kind}} }

// lines yields the lines of a body that are not empty. A last line without
// its end was cut off and is not a line.
func (c *Client) lines(body io.Reader) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		s := bufio.NewScanner(body)
		s.Buffer(make([]byte, 0, 64<<10), maxLine)
		s.Split(func(p []byte, atEOF bool) (int, []byte, error) {
			if end := bytes.IndexByte(p, '\n'); end >= 0 {
				return end + 1, p[:end], nil
			}
			if atEOF && len(p) > 0 {
				return 0, nil, io.ErrUnexpectedEOF
			}
			return 0, nil, nil
		})
		for s.Scan() {
			c.hears()
			if len(s.Bytes()) > 0 && !yield(s.Bytes(), nil) {
				return
			}
		}
		if err := s.Err(); err != nil {
			yield(nil, err)
		}
	}
}

// Lines sends r, which is answered by lines of JSON, and yields them until the
// caller leaves the loop, as it does after the last one: an answer that ends
// before is an error. After an error nothing more comes.
func (c *Client) Lines(ctx context.Context, r Request) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		r.Header = r.Header.Clone()
		if r.Header == nil {
			r.Header = http.Header{}
		}
		r.Header.Set("Accept", api.TypeNDJSON)
		answer, err := c.send(ctx, r)
		if err != nil {
			yield(nil, err)
			return
		}
		defer func() { _ = answer.Body.Close() }() // a rest of it is nothing to wait for
		for line, err := range c.lines(answer.Body) {
			if err != nil {
				yield(nil, broken(ctx, err))
				return
			}
			if !yield(line, nil) {
				drain(answer.Body)
				return
			}
		}
		yield(nil, broken(ctx, io.ErrUnexpectedEOF))
	}
}

// Offsets is how many bytes of each output stream were had.
type Offsets struct{ Stdout, Stderr int64 }

// Stream runs one call and yields its events while they happen: one start,
// chunks and gaps, and the result as the last. A broken connection is taken up
// again where it broke, so that no byte comes twice; that needs the start to
// have come, or an ExecutionID. After an error nothing more comes. Leaving
// the loop leaves an execution that has started running.
func (c *Client) Stream(ctx context.Context, call api.Call) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		first := Request{Method: http.MethodPost, Path: "/execute", Body: call, Again: call.ExecutionID != ""}
		c.follow(ctx, first, Offsets{}, c.resume, yield)
	}
}

// Events sends r and yields the events of its answer as Stream does. A broken
// connection has r sent again if it says Again, and what comes twice by that
// is left out.
func (c *Client) Events(ctx context.Context, r Request) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) { c.follow(ctx, r, Offsets{}, nil, yield) }
}

// Follow yields the events of an execution that was started before, from the
// offsets on. It goes on like Stream.
func (c *Client) Follow(ctx context.Context, executionID string, from Offsets) iter.Seq2[api.Event, error] {
	return c.execution(executionID).Follow(ctx, from)
}

// Follow is that of a Client.
func (e Execution) Follow(ctx context.Context, from Offsets) iter.Seq2[api.Event, error] {
	again := func(_ string, at Offsets) Request { return e.resume(at) }
	return func(yield func(api.Event, error) bool) { e.c.follow(ctx, e.resume(from), from, again, yield) }
}

func (c *Client) resume(executionID string, from Offsets) Request {
	return c.execution(executionID).resume(from)
}

func (e Execution) resume(from Offsets) Request {
	return Request{
		Method: http.MethodGet, Path: e.path + "/stream", Again: true,
		Query: url.Values{
			"stdout_offset": {strconv.FormatInt(from.Stdout, 10)},
			"stderr_offset": {strconv.FormatInt(from.Stderr, 10)},
		},
	}
}

// following is the state of one followed execution over its connections.
type following struct {
	id   string // of the execution; "" until its start
	at   Offsets
	done bool // the result was yielded, or the caller wants no more
}

// follow yields the events of r's answer and of as many resumptions as it
// takes, which again makes; nil: r is sent again.
func (c *Client) follow(ctx context.Context, r Request, from Offsets, again func(id string, at Offsets) Request, yield func(api.Event, error) bool) {
	f := following{at: from}
	for tried := 0; ; tried++ {
		before := f.at
		err := c.followOnce(ctx, r, &f, yield)
		if f.done {
			return
		}
		r.sent = r.sent || err == nil || slots.AsError(err).Executed != slots.ExecutedNever
		if f.id != "" && again != nil {
			begun, sent := r.begun || r.Method == http.MethodPost, r.sent
			r = again(f.id, f.at)
			r.begun, r.sent = begun, sent
		}
		if f.at != before {
			tried = -1 // it goes forward
		}
		if !cut(err) || !r.Again || !c.pause(ctx, max(tried, 0)) {
			yield(api.Event{}, err)
			return
		}
	}
}

func (c *Client) followOnce(ctx context.Context, r Request, f *following, yield func(api.Event, error) bool) error {
	r.Header = accepting(api.TypeNDJSON)
	answer, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	if answer.Header.Get("Content-Type") != api.TypeNDJSON {
		defer func() {
			drain(answer.Body)
			_ = answer.Body.Close() // all that was wanted of it is read
		}()
		return f.refused(ctx, answer, yield)
	}
	defer func() { _ = answer.Body.Close() }() // a rest of it is nothing to wait for
	for line, err := range c.lines(answer.Body) {
		if err != nil {
			return broken(ctx, err)
		}
		var e api.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return slots.Errorf(slots.KindInternal, "decode event: %w", err)
		}
		if !f.take(&e) {
			continue
		}
		f.done = !yield(e, nil) || e.Name == api.EventResult
		if f.done {
			return nil
		}
	}
	return broken(ctx, io.ErrUnexpectedEOF)
}

// refused takes the answer to a call that never became a stream.
func (f *following) refused(ctx context.Context, answer *http.Response, yield func(api.Event, error) bool) error {
	text, err := readAnswer(answer)
	if err != nil {
		return broken(ctx, err)
	}
	result, err := api.DecodeResult(text)
	if err != nil {
		return slots.Errorf(slots.KindInternal, "decode result: %w", err)
	}
	f.done = true
	yield(api.Event{Name: api.EventResult, Result: &result}, nil)
	return nil
}

// take notes an event and leaves out of it what was had before; false for one
// that the caller does not get.
func (f *following) take(e *api.Event) bool {
	at := func(stream string) *int64 {
		if stream == "stderr" {
			return &f.at.Stderr
		}
		return &f.at.Stdout
	}
	switch e.Name {
	case api.EventStart:
		known := f.id != ""
		f.id = e.Start.ExecutionID
		return !known
	case api.EventChunk:
		had, text := at(e.Chunk.Stream), e.Chunk.Bytes()
		end := e.Chunk.Offset + int64(len(text))
		if end <= *had {
			return false
		}
		if again := *had - e.Chunk.Offset; again > 0 {
			rest := api.NewChunk(e.Chunk.Stream, *had, text[again:])
			e.Chunk = &rest
		}
		*had = end
	case api.EventGap:
		had := at(e.Gap.Stream)
		if e.Gap.To <= *had {
			return false
		}
		e.Gap.From = max(e.Gap.From, *had)
		*had = e.Gap.To
	case api.EventPing:
		return false
	case api.EventResult, api.EventProgress: // the latter is of environments alone
	}
	return true
}
