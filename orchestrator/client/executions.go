package client

import (
	"context"
	"net/url"
	"time"

	"berth/sandboxd/api"
	"berth/sandboxd/client"
)

// Execution is one that was started before, by the lease of its call and the
// ExecutionID that the call was given or that its result has. Its container
// keeps it for longer than the lease may last. One that is not known, or no
// longer, is slots.KindNotFound.
func (c *Client) Execution(lease, id string) client.Execution {
	return c.wire.ExecutionAt(leasePath(lease, "/executions/"+url.PathEscape(id)))
}

// beatOfWait is how long one request of Wait waits: a proxy may end those on
// which nothing happens for long.
const beatOfWait = 20 * time.Second

// Wait returns the result of an execution when it has ended.
func (c *Client) Wait(ctx context.Context, lease, executionID string) (api.Result, error) {
	for {
		result, state, err := c.Execution(lease, executionID).Result(ctx, beatOfWait)
		if err != nil || state == "" {
			return result, err
		}
	}
}

// Cancel ends an execution and waits some seconds for its result; it returns
// what client.Execution's Result does. To cancel twice is to cancel once.
func (c *Client) Cancel(ctx context.Context, lease, executionID string) (result api.Result, state string, err error) {
	return c.Execution(lease, executionID).Cancel(ctx)
}
