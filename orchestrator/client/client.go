package client

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/google/uuid"

	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
	"berth/sandboxd/client"
	"berth/slots"
)

// Config says which orchestrator a Client is for.
type Config struct {
	URL        string        // like http://127.0.0.1:9001; required
	Token      string        // bearer token; "" sends none
	HTTPClient *http.Client  // nil: one of its own, whose connections Close closes
	Retries    int           // how often a request that may be is sent again; default 2, -1: never
	Backoff    time.Duration // before the first such retry, doubled for each; default 50 ms
}

// Client calls one orchestrator. All methods may be called at once.
type Client struct {
	wire *client.Client
	key  string // that requests bear; "": none
}

// New makes a Client. It does not connect.
func New(config Config) (*Client, error) {
	wire, err := client.New(client.Config{
		URL: config.URL, Token: config.Token, HTTPClient: config.HTTPClient,
		Retries: config.Retries, Backoff: config.Backoff, Peer: "orchestrator",
	})
	if err != nil {
		return nil, err
	}
	return &Client{wire: wire}, nil
}

// Keyed is a Client of the same connections that sends one request: all that
// it, and every other one of the same key, is asked for is that request, and
// has one answer. The orchestrator refuses another one under the key, which is
// 1 to 255 printable ASCII characters, as slots.KindConflict. Calls without an
// ExecutionID get theirs from the key.
//
// So who does not know whether a request came through, because of an error or
// of a crash of its own, can ask again.
func (c *Client) Keyed(key string) *Client { return &Client{wire: c.wire, key: key} }

// call sends r, with the key of the Client.
func (c *Client) call(ctx context.Context, r client.Request, answer any) error {
	if c.key != "" {
		r.Header, r.Again = http.Header{poolapi.HeaderKey: {c.key}}, true
	}
	return c.wire.Call(ctx, r, answer)
}

// named is the calls with the names that the key of the Client gives them.
func (c *Client) named(calls ...poolapi.Call) []poolapi.Call {
	if c.key == "" {
		return calls
	}
	calls = slices.Clone(calls)
	for i := range calls {
		calls[i].ExecutionID = cmp.Or(calls[i].ExecutionID, poolapi.NameByKey(c.key, i))
	}
	return calls
}

// Close closes the idle connections of a Client that made its own.
func (c *Client) Close() { c.wire.Close() }

// Unreachable reports whether the error is that of an orchestrator that did
// not answer, or broke off its answer. A container that did not is told by the
// orchestrator, and is not meant.
func Unreachable(err error) bool {
	e := slots.AsError(err)
	return e != nil && e.Kind == slots.KindContainerUnreachable && e.Err != nil
}

// Ready asks whether the orchestrator takes work. It needs no token.
func (c *Client) Ready(ctx context.Context) error {
	return c.call(ctx, client.Request{Method: http.MethodGet, Path: "/readyz", Again: true}, nil)
}

// Acquire leases a slot to a trajectory, or returns the lease that the
// trajectory has unless want.Further. When none was free while it waited, that
// is slots.KindPoolExhausted.
func (c *Client) Acquire(ctx context.Context, want poolapi.LeaseRequest) (poolapi.Lease, error) {
	if want.Further && c.key == "" {
		c = c.Keyed(uuid.NewString()) // so that a slot is not lost with an answer
	}
	var lease poolapi.Lease
	err := c.call(ctx, client.Request{
		Method: http.MethodPost, Path: "/v1/leases", Body: want, Again: true,
	}, &lease)
	return lease, err
}

// Lease finds a lease. One that does not hold is slots.KindNotFound, one whose
// container is gone slots.KindSlotLost.
func (c *Client) Lease(ctx context.Context, id string) (poolapi.Lease, error) {
	var lease poolapi.Lease
	err := c.call(ctx, client.Request{Method: http.MethodGet, Path: leasePath(id, ""), Again: true}, &lease)
	return lease, err
}

