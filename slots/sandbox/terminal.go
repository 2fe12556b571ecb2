package sandbox

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"berth/slots"
	"berth/slots/holder"
)

// TerminalCommand is a process that gets a terminal.
type TerminalCommand struct {
	Argv []string // as a Command's
	Env  []string
	Cwd  string

	Columns, Rows uint16 // of its window; 0 for both: nobody knows
}

// Terminal is a process on a terminal: bytes that are read are shown, those
// that are written were typed. Read is called by one goroutine, the others by
// any; Read ends with io.EOF when the process has ended and all was read.
type Terminal interface {
	io.ReadWriteCloser
	// Resize tells the process another size of its window.
	Resize(columns, rows uint16) error
	// Wait waits for the end of the process and of all that it has started.
	// Close, and the end of the context that the terminal was made with, end
	// them. Errors are *slots.Error.
	Wait() (slots.Exit, error)
}

// hangUp is how long what runs on a terminal has to end when the terminal is
// gone, for example to save what was typed.
const hangUp = 300 * time.Millisecond

// lingering is how long the process that looks after a terminal may take to end
// when nothing of the terminal's is left. When it is killed, what has left the
// terminal's session by then may stay for as long as a command is at work.
const lingering = 2 * time.Second

// Terminal runs a process on a terminal of its own, beside the commands of the
// slot, and returns when it runs. The end of ctx takes the terminal away and
// kills everything that was started on it. Errors are *slots.Error.
func (s *Sandbox) Terminal(ctx context.Context, c TerminalCommand) (Terminal, error) {
	if err := wanted(ctx); err != nil {
		return nil, err
	}
	i, err := s.live(ctx)
	if err != nil {
		return nil, err
	}
	ctx, stop := i.watchDisk(ctx, aTerminal)
	kills := i.terminalKills()
	t, err := i.startTerminal(ctx, c)
	if _, typed := errors.AsType[*slots.Error](err); err != nil && !typed {
		err = i.translate(err)
	}
	if err != nil {
		stop()
		return nil, err
	}
	t.kills = kills
	ctx, t.hang = context.WithCancelCause(ctx)
	go func() { // ends with the process, or with ctx
		defer close(t.done) // who hears of the end is not held to what it wrote
		defer stop()
		defer t.hang(nil)
		t.follow(ctx)
	}()
	return t, nil
}

// terminal is a Terminal. Its process is kept, and stays until all that
// descends from it has ended: so a sweep for another command spares them, and
// they can be told from what that one has started.
type terminal struct {
	*kept
	master *os.File
	status *os.File // where the process reports
	began  time.Time
	hang   context.CancelCauseFunc

	kills   int64 // of terminals, when it began
	session int   // the slot's number of it, which nobody else believes; -1: not known

	over atomic.Bool   // nothing writes to the terminal any more
	done chan struct{} // closed after end and fault are set

	end   slots.Exit
	fault error
}

// errClosed ends a terminal whose user has closed it.
var errClosed = errors.New("terminal was closed")

// newTerminal makes one that nobody but the slot can open.
func (i *instance) newTerminal(ctx context.Context) (holder.Terminal, error) {
	var made holder.Terminal
	err := errors.New("no /dev/pts of its own")
	if i.plan.View != nil {
		made, err = i.holder.NewTerminal(ctx)
	}
	if _, refused := errors.AsType[*holder.StageError](err); refused || err != nil && i.plan.View == nil {
		// Where the slot has none, the container's does: only its name is
		// another's then.
		made, err = holder.NewTerminal()
	}
	if err != nil || !i.how.ids {
		return made, err
	}
	if err := unix.Fchown(made.Slave, i.uid, i.uid); err != nil {
		closeOpen([]int{made.Master, made.Slave})
		return holder.Terminal{}, fmt.Errorf("give terminal to its slot: %w", err)
	}
	return made, nil
}

// startTerminal starts the process and waits until it runs.
func (i *instance) startTerminal(ctx context.Context, c TerminalCommand) (*terminal, error) {
	made, err := i.newTerminal(ctx)
	if err != nil {
		return nil, err
	}
	defer unix.Close(made.Slave)
	t := &terminal{master: os.NewFile(uintptr(made.Master), "terminal"), began: time.Now(), done: make(chan struct{}), session: -1}
	if err := t.Resize(c.Columns, c.Rows); err != nil {
		t.master.Close()
		return nil, err
	}
	status, theirStatus, err := i.pipe()
	if err != nil {
		t.master.Close()
		return nil, err
	}
	defer unix.Close(theirStatus)
	t.status = polled(status, "terminal-status")
	p, err := i.holder.Start(holder.Request{
		Argv: c.Argv, Env: c.Env, Cwd: c.Cwd, Keep: true, Confine: []string{holder.ConfineTerminal},
		Files: []int{made.Slave, made.Slave, made.Slave, theirStatus},
	})
	if err != nil {
		t.master.Close()
		t.status.Close()
		return nil, err
	}
	t.kept = &kept{in: i, process: p, ended: make(chan struct{})}
	go t.wait(func() { //nolint:contextcheck // the slot's end ends it
		t.status.SetReadDeadline(time.Now().Add(patience)) //nolint:errcheck // what is still in the pipe may be read
	})
	if err := t.running(ctx); err != nil {
		t.killKeeper(ctx)
		t.status.Close()
		t.master.Close()
		return nil, err
	}
	return t, nil
}

