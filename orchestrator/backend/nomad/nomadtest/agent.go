package nomadtest

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/template"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

// patience is how long an agent may take for anything.
const patience = 90 * time.Second

// look is how long it is between two looks at whether something is so.
const look = 50 * time.Millisecond

// Config says which agent to start.
type Config struct {
	Servers []string // RPC addresses of the servers of a client only; none: the agent is server and client at once
	NoNode  bool     // the agent is a server only
	ACL     bool     // only who bears a token is answered; Agent.Bootstrap makes the first one
	Memory  bool     // tasks may use more memory than they reserve
	Driver  string   // that has to run tasks; default raw_exec
	Network string   // interface that the ports of tasks are on; default the loopback
	Extra   string   // more of the agent's configuration, in HCL
}

// Agent is a Nomad agent that runs. Its fields do not change.
type Agent struct {
	URL    string // of its API
	RPC    string // address of its server
	Name   string // of its node
	Dir    string // that it keeps its state in
	Client *api.Client

	t      testing.TB
	bin    string
	node   bool
	driver string

	mu     sync.Mutex // guards what follows
	cmd    *exec.Cmd
	exited chan struct{}
}

// Program finds Nomad, or skips the test.
func Program(t testing.TB) string {
	t.Helper()
	bin, err := exec.LookPath("nomad")
	if err != nil {
		err = fmt.Errorf("%w: put a nomad of 1.8.2 or newer on PATH, and start the test again", err)
	}
	need.Facility(t, "nomad", err)
	return bin
}

// Start starts an agent, waits until it answers and, when it is a client,
// until work may be placed on it. The test's end stops all that it runs.
func Start(t testing.TB, c Config) *Agent {
	t.Helper()
	bin := Program(t)
	var root error
	if os.Geteuid() != 0 {
		root = fmt.Errorf("nomad's clients run tasks as root only: run the test as root")
	}
	need.Facility(t, "root", root)
	ports := freePorts(t, 3)
	a := &Agent{
		URL: fmt.Sprintf("http://127.0.0.1:%d", ports[0]), RPC: fmt.Sprintf("127.0.0.1:%d", ports[1]), Name: fmt.Sprintf("node-%d", ports[0]),
		Dir: sandboxtest.DataDir(t), t: t, bin: bin, node: !c.NoNode,
		driver: cmp.Or(c.Driver, "raw_exec"),
	}
	servers, serves := c.Servers, len(c.Servers) == 0
	if serves {
		servers = []string{a.RPC}
	}
	var text strings.Builder
	require.NoError(t, settings.Execute(&text, map[string]any{
		"Agent": a, "HTTP": ports[0], "RPC": ports[1], "Serf": ports[2], "Serves": serves, "Servers": servers, "Config": c,
	}))
	require.NoError(t, os.WriteFile(a.config(), []byte(text.String()), 0o600))
	at := api.DefaultConfig()
	at.Address, at.SecretID, at.Namespace, at.Region = a.URL, "", "", ""
	var err error
	a.Client, err = api.NewClient(at)
	require.NoError(t, err)
	t.Cleanup(a.end)
	a.Run()
	if serves && a.node {
		a.registered()
	}
	if c.ACL {
		return a // nobody may ask for its node yet
	}
	a.Wait()
	return a
}

// settings is the configuration of an agent.
var settings = template.Must(template.New("").Parse(`
name = "{{ .Agent.Name }}"
data_dir = "{{ .Agent.Dir }}/nomad"
bind_addr = "127.0.0.1"
log_level = "INFO"
disable_update_check = true
leave_on_terminate = true
advertise {
  http = "127.0.0.1"
  rpc = "127.0.0.1"
  serf = "127.0.0.1"
}
ports {
  http = {{ .HTTP }}
  rpc = {{ .RPC }}
  serf = {{ .Serf }}
}
{{- if .Serves }}
server {
  enabled = true
  bootstrap_expect = 1
  raft_multiplier = 1
  default_scheduler_config {
    memory_oversubscription_enabled = {{ .Config.Memory }}
  }
}
{{- end }}
{{- if not .Config.NoNode }}
client {
  enabled = true
  network_interface = "{{ or .Config.Network "lo" }}"
  servers = [{{ range $i, $s := .Servers }}{{ if $i }}, {{ end }}"{{ $s }}"{{ end }}]
  cpu_total_compute = 64000
  memory_total_mb = 262144
  drain_on_shutdown {
    deadline = "1s"
    force = true
  }
  options {
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean,consul,vault,cni"
  }
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
{{- end }}
{{- if .Config.ACL }}
acl {
  enabled = true
}
{{- end }}
{{ .Config.Extra }}
`))

