package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"mvdan.cc/sh/v3/syntax"

	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
	"berth/slots"
)

func (a *app) shellCommand() *cobra.Command {
	var b berthing
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "shell [flags]", Short: "Work in a slot by a shell",
		Long: `Reads commands and runs them in the slot's persistent bash, one after the other:
directory, variables, functions and background jobs live on between them.

On a terminal there is a prompt, a history, and Ctrl-C, which ends the running
command and not the shell. "exit", Ctrl-D and the end of the input end the
shell with the status of the last command and give the slot back. Commands have
no terminal and no input: an editor has to stay at home.`,
		Args: arguments(0, 0),
	}
	b.flags(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", time.Hour, "how long one command may run")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if timeout <= 0 {
			return usagef("--timeout must be above 0")
		}
		return a.berthed(cmd.Context(), b, func(ctx context.Context, c *client.Client, lease poolapi.Lease) error {
			s := &shell{app: a, client: c, lease: lease, timeout: timeout}
			return s.run(ctx)
		})
	}
	return cmd
}

// shell is one session in a slot.
type shell struct {
	app     *app
	client  *client.Client
	lease   poolapi.Lease
	timeout time.Duration

	status    int    // of the last command
	directory string // that it stands in
}

// lineReader reads the session's lines. io.EOF ends it.
type lineReader interface {
	read(prompt string) (line string, err error)
}

// errLineLeft is a line that was given up with Ctrl-C.
var errLineLeft = errors.New("line was given up")

func (s *shell) run(ctx context.Context) error {
	lines, interactive := s.lines()
	if interactive {
		fmt.Fprintf(s.app.err, "slot %s of container %s; \"exit\" ends the shell\n", s.lease.SlotID, s.lease.Container)
		s.locate(ctx)
	}
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
		if interactive {
			s.locate(ctx)
		}
	}
	if s.status != 0 {
		return &failure{status: s.status}
	}
	return nil
}

// lines chooses how lines are read.
func (s *shell) lines() (r lineReader, interactive bool) {
	fd, ok := terminal(s.app.in)
	if !ok {
		return &plainLines{bufio.NewReader(s.app.in)}, false
	}
	keys := &keyboard{in: s.app.in}
	return &typedLines{fd: fd, keys: keys, editor: term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{keys, s.app.err}, "")}, true
}

// next reads lines until they are a whole command, as far as one can tell:
// what bash would not take even with more lines is left to bash to refuse.
func (s *shell) next(lines lineReader) (string, error) {
	var text strings.Builder
	prompt := fmt.Sprintf("%s:%s$ ", s.lease.SlotID, s.directory)
	for {
		line, err := lines.read(prompt)
		switch {
		case errors.Is(err, errLineLeft):
			text.Reset()
			prompt = fmt.Sprintf("%s:%s$ ", s.lease.SlotID, s.directory)
			continue
		case errors.Is(err, io.EOF) && text.Len()+len(line) > 0:
			text.WriteString(line)
			return text.String(), nil // bash says what is missing
		case err != nil:
			return "", err
		}
		text.WriteString(line + "\n")
		if strings.TrimSpace(text.String()) == "" {
			text.Reset()
			continue
		}
		_, err = syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text.String()), "")
		if err == nil || !syntax.IsIncomplete(err) {
			return text.String(), nil
		}
		prompt = "> "
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

// where prints the directory and keeps the last command's status for "$?".
const where = `(berth_status=$?; printf '%s' "$PWD"; exit "$berth_status")`

// locate asks where the shell stands, for the prompt. Without an answer the
// prompt stays as it is.
func (s *shell) locate(ctx context.Context) {
	args, err := json.Marshal(map[string]string{"command": where})
	if err != nil {
		return
	}
	result, err := s.client.Execute(ctx, s.lease.ID, poolapi.Call{Tool: "bash_stateful", Args: args})
	if err == nil && result.Metadata.Receipt != nil && result.Output != "" && !strings.ContainsAny(result.Output, "\n\x1b") {
		s.directory = result.Output
	}
}

// plainLines are those of an input that is no terminal.
type plainLines struct{ in *bufio.Reader }

func (p *plainLines) read(string) (string, error) {
	line, err := p.in.ReadString('\n')
	if errors.Is(err, io.EOF) && line != "" {
		return line, nil // the next read is at the end
	}
	return strings.TrimSuffix(line, "\n"), err
}

// typedLines are those of a terminal. It is raw only while a line is typed, so
// that Ctrl-C is a signal while a command runs.
type typedLines struct {
	fd     int
	keys   *keyboard
	editor *term.Terminal
}

func (t *typedLines) read(prompt string) (string, error) {
	was, err := term.MakeRaw(t.fd)
	if err != nil {
		return "", fmt.Errorf("set up terminal: %w", err)
	}
	defer func() { _ = term.Restore(t.fd, was) }() // the terminal is gone then
	t.editor.SetPrompt(prompt)
	if width, height, err := term.GetSize(t.fd); err == nil && width > 0 {
		_ = t.editor.SetSize(width, height) // it only redraws
	}
	line, err := t.editor.ReadLine()
	if t.keys.left {
		t.keys.left = false
		return "", errLineLeft
	}
	return line, err
}

// keyboard reads keys and turns Ctrl-C, which the editor takes for the end of
// the input, into keys that empty the line and end it.
type keyboard struct {
	in   io.Reader
	left bool // Ctrl-C was typed
	rest []byte
}

const (
	ctrlC   = 0x03
	ctrlE   = 0x05 // goes to the line's end
	ctrlU   = 0x15 // empties it to its start
	newLine = '\r'
)

// Read reads keys.
func (k *keyboard) Read(p []byte) (int, error) {
	if len(k.rest) == 0 {
		buf := make([]byte, 256)
		n, err := k.in.Read(buf)
		for _, key := range buf[:n] {
			if key != ctrlC {
				k.rest = append(k.rest, key)
				continue
			}
			// What was typed before it is given up with it.
			k.left = true
			k.rest = append(k.rest[:0], ctrlE, ctrlU, newLine)
		}
		if n == 0 {
			return 0, err
		}
	}
	n := copy(p, k.rest)
	k.rest = k.rest[n:]
	return n, nil
}
