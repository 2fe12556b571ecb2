package sandbox

import (
	"bufio"
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"berth/slots"
	"berth/slots/holder"
)

// shellStart makes a bash that reads descriptor 0 the persistent shell, which
// takes commands there and reports their statuses on descriptor 4.
//
//go:embed shell.bash
var shellStart string

// What bash reads on descriptor 0: once, and before the words of each command.
const (
	shellBegin = `eval "$1"` + "\n"
	shellNext  = `\builtin eval "$__berth_step"` + "\n"
)

// shellState is where a shell that exits leaves its state for the next one.
const shellState = "shell-state"

// shell is a bash that lives on between commands. Commands come one at a
// time: the slot's queue sees to it.
type shell struct {
	*kept
	commands *os.File
	statuses chan int // one for each command; closed when no more will come
	status   *os.File
	count    int
}

// patience is how long the shell may take to come back after what it was
// waiting for has been killed.
const patience = 500 * time.Millisecond

// maxTyped is the longest command that is written to the shell's pipe, which
// bash reads byte by byte; a longer one comes in a file.
const maxTyped = 4 << 10

// Shell runs a command in the slot's persistent shell: directory, variables,
// functions and background jobs are there for the next one. The end of ctx
// kills what the command has started, and the shell itself if it does not
// come back. A command that ends the shell gets a new one for the next, with
// the directory, variables and functions of the old where it could still say
// them.
func (s *Sandbox) Shell(ctx context.Context, c ShellCommand) (exit slots.Exit, state ShellState, err error) {
	if err := wanted(ctx); err != nil {
		return slots.Exit{}, ShellState{}, err
	}
	i, err := s.live(ctx)
	if err != nil {
		return slots.Exit{}, ShellState{}, err
	}
	sh := s.lastShell()
	if c.Restart && sh != nil {
		sh.kill(ctx)
		sh, state = nil, ShellState{Restarted: true, Note: "restarted as asked; nothing of the old shell is left"}
		s.setShell(nil)
	}
	if sh != nil && (sh.in != i || sh.hasEnded()) {
		<-sh.ended // at the latest with its holder
		state = ShellState{Restarted: true, Note: sh.lastWords()}
		sh = nil
	}
	if sh == nil {
		if sh, err = i.startShell(c.Restart); err != nil {
			return slots.Exit{}, state, i.translate(err)
		}
		s.setShell(sh)
	}
	if c.Command == "" {
		return slots.Exit{Outcome: slots.OutcomeExited}, state, nil
	}
	ctx, stop := i.watchDisk(ctx, aCommand)
	defer func() { tellDisk(&exit, stop()) }()
	kills := i.oomKills()
	exit, err = sh.run(ctx, c)
	if e, own := i.diedWithHolder(ctx, err, kills); own {
		exit, err = e, nil
		<-sh.ended // with its holder
	}
	if err != nil {
		return slots.Exit{}, state, i.translate(err)
	}
	if sh.hasEnded() {
		state = ShellState{Restarted: true, Note: sh.lastWords()}
	}
	return i.withLimits(exit, i.oomKills() > kills), state, nil
}

func (s *Sandbox) lastShell() *shell {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shell
}

func (s *Sandbox) setShell(sh *shell) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shell = sh
}

// startShell starts bash on the loop. fresh forgets what an earlier shell may
// have left to be taken up.
func (i *instance) startShell(fresh bool) (*shell, error) {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(null)
	theirCommands, commands, err := i.pipe()
	if err != nil {
		return nil, err
	}
	defer unix.Close(theirCommands)
	status, theirStatus, err := i.pipe()
	if err != nil {
		unix.Close(commands)
		return nil, err
	}
	defer unix.Close(theirStatus)
	argv := []string{"bash", "--norc", "--noprofile", "-s", shellStart, i.plan.Run + "/" + shellState}
	if fresh {
		argv = append(argv, "fresh")
	}
	k, err := i.keep(holder.Request{Argv: argv, Files: []int{theirCommands, null, null, null, theirStatus}})
	if err != nil {
		unix.Close(commands)
		unix.Close(status)
		return nil, err
	}
	sh := &shell{
		kept: k, commands: polled(commands, "shell-commands"),
		status: polled(status, "shell-status"), statuses: make(chan int, 1),
	}
	go sh.wait(func() {
		sh.commands.Close()
		sh.status.SetReadDeadline(time.Now().Add(patience)) //nolint:errcheck // what is still in the pipe may be read
	})
	go sh.listen()
	// The pipe holds it; of an end that comes first the first command is told.
	_, _ = io.WriteString(sh.commands, shellBegin)
	return sh, nil
}

