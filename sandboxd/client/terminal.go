package client

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"strconv"

	"berth/sandboxd/api"
	"berth/sandboxd/terminal"
	"berth/slots"
)

// Terminal starts a command on a terminal in the slot. token is that of the
// slot's lease, nil without one. The end of ctx ends the dialling only: Close
// ends the terminal.
func (c *Client) Terminal(ctx context.Context, slotID string, token *uint64, want api.TerminalRequest) (*terminal.Session, error) {
	header := http.Header{}
	if token != nil {
		header.Set(api.HeaderToken, strconv.FormatUint(*token, 10))
	}
	return c.TerminalAt(ctx, "/v1/slots/"+url.PathEscape(slotID)+"/terminal", header, want)
}

// TerminalAt is Terminal at another path, also of other servers that answer
// with the errors of package api.
func (c *Client) TerminalAt(ctx context.Context, path string, header http.Header, want api.TerminalRequest) (*terminal.Session, error) {
	header = maps.Clone(header)
	if header == nil {
		header = http.Header{}
	}
	if c.token != "" {
		header.Set("Authorization", "Bearer "+c.token)
	}
	target := c.origin.Scheme + "://" + c.origin.Host + c.origin.EscapedPath() + path
	if q := terminal.Query(want); len(q) > 0 {
		target += "?" + q.Encode()
	}
	session, answer, err := terminal.Dial(ctx, target, header, c.peer) //nolint:bodyclose // it is short, see Dial
	if err != nil {
		return nil, c.unreachable(ctx, Request{Method: http.MethodGet, begun: true, sent: !dialled(err)}, err)
	}
	if answer != nil {
		if err := c.checked(answer); err != nil {
			return nil, err
		}
		return nil, slots.Errorf(slots.KindInternal, "%s answered %d instead of a terminal", c.peer, answer.StatusCode)
	}
	return session, nil
}
