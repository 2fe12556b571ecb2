package sandbox

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/slots"
	"berth/slots/holder"
)

// drain is how long output is awaited after a command has ended: something
// that it left behind may hold the pipe for ever.
const drain = 200 * time.Millisecond

// killDeadline bounds how long a killed command is awaited before the whole
// holder goes.
const killDeadline = 5 * time.Second

// run executes one command in the instance and waits for it and its output.
func (i *instance) run(ctx context.Context, c Command) (slots.Exit, error) {
	kills := i.oomKills()
	if err := wanted(ctx); err != nil {
		return slots.Exit{}, err
	}
	streams, err := i.openStreams(c)
	if err != nil {
		return slots.Exit{}, slots.Errorf(slots.KindInternal, "%w", err).WithExecuted(slots.ExecutedNever)
	}
	defer streams.end()
	request := holder.Request{Argv: c.Argv, Env: c.Env, Cwd: c.Cwd, Script: c.Script, Files: streams.pass, Output: streams.passedOn()}
	if request.Confine, err = i.confinement(c); err != nil {
		return slots.Exit{}, err
	}
	request.Keep = c.Background
	began := time.Now()
	p, err := i.holder.Start(request)
	streams.passed()
	if err != nil {
		return slots.Exit{}, i.translate(err)
	}
	exit, err := i.await(ctx, p, streams, began)
	if e, own := i.diedWithHolder(ctx, err, kills); own {
		return e, nil
	}
	if err != nil {
		return slots.Exit{}, i.translate(err)
	}
	streams.take(exit.Output)
	leftover := i.settle(ctx, exit.Alone || c.Background, streams)
	e := outcome(ctx, exit)
	e.Leftover = leftover
	return i.withLimits(e, i.oomKills() > kills), nil
}

// wanted refuses to begin what nobody waits for any more.
func wanted(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return slots.Errorf(slots.KindInterrupted, "cancelled before it started: %w", context.Cause(ctx)).WithExecuted(slots.ExecutedNever)
}

// diedWithHolder is the ending of a command whose holder was killed by the
// slot's own doing: by the kernel for want of memory, since among many small
// processes it was the largest, or by a process of the slot that may. err is
// what the command's wait has come to, kills are the OOM kills before it.
func (i *instance) diedWithHolder(ctx context.Context, err error, kills int64) (e slots.Exit, own bool) {
	if !errors.Is(err, holder.ErrGone) {
		return e, false
	}
	e = slots.Exit{Outcome: slots.OutcomeSignaled, Code: 128 + int(unix.SIGKILL), Signal: "SIGKILL"}
	if i.oomKills() > kills {
		e.Outcome, e.OOMKilled = slots.OutcomeOOMKilled, true
		return e, true
	}
	if i.how.namespaces {
		return e, false // no process of the slot can kill it
	}
	known, cancel := context.WithTimeout(context.WithoutCancel(ctx), killDeadline)
	defer cancel()
	return e, i.holder.Slain(known)
}

// withLimits adds to an ending what is known of memory and disk. A command that
// was ended for another reason keeps that as its outcome.
func (i *instance) withLimits(e slots.Exit, oomed bool) slots.Exit {
	e.DiskFull = i.full()
	if !oomed {
		return e
	}
	e.OOMKilled = true
	if e.Outcome == slots.OutcomeSignaled && e.Signal == "SIGKILL" || e.Outcome == slots.OutcomeExited && e.Code == 137 {
		e.Outcome = slots.OutcomeOOMKilled
	}
	return e
}

// confinement lists what the command needs beyond the slot's own.
func (i *instance) confinement(c Command) ([]string, error) {
	var words []string
	if c.NoNetwork && !i.plan.Namespaces.Net {
		if i.plan.Seccomp == nil {
			return nil, slots.Errorf(slots.KindUnavailable, "the network cannot be denied to one command at isolation level %s", i.host.isolated.Level)
		}
		words = append(words, holder.ConfineNoNetwork)
	}
	if c.Background {
		words = append(words, holder.ConfineStay)
	}
	return words, nil
}

