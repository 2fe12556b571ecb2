// Package agenttest starts real agents for tests and watches, while a test
// does its worst in one slot, that the neighbour slot and the agent itself go
// on as if nothing had happened.
package agenttest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/sandboxd/client"
	"berth/slots"
	"berth/slots/sandbox/sandboxtest"
)

// Options says how to start an agent. Zero fields: level ns+cgroup, 3 slots,
// our own user.
type Options struct {
	Level slots.Level // the strongest to attempt; the agent must reach it
	Slots int
	Args  []string // more of sandboxd serve's flags
	Env   []string
	Dir   string // data directory of an earlier agent; "": a new one
	UID   int    // run the agent as this user; 0: ours
}

// Agent is one running sandboxd.
type Agent struct {
	*client.Client
	URL   string
	Port  int
	Token string
	Dir   string
	PID   int
	Level slots.Level

	cmd  *exec.Cmd
	log  *tail
	done chan struct{}
	err  error

	watch atomic.Pointer[watch] // nil while nobody watches
}

// Start starts an agent and waits until it is ready. It is stopped, and must
// end well, when the test ends.
func Start(t testing.TB, o Options) *Agent {
	t.Helper()
	a := &Agent{Token: "token-of-" + strings.ReplaceAll(t.Name(), "/", "-"), Dir: o.Dir, Level: o.Level, log: &tail{}, done: make(chan struct{})}
	if a.Dir == "" {
		a.Dir = filepath.Join(sandboxtest.DataDir(t), "data")
	}
	require.NoError(t, os.MkdirAll(a.Dir, 0o711))
	tokenFile := filepath.Join(a.Dir, "token")
	require.NoError(t, os.WriteFile(tokenFile, []byte(a.Token+"\n"), 0o600))
	args := []string{
		"serve", "--listen", "127.0.0.1:0", "--slots", fmt.Sprint(max(o.Slots, 1)), "--data-dir", a.Dir, "--token-file", tokenFile,
		"--first-uid", fmt.Sprint(ClaimUIDs(t)),
		"--isolation-attempt", o.Level.String(), "--isolation-require", o.Level.String(),
	}
	if o.Level < slots.LevelNSCgroup {
		args = append(args, "--cgroups", "off")
	}
	a.cmd = exec.Command(sandboxtest.Agent(t), append(args, o.Args...)...) //nolint:noctx // Stop ends it, and asks first
	a.cmd.Env = append([]string{"SECRET_OF_THE_AGENT=" + a.Token, "PATH=" + os.Getenv("PATH")}, o.Env...)
	if o.UID != 0 {
		a.cmd.SysProcAttr = as(o.UID)
		require.NoError(t, os.Chown(a.Dir, o.UID, o.UID))
		require.NoError(t, os.Chown(tokenFile, o.UID, o.UID))
	}
	stderr, err := a.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, a.cmd.Start())
	a.PID = a.cmd.Process.Pid
	address := make(chan string, 1)
	go func() { // ends with the agent
		lines := bufio.NewScanner(stderr)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			a.log.add(lines.Text())
			if _, after, ok := strings.Cut(lines.Text(), ": serving: "); ok {
				_, after, _ = strings.Cut(after, "address=")
				after, _, _ = strings.Cut(after, " ")
				select {
				case address <- after:
				default:
				}
			}
		}
		a.err = a.cmd.Wait()
		close(a.done)
	}()
	t.Cleanup(func() { a.Stop(t) })
	select {
	case at := <-address:
		a.URL = "http://" + at
		_, port, err := net.SplitHostPort(at)
		require.NoError(t, err)
		_, err = fmt.Sscan(port, &a.Port)
		require.NoError(t, err)
	case <-a.done:
		t.Fatalf("agent ended: %v\n%s", a.err, a.log)
	case <-time.After(patience):
		t.Fatalf("agent does not serve\n%s", a.log)
	}
	a.Client, err = client.New(client.Config{URL: a.URL, Token: a.Token})
	require.NoError(t, err)
	t.Cleanup(a.Close)
	require.Eventually(t, func() bool {
		h, err := a.Health(t.Context())
		return err == nil && h.Status == api.HealthOK && h.Available == h.Slots
	}, patience, 5*time.Millisecond, "agent is not ready\n%s", a.log)
	return a
}

// Log is what the agent has logged so far.
func (a *Agent) Log() string { return a.log.String() }

// Alive reports whether the agent runs.
func (a *Agent) Alive() bool {
	select {
	case <-a.done:
		return false
	default:
		return true
	}
}

// Kill ends the agent as a crash would, and waits for it.
func (a *Agent) Kill() {
	a.cmd.Process.Kill() //nolint:errcheck // it may have ended
	<-a.done
}