// running waits for the word that the process runs.
func (t *terminal) running(ctx context.Context) error {
	var session [4]byte
	if t.report(ctx, session[:]) {
		if n := int(binary.LittleEndian.Uint32(session[:])); n > 0 {
			t.session = n
		}
		return nil
	}
	if ctx.Err() != nil {
		return slots.Errorf(slots.KindInterrupted, "cancelled while it started: %w", context.Cause(ctx))
	}
	select {
	case <-t.ended:
	case <-time.After(killDeadline):
		return errors.New("terminal does not start")
	}
	if t.err != nil {
		return t.err
	}
	// The trampoline has said on the terminal why.
	t.master.SetReadDeadline(time.Now().Add(patience)) //nolint:errcheck // a terminal has deadlines
	var text [512]byte
	n, _ := t.master.Read(text[:])
	return slots.Errorf(slots.KindBadRequest, "start terminal: %s", strings.TrimSpace(string(text[:max(n, 0)]))).WithExecuted(slots.ExecutedNever)
}

// report reads what the process reports; false when nothing more comes.
func (t *terminal) report(ctx context.Context, p []byte) bool {
	stop := context.AfterFunc(ctx, func() {
		t.status.SetReadDeadline(time.Unix(1, 0)) //nolint:errcheck // of our own pipe
	})
	defer stop()
	_, err := io.ReadFull(t.status, p)
	return err == nil
}

// follow waits for the end of the process, or brings it about.
func (t *terminal) follow(ctx context.Context) {
	defer t.status.Close()
	var b [4]byte
	reported := t.report(ctx, b[:])
	x := holder.Exit{Run: time.Since(t.began)}
	if !reported && ctx.Err() != nil {
		t.master.Close() // who has the terminal hears of it
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangUp)
		t.status.SetReadDeadline(time.Time{}) //nolint:errcheck // of our own pipe
		if !t.hasEnded() {
			t.report(late, b[:])
		}
		cancel()
	}
	t.killAll(ctx)
	x.Status = unix.WaitStatus(binary.LittleEndian.Uint32(b[:]))
	ended := t.hasEnded()
	if ended {
		x.CPU, x.MaxRSS = t.exit.CPU, t.exit.MaxRSS
	}
	if !reported {
		x.Status = unix.WaitStatus(unix.SIGKILL)
	}
	// In this order: Read sets a deadline of its own once it is over.
	t.master.SetReadDeadline(time.Unix(1, 0)) //nolint:errcheck // it may be closed
	t.over.Store(true)
	if reported {
		ctx = context.WithoutCancel(ctx) // it has ended by itself
	}
	t.end = outcome(ctx, x)
	t.end = t.in.withLimits(t.end, t.in.terminalKills() > t.kills)
	if !reported && ended && t.err != nil && ctx.Err() == nil {
		t.fault = t.in.translate(t.err)
	}
}

// killAll kills what was started on the terminal, and ends the process that
// looks after it.
func (t *terminal) killAll(ctx context.Context) {
	kill, cancel := context.WithTimeout(context.WithoutCancel(ctx), killDeadline)
	defer cancel()
	if !t.hasEnded() {
		t.in.holder.Continue()     // its own slot may have stopped it
		t.process.SweepUnder(kill) //nolint:errcheck // a holder that has ended took them along
		select {
		case <-t.ended:
		case <-time.After(lingering):
			t.killKeeper(kill)
		}
	}
	if t.hasEnded() && t.err == nil && t.exit.Status != 0 && !t.exit.Alone {
		t.process.SweepTerminal(kill, t.session) //nolint:errcheck // it was killed, and what it had is nobody's now
	}
}

// killKeeper kills the process that looks after the terminal with what it has.
func (t *terminal) killKeeper(ctx context.Context) {
	t.killBy(ctx, func(kill context.Context) {
		t.process.SweepTerminal(kill, t.session) //nolint:errcheck // a holder that has ended took them along
	})
}

// Read reads what is shown.
func (t *terminal) Read(p []byte) (int, error) {
	for {
		over := t.over.Load()
		if over {
			// Something that cannot be killed may hold the terminal.
			t.master.SetReadDeadline(time.Now().Add(drain)) //nolint:errcheck // Read says what is wrong with it
		}
		n, err := t.master.Read(p)
		switch {
		case n > 0:
			return n, nil
		case errors.Is(err, os.ErrDeadlineExceeded) && !over:
		default: // EIO is what the kernel says when nobody has the terminal any more
			<-t.done
			return 0, io.EOF
		}
	}
}

// Write types.
func (t *terminal) Write(p []byte) (int, error) {
	n, err := 0, io.ErrClosedPipe
	if !t.over.Load() { // the kernel would take it all the same
		n, err = t.master.Write(p)
	}
	if err != nil {
		return n, slots.Errorf(slots.KindInterrupted, "terminal is gone: %w", err)
	}
	return n, nil
}

// Resize tells the process another size of its window.
func (t *terminal) Resize(columns, rows uint16) error {
	raw, err := t.master.SyscallConn()
	if err == nil {
		failed := raw.Control(func(fd uintptr) {
			err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows})
		})
		err = errors.Join(err, failed)
	}
	if err != nil {
		return slots.Errorf(slots.KindInterrupted, "resize terminal: %w", err)
	}
	return nil
}

// Wait waits for the end.
func (t *terminal) Wait() (slots.Exit, error) {
	<-t.done
	return t.end, t.fault
}

// Close ends everything and waits for that.
func (t *terminal) Close() error {
	t.hang(errClosed)
	<-t.done
	t.master.Close()
	return nil
}
