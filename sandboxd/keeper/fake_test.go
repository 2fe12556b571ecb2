package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/sandboxd/execution"
	"berth/sandboxd/tool"
	"berth/slots"
	"berth/slots/sandbox"
)

// fakeSandbox is a slot without a machine. Its commands are
//
//	sleep D      ends after D or with its context
//	lost         the holder dies
//	panic        the program has a bug
//	flood N      N bytes of stdout
//	anything     is remembered in ran
//
// It notices when the keeper does two things at once that must not overlap.
type fakeSandbox struct {
	files bool // opened with those of the last agent
	id    string
	spill string // directory for spill files; "" has none

	mu         sync.Mutex
	generation uint64
	running    int
	ops        int
	mostOps    int
	resets     int
	resetting  bool
	closed     bool
	ran        []string
	violations []string
	resetTakes time.Duration
	resetErr   error
	unclean    bool
}

func (f *fakeSandbox) violate(format string, args ...any) {
	f.violations = append(f.violations, f.id+": "+fmt.Sprintf(format, args...))
}

func (f *fakeSandbox) Run(ctx context.Context, c sandbox.Command) (slots.Exit, error) {
	command := c.Argv[len(c.Argv)-1]
	f.mu.Lock()
	f.running++
	if f.running > 1 || f.resetting || f.closed {
		f.violate("%q runs beside %d others, resetting %t, closed %t", command, f.running-1, f.resetting, f.closed)
	}
	f.ran = append(f.ran, command)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.running--
		f.mu.Unlock()
	}()
	word, rest, _ := strings.Cut(command, " ")
	switch word {
	case "sleep":
		d, err := time.ParseDuration(rest)
		if err != nil {
			return slots.Exit{}, err
		}
		if !pause(ctx, d) {
			return slots.Exit{Outcome: endedBy(ctx), Code: 137}, nil
		}
	case "lost":
		return slots.Exit{}, slots.Errorf(slots.KindSlotLost, "holder died")
	case "panic":
		panic("a bug")
	case "flood":
		var n int
		if _, err := fmt.Sscan(rest, &n); err != nil {
			return slots.Exit{}, err
		}
		for ; n > 0 && ctx.Err() == nil; n -= 1000 {
			if _, err := io.WriteString(c.Stdout, strings.Repeat("x", min(n, 1000))); err != nil {
				return slots.Exit{}, err
			}
		}
		if ctx.Err() != nil {
			return slots.Exit{Outcome: endedBy(ctx), Code: 137}, nil
		}
	}
	return slots.Exit{Outcome: slots.OutcomeExited}, nil
}

// pause reports whether d went by before ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func endedBy(ctx context.Context) slots.Outcome {
	switch {
	case errors.Is(context.Cause(ctx), sandbox.ErrTimedOut):
		return slots.OutcomeTimedOut
	case errors.Is(context.Cause(ctx), sandbox.ErrOutputLimited):
		return slots.OutcomeOutputLimited
	default:
		return slots.OutcomeCancelled
	}
}

func (f *fakeSandbox) Shell(context.Context, sandbox.ShellCommand) (slots.Exit, sandbox.ShellState, error) {
	return slots.Exit{Outcome: slots.OutcomeExited}, sandbox.ShellState{}, nil
}

func (f *fakeSandbox) Job(context.Context, sandbox.Job) (slots.Exit, sandbox.JobState, error) {
	return slots.Exit{Outcome: slots.OutcomeExited}, sandbox.JobState{}, nil
}

// Do takes args as the time that it needs; "stuck" does not heed its context
// for ten minutes.
func (f *fakeSandbox) Do(ctx context.Context, op string, args, _ any, _ io.Reader, _ io.Writer) error {
	f.mu.Lock()
	f.ops++
	f.mostOps = max(f.mostOps, f.ops)
	if f.resetting || f.closed {
		f.violate("operation %s beside a reset", op)
	}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.ops--
		f.mu.Unlock()
	}()
	if op == "stuck" {
		ctx = context.WithoutCancel(ctx)
	}
	if d, ok := args.(time.Duration); ok && !pause(ctx, d) {
		return ctx.Err()
	}
	return nil
}

func (f *fakeSandbox) OpenSpill(_ context.Context, name string) (*os.File, string, error) {
	if f.spill == "" {
		return nil, "", errors.New("no spill")
	}
	file, err := os.Create(f.spill + "/" + name)
	return file, "/spill/" + name, err
}

