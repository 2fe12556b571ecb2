package sandbox

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/slots/holder"
)

// agentThreads are made ahead: see HardenAgent.
const agentThreads = 24

// HardenAgent prepares the agent's own process, before anything else: other
// processes of its uid may not read or trace it, it leaves no core, it
// collects what its children leave, and its threads are made now, so that a
// container whose pids a slot has used up cannot end it: Go's runtime crashes
// when it cannot make a thread.
func HardenAgent() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hide agent: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	// Not 0: that leaves a host's piped handler to run. 1 forbids both.
	if err := syscall.Setrlimit(unix.RLIMIT_CORE, &syscall.Rlimit{Cur: 1, Max: 1}); err != nil {
		return fmt.Errorf("forbid cores: %w", err)
	}
	holder.SealDescriptors()
	holder.MakeThreads(agentThreads)
	return nil
}

// ReapStrays waits for ended processes that nobody asked for, until ctx ends:
// as PID 1, or as the nearest subreaper, the agent inherits them.
func (h *Host) ReapStrays(ctx context.Context) {
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	defer signal.Stop(children)
	for {
		h.reapOnce()
		select {
		case <-children:
		case <-ctx.Done():
			return
		}
	}
}

func (h *Host) reapOnce() {
	h.mu.Lock()
	own := h.spawner.PID()
	h.mu.Unlock()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range tasks {
		text, err := os.ReadFile("/proc/self/task/" + t.Name() + "/children")
		if err != nil {
			continue
		}
		for word := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil && pid != own {
				unix.Wait4(pid, nil, unix.WNOHANG, nil) //nolint:errcheck // still running: the next signal tells
			}
		}
	}
}

// catchable are the signals that would end, stop or dump a Go program that
// does not ask for them. SIGURG, SIGCHLD and SIGPIPE are the runtime's own
// business.
var catchable = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGILL, syscall.SIGTRAP, syscall.SIGABRT, syscall.SIGBUS,
	syscall.SIGFPE, syscall.SIGUSR1, syscall.SIGSEGV, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGTERM, syscall.SIGSTKFLT,
	syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGXCPU, syscall.SIGXFSZ, syscall.SIGVTALRM,
	syscall.SIGPROF, syscall.SIGWINCH, syscall.SIGIO, syscall.SIGPWR, syscall.SIGSYS,
}

// Signals delivers every signal that can be caught. As PID 1 the agent cannot
// be killed from inside its container, but each of these would end it.
func Signals() <-chan os.Signal {
	ch := make(chan os.Signal, 16)
	signal.Notify(ch, catchable...)
	return ch
}
