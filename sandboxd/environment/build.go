package environment

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/sandbox"
)

var errDeleted = errors.New("the environment was deleted")

// closeDeadline bounds how long the end of a build's sandbox is awaited.
const closeDeadline = 20 * time.Second

// build is one environment on its way.
type build struct {
	key    string
	spec   api.EnvironmentSpec
	ctx    context.Context //nolint:containedctx // the build's own: it outlives who asked for it
	cancel context.CancelCauseFunc
	done   chan struct{}

	result api.EnvironmentResult // set before done is closed, as err
	err    error

	mu      sync.Mutex // guards what follows
	lines   []string
	dropped int           // of lines, from the first on
	more    chan struct{} // closed when a line is added
}

// keptLines is how much of what a build said who comes late is told.
const keptLines = 1000

func newBuild(key string, spec api.EnvironmentSpec) *build {
	b := &build{key: key, spec: spec, done: make(chan struct{}), more: make(chan struct{})}
	b.ctx, b.cancel = context.WithCancelCause(context.Background())
	return b
}

// say adds a line for those who follow.
func (b *build) say(line string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lines = append(b.lines, line); len(b.lines) > keptLines {
		drop := len(b.lines) - keptLines/2
		b.lines = append([]string(nil), b.lines[drop:]...)
		b.dropped += drop
	}
	close(b.more)
	b.more = make(chan struct{})
}

// after returns the lines from the at-th on, and what tells of more.
func (b *build) after(at int) (lines []string, next int, more <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	from := max(0, at-b.dropped)
	return b.lines[from:len(b.lines):len(b.lines)], b.dropped + len(b.lines), b.more
}

// follow waits for the end, and passes on what is said until then.
func (b *build) follow(ctx context.Context, progress func(string)) error {
	for at := 0; ; {
		var more <-chan struct{}
		if progress != nil {
			var lines []string
			lines, at, more = b.after(at)
			for _, line := range lines {
				progress(line)
			}
		}
		select {
		case <-more:
		case <-b.done:
			if progress != nil {
				lines, _, _ := b.after(at)
				for _, line := range lines {
					progress(line)
				}
			}
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// run carries a build out, in its turn, and tells everybody.
func (s *Store) run(b *build) {
	began := time.Now()
	outcome := "error"
	select {
	case s.building <- struct{}{}:
		began = time.Now()
		b.result, b.err = s.build(b)
		<-s.building
	case <-b.ctx.Done():
		b.err = context.Cause(b.ctx)
	}
	if b.err != nil {
		if f := failureOf(b.err); f != nil {
			b.result, b.err = api.EnvironmentResult{Failure: f}, nil
		}
	}
	took := time.Since(began)
	switch {
	case b.err != nil:
		b.err = failed(b.err)
		s.logger.Error("environment is not built", "environment", b.key, "error", b.err)
	case b.result.Failure != nil:
		f := b.result.Failure
		outcome = string(f.Reason)
		s.logger.Info("packages cannot be installed", "environment", b.key, "language", b.spec.Language, "reason", outcome, "duration", took)
	default:
		outcome = "ok"
		e := b.result.Environment
		s.logger.Info("environment built", "environment", b.key, "language", b.spec.Language, "bytes", e.SizeBytes, "duration", took)
	}
	s.mu.Lock()
	delete(s.builds, b.key)
	s.mu.Unlock()
	close(b.done)
	b.cancel(nil)
	if s.observer != nil {
		s.observer.EnvironmentBuilt(b.spec.Language, outcome, took)
	}
	if outcome == "ok" {
		s.evict(b.key)
	}
}

// failureOf is what a build that was ended, or found no room, is for who
// asked; nil when it is an error.
func failureOf(err error) *api.EnvironmentFailure {
	f := &api.EnvironmentFailure{Kind: api.KindInstall}
	switch {
	case errors.Is(err, errDeleted):
		f.Reason, f.Message = api.InstallCancelled, "the environment was deleted while it was built"
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		f.Reason, f.Message = api.InstallDiskFull, "the container's disk has no room left"
	default:
		return nil
	}
	return f
}

// build makes the tree, verifies it, seals it and puts it in force.
func (s *Store) build(b *build) (_ api.EnvironmentResult, err error) {
	ctx, cancel := context.WithTimeoutCause(b.ctx, s.config.Timeout, sandbox.ErrTimedOut)
	defer cancel()
	if ctx.Err() != nil {
		return api.EnvironmentResult{}, context.Cause(ctx)
	}
	r := record{Key: b.key, Tree: newTree(b.key), Language: b.spec.Language, Requirements: b.spec.Requirements}
	space, err := s.site.Build(ctx, r.Tree, s.config.Packages)
	if err != nil {
		return api.EnvironmentResult{}, err
	}
	finished := false
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeDeadline)
		defer cancel()
		if ended := space.Close(closing); ended != nil {
			s.logger.Warn("sandbox of a build stays", "environment", b.key, "error", ended)
		}
		if finished {
			return
		}
		if left := s.site.Discard(r.Tree); left != nil {
			s.logger.Warn("unfinished environment stays", "environment", b.key, "error", left)
		}
	}()
	ctx, stop := s.watch(ctx, r.Tree)
	defer stop()
	w := &workshop{ctx: ctx, space: space, spec: b.spec, say: b.say, timeout: s.config.Timeout}
	install := w.python
	if b.spec.Language == api.LanguageNode {
		install = w.node
	}
	r.Interpreter, err = install()
	if f, ok := errors.AsType[*installError](err); ok {
		return api.EnvironmentResult{Failure: &f.EnvironmentFailure}, nil
	}
	if err != nil {
		return api.EnvironmentResult{}, err
	}
	if err := r.Interpreter.fill(); err != nil {
		return api.EnvironmentResult{}, err
	}
	if err := space.Seal(ctx); err != nil {
		return api.EnvironmentResult{}, err
	}
	if r.SizeBytes, r.Files, err = s.site.Usage(ctx, r.Tree); err != nil {
		return api.EnvironmentResult{}, err
	}
	if ctx.Err() != nil { // deleted in the last moment
		return api.EnvironmentResult{}, context.Cause(ctx)
	}
	r.Built = time.Now().Round(0)
	shown, err := s.publish(r)
	if err != nil {
		return api.EnvironmentResult{}, err
	}
	finished = true
	return api.EnvironmentResult{Environment: &shown}, nil
}

// watchPause is the shortest time between two looks at what a build takes.
const watchPause = 300 * time.Millisecond

// watch ends the returned context with sandbox.ErrDiskLimited once the tree is
// larger than all environments may be.
func (s *Store) watch(ctx context.Context, tree string) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			began := time.Now()
			bytes, _, err := s.site.Usage(ctx, tree)
			if err == nil && bytes > s.config.MaxBytes {
				cancel(sandbox.ErrDiskLimited)
				return
			}
			select {
			case <-time.After(max(watchPause, 10*time.Since(began))):
			case <-ctx.Done():
				return
			}
		}
	})
	return ctx, func() {
		cancel(nil)
		watching.Wait()
	}
}

