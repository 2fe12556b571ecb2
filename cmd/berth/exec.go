package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"mvdan.cc/sh/v3/syntax"

	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
	"berth/slots"
)

func (a *app) execCommand() *cobra.Command {
	var b berthing
	var env []string
	var cwd string
	var stdin bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "exec [flags] [--] COMMAND [ARGUMENT]...", Short: "Run a command in a slot",
		Long: `Runs a command in a slot, with its output as it comes and its exit status.

A slot is leased for it and given back, pristine, at the end. Ctrl-C ends the
command, then gives the slot back.`,
		Example: `  berth exec -- uname -a
  berth exec -i -- sh -c 'wc -l' < notes.txt
  berth exec --keep -- git clone https://example.org/repository .`,
		Args: arguments(1, -1),
	}
	cmd.Flags().SetInterspersed(false) // what follows COMMAND is its own
	b.flags(cmd)
	cmd.Flags().StringArrayVarP(&env, "env", "e", nil, "variable of the command, as `NAME=VALUE`; may be repeated")
	cmd.Flags().StringVar(&cwd, "cwd", "", "directory to run in; the workspace without it")
	cmd.Flags().BoolVarP(&stdin, "stdin", "i", false, "read the standard input to its end and give it to the command")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Hour, "how long the command may run")
	cmd.RunE = interruptible(func(ctx context.Context, _ *cobra.Command, args []string) error {
		if timeout <= 0 {
			return usagef("--timeout must be above 0")
		}
		call := map[string]any{"max_output": 1}
		var err error
		if call["command"], err = quoted(args); err != nil {
			return err
		}
		if call["env"], err = variables(env); err != nil {
			return err
		}
		if cwd != "" {
			call["cwd"] = cwd
		}
		if stdin {
			if call["stdin"], err = text(a.in); err != nil {
				return err
			}
		}
		return a.command(ctx, b, timeout, call)
	})
	return cmd
}

// command runs bash with the arguments in a slot, and ends as it did.
func (a *app) command(ctx context.Context, b berthing, timeout time.Duration, args map[string]any) error {
	return a.berthed(ctx, b, func(ctx context.Context, c *client.Client, lease poolapi.Lease) error {
		result, err := a.stream(ctx, c, lease.ID, order{"bash", timeout, args})
		if err != nil {
			return err
		}
		if err := cancelledElsewhere(ctx, c, lease.ID, result); err != nil {
			return err
		}
		return a.ended(result, timeout)
	})
}

// cancelledElsewhere is why a command was cancelled that nobody interrupted
// here: its lease is over, or somebody has cancelled it by its id.
func cancelledElsewhere(ctx context.Context, c *client.Client, lease string, r api.Result) error {
	if p := r.Metadata.Receipt; p == nil || p.Outcome != slots.OutcomeCancelled || ctx.Err() != nil { // nil: it never ran
		return nil
	}
	if _, err := c.Renew(ctx, lease, 0); err != nil {
		return err
	}
	return &failure{exitFailed, errors.New("the command was cancelled, and not from here")}
}

// quoted is the command line that bash takes for these words.
func quoted(words []string) (string, error) {
	parts := make([]string, len(words))
	for i, word := range words {
		var err error
		if parts[i], err = syntax.Quote(word, syntax.LangBash); err != nil {
			return "", usagef("argument %q: %v", word, err)
		}
	}
	return strings.Join(parts, " "), nil
}

func variables(pairs []string) (map[string]string, error) {
	env := map[string]string{}
	for _, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, usagef("--env %q: want NAME=VALUE", pair)
		}
		env[name] = value
	}
	return env, nil
}

// text reads an input that travels as JSON does.
func text(in io.Reader) (string, error) {
	all, err := io.ReadAll(in)
	if err != nil {
		return "", fmt.Errorf("read standard input: %w", err)
	}
	if !utf8.Valid(all) {
		return "", errors.New("standard input is not UTF-8: copy it into the slot by \"berth cp\" and read the file there")
	}
	return string(all), nil
}

