package holder

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// ending is what wait4 says of a child.
type ending struct {
	status unix.WaitStatus
	usage  unix.Rusage
	at     time.Time
}

// reap waits for every child, adopted ones included, for as long as the
// process lives. It blocks in wait4, so an exit is noticed at once and no
// signal is needed; with no child at all it waits for the next spawn.
func (s *server) reap() {
	for {
		var e ending
		pid, err := unix.Wait4(-1, &e.status, 0, &e.usage)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			<-s.spawned
		default:
			e.at = time.Now()
			s.reaped(pid, e)
		}
	}
}

func (s *server) reaped(pid int, e ending) {
	s.mu.Lock()
	p := s.procs[pid]
	switch {
	case p != nil:
		delete(s.procs, pid)
		delete(s.kept, p.id)
	case s.forking:
		// Perhaps the very child whose pid the fork has not returned yet.
		if s.early == nil {
			s.early = map[int]ending{}
		}
		s.early[pid] = e
	}
	s.gone++
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	if p != nil {
		s.report(p, e)
	}
}

func (s *server) report(p *process, e ending) {
	s.conn.send(kindExited, p.id, encode(exitReport{
		Status:  uint32(e.status),
		SpawnNS: int64(p.spawn),
		RunNS:   int64(max(0, e.at.Sub(p.started))),
		CPUNS:   e.usage.Utime.Nano() + e.usage.Stime.Nano(),
		MaxRSS:  e.usage.Maxrss << 10,
		Alone:   s.alone(),
	}))
}