func (f *fakeSandbox) Reset(ctx context.Context) (slots.Receipt, error) {
	f.mu.Lock()
	if f.running > 0 || f.resetting || f.closed {
		f.violate("reset beside %d runs, resetting %t, closed %t", f.running, f.resetting, f.closed)
	}
	f.resetting = true
	takes := f.resetTakes
	f.mu.Unlock()
	done := pause(ctx, takes)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resetting = false
	if !done {
		return slots.Receipt{}, context.Cause(ctx)
	}
	if f.resetErr != nil {
		return slots.Receipt{}, f.resetErr
	}
	f.generation++
	f.resets++
	return slots.Receipt{
		Clean: !f.unclean, Generation: f.generation,
		Checks: []slots.Check{{Name: "processes", OK: true}, {Name: "files", OK: !f.unclean, Note: "1 file left"}},
	}, nil
}

func (f *fakeSandbox) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

func (f *fakeSandbox) set(change func(*fakeSandbox)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// swaps is how many resets were done.
func (f *fakeSandbox) swaps() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.resets
}

func (f *fakeSandbox) commands() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.ran...)
}

// fakeStore is a Store in memory. Records take the way over JSON.
type fakeStore struct {
	mu      sync.Mutex
	records map[string][]byte
	err     error
}

func newStore() *fakeStore { return &fakeStore{records: map[string][]byte{}} }

func (f *fakeStore) Load(slotID string) (r Record, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if text, ok := f.records[slotID]; ok {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}

func (f *fakeStore) Save(slotID string, r Record) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	text, err := json.Marshal(r)
	f.records[slotID] = text
	return err
}

func (f *fakeStore) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// harness is a keeper with everything fake below it.
type harness struct {
	t *testing.T
	*Keeper
	store    *fakeStore
	registry *execution.Registry

	mu      sync.Mutex
	boxes   map[string]*fakeSandbox
	openErr error
	lost    bool // files of the last agent are not there any more
	opening time.Duration
}

// bubble runs the test in fake time, with a keeper that is drained at the end.
func bubble(t *testing.T, cfg Config, test func(h *harness)) {
	t.Helper()
	bubbleWith(t, cfg, newStore(), nil, test)
}

func bubbleWith(t *testing.T, cfg Config, store *fakeStore, observer Observer, test func(h *harness)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := start(t, cfg, store, observer)
		require.NoError(t, h.WaitReady(t.Context()))
		test(h)
		h.stop(t)
	})
}

func start(t *testing.T, cfg Config, store *fakeStore, observer Observer, change ...func(*harness)) *harness {
	t.Helper()
	h := &harness{t: t, store: store, boxes: map[string]*fakeSandbox{}}
	for _, c := range change {
		c(h)
	}
	var err error
	h.registry, err = execution.Open(execution.Config{})
	require.NoError(t, err)
	h.Keeper, err = New(Deps{
		Registry: h.registry, Tools: tool.New(tool.Builtin(nil, "")...), Store: store, Open: h.open, Observer: observer,
	}, cfg)
	require.NoError(t, err)
	return h
}

func (h *harness) open(ctx context.Context, slotID string, generation uint64, files bool) (Sandbox, error) {
	if h.opening > 0 && !pause(ctx, h.opening) {
		return nil, context.Cause(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.openErr != nil {
		return nil, h.openErr
	}
	if h.lost && files {
		return nil, slots.Errorf(slots.KindSlotLost, "the files have gone")
	}
	box := &fakeSandbox{id: slotID, generation: generation, files: files}
	h.boxes[slotID] = box
	return box, nil
}

func (h *harness) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, h.Close())
	require.NoError(t, h.registry.Close())
	for _, box := range h.boxes {
		assert.Empty(t, box.violations)
		assert.True(t, box.closed)
	}
}

func (h *harness) box(i int) *fakeSandbox {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.boxes[fmt.Sprintf("slot_%d", i)]
}

// call is a bash call on slot_0.
func call(command string) api.Call {
	args, err := json.Marshal(map[string]string{"command": command})
	if err != nil {
		panic(err)
	}
	return api.Call{SlotID: "slot_0", Tool: "bash", Args: args}
}

// submit submits and waits.
func (h *harness) run(c api.Call) api.Result {
	h.t.Helper()
	r, err := waited(context.Background(), h.Submit(context.Background(), c))
	require.NoError(h.t, err)
	return r
}

// lease acquires slot_0.
func (h *harness) lease(t *testing.T, trajectory string, ttl time.Duration) slots.Lease {
	t.Helper()
	l, err := h.Acquire("slot_0", api.LeaseRequest{Trajectory: trajectory, TTLSeconds: ttl.Seconds()})
	require.NoError(t, err)
	return l
}

func (h *harness) state(i int) slots.State { return h.Slots()[i].State }

func kind(err error) slots.Kind {
	if err == nil {
		return ""
	}
	return slots.AsError(err).Kind
}

// waited is the execution's result once it is there.
func waited(ctx context.Context, e *execution.Execution) (api.Result, error) {
	if err := e.Wait(ctx); err != nil {
		return api.Result{}, err
	}
	return e.Result(), nil
}
