package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"berth/sandboxd/api"
	"berth/slots"
)

// executionAnswer is a Result, or an ExecutionState when State is not "".
type executionAnswer struct {
	State  string
	Result api.Result
}

// UnmarshalJSON tells the two apart by the key "state".
func (a *executionAnswer) UnmarshalJSON(b []byte) error {
	var s api.ExecutionState
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	if a.State = s.State; a.State != "" {
		a.Result.ExecutionID = s.ExecutionID
		return nil
	}
	return json.Unmarshal(b, &a.Result)
}

// Execution is one execution at a server, by the contract of
// /v1/executions/{id}. One that is not known, or no longer, is
// slots.KindNotFound.
type Execution struct {
	c    *Client
	path string
}

// ExecutionAt is the execution at the escaped path.
func (c *Client) ExecutionAt(path string) Execution { return Execution{c, path} }

func (c *Client) execution(id string) Execution {
	return c.ExecutionAt("/v1/executions/" + url.PathEscape(id))
}

// Result returns the result of an execution. state is "" when it has ended,
// else api.StateQueued or api.StateRunning, and the result holds its id only.
// An execution that is not known, or no longer, is slots.KindNotFound.
func (c *Client) Result(ctx context.Context, executionID string) (result api.Result, state string, err error) {
	return c.execution(executionID).Result(ctx, 0)
}

// Result is that of a Client. A server that can waits as long as wait for the
// end; a container cannot.
func (e Execution) Result(ctx context.Context, wait time.Duration) (result api.Result, state string, err error) {
	r := Request{Method: http.MethodGet, Path: e.path, Again: true}
	if wait > 0 {
		r.Query = url.Values{"wait_s": {strconv.FormatFloat(wait.Seconds(), 'f', -1, 64)}}
	}
	return e.ask(ctx, r)
}

func (e Execution) ask(ctx context.Context, r Request) (api.Result, string, error) {
	var a executionAnswer
	err := e.c.call(ctx, r, &a)
	return a.Result, a.State, err
}

// Cancel ends an execution and waits some seconds for its result; it returns
// what Result does. To cancel twice is to cancel once.
func (c *Client) Cancel(ctx context.Context, executionID string) (result api.Result, state string, err error) {
	return c.execution(executionID).Cancel(ctx)
}

// Cancel is that of a Client.
func (e Execution) Cancel(ctx context.Context) (result api.Result, state string, err error) {
	return e.ask(ctx, Request{Method: http.MethodPost, Path: e.path + "/cancel", Again: true})
}

// Output returns bytes of one output stream, "stdout" or "stderr", from the
// offset on, as many as are there now and at most length. total is the length
// of the stream so far. Bytes that are no longer kept are slots.KindNotFound.
func (c *Client) Output(ctx context.Context, executionID, stream string, offset, length int64) (p []byte, total int64, err error) {
	return c.execution(executionID).Output(ctx, stream, offset, length)
}

// Output is that of a Client.
func (e Execution) Output(ctx context.Context, stream string, offset, length int64) (p []byte, total int64, err error) {
	answer, err := e.c.send(ctx, Request{
		Method: http.MethodGet, Path: e.path + "/output", Again: true,
		Query: url.Values{
			"stream": {stream}, "offset": {strconv.FormatInt(offset, 10)}, "length": {strconv.FormatInt(length, 10)},
		},
	})
	if err != nil {
		return nil, 0, err
	}
	defer func() {
		drain(answer.Body)
		_ = answer.Body.Close() // all that was wanted of it is read
	}()
	if p, err = io.ReadAll(answer.Body); err != nil {
		return nil, 0, broken(ctx, err)
	}
	total, err = strconv.ParseInt(answer.Header.Get("Berth-Total"), 10, 64)
	if err != nil {
		return nil, 0, slots.Errorf(slots.KindInternal, "decode length of output: %w", err)
	}
	return p, total, nil
}

