package holder

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// startDeadline bounds how long a spawner or a holder may take to set up. On a
// machine that is overloaded that takes seconds, and a slot whose holder is
// given up is quarantined.
const startDeadline = 30 * time.Second

// ErrGone is the end of a spawner or holder that nobody asked for.
var ErrGone = errors.New("process ended")

// StageError is a step of a holder's start that the machine refused.
type StageError struct {
	Stage string // such as "clone", "root", "seccomp"
	Errno int    // 0 when the failure was no system call's
	Text  string
}

// Error names the stage and the cause.
func (e *StageError) Error() string { return e.Stage + ": " + e.Text }

func refusal(body []byte) error {
	f, err := decode[failure](body)
	if err != nil {
		return err
	}
	return &StageError{Stage: f.Stage, Errno: f.Errno, Text: f.Text}
}

// Spawner is the agent's half of the spawner process.
type Spawner struct {
	conn *polledConn
	cmd  *exec.Cmd
	done chan struct{} // closed when the connection has ended

	mu      sync.Mutex // guards what follows; nothing is awaited under it
	next    uint64
	waiting map[uint64]chan frame
	gone    map[uint64]*ending
}

// SpawnerConfig says how to start a spawner.
type SpawnerConfig struct {
	// Exe is the agent's binary; the spawner and all holders are it.
	Exe string
	// HidePort, when not 0, is the TCP port that no slot may connect to or
	// serve on. It needs Landlock with network rules.
	HidePort int
	// Stderr takes what a crashing process prints; nil discards it.
	Stderr *os.File
}

// StartSpawner starts the spawner and waits until it is ready.
func StartSpawner(ctx context.Context, c SpawnerConfig) (*Spawner, error) {
	conn, theirs, err := socketpair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	// Its life is bound to the connection, not to a context: it must outlast
	// the agent's own shutdown to clean up after it.
	cmd := exec.Command(c.Exe, "spawner") //nolint:noctx // see above
	cmd.Env = []string{}
	cmd.Stderr = os.Stderr
	if c.Stderr != nil {
		cmd.Stderr = c.Stderr
	}
	cmd.ExtraFiles = []*os.File{theirs}
	// What a terminal sends to the agent's group is for the agent to act on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("start spawner: %w", err)
	}
	s := &Spawner{conn: conn, cmd: cmd, done: make(chan struct{}), waiting: map[uint64]chan frame{}, gone: map[uint64]*ending{}}
	ready := s.expect(0)
	go s.read()
	err = conn.send(kindPlan, 0, encode(spawnerSetup{HidePort: c.HidePort}))
	if err == nil {
		_, err = s.await(ctx, 0, ready)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start spawner: %w", err), s.Close())
	}
	return s, nil
}

// Done is closed when the spawner has ended.
func (s *Spawner) Done() <-chan struct{} { return s.done }

// PID is the spawner's process id.
func (s *Spawner) PID() int { return s.cmd.Process.Pid }

// Close lets go of the spawner, which ends all holders, and waits for it.
func (s *Spawner) Close() error {
	s.conn.Close()
	timer := time.AfterFunc(startDeadline, func() { _ = s.cmd.Process.Kill() })
	defer timer.Stop()
	err := s.cmd.Wait()
	<-s.done
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() && exit.ExitCode() == 1 {
		return nil // it failed to set up, and has said so
	}
	if err != nil {
		return fmt.Errorf("end spawner: %w", err)
	}
	return nil
}

func (s *Spawner) expect(id uint64) chan frame {
	ch := make(chan frame, 1)
	s.mu.Lock()
	s.waiting[id] = ch
	s.mu.Unlock()
	return ch
}

func (s *Spawner) await(ctx context.Context, id uint64, answer chan frame) (frame, error) {
	defer s.forget(id, answer)
	timeout := time.NewTimer(startDeadline)
	defer timeout.Stop()
	select {
	case f := <-answer:
		if f.kind == kindReady || f.kind == kindSwept {
			return f, nil
		}
		return frame{}, refusal(f.body)
	case <-s.done:
		return frame{}, fmt.Errorf("spawner: %w", ErrGone)
	case <-ctx.Done():
		return frame{}, context.Cause(ctx)
	case <-timeout.C:
		return frame{}, fmt.Errorf("spawner did not answer within %v", startDeadline)
	}
}