// await waits for the command's own process, and ends it when ctx ends.
func (i *instance) await(ctx context.Context, p *holder.Process, s *streams, began time.Time) (holder.Exit, error) {
	if s.status != nil {
		if exit, ok := s.awaitStatus(ctx, began); ok {
			p.Abandon()
			return exit, nil
		}
	}
	exit, err := p.Wait(ctx)
	if err == nil || ctx.Err() == nil {
		return exit, err
	}
	kill, cancel := context.WithTimeout(context.WithoutCancel(ctx), killDeadline)
	defer cancel()
	i.holder.Continue() // its own slot may have stopped it
	if _, _, err := p.SweepAlso(kill); err != nil && !errors.Is(err, holder.ErrGone) {
		i.holder.Kill() // it no longer answers
	}
	exit, err = p.Wait(kill)
	if err != nil && kill.Err() != nil {
		i.holder.Kill()
		select {
		case <-i.holder.Done():
		case <-time.After(killDeadline):
		}
		// Its end is ours, and the command's with it: what was to end has
		// ended, and the reason is that of ctx.
		return holder.Exit{Status: unix.WaitStatus(unix.SIGKILL), Alone: true}, nil
	}
	return exit, err
}

// settle collects the output that is still to come and kills what the command
// left behind, unless it is alone. It returns how many processes that were.
func (i *instance) settle(ctx context.Context, alone bool, s *streams) (killed int) {
	s.finish(drain)
	if !alone {
		killed = i.sweep(ctx)
		s.finish(drain)
	}
	return killed
}

// sweep kills what is not kept. It returns how many processes that were.
func (i *instance) sweep(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killDeadline)
	defer cancel()
	killed, _, _ := i.holder.Sweep(ctx) // a holder that has ended took them along
	return killed
}

// outcome turns a wait status and the reason of a kill into an Exit.
func outcome(ctx context.Context, x holder.Exit) slots.Exit {
	e := slots.Exit{Outcome: slots.OutcomeExited, Code: x.Status.ExitStatus(), Spawn: x.Spawn, Duration: x.Run, CPU: x.CPU, MaxRSS: x.MaxRSS}
	if x.Status.Signaled() {
		e.Outcome, e.Signal, e.Code = slots.OutcomeSignaled, signalName(x.Status.Signal()), 128+int(x.Status.Signal())
	}
	if ctx.Err() == nil {
		return e
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, ErrTimedOut):
		e.Outcome, e.Code = slots.OutcomeTimedOut, -1
	case errors.Is(cause, ErrOutputLimited):
		e.Outcome = slots.OutcomeOutputLimited
	case errors.Is(cause, ErrDiskLimited):
		e.Outcome = slots.OutcomeDiskLimited
	default:
		e.Outcome = slots.OutcomeCancelled
	}
	return e
}

// signalName knows the real-time signals too, which have numbers only. The C
// library keeps the first two for itself.
func signalName(n unix.Signal) string {
	const rtmin = 34
	switch name := unix.SignalName(n); {
	case name != "":
		return name
	case n >= rtmin:
		return fmt.Sprintf("SIGRTMIN+%d", n-rtmin)
	}
	return fmt.Sprintf("SIG%d", n)
}

// translate gives a holder's error its kind.
func (i *instance) translate(err error) error {
	if stage, ok := errors.AsType[*holder.StageError](err); ok {
		if exhausted(stage) {
			return slots.Errorf(slots.KindSlotExhausted, "the slot's own processes leave no room for another: %w", err)
		}
		if diskFull(stage) {
			return slots.Errorf(slots.KindTooLarge, "the slot's disk limit is reached: %w", err)
		}
		switch stage.Stage {
		case "cwd":
			return slots.Errorf(slots.KindBadRequest, "working directory: %w", err)
		case "lookup":
			return slots.Errorf(slots.KindNotFound, "%w", err)
		case "exec", "script":
			return slots.Errorf(slots.KindBadRequest, "start command: %w", err)
		}
		return slots.Errorf(slots.KindInternal, "%w", err)
	}
	if errors.Is(err, holder.ErrGone) {
		return slots.Errorf(slots.KindSlotLost, "the slot's processes ended with its holder: %w", err)
	}
	return slots.Errorf(slots.KindInternal, "%w", err)
}

