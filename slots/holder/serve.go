package holder

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/slots/workspace"
)

// socketFD is where a holder and the spawner find their socket.
const socketFD = 3

// rulesFD is where a holder finds the spawner's port ruleset, if there is one.
const rulesFD = 4

// server is the child half: one process, serving one agent until the
// connection ends.
type server struct {
	plan Plan
	conn *blockingConn
	null int // /dev/null, for processes without input
	tree *workspace.Tree
	env  []string
	path pathCache

	mu      sync.Mutex          // guards what follows; never held across a fork, a wait or a send
	procs   map[int]*process    // our direct children, by pid
	kept    map[uint64]*process // spared by sweeps, by request id
	early   map[int]ending      // ended while the fork that made them had not returned
	forking bool                // such a fork is under way
	gone    int                 // children reaped so far
	changed chan struct{}       // closed and replaced whenever a child has been reaped
	cancels map[uint64]context.CancelFunc

	spawned chan struct{} // tells the reaper that there is a child to wait for
	ops     chan struct{} // a place for each file operation at work
}

// process is one direct child.
type process struct {
	id      uint64
	pid     int
	keep    bool
	started time.Time
	spawn   time.Duration
	mark    map[int]uint64 // descendants at the last mark, with their start times
}

// Main is the holder: it confines itself as its first message says, then
// serves until the agent lets go of the socket. It returns the exit status.
func Main() int {
	// One thread runs Go code at a time, and the collector keeps the heap
	// close to what is in use: holders are many.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(25)
	unix.CloseOnExec(socketFD)
	unix.CloseOnExec(rulesFD) // fails harmlessly where there is none
	c := newBlockingConn(socketFD)
	s, err := start(c)
	if err != nil {
		c.send(kindFailed, 0, encode(asFailure(err)))
		return 1
	}
	s.serve()
	return 0
}

func start(c *blockingConn) (*server, error) {
	f, err := c.receive()
	if err != nil {
		return nil, &stageError{"plan", err}
	}
	closeAll(f.files)
	if f.kind != kindPlan {
		return nil, &stageError{"plan", fmt.Errorf("%w: kind %d came first", errFrame, f.kind)}
	}
	plan, err := decode[Plan](f.body)
	if err != nil {
		return nil, &stageError{"plan", err}
	}
	began := time.Now()
	if err := setUp(&plan); err != nil {
		return nil, err
	}
	s := &server{
		plan: plan, conn: c, env: plan.Env,
		procs: map[int]*process{}, kept: map[uint64]*process{}, cancels: map[uint64]context.CancelFunc{},
		changed: make(chan struct{}), spawned: make(chan struct{}, 1), ops: make(chan struct{}, 8),
	}
	if s.null, err = unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return nil, &stageError{"open /dev/null", err}
	}
	if s.tree, err = workspace.Open(plan.Workspace, "/workspace"); err != nil {
		return nil, &stageError{"open workspace", err}
	}
	go s.reap() // ends with the process: it holds nothing that outlives it
	debug.FreeOSMemory()
	return s, c.send(kindReady, 0, encode(Facts{SetupNS: int64(time.Since(began)), Threads: plan.Threads}))
}

// serve answers requests until the connection ends, then takes every process
// of the slot along.
func (s *server) serve() {
	for {
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
		go s.answerSweep(f) // waits for processes to end; spawns go on
	case kindMark:
		s.markUnder(f.id)
	case kindHold:
		s.hold(f)
	case kindOp:
		s.beginOp(f)
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

// beginOp runs a file operation beside everything else. The context is
// registered before the next request is read, so that a cancel that follows
// finds it.
func (s *server) beginOp(f frame) {
	ctx, cancel := context.WithCancel(context.Background())
	s.mu.Lock()
	s.cancels[f.id] = cancel
	s.mu.Unlock()
	go func() {
		defer func() {
			s.mu.Lock()
			delete(s.cancels, f.id)
			s.mu.Unlock()
			cancel()
		}()
		s.ops <- struct{}{}
		reply := s.runOp(ctx, f)
		<-s.ops
		s.conn.send(kindReply, f.id, encode(reply))
	}()
}

func (s *server) runOp(ctx context.Context, f frame) (reply opReply) {
	defer closeAll(f.files)
	request, err := decode[opRequest](f.body)
	if err != nil {
		return opReply{Error: workspace.EncodeError(err)}
	}
	op := workspace.Ops()[request.Name]
	if op == nil {
		return opReply{Error: workspace.EncodeError(fmt.Errorf("unknown operation %q", request.Name))}
	}
	defer func() {
		if r := recover(); r != nil {
			reply = opReply{Error: workspace.EncodeError(fmt.Errorf("operation %s: %v", request.Name, r))}
		}
	}()
	var in io.Reader = bytes.NewReader(request.Inline)
	if request.Piped && len(f.files) > 0 {
		pipe := os.NewFile(uintptr(f.files[0]), "op-input")
		f.files = nil
		defer pipe.Close()
		in = io.MultiReader(in, pipe)
	}
	out := &opOutput{server: s, id: f.id}
	defer out.Close()
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
