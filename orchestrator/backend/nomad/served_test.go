package nomad_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/template"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator"
	"berth/orchestrator/backend"
	sandboxapi "berth/sandboxd/api"
	"berth/sandboxd/client"
	"berth/slots/sandbox/sandboxtest"
)

// driver runs the tasks of allocations as raw_exec does: the command, the
// environment and the templates are the job's.
type driver struct {
	d *double

	mu    sync.Mutex
	tasks map[string]*task // by allocation
	over  bool             // the test has ended: nothing is started any more
}

type task struct {
	cmd   *exec.Cmd
	dir   string
	ended chan struct{}
	told  bool // to end
}

// drive has the double run real agents.
func drive(t *testing.T, d *double) *driver {
	t.Helper()
	r := &driver{d: d, tasks: map[string]*task{}}
	d.driver = r
	t.Cleanup(func() {
		r.mu.Lock()
		r.over = true
		var all []string
		for id := range r.tasks {
			all = append(all, id)
		}
		r.mu.Unlock()
		for _, id := range all {
			r.stop(id)
		}
	})
	return r
}

// item is an item of a variable, as templates see it.
type item struct{ Value string }

// render renders a template of the job for the allocation. d.mu is held.
func (r *driver) render(text, allocID string) string {
	t := r.d.t
	parsed, err := template.New("").Funcs(template.FuncMap{
		"nomadVar": func(path string) map[string]item {
			out := map[string]item{}
			for name, value := range r.d.variables[path].Items {
				out[name] = item{value}
			}
			return out
		},
		"env": func(name string) string { return map[string]string{"NOMAD_ALLOC_ID": allocID}[name] },
		"hmacSHA256Hex": func(message, key string) string {
			mac := hmac.New(sha256.New, []byte(key))
			mac.Write([]byte(message))
			return hex.EncodeToString(mac.Sum(nil))
		},
		"toJSON": func(v any) (string, error) {
			text, err := json.Marshal(v)
			return string(text), err
		},
	}).Parse(text)
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, parsed.Execute(&out, nil))
	return out.String()
}

// start starts the task of an allocation. d.mu is held.
func (r *driver) start(a *api.Allocation) {
	t := r.d.t
	one := r.d.jobs[a.JobID].TaskGroups[0].Tasks[0]
	k := &task{dir: filepath.Join(sandboxtest.DataDir(t), a.ID[:8]), ended: make(chan struct{})}
	environ := []string{"PATH=" + os.Getenv("PATH"), "NOMAD_ALLOC_DIR=" + filepath.Join(k.dir, "alloc"), "NOMAD_SECRETS_DIR=" + filepath.Join(k.dir, "secrets")}
	for _, name := range []string{"alloc", "secrets"} {
		require.NoError(t, os.MkdirAll(filepath.Join(k.dir, name), 0o711)) //nolint:gosec // slots pass through it
	}
	for _, text := range one.Templates {
		rendered := r.render(*text.EmbeddedTmpl, a.ID)
		require.NoError(t, os.WriteFile(filepath.Join(k.dir, *text.DestPath), []byte(rendered), 0o600))
		if name, value, ok := strings.Cut(rendered, "="); ok && text.Envvars != nil && *text.Envvars {
			var plain string
			require.NoError(t, json.Unmarshal([]byte(value), &plain))
			environ = append(environ, name+"="+plain)
		}
	}
	known := strings.NewReplacer(
		"${NOMAD_IP_http}", "127.0.0.1", "${NOMAD_PORT_http}", fmt.Sprint(a.AllocatedResources.Shared.Ports[0].Value),
		"${NOMAD_SECRETS_DIR}", filepath.Join(k.dir, "secrets"),
	)
	for name, value := range one.Env {
		environ = append(environ, name+"="+known.Replace(value))
	}
	var args []string
	for _, arg := range one.Config["args"].([]any) {
		args = append(args, arg.(string))
	}
	k.cmd = exec.Command(one.Config["command"].(string), args...)
	k.cmd.Env = environ
	k.cmd.Stderr = testWriter{t}
	r.mu.Lock()
	if r.over {
		r.mu.Unlock()
		return
	}
	require.NoError(t, k.cmd.Start())
	r.tasks[a.ID] = k
	r.mu.Unlock()
	go func() { // ends with the task
		err := k.cmd.Wait()
		close(k.ended)
		r.mu.Lock()
		told := k.told
		r.mu.Unlock()
		if !told {
			r.d.do(func() { r.d.fail(a.ID, api.TaskTerminated, fmt.Sprint(err)) })
		}
	}()
}

// stop ends the task of an allocation, as its own end does.
func (r *driver) stop(allocID string) {
	r.mu.Lock()
	k := r.tasks[allocID]
	if k != nil {
		k.told = true
	}
	r.mu.Unlock()
	if k != nil {
		_ = k.cmd.Process.Signal(syscall.SIGTERM)
		<-k.ended
	}
}

