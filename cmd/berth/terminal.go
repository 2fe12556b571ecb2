package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
)

// terminal has what is typed here go to a terminal in the slot, and what is
// shown there be shown here, until that ends.
func (a *app) terminal(ctx context.Context, fd int, c *client.Client, lease poolapi.Lease, want api.TerminalRequest) error {
	want.WindowSize, want.Term = windowSize(fd), a.getenv("TERM")
	session, err := c.Terminal(ctx, lease.ID, want)
	if err != nil {
		return err
	}
	defer func() { _ = session.Close() }()                     // it has ended, or ends by it
	defer context.AfterFunc(ctx, func() { session.Close() })() //nolint:errcheck // what it shows ends with it
	was, err := term.MakeRaw(fd)
	if err != nil {
		return fmt.Errorf("set up terminal: %w", err)
	}
	defer func() { _ = term.Restore(fd, was) }() // the terminal is gone then
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	shown := make(chan struct{})
	defer close(shown)
	go func() { // ends with the session
		for {
			select {
			case <-resized:
				_ = session.Resize(windowSize(fd)) // what it shows ends with the connection
			case <-shown:
				return
			}
		}
	}()
	left := make(chan struct{})
	go func() { // ends with the program: nothing ends a read of a terminal
		if typeInto(session, a.in) {
			close(left)
			_ = session.Close() // see above
		}
	}()
	_, failed := io.Copy(a.out, session)
	if failed != nil {
		_ = session.Close() // nobody sees what it shows
	}
	select {
	case <-left:
		return &failure{exitInterrupted, errors.New("left the terminal")}
	default:
	}
	exit, err := session.Wait()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		if _, over := c.Renew(ctx, lease.ID, 0); over != nil {
			return over // which is why
		}
		return err
	case failed != nil:
		return &failure{exitPipe, nil}
	}
	if exit.OOMKilled {
		return &failure{cmp.Or(exit.ExitCode, exitFailed), errors.New("the slot ran out of memory")}
	}
	if exit.ExitCode != 0 {
		return &failure{status: max(exit.ExitCode, exitFailed)}
	}
	return nil
}

// windowSize is the size of the window of the terminal here; zero when it has
// none.
func windowSize(fd int) api.WindowSize {
	columns, rows, err := term.GetSize(fd)
	size := api.WindowSize{Columns: columns, Rows: rows}
	if err != nil || size.Check() != nil {
		return api.WindowSize{Columns: api.DefaultColumns, Rows: api.DefaultRows}
	}
	return size
}

// typeInto passes on what is typed, and reports whether it ended with the
// escape that leaves the terminal.
func typeInto(session io.Writer, in io.Reader) (leave bool) {
	buf := make([]byte, 4096)
	keys := escape{atStart: true}
	for {
		n, err := in.Read(buf)
		text, leave := keys.pass(buf[:n])
		if len(text) > 0 {
			if _, err := session.Write(text); err != nil {
				return false
			}
		}
		if leave || err != nil {
			return leave || !errors.Is(err, io.EOF)
		}
	}
}

// escape finds "~." at the beginning of a line among what is typed, as ssh does;
// "~~" is one "~".
type escape struct {
	atStart bool // of a line
	tilde   bool // which is held back
}

// pass returns what goes to the slot, and whether the user wants to leave.
func (e *escape) pass(typed []byte) (text []byte, leave bool) {
	for _, key := range typed {
		if e.tilde {
			e.tilde = false
			switch key {
			case '.':
				return text, true
			case '~':
			default:
				text = append(text, '~')
			}
		} else if e.atStart && key == '~' {
			e.tilde = true
			continue
		}
		text = append(text, key)
		e.atStart = key == '\r' || key == '\n'
	}
	return text, false
}