// exhausted reports whether the kernel refused the holder what the slot has
// used up: processes, memory, descriptors. What runs there can end, and then
// the same command starts.
func exhausted(e *holder.StageError) bool {
	errno := syscall.Errno(e.Errno)
	return errno == unix.EAGAIN || errno == unix.ENOMEM || errno == unix.EMFILE || errno == unix.ETOOMANYREFS
}

// diskFull reports whether the slot has no room left for what the holder had to
// write: a script, a pipe's name.
func diskFull(e *holder.StageError) bool {
	errno := syscall.Errno(e.Errno)
	return errno == unix.ENOSPC || errno == unix.EDQUOT
}

// streams are the pipes of one command.
type streams struct {
	pass   []int // the command's ends, by descriptor number
	to     [2]io.Writer
	out    []*pump
	stdin  *os.File // our end, while something feeds it
	feed   sync.WaitGroup
	status *os.File // where a command that stays reports; nil otherwise
}

// openStreams makes the pipes. Output that nobody follows is collected by the
// holder, any other is read from here on.
func (i *instance) openStreams(c Command) (_ *streams, err error) {
	s := &streams{pass: []int{-1}, to: [2]io.Writer{c.Stdout, c.Stderr}}
	defer func() {
		if err != nil {
			s.passed()
			s.end()
		}
	}()
	if c.Stdin != nil {
		read, write, err := i.pipe()
		if err != nil {
			return nil, err
		}
		s.pass[0] = read
		s.begin(write, c.Stdin)
	}
	if !c.Live && !c.Background {
		return s, nil
	}
	for _, w := range s.to {
		read, write, err := i.pipe()
		if err != nil {
			return nil, err
		}
		s.pass = append(s.pass, write)
		s.out = append(s.out, startPump(read, w))
	}
	if c.Background {
		read, write, err := i.pipe()
		if err != nil {
			return nil, err
		}
		s.pass, s.status = append(s.pass, write), polled(read, "status")
	}
	return s, nil
}

// polled puts our end of a pipe or socket into the runtime's poller, which takes
// only what does not block.
func polled(fd int, name string) *os.File {
	unix.SetNonblock(fd, true) //nolint:errcheck // of our own end
	return os.NewFile(uintptr(fd), name)
}

// pipe makes one whose ends block, as the command expects of its own; ours is
// for polled. It belongs to the slot, whose processes could not open /dev/stdin
// or /dev/stdout otherwise.
func (i *instance) pipe() (read, write int, err error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return 0, 0, fmt.Errorf("make pipe: %w", err)
	}
	if i.how.ids {
		unix.Fchown(ends[0], i.uid, i.uid) //nolint:errcheck // of our own pipe; both ends are one file
	}
	return ends[0], ends[1], nil
}

// passedOn is what takes the output that the holder passes; nil when there is
// none to pass.
func (s *streams) passedOn() func(holder.Passed) {
	if len(s.out) > 0 {
		return nil
	}
	return func(p holder.Passed) {
		s.take(p.Early)
		for n, fd := range p.Pipes {
			if fd >= 0 {
				s.out = append(s.out, startPump(fd, s.to[n]))
			}
		}
	}
}

// take writes output that has come as a whole.
func (s *streams) take(output [2][]byte) {
	for n, text := range output {
		if len(text) > 0 && s.to[n] != nil {
			s.to[n].Write(text) //nolint:errcheck // a capture keeps what it can
		}
	}
}

// passed closes our copies of the command's ends.
func (s *streams) passed() {
	for i, fd := range s.pass {
		if fd >= 0 {
			unix.Close(fd)
			s.pass[i] = -1
		}
	}
}

// begin feeds the input beside the command. What fits into the pipe needs no
// goroutine.
func (s *streams) begin(write int, in io.Reader) {
	unix.SetNonblock(write, true) //nolint:errcheck // of our own pipe
	if r, ok := in.(interface{ Len() int }); ok && r.Len() <= pipeSize {
		text, err := io.ReadAll(in)
		n := 0
		if err == nil && len(text) > 0 {
			n, _ = unix.Write(write, text) // what did not go in is fed below
		}
		if n = max(n, 0); err != nil || n == len(text) {
			unix.Close(write)
			return
		}
		// A user who has many pipes gets small ones.
		in = bytes.NewReader(text[n:])
	}
	f := os.NewFile(uintptr(write), "stdin")
	s.stdin = f
	s.feed.Go(func() {
		defer f.Close()
		io.Copy(f, in) //nolint:errcheck // the command may end, or close it, without reading all
	})
}