// forget stops waiting and closes what has come too late.
func (s *Spawner) forget(id uint64, answer chan frame) {
	s.mu.Lock()
	delete(s.waiting, id)
	s.mu.Unlock()
	select {
	case f := <-answer:
		closeAll(f.files)
	default:
	}
}

func (s *Spawner) read() {
	defer close(s.done)
	for {
		f, err := s.conn.receive()
		if err != nil {
			s.mu.Lock()
			for _, end := range s.gone {
				close(end.gone)
			}
			clear(s.gone)
			s.mu.Unlock()
			return
		}
		s.mu.Lock()
		if f.kind == kindGone {
			if end := s.gone[f.id]; end != nil {
				status, _ := strconv.Atoi(string(f.body))
				end.status = unix.WaitStatus(status) //nolint:gosec // as wait4 gives it
				close(end.gone)
				delete(s.gone, f.id)
			}
		} else if answer := s.waiting[f.id]; answer != nil {
			delete(s.waiting, f.id) // one answer per request: there is room for it
			answer <- f
			f.files = nil
		}
		s.mu.Unlock()
		closeAll(f.files)
	}
}

// Spawn clones a holder and waits until it has confined itself as the plan
// says. before, when not nil, runs between the two, with the holder's pid:
// the moment to put it into cgroups. Errors are *StageError where the machine
// refused a step.
func (s *Spawner) Spawn(ctx context.Context, p Plan, before func(pid int) error) (*Holder, error) {
	conn, theirs, err := socketpair()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.next++
	id := s.next
	end := &ending{gone: make(chan struct{})}
	s.gone[id] = end
	s.mu.Unlock()
	answer := s.expect(id)
	err = s.conn.send(kindSpawn, id, encode(order{Dir: p.Dir, Namespaces: p.Namespaces, IDs: p.IDs, Files: p.Landlock != nil && p.Landlock.Files}), int(theirs.Fd()))
	theirs.Close()
	var f frame
	if err == nil {
		f, err = s.await(ctx, id, answer)
	}
	if err != nil {
		s.forget(id, answer)
		s.mu.Lock()
		delete(s.gone, id) // nobody will ask; a holder that was made sees its connection end
		s.mu.Unlock()
		conn.Close()
		return nil, fmt.Errorf("clone holder: %w", err)
	}
	pid, err := strconv.Atoi(string(f.body))
	if err != nil || len(f.files) != 1 {
		closeAll(f.files)
		conn.Close()
		return nil, fmt.Errorf("clone holder: %w", errFrame)
	}
	h := newHolder(conn, pid, f.files[0], end.gone)
	h.end, h.stoppable = end, !p.Namespaces.PID
	if before != nil {
		err = before(pid)
	}
	if err == nil {
		err = h.begin(ctx, &p)
	}
	if err != nil {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), startDeadline)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("set up holder: %w", err), h.Close(last))
	}
	return h, nil
}

// Sweep kills what outlived its holder, and, with a uid above 0, whatever runs
// as that uid. It returns how many processes are left.
func (s *Spawner) Sweep(ctx context.Context, uid int) (left int, err error) {
	s.mu.Lock()
	s.next++
	id := s.next
	s.mu.Unlock()
	answer := s.expect(id)
	err = s.conn.send(kindSweep, id, encode(sweepRequest{UID: uid}))
	var f frame
	if err == nil {
		f, err = s.await(ctx, id, answer)
	}
	if err != nil {
		return 0, fmt.Errorf("sweep: %w", err)
	}
	report, err := decode[sweepReport](f.body)
	return report.Left, err
}

// kill sends SIGKILL through a pidfd, which names one process for ever.
func kill(pidfd int) error { return unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0) }
