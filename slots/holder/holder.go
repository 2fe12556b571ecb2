package holder

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Holder is the agent's half of one holder process.
type Holder struct {
	conn  *polledConn
	pid   int
	pidfd int
	end   *ending         // nil: of no spawner's
	gone  <-chan struct{} // closed when the spawner has reaped it
	done  chan struct{}   // closed when the connection has ended

	stoppable bool // by its slot, which sees it

	turn chan struct{} // holds a token while somebody reads the connection

	mu      sync.Mutex // guards what follows; nothing is awaited under it
	next    uint64
	pending map[uint64]chan frame
	closed  bool
	killed  bool // by Kill
}

// ending is what a spawner knows of a holder's end.
type ending struct {
	gone   chan struct{}   // closed when it has reaped it, or has ended itself
	status unix.WaitStatus // valid then; 0 when it has ended itself
}

func newHolder(conn *polledConn, pid, pidfd int, gone <-chan struct{}) *Holder {
	return &Holder{conn: conn, pid: pid, pidfd: pidfd, gone: gone, done: make(chan struct{}), turn: make(chan struct{}, 1), pending: map[uint64]chan frame{}}
}

// begin sends the plan and waits for the holder to be ready.
func (h *Holder) begin(ctx context.Context, p *Plan) error {
	answer := h.register(0, 1)
	defer h.forget(0)
	go h.watch() //nolint:contextcheck // the holder outlives its start
	var trees []int
	if p.View != nil && len(p.View.Trees) > 0 {
		var err error
		if trees, err = idmappedTrees(h.pid, p.View.Trees); err != nil {
			return &StageError{Stage: "private root", Errno: errnoOf(err), Text: err.Error()}
		}
		defer closeAll(trees)
	}
	if err := h.send(kindPlan, 0, encode(p), trees...); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	f, err := h.await(ctx, answer)
	if err != nil {
		return err
	}
	closeAll(f.files)
	if f.kind == kindReady {
		return nil
	}
	return refusal(f.body)
}

// send ends a holder that takes no more requests: it is stopped, or has let go
// of its end, which only a hostile one does and lives.
func (h *Holder) send(k kind, id uint64, body []byte, files ...int) error {
	if h.stoppable {
		h.Continue() // its own slot may have stopped it since
	}
	err := h.conn.send(k, id, body, files...)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		h.Kill()
	case errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET):
		h.kill()
	}
	if err != nil {
		return fmt.Errorf("ask holder: %w: %w", ErrGone, err)
	}
	return nil
}

// tell sends what needs no answer of its own: whoever awaits the request's
// answer hears of a holder that has ended.
func (h *Holder) tell(k kind, id uint64, body []byte) { _ = h.send(k, id, body) }

// PID is the holder's process id in the agent's namespace.
func (h *Holder) PID() int { return h.pid }

// Done is closed when the holder no longer answers.
func (h *Holder) Done() <-chan struct{} { return h.done }

// Kill ends the holder at once, and with it, where it has a pid namespace,
// every process of the slot. It does not wait.
func (h *Holder) Kill() {
	h.mu.Lock()
	h.killed = true
	h.mu.Unlock()
	h.kill()
}

func (h *Holder) kill() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		_ = kill(h.pidfd) // it may have ended
	}
}

// Slain reports whether a holder that has ended was killed, but not by Kill: by
// its own slot, which can where it has no pid namespace, or for want of memory.
// It waits until that is known, or ctx ends.
func (h *Holder) Slain(ctx context.Context) bool {
	select {
	case <-h.gone:
	case <-ctx.Done():
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.killed && h.end != nil && h.end.status.Signaled() && h.end.status.Signal() == unix.SIGKILL
}

// Continue wakes a holder that has been stopped: a slot may signal its own
// where both run as one uid.
func (h *Holder) Continue() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		unix.PidfdSendSignal(h.pidfd, unix.SIGCONT, nil, 0) //nolint:errcheck // it may have ended
	}
}