const pipeSize = 64 << 10

// awaitStatus waits for the report of a command that stays and was asked for at
// began.
func (s *streams) awaitStatus(ctx context.Context, began time.Time) (holder.Exit, bool) {
	stop := context.AfterFunc(ctx, func() {
		s.status.SetReadDeadline(time.Unix(1, 0)) //nolint:errcheck // of our own pipe
	})
	defer stop()
	var b [4]byte
	if _, err := io.ReadFull(s.status, b[:]); err != nil {
		return holder.Exit{}, false // killed, or failed to start: its own end tells
	}
	return holder.Exit{Status: unix.WaitStatus(binary.LittleEndian.Uint32(b[:])), Run: time.Since(began)}, true
}

// finish waits until all output has been read, but no longer than patience.
// What has been written by then is read in any case, however seldom this
// process gets a turn.
func (s *streams) finish(patience time.Duration) (all bool) {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	all = true
	for n, p := range s.out {
		select {
		case <-p.done:
			continue
		case <-timeout.C:
		}
		for _, p := range s.out[n:] {
			all = p.catchUp() && all
		}
		break
	}
	return all
}

// end lets go of everything. A pipe that somebody still writes to is read on,
// into nothing, so that a process which stays is not killed by its output.
func (s *streams) end() {
	s.passed() // where it was never started
	if s.stdin != nil {
		s.stdin.Close()
		s.feed.Wait()
	}
	for _, p := range s.out {
		p.detach()
	}
	if s.status != nil {
		s.status.Close()
	}
}

// pump reads one pipe to its end.
type pump struct {
	file *os.File
	done chan struct{}

	// mu is held from a read to the end of its write: detach can wait for it,
	// and nobody finds the pipe empty whose last bytes are still on their way.
	mu sync.Mutex
	to io.Writer // nil: detached
}

var pumpBuffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

func startPump(fd int, to io.Writer) *pump {
	p := &pump{file: polled(fd, "output"), done: make(chan struct{}), to: to}
	go p.run()
	return p
}

func (p *pump) run() {
	defer close(p.done)
	defer p.file.Close()
	buf := pumpBuffers.Get().(*[]byte)
	defer pumpBuffers.Put(buf)
	raw, err := p.file.SyscallConn()
	for more := true; err == nil && more; {
		err = raw.Read(func(fd uintptr) (ready bool) {
			more, ready = p.move(int(fd), *buf)
			return ready
		})
	}
}

// move takes what the pipe has to the writer. There is no more at the pipe's
// end, and one that has nothing yet is not ready.
func (p *pump) move(fd int, buf []byte) (more, ready bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, err := unix.Read(fd, buf)
	if errors.Is(err, unix.EAGAIN) {
		return true, false
	}
	if n > 0 && p.to != nil {
		p.to.Write(buf[:n]) //nolint:errcheck // a capture keeps what it can
	}
	return n > 0 || errors.Is(err, unix.EINTR), true
}

// catchUp reads what is in the pipe now. It reports whether that was its end.
func (p *pump) catchUp() (ended bool) {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return true
	}
	buf := pumpBuffers.Get().(*[]byte)
	defer pumpBuffers.Put(buf)
	err = raw.Control(func(fd uintptr) {
		// No more than a pipe holds: something may write to it for ever.
		for more, ready, n := true, true, 0; more && ready && n <= mostInPipe; n += len(*buf) {
			more, ready = p.move(int(fd), *buf)
			ended = !more
		}
	})
	return ended || err != nil // the pump has closed it
}

// mostInPipe is what a pipe can be made to hold, in bytes.
const mostInPipe = 1 << 20

// detach stops the writer from being called again.
func (p *pump) detach() {
	p.mu.Lock()
	p.to = nil
	p.mu.Unlock()
}
