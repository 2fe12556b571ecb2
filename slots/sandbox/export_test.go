package sandbox

// HolderPID is the process id of the sandbox's holder.
func (s *Sandbox) HolderPID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current.holder.PID()
}

// HolderEnded is closed when the sandbox's holder has ended.
func (s *Sandbox) HolderEnded() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current.holder.Done()
}

// SparePID waits for the spare and is the process id of its holder; the spare
// stays.
func (s *Sandbox) SparePID() int {
	s.mu.Lock()
	ready, needed := s.spare, s.spareNeeded
	s.mu.Unlock()
	needed(true)
	i, ok := <-ready
	if !ok {
		return 0
	}
	again := make(chan *instance, 1)
	again <- i
	close(again)
	s.mu.Lock()
	s.spare = again
	s.mu.Unlock()
	return i.holder.PID()
}

// UID is the uid of the sandbox's files; 0 where slots share the agent's.
func (s *Sandbox) UID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current.uid
}

// Namespaces reports whether slots have namespaces of their own.
func (h *Host) Namespaces() bool { return h.how.namespaces }

// UIDs reports whether each sandbox has a uid.
func (h *Host) UIDs() bool { return h.how.ids }

// Confined reports whether slots have a filter and limits.
func (h *Host) Confined() bool { return h.how.confined }

// SpawnerPID is the process id of the spawner.
func (h *Host) SpawnerPID() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.spawner.PID()
}

// Settle waits for what goes on behind resets.
func (h *Host) Settle() { h.disposal.Wait() }

// Primed counts the processes that wait for a job of the interpreter.
func (s *Sandbox) Primed(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.warm["primed "+key]; l != nil {
		return len(l.waiting)
	}
	return 0
}

// Opening counts one more sandbox, or one less, that is being opened.
func (h *Host) Opening(more int32) { h.opening.Add(more) }
