package nomadtest_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth/orchestrator/client"
	"berth/slots/sandbox/sandboxtest"
)

// patience is how long anything may take; only what fails takes that long.
const patience = 90 * time.Second

var built struct {
	sync.Mutex
	dir string
}

// TestMain removes the programs that tests have built.
func TestMain(m *testing.M) {
	status := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(status)
}

// program builds a program of the project, once. BERTH_PROGRAMS names a
// directory where they are built already.
func program(t *testing.T, name string) string {
	t.Helper()
	if dir := os.Getenv("BERTH_PROGRAMS"); dir != "" {
		return filepath.Join(dir, name)
	}
	built.Lock()
	defer built.Unlock()
	if built.dir == "" {
		var err error
		built.dir, err = os.MkdirTemp("", "berth-programs-") //nolint:usetesting // it serves every test of the process
		require.NoError(t, err)
	}
	path := filepath.Join(built.dir, name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", path, "berth/cmd/"+name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // images begin with nothing
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// orchestrator is one that runs as a process of its own.
type orchestrator struct {
	*client.Client
	url string
	log string
	cmd *exec.Cmd
}

// serve starts an orchestrator on the cluster at the address, waits until it
// is ready, and ends it in order with the test.
func serve(t *testing.T, nomad string, args ...string) *orchestrator {
	t.Helper()
	return serveOn(t, sandboxtest.DataDir(t), append([]string{
		"--backend", "nomad", "--nomad-driver", "raw_exec", "--nomad-memory", "256",
	}, args...), "NOMAD_ADDR="+nomad)
}

func serveOn(t *testing.T, dir string, args []string, environ ...string) *orchestrator {
	t.Helper()
	o := &orchestrator{log: filepath.Join(dir, "log")}
	log, err := os.Create(o.log)
	require.NoError(t, err)
	defer log.Close()
	o.cmd = exec.Command(program(t, "orchestrator"), append([]string{ // it is ended below
		"serve", "--listen", "127.0.0.1:0", "--data-dir", filepath.Join(dir, "orchestrator"), "--sandboxd", sandboxtest.Agent(t),
		"--isolation-require", "none",
	}, args...)...)
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "NOMAD_") && !strings.HasPrefix(kv, "ORCHESTRATOR_") {
			o.cmd.Env = append(o.cmd.Env, kv)
		}
	}
	o.cmd.Env = append(o.cmd.Env, environ...)
	o.cmd.Stdout, o.cmd.Stderr = log, log
	require.NoError(t, o.cmd.Start())
	t.Cleanup(func() {
		o.end(t)
		if t.Failed() {
			text, _ := os.ReadFile(o.log)
			t.Logf("log of the orchestrator:\n%s", text[max(0, len(text)-16<<10):])
		}
	})
	o.await(t, "an address", func() bool {
		text, err := os.ReadFile(o.log)
		if _, after, ok := bytes.Cut(text, []byte("address=")); err == nil && ok {
			o.url = "http://" + strings.Fields(string(after))[0]
			return strings.HasSuffix(string(text), "\n")
		}
		return false
	})
	o.Client, err = client.New(client.Config{URL: o.url})
	require.NoError(t, err)
	o.await(t, "that the orchestrator is ready", func() bool { return o.Ready(t.Context()) == nil })
	return o
}

// kill ends the orchestrator at once, as a crash does.
func (o *orchestrator) kill(t *testing.T) {
	t.Helper()
	require.NoError(t, o.cmd.Process.Kill())
	_ = o.cmd.Wait() // says that it was killed
}

// said counts what the orchestrator has logged.
func (o *orchestrator) said(t *testing.T, words string) int {
	t.Helper()
	text, err := os.ReadFile(o.log)
	require.NoError(t, err)
	return strings.Count(string(text), words)
}

// end ends the orchestrator in order. What it ran on Nomad goes on.
func (o *orchestrator) end(t *testing.T) {
	t.Helper()
	if o.cmd.ProcessState != nil {
		return
	}
	_ = o.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	killed := time.AfterFunc(patience, func() { _ = o.cmd.Process.Kill() })
	defer killed.Stop()
	if err := o.cmd.Wait(); err != nil {
		t.Errorf("orchestrator ended: %v", err)
	}
}

// await waits until something is so.
func (o *orchestrator) await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			require.FailNow(t, "waited in vain", "for %s", what)
		}
	}
}

// awaitContainers waits until so many containers are there and none starts.
func (o *orchestrator) awaitContainers(t *testing.T, n int) {
	t.Helper()
	o.await(t, fmt.Sprintf("%d containers", n), func() bool {
		all, err := o.Containers(t.Context())
		return err == nil && len(all) == n
	})
}