// errReaderGone says that what we print on takes no more.
var errReaderGone = errors.New("reader of the output is gone")

// cancelWithin bounds how long an interrupted command may take to end.
const cancelWithin = 20 * time.Second

// order is a tool to be run.
type order struct {
	tool    string
	timeout time.Duration
	args    map[string]any
}

// stream runs a tool in the slot of the lease and prints its output as it
// comes. The end of ctx cancels the tool in its slot and waits for its result.
func (a *app) stream(ctx context.Context, c *client.Client, lease string, o order) (api.Result, error) {
	raw, err := json.Marshal(o.args)
	if err != nil {
		return api.Result{}, fmt.Errorf("encode arguments: %w", err)
	}
	call := poolapi.Call{
		Tool: o.tool, Args: raw, ExecutionID: rand.Text(), TimeoutS: api.Seconds(o.timeout.Seconds()), CancelStarted: true,
	}
	working, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	// The stream goes on while the command is cancelled: its last words count.
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		asking, cancel := context.WithTimeout(working, cancelWithin)
		defer cancel()
		if _, state, err := c.Cancel(asking, lease, call.ExecutionID); err != nil || state != "" {
			cut(context.Cause(ctx))
		}
	})
	result, err := a.follow(c.Stream(working, lease, call), cut)
	if !stop() {
		<-interrupted
	}
	switch {
	case errors.Is(context.Cause(working), errReaderGone):
		return result, &failure{status: exitPipe}
	case err != nil && ctx.Err() != nil:
		return result, context.Cause(ctx)
	}
	return result, err
}

// follow prints the output among the events and returns the result.
func (a *app) follow(events func(func(api.Event, error) bool), cut context.CancelCauseFunc) (api.Result, error) {
	for event, err := range events {
		switch {
		case err != nil:
			return api.Result{}, err
		case event.Name == api.EventChunk:
			to := a.out
			if event.Chunk.Stream == "stderr" {
				to = a.err
			}
			if _, err := to.Write(event.Chunk.Bytes()); err != nil {
				if !errors.Is(err, syscall.EPIPE) {
					fmt.Fprintf(a.err, "berth: print output: %v\n", err)
				}
				cut(errReaderGone)
				return api.Result{}, errReaderGone
			}
		case event.Name == api.EventGap:
			fmt.Fprintf(a.err, "berth: %d bytes of %s came too fast to be kept\n", event.Gap.To-event.Gap.From, event.Gap.Stream)
		case event.Name == api.EventResult:
			return *event.Result, nil
		}
	}
	return api.Result{}, slots.Errorf(slots.KindInterrupted, "the output ended without a result")
}

// ended is the program's end for a command that ended so.
func (a *app) ended(r api.Result, timeout time.Duration) error {
	m := r.Metadata
	if m.Receipt == nil {
		return cmp.Or(r.Err(), errors.New(cmp.Or(r.Error, "the tool did nothing")))
	}
	status := m.ExitCode
	switch m.Outcome {
	case slots.OutcomeExited:
		if status == 0 {
			return nil
		}
		return &failure{status: status}
	case slots.OutcomeCancelled:
		return &failure{status: exitInterrupted}
	case slots.OutcomeTimedOut:
		return &failure{exitTimedOut, fmt.Errorf("the command ran for %v and was ended: give it more by --timeout", timeout)}
	case slots.OutcomeSignaled:
		return &failure{max(status, exitFailed), fmt.Errorf("the command was ended by %s", cmp.Or(m.Signal, "a signal"))}
	case slots.OutcomeOOMKilled:
		return &failure{max(status, exitFailed), errors.New("the command was killed: the slot has no more memory")}
	case slots.OutcomeOutputLimited:
		return &failure{max(status, exitFailed), errors.New("the command was killed: it wrote more than the slot may")}
	case slots.OutcomeDiskLimited:
		return &failure{max(status, exitFailed), errors.New("the command was killed: the slot's disk is full")}
	}
	return &failure{max(status, exitFailed), fmt.Errorf("the command ended: %s", m.Outcome)}
}
