package holder

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/slots/timerslack"
	"berth/slots/workspace"
)

// socketFD is where a holder and the spawner find their socket.
const socketFD = 3

// rulesFD is where a holder finds the spawner's port ruleset, if there is one.
const rulesFD = 4

// workspaceAlias is what callers call the workspace, wherever it is.
const workspaceAlias = "/workspace"

// server is the child half: one process, serving one agent until the
// connection ends.
type server struct {
	plan Plan
	conn *blockingConn
	null int // /dev/null, for processes without input
	tree *workspace.Tree
	env  []string
	path pathCache

	score oomScore

	// Of the one thread that makes and ends processes.
	procs     map[int]*process    // our direct children, by pid
	kept      map[uint64]*process // spared by sweeps, by request id
	gone      int                 // children reaped so far
	reaped    time.Time           // when ended children were last collected
	backlog   bool                // and there were more than a batch of them
	childless bool                // the kernel said so, and nothing was spawned since
	events    []unix.PollFd       // the socket, then each running child with its output
	buf       [16 << 10]byte      // for output on its way into the holder
	loans     map[uint64]*loan    // what waits for the agent's pipes, by request id
	relays    []*relay            // what is copied into such
	fifos     map[string]fifos    // named pipes that are copied, by the name that drops them

	mu      sync.Mutex // guards what follows
	cancels map[uint64]context.CancelFunc
	inputs  map[uint64]chan bool // told whether a piped input was whole
	lends   map[uint64]chan int  // given the pipe that the agent lends an operation

	ops chan struct{} // a place for each file operation at work
}

// maxOps is how many longer file operations are at work at once. Each may hold
// a thread, and Plan.Threads, made ahead, must do for all of them.
const maxOps = 4

// process is one direct child.
type process struct {
	id      uint64
	pid     int
	pidfd   int
	started time.Time
	spawn   time.Duration
	status  unix.WaitStatus
	usage   unix.Rusage
	event   int // where it stands in server.events
	output  output
	mark    map[int]uint64 // descendants at the last mark, with their start times
}

// Main is the holder: it confines itself as its first message says, becomes
// ServeMain by exec, and serves until the agent lets go of the socket. It
// returns the exit status, after a failure only.
func Main() int {
	runtime.LockOSThread()
	runtime.GOMAXPROCS(1)
	SealDescriptors()
	c := newBlockingConn(socketFD)
	c.say(kindFailed, 0, encode(asFailure(becomeServer(c))))
	return 1
}

// becomeServer returns only an error.
func becomeServer(c *blockingConn) error {
	f, err := c.receive()
	if err != nil {
		return &stageError{"plan", err}
	}
	defer closeAll(f.files)
	if f.kind != kindPlan {
		return &stageError{"plan", fmt.Errorf("%w: kind %d came first", errFrame, f.kind)}
	}
	plan, err := decode[Plan](f.body)
	if err != nil {
		return &stageError{"plan", err}
	}
	plan.Began, plan.trees = time.Now().UnixNano(), f.files
	if err := setUp(&plan); err != nil {
		return err
	}
	plan.forServing()
	// They keep their numbers: any other may be the runtime's own.
	text, err := attach(encode(plan))
	for _, fd := range []int{socketFD, text, plan.ScoreFile} {
		if err == nil && fd > 0 {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
		}
	}
	if err != nil {
		return &stageError{"pass plan", err}
	}
	// As many processors as it will ask for: to change their number the runtime
	// stops everything.
	env := []string{"GOMAXPROCS=" + strconv.Itoa(holderCPUs)}
	// The runtime's watching thread still begins with the slack that the spawner
	// has given this one.
	return &stageError{"become server", syscall.Exec(plan.Confine, []string{"sandboxd", "serve-slot", strconv.Itoa(text)}, env)}
}

// holderCPUs are what the holder's Go code runs on: one for the thread that
// polls, which keeps it meanwhile, and one for file operations.
const holderCPUs = 2

// restingSlack is that of the runtime's watching thread: a slot's calls wait for
// each other anyway.
const restingSlack = 20 * time.Millisecond

// ServeMain is the confined holder, whose plan is at that descriptor. It
// returns the exit status.
func ServeMain(plan string) int {
	timerslack.Wake() // children begin with this thread's slack
	// Children are made, and killed, from one thread: Landlock counts what a
	// thread may signal by the thread that made it.
	runtime.LockOSThread()
	// The slot's processes have this one's uid: without this they could read
	// its memory, and speak through it where they may trace.
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) //nolint:errcheck // cannot fail
	// The collector keeps the heap close to what is in use: holders are many.
	runtime.GOMAXPROCS(holderCPUs)
	SealDescriptors()
	c := newBlockingConn(socketFD)
	surviveSignals()
	s, err := start(c, plan)
	if err != nil {
		c.say(kindFailed, 0, encode(asFailure(err)))
		return 1
	}
	debug.SetGCPercent(25)
	s.serve()
	return 0
}

// surviveSignals asks for every signal that would end a Go program, and drops
// it: as PID 1 of its slot the holder cannot be killed from inside, and its
// runtime must not do it instead. What it starts gets the defaults back.
func surviveSignals() {
	signal.Notify(make(chan os.Signal, 1),
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGILL, unix.SIGTRAP, unix.SIGABRT, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV,
		unix.SIGTERM, unix.SIGSTKFLT, unix.SIGXCPU, unix.SIGXFSZ, unix.SIGSYS, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU)
}

