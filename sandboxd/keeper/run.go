package keeper

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime/debug"
	"syscall"
	"time"

	"berth/sandboxd/api"
	"berth/sandboxd/tool"
	"berth/slots"
	"berth/slots/process"
	"berth/slots/sandbox"
)

// spillOpen bounds the opening of a spill file: the holder that opens it may
// be stopped by its own slot.
const spillOpen = 2 * time.Second

// execute runs a job that has left the queue, or was never in it. What has
// changed since it was queued is checked again.
func (s *slot) execute(ctx context.Context, j *job) {
	if j.unhook != nil {
		j.unhook()
	}
	start := time.Now()
	s.mu.Lock()
	err := s.record.Tenancy.Check(start, j.call.Token)
	s.mu.Unlock()
	if cause := context.Cause(j.exec.Context()); cause != nil { //nolint:contextcheck // an execution has a context of its own
		err = cause
	}
	var result api.Result
	if err == nil {
		result, err = s.runTool(ctx, j)
	}
	s.mu.Lock()
	s.endLocked()
	s.mu.Unlock()
	if err != nil {
		s.k.refuse(s, j, err)
		return
	}
	s.k.finish(s, j, result, start.Sub(j.queued))
}

// runTool runs the job's tool on the sandbox that the slot has now. Only the
// runner changes it, and not while a job runs, so it stays the same. The error is that the
// execution could not be started.
func (s *slot) runTool(runner context.Context, j *job) (api.Result, error) {
	ctx, stop := context.WithCancelCause(j.exec.Context())
	defer stop(nil)
	config := process.CaptureConfig{
		Window: tool.Window(j.call.Args), SpillMax: s.k.cfg.SpillMax, Limit: s.k.cfg.OutputLimit,
		OnLimit: func() { stop(sandbox.ErrOutputLimited) },
	}
	stdout, stdoutPath := s.capture(runner, j, "stdout", config)
	stderr, stderrPath := s.capture(runner, j, "stderr", config)
	j.exec.Attach(stdout, stderr)
	if err := j.exec.Start(); err != nil {
		return api.Result{}, fmt.Errorf("start execution: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, j.limit, sandbox.ErrTimedOut)
	defer cancel()
	result := s.invoke(ctx, j, tool.Call{ //nolint:contextcheck // an execution has a context of its own
		Args: j.call.Args, Stdout: stdout, Stderr: stderr, Live: j.live,
		Timeout: j.call.Timeout, Limit: j.limit, Isolation: s.k.cfg.Isolation,
	})
	s.addSpill(j, &result, "stdout", stdout, *stdoutPath)
	s.addSpill(j, &result, "stderr", stderr, *stderrPath)
	return result, nil
}

// invoke runs the tool. A tool that panics has a bug; its slot goes on.
func (s *slot) invoke(ctx context.Context, j *job, c tool.Call) (r api.Result) {
	defer func() {
		if p := recover(); p != nil {
			s.k.log.Error("tool panicked", "slot", s.id, "execution", j.exec.ID(), "error", p, "stack", string(debug.Stack()))
			r = api.Refused("", slots.Errorf(slots.KindInternal, "tool %s failed inside", j.tool.Name()))
		}
	}()
	return j.tool.Run(ctx, s.sandbox, c)
}

// capture makes the capture of one stream. The path is that of its spill, in
// the slot's view, once one was opened. ctx is not the call's: a flood can
// reach its spill when the call's time is just over.
func (s *slot) capture(ctx context.Context, j *job, stream string, cfg process.CaptureConfig) (*process.Capture, *string) {
	path := new(string)
	box := s.sandbox
	cfg.Spill = func() (process.Spill, error) {
		ctx, cancel := context.WithTimeout(ctx, spillOpen)
		defer cancel()
		f, inSlot, err := box.OpenSpill(ctx, spillName(j.exec.ID())+"."+stream)
		if err != nil {
			return nil, err
		}
		*path = inSlot
		return f, nil
	}
	return process.NewCapture(cfg), path
}

// addSpill says where the slot finds the whole of a long stream:
//
//	stdout_path        the file
//	stdout_path_bytes  how much of the stream's start that holds, where it is not all
//	stdout_path_error  why not, unless it is the file's bound
//
// The tool has returned, so nobody writes the path any more.
func (s *slot) addSpill(j *job, r *api.Result, name string, stream *process.Capture, path string) {
	spilled, err := stream.Spilled(), stream.SpillErr()
	if spilled == 0 && err == nil {
		return
	}
	if r.Metadata.Details == nil {
		r.Metadata.Details = map[string]any{}
	}
	key := name + "_path"
	if spilled > 0 {
		r.Metadata.Details[key] = path
	}
	if spilled < stream.Total() {
		r.Metadata.Details[key+"_bytes"] = spilled
	}
	if err != nil {
		s.k.log.Warn("output is not kept as a whole", "slot", s.id, "execution", j.exec.ID(), "stream", name, "bytes", spilled, "error", err)
		r.Metadata.Details[key+"_error"] = whyNotKept(err)
	}
}

// whyNotKept is the error in words that tell nothing of the agent's files.
func whyNotKept(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	return "file cannot be had"
}

// spillName makes a file name of an execution id, which a client may choose.
func spillName(id string) string {
	plain := id != "" && id[0] != '.' && len(id) <= 64
	for i := range len(id) {
		c := id[i]
		plain = plain && (c == '-' || c == '.' || c == '_' ||
			'0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z')
	}
	if plain {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:16])
}