func (a *Agent) config() string { return filepath.Join(a.Dir, "agent.hcl") }

// freePorts finds ports of the loopback that nobody listens on.
func freePorts(t testing.TB, n int) []int {
	t.Helper()
	var all []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is closed at once
		require.NoError(t, err)
		defer func() { _ = l.Close() }() // after the last, so that they differ
		all = append(all, l.Addr().(*net.TCPAddr).Port)
	}
	return all
}

// Run starts the agent's process again after Kill. What it ran is still there.
func (a *Agent) Run() {
	a.t.Helper()
	log, err := os.OpenFile(filepath.Join(a.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(a.t, err)
	defer log.Close()
	cmd := exec.Command(a.bin, "agent", "-config", a.config()) //nolint:noctx // it outlives the test's context: end ends it
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(a.t, cmd.Start())
	exited := make(chan struct{})
	go func() { // ends with the process, which end waits for
		defer close(exited)
		_ = cmd.Wait()
	}()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cmd, a.exited = cmd, exited
}

// Kill ends the agent's process at once, as a crash does. The tasks go on.
func (a *Agent) Kill() {
	a.mu.Lock()
	cmd, exited := a.cmd, a.exited
	a.mu.Unlock()
	_ = cmd.Process.Kill()
	<-exited
}

// Wait waits until the agent knows a leader and, if it has a node, that is
// ready for work.
func (a *Agent) Wait() {
	a.t.Helper()
	a.mu.Lock()
	exited := a.exited
	a.mu.Unlock()
	for deadline := time.Now().Add(patience); !a.ready(); {
		select {
		case <-exited:
			require.FailNow(a.t, "nomad has ended", "its log ends so:\n%s", a.Log())
		case <-time.After(look):
		}
		require.True(a.t, time.Now().Before(deadline), "nomad is not ready; its log ends so:\n%s", a.Log())
	}
}

// registered sees to it that a new agent's node is known. A node that its
// server met before there was a keyring tries again after most of a minute
// only, unless the agent is started again.
func (a *Agent) registered() {
	a.t.Helper()
	const made, told = "initialized keyring", "node registration complete"
	var text string
	for deadline := time.Now().Add(patience); !strings.Contains(text, made); text = a.Log() {
		require.True(a.t, time.Now().Before(deadline), "nomad has no keyring; its log ends so:\n%s", text)
		<-time.After(look)
	}
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); <-time.After(look) {
		if strings.Contains(a.Log(), told) {
			return
		}
	}
	a.Kill()
	a.Run()
}

func (a *Agent) ready() bool {
	if leader, err := a.Client.Status().Leader(); err != nil || leader == "" {
		return false
	}
	if !a.node {
		return true
	}
	nodes, _, err := a.Client.Nodes().List(nil)
	if err != nil {
		return false
	}
	for _, n := range nodes {
		if n.Name == a.Name && n.Status == api.NodeStatusReady && n.Drivers[a.driver] != nil && n.Drivers[a.driver].Healthy {
			return true
		}
	}
	return false
}

// Log is the end of the agent's log.
func (a *Agent) Log() string {
	text, err := os.ReadFile(filepath.Join(a.Dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-64<<10):])
}

// NodeID is the ID of the agent's node.
func (a *Agent) NodeID() string {
	a.t.Helper()
	nodes, _, err := a.Client.Nodes().List(nil)
	require.NoError(a.t, err)
	for _, n := range nodes {
		if n.Name == a.Name {
			return n.ID
		}
	}
	require.Fail(a.t, "no such node", "%s", a.Name)
	return ""
}

// Command is one of Nomad's own commands, for this agent.
func (a *Agent) Command(words ...string) *exec.Cmd {
	cmd := exec.CommandContext(a.t.Context(), a.bin, words...)
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "NOMAD_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "NOMAD_ADDR="+a.URL)
	return cmd
}
