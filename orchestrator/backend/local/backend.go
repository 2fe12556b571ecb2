package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"berth/orchestrator/backend"
	"berth/slots"
)

// Why a container's life is interrupted.
var (
	errStopped   = errors.New("stopped")
	errAbandoned = errors.New("nobody waits for the start any more")
	errClosed    = errors.New("backend is closed")
)

const (
	adoptTime    = 5 * time.Second  // that Open waits for containers that run
	restartTime  = 20 * time.Second // and for those that it starts again
	discoverLook = time.Second      // between two looks for what others have started
	endedKept    = 24 * time.Hour   // that the log of what was given up is kept
	endedMost    = 8                // logs of those that are kept
)

// Backend runs containers as processes. It satisfies backend.Backend.
type Backend struct {
	config Config
	feed   backend.Feed
	http   *http.Client
	cancel context.CancelCauseFunc
	work   sync.WaitGroup   // one for each container, and the discovery
	spawn  func(*container) // has work look after it

	// mu guards what follows and the containers' fields that say so. Nothing
	// waits while it is held, and no file is read.
	mu     sync.Mutex
	closed bool
	all    map[string]*container
	ended  map[string]string // IDs that are used up, and why
	broken map[string]bool   // directories that were complained of
}

var _ backend.Backend = (*Backend)(nil)

// Open adopts the containers that are below Config.Dir, and starts those again
// that do not run: it returns when all of them answer, so that nobody takes
// what is about to be there for missing. It does not wait for one that takes
// too long. What cannot be started here at all, of Config.Expect, is an error.
// Close ends it; ctx is for opening only.
func Open(ctx context.Context, config Config) (*Backend, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("open local backend: %w", err)
	}
	// Slots of a uid of their own pass through it, but need not see what is in it.
	if err := os.MkdirAll(config.Dir, 0o711); err != nil { //nolint:gosec // see above
		return nil, fmt.Errorf("open local backend: %w", err)
	}
	b := &Backend{
		config: config, all: map[string]*container{}, ended: map[string]string{}, broken: map[string]bool{},
		http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: askTimeout},
	}
	life, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	b.cancel = cancel
	b.spawn = func(c *container) {
		own, cancel := context.WithCancelCause(life)
		c.cancel = cancel
		b.work.Go(func() { c.run(life, own) })
	}
	found, err := b.discover(true)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open local backend: %w", err), b.Close())
	}
	b.work.Go(func() { b.keepDiscovering(life) })
	adopting, stop := context.WithTimeout(ctx, adoptTime)
	defer stop()
	restarting, stop := context.WithTimeout(ctx, restartTime)
	defer stop()
	for _, c := range found {
		patience := restarting
		if c.ran {
			patience = adopting
		}
		select {
		case <-c.begun:
		case <-patience.Done():
		}
	}
	if err := b.probeAll(ctx, config.Expect); err != nil {
		return nil, errors.Join(fmt.Errorf("open local backend: %w", err), b.Close())
	}
	return b, nil
}

