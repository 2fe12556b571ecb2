package sandbox

import (
	"slices"
	"time"
)

const (
	// warmMost is how many interpreters of one sandbox have processes that wait.
	warmMost = 4
	// primedMost is how many processes of one interpreter wait while jobs come
	// quickly, if the slot has primedMemory bytes and primedPids processes and
	// threads for each.
	primedMost   = 4
	primedMemory = 256 << 20
	primedPids   = 64
	// quickly is how soon after the last one a job comes before a process that
	// was started behind that one is sure to be ready.
	quickly = 500 * time.Millisecond
	// crowdIdle is how long more than one of them wait in vain.
	crowdIdle = 10 * time.Second
)

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

// line is what waits for the jobs of one interpreter, the first to go first.
type line struct {
	waiting []*warm
	used    time.Time // the end of its last job
	want    int       // how many are to wait
}

// lineLocked is that of the key.
func (s *Sandbox) lineLocked(key string) *line {
	l := s.warm[key]
	if l == nil {
		l = &line{want: 1}
		if s.warm == nil {
			s.warm = map[string]*line{}
		}
		s.warm[key] = l
	}
	return l
}

// takeWarm takes a process that waits under the key, if it is the instance's.
func (s *Sandbox) takeWarm(i *instance, key string) *warm {
	for {
		s.mu.Lock()
		l := s.warm[key]
		if l == nil || len(l.waiting) == 0 {
			s.mu.Unlock()
			return nil
		}
		w := l.waiting[0]
		l.waiting = slices.Delete(l.waiting, 0, 1)
		s.mu.Unlock()
		w.retire.Stop()
		if w.in() == i && w.alive() {
			return w
		}
		w.end()
	}
}

// giveWarm has the process wait under the key, unless enough do.
func (s *Sandbox) giveWarm(key string, w *warm) {
	w.since = time.Now()
	w.retire = time.AfterFunc(min(crowdIdle, s.host.config.JobIdle), func() { s.retire(key, w) })
	over := []*warm{w}
	s.mu.Lock()
	if !s.closed && w.in() == s.current {
		if l := s.lineLocked(key); len(l.waiting) < l.want {
			l.used = w.since
			l.waiting = append(l.waiting, w)
			over = s.unusedLocked()
		}
	}
	s.mu.Unlock()
	endWarm(over)
}

// retire ends a process that has waited in vain: soon when it is not alone.
func (s *Sandbox) retire(key string, w *warm) {
	s.mu.Lock()
	l := s.warm[key]
	if l == nil || !slices.Contains(l.waiting, w) {
		s.mu.Unlock()
		return
	}
	if rest := s.host.config.JobIdle - time.Since(w.since); len(l.waiting) == 1 && rest > 0 {
		l.want = 1
		w.retire.Reset(rest)
		s.mu.Unlock()
		return
	}
	l.waiting = slices.DeleteFunc(l.waiting, func(x *warm) bool { return x == w })
	s.mu.Unlock()
	w.end()
}

// unusedLocked takes out the line that was not used for longest, when there are
// too many.
func (s *Sandbox) unusedLocked() []*warm {
	if len(s.warm) <= warmMost {
		return nil
	}
	oldest := ""
	for key, l := range s.warm {
		if oldest == "" || l.used.Before(s.warm[oldest].used) {
			oldest = key
		}
	}
	out := s.warm[oldest].waiting
	delete(s.warm, oldest)
	return out
}

// coolLocked forgets all of them. The caller ends what it returns.
func (s *Sandbox) coolLocked() []*warm {
	var all []*warm
	for _, l := range s.warm {
		all = append(all, l.waiting...)
	}
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

// takePrimed also decides how many are to wait for the jobs that follow: more,
// when this one came before a process that was started behind the last one was
// sure to be ready.
func (s *Sandbox) takePrimed(i *instance, key string) *primed {
	most := int64(primedMost)
	if limits := s.host.config.Limits; limits.MemoryBytes > 0 {
		most = min(most, limits.MemoryBytes/primedMemory)
	}
	if limits := s.host.config.Limits; limits.Pids > 0 {
		most = min(most, limits.Pids/primedPids)
	}
	s.mu.Lock()
	if l := s.lineLocked("primed " + key); time.Since(l.used) < quickly {
		l.want = max(1, min(l.want+1, int(most)))
	}
	s.mu.Unlock()
	if w := s.takeWarm(i, "primed "+key); w != nil {
		return w.primed
	}
	return nil
}

// primeMore starts as many processes as are to wait and do not.
func (s *Sandbox) primeMore(i *instance, n Interpreter) {
	key := "primed " + n.Key
	s.mu.Lock()
	l := s.lineLocked(key)
	missing := l.want - len(l.waiting)
	s.mu.Unlock()
	for range missing {
		p, err := i.prime(n)
		if err != nil {
			return // the job that finds none starts its own, and says why it cannot
		}
		s.giveWarm(key, &warm{primed: p})
	}
}
