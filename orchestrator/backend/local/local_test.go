package local_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator/backend"
	"berth/orchestrator/backend/backendtest"
	"berth/orchestrator/backend/local"
	"berth/sandboxd/api"
	"berth/sandboxd/client"
	"berth/slots"
	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

// patience is how long anything may take; only what fails takes that long.
const patience = time.Minute

// envHelper has the test's own binary be an orchestrator that tests can kill.
const envHelper = "BERTH_TEST_ORCHESTRATOR"

func TestMain(m *testing.M) {
	if text := os.Getenv(envHelper); text != "" {
		os.Exit(orchestrate(text))
	}
	os.Exit(m.Run())
}

// config is one for tests: quick, and content with any isolation.
func config(t *testing.T) local.Config {
	t.Helper()
	return local.Config{
		Dir: filepath.Join(sandboxtest.DataDir(t), "containers"), Binary: sandboxtest.Agent(t), Look: 10 * time.Millisecond,
		Grace: 10 * time.Second, Backoff: local.Backoff{First: 20 * time.Millisecond, Max: 100 * time.Millisecond, Crashes: 5},
	}
}

// open opens a backend that the test's end closes, and checks then that no
// process is left.
func open(t *testing.T, c local.Config) *local.Backend {
	t.Helper()
	b, err := local.Open(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, b.Close())
		if !c.Keep {
			assert.Empty(t, processes(c.Dir), "processes are left")
		}
	})
	return b
}

func spec(id string) backend.Spec {
	return backend.Spec{ID: id, Template: "t", Slots: 1, Isolation: "none", Network: true}
}

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func start(t *testing.T, b backend.Backend, s backend.Spec) backend.Container {
	t.Helper()
	c, err := b.Start(soon(t), s)
	require.NoError(t, err)
	return c
}

// processes lists the sandboxds that serve below the directory.
func processes(dir string) []int {
	var pids []int
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(text), "serve\x00") && strings.Contains(string(text), "\x00"+dir+"/") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// pidOf is the one process of the container.
func pidOf(t *testing.T, dir, id string) int {
	t.Helper()
	pids := processes(filepath.Join(dir, id))
	require.Len(t, pids, 1)
	return pids[0]
}

func kill(t *testing.T, pid int) {
	t.Helper()
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
}

func dial(t *testing.T, c backend.Container) *client.Client {
	t.Helper()
	remote, err := client.New(client.Config{URL: c.URL, Token: c.Token, Retries: -1})
	require.NoError(t, err)
	return remote
}

func lease(t *testing.T, c backend.Container) slots.Lease {
	t.Helper()
	remote := dial(t, c)
	defer remote.Close()
	l, err := remote.AcquireAny(soon(t), api.LeaseRequest{Trajectory: "t-1", TTLSeconds: 600})
	require.NoError(t, err)
	return l
}

// eventuallyLeased waits until the container answers, and its leases are those.
func eventuallyLeased(t *testing.T, c backend.Container, want slots.Lease) {
	t.Helper()
	remote := dial(t, c)
	defer remote.Close()
	require.Eventually(t, func() bool {
		leases, err := remote.Leases(t.Context())
		return err == nil && len(leases) == 1 && leases[0].Token == want.Token && leases[0].Trajectory == want.Trajectory
	}, patience, 5*time.Millisecond, "the lease is not there")
}

func watch(t *testing.T, b backend.Backend) func(kind backend.EventKind) backend.Event {
	t.Helper()
	next, stop := iter.Pull(b.Watch(soon(t)))
	t.Cleanup(stop)
	return func(kind backend.EventKind) backend.Event {
		t.Helper()
		e, ok := next()
		require.True(t, ok, "the watch has ended")
		require.Equal(t, kind, e.Kind, "%v", e)
		return e
	}
}

func list(t *testing.T, b backend.Backend) []backend.Container {
	t.Helper()
	all, err := b.List(soon(t))
	require.NoError(t, err)
	return all
}

// plan is what a helper orchestrator does: it starts the containers, says so
// and waits to be killed, or to be told by SIGTERM to close.
type plan struct {
	Config local.Config
	Specs  []backend.Spec
}

// told is a container with its token, which a Container does not tell.
type told struct {
	ID, URL, Token string
	Started        time.Time
}

func orchestrate(text string) int {
	var p plan
	err := json.Unmarshal([]byte(text), &p)
	var b *local.Backend
	if err == nil {
		b, err = local.Open(context.Background(), p.Config)
	}
	var out []told
	for _, s := range p.Specs {
		if err == nil {
			var c backend.Container
			c, err = b.Start(context.Background(), s)
			out = append(out, told{c.ID, c.URL, c.Token, c.Started})
		}
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	select {}
}

// orchestrator runs a helper until its containers are up. kill ends it as
// `kill -9` does.
func orchestrator(t *testing.T, p plan) (containers []backend.Container, kill func()) {
	t.Helper()
	text, err := json.Marshal(p)
	require.NoError(t, err)
	own, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(own)
	cmd.Env = append(os.Environ(), envHelper+"="+string(text))
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	killed := false
	kill = func() {
		if !killed {
			killed = true
			cmd.Process.Kill()
			cmd.Wait()
		}
	}
	t.Cleanup(kill)
	var out []told
	require.NoError(t, json.NewDecoder(stdout).Decode(&out))
	for i, c := range out {
		containers = append(containers, backend.Container{
			ID: c.ID, Template: p.Specs[i].Template, URL: c.URL, Token: c.Token, Slots: p.Specs[i].Slots, Started: c.Started, Version: 1,
		})
	}
	return containers, kill
}

func subject(change func(*local.Config)) backendtest.Subject {
	dirs := map[backend.Backend]string{}
	return backendtest.Subject{
		New: func(t *testing.T) backend.Backend {
			c := config(t)
			c.Backoff.Crashes = 1
			change(&c)
			b := open(t, c)
			dirs[b] = c.Dir
			return b
		},
		Starting: func(b backend.Backend, id string) bool {
			_, err := os.Stat(filepath.Join(dirs[b], id, "state"))
			return err == nil
		},
		Crash: func(t *testing.T, b backend.Backend, c backend.Container) { kill(t, pidOf(t, dirs[b], c.ID)) },
		Spec:  spec(""),
	}
}

func TestItKeepsThePromisesOfABackend(t *testing.T) {
	backendtest.Run(t, subject(func(*local.Config) {}))
}

// ordinary is a user who is nobody here.
const ordinary = 70_001 // below and above are uids that slots get

func TestItKeepsThePromisesOfABackendForAnOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the other tests run as an ordinary user already")
	}
	dir := sandboxtest.DataDir(t)
	require.NoError(t, os.Chmod(dir, 0o777)) //nolint:gosec // the other user's directories are made there
	own, err := os.Executable()
	require.NoError(t, err)
	binary := filepath.Join(dir, "test")
	text, err := os.ReadFile(own)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(binary, text, 0o755)) //nolint:gosec // the other user runs it
	cmd := exec.CommandContext(t.Context(), binary, "-test.run=TestItKeepsThePromisesOfABackend$|TestASlotReads", "-test.v")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinary, Gid: ordinary}}
	cmd.Env = append(os.Environ(), "BERTH_AGENT="+sandboxtest.Agent(t), "TMPDIR="+dir, "HOME="+dir)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil && strings.Contains(string(out), "permission denied") && !strings.Contains(string(out), "=== RUN") {
		need.Facility(t, "user", err)
	}
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "--- PASS: TestItKeepsThePromisesOfABackend", "%s", out)
}
