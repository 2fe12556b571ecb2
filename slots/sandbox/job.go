package sandbox

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"berth/slots"
	"berth/slots/holder"
)

// Interpreter is a program that does jobs. It is told its source first, which
// its arguments are too long for, and then the job: each as eight bytes of
// length, big-endian, and the bytes.
type Interpreter struct {
	Key    string // names it: two of one key are alike, and their processes exchangeable
	Source []byte
	// Serve is the command of a server that forks a child for each job; nil:
	// there is none. Descriptor 3 is its stream, see server.
	Serve []string
	// Once is the command of a process that does one job: it comes on
	// descriptor 4, and its result goes to descriptor 3.
	Once []string
	// Primed has the next process for one job started after each one, and more
	// than one while jobs come quickly.
	Primed bool
}

// Job is one job. Its process gets no input; what it starts ends with it.
type Job struct {
	Interpreter Interpreter
	Body        []byte
	Stdout      io.Writer // each is written from one goroutine; nil discards
	Stderr      io.Writer
	// Result takes what the process writes to its result. The first byte says
	// that the job has begun: until then it may be begun by another process.
	Result io.Writer
	// Whole is closed when Result has all that it wants: what the process does
	// then must not take long, and cannot fail. nil means never.
	Whole <-chan struct{}

	kills int64 // of its instance when it began
}

// JobState says what did the job.
type JobState struct {
	Warm bool // a process that stood ready
}

// grace is how long a process may live on that has given its whole result.
const grace = time.Second

// errWhole ends the context of a job that took longer.
var errWhole = errors.New("the result is there")

// Job runs one job and waits for it: for its process, for its output, and for
// the end of what it left behind, which is killed. The end of ctx kills every
// process of the job. A server that does not take the job is replaced by a
// process of its own for it. Errors are *slots.Error.
func (s *Sandbox) Job(ctx context.Context, j Job) (exit slots.Exit, state JobState, err error) {
	if err := wanted(ctx); err != nil {
		return slots.Exit{}, JobState{}, err
	}
	i, err := s.live(ctx)
	if err != nil {
		return slots.Exit{}, JobState{}, err
	}
	ctx, stop := i.watchDisk(ctx, aCommand)
	defer func() { tellDisk(&exit, stop()) }()
	j.kills = i.oomKills()
	if j.Interpreter.Serve != nil {
		exit, state, taken, err := s.serve(ctx, i, j)
		if taken || err != nil {
			return exit, state, err
		}
	}
	return s.once(ctx, i, j)
}

// serve has a server do the job. It is not taken when no server is there to
// take it, or it ended first; then nothing of it has run.
func (s *Sandbox) serve(ctx context.Context, i *instance, j Job) (exit slots.Exit, state JobState, taken bool, err error) {
	v := s.takeServer(i, j.Interpreter.Key)
	state.Warm = v != nil
	if v == nil {
		if v, err = i.startServer(ctx, j.Interpreter); err != nil {
			if errors.Is(err, holder.ErrGone) {
				return exit, state, false, i.translate(err)
			}
			return exit, state, false, nil //nolint:nilerr // a process of its own meets the same reason, and says it
		}
	}
	x, killed, taken, err := v.run(ctx, j)
	if v.ready {
		s.giveServer(j.Interpreter.Key, v)
	} else {
		v.kill(ctx)
		v.control.Close()
	}
	if err != nil {
		return exit, state, false, slots.Errorf(slots.KindInternal, "%w", err).WithExecuted(slots.ExecutedNever)
	}
	if !taken && ctx.Err() == nil {
		return exit, state, false, nil
	}
	exit = outcome(ctx, x)
	exit.Leftover = killed
	return i.withLimits(exit, i.oomKills() > j.kills), state, true, nil
}

// counted notes whether anything was written.
type counted struct {
	to  io.Writer
	any atomic.Bool
}

func (c *counted) Write(p []byte) (int, error) {
	c.any.Store(true)
	if c.to == nil {
		return len(p), nil
	}
	return c.to.Write(p)
}

// primed is a process that waits for its one job.
type primed struct {
	in      *instance
	process *holder.Process
	out     [3]int // our ends of stdout, stderr and the result
	job     int    // our end of what it reads
	unsent  []byte // of its source, what did not fit into the pipe
}

