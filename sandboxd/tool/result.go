package tool

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/sandbox"
)

// Window bounds of max_output, in characters.
const (
	DefaultWindow = 50_000
	MaxWindow     = 1_000_000
)

// Window is the number of characters that a call wants to have kept of each
// output stream. The caller needs it to make the captures before the tool
// runs; what is wrong counts as absent here and is refused by the tool.
func Window(args json.RawMessage) int {
	if !bytes.Contains(args, []byte(`"max_output"`)) {
		return DefaultWindow
	}
	return parseArgs(args).maxOutput()
}

func (a *arguments) maxOutput() int { return a.count("max_output", DefaultWindow, 1, MaxWindow) }

// refused is the result of a call that could not be carried out.
func refused(err error) api.Result { return api.Refused("", err) }

// process is the result of a process that ran. Its output is in the captures.
func (c Call) process(ctx context.Context, exit slots.Exit) api.Result {
	stdout, stderr := c.Stdout.Text(), c.Stderr.Text()
	r := api.Result{Output: stdout.String, Metadata: api.Metadata{
		Receipt: &api.Receipt{
			Outcome: exit.Outcome, ExitCode: exit.Code, Signal: exit.Signal,
			DurationMS: milliseconds(exit.Duration), SpawnMS: milliseconds(exit.Spawn), CPUMS: milliseconds(exit.CPU),
			MaxRSSBytes: exit.MaxRSS, OOMKilled: exit.OOMKilled, Leftover: exit.Leftover,
			StdoutBytes: c.Stdout.Total(), StderrBytes: c.Stderr.Total(),
			Truncated: stdout.Truncated || stderr.Truncated,
		},
		Details: map[string]any{},
	}}
	if stderr.String != "" {
		r.Output += "\n[stderr]\n" + stderr.String
	}
	if stdout.Replaced || stderr.Replaced {
		r.Metadata.Details["replaced"] = true
	}
	if exit.DiskFull {
		r.Metadata.Details["disk_full"] = true
	}
	switch exit.Outcome {
	case slots.OutcomeExited, slots.OutcomeSignaled, slots.OutcomeOOMKilled:
		r.Success = exit.Outcome == slots.OutcomeExited && exit.Code == 0
		if !r.Success {
			r.Error = fmt.Sprintf("Exit code: %d", exit.Code)
		}
	case slots.OutcomeTimedOut:
		c.timedOut(&r)
		r.Metadata.ExitCode = -1
	case slots.OutcomeOutputLimited:
		r.Error = "Command wrote more output than allowed"
	case slots.OutcomeDiskLimited:
		r.Error = "Command used more disk than allowed"
	case slots.OutcomeCancelled:
		cancelled(ctx, &r)
	}
	return r
}

// split adds the streams one by one and, when asked, without loss.
func (c Call) split(r *api.Result, separate, lossless bool) {
	if separate {
		r.Metadata.Details["stdout"] = c.Stdout.Text().String
		r.Metadata.Details["stderr"] = c.Stderr.Text().String
	}
	if lossless {
		r.Metadata.Details["stdout_base64"] = base64.StdEncoding.EncodeToString(c.Stdout.Bytes())
		r.Metadata.Details["stderr_base64"] = base64.StdEncoding.EncodeToString(c.Stderr.Bytes())
	}
}

func (c Call) timedOut(r *api.Result) {
	r.Error = "Command timed out after " + seconds(c.Timeout, c.Limit) + "s"
	if r.Metadata.Details == nil {
		r.Metadata.Details = map[string]any{}
	}
	r.Metadata.Details["timeout"] = true
}

// cancelled says why the context ended. A typed cause becomes the error kind,
// because then the keeper and not the client has ended the call.
func cancelled(ctx context.Context, r *api.Result) {
	r.Error = "Command was cancelled"
	if e, ok := errors.AsType[*slots.Error](context.Cause(ctx)); ok {
		r.Error = e.Message
		retryable := e.Retryable
		executed := slots.ExecutedMaybe
		if r.Metadata.Receipt != nil {
			executed = slots.ExecutedYes // its process ran, as far as it came
		}
		r.Metadata.ErrorKind, r.Metadata.Retryable, r.Metadata.Executed = e.Kind, &retryable, executed
	}
}

// failed is the result of a call that the slot could not carry out, or not
// before ctx ended.
func (c Call) failed(ctx context.Context, err error) api.Result {
	if ctx.Err() == nil || infrastructure(err) {
		return refused(err)
	}
	r := api.Result{}
	if errors.Is(context.Cause(ctx), sandbox.ErrTimedOut) {
		c.timedOut(&r)
		return r
	}
	cancelled(ctx, &r)
	return r
}

// fileFailed is the result of a workspace operation on path that failed. What
// the file's state or the caller's choice explains is the operation's own
// failure, in the words of package workspace, and carries no error_kind.
func (c Call) fileFailed(ctx context.Context, path string, err error) api.Result {
	e, ok := errors.AsType[*slots.Error](err)
	if ctx.Err() != nil || !ok || infrastructure(err) {
		return c.failed(ctx, err)
	}
	return api.Result{Error: e.Message, Metadata: api.Metadata{Details: map[string]any{"path": path, "reason": string(e.Kind)}}}
}

// infrastructure reports whether err is a typed fault that no file and no
// argument explains.
func infrastructure(err error) bool {
	e, ok := errors.AsType[*slots.Error](err)
	if !ok {
		return false
	}
	return !slices.Contains(explained, e.Kind)
}

// explained are the kinds that a file or an argument explains.
var explained = []slots.Kind{
	slots.KindNotFound, slots.KindDenied, slots.KindTooLarge, slots.KindConflict, slots.KindBadRequest,
}

// fileDone is the result of a workspace operation that succeeded.
func fileDone(output, path string, details map[string]any) api.Result {
	details["path"] = path
	return api.Result{Success: true, Output: output, Metadata: api.Metadata{Details: details}}
}

// seconds prints the timeout as Python prints the number that the client
// sent: 30 as 30, 30.0 as 30.0, 1e2 as 100.0, and the default as a whole
// number where it is one.
func seconds(sent api.Timeout, limit time.Duration) string {
	raw, err := sent.MarshalJSON()
	if err != nil || string(raw) == "null" {
		return strconv.FormatFloat(limit.Seconds(), 'g', -1, 64)
	}
	if !bytes.ContainsAny(raw, ".eE") {
		return string(raw)
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		return string(raw)
	}
	if v >= 1e-4 && v < 1e16 {
		text := strconv.FormatFloat(v, 'f', -1, 64)
		if v == float64(int64(v)) {
			text += ".0"
		}
		return text
	}
	return strconv.FormatFloat(v, 'e', -1, 64)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func sortedKeys(m map[string]json.RawMessage) []string { return slices.Sorted(maps.Keys(m)) }
