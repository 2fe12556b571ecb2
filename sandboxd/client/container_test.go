package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth/sandboxd/execution"
	"berth/sandboxd/httpapi"
	"berth/sandboxd/keeper"
	"berth/sandboxd/tool"
	"berth/slots"
	"berth/slots/sandbox"
	"berth/slots/workspace"
)

const token = "a-token"

// box is a sandbox whose commands are words of its own and whose files are a
// temporary directory's.
type box struct {
	tree       *workspace.Tree
	generation uint64
	runs       *atomic.Int64
	release    chan struct{} // ends the command "wait"
	resetBy    *atomic.Bool  // resets fail
}

// Run knows "say TEXT", which prints it, "count N", which prints N lines,
// "wait", and "exit", which fails.
func (b *box) Run(ctx context.Context, c sandbox.Command) (slots.Exit, error) {
	b.runs.Add(1)
	text := c.Argv[len(c.Argv)-1]
	if c.Script != nil {
		text = string(c.Script)
	}
	word, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	switch word {
	case "say":
		_, _ = io.WriteString(c.Stdout, rest)
	case "count":
		var n int
		if _, err := fmt.Sscan(rest, &n); err != nil {
			return slots.Exit{}, err
		}
		for i := range n {
			_, _ = fmt.Fprintf(c.Stdout, "line %d\n", i)
			_, _ = fmt.Fprintf(c.Stderr, "error %d\n", i)
		}
	case "wait":
		_, _ = io.WriteString(c.Stdout, "waiting")
		select {
		case <-b.release:
		case <-ctx.Done():
			return slots.Exit{Outcome: slots.OutcomeCancelled, Code: -1}, nil
		}
	case "exit":
		return slots.Exit{Outcome: slots.OutcomeExited, Code: 3}, nil
	}
	return slots.Exit{Outcome: slots.OutcomeExited, Spawn: time.Millisecond, Duration: time.Millisecond}, nil
}

func (*box) Shell(context.Context, sandbox.ShellCommand) (slots.Exit, sandbox.ShellState, error) {
	return slots.Exit{}, sandbox.ShellState{}, errors.New("no shell here")
}

func (*box) Job(context.Context, sandbox.Job) (slots.Exit, sandbox.JobState, error) {
	return slots.Exit{}, sandbox.JobState{}, errors.New("no interpreter here")
}

func (b *box) Do(ctx context.Context, op string, args, reply any, in io.Reader, out io.Writer) error {
	text, err := json.Marshal(args)
	if err != nil {
		return err
	}
	answer, err := workspace.Ops()[op](ctx, b.tree, text, in, out)
	if err != nil {
		return err
	}
	if text, err = json.Marshal(answer); err != nil {
		return err
	}
	return json.Unmarshal(text, reply)
}

func (*box) OpenSpill(context.Context, string) (*os.File, string, error) {
	return nil, "", errors.New("no spill here")
}

func (b *box) Reset(context.Context) (slots.Receipt, error) {
	if b.resetBy.Load() {
		return slots.Receipt{Checks: []slots.Check{{Name: "processes", Note: "1 is left"}}}, nil
	}
	b.generation++
	return slots.Receipt{Clean: true, Generation: b.generation, Checks: []slots.Check{{Name: "processes", OK: true}}}, nil
}

func (b *box) Terminal(context.Context, sandbox.TerminalCommand) (sandbox.Terminal, error) {
	return nil, slots.Errorf(slots.KindUnavailable, "a box has no terminals")
}

func (b *box) Close() error { return b.tree.Close() }

// fixture is a container with two slots of boxes, behind a proxy that can cut
// its connections.
type fixture struct {
	*Client
	keeper  *keeper.Keeper
	proxy   *proxy
	runs    atomic.Int64
	release chan struct{}
	resetBy atomic.Bool

	environments fakeEnvironments
}

func start(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{release: make(chan struct{})}
	registry, err := execution.Open(execution.Config{})
	require.NoError(t, err)
	tools := tool.New(tool.Builtin(nil, "")...)
	metrics := httpapi.NewMetrics(tools.Names())
	f.keeper, err = keeper.New(keeper.Deps{
		Registry: registry, Tools: tools, Observer: metrics,
		Open: func(_ context.Context, _ string, generation uint64, _ bool) (keeper.Sandbox, error) {
			tree, err := workspace.Open(t.TempDir(), "/workspace")
			return &box{tree, generation, &f.runs, f.release, &f.resetBy}, err
		},
	}, keeper.Config{Slots: 2, StateDir: t.TempDir(), Version: "test"})
	require.NoError(t, err)
	require.NoError(t, f.keeper.WaitReady(t.Context()))
	server := httpapi.New(httpapi.Deps{
		Metrics: metrics, Executions: f.keeper, Registry: registry, Slots: f.keeper, Leases: f.keeper, Files: f.keeper,
		Environments: &f.environments, Terminals: f.keeper,
	}, httpapi.Config{Token: token})
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, ln) }()
	f.proxy = newProxy(t, ln.Addr().String())
	f.Client, err = New(Config{URL: "http://" + f.proxy.ln.Addr().String(), Token: token, Backoff: time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() {
		f.Close()
		_ = f.keeper.Close()
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, registry.Close())
	})
	return f
}

// proxy passes connections on. While cutAfter is above 0, a connection is cut
// once that many bytes of answers have passed, and one cut is counted down.
type proxy struct {
	ln       net.Listener
	to       string
	cuts     atomic.Int64
	cutAfter atomic.Int64
	accepted atomic.Int64
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{ln: ln, to: to}
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			p.accepted.Add(1)
			go p.pass(conn)
		}
	}()
	t.Cleanup(func() { _ = ln.Close() })
	return p
}

func (p *proxy) pass(from net.Conn) {
	defer func() { _ = from.Close() }()
	to, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", p.to)
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	go func() {
		_, _ = io.Copy(to, from)
		_ = to.Close()
	}()
	if p.cuts.Add(-1) >= 0 {
		_, _ = io.CopyN(from, to, p.cutAfter.Load())
		return
	}
	_, _ = io.Copy(from, to)
}

// cut makes the next n connections break after that many bytes of answer.
func (f *fixture) cut(n, after int64) {
	f.CloseIdle()
	f.proxy.cutAfter.Store(after)
	f.proxy.cuts.Store(n)
}

// CloseIdle makes the next request dial.
func (f *fixture) CloseIdle() { f.http.CloseIdleConnections() }
