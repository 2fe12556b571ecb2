package sandbox

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/slots"
	"berth/slots/holder"
)

// shellLoop is the program of the persistent shell: it evaluates commands
// that come on descriptor 3 and reports their statuses on descriptor 4.
//
//go:embed shell.bash
var shellLoop string

// shell is a bash that lives on between commands. Commands come one at a
// time: the slot's queue sees to it.
type shell struct {
	in       *instance
	process  *holder.Process
	commands *os.File
	statuses *bufio.Reader
	status   *os.File
	count    int

	ended chan struct{} // closed after exit and err are set
	exit  holder.Exit
	err   error
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
func (s *Sandbox) Shell(ctx context.Context, c ShellCommand) (slots.Exit, ShellState, error) {
	i, err := s.live(ctx)
	if err != nil {
		return slots.Exit{}, ShellState{}, err
	}
	var state ShellState
	sh := s.shellOf(i)
	if c.Restart && sh != nil {
		sh.kill(ctx)
		sh, state = nil, ShellState{Restarted: true, Note: "restarted as asked; nothing of the old shell is left"}
		s.setShell(nil)
	}
	if sh != nil && sh.hasEnded() {
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
	exit, err := sh.run(ctx, c)
	if err != nil {
		return slots.Exit{}, state, i.translate(err)
	}
	if sh.hasEnded() {
		state = ShellState{Restarted: true, Note: sh.lastWords()}
	}
	if i.oomed() {
		exit.OOMKilled = true
		if exit.Signal == "SIGKILL" || exit.Code == 137 {
			exit.Outcome = slots.OutcomeOOMKilled
		}
	}
	return exit, state, nil
}

func (s *Sandbox) shellOf(i *instance) *shell {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shell != nil && s.shell.in != i {
		s.shell = nil
	}
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
	theirCommands, commands, err := pipe()
	if err != nil {
		return nil, err
	}
	defer unix.Close(theirCommands)
	status, theirStatus, err := pipe()
	if err != nil {
		unix.Close(commands)
		return nil, err
	}
	defer unix.Close(theirStatus)
	words := []string{holder.ConfineSubreaper}
	argv := []string{"bash", "--norc", "--noprofile", "-c", shellLoop, "bash", i.plan.Run + "/shell-state"}
	if fresh {
		argv = append(argv, "fresh")
	}
	p, err := i.holder.Start(holder.Request{
		Argv: argv, Files: []int{-1, null, null, theirCommands, theirStatus}, Confine: words, Keep: true,
	})
	if err != nil {
		unix.Close(commands)
		unix.Close(status)
		return nil, err
	}
	unix.SetNonblock(commands, true) //nolint:errcheck // of our own pipe
	unix.SetNonblock(status, true)   //nolint:errcheck // of our own pipe
	sh := &shell{
		in: i, process: p, commands: os.NewFile(uintptr(commands), "shell-commands"),
		status: os.NewFile(uintptr(status), "shell-status"), ended: make(chan struct{}),
	}
	sh.statuses = bufio.NewReader(sh.status)
	go sh.wait()
	return sh, nil
}

// wait ends with the shell or with its holder.
func (sh *shell) wait() {
	sh.exit, sh.err = sh.process.Wait(context.Background())
	close(sh.ended)
	sh.commands.Close()
	sh.status.SetReadDeadline(time.Now().Add(patience)) //nolint:errcheck // what is still in the pipe may be read
}

func (sh *shell) hasEnded() bool {
	select {
	case <-sh.ended:
		return true
	default:
		return false
	}
}

func (sh *shell) lastWords() string {
	switch {
	case sh.err != nil:
		return "the shell ended with its holder; the next one starts empty"
	case sh.exit.Status.Signaled():
		return fmt.Sprintf("the shell was killed by %s; the next one starts empty", unix.SignalName(sh.exit.Status.Signal()))
	}
	return "the shell exited; the next one takes up its directory, variables and functions"
}

func (sh *shell) kill(ctx context.Context) {
	kill, cancel := context.WithTimeout(context.WithoutCancel(ctx), killDeadline)
	defer cancel()
	sh.process.SweepAlso(kill) //nolint:errcheck // a holder that has ended took it along
	select {
	case <-sh.ended:
	case <-kill.Done():
	}
}

// run has the shell evaluate one command.
func (sh *shell) run(ctx context.Context, c ShellCommand) (slots.Exit, error) {
	h := sh.in.holder
	sh.count++
	name := "shell-" + strconv.Itoa(sh.count)
	began := time.Now()
	if err := sh.process.Mark(); err != nil {
		return slots.Exit{}, err
	}
	pipes, err := h.OpenPipes(ctx, name)
	if err != nil {
		return slots.Exit{}, err
	}
	defer h.DropPipes(context.WithoutCancel(ctx), name) //nolint:errcheck // the next reset takes them
	streams := &streams{out: []*pump{startPump(pipes[0].Read, c.Stdout), startPump(pipes[1].Read, c.Stderr)}}
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
	line := strings.Join([]string{command, pipes[0].Path, pipes[1].Path, ""}, "\x00")
	if _, err := io.WriteString(sh.commands, line); err != nil && !sh.hasEnded() {
		return slots.Exit{}, fmt.Errorf("write to shell: %w", err)
	}
	exit := sh.await(ctx)
	exit.Duration = time.Since(began)
	release()
	streams.finish(drain)
	return exit, nil
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

type statusLine struct {
	code int
	err  error
}

// await waits for the command's status, or for the shell's end.
func (sh *shell) await(ctx context.Context) slots.Exit {
	lines := make(chan statusLine, 1)
	go func() { // ends with the command, or with the shell, whose end sets a deadline on the read
		text, err := sh.statuses.ReadString('\n')
		code, bad := strconv.Atoi(strings.TrimSpace(text))
		lines <- statusLine{code, errors.Join(err, bad)}
	}()
	select {
	case l := <-lines:
		return sh.ending(ctx, l)
	case <-ctx.Done():
	}
	kill, cancel := context.WithTimeout(context.WithoutCancel(ctx), killDeadline)
	defer cancel()
	sh.process.SweepUnder(kill) //nolint:errcheck // a holder that has ended took them along
	select {
	case l := <-lines:
		return sh.ending(ctx, l)
	case <-time.After(patience):
	}
	sh.kill(ctx) // it is busy by itself
	return sh.ending(ctx, <-lines)
}

// ending makes the Exit of a command that the shell reported, or that ended
// the shell.
func (sh *shell) ending(ctx context.Context, l statusLine) slots.Exit {
	x := holder.Exit{Status: unix.WaitStatus(l.code << 8)}
	if l.err != nil {
		<-sh.ended
		x = sh.exit
	}
	return outcome(ctx, x)
}
