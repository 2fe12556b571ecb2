package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/sandboxd/execution"
	"berth/slots"
	"berth/slots/process"
	"berth/slots/sandbox"
	"berth/slots/workspace"
)

const testToken = "correct-horse-battery-staple"

// fakeKeeper is a container of slot_0 and slot_1. Its one tool is what run
// does; its files are those of one workspace.
type fakeKeeper struct {
	*execution.Registry
	journalErr error
	tree       *workspace.Tree
	root       string
	// run is the tool. It is called on a goroutine of its own.
	run func(ctx context.Context, call api.Call, stdout, stderr io.Writer) api.Result

	environments fakeEnvironments
	terminal     sandbox.Terminal // of slot_0; nil: there is none

	mu      sync.Mutex
	tenancy slots.Tenancy
	resets  uint64
	calls   []api.Call
	health  api.Health
	notYet  bool
	resetBy error
	doFails error
}

func newFakeKeeper(tb testing.TB) *fakeKeeper {
	tb.Helper()
	registry, err := execution.Open(execution.Config{})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, registry.Close()) })
	root := tb.TempDir()
	tree, err := workspace.Open(root, "/workspace")
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, tree.Close()) })
	return &fakeKeeper{
		Registry: registry, tree: tree, root: root,
		run:     func(context.Context, api.Call, io.Writer, io.Writer) api.Result { return ran("hello") },
		tenancy: slots.Tenancy{SlotID: "slot_0"},
		health: api.Health{
			Status: api.HealthOK, Slots: 2, Available: 2, DataDir: "/var/lib/berth",
			Isolation: slots.NewIsolation(slots.Axes{}), Version: "test",
		},
	}
}

// ran is the result of a process that exited with 0.
func ran(output string) api.Result {
	return api.Result{Success: true, Output: output, Metadata: api.Metadata{
		Receipt: &api.Receipt{Outcome: slots.OutcomeExited, SpawnMS: 0.5, DurationMS: 1.5, StdoutBytes: int64(len(output))},
	}}
}

func knownSlot(id string) error {
	if id != "slot_0" && id != "slot_1" {
		return slots.Errorf(slots.KindNotFound, "Unknown slot: %.80s", id)
	}
	return nil
}

func (k *fakeKeeper) Follow(ctx context.Context, call api.Call) *execution.Execution {
	return k.Submit(ctx, call)
}

func (k *fakeKeeper) Run(ctx context.Context, call api.Call) *execution.Execution {
	return k.Submit(ctx, call)
}

func (k *fakeKeeper) Submit(ctx context.Context, call api.Call) *execution.Execution {
	k.mu.Lock()
	k.calls = append(k.calls, call)
	k.mu.Unlock()
	err := knownSlot(call.SlotID)
	if err == nil && call.Tool != "bash" {
		err = slots.Errorf(slots.KindBadRequest, "Unknown tool: %s", call.Tool)
	}
	if err == nil {
		if _, wrong := call.Timeout.Duration(30*time.Second, time.Hour); wrong != nil {
			err = slots.Errorf(slots.KindBadRequest, "%w", wrong)
		}
	}
	if err != nil {
		return execution.Refused(api.Refused(call.ExecutionID, err))
	}
	e, fresh, err := k.Begin(ctx, call.ExecutionID, execution.Fingerprint(call))
	if err != nil {
		return execution.Refused(api.Refused(call.ExecutionID, err))
	}
	if fresh {
		go k.execute(e, call) //nolint:contextcheck // an execution has a context of its own
	}
	return e
}

func (k *fakeKeeper) execute(e *execution.Execution, call api.Call) {
	stdout, stderr := process.NewCapture(process.CaptureConfig{}), process.NewCapture(process.CaptureConfig{})
	e.Attach(stdout, stderr)
	if strings.Contains(string(call.Args), "never-starts") {
		<-e.Context().Done()
		e.Finish(api.Refused(e.ID(), slots.Errorf(slots.KindInterrupted, "cancelled").WithExecuted(slots.ExecutedNever)))
		return
	}
	if err := e.Start(); err != nil {
		e.Finish(api.Refused(e.ID(), err))
		return
	}
	e.Finish(k.run(e.Context(), call, stdout, stderr))
}

func (k *fakeKeeper) Ready() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.notYet
}

func (k *fakeKeeper) Health() api.Health {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.health
}

func (k *fakeKeeper) Slots() []api.Slot {
	return []api.Slot{
		{SlotID: "slot_0", State: slots.StateAvailable, WorkspaceDir: "/workspace"},
		{SlotID: "slot_1", State: slots.StateAvailable, WorkspaceDir: "/workspace"},
	}
}

