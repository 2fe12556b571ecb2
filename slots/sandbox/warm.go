package sandbox

import (
	"maps"
	"slices"
	"time"
)

// warmMost is how many interpreters of one sandbox have processes that wait.
const warmMost = 4

// warm is a process that waits for a job: a server, or a primed one.
type warm struct {
	server *server
	primed *primed
	since  time.Time
	retire *time.Timer
}

// end lets the process end: it reads to the end of what we hold.
func (w *warm) end() {
	w.retire.Stop()
	if w.server != nil {
		w.server.control.Close()
	}
	if w.primed != nil {
		w.primed.close()
	}
}

func (w *warm) in() *instance {
	if w.server != nil {
		return w.server.in
	}
	return w.primed.in
}

// alive reports whether the process can still take a job.
func (w *warm) alive() bool {
	if w.server != nil {
		return !w.server.hasEnded()
	}
	return w.primed.reads()
}

// takeWarm takes the process that waits under the key, if it is the instance's.
func (s *Sandbox) takeWarm(i *instance, key string) *warm {
	s.mu.Lock()
	w := s.warm[key]
	delete(s.warm, key)
	s.mu.Unlock()
	if w == nil {
		return nil
	}
	w.retire.Stop()
	if w.in() != i || !w.alive() {
		w.end()
		return nil
	}
	return w
}

// giveWarm has the process wait under the key, unless another does.
func (s *Sandbox) giveWarm(key string, w *warm) {
	w.since = time.Now()
	w.retire = time.AfterFunc(s.host.config.JobIdle, func() {
		s.mu.Lock()
		mine := s.warm[key] == w
		if mine {
			delete(s.warm, key)
		}
		s.mu.Unlock()
		if mine {
			w.end()
		}
	})
	over := w
	s.mu.Lock()
	if _, taken := s.warm[key]; !taken && !s.closed && w.in() == s.current {
		if s.warm == nil {
			s.warm = map[string]*warm{}
		}
		s.warm[key] = w
		over = s.oldestWarmLocked()
	}
	s.mu.Unlock()
	if over != nil {
		over.end()
	}
}

// oldestWarmLocked takes out the one that has waited longest, when there are
// too many.
func (s *Sandbox) oldestWarmLocked() *warm {
	if len(s.warm) <= warmMost {
		return nil
	}
	key := slices.MinFunc(slices.Collect(maps.Keys(s.warm)), func(a, b string) int { return s.warm[a].since.Compare(s.warm[b].since) })
	w := s.warm[key]
	delete(s.warm, key)
	return w
}

// coolLocked forgets all of them. The caller ends what it returns.
func (s *Sandbox) coolLocked() []*warm {
	all := slices.Collect(maps.Values(s.warm))
	s.warm = nil
	return all
}

func endWarm(all []*warm) {
	for _, w := range all {
		w.end()
	}
}

func (s *Sandbox) takeServer(i *instance, key string) *server {
	if w := s.takeWarm(i, "server "+key); w != nil {
		return w.server
	}
	return nil
}

func (s *Sandbox) giveServer(key string, v *server) { s.giveWarm("server "+key, &warm{server: v}) }

func (s *Sandbox) takePrimed(i *instance, key string) *primed {
	if w := s.takeWarm(i, "primed "+key); w != nil {
		return w.primed
	}
	return nil
}

func (s *Sandbox) givePrimed(key string, p *primed) { s.giveWarm("primed "+key, &warm{primed: p}) }