// Stop asks the agent to end and fails the test when it does not end well. An
// agent that was killed is left alone.
func (a *Agent) Stop(t testing.TB) {
	t.Helper()
	if !a.Alive() {
		return
	}
	a.cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended
	select {
	case <-a.done:
		if a.err != nil {
			t.Errorf("agent ended badly: %v\n%s", a.err, a.log)
		}
	case <-time.After(45 * time.Second):
		a.cmd.Process.Kill() //nolint:errcheck // it may have ended
		<-a.done
		t.Errorf("agent does not end\n%s", a.log)
	}
}

// Bash runs a command in a slot and returns its result; a call that cannot be
// carried out fails the test.
func (a *Agent) Bash(t testing.TB, slot, command string, timeout float64) api.Result {
	t.Helper()
	r, err := a.Try(slot, command, timeout)
	require.NoError(t, err)
	return r
}

// Try is Bash for calls that may fail.
func (a *Agent) Try(slot, command string, timeout float64) (api.Result, error) {
	return a.Tool(slot, "bash", map[string]any{"command": command}, timeout)
}

// Tool runs any tool.
func (a *Agent) Tool(slot, tool string, args map[string]any, timeout float64) (api.Result, error) {
	raw, err := json.Marshal(args)
	if err != nil {
		return api.Result{}, err
	}
	if timeout < mostTimeout {
		timeout = min(timeout*Patience(), mostTimeout)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(timeout*float64(time.Second))+30*time.Second)
	defer cancel()
	return a.Execute(ctx, api.Call{SlotID: slot, Tool: tool, Args: raw, Timeout: api.Seconds(timeout)})
}

// mostTimeout is the longest timeout in seconds that agents take.
const mostTimeout = 3600

// Patience says how many times as slow as others this machine is: that is
// BERTH_PATIENCE, for an emulated one for instance, else 1. The timeouts of
// calls, the bars of Within and what is waited for are as many times as long.
func Patience() float64 {
	factor, err := strconv.ParseFloat(os.Getenv("BERTH_PATIENCE"), 64)
	if err != nil {
		return 1
	}
	return factor
}

// Patient is as long as d is on other machines, see Patience.
func Patient(d time.Duration) time.Duration { return time.Duration(Patience() * float64(d)) }

// tail keeps the last lines of a log.
type tail struct {
	mu    sync.Mutex
	lines []string
}

func (l *tail) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lines = append(l.lines, line); len(l.lines) > 400 {
		l.lines = l.lines[100:]
	}
}

func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

var offered struct {
	once   sync.Once
	levels []slots.Level
	report string
}

// EveryLevel reports whether suites are to run at every level that the
// machine offers, which takes long: BERTH_LEVELS=all. Without it they run at
// the strongest, and at the strongest without namespaces.
func EveryLevel() bool { return os.Getenv("BERTH_LEVELS") == "all" }

// Levels lists the levels at which suites run as our own user: those that the
// machine offers, or, see EveryLevel, the two that matter most of them.
func Levels(t testing.TB) []slots.Level {
	t.Helper()
	all := offeredLevels(t)
	if EveryLevel() || len(all) < 3 {
		return all
	}
	var few []slots.Level
	for _, l := range all {
		if l < slots.LevelNS {
			few = []slots.Level{l}
		}
	}
	return slices.Compact(append(few, all[len(all)-1])) // one and the same, where there are no namespaces
}

// offeredLevels asks the agent's probe for each level.
func offeredLevels(t testing.TB) []slots.Level {
	t.Helper()
	offered.once.Do(func() {
		for _, l := range slots.Levels() {
			if err := Offers(t, l, 0); err != nil {
				offered.report += fmt.Sprintf("%s: %v; ", l, err)
				continue
			}
			offered.levels = append(offered.levels, l)
		}
	})
	if offered.report != "" {
		t.Logf("levels that this machine does not offer here: %s", offered.report)
	}
	return offered.levels
}

// Offers asks the agent's own probe, run as the user, 0 for ours, and with
// more of the agent's flags, whether it would reach the level. The error is
// what the agent says in its refusal. Unless a flag names another, the data
// directory is one that slots may pass through, as those of Start are.
func Offers(t testing.TB, l slots.Level, uid int, flags ...string) error {
	t.Helper()
	args := []string{"probe", "--json", "--isolation-attempt", l.String(), "--data-dir", sandboxtest.DataDir(t)}
	if l < slots.LevelNSCgroup || uid != 0 {
		args = append(args, "--cgroups", "off")
	}
	probe := exec.CommandContext(t.Context(), sandboxtest.Agent(t), append(args, flags...)...)
	if uid != 0 {
		probe.SysProcAttr = as(uid)
	}
	out, err := probe.Output()
	if exit, is := errors.AsType[*exec.ExitError](err); is {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return err
	}
	var report struct{ Isolation slots.Isolation }
	if err := json.NewDecoder(bytes.NewReader(out)).Decode(&report); err != nil {
		return err
	}
	if report.Isolation.Level != l {
		return fmt.Errorf("reached %s", report.Isolation.Level)
	}
	return nil
}

// as makes a process another user's.
func as(uid int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
}