// Reset makes the slot pristine and returns the proof. The receipt is there
// also when the error says that the slot could not be proven clean.
func (c *Client) Reset(ctx context.Context, slotID string, token *uint64) (slots.Receipt, error) {
	var answer api.ResetAnswer
	r := Request{Method: http.MethodPost, Path: "/reset", Body: api.ResetRequest{SlotID: slotID, Token: token}}
	if err := c.call(ctx, r, &answer); err != nil {
		return slots.Receipt{}, err
	}
	if err := answer.Err(); err != nil {
		return answer.Metadata.Receipt, err
	}
	return answer.Metadata.Receipt, nil
}

// Health asks how the container is. It needs no token.
func (c *Client) Health(ctx context.Context) (api.Health, error) {
	var h api.Health
	err := c.call(ctx, Request{Method: http.MethodGet, Path: "/health", Again: true}, &h)
	return h, err
}

// Slots lists the container's slots in the order of their numbers.
func (c *Client) Slots(ctx context.Context) ([]api.Slot, error) {
	var list api.Slots
	err := c.call(ctx, Request{Method: http.MethodGet, Path: "/slots", Again: true}, &list)
	return list.Slots, err
}

// Acquire leases the slot. A slot that is leased or busy is
// slots.KindConflict.
func (c *Client) Acquire(ctx context.Context, slotID string, want api.LeaseRequest) (slots.Lease, error) {
	var lease slots.Lease
	err := c.call(ctx, Request{Method: http.MethodPost, Path: leasePath(slotID), Body: want}, &lease)
	return lease, err
}

// AcquireAny leases any free slot. When there is none, that is
// slots.KindPoolExhausted.
func (c *Client) AcquireAny(ctx context.Context, want api.LeaseRequest) (slots.Lease, error) {
	var lease slots.Lease
	err := c.call(ctx, Request{Method: http.MethodPost, Path: "/v1/leases", Body: want}, &lease)
	return lease, err
}

// Renew makes the lease last longer. It is sent again after a broken
// connection.
func (c *Client) Renew(ctx context.Context, slotID string, want api.LeaseRenewal) (slots.Lease, error) {
	var lease slots.Lease
	err := c.call(ctx, Request{Method: http.MethodPut, Path: leasePath(slotID), Body: want, Again: true}, &lease)
	return lease, err
}

// Release ends the lease and returns the proof of the reset, nil when none was
// asked for. It is sent again after a broken connection: releasing twice is
// releasing once.
func (c *Client) Release(ctx context.Context, slotID string, want api.LeaseRelease) (*slots.Receipt, error) {
	var answer api.ReleaseAnswer
	err := c.call(ctx, Request{Method: http.MethodDelete, Path: leasePath(slotID), Body: want, Again: true}, &answer)
	return answer.Reset, err
}

// Leases lists the leases that hold, in the order of the slots' numbers.
func (c *Client) Leases(ctx context.Context) ([]slots.Lease, error) {
	var list api.Leases
	err := c.call(ctx, Request{Method: http.MethodGet, Path: "/v1/leases", Again: true}, &list)
	return list.Leases, err
}

func leasePath(slotID string) string { return "/v1/slots/" + url.PathEscape(slotID) + "/lease" }

// ReadArtifact reads a file as text or base64.
func (c *Client) ReadArtifact(ctx context.Context, want api.ReadRequest) (api.ReadAnswer, error) {
	var answer api.ReadAnswer
	err := c.call(ctx, Request{Method: http.MethodPost, Path: "/artifacts/read", Body: want, Again: true}, &answer)
	return answer, err
}

// ListArtifacts lists a directory.
func (c *Client) ListArtifacts(ctx context.Context, want api.ListRequest) (api.ListAnswer, error) {
	var answer api.ListAnswer
	err := c.call(ctx, Request{Method: http.MethodPost, Path: "/artifacts/list", Body: want, Again: true}, &answer)
	return answer, err
}

// ArchiveArtifacts packs a file or tree into a tar.gz.
func (c *Client) ArchiveArtifacts(ctx context.Context, want api.ArchiveRequest) (api.ArchiveAnswer, error) {
	var answer api.ArchiveAnswer
	err := c.call(ctx, Request{Method: http.MethodPost, Path: "/artifacts/archive", Body: want, Again: true}, &answer)
	return answer, err
}
