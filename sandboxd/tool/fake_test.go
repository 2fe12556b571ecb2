package tool

import (
	"context"
	"encoding/json"
	"io"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/process"
	"berth/slots/sandbox"
)

// fakeSlot answers with its functions and remembers what it was asked.
type fakeSlot struct {
	run   func(ctx context.Context, c sandbox.Command) (slots.Exit, error)
	shell func(ctx context.Context, c sandbox.ShellCommand) (slots.Exit, sandbox.ShellState, error)
	job   func(ctx context.Context, j sandbox.Job) (slots.Exit, sandbox.JobState, error)
	do    func(ctx context.Context, op string, args, reply any, in io.Reader, out io.Writer) error

	commands []sandbox.Command
	ops      []string
}

func (f *fakeSlot) Run(ctx context.Context, c sandbox.Command) (slots.Exit, error) {
	f.commands = append(f.commands, c)
	if f.run == nil {
		return slots.Exit{Outcome: slots.OutcomeExited}, nil
	}
	return f.run(ctx, c)
}

func (f *fakeSlot) Shell(ctx context.Context, c sandbox.ShellCommand) (slots.Exit, sandbox.ShellState, error) {
	return f.shell(ctx, c)
}

func (f *fakeSlot) Job(ctx context.Context, j sandbox.Job) (slots.Exit, sandbox.JobState, error) {
	return f.job(ctx, j)
}

func (f *fakeSlot) Do(ctx context.Context, op string, args, reply any, in io.Reader, out io.Writer) error {
	f.ops = append(f.ops, op)
	return f.do(ctx, op, args, reply, in, out)
}

// prints is a run that writes the two texts and exits with the code.
func prints(stdout, stderr string, code int) func(context.Context, sandbox.Command) (slots.Exit, error) {
	return func(_ context.Context, c sandbox.Command) (slots.Exit, error) {
		_, _ = io.WriteString(c.Stdout, stdout)
		_, _ = io.WriteString(c.Stderr, stderr)
		return slots.Exit{Outcome: slots.OutcomeExited, Code: code, Duration: 3 * time.Millisecond, CPU: time.Millisecond, MaxRSS: 4096}, nil
	}
}

// newCall is a call with the arguments, which are JSON text or a value.
func newCall(t *testing.T, args any) Call {
	t.Helper()
	raw, isText := args.(string)
	if !isText {
		encoded, err := json.Marshal(args)
		require.NoError(t, err)
		raw = string(encoded)
	}
	cfg := process.CaptureConfig{Window: Window(json.RawMessage(raw))}
	return Call{
		Args: json.RawMessage(raw), Stdout: process.NewCapture(cfg), Stderr: process.NewCapture(cfg),
		Limit:     30 * time.Second,
		Isolation: slots.NewIsolation(slots.Axes{slots.AxisNet: "host"}),
	}
}

type object = map[string]any

// timeout is a Timeout that a client sent.
func timeout(t *testing.T, text string) api.Timeout {
	t.Helper()
	var v api.Timeout
	require.NoError(t, v.UnmarshalJSON([]byte(text)))
	return v
}

func quote(s string) string { return strconv.Quote(s) }
