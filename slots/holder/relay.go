package holder

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// Descriptors on their way through sockets are counted per user, and held
// against the limit of who sends the next one. A neighbour that runs as the
// holder's user can keep so many on their way that the holder may pass none.
// The agent has a higher limit: it then lends a pipe, by passing the end to
// write to, and the holder copies into that what it would have passed.

// cannotPass reports whether a send failed for the descriptors in it alone.
func cannotPass(err error) bool { return errors.Is(err, unix.ETOOMANYREFS) }

// loan is what waits for pipes of the agent's.
type loan struct {
	from  [2]int   // what is to be copied into them; -1: nothing
	ended *process // reported once that has begun; nil: it has not ended
}

// relay copies one pipe into a lent one.
type relay struct {
	id       uint64 // of the request
	from, to int
	full     bool // what is awaited is room, and not more to copy
	event    int  // where it stands in server.events
}

// awaited is what a poll is to wait for.
func (r *relay) awaited() unix.PollFd {
	if r.full {
		return unix.PollFd{Fd: int32(r.to), Events: unix.POLLOUT}
	}
	return unix.PollFd{Fd: int32(r.from), Events: unix.POLLIN}
}

// move copies what is there and has room. It reports whether there may be more
// to do at once, and closes both pipes at the end of either.
func (r *relay) move() (more bool) {
	for {
		n, err := unix.Splice(r.from, nil, r.to, nil, 64<<10, unix.SPLICE_F_NONBLOCK)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			r.full = !r.full // it was not for what has been awaited
			return false
		case err != nil || n == 0:
			closeAll([]int{r.from, r.to})
			r.from, r.to = -1, -1
			return false
		}
		r.full = false
		return true
	}
}

// borrow has the answer to a request come without descriptors, which the agent
// understands as the wish for a loan.
func (s *server) borrow(id uint64, from [2]int) {
	if s.loans == nil {
		s.loans = map[uint64]*loan{}
	}
	s.loans[id] = &loan{from: from}
}

// lent takes pipes from the agent.
func (s *server) lent(f frame) {
	defer func() { closeAll(f.files) }() // those that are left then
	s.mu.Lock()
	op := s.lends[f.id]
	s.mu.Unlock()
	if op != nil && len(f.files) > 0 {
		select {
		case op <- f.files[0]:
			f.files = f.files[1:]
		default: // said twice
		}
		return
	}
	l := s.loans[f.id]
	if l == nil {
		return
	}
	delete(s.loans, f.id)
	for _, fd := range l.from {
		switch {
		case fd < 0:
		case len(f.files) == 0:
			unix.Close(fd) // the agent could not
		default:
			s.relays = append(s.relays, &relay{id: f.id, from: fd, to: f.files[0]})
			f.files = f.files[1:]
		}
	}
	if l.ended != nil {
		s.report(l.ended)
	}
}

// relay copies what the last wait has found.
func (s *server) relay() {
	for _, r := range s.relays {
		if s.events[r.event].Revents != 0 {
			r.move()
		}
	}
	s.dropRelays()
}

// dropRelays forgets those that have come to their end.
func (s *server) dropRelays() {
	left := s.relays[:0]
	for _, r := range s.relays {
		if r.from >= 0 {
			left = append(left, r)
		}
	}
	clear(s.relays[len(left):])
	s.relays = left
}

// flushDeadline bounds how long an agent that does not read is waited for.
const flushDeadline = time.Second

// flush copies all that is there for a request: its answer says that the agent
// has it in its own pipes.
func (s *server) flush(id uint64) {
	if len(s.relays) == 0 {
		return
	}
	deadline := time.Now().Add(flushDeadline)
	for _, r := range s.relays {
		r.full = false
		for r.id == id && r.from >= 0 && time.Now().Before(deadline) {
			if r.move() || r.from < 0 {
				continue
			}
			if !r.full {
				break // although there was room
			}
			if n, err := unix.Poll([]unix.PollFd{r.awaited()}, int(time.Until(deadline)/time.Millisecond)); n == 0 || err != nil {
				r.full = false
			}
		}
	}
	s.dropRelays()
}
