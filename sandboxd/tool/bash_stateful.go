package tool

import (
	"context"

	"berth/sandboxd/api"
	"berth/slots/sandbox"
)

// bashStateful runs a command in the slot's persistent shell, whose working
// directory, variables, functions and jobs live on between calls.
//
//	command     required unless restart
//	restart     starts a new shell first
//	max_output  characters kept of each stream; default 50000
//	separate    adds metadata.stdout and metadata.stderr
//	encoding    "base64" adds metadata.stdout_base64 and stderr_base64
type bashStateful struct{}

// Name is "bash_stateful".
func (bashStateful) Name() string { return "bash_stateful" }

// Run runs the command and says when the next one meets a new shell.
func (bashStateful) Run(ctx context.Context, s Slot, c Call) api.Result {
	a := parseArgs(c.Args)
	restart := a.flag("restart", false)
	command := a.text("command")
	if !restart {
		command = a.need("command")
	}
	separate, encoding := a.flag("separate", false), a.word("encoding", "text", "base64")
	a.maxOutput()
	if a.err != nil {
		return refused(a.err)
	}
	exit, state, err := s.Shell(ctx, sandbox.ShellCommand{
		Command: command, Restart: restart, Stdout: c.Stdout, Stderr: c.Stderr,
	})
	if err != nil {
		r := c.failed(ctx, err)
		return withShellState(r, state)
	}
	r := c.process(ctx, exit)
	c.split(&r, separate, encoding == "base64")
	r.Metadata.Details["sandboxed"] = !c.Isolation.Unsafe
	r.Metadata.Details["network_isolated"] = offline(c.Isolation)
	return withShellState(r, state)
}

func withShellState(r api.Result, state sandbox.ShellState) api.Result {
	if r.Metadata.Details == nil {
		r.Metadata.Details = map[string]any{}
	}
	r.Metadata.Details["stateful"] = true
	if state.Restarted {
		r.Metadata.Details["restarted"] = true
	}
	if state.Note != "" {
		r.Metadata.Details["note"] = state.Note
	}
	return r
}