func (k *fakeKeeper) Reset(_ context.Context, slotID string, token *uint64) (slots.Receipt, error) {
	if err := knownSlot(slotID); err != nil {
		return slots.Receipt{}, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.tenancy.Check(time.Now(), token); err != nil {
		return slots.Receipt{}, err
	}
	k.resets++
	return slots.Receipt{
		Clean: k.resetBy == nil, Generation: k.resets, MS: 0.25,
		Checks: []slots.Check{{Name: "processes", OK: k.resetBy == nil}},
	}, k.resetBy
}

func (k *fakeKeeper) Acquire(slotID string, want api.LeaseRequest) (slots.Lease, error) {
	if err := knownSlot(slotID); err != nil {
		return slots.Lease{}, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if want.ExpectedToken != nil {
		if err := k.tenancy.Expect(*want.ExpectedToken); err != nil {
			return slots.Lease{}, err
		}
	}
	ttl := time.Duration(want.TTLSeconds * float64(time.Second))
	return k.tenancy.Acquire(time.Now(), want.Trajectory, ttl, want.Labels)
}

func (k *fakeKeeper) AcquireAny(want api.LeaseRequest) (slots.Lease, error) {
	lease, err := k.Acquire("slot_0", want)
	if err != nil && slots.AsError(err).Kind == slots.KindConflict {
		return lease, slots.Errorf(slots.KindPoolExhausted, "no slot is free")
	}
	return lease, err
}

func (k *fakeKeeper) Renew(slotID string, want api.LeaseRenewal) (slots.Lease, error) {
	if err := knownSlot(slotID); err != nil {
		return slots.Lease{}, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.tenancy.Renew(time.Now(), want.Token, time.Duration(want.TTLSeconds*float64(time.Second)))
}

func (k *fakeKeeper) Release(_ context.Context, slotID string, token uint64, _ bool) (slots.Receipt, error) {
	if err := knownSlot(slotID); err != nil {
		return slots.Receipt{}, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.tenancy.Release(token); err != nil {
		return slots.Receipt{}, err
	}
	return slots.Receipt{Clean: true, Generation: 1}, nil
}

func (k *fakeKeeper) Leases() []slots.Lease {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tenancy.Lease == nil {
		return []slots.Lease{}
	}
	return []slots.Lease{*k.tenancy.Lease}
}

func (k *fakeKeeper) Do(ctx context.Context, slotID string, token *uint64, op string, args, reply any, in io.Reader, out io.Writer) error {
	if err := knownSlot(slotID); err != nil {
		return err
	}
	k.mu.Lock()
	err := k.tenancy.Check(time.Now(), token)
	if err == nil {
		err = k.doFails
	}
	k.mu.Unlock()
	if err != nil {
		return err
	}
	text, err := json.Marshal(args)
	if err != nil {
		return err
	}
	run, known := workspace.Ops()[op]
	if !known {
		return fmt.Errorf("no operation %q", op)
	}
	answer, err := run(ctx, k.tree, text, in, out)
	if err != nil {
		return err
	}
	if text, err = json.Marshal(answer); err != nil {
		return err
	}
	return json.Unmarshal(text, reply)
}

// file puts a file into the workspace.
func (k *fakeKeeper) file(tb testing.TB, path, content string) {
	tb.Helper()
	name := filepath.Join(k.root, path)
	require.NoError(tb, os.MkdirAll(filepath.Dir(name), 0o755))
	require.NoError(tb, os.WriteFile(name, []byte(content), 0o644))
}

// container is a Server that serves on a real listener.
type container struct {
	*fakeKeeper
	server *Server
	addr   string
	logs   *lockedBuffer
	stop   context.CancelFunc
	ended  chan error
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (k *fakeKeeper) deps(logs io.Writer) Deps {
	return Deps{
		Logger:  hclog.New(&hclog.LoggerOptions{Output: logs, Level: hclog.Trace}),
		Metrics: NewMetrics([]string{"bash"}), Executions: k, Registry: k, Slots: k, Leases: k, Files: k,
		Environments: &k.environments, Terminals: k,
	}
}

// start serves a fake container that is stopped with the test.
func start(tb testing.TB, config Config) *container {
	tb.Helper()
	c := &container{fakeKeeper: newFakeKeeper(tb), logs: &lockedBuffer{}, ended: make(chan error, 1)}
	c.server = New(c.deps(c.logs), config)
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	c.addr = ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	c.stop = cancel
	go func() { c.ended <- c.server.Serve(ctx, ln) }()
	tb.Cleanup(func() {
		cancel()
		select {
		case err := <-c.ended:
			require.NoError(tb, err)
		case <-time.After(20 * time.Second):
			tb.Error("server did not stop")
		}
	})
	return c
}

// answer is what came back of a request.
type answer struct {
	code   int
	header http.Header
	body   string
}

func (a answer) decode(t *testing.T, v any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(a.body), v), a.body)
}

// try sends one request with the test's token. Headers are "Name: value"; one
// without value is not sent.
func (c *container) try(ctx context.Context, method, path, body string, headers ...string) (answer, error) {
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.addr+path, r)
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Authorization", "Bearer "+testToken)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
		if value == "" {
			req.Header.Del(name)
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(text)}, err
}

// ask is try for a request that has to be answered.
func (c *container) ask(t *testing.T, method, path, body string, headers ...string) answer {
	t.Helper()
	a, err := c.try(t.Context(), method, path, body, headers...)
	require.NoError(t, err)
	return a
}

// later is try on a goroutine of its own; a request without answer has the
// code 0.
func (c *container) later(ctx context.Context, method, path, body string, headers ...string) <-chan answer {
	got := make(chan answer, 1)
	go func() {
		a, err := c.try(ctx, method, path, body, headers...)
		if err != nil {
			a.code = 0
		}
		got <- a
	}()
	return got
}

// Terminal gives the one that there is.
func (k *fakeKeeper) Terminal(_ context.Context, slotID string, _ *uint64, c sandbox.TerminalCommand) (sandbox.Terminal, error) {
	if slotID != "slot_0" {
		return nil, slots.Errorf(slots.KindNotFound, "Unknown slot: %s", slotID)
	}
	if k.terminal != nil {
		return k.terminal, nil
	}
	return nil, slots.Errorf(slots.KindUnavailable, "asked for %q", c.Argv)
}

func (k *fakeKeeper) JournalErr() error { return k.journalErr }