// keepDiscovering finds what other orchestrators start.
func (b *Backend) keepDiscovering(ctx context.Context) {
	tick := time.NewTicker(discoverLook)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if _, err := b.discover(false); err != nil {
				b.config.Logger.Warn("cannot look for containers", "error", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// discover begins to look after every container that is not known yet, and
// returns them.
func (b *Backend) discover(first bool) (found []*container, err error) {
	entries, err := os.ReadDir(b.config.Dir)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	if first {
		b.trim()
	}
	for _, entry := range entries {
		id := entry.Name()
		if !entry.IsDir() || backend.CheckID(id) != nil || b.known(id) {
			continue
		}
		if first {
			b.tidy(id)
		}
		c, err := b.adopt(id)
		switch {
		case err != nil:
			b.complain(id, err)
		case c != nil:
			found = append(found, c)
		}
	}
	return found, nil
}

func (b *Backend) known(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all[id] != nil || b.ended[id] != ""
}

// complain says once what is wrong with a directory. It is left as it is.
func (b *Backend) complain(id string, err error) {
	b.mu.Lock()
	before := b.broken[id]
	b.broken[id] = true
	b.mu.Unlock()
	if !before {
		b.config.Logger.Error("cannot adopt container", "container", id, "error", err)
	}
}

// tidy removes what is left of a container that was given up long ago.
func (b *Backend) tidy(id string) {
	dir := b.place(id)
	s, err := dir.load()
	if err != nil || s.Ended == "" {
		return
	}
	st, err := os.Stat(dir.join("state"))
	if err == nil && time.Since(st.ModTime()) > endedKept {
		err = dir.removeUnused()
	}
	if err != nil && !errors.Is(err, errLocked) {
		b.complain(id, err)
	}
}

// trim removes what is left of containers that were given up, but for the last
// endedMost: where none can run, one after the other is started and given up.
func (b *Backend) trim() {
	entries, err := os.ReadDir(b.config.Dir)
	if err != nil {
		b.config.Logger.Warn("cannot look for containers", "error", err)
		return
	}
	given := map[string]time.Time{} // up, and when
	for _, entry := range entries {
		dir := b.place(entry.Name())
		if s, err := dir.load(); err != nil || s.Ended == "" {
			continue
		}
		if st, err := os.Stat(dir.join("state")); err == nil {
			given[entry.Name()] = st.ModTime()
		}
	}
	ids := slices.SortedFunc(maps.Keys(given), func(x, y string) int { return given[y].Compare(given[x]) })
	for _, id := range ids[min(endedMost, len(ids)):] {
		err := b.place(id).removeUnused()
		if err != nil && !errors.Is(err, errLocked) && !errors.Is(err, fs.ErrNotExist) {
			b.complain(id, err)
		}
	}
}

func (b *Backend) place(id string) directory { return directory(filepath.Join(b.config.Dir, id)) }

// adopt returns the container of the ID, which it begins to look after when it
// was not known. nil means that there is none, or none any more.
func (b *Backend) adopt(id string) (*container, error) {
	b.mu.Lock()
	c := b.all[id]
	b.mu.Unlock()
	if c != nil {
		return c, nil
	}
	dir := b.place(id)
	s, err := dir.load()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && s.Spec.ID != id {
		err = fmt.Errorf("it is of container %s", s.Spec.ID)
	}
	if err == nil {
		err = s.Spec.Check()
	}
	if err != nil {
		return nil, err
	}
	ran := false
	if p, err := open(s.Process, dir.dataDir()); err == nil {
		ran = true
		p.close()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.all[id] != nil:
		return b.all[id], nil
	case s.Ended != "":
		b.ended[id] = s.Ended
		return nil, nil
	case b.ended[id] != "" || b.closed:
		return nil, nil
	}
	c = b.addLocked(s.Spec)
	c.ran = ran
	b.spawn(c)
	return c, nil
}

func (b *Backend) addLocked(spec backend.Spec) *container {
	c := &container{
		b: b, dir: b.place(spec.ID), spec: spec, log: b.config.Logger.With("container", spec.ID),
		begun: make(chan struct{}), over: make(chan struct{}),
	}
	b.all[spec.ID] = c
	return c
}

// Start is backend.Backend's.
func (b *Backend) Start(ctx context.Context, spec backend.Spec) (backend.Container, error) {
	if err := spec.Check(); err != nil {
		return backend.Container{}, err
	}
	for {
		if ctx.Err() != nil {
			return backend.Container{}, backend.Interrupted("start", spec.ID, context.Cause(ctx))
		}
		// It may be there already: of another orchestrator, or of one before us.
		if _, err := b.adopt(spec.ID); err != nil {
			return backend.Container{}, slots.Errorf(slots.KindInternal, "start container %s: %w", spec.ID, err)
		}
		c, err := b.join(spec.Clone())
		if err != nil {
			return backend.Container{}, err
		}
		select {
		case <-c.begun:
		case <-ctx.Done():
			b.leave(c)
			continue
		}
		switch up, ok := b.feed.Get(spec.ID); {
		case errors.Is(c.err, errAbandoned): // by its last caller, before us
			<-c.over
		case c.err != nil:
			return backend.Container{}, c.err
		case ok:
			return up, nil
		default:
			return backend.Container{}, backend.Ended(spec.ID, "it is not up any more")
		}
	}
}

// join returns the container of the spec, which it begins to start when there
// is none yet.
func (b *Backend) join(spec backend.Spec) (*container, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.all[spec.ID]
	switch {
	case b.closed:
		return nil, backend.Interrupted("start", spec.ID, errClosed)
	case b.ended[spec.ID] != "":
		return nil, backend.Ended(spec.ID, b.ended[spec.ID])
	case c != nil && errors.Is(c.told, errStopped):
		return nil, backend.Stopping(spec.ID)
	case c != nil && !c.spec.Equal(spec):
		return nil, backend.OtherSpec(spec.ID)
	case c == nil && b.config.Max > 0 && len(b.all) >= b.config.Max:
		return nil, slots.Errorf(slots.KindPoolExhausted, "start container %s: there are %d already", spec.ID, len(b.all))
	case c == nil:
		c = b.addLocked(spec)
		c.ours = true
		b.spawn(c)
	}
	c.waiting++
	return c, nil
}

// leave is a call that waits no longer. The last one takes along what it began.
func (b *Backend) leave(c *container) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.waiting--; c.waiting == 0 && c.ours {
		c.tellLocked(errAbandoned, 0)
	}
}

// Stop is backend.Backend's.
func (b *Backend) Stop(ctx context.Context, id string, grace time.Duration) error {
	if backend.CheckID(id) != nil {
		return nil // there is none
	}
	c, err := b.adopt(id)
	if err != nil {
		return slots.Errorf(slots.KindInternal, "stop container %s: %w", id, err)
	}
	b.mu.Lock()
	closed, ended := b.closed, b.ended[id] != ""
	if c != nil {
		c.tellLocked(errStopped, grace)
	}
	b.mu.Unlock()
	switch {
	case c == nil && !ended:
		return nil
	case c == nil:
		if err := b.place(id).removeUnused(); err != nil && !errors.Is(err, errLocked) {
			return slots.Errorf(slots.KindInternal, "stop container %s: %w", id, err)
		}
		return nil
	case closed:
		return backend.Interrupted("stop", id, errClosed)
	}
	select {
	case <-c.over:
		return c.stopErr
	case <-ctx.Done():
		return backend.Interrupted("stop", id, context.Cause(ctx))
	}
}

// List is backend.Backend's.
func (b *Backend) List(ctx context.Context) ([]backend.Container, error) {
	if ctx.Err() != nil {
		return nil, slots.Errorf(slots.KindInterrupted, "list containers: %w", context.Cause(ctx))
	}
	return b.feed.List(), nil
}

// Watch is backend.Backend's.
func (b *Backend) Watch(ctx context.Context) iter.Seq[backend.Event] { return b.feed.Watch(ctx) }

// Duty is backend.Backend's. Nobody else has the containers of a directory.
func (b *Backend) Duty(string) backend.Duty { return backend.Duty{Held: true} }

// Close ends every Watch and, unless Config.Keep says otherwise, the
// containers that we look after; what they have on disk stays, for the next
// Open. It returns when that is done, whatever Config.Grace allows.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.feed.Close()
	b.cancel(errClosed)
	b.work.Wait()
	b.http.CloseIdleConnections()
	return nil
}