func start(c *blockingConn, planAt string) (*server, error) {
	// Same-uid processes of the slot must not read or trace the holder. Exec
	// has undone whatever was set before it.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, &stageError{"dumpable", err}
	}
	at, err := strconv.Atoi(planAt)
	if err != nil {
		return nil, &stageError{"plan", err}
	}
	text, err := detach(at)
	if err != nil {
		return nil, &stageError{"plan", err}
	}
	unix.Close(at)
	plan, err := decode[Plan](text)
	if err != nil {
		return nil, &stageError{"plan", err}
	}
	s := &server{
		plan: plan, conn: c, env: mergeEnv(nil, plan.Env),
		procs: map[int]*process{}, kept: map[uint64]*process{}, cancels: map[uint64]context.CancelFunc{}, inputs: map[uint64]chan bool{}, lends: map[uint64]chan int{},
		ops: make(chan struct{}, maxOps),
	}
	s.score = newOOMScore(plan.ScoreFile, &plan)
	if s.null, err = unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return nil, &stageError{"open /dev/null", err}
	}
	if s.tree, err = workspace.Open(plan.Workspace, workspaceAlias); err != nil {
		return nil, &stageError{"open workspace", err}
	}
	MakeThreads(plan.Threads)
	// Polling tells of a child's end; Go's handler would only interrupt it.
	if err := ignoreChildSignal(); err != nil {
		return nil, &stageError{"signals", err}
	}
	return s, c.send(kindReady, 0, encode(Facts{SetupNS: time.Now().UnixNano() - plan.Began, Threads: plan.Threads}))
}

// serve answers requests and reports ends until the connection ends, then
// takes every process of the slot along. One thread does all of it but the
// longer file operations: it sleeps in one poll, and whatever happens wakes
// it directly.
func (s *server) serve() {
	for s.wait() {
		s.collect()
		s.relay()
		if s.someEnded() {
			s.reap()
		}
		if s.events[0].Revents == 0 {
			continue
		}
		f, err := s.conn.receive()
		if errors.Is(err, errFrame) {
			continue // the agent's own mistake: it waits for an answer in vain and says so
		}
		if err != nil {
			break
		}
		s.dispatch(f)
	}
	s.sweepAll()
}

func (s *server) dispatch(f frame) {
	switch f.kind {
	case kindSpawn:
		s.spawn(f)
	case kindSweep:
		s.answerSweep(f) // here, on the thread that made the processes
	case kindMark:
		s.markUnder(f.id)
	case kindHold:
		s.hold(f)
	case kindOp:
		s.beginOp(f)
	case kindInput:
		s.mu.Lock()
		if end := s.inputs[f.id]; end != nil {
			answer, err := decode[inputEnd](f.body)
			select {
			case end <- err == nil && answer.Whole:
			default: // said twice
			}
		}
		s.mu.Unlock()
	case kindLend:
		s.lent(f)
	case kindCancel:
		s.mu.Lock()
		if cancel := s.cancels[f.id]; cancel != nil {
			cancel()
		}
		s.mu.Unlock()
	default:
		closeAll(f.files)
	}
}

// beginOp runs a file operation: at once, when it cannot take long, else
// beside everything else. The context is registered before the next request is
// read, so that a cancel that follows finds it.
func (s *server) beginOp(f frame) {
	request, err := decode[opRequest](f.body)
	if err != nil {
		closeAll(f.files)
		s.answerOp(f.id, opReply{Error: workspace.EncodeError(err)})
		return
	}
	if request.quick() {
		out := &opOutput{id: f.id}
		reply := s.runOp(context.Background(), request, bytes.NewReader(request.Inline), out)
		if !out.tooLong {
			s.answerOp(f.id, reply)
			return
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	whole := make(chan bool, 1)
	s.mu.Lock()
	s.cancels[f.id], s.inputs[f.id] = cancel, whole
	s.mu.Unlock()
	go func() {
		defer func() {
			s.mu.Lock()
			delete(s.cancels, f.id)
			delete(s.inputs, f.id)
			s.mu.Unlock()
			cancel()
		}()
		defer func() { closeAll(f.files) }() // those that are left then
		var in io.Reader = bytes.NewReader(request.Inline)
		if request.Piped && len(f.files) > 0 {
			pipe := os.NewFile(uintptr(f.files[0]), "op-input")
			f.files = f.files[1:]
			defer pipe.Close()
			in = &opInput{ctx: ctx, from: io.MultiReader(in, pipe), whole: whole}
		}
		s.ops <- struct{}{}
		out := &opOutput{ctx: ctx, server: s, id: f.id}
		reply := s.runOp(ctx, request, in, out)
		_ = out.Close() // the agent may have closed its end first
		<-s.ops
		s.answerOp(f.id, reply)
	}()
}

// quick reports whether the operation takes a few system calls on one file,
// unless its output turns out long.
func (r opRequest) quick() bool {
	switch r.Name {
	case "stat", "mkdir":
		return true
	case "write":
		return !r.Piped
	case "read":
		return !bytes.Contains(r.Args, []byte(`"sha256":true`))
	}
	return false
}

func (s *server) answerOp(id uint64, reply opReply) { s.conn.say(kindReply, id, encode(reply)) }

func (s *server) runOp(ctx context.Context, request opRequest, in io.Reader, out *opOutput) (reply opReply) {
	op := workspace.Ops()[request.Name]
	if op == nil {
		return opReply{Error: workspace.EncodeError(fmt.Errorf("unknown operation %q", request.Name))}
	}
	defer func() {
		if r := recover(); r != nil {
			reply = opReply{Error: workspace.EncodeError(fmt.Errorf("operation %s: %v", request.Name, r))}
		}
	}()
	answer, err := op(ctx, s.tree, request.Args, in, out)
	if err != nil {
		return opReply{Error: workspace.EncodeError(err)}
	}
	raw, err := json.Marshal(answer)
	if err != nil {
		return opReply{Error: workspace.EncodeError(fmt.Errorf("encode reply: %w", err))}
	}
	return opReply{Reply: raw, Output: out.short}
}
