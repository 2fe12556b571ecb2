package tool

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"syscall"

	"berth/sandboxd/api"
	"berth/slots"
)

const (
	frameKey     = 32         // bytes of the key that only the agent and the runner know
	frameHead    = 1 + 8 + 32 // begun, length, checksum
	maxFrame     = 16 << 20   // bytes of a payload, as the runner has it
	runnerFailed = 199        // exit code of a runner that could not send its answer
)

// frame takes the result as the runner writes it: see runner.py. The key makes
// the checksum one that nothing but the runner can know: what else finds the
// descriptor and writes to it damages the result, and forges none.
type frame struct {
	key   []byte
	whole chan struct{} // closed when all of it is there
	text  []byte
	full  bool
}

func newFrame(key []byte) *frame { return &frame{key: key, whole: make(chan struct{})} }

// Write keeps what belongs to the frame. It never fails.
func (f *frame) Write(p []byte) (int, error) {
	keep := p[:min(len(p), max(0, frameHead+maxFrame-len(f.text)))]
	f.text = append(f.text, keep...)
	if size, ok := f.size(); ok && !f.full && len(f.text) >= frameHead+size {
		f.full = true
		close(f.whole)
	}
	return len(p), nil
}

// size is that of the payload, once it is known and possible.
func (f *frame) size() (int, bool) {
	if len(f.text) < frameHead {
		return 0, false
	}
	size := bigEndian(f.text[1:9])
	return int(min(size, maxFrame)), size <= maxFrame //nolint:gosec // bounded
}

func bigEndian(text []byte) (n uint64) {
	for _, b := range text {
		n = n<<8 | uint64(b)
	}
	return n
}

// damaged reports whether something came that is no answer.
func (f *frame) damaged() bool { return len(f.text) > 1 }

// functionAnswer is the payload.
type functionAnswer struct {
	Return json.RawMessage    `json:"return"`
	State  json.RawMessage    `json:"state"`
	Error  *api.FunctionError `json:"error"`
}

// answer reads the payload; false when there is none, or it is not the
// runner's.
func (f *frame) answer() (a functionAnswer, ok bool) {
	size, ok := f.size()
	if !ok || len(f.text) < frameHead+size {
		return a, false
	}
	payload := f.text[frameHead : frameHead+size]
	sum := sha256.New()
	sum.Write(f.key)
	sum.Write(f.text[1:9])
	sum.Write(payload)
	if subtle.ConstantTimeCompare(sum.Sum(nil), f.text[9:frameHead]) != 1 || json.Unmarshal(payload, &a) != nil {
		return functionAnswer{}, false
	}
	return a, true
}

// unanswered says why a run gave no answer.
func (c Call) unanswered(ctx context.Context, a api.FunctionArgs, exit slots.Exit, damaged bool) *api.FunctionError {
	failed := func(kind api.FunctionErrorKind, name, format string, rest ...any) *api.FunctionError {
		return &api.FunctionError{Kind: kind, Name: name, Message: fmt.Sprintf(format, rest...)}
	}
	switch exit.Outcome {
	case slots.OutcomeTimedOut:
		return failed(api.FunctionTimeout, "TimeoutError", "Executing tool %s timed out after %s seconds.", a.Name, seconds(c.Timeout, c.Limit))
	case slots.OutcomeOOMKilled:
		return failed(api.FunctionOOM, "Killed", "signal %d (out of memory)", syscall.SIGKILL)
	case slots.OutcomeSignaled:
		return failed(api.FunctionSignal, "Killed", "signal %d (%s)", exit.Code-128, exit.Signal)
	case slots.OutcomeOutputLimited:
		return failed(api.FunctionSignal, "Killed", "it wrote more output than allowed")
	case slots.OutcomeDiskLimited:
		return failed(api.FunctionSignal, "Killed", "it used more disk than allowed")
	case slots.OutcomeCancelled:
		message := "the run was cancelled"
		if e, ok := errors.AsType[*slots.Error](context.Cause(ctx)); ok {
			message = e.Message
		}
		return failed(api.FunctionCancelled, "Cancelled", "%s", message)
	case slots.OutcomeExited:
	}
	if exit.Code == runnerFailed || exit.Code == 0 && damaged {
		return failed(api.FunctionCorrupted, "CorruptedOutput", "Function ran, but output is corrupted.")
	}
	return failed(api.FunctionExit, "ProcessExit", "exit code %d", exit.Code)
}

// textOf is a returned value as text: a string is itself, nothing is what its
// language calls it, and anything else its JSON.
func textOf(value json.RawMessage, sourceType string) string {
	var text string
	switch {
	case len(value) == 0 || bytes.Equal(value, []byte("null")):
		if sourceType == api.SourcePython {
			return "None"
		}
		return "null"
	case value[0] == '"' && json.Unmarshal(value, &text) == nil:
		return text
	}
	return string(value)
}

// cutReturn is the text of a result within the limit, in code points, and
// whether something of it is missing.
func cutReturn(text string, limit int) (string, bool) {
	kept, n := api.CutText(text, limit)
	if n <= limit {
		return text, false
	}
	return kept + fmt.Sprintf("… [NOTE: function output was truncated since it exceeded the character limit (%d > %d)]", n, limit), true
}

// notStarted reports whether the error says that there is no such program, or
// that it cannot run.
func notStarted(e *slots.Error) bool {
	return e.Kind == slots.KindNotFound || e.Kind == slots.KindBadRequest
}

// spawnError says which interpreter is missing, and what to do.
func spawnError(a api.FunctionArgs, e *slots.Error) *api.FunctionError {
	program, mend := "python3", "install it in the container's image"
	if a.SourceType == api.SourceJavaScript {
		program = "node"
	} else if a.Environment != "" {
		mend = "build the environment " + a.Environment + " again"
	}
	return &api.FunctionError{
		Kind: api.FunctionSpawn, Name: "SpawnError",
		Message: fmt.Sprintf("%s could not be started: %s; %s", program, e.Message, mend),
	}
}
