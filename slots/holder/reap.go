package holder

import (
	"errors"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// orphanPause is how often ended orphans are collected while the slot has
// processes: their ends wake nobody.
const orphanPause = 50 * time.Millisecond

// reapBatch is how many are collected at a time. Processes that fork and end
// for ever leave more behind than can be collected meanwhile: whatever else is
// to be done, their end for one, must not wait until none is left.
const reapBatch = 256

// wait sleeps until a request comes, a child of ours ends, or it is time to
// collect orphans. It reports false when it cannot.
func (s *server) wait() bool {
	s.events = append(s.events[:0], unix.PollFd{Fd: int32(s.conn.fd), Events: unix.POLLIN})
	pause := time.Duration(-1)
	if len(s.procs) > 0 || s.hasChildren() {
		pause = orphanPause
	}
	if s.backlog {
		pause = 0
	}
	for _, p := range s.procs {
		p.event = len(s.events)
		s.events = append(s.events, unix.PollFd{Fd: int32(p.pidfd), Events: unix.POLLIN})
		for _, fd := range p.output.fds {
			// One that is closed is -1, which poll leaves out.
			s.events = append(s.events, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
		if due, ok := p.output.due(); ok {
			pause = min(pause, due)
		}
	}
	for _, r := range s.relays {
		r.event = len(s.events)
		s.events = append(s.events, r.awaited())
	}
	timeout := -1
	if pause >= 0 {
		timeout = int((pause + time.Millisecond - 1) / time.Millisecond)
	}
	for {
		_, err := unix.Poll(s.events, timeout)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}

// someEnded reports whether the last wait has met the end of a child, or
// orphans are due.
func (s *server) someEnded() bool {
	for _, p := range s.procs {
		if s.events[p.event].Revents != 0 {
			return true
		}
	}
	return s.backlog || time.Since(s.reaped) >= orphanPause
}

// reap collects children that have ended, adopted ones included, and then
// reports those that were asked for. It leaves a backlog when there are more
// than a batch.
func (s *server) reap() {
	var ended []*process
	defer func() {
		for _, p := range ended {
			s.report(p)
		}
	}()
	s.reaped, s.backlog = time.Now(), false
	for n := 0; ; {
		if n == reapBatch {
			s.backlog = true
			return
		}
		var status unix.WaitStatus
		var usage unix.Rusage
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, &usage)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		s.childless = errors.Is(err, unix.ECHILD)
		if err != nil || pid == 0 {
			return
		}
		n++
		s.gone++
		p := s.procs[pid]
		if p == nil {
			continue
		}
		delete(s.procs, pid)
		delete(s.kept, p.id)
		unix.Close(p.pidfd)
		p.status, p.usage = status, usage
		s.collectLast(p)
		ended = append(ended, p)
	}
}

func (s *server) report(p *process) {
	if l := s.loans[p.id]; l != nil {
		l.ended = p
		return
	}
	s.flush(p.id)
	s.conn.say(kindExited, p.id, encode(exitReport{
		Status:  uint32(p.status),
		SpawnNS: int64(p.spawn),
		RunNS:   int64(time.Since(p.started)),
		CPUNS:   p.usage.Utime.Nano() + p.usage.Stime.Nano(),
		MaxRSS:  p.usage.Maxrss << 10,
		Alone:   s.alone(),
		Output:  p.output.text,
	}))
}

// ignoreChildSignal sets SIGCHLD back to its default, which is to do nothing
// and keep the child waitable. Go's own handler stays for everything else.
func ignoreChildSignal() error {
	var byDefault [4]uint64 // a zero struct sigaction on every architecture
	_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
