package client

import (
	"context"

	"berth/sandboxd/api"
	"berth/sandboxd/terminal"
)

// Terminal starts a command on a terminal in the slot of the lease, which is
// renewed while the terminal is open. The end of ctx ends the dialling only:
// Close ends the terminal, and everything that was started on it.
func (c *Client) Terminal(ctx context.Context, lease string, want api.TerminalRequest) (*terminal.Session, error) {
	return c.wire.TerminalAt(ctx, leasePath(lease, "/terminal"), nil, want)
}
