package environment

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/sandbox"
)

// Observer hears of what happens. Its methods are called at any time, and
// return at once.
type Observer interface {
	// EnvironmentBuilt tells of a build that ended. outcome is "ok", an
	// api.InstallReason, or "error".
	EnvironmentBuilt(language, outcome string, took time.Duration)
	// EnvironmentEvicted tells of one that had to go for others.
	EnvironmentEvicted()
}

// Config says how a Store behaves. Zero fields but StateDir mean the default.
type Config struct {
	StateDir string        // the agent's own; what is known of each environment is kept there
	MaxBytes int64         // of all environments together, and of one; default 10 GiB
	Timeout  time.Duration // of one build; default 10 min
	Grace    time.Duration // how long after its last use one is not evicted; default 5 min
	Builds   int           // at once; default 2
	Packages []string      // absolute directories that builds can read at their own paths
}

func (c Config) withDefaults() Config {
	c.MaxBytes = cmp.Or(c.MaxBytes, 10<<30)
	c.Timeout = cmp.Or(c.Timeout, 10*time.Minute)
	c.Grace = cmp.Or(c.Grace, 5*time.Minute)
	c.Builds = max(1, cmp.Or(c.Builds, 2))
	return c
}

// Deps are the collaborators of a Store.
type Deps struct {
	Logger   hclog.Logger // nil discards
	Site     sandbox.Environments
	Observer Observer // nil: nobody hears
}

// Store is the environments of one container. All methods may be called at
// once.
type Store struct {
	site     sandbox.Environments
	observer Observer
	logger   hclog.Logger
	config   Config
	building chan struct{} // holds an element for each build that runs
	work     sync.WaitGroup

	linking sync.Mutex // held while keys are given to trees or taken from them, before mu

	mu     sync.Mutex // guards what follows; nothing is awaited under it
	ready  map[string]*entry
	builds map[string]*build
	closed bool
}

// entry is an environment that is in force, or that was when it was last
// asked for.
type entry struct {
	record
	lastUsed time.Time
	touched  time.Time // when lastUsed was written down
	inUse    int
	replaced bool // no longer in force: it goes with its last user
}

var errClosing = slots.Errorf(slots.KindDraining, "container is shutting down")

// Open finds the environments that an earlier agent has left, and removes what
// it has not finished.
func Open(deps Deps, config Config) (*Store, error) {
	if deps.Logger == nil {
		deps.Logger = hclog.NewNullLogger()
	}
	config = config.withDefaults()
	s := &Store{
		site: deps.Site, observer: deps.Observer, logger: deps.Logger.Named("environment"), config: config,
		building: make(chan struct{}, config.Builds), builds: map[string]*build{},
	}
	var err error
	if s.ready, err = s.load(); err != nil {
		return nil, err
	}
	s.evict("")
	return s, nil
}

// Root is the directory of all environments, as slots see it.
func (s *Store) Root() string { return s.site.Root() }

// Ensure returns the environment of the spec, and builds it if it is not there
// or has to be made anew. Whoever asks for the same one meanwhile waits for the
// same build, which goes on when the caller's context ends. progress, if not
// nil, is called with each line that the build has to say, from the first on.
// Packages that cannot be installed are a result; errors are *slots.Error or
// the end of ctx.
func (s *Store) Ensure(ctx context.Context, spec api.EnvironmentSpec, recreate bool, progress func(line string)) (api.EnvironmentResult, error) {
	spec, err := spec.Normalized()
	if err != nil {
		return api.EnvironmentResult{}, err
	}
	key, err := spec.Key()
	if err != nil {
		return api.EnvironmentResult{}, err
	}
	if key == "" {
		plain := api.Environment{Language: spec.Language, State: api.EnvironmentReady, Requirements: []api.Requirement{}}
		return api.EnvironmentResult{Environment: &plain, Cached: true}, nil
	}
	began := time.Now()
	s.mu.Lock()
	if e := s.ready[key]; e != nil && !recreate {
		e.lastUsed = began
		found := s.shown(e)
		s.mu.Unlock()
		return api.EnvironmentResult{Environment: &found, Cached: true}, nil
	}
	b := s.builds[key]
	if b == nil {
		if s.closed {
			s.mu.Unlock()
			return api.EnvironmentResult{}, errClosing
		}
		b = newBuild(key, spec)
		s.builds[key] = b
		s.work.Go(func() { s.run(b) }) //nolint:contextcheck // a build outlives who asked for it
	}
	s.mu.Unlock()
	if err := b.follow(ctx, progress); err != nil {
		return api.EnvironmentResult{}, err
	}
	if b.err != nil {
		return api.EnvironmentResult{}, b.err
	}
	result := b.result
	result.BuildMS = float64(time.Since(began)) / float64(time.Millisecond)
	return result, nil
}