// Close kills the holder and waits until it, and where it has a pid namespace
// everything in it, is gone. The error is the context's.
func (h *Holder) Close(ctx context.Context) error {
	h.Kill()
	h.conn.Close()
	select {
	case <-h.gone:
	case <-ctx.Done():
		return fmt.Errorf("wait for holder %d to end: %w", h.pid, context.Cause(ctx))
	}
	// A spawner that has ended can no longer say so: the pidfd is asked too.
	for !h.ended() {
		select {
		case <-time.After(sweepPause):
		case <-ctx.Done():
			return fmt.Errorf("wait for holder %d to end: %w", h.pid, context.Cause(ctx))
		}
	}
	h.forgetAll()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.closed = true
		unix.Close(h.pidfd)
	}
	return nil
}

// ended asks the kernel. With a pid namespace the answer covers all of it.
func (h *Holder) ended() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return true
	}
	poll := []unix.PollFd{{Fd: int32(h.pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n > 0
}

// Request asks a holder for one process.
type Request struct {
	Argv   []string
	Env    []string
	Cwd    string
	Script []byte
	// Files become the descriptors 0, 1, 2, ...; -1 as the first is an empty
	// input. The caller keeps and closes them.
	Files []int
	// Confine are words for the confine trampoline, see ConfineMain.
	Confine []string
	// Keep has sweeps spare the process and what is below it.
	Keep bool
	// Output, when not nil, has the holder make descriptors 1 and 2, of which
	// Files then has none. Wait calls it at most once, before it returns, when
	// the output is long or has to be waited for; other output comes with Exit.
	Output func(Passed)
}

// Passed is the output of a process that goes on, or of what it has left.
type Passed struct {
	Early [2][]byte // what was written to stdout and stderr so far
	Pipes [2]int    // descriptors of the rest, which do not block and are the callee's; -1: there is none
}

// Process is one process that a holder has been asked for.
type Process struct {
	h      *Holder
	id     uint64
	answer chan frame
	output func(Passed) // nil: not asked for, or called
}

// Exit is the end of a process.
type Exit struct {
	Status unix.WaitStatus
	Spawn  time.Duration // request received to program known to run, in the holder
	Run    time.Duration // beginning to be made to ended, in the holder: no less than its life
	CPU    time.Duration // user and system, with waited-for children
	MaxRSS int64         // bytes
	Alone  bool          // nothing but kept processes is left behind
	Output [2][]byte     // all of stdout and stderr, when Request.Output was set and not called
}

// Start asks for a process. It does not wait for it to run; what goes wrong
// is told by Wait.
func (h *Holder) Start(r Request) (*Process, error) {
	body := spawnRequest{Argv: r.Argv, Env: r.Env, Cwd: r.Cwd, Confine: r.Confine, Keep: r.Keep, Collect: r.Output != nil}
	fds := make([]int, 0, maxFiles)
	for i, fd := range r.Files {
		if fd < 0 && i == 0 {
			body.NoStdin = true
			continue
		}
		fds = append(fds, fd)
	}
	if r.Script != nil {
		script, err := attach(r.Script)
		if err != nil {
			return nil, err
		}
		defer unix.Close(script)
		fds = append(fds, script)
		body.Script = true
	}
	p := &Process{h: h, id: h.newID(), output: r.Output}
	p.answer = h.register(p.id, 2) // its output and its end
	if err := h.send(kindSpawn, p.id, encode(body), fds...); err != nil {
		h.forget(p.id)
		return nil, err
	}
	return p, nil
}

// Wait returns how the process ended. It may be called again after the
// context's end. The error wraps ErrGone when the holder has ended, and is a
// *StageError when the process could not be started.
func (p *Process) Wait(ctx context.Context) (Exit, error) {
	f, err := p.h.await(ctx, p.answer)
	for err == nil && f.kind == kindOutput {
		if err := p.passed(f); err != nil {
			p.h.forget(p.id)
			return Exit{}, err
		}
		f, err = p.h.await(ctx, p.answer)
	}
	if err != nil {
		return Exit{}, err
	}
	p.h.forget(p.id)
	closeAll(f.files)
	if f.kind != kindExited {
		return Exit{}, refusal(f.body)
	}
	r, err := decode[exitReport](f.body)
	if err != nil {
		return Exit{}, err
	}
	status := unix.WaitStatus(r.Status)
	if !status.Exited() && (!status.Signaled() || status.Signal() > lastSignal) {
		return Exit{}, fmt.Errorf("%w: %#x is no process's end", errFrame, r.Status)
	}
	return Exit{
		Status: status,
		Spawn:  time.Duration(max(0, r.SpawnNS)),
		Run:    time.Duration(max(0, r.RunNS)),
		CPU:    time.Duration(max(0, r.CPUNS)),
		MaxRSS: max(0, r.MaxRSS),
		Alone:  r.Alone,
		Output: r.Output,
	}, nil
}

// lastSignal is the highest number of one on Linux, a real-time signal's.
const lastSignal = 64

// passed hands the output on that the holder has passed.
func (p *Process) passed(f frame) error {
	passed, err := decode[outputPassed](f.body)
	if err == nil && p.output == nil {
		err = fmt.Errorf("%w: output that was not asked for", errFrame)
	}
	out := Passed{Early: passed.Early, Pipes: [2]int{-1, -1}}
	if err == nil && len(f.files) == 0 {
		f.files, err = p.h.lend(p.id, passed.Open[:]...)
	}
	rest := f.files
	for n, open := range passed.Open {
		if err != nil || !open {
			continue
		}
		if len(rest) == 0 {
			err = fmt.Errorf("%w: output without its pipe", errFrame)
			continue
		}
		if err = expectType(rest[0], unix.S_IFIFO); err == nil {
			out.Pipes[n], err = ownReader(rest[0])
			rest = rest[1:]
		}
	}
	closeAll(rest)
	if err != nil {
		closeAll(slices.DeleteFunc(out.Pipes[:], func(fd int) bool { return fd < 0 }))
		return err
	}
	p.output(out)
	p.output = nil
	return nil
}

// Mark remembers what a kept process has running, for SweepUnder.
func (p *Process) Mark() error { return p.h.send(kindMark, p.id, nil) }

// Sweep kills every process of the slot that is not kept. It returns how many
// it killed and how many it could not.
func (h *Holder) Sweep(ctx context.Context) (killed, left int, err error) {
	return h.sweep(ctx, sweepRequest{})
}

// SweepUnder kills what a kept process has started since its Mark. The process
// itself gets a SIGURG before, which does nothing unless it asks for it.
func (p *Process) SweepUnder(ctx context.Context) (killed, left int, err error) {
	return p.h.sweep(ctx, sweepRequest{Under: p.id})
}

// SweepAlso is Sweep for everything that is not kept and for this process.
func (p *Process) SweepAlso(ctx context.Context) (killed, left int, err error) {
	return p.h.sweep(ctx, sweepRequest{Drop: p.id})
}

// SweepTerminal kills this process, which keeps a terminal, with what is below
// it and in its session: also when it has ended already and left them behind.
// What cannot be told from what the commands at work have started is left to
// the sweep after those; when there are none, it is killed too.
func (p *Process) SweepTerminal(ctx context.Context, session int) (killed, left int, err error) {
	return p.h.sweep(ctx, sweepRequest{Drop: p.id, Session: session})
}

// Abandon stops waiting for the process; it goes on.
func (p *Process) Abandon() { p.h.forget(p.id) }

func (h *Holder) sweep(ctx context.Context, r sweepRequest) (killed, left int, err error) {
	f, err := h.call(ctx, kindSweep, encode(r))
	if err != nil {
		return 0, 0, fmt.Errorf("sweep: %w", err)
	}
	closeAll(f.files)
	report, err := decode[sweepReport](f.body)
	return max(0, report.Killed), max(0, report.Left), err
}

// call sends a request and awaits its one answer.
func (h *Holder) call(ctx context.Context, k kind, body []byte, files ...int) (frame, error) {
	id := h.newID()
	answer := h.register(id, 1)
	defer h.forget(id)
	if err := h.send(k, id, body, files...); err != nil {
		return frame{}, err
	}
	return h.await(ctx, answer)
}