// prime starts one.
func (i *instance) prime(n Interpreter) (*primed, error) {
	p := &primed{in: i, out: [3]int{-1, -1, -1}, job: -1}
	files := []int{-1, -1, -1, -1, -1}
	var err error
	for at := range p.out {
		if p.out[at], files[1+at], err = i.pipe(); err != nil {
			break
		}
	}
	if err == nil {
		files[4], p.job, err = i.pipe()
	}
	if err == nil {
		r := holder.Request{Argv: n.Once, Files: files, Keep: true}
		if n.Primed { // others do their jobs while it waits for its own
			r.Confine = []string{i.apart()}
		}
		p.process, err = i.holder.Start(r)
	}
	closeOpen(files)
	if err != nil {
		p.close()
		return nil, err
	}
	p.unsent = framed(n.Source)
	unix.SetNonblock(p.job, true) //nolint:errcheck // of our own pipe
	sent, _ := unix.Write(p.job, p.unsent)
	p.unsent = p.unsent[max(sent, 0):]
	return p, nil
}

// framed puts the length before the text.
func framed(text []byte) []byte {
	out := make([]byte, 8, 8+len(text))
	binary.BigEndian.PutUint64(out, uint64(len(text)))
	return append(out, text...)
}

func closeOpen(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// close lets go of a process that gets no job: it ends by that.
func (p *primed) close() {
	closeOpen(p.out[:])
	closeOpen([]int{p.job})
	if p.process != nil {
		p.process.Abandon()
	}
}

// reads reports whether the process still has its end of the pipe.
func (p *primed) reads() bool {
	poll := []unix.PollFd{{Fd: int32(p.job)}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n == 0
}

// once has a process of its own do the job: one that stood ready, unless that
// ended before it began.
func (s *Sandbox) once(ctx context.Context, i *instance, j Job) (slots.Exit, JobState, error) {
	var p *primed
	if j.Interpreter.Primed {
		p = s.takePrimed(i, j.Interpreter.Key)
	}
	if p != nil {
		exit, taken, err := p.run(ctx, j, true)
		if taken || ctx.Err() != nil || errors.Is(err, holder.ErrGone) {
			return s.ended(i, j, exit, JobState{Warm: true}, err)
		}
	}
	p, err := i.prime(j.Interpreter)
	if err != nil {
		return slots.Exit{}, JobState{}, i.translate(err)
	}
	exit, _, err := p.run(ctx, j, false)
	return s.ended(i, j, exit, JobState{}, err)
}

// ended is the answer of a process of its own. The next ones are started behind
// it, when nothing of the job is left that could meddle with them.
func (s *Sandbox) ended(i *instance, j Job, exit slots.Exit, state JobState, err error) (slots.Exit, JobState, error) {
	if e, own := i.diedWithHolder(i.host.ctx, err, j.kills); own {
		return e, state, nil
	}
	if err != nil {
		return slots.Exit{}, state, i.translate(err)
	}
	if j.Interpreter.Primed {
		s.primeMore(i, j.Interpreter)
	}
	return i.withLimits(exit, i.oomKills() > j.kills), state, nil
}

// run gives the process its job and waits for its end.
func (p *primed) run(ctx context.Context, j Job, waited bool) (e slots.Exit, taken bool, err error) {
	began := time.Now()
	result := &counted{to: j.Result}
	s := &streams{}
	defer s.end()
	for at, w := range []io.Writer{j.Stdout, j.Stderr, result} {
		s.out = append(s.out, startPump(p.out[at], w))
	}
	s.begin(p.job, bytes.NewReader(append(p.unsent, framed(j.Body)...)))
	wait, whole := context.WithCancelCause(ctx)
	defer whole(nil)
	defer untilWhole(wait, j.Whole, func() { whole(errWhole) })()
	exit, err := p.in.await(wait, p.process, s, began)
	if err != nil {
		return e, result.any.Load(), err
	}
	if ctx.Err() == nil && errors.Is(context.Cause(wait), errWhole) {
		exit.Status = 0
	}
	if waited { // the job's time, not the process's
		exit.Spawn, exit.Run = 0, time.Since(began)
	}
	killed := 0
	if !exit.Alone {
		killed = p.in.sweep(ctx)
	}
	s.finish(drain)
	e = outcome(ctx, exit)
	e.Leftover = killed
	return e, s.begun(result), nil
}

// begun reports whether the job has begun, once all that could say so has
// ended. A job that perhaps has is not done again.
func (s *streams) begun(result *counted) bool {
	all := (&streams{out: s.out[2:]}).finish(drain)
	return result.any.Load() || !all
}

// untilWhole calls late when the whole result has been there for as long as
// its process may live on. What it returns ends that, and waits for it.
func untilWhole(ctx context.Context, whole <-chan struct{}, late func()) func() {
	if whole == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-whole:
		case <-ctx.Done():
			return
		}
		if overdue(ctx) {
			late()
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// overdue reports whether grace went by before ctx ended.
func overdue(ctx context.Context) bool {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