// Use finds the environment with the key in memory and keeps it from being
// evicted or deleted until done is called, which may be called once. path is
// its directory as slots see it, which stays what it is also when the
// environment is made anew meanwhile. The key "" is the plain interpreter,
// with the path "". One that is not there is a slots.KindNotFound.
func (s *Store) Use(key string) (path string, done func(), err error) {
	if key == "" {
		return "", func() {}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.ready[key]
	if e == nil {
		return "", nil, slots.Errorf(slots.KindNotFound, "environment %.80s is not there: it was never built, or evicted", key)
	}
	e.inUse++
	e.lastUsed = time.Now()
	return s.at(e), func() { s.release(e) }, nil
}

func (s *Store) at(e *entry) string { return path.Join(s.site.Root(), e.Tree) }

func (s *Store) release(e *entry) {
	s.mu.Lock()
	e.inUse--
	e.lastUsed = time.Now()
	gone := e.replaced && e.inUse == 0
	touch := !gone && time.Since(e.touched) > touchPause
	if touch {
		e.touched = e.lastUsed
	}
	s.mu.Unlock()
	switch {
	case gone:
		s.discard(e)
	case touch:
		s.touch(e.record)
	}
}

// discard removes a tree that no key leads to.
func (s *Store) discard(e *entry) {
	s.forget(e.Tree)
	if err := s.site.Discard(e.Tree); err != nil {
		s.logger.Warn("environment is not removed", "environment", e.Key, "error", err)
	}
}

// List shows what is there and what is being built.
func (s *Store) List() api.Environments {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := api.Environments{Environments: []api.Environment{}, MaxBytes: s.config.MaxBytes}
	for _, e := range s.ready {
		out.SizeBytes += e.SizeBytes
		out.Environments = append(out.Environments, s.shown(e))
	}
	for key, b := range s.builds {
		if s.ready[key] == nil {
			out.Environments = append(out.Environments, api.Environment{
				Key: key, Language: b.spec.Language, State: api.EnvironmentBuilding, Requirements: b.spec.Requirements,
			})
		}
	}
	slices.SortFunc(out.Environments, func(a, b api.Environment) int { return strings.Compare(a.Key, b.Key) })
	return out
}

func (s *Store) shown(e *entry) api.Environment {
	return api.Environment{
		Key: e.Key, Language: e.Language, State: api.EnvironmentReady, Path: path.Join(s.site.Root(), e.Key),
		Interpreter: e.Interpreter.Version, Requirements: e.Requirements, SizeBytes: e.SizeBytes, Files: e.Files,
		Built: e.Built, LastUsed: e.lastUsed, InUse: e.inUse,
	}
}

// Delete removes an environment, or ends its build. One in use is a
// slots.KindConflict, one that is not there a slots.KindNotFound.
func (s *Store) Delete(key string) error {
	s.linking.Lock()
	defer s.linking.Unlock()
	s.mu.Lock()
	e, b := s.ready[key], s.builds[key]
	switch {
	case b != nil:
		b.cancel(errDeleted)
	case e == nil:
		s.mu.Unlock()
		return slots.Errorf(slots.KindNotFound, "no environment %.80s", key)
	}
	if e != nil && e.inUse > 0 {
		s.mu.Unlock()
		return slots.Errorf(slots.KindConflict, "environment %.80s is in use by %d", key, e.inUse)
	}
	delete(s.ready, key)
	s.mu.Unlock()
	if e == nil {
		return nil
	}
	return s.drop(e)
}

// drop removes an environment that nobody uses or finds. s.linking is held.
func (s *Store) drop(e *entry) error {
	if err := s.site.Withdraw(e.Key); err != nil {
		return slots.Errorf(slots.KindInternal, "%w", err)
	}
	s.discard(e)
	return nil
}

// evict makes room: those longest unused go, but none that is in use, was used
// a moment ago or has the key.
func (s *Store) evict(but string) {
	s.linking.Lock()
	defer s.linking.Unlock()
	for {
		e := s.victim(but)
		if e == nil {
			return
		}
		s.logger.Info("environment evicted", "environment", e.Key, "bytes", e.SizeBytes)
		if err := s.drop(e); err != nil {
			s.logger.Warn("environment is not removed", "environment", e.Key, "error", err)
		}
		if s.observer != nil {
			s.observer.EnvironmentEvicted()
		}
	}
}

func (s *Store) victim(but string) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	var total int64
	var oldest *entry
	for key, e := range s.ready {
		total += e.SizeBytes
		idle := e.inUse == 0 && key != but && time.Since(e.lastUsed) > s.config.Grace
		if idle && (oldest == nil || e.lastUsed.Before(oldest.lastUsed)) {
			oldest = e
		}
	}
	if total <= s.config.MaxBytes || oldest == nil {
		return nil
	}
	delete(s.ready, oldest.Key)
	return oldest
}

// publish puts a sealed tree in force.
func (s *Store) publish(r record) (api.Environment, error) {
	s.linking.Lock()
	defer s.linking.Unlock()
	if err := s.write(r); err != nil {
		return api.Environment{}, err
	}
	if err := s.site.Publish(r.Key, r.Tree); err != nil {
		s.forget(r.Tree)
		return api.Environment{}, err
	}
	e := &entry{record: r, lastUsed: time.Now(), touched: time.Now()}
	s.mu.Lock()
	old := s.ready[r.Key]
	s.ready[r.Key] = e
	free := false
	if old != nil {
		old.replaced = true
		free = old.inUse == 0
	}
	shown := s.shown(e)
	s.mu.Unlock()
	if free {
		s.discard(old)
	}
	return shown, nil
}

// Close ends the builds that run and waits for them. Environments that are in
// force stay, on disk and for Use.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	running := slices.Collect(maps.Values(s.builds))
	s.mu.Unlock()
	for _, b := range running {
		b.cancel(errClosing)
	}
	s.work.Wait()
	return nil
}

// newTree names a tree so that no slot can guess it before it is in force.
func newTree(key string) string { return key + "." + strings.ToLower(rand.Text()[:12]) }

// failed turns whatever a build ended with into an error for the caller.
func failed(err error) error {
	if e, ok := errors.AsType[*slots.Error](err); ok {
		return e
	}
	return slots.Errorf(slots.KindInternal, "%w", fmt.Errorf("build environment: %w", err))
}