// maxStatus bounds a line of the shell's: whatever runs as the slot can get
// at the pipe and write anything.
const maxStatus = 16

// noStatus stands for a line that is none.
const noStatus = -1

// listen ends with the shell, whose end sets a deadline on the read, or with
// the first line that is no status.
func (sh *shell) listen() {
	defer close(sh.statuses)
	defer sh.status.Close()
	lines := bufio.NewReaderSize(sh.status, maxStatus)
	for {
		text, err := lines.ReadSlice('\n')
		if err != nil && len(text) == 0 {
			return
		}
		code, bad := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || bad != nil || code&^0xff != 0 {
			code = noStatus
		}
		select {
		case sh.statuses <- code:
		case <-sh.ended: // nobody may be waiting any more, but the last command still may
			select {
			case sh.statuses <- code:
			default:
			}
		}
		if code == noStatus {
			return
		}
	}
}

func (sh *shell) lastWords() string {
	switch {
	case sh.err != nil:
		return "the shell ended with its holder; the next one starts empty"
	case sh.exit.Status.Signaled():
		return fmt.Sprintf("the shell was killed by %s; the next one starts empty", signalName(sh.exit.Status.Signal()))
	}
	// A hint only: whoever can write there is the slot itself.
	if _, err := os.Lstat(sh.in.dir("run", shellState)); err != nil {
		return "the shell exited and left nothing; the next one starts empty"
	}
	return "the shell exited; the next one takes up its directory, variables and functions"
}

// run has the shell evaluate one command.
func (sh *shell) run(ctx context.Context, c ShellCommand) (slots.Exit, error) {
	h := sh.in.holder
	sh.count++
	began := time.Now()
	// Unlike any name that an earlier shell, or holder, has left behind.
	name := fmt.Sprintf("shell-%d-%d", began.UnixNano(), sh.count)
	if err := sh.process.Mark(); err != nil {
		return slots.Exit{}, err
	}
	pipes, err := h.OpenPipes(ctx, name)
	if err != nil {
		return slots.Exit{}, err
	}
	defer sh.drop(ctx, name)
	var quiet quietness
	streams := &streams{out: []*pump{startPump(pipes[0].Read, quiet.watch(c.Stdout)), startPump(pipes[1].Read, quiet.watch(c.Stderr))}}
	defer streams.end()
	release := func() {
		for n := range pipes {
			if pipes[n].Write >= 0 {
				unix.Close(pipes[n].Write)
				pipes[n].Write = -1
			}
		}
	}
	defer release()
	command, err := sh.command(ctx, c.Command, name)
	if err != nil {
		return slots.Exit{}, err
	}
	select {
	case <-sh.statuses: // of nothing that was asked
	default:
	}
	line := shellNext + strings.Join([]string{command, pipes[0].Path, pipes[1].Path, ""}, "\x00")
	if _, err := io.WriteString(sh.commands, line); err != nil {
		select {
		case <-sh.ended: // its pipe breaks a moment before its end is known
		case <-time.After(killDeadline):
			return slots.Exit{}, fmt.Errorf("write to shell: %w", err)
		}
	}
	exit, err := sh.await(ctx)
	if err != nil {
		return slots.Exit{}, err
	}
	exit.Duration = time.Since(began)
	release()
	if pipes[0].Copied {
		sh.drop(ctx, name) // all that was written is ours then
	}
	quiet.finish(streams)
	return exit, nil
}

