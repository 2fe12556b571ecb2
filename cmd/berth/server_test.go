package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
	"berth/slots/sandbox/sandboxtest"
)

// patience is how long anything may take before a test gives it up.
const patience = 60 * time.Second

// built are the real programs, built once for all tests of the package.
type built struct {
	once sync.Once
	dir  string
	err  error
}

var programs built

// path is where a program is.
func (b *built) path(t testing.TB, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs the programs")
	}
	b.once.Do(func() {
		if b.dir, b.err = os.MkdirTemp("", "berth-programs-"); b.err != nil { //nolint:usetesting // for all tests
			return
		}
		build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w -X main.version=test", "-o", b.dir+"/", "berth/cmd/...")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		var out []byte
		if out, b.err = build.CombinedOutput(); b.err != nil {
			b.err = errors.Join(b.err, errors.New(string(out)))
		}
		// Slots run sandboxd under their own uid.
		b.err = errors.Join(b.err, os.Chmod(b.dir, 0o755))
	})
	require.NoError(t, b.err)
	return filepath.Join(b.dir, name)
}

func (b *built) remove() {
	if b.dir != "" {
		_ = os.RemoveAll(b.dir) // best effort
	}
}

// ran is what came of one run of berth.
type ran struct {
	status         int
	stdout, stderr string
}

// berth is how berth is called in one test.
type berth struct {
	t    testing.TB
	home string
	env  []string
	dir  string
}

func newBerth(t testing.TB) *berth {
	home := t.TempDir()
	return &berth{t: t, home: home, dir: t.TempDir(), env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + os.TempDir()}}
}

// command makes a command that runs berth.
func (b *berth) command(args ...string) *exec.Cmd {
	b.t.Helper()
	cmd := exec.Command(programs.path(b.t, "berth"), args...)
	cmd.Env, cmd.Dir = b.env, b.dir
	return cmd
}

// run runs berth to its end.
func (b *berth) run(args ...string) ran { return b.feed("", args...) }

// feed runs berth with the text as its input.
func (b *berth) feed(stdin string, args ...string) ran {
	b.t.Helper()
	cmd := b.command(args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	require.NoError(b.t, cmd.Start())
	return ran{b.wait(cmd), stdout.String(), stderr.String()}
}

// wait waits for a command that was started and returns its status.
func (b *berth) wait(cmd *exec.Cmd) int {
	b.t.Helper()
	timer := time.AfterFunc(2*patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); !ok {
		require.NoError(b.t, err)
	}
	return cmd.ProcessState.ExitCode()
}

// pool is a running "berth up".
type pool struct {
	*berth
	up     *exec.Cmd
	ended  chan struct{}
	log    *lockedBuffer
	said   map[string]any // its announcement
	client *client.Client
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

// start runs "berth up" with one container of so many slots until the test's
// end, and has berth find it.
func start(t testing.TB, slots string, args ...string) *pool {
	t.Helper()
	p := &pool{berth: newBerth(t), ended: make(chan struct{}), log: &lockedBuffer{}}
	p.up = p.command(append([]string{
		"up", "--json", "--listen", "127.0.0.1:0", "--containers", "1", "--slots", slots,
		"--data-dir", sandboxtest.DataDir(t), "--isolation-require", "none",
	}, args...)...)
	stdout, err := p.up.StdoutPipe()
	require.NoError(t, err)
	p.up.Stderr = p.log
	require.NoError(t, p.up.Start())
	announced := make(chan error, 1)
	rest := make(chan struct{})
	go func() { // waited for below and by stop
		defer close(rest)
		in := bufio.NewReader(stdout)
		announced <- json.NewDecoder(in).Decode(&p.said)
		_, _ = io.Copy(io.Discard, in)
	}()
	go func() { // waited for by stop
		<-rest
		_ = p.up.Wait() // its status is in ProcessState
		close(p.ended)
	}()
	t.Cleanup(func() { p.stop() })
	select {
	case err := <-announced:
		require.NoError(t, err, "%s", p.log)
	case <-time.After(2 * patience):
		require.Fail(t, "it does not come up", "%s", p.log)
	}
	url := p.said["url"].(string)
	p.env = append(p.env, "BERTH_URL="+url)
	token := ""
	if path, _ := p.said["token_file"].(string); path != "" {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		token = strings.TrimSpace(string(text))
	}
	p.client, err = client.New(client.Config{URL: url, Token: token})
	require.NoError(t, err)
	return p
}

// stop ends it as Ctrl-C does and returns its status.
func (p *pool) stop() int {
	if p.client != nil {
		p.client.Close()
	}
	_ = p.up.Process.Signal(os.Interrupt) // it may have ended
	select {
	case <-p.ended:
	case <-time.After(2 * patience):
		_ = p.up.Process.Kill()
		<-p.ended
		assert.Fail(p.t, "it does not end", "%s", p.log)
	}
	return p.up.ProcessState.ExitCode()
}

// leases are those that hold.
func (p *pool) leases() []poolapi.Lease {
	p.t.Helper()
	all, err := p.client.Leases(context.Background(), client.Filter{})
	require.NoError(p.t, err)
	return all
}

// hold leases a slot for the test.
func (p *pool) hold(trajectory string, labels map[string]string) string {
	p.t.Helper()
	lease, err := p.client.Acquire(context.Background(), poolapi.LeaseRequest{
		Trajectory: trajectory, Labels: labels, WaitS: patience.Seconds(), TTLSeconds: 600,
	})
	require.NoError(p.t, err)
	return lease.ID
}

func decode[T any](t testing.TB, text string) T {
	t.Helper()
	var v T
	require.NoError(t, json.Unmarshal([]byte(text), &v), "%s", text)
	return v
}
