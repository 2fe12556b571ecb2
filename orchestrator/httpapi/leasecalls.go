package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"strings"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"berth/orchestrator/calls"
	"berth/orchestrator/dispatch"
	"berth/orchestrator/pool"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
	"berth/sandboxd/client"
	"berth/sandboxd/httpkit"
	"berth/slots"
)

// check refuses what no container needs to be asked for.
func check(l poolapi.Call) error {
	if l.Tool == "" {
		return slots.Errorf(slots.KindBadRequest, "tool is missing")
	}
	if !api.IsArgs(l.Args) {
		return slots.Errorf(slots.KindBadRequest, "args must be an object")
	}
	return nil
}

func newCall(l poolapi.Call) dispatch.Call {
	return dispatch.Call{
		Call:          api.Call{Tool: l.Tool, Args: l.Args, ExecutionID: l.ExecutionID, Timeout: l.TimeoutS},
		CancelStarted: l.CancelStarted,
	}
}

// locate finds the container of the lease that the path names.
func (s *Server) locate(c echo.Context) (pool.Lease, error) {
	which, err := ref(c)
	if err != nil {
		return pool.Lease{}, err
	}
	lease, err := s.Calls.Locate(c.Request().Context(), which)
	if err == nil {
		s.tellDraining(c, which)
	}
	return lease, err
}

// ran reports whether the container tells of a process that ran. Also when
// something has ended that, the lease as a rule, its result is the answer: it
// holds what was written until then, and says why no more came.
func ran(r api.Result) bool { return r.Metadata.Receipt != nil }

// executeLease answers POST /v1/leases/{lease}/execute: with the result, or
// with the error of a call that could not be carried out.
func (s *Server) executeLease(c echo.Context) error {
	lease, err := s.locate(c)
	if err != nil {
		return err
	}
	var want poolapi.Call
	if err := s.readStrict(c, &want); err != nil {
		return err
	}
	if err := check(want); err != nil {
		return err
	}
	one := []poolapi.Call{want}
	if err := name(c, one); err != nil {
		return err
	}
	want = one[0]
	if m := httpkit.Streamed(c.Request()); m != httpkit.Plain {
		return s.streamLease(c, lease, want, m)
	}
	answer, err := s.Calls.Do(c.Request().Context(), lease, newCall(want))
	if err != nil && !ran(answer.Result) {
		return err
	}
	text, err := timed(answer.Result, newTiming(calls.Answer{Answer: answer}))
	if err != nil {
		return err
	}
	s.send(c, http.StatusOK, text)
	return nil
}

// streamLease passes on the events of an execution while they happen. A client
// that does not take them has gone.
func (s *Server) streamLease(c echo.Context, lease pool.Lease, want poolapi.Call, m httpkit.Mode) error {
	ctx, leave := context.WithCancelCause(c.Request().Context())
	defer leave(nil)
	_, err := s.Calls.Stream(ctx, lease, newCall(want), func(events iter.Seq2[api.Event, error], timing func(api.Result) dispatch.Timing) (api.Result, error) {
		last, err := s.passEvents(c, following{name: want.ExecutionID, mode: m, timing: timing}, events)
		if errors.Is(err, errNotTaken) {
			leave(err)
		}
		return last, err
	})
	if c.Response().Committed {
		return nil // the stream has told it
	}
	return err
}

// name gives calls without an id one, so that they can be asked for by it: the
// request's key if it has one, which makes them the executions that they were
// when it was sent before.
func name(c echo.Context, calls []poolapi.Call) error {
	key, err := keyOf(c.Request())
	for i := range calls {
		switch call := &calls[i]; {
		case call.ExecutionID != "":
		case key == "":
			call.ExecutionID = uuid.NewString()
		default:
			call.ExecutionID = poolapi.NameByKey(key, i)
		}
	}
	return err
}

// following is how the events of an execution are passed on.
type following struct {
	name   string // of the execution, as its lease calls it
	mode   httpkit.Mode
	from   client.Offsets
	timing func(api.Result) dispatch.Timing // of the call that ends now with the result
}

// errNotTaken says that the client took no more events.
var errNotTaken = errors.New("client takes no more events")

// passEvents passes on the events of an execution and returns its result, or
// why it has none. The first event decides whether there is a stream or an
// error.
func (s *Server) passEvents(c echo.Context, f following, events iter.Seq2[api.Event, error]) (api.Result, error) {
	var out *sink
	for event, failed := range events {
		if out == nil {
			if failed != nil {
				return api.Result{}, failed
			}
			out = s.newSink(c, f.mode)
			out.at = f.from
		}
		if event.Start != nil {
			event.Start.ExecutionID = f.name
		}
		last := event.Result
		if failed != nil {
			refused := api.Refused(f.name, failed)
			last = &refused
		}
		if last == nil {
			if out.event(event) != nil {
				return api.Result{}, errNotTaken
			}
			continue
		}
		last.ExecutionID = f.name
		text, err := timed(*last, newTiming(calls.Answer{Answer: dispatch.Answer{Timing: f.timing(*last)}}))
		if err != nil {
			return api.Result{}, err
		}
		// It has ended, whether the client takes that or not.
		_ = out.write(api.EventResult, api.AppendEvent(nil, api.EventResult, text))
		if failed != nil {
			return api.Result{}, failed
		}
		return *last, nil
	}
	return api.Result{}, slots.Errorf(slots.KindInternal, "container left a call without answer")
}

// maxBatch is how many calls a batch may have.
const maxBatch = 10_000

