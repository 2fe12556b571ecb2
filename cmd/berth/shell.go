package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"mvdan.cc/sh/v3/syntax"

	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
	"berth/slots"
)

func (a *app) shellCommand() *cobra.Command {
	var b berthing
	var timeout time.Duration
	var cwd string
	cmd := &cobra.Command{
		Use: "shell [flags] [-- COMMAND [ARGUMENT]...]", Short: "Work in a slot by a terminal",
		Long: `Opens a terminal in a slot, with an interactive bash on it, or the command.

It is a terminal like that of ssh: editors and full-screen programs work,
Ctrl-C and Ctrl-Z go to what runs in the foreground, jobs can be moved between
there and the background, and the window's size follows this one's. A lease
that nobody else renews is renewed while the terminal is open. It ends with its
command, whose status is that of "berth shell"; then, and when the connection
breaks, everything that was started on it is killed. Enter, "~" and "." end it
from here when nothing else helps.

When the standard input is no terminal, its lines are commands for the slot's
persistent bash, one after the other: directory, variables, functions and
background jobs live on between them, and past the end. They have no terminal
and no input. "exit" and the end of the input end it with the status of the last
command.`,
		Example: `  berth shell
  berth shell --lease LEASE -- top
  printf 'cd notes\nls\n' | berth shell`,
		Args: behindDash,
	}
	b.flags(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", time.Hour, "how long one command of an input that is no terminal may run")
	cmd.Flags().StringVar(&cwd, "cwd", "", "directory that the terminal begins in; the workspace without it")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if timeout <= 0 {
			return usagef("--timeout must be above 0")
		}
		fd, onTerminal := terminal(a.in)
		if !onTerminal && (len(args) > 0 || cwd != "") {
			return usagef("a command needs a terminal on the standard input: \"berth exec\" runs one without")
		}
		want := api.TerminalRequest{Cwd: cwd}
		if len(args) > 0 {
			var err error
			if want.Command, err = quoted(args); err != nil {
				return err
			}
		}
		return a.berthed(cmd.Context(), b, func(ctx context.Context, c *client.Client, lease poolapi.Lease) error {
			if onTerminal {
				return a.terminal(ctx, fd, c, lease, want)
			}
			s := &shell{app: a, client: c, lease: lease, timeout: timeout}
			return s.run(ctx)
		})
	}
	return cmd
}

// shell runs lines of an input that is no terminal in a slot.
type shell struct {
	app     *app
	client  *client.Client
	lease   poolapi.Lease
	timeout time.Duration

	status int // of the last command
}

func (s *shell) run(ctx context.Context) error {
	lines := bufio.NewReader(s.app.in)
	for {
		command, err := s.next(lines)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		over, err := s.do(ctx, command)
		if err != nil {
			return err
		}
		if over {
			break
		}
	}
	if s.status != 0 {
		return &failure{status: s.status}
	}
	return nil
}

// next reads lines until they are a whole command, as far as one can tell:
// what bash would not take even with more lines is left to bash to refuse.
func (*shell) next(lines *bufio.Reader) (string, error) {
	var text strings.Builder
	for {
		line, err := lines.ReadString('\n')
		text.WriteString(line)
		switch {
		case errors.Is(err, io.EOF) && text.Len() > 0:
			return text.String(), nil // bash says what is missing
		case err != nil:
			return "", err
		}
		if strings.TrimSpace(text.String()) == "" {
			text.Reset()
			continue
		}
		_, err = syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text.String()), "")
		if err == nil || !syntax.IsIncomplete(err) {
			return text.String(), nil
		}
	}
}

// do runs one command. Ctrl-C ends it and not the shell.
func (s *shell) do(ctx context.Context, command string) (over bool, err error) {
	running, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	result, err := s.app.stream(running, s.client, s.lease.ID, order{
		"bash_stateful", s.timeout, map[string]any{"command": command, "max_output": 1},
	})
	if err != nil {
		if ctx.Err() == nil && running.Err() != nil {
			s.status = exitInterrupted
			return false, nil
		}
		return false, err
	}
	s.status = 0
	if err := cmp.Or(cancelledElsewhere(running, s.client, s.lease.ID, result), s.app.ended(result, s.timeout)); err != nil {
		f, ok := errors.AsType[*failure](err)
		if !ok {
			return false, err
		}
		s.status = f.status
		if f.err != nil {
			fmt.Fprintln(s.app.err, "berth:", f.err)
		}
	}
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	restarted, _ := result.Metadata.Details["restarted"].(bool)
	if restarted && result.Metadata.Receipt != nil && result.Metadata.Outcome == slots.OutcomeExited {
		return true, nil
	}
	if note, _ := result.Metadata.Details["note"].(string); note != "" {
		fmt.Fprintln(s.app.err, "berth:", note)
	}
	return false, nil
}
