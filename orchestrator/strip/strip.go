package strip

import (
	"bytes"
	"cmp"
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/slots"
)

// Bounds of kept results.
const (
	keptSources = 512
	keptBytes   = 32 << 20
)

// maxTime is how long a source may take to be read.
const maxTime = 10 * time.Second

// Config is how a Stripper behaves. Zero fields mean the default.
type Config struct {
	// Program, with the arguments Role and a type behind it, has to run Main;
	// default this process's own.
	Program []string
	AtOnce  int           // processes at once; default as many as there are processors, and 4 at most
	Time    time.Duration // that a source may take; default 10 seconds, which is the most
}

// Stripper makes scripts, and keeps those that it has made. All methods may be
// called at once.
type Stripper struct {
	config Config
	turns  *turns

	mu    sync.Mutex // guards what is below; nothing is made under it
	byKey map[[sha256.Size]byte]*list.Element
	order list.List // of *stripped, those used last at the end
	bytes int
}

// stripped is one result.
type stripped struct {
	key [sha256.Size]byte
	made
}

// New makes a Stripper.
func New(c Config) *Stripper {
	if len(c.Program) == 0 {
		c.Program = []string{"/proc/self/exe"} // also when its file was replaced
	}
	c.AtOnce = cmp.Or(c.AtOnce, min(runtime.NumCPU(), 4))
	c.Time = min(cmp.Or(c.Time, maxTime), maxTime)
	return &Stripper{config: c, turns: newTurns(c.AtOnce), byKey: map[[sha256.Size]byte]*list.Element{}}
}

// Error says what is wrong with a source, and quotes no more of it than a word.
type Error struct{ Text string }

// Error is the text.
func (e *Error) Error() string { return e.Text }

// Strip makes a script of the tenant's source. An *Error is about the source;
// any other one is about this machine or the context, and may pass.
func (s *Stripper) Strip(ctx context.Context, tenant, sourceType, source string) (string, error) {
	one := &stripped{key: sha256.Sum256([]byte(sourceType + ":" + source))}
	kept, ok := s.kept(one.key)
	if !ok {
		give, err := s.turns.take(ctx, tenant)
		if err != nil {
			return "", slots.Errorf(slots.KindInterrupted, "wait to read source: %w", err).WithExecuted(slots.ExecutedNever)
		}
		defer give()
		// Meanwhile the same source may have had its turn.
		if kept, ok = s.kept(one.key); !ok {
			if kept, err = s.ask(ctx, sourceType, source); err != nil {
				return "", err
			}
			one.made = kept
			s.keep(one)
		}
	}
	if kept.Wrong != "" {
		return "", &Error{kept.Wrong}
	}
	return kept.Script, nil
}

func (s *Stripper) kept(key [sha256.Size]byte) (made, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.byKey[key]
	if !ok {
		return made{}, false
	}
	s.order.MoveToBack(e)
	return e.Value.(*stripped).made, true // the list holds nothing else
}

func (s *Stripper) keep(one *stripped) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.byKey[one.key]; ok {
		return
	}
	s.byKey[one.key] = s.order.PushBack(one)
	s.bytes += one.size()
	for s.order.Len() > keptSources || s.bytes > keptBytes && s.order.Len() > 1 {
		oldest := s.order.Remove(s.order.Front()).(*stripped) // the list holds nothing else
		s.bytes -= oldest.size()
		delete(s.byKey, oldest.key)
	}
}

// ask has a process read the source. The process that a source ends is an
// answer: it would end the next one, too.
func (s *Stripper) ask(ctx context.Context, sourceType, source string) (made, error) {
	limited, cancel := context.WithTimeout(ctx, s.config.Time)
	defer cancel()
	program := append(slices.Clip(s.config.Program), Role, sourceType)
	child := exec.CommandContext(limited, program[0], program[1:]...) //nolint:gosec // it is our own
	// Nothing of ours goes along but the source.
	child.Env, child.Dir = []string{"GOMAXPROCS=1", "GOTRACEBACK=none"}, "/"
	child.Stdin = strings.NewReader(source)
	out, last := &bounded{most: 8 * maxScript}, &bounded{most: 4 << 10}
	child.Stdout, child.Stderr = out, last
	err := child.Run()
	if err == nil {
		var m made
		if err = json.Unmarshal(out.text.Bytes(), &m); err == nil {
			return m, nil
		}
	}
	exit, ended := errors.AsType[*exec.ExitError](err)
	said := last.text.String()
	switch {
	case ctx.Err() != nil:
		return made{}, slots.Errorf(slots.KindInterrupted, "read source: %w", context.Cause(ctx)).WithExecuted(slots.ExecutedNever)
	case limited.Err() != nil:
		// It is not kept: this machine may have been busy.
		return made{}, &Error{"the source takes more than " + s.config.Time.String() + " to read"}
	case ended && strings.Contains(said, "stack overflow"):
		return made{Wrong: "the source is nested too deeply"}, nil
	case ended && exit.Exited() && strings.Contains(said, "memory"):
		return made{Wrong: "the source takes too much memory to read"}, nil
	}
	return made{}, slots.Errorf(slots.KindInternal, "read source: %w", err).WithExecuted(slots.ExecutedNever)
}

// bounded keeps the beginning of what is written.
type bounded struct {
	text bytes.Buffer
	most int
}

// Write never fails.
func (b *bounded) Write(p []byte) (int, error) {
	_, _ = b.text.Write(p[:min(len(p), b.most-b.text.Len())]) // it never fails
	return len(p), nil
}
