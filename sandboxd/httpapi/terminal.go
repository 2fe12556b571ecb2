package httpapi

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"berth/sandboxd/api"
	"berth/sandboxd/terminal"
	"berth/slots"
	"berth/slots/sandbox"
)

// Terminals makes terminals. *keeper.Keeper is one.
type Terminals interface {
	Terminal(ctx context.Context, slotID string, token *uint64, c sandbox.TerminalCommand) (sandbox.Terminal, error)
}

// terminal answers GET /v1/slots/{slot}/terminal by a WebSocket, see package
// terminal.
func (s *Server) terminal(c echo.Context) error {
	slotID, err := param(c, "slot")
	if err != nil {
		return err
	}
	token, err := tokenOf(c.Request())
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	err = s.sessions.Serve(ctx, c.Response(), c.Request(), func(want api.TerminalRequest) (terminal.TTY, error) {
		return s.startTerminal(ctx, slotID, token, want)
	})
	if err == nil {
		c.Response().Committed, c.Response().Status = true, http.StatusSwitchingProtocols
	}
	return err
}

// startTerminal starts what was asked for, with sh where the slot has no bash.
func (s *Server) startTerminal(ctx context.Context, slotID string, token *uint64, want api.TerminalRequest) (terminal.TTY, error) {
	command := sandbox.TerminalCommand{Cwd: want.Cwd, Columns: uint16(want.Columns), Rows: uint16(want.Rows)} //nolint:gosec // they were checked
	if want.Term != "" {
		command.Env = []string{"TERM=" + want.Term}
	}
	for _, shell := range []string{"bash", "sh"} {
		command.Argv = []string{shell, "-i"}
		if want.Command != "" {
			command.Argv = []string{shell, "-c", want.Command}
		}
		tty, err := s.Terminals.Terminal(ctx, slotID, token, command)
		if err == nil {
			return shown{tty}, nil
		}
		if e, ok := errors.AsType[*slots.Error](err); !ok || e.Kind != slots.KindNotFound || shell == "sh" {
			return nil, err
		}
	}
	return nil, errPanic // one of the two has returned
}

// tokenOf is the lease's token that the request bears; nil: none.
func tokenOf(r *http.Request) (*uint64, error) {
	text := r.Header.Get(api.HeaderToken)
	if text == "" {
		return nil, nil
	}
	token, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return nil, slots.Errorf(slots.KindBadRequest, "%s must be an integer not below 0", api.HeaderToken)
	}
	return &token, nil
}

// shown is a terminal in the words of the wire.
type shown struct{ sandbox.Terminal }

// Resize is terminal.TTY's.
func (t shown) Resize(size api.WindowSize) error {
	if size.Columns > math.MaxUint16 || size.Rows > math.MaxUint16 {
		return size.Check()
	}
	return t.Terminal.Resize(uint16(size.Columns), uint16(size.Rows)) //nolint:gosec // they were checked
}

// Wait is terminal.TTY's.
func (t shown) Wait() (api.TerminalExit, error) {
	exit, err := t.Terminal.Wait()
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	return api.TerminalExit{
		Outcome: exit.Outcome, ExitCode: exit.Code, Signal: exit.Signal,
		DurationMS: ms(exit.Duration), CPUMS: ms(exit.CPU), MaxRSSBytes: exit.MaxRSS, OOMKilled: exit.OOMKilled,
	}, err
}