// drop removes the pipes' names.
func (sh *shell) drop(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killDeadline)
	defer cancel()
	sh.in.holder.DropPipes(ctx, name) //nolint:errcheck // the next reset takes them
}

// quietness tells when the pipes of a command have nothing more to give
// although a background job holds them open.
type quietness struct{ written atomic.Int64 }

// watch counts what goes to w.
func (q *quietness) watch(w io.Writer) io.Writer { return &watched{q, w} }

type watched struct {
	q *quietness
	w io.Writer
}

// Write counts before it passes on, so that what is on its way is seen.
func (w *watched) Write(p []byte) (int, error) {
	w.q.written.Add(int64(len(p)))
	if w.w == nil {
		return len(p), nil
	}
	return w.w.Write(p)
}

const (
	quietAfter = 15 * time.Millisecond
	quietLook  = 3 * time.Millisecond
)

// finish waits for the pipes' end, or until they have been empty and quiet
// for quietAfter, or drain has passed.
func (q *quietness) finish(s *streams) {
	began := time.Now()
	since, seen := began, q.written.Load()
	for time.Since(began) < drain {
		if s.finish(quietLook) {
			return
		}
		if now := q.written.Load(); now != seen || !s.empty() {
			since, seen = time.Now(), now
		}
		if time.Since(since) >= quietAfter {
			return
		}
	}
}

// empty reports whether nothing waits in the pipes.
func (s *streams) empty() bool {
	for _, p := range s.out {
		raw, err := p.file.SyscallConn()
		if err != nil {
			continue
		}
		waiting := 0
		p.mu.Lock()
		err = raw.Control(func(fd uintptr) { waiting, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
		p.mu.Unlock()
		if err == nil && waiting > 0 { // an error: it has been read to its end
			return false
		}
	}
	return true
}

// command is what the shell evaluates: the text itself, or the reading of a
// file that holds it.
func (sh *shell) command(ctx context.Context, text, name string) (string, error) {
	if len(text) <= maxTyped {
		return text, nil
	}
	f, path, err := sh.in.holder.OpenFile(ctx, fmt.Sprintf("%s-%d", name, time.Now().UnixNano()))
	if err != nil {
		return "", err
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		return "", fmt.Errorf("write command file: %w", err)
	}
	return fmt.Sprintf(`{ __berth_text=$(<'%s'); command rm -f '%s'; eval "$__berth_text"; }`, path, path), nil
}

// await waits for the command's status, or for the shell's end.
func (sh *shell) await(ctx context.Context) (slots.Exit, error) {
	select {
	case code, ok := <-sh.statuses:
		if ok {
			return sh.ending(ctx, code)
		}
	case <-ctx.Done():
	}
	select { // a shell that has become another program by exec says nothing any more
	case <-sh.ended:
		return sh.ending(ctx, noStatus)
	case <-ctx.Done():
	}
	kill, cancel := context.WithTimeout(context.WithoutCancel(ctx), killDeadline)
	defer cancel()
	sh.in.holder.Continue()     // its own slot may have stopped it
	sh.process.SweepUnder(kill) //nolint:errcheck // a holder that has ended took them along
	select {
	case code, ok := <-sh.statuses:
		if ok {
			return sh.ending(ctx, code)
		}
	case <-time.After(patience):
	}
	return sh.ending(ctx, noStatus) // it is busy by itself
}

// ending makes the Exit of a command that the shell reported, or that ended
// the shell. A shell that says nothing to be understood is ended.
func (sh *shell) ending(ctx context.Context, code int) (slots.Exit, error) {
	if code != noStatus {
		return outcome(ctx, holder.Exit{Status: unix.WaitStatus(code << 8)}), nil
	}
	sh.kill(ctx)
	<-sh.ended
	return outcome(ctx, sh.exit), sh.err
}