// rotate stores another secret, and lets the agents know as the job says.
func (r *driver) rotate(t *testing.T, secret string) {
	t.Helper()
	r.d.do(func() {
		path := jobs.VariablePath(job)
		r.d.index++
		v := *r.d.variables[path]
		v.Items = map[string]string{jobs.Secret: secret, jobs.EnvItem: v.Items[jobs.EnvItem], "env_version": v.Items["env_version"]}
		v.ModifyIndex = r.d.index
		r.d.variables[path] = &v
		text := r.d.jobs[job].TaskGroups[0].Tasks[0].Templates[0]
		assert.Equal(t, "SIGHUP", *text.ChangeSignal)
		r.mu.Lock()
		defer r.mu.Unlock()
		for id, k := range r.tasks {
			rendered := r.render(*text.EmbeddedTmpl, id)
			require.NoError(t, os.WriteFile(filepath.Join(k.dir, *text.DestPath), []byte(rendered), 0o600))
			_ = k.cmd.Process.Signal(syscall.SIGHUP)
		}
	})
}

// runs calls the slot's bash.
func runs(t *testing.T, c backend.Container, command string) (sandboxapi.Result, error) {
	t.Helper()
	agent, err := client.New(client.Config{URL: c.URL, Token: c.Token})
	require.NoError(t, err)
	defer agent.Close()
	args, err := json.Marshal(map[string]string{"command": command})
	require.NoError(t, err)
	return agent.Execute(t.Context(), sandboxapi.Call{SlotID: "slot_0", Tool: "bash", Args: args})
}

func TestRealAgentsRunAsTheJobSays(t *testing.T) {
	d := newDouble(t)
	r := drive(t, d)
	c := d.config(t)
	c.Rotate = 50 * time.Millisecond
	c.Job.Command, c.Job.Args = sandboxtest.Agent(t), []string{"--isolation-attempt", "none"}
	b := open(t, c)
	s := spec("c-0")
	s.Isolation, s.Network = "none", true
	up, err := b.Start(t.Context(), s)
	require.NoError(t, err)
	heard := next(t, b)
	heard()
	result, err := runs(t, up, "echo $KEY")
	require.NoError(t, err)
	assert.Equal(t, "s3cret", result.Output, "the environment comes by the variable")

	r.rotate(t, "another")
	rotated := heard().Container
	assert.NotEqual(t, up.Token, rotated.Token)
	assert.Eventually(t, func() bool {
		result, err := runs(t, rotated, "echo rotated")
		return err == nil && result.Output == "rotated"
	}, patience, 10*time.Millisecond, "no agent was started anew")
	require.NoError(t, b.Stop(t.Context(), "c-0", 0))
	assert.Empty(t, list(t, b))
}

func TestAnOrchestratorServesItsPoolFromNomad(t *testing.T) {
	d := newDouble(t)
	d.again = 10 * time.Millisecond
	r := drive(t, d)
	t.Setenv("NOMAD_ADDR", d.server.URL)
	config, err := orchestrator.Parse([]string{
		"--listen", "127.0.0.1:0", "--backend", "nomad", "--nomad-driver", "raw_exec", "--sandboxd", sandboxtest.Agent(t),
		"--sandboxd-arg", "--isolation-attempt", "--sandboxd-arg", "none", "--isolation-require", "none", "--template", "t",
		"--containers", "1", "--max-containers", "3", "--slots", "2", "--drain-timeout", "5s",
	}, nil, os.Stderr)
	require.NoError(t, err)
	server, err := orchestrator.Open(t.Context(), config, "test", hclog.New(&hclog.LoggerOptions{Output: testWriter{t}}))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }() // waited for below
	t.Cleanup(func() {
		stop()
		assert.NoError(t, <-ended)
	})
	url := "http://" + server.Address().String()

	var all sync.WaitGroup
	for i := range 6 { // the pool has two slots, and may grow to six
		all.Go(func() {
			for n := range 5 {
				assert.Equal(t, fmt.Sprintf("%d-%d", i, n), execute(t, url, i, fmt.Sprintf("echo %d-%d | tee f; cat f > g", i, n)))
			}
		})
	}
	all.Wait()
	assert.Equal(t, 3, d.count(), "callers that wait for slots had it scale out")

	r.mu.Lock()
	for _, k := range r.tasks {
		require.NoError(t, k.cmd.Process.Kill())
	}
	r.mu.Unlock()
	require.Eventually(t, func() bool { return execute(t, url, 100, "echo again") == "again" }, patience, 50*time.Millisecond, "Nomad places others")
}

// execute is a call of a trajectory by the reference's protocol.
func execute(t *testing.T, url string, trajectory int, command string) string {
	t.Helper()
	body, err := json.Marshal(map[string]any{
		"trajectory_id": fmt.Sprint(trajectory), "timeout_s": 30,
		"tool": map[string]any{"name": "bash", "arguments": map[string]string{"command": command}},
	})
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/execute", bytes.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	var out struct{ Output, Error string }
	require.NoError(t, json.NewDecoder(res.Body).Decode(&out))
	if out.Error != "" {
		t.Log(out.Error)
	}
	return out.Output
}