// workshop is a build's sandbox and what happens in it.
type workshop struct {
	ctx     context.Context //nolint:containedctx // of the one build that it serves
	space   *sandbox.Build
	spec    api.EnvironmentSpec
	say     func(line string)
	timeout time.Duration
}

// scratch is where a build's programs keep what is not to stay, in the tree:
// it counts there and is removed before the tree is sealed.
func (w *workshop) scratch(parts ...string) string {
	return strings.Join(append([]string{w.space.Path(), ".build"}, parts...), "/")
}

// command is one program of a build.
type command struct {
	argv   []string
	script []byte // see sandbox.Command
	env    []string
	quiet  bool // its output is an answer, and not for those who follow
}

// run runs a program. output is the end of what it said, by line, stdout and
// stderr together; a quiet one's is stdout alone. How it ended is the caller's
// to judge but for time, space and memory, which are *installErrors.
func (w *workshop) run(c command) (output string, code int, err error) {
	out := &lines{say: w.say, hide: secrets(w.spec.Index)}
	stderr := out
	if c.quiet {
		out.say = nil
		stderr = &lines{}
	}
	env := []string{
		"HOME=" + w.scratch("home"), "TMPDIR=" + w.scratch("tmp"), "PWD=" + w.space.Path(), "NO_COLOR=1", "TERM=dumb", "CI=1",
	}
	exit, err := w.space.Run(w.ctx, sandbox.Command{
		Argv: c.argv, Script: c.script, Env: append(env, c.env...), Cwd: w.space.Path(), Stdout: out, Stderr: stderr, Live: !c.quiet,
	})
	out.end()
	output = out.String()
	if err != nil && w.ctx.Err() == nil {
		if slots.AsError(err).Kind == slots.KindTooLarge { // no room to start it
			err = w.fault(api.InstallDiskFull, "", output)
		}
		return "", 0, err
	}
	cause := context.Cause(w.ctx)
	switch {
	case errors.Is(cause, sandbox.ErrTimedOut):
		return "", 0, w.fault(api.InstallTimeout, "", output)
	case errors.Is(cause, sandbox.ErrDiskLimited), err == nil && exit.Outcome == slots.OutcomeDiskLimited:
		return "", 0, w.fault(api.InstallDiskFull, "", output)
	case cause != nil:
		return "", 0, cause
	case exit.OOMKilled:
		return "", 0, w.fault(api.InstallMemory, "", output)
	}
	return output, exit.Code, nil
}

// begin makes the directories of a build.
func (w *workshop) begin() error {
	output, code, err := w.run(command{argv: []string{"mkdir", "-p", w.scratch("home"), w.scratch("tmp")}})
	if err == nil && code != 0 {
		err = w.judge(output)
	}
	return err
}

// finish removes what is not to stay.
func (w *workshop) finish() error {
	output, code, err := w.run(command{argv: []string{"rm", "-rf", w.scratch()}})
	if err == nil && code != 0 {
		err = w.judge(output)
	}
	return err
}
