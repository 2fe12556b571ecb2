package orchestrator_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/orchestrator"
	"berth/slots/sandbox/sandboxtest"
)

// patience is how long anything may take before a test gives it up.
const patience = 60 * time.Second

const (
	trainerToken  = "trainer's token"
	operatorToken = "operator's token"
)

// instance is one orchestrator that runs in this process.
type instance struct {
	t      testing.TB
	url    string
	dir    string
	log    *locked
	client *http.Client
	stop   func() // ends it as SIGTERM would

	contract *contract // nil: answers are not held against it
}

// locked is a buffer that several may write to.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start starts an orchestrator over the directory, 2 containers with 2 slots
// unless args say otherwise, and waits for its slots. The test's end stops it.
func start(t testing.TB, dir string, args ...string) *instance {
	t.Helper()
	if testing.Short() {
		t.Skip("real containers take seconds to start")
	}
	tokens := t.TempDir()
	for name, token := range map[string]string{"trainer": trainerToken, "operator": operatorToken} {
		require.NoError(t, os.WriteFile(filepath.Join(tokens, name), []byte(token+"\n"), 0o600))
	}
	keys := filepath.Join(tokens, "keys")
	require.NoError(t, os.WriteFile(keys, []byte(orchestrator.NewKey()), 0o600))
	config, err := orchestrator.Parse(append([]string{
		"--config-key-file", keys,
		"--listen", "127.0.0.1:0", "--data-dir", dir, "--sandboxd", sandboxtest.Agent(t), "--isolation-require", "none",
		"--containers", "2", "--slots", "2", "--drain-timeout", "5s",
		"--token-file", filepath.Join(tokens, "trainer"), "--operator-token-file", filepath.Join(tokens, "operator"),
	}, args...), nil, io.Discard)
	require.NoError(t, err)
	i := &instance{t: t, dir: dir, log: &locked{}, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	server, err := orchestrator.Open(t.Context(), config, "test", hclog.New(&hclog.LoggerOptions{Output: i.log, Level: hclog.Debug}))
	require.NoError(t, err)
	i.url = "http://" + server.Address().String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }() // waited for by stop
	var once sync.Once
	i.stop = func() {
		once.Do(func() {
			i.client.CloseIdleConnections()
			cancel()
			select {
			case err := <-ended:
				assert.NoError(t, err) //nolint:testifylint // a cleanup goes on
			case <-time.After(patience):
				assert.Fail(t, "it does not end", "%s", i.log)
			}
		})
	}
	t.Cleanup(i.stop)
	i.contract = newContract(t, i.get("/openapi.json").body)
	want := 0
	for _, template := range config.Templates {
		want += template.MinContainers * template.Slots
	}
	require.Eventually(t, func() bool {
		pool, _ := i.get("/status").object()["pool"].(map[string]any)
		return pool["available_slots"].(float64)+pool["acquired_slots"].(float64) >= float64(want)
	}, patience, 10*time.Millisecond, "%s", i.log)
	return i
}

// reply is an answer of an instance.
type reply struct {
	t      testing.TB
	status int
	header http.Header
	body   []byte
}

// object is the answer's JSON object.
func (r reply) object() map[string]any {
	r.t.Helper()
	var o map[string]any
	require.NoError(r.t, json.Unmarshal(r.body, &o), "%d %s", r.status, r.body)
	return o
}

// metadata is that of a call's answer.
func (r reply) metadata() map[string]any {
	r.t.Helper()
	m, ok := r.object()["metadata"].(map[string]any)
	require.True(r.t, ok, "%s", r.body)
	return m
}

// do sends a request. body is text, or anything that JSON has a form for.
func (i *instance) do(method, path string, body any, headers ...string) reply {
	i.t.Helper()
	r, err := i.try(method, path, body, headers...)
	require.NoError(i.t, err)
	return r
}

// try is do for requests that may find nobody.
func (i *instance) try(method, path string, body any, headers ...string) (reply, error) {
	var content io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		content = strings.NewReader(b)
	case io.Reader:
		content = b
	default:
		text, err := json.Marshal(b)
		if err != nil {
			return reply{}, err
		}
		content = bytes.NewReader(text)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, i.url+path, content)
	if err != nil {
		return reply{}, err
	}
	r.Header.Set("Authorization", "Bearer "+trainerToken)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "" {
			continue
		}
		if r.Header.Set(name, value); value == "" {
			r.Header.Del(name)
		}
	}
	answer, err := i.client.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && i.contract != nil {
		assert.NoError(i.t, i.contract.holds(method, path, answer.StatusCode, answer.Header.Get("Content-Type"), text))
	}
	return reply{i.t, answer.StatusCode, answer.Header, text}, err
}

func (i *instance) get(path string, headers ...string) reply {
	i.t.Helper()
	return i.do(http.MethodGet, path, nil, headers...)
}

func (i *instance) post(path string, body any, headers ...string) reply {
	i.t.Helper()
	return i.do(http.MethodPost, path, body, headers...)
}

// object is short for a JSON object.
type object = map[string]any

// call is the body of a tool call.
func call(trajectory, uniqID, command string) object {
	return object{"trajectory_id": trajectory, "tool": object{"name": "terminal", "arguments": object{"command": command}, "uniq_id": uniqID}}
}

var callNumber struct {
	sync.Mutex
	n int
}

// run runs a command of a trajectory, which must be carried out.
func (i *instance) run(trajectory, command string) string {
	i.t.Helper()
	callNumber.Lock()
	callNumber.n++
	id := fmt.Sprintf("call-%d", callNumber.n)
	callNumber.Unlock()
	r := i.post("/execute", call(trajectory, id, command))
	require.Equal(i.t, http.StatusOK, r.status, "%s", r.body)
	require.NotContains(i.t, r.metadata(), "error_kind", "%s", r.body)
	return r.object()["output"].(string)
}

// pids are the agents that run below the directory, by container.
func (i *instance) pids() map[string]int {
	i.t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(i.t, err)
	agents := map[int]string{} // containers by pid
	for _, of := range found {
		text, err := os.ReadFile(filepath.Join(of, "cmdline"))
		if err != nil {
			continue
		}
		args := strings.Split(string(text), "\x00")
		for n, arg := range args {
			if len(args) > 1 && args[1] == "serve" && arg == "--data-dir" && strings.HasPrefix(args[n+1], i.dir+"/") {
				pid, err := strconv.Atoi(filepath.Base(of))
				require.NoError(i.t, err)
				agents[pid] = filepath.Base(filepath.Dir(args[n+1]))
			}
		}
	}
	out := map[string]int{}
	for pid, container := range agents {
		// What an agent is about to start looks like the agent for a moment.
		if of := parent(pid); of > 0 && agents[of] == "" {
			out[container] = pid
		}
	}
	return out
}

// parent is the pid of the process that started another; 0 when that is gone.
func parent(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	const parentField = 1 // after the name
	if len(fields) <= parentField {
		return 0
	}
	of, err := strconv.Atoi(fields[parentField])
	if err != nil {
		return 0
	}
	return of
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}