// Renew makes the lease last ttl from now; 0: the TTL that it has.
func (c *Client) Renew(ctx context.Context, id string, ttl time.Duration) (poolapi.Lease, error) {
	var lease poolapi.Lease
	err := c.call(ctx, client.Request{
		Method: http.MethodPut, Path: leasePath(id, ""), Body: poolapi.LeaseRenewal{TTLSeconds: ttl.Seconds()}, Again: true,
	}, &lease)
	return lease, err
}

// Release ends the lease and makes its slot pristine. The receipt is the proof
// of that, nil when none is known any more: releasing twice is releasing once.
func (c *Client) Release(ctx context.Context, id string) (*slots.Receipt, error) {
	var released poolapi.Released
	err := c.call(ctx, client.Request{Method: http.MethodDelete, Path: leasePath(id, ""), Again: true}, &released)
	return released.Reset, err
}

// Reset makes the slot of the lease pristine; the lease stays.
func (c *Client) Reset(ctx context.Context, id string) (slots.Receipt, error) {
	var receipt slots.Receipt
	err := c.call(ctx, client.Request{Method: http.MethodPost, Path: leasePath(id, "/reset")}, &receipt)
	return receipt, err
}

// Filter says which leases are meant: those that meet all of it. The zero
// Filter means all.
type Filter struct {
	Template   string
	Trajectory string
	Container  string
	Labels     map[string]string // each with this value
}

func (f Filter) query() url.Values {
	q := url.Values{}
	for name, value := range map[string]string{"template": f.Template, "trajectory": f.Trajectory, "container": f.Container} {
		if value != "" {
			q.Set(name, value)
		}
	}
	for name, value := range f.Labels {
		q.Add("label", name+"="+value)
	}
	return q
}

// Leases lists the leases, in the order of containers and slots.
func (c *Client) Leases(ctx context.Context, f Filter) ([]poolapi.Lease, error) {
	var list poolapi.Leases
	err := c.call(ctx, client.Request{Method: http.MethodGet, Path: "/v1/leases", Query: f.query(), Again: true}, &list)
	return list.Leases, err
}

// ReleaseAll releases the leases that meet the filter, which must not be
// empty, and says of each what came of it.
func (c *Client) ReleaseAll(ctx context.Context, f Filter) ([]poolapi.Released, error) {
	var list poolapi.ReleasedLeases
	err := c.call(ctx, client.Request{Method: http.MethodDelete, Path: "/v1/leases", Query: f.query(), Again: true}, &list)
	return list.Released, err
}

// Execute runs a call in the slot of the lease and waits for its result. The
// error tells that the call could not be carried out, or was cancelled.
func (c *Client) Execute(ctx context.Context, lease string, call poolapi.Call) (api.Result, error) {
	var result api.Result
	if err := c.wire.Call(ctx, c.requestOf(lease, call), &result); err != nil {
		return api.Result{}, err
	}
	return result, result.Err()
}

func (c *Client) requestOf(lease string, call poolapi.Call) client.Request {
	call = c.named(call)[0]
	return client.Request{Method: http.MethodPost, Path: leasePath(lease, "/execute"), Body: call, Again: call.ExecutionID != ""}
}

// Stream runs a call and yields its events while they happen: one start,
// chunks and gaps, and the result as the last. After an error nothing more
// comes. Leaving the loop leaves an execution that has started running, unless
// call.CancelStarted.
func (c *Client) Stream(ctx context.Context, lease string, call poolapi.Call) iter.Seq2[api.Event, error] {
	return c.wire.Events(ctx, c.requestOf(lease, call))
}

// Batch runs the calls in their order and waits for all results. A result's
// own Err tells of a call that could not be carried out.
func (c *Client) Batch(ctx context.Context, lease string, calls []poolapi.Call) ([]api.Result, error) {
	if len(calls) == 0 {
		return nil, nil
	}
	var answer poolapi.Results
	if err := c.wire.Call(ctx, batchOf(lease, c.named(calls...)), &answer); err != nil {
		return nil, err
	}
	if len(answer.Results) != len(calls) {
		return nil, slots.Errorf(slots.KindInternal, "orchestrator answered %d calls with %d results", len(calls), len(answer.Results))
	}
	return answer.Results, nil
}

