package httpapi

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"berth/sandboxd/api"
	"berth/sandboxd/terminal"
)

// terminal answers GET /v1/leases/{lease}/terminal by a WebSocket, see package
// terminal. A server that stops tells its client, and ends what runs there.
func (s *Server) terminal(c echo.Context) error {
	which, err := ref(c)
	if err != nil {
		return err
	}
	if _, err := s.locate(c); err != nil {
		return err
	}
	// The request's own context ends with the server too, but not with its reason.
	ctx, leave := context.WithCancelCause(context.WithoutCancel(c.Request().Context()))
	defer leave(nil)
	stopped := make(chan struct{})
	defer close(stopped)
	go func() { // ends with the terminal
		select {
		case <-s.ending:
			leave(errStopping)
		case <-stopped:
		}
	}()
	err = s.sessions.Serve(ctx, c.Response(), c.Request(), func(want api.TerminalRequest) (terminal.TTY, error) {
		return s.Calls.Terminal(ctx, which, want)
	})
	if err == nil {
		c.Response().Committed, c.Response().Status = true, http.StatusSwitchingProtocols
	}
	return err
}
