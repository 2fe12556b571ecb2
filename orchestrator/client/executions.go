package client

import (
	"context"
	"iter"
	"net/url"
	"time"

	"berth/sandboxd/api"
	"berth/sandboxd/client"
)

// The methods here are about an execution that was started before, by the
// lease of its call and the ExecutionID that the call was given or that its
// result has. Its container keeps it for longer than the lease may last. One
// that is not known, or no longer, is slots.KindNotFound.

func (c *Client) execution(lease, id string) client.Execution {
	return c.wire.ExecutionAt(leasePath(lease, "/executions/"+url.PathEscape(id)))
}

// Result returns the result of an execution. state is "" when it has ended,
// else api.StateQueued or api.StateRunning, and the result holds its id only.
func (c *Client) Result(ctx context.Context, lease, executionID string) (result api.Result, state string, err error) {
	return c.execution(lease, executionID).Result(ctx, 0)
}

// beatOfWait is how long one request of Wait waits: a proxy may end those on
// which nothing happens for long.
const beatOfWait = 20 * time.Second

// Wait returns the result of an execution when it has ended.
func (c *Client) Wait(ctx context.Context, lease, executionID string) (api.Result, error) {
	for {
		result, state, err := c.execution(lease, executionID).Result(ctx, beatOfWait)
		if err != nil || state == "" {
			return result, err
		}
	}
}

// Cancel ends an execution and waits some seconds for its result; it returns
// what Result does. To cancel twice is to cancel once.
func (c *Client) Cancel(ctx context.Context, lease, executionID string) (result api.Result, state string, err error) {
	return c.execution(lease, executionID).Cancel(ctx)
}

// Follow yields the events of an execution from the offsets on, as Stream
// does, and goes on where it broke.
func (c *Client) Follow(ctx context.Context, lease, executionID string, from client.Offsets) iter.Seq2[api.Event, error] {
	return c.execution(lease, executionID).Follow(ctx, from)
}

// Output returns bytes of one output stream, "stdout" or "stderr", from the
// offset on, as many as are there now and at most length. total is the length
// of the stream so far. Bytes that are no longer kept are slots.KindNotFound.
func (c *Client) Output(ctx context.Context, lease, executionID, stream string, offset, length int64) (p []byte, total int64, err error) {
	return c.execution(lease, executionID).Output(ctx, stream, offset, length)
}