// batchLease answers POST /v1/leases/{lease}/batch: each call has a result,
// also one that could not be carried out.
func (s *Server) batchLease(c echo.Context) error {
	lease, err := s.locate(c)
	if err != nil {
		return err
	}
	var want poolapi.Batch
	if err := s.readStrict(c, &want); err != nil {
		return err
	}
	if len(want.Calls) > maxBatch {
		return slots.Errorf(slots.KindTooLarge, "batch has %d calls: at most %d", len(want.Calls), maxBatch)
	}
	if err := name(c, want.Calls); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(c.Request().Context())
	defer cancel()
	results := s.run(ctx, lease, want.Calls)
	if m := httpkit.Streamed(c.Request()); m != httpkit.Plain {
		out := s.newSink(c, m)
		for r := range results {
			if r.err == nil {
				text := api.AppendEvent(nil, api.EventResult, api.WithIndex(r.text, r.place))
				r.err = out.write(api.EventResult, text)
			}
			if r.err != nil {
				cancel()
			}
		}
		return nil
	}
	all := make([][]byte, len(want.Calls))
	for r := range results {
		all[r.place] = r.text
		err = errors.Join(err, r.err)
	}
	if err != nil {
		return err
	}
	// A poolapi.Results.
	text := append([]byte(`{"results":[`), bytes.Join(all, []byte{','})...)
	s.send(c, http.StatusOK, append(text, "]}"...))
	return nil
}

// placedResult is the JSON of the result of the call at its place in a batch.
type placedResult struct {
	place int
	text  []byte
	err   error // why there is no text
}

// run runs the calls of a batch in their order and sends each result, with its
// place, when it is there. All come, and then the channel is closed.
func (s *Server) run(ctx context.Context, lease pool.Lease, batch []poolapi.Call) <-chan placedResult {
	results := make(chan placedResult, len(batch)) // so that nobody waits for who reads it
	pending := make(chan func(), len(batch))
	go func() { // ends with the calls, which end with ctx
		defer close(pending)
		for i, want := range batch {
			send := func(answer dispatch.Answer, err error) {
				r := answer.Result
				if err != nil && !ran(r) {
					r = api.Refused(want.ExecutionID, err)
				}
				text, err := timed(r, newTiming(calls.Answer{Answer: answer}))
				results <- placedResult{i, text, err}
			}
			err := check(want)
			var p *calls.Pending
			if err == nil {
				p, err = s.Calls.Submit(ctx, lease, newCall(want))
			}
			if err != nil {
				send(dispatch.Answer{}, err)
				continue
			}
			pending <- func() { send(p.Wait(ctx)) }
		}
	}()
	go func() { // as above
		defer close(results)
		for wait := range pending { // a lease's calls end in their order
			wait()
		}
	}()
	return results
}

// forwardLease has the container answer a request about artifacts.
func (s *Server) forwardLease(c echo.Context, q any, slot *string, token **uint64) error {
	lease, err := s.locate(c)
	if err != nil {
		return err
	}
	if err := s.readStrict(c, q); err != nil {
		return err
	}
	if *slot != "" || *token != nil {
		return slots.Errorf(slots.KindBadRequest, "the lease says which slot")
	}
	*slot, *token = lease.Slot.SlotID, &lease.Slot.Token
	text, err := json.Marshal(q)
	if err != nil {
		return slots.Errorf(slots.KindInternal, "encode request: %w", err)
	}
	_, path, _ := strings.Cut(c.Path(), "/:lease")
	return s.forward(c, lease, message{path: path, body: bytes.NewReader(text), judge: true})
}

func (s *Server) readLeaseArtifact(c echo.Context) error {
	var q api.ReadRequest
	return s.forwardLease(c, &q, &q.SlotID, &q.Token)
}

func (s *Server) listLeaseArtifacts(c echo.Context) error {
	var q api.ListRequest
	return s.forwardLease(c, &q, &q.SlotID, &q.Token)
}

func (s *Server) archiveLeaseArtifacts(c echo.Context) error {
	var q api.ArchiveRequest
	return s.forwardLease(c, &q, &q.SlotID, &q.Token)
}

// asked are the headers that travel from a caller to a container.
var asked = []string{echo.HeaderContentType, "Range", "If-Match", "If-None-Match", "Accept", api.HeaderChecksum, api.HeaderMode}

// leaseFile answers {GET,HEAD,PUT} /v1/leases/{lease}/files/{path}, by the
// container's /slots/{slot}/files/{path}.
func (s *Server) leaseFile(c echo.Context) error {
	if c.Request().Method != http.MethodPut {
		return s.forwardFile(c, nil)
	}
	body := s.patient(c)
	err := s.forwardFile(c, body)
	if err != nil {
		body.Refuse(c.Request())
	}
	return err
}

func (s *Server) forwardFile(c echo.Context, body io.Reader) error {
	lease, err := s.locate(c)
	if err != nil {
		return err
	}
	r := c.Request()
	_, path, _ := strings.Cut(r.URL.EscapedPath(), "/files/")
	m := message{path: "/slots/" + lease.Slot.SlotID + "/files/" + path, header: http.Header{}, judge: true}
	if r.URL.RawQuery != "" {
		m.path += "?" + r.URL.RawQuery
	}
	for _, name := range asked {
		if values := r.Header.Values(name); len(values) > 0 {
			m.header[http.CanonicalHeaderKey(name)] = values
		}
	}
	m.header.Set(api.HeaderToken, tokenText(lease))
	if body != nil {
		m.body, m.length = body, r.ContentLength
		m.header.Set("Expect", "100-continue") // what the container refuses need not be sent to it
	}
	return s.forward(c, lease, m)
}