// BatchStream runs the calls in their order and yields each result when it is
// ready; its Index is the place of its call. After an error nothing more comes.
func (c *Client) BatchStream(ctx context.Context, lease string, calls []poolapi.Call) iter.Seq2[api.Result, error] {
	return client.Results(ctx, c.wire, c.named(calls...), func(left []poolapi.Call) client.Request { return batchOf(lease, left) })
}

func batchOf(lease string, calls []poolapi.Call) client.Request {
	again := true
	for _, call := range calls {
		again = again && call.ExecutionID != ""
	}
	return client.Request{Method: http.MethodPost, Path: leasePath(lease, "/batch"), Body: poolapi.Batch{Calls: calls}, Again: again}
}

// Files are the files of the lease's slot.
func (c *Client) Files(lease string) client.Files { return c.wire.FilesAt(leasePath(lease, "/files/")) }

// ReadArtifact reads a file as text or base64; the lease says which slot.
func (c *Client) ReadArtifact(ctx context.Context, lease string, want api.ReadRequest) (api.ReadAnswer, error) {
	var answer api.ReadAnswer
	err := c.artifact(ctx, lease, "read", want, &answer)
	return answer, err
}

// ListArtifacts lists a directory; the lease says which slot.
func (c *Client) ListArtifacts(ctx context.Context, lease string, want api.ListRequest) (api.ListAnswer, error) {
	var answer api.ListAnswer
	err := c.artifact(ctx, lease, "list", want, &answer)
	return answer, err
}

// ArchiveArtifacts packs a file or tree into a tar.gz; the lease says which
// slot.
func (c *Client) ArchiveArtifacts(ctx context.Context, lease string, want api.ArchiveRequest) (api.ArchiveAnswer, error) {
	var answer api.ArchiveAnswer
	err := c.artifact(ctx, lease, "archive", want, &answer)
	return answer, err
}

func (c *Client) artifact(ctx context.Context, lease, verb string, want, answer any) error {
	return c.call(ctx, client.Request{
		Method: http.MethodPost, Path: leasePath(lease, "/artifacts/"+verb), Body: want, Again: true,
	}, answer)
}

// Containers lists the containers of all pools with their slots.
func (c *Client) Containers(ctx context.Context) ([]poolapi.Container, error) {
	var list poolapi.Containers
	err := c.call(ctx, client.Request{Method: http.MethodGet, Path: "/v1/containers", Again: true}, &list)
	return list.Containers, err
}

// Cordon keeps new leases away from the container, or lets them come again.
func (c *Client) Cordon(ctx context.Context, container string, on bool) (poolapi.Container, error) {
	return c.operate(ctx, container, "cordon", poolapi.Cordon{On: &on})
}

// Drain gives the container no new leases and stops it when its last lease has
// ended; after within, unless that is 0, also if it has some. It returns at
// once.
func (c *Client) Drain(ctx context.Context, container string, within time.Duration) (poolapi.Container, error) {
	return c.operate(ctx, container, "drain", poolapi.Drain{WithinS: within.Seconds()})
}

// Recycle drains the container and has another one started in its place now.
func (c *Client) Recycle(ctx context.Context, container string, within time.Duration) (poolapi.Container, error) {
	return c.operate(ctx, container, "recycle", poolapi.Drain{WithinS: within.Seconds()})
}

func (c *Client) operate(ctx context.Context, container, verb string, want any) (poolapi.Container, error) {
	var answer poolapi.Container
	err := c.call(ctx, client.Request{
		Method: http.MethodPost, Path: fmt.Sprintf("/v1/containers/%s/%s", url.PathEscape(container), verb), Body: want,
	}, &answer)
	return answer, err
}

// Pools lists the pools in numbers.
func (c *Client) Pools(ctx context.Context) ([]poolapi.Pool, error) {
	var list poolapi.Pools
	err := c.call(ctx, client.Request{Method: http.MethodGet, Path: "/v1/pools", Again: true}, &list)
	return list.Pools, err
}

func leasePath(id, rest string) string { return "/v1/leases/" + url.PathEscape(id) + rest }
