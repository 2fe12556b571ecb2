package hostile_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/slots"
)

// parentOf is the parent of a process, in our own numbering; 0 when it is gone.
func parentOf(pid int) int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, after, _ := strings.Cut(string(status), "\nPPid:\t")
	after, _, _ = strings.Cut(after, "\n")
	parent, _ := strconv.Atoi(after)
	return parent
}

// holderOf finds the holder above the slot's process whose command line holds
// a text, in our own numbering, and the spawner above that.
func (s *stage) holderOf(t *testing.T, text string) (holder, spawner int) {
	t.Helper()
	for deadline := time.Now().Add(agenttest.Patient(20 * time.Second)); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		for _, line := range s.processes(t) {
			if !strings.Contains(line, text) {
				continue
			}
			pid, _ := strconv.Atoi(strings.Fields(line)[0])
			for pid > 1 {
				command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				if strings.HasPrefix(string(command), "sandboxd\x00serve-slot") {
					return pid, parentOf(pid)
				}
				pid = parentOf(pid)
			}
		}
	}
	t.Fatal("found no holder")
	return 0, 0
}

func killedHolder(t *testing.T, s *stage) {
	s.Bash(t, "slot_0", "touch kept", 20)
	type end struct {
		result api.Result
		err    error
	}
	ended := make(chan end, 1)
	go func() {
		r, err := s.Try("slot_0", "sleep 4711 & (setsid sleep 4711 &) ; wait", 20)
		ended <- end{r, err}
	}()
	holder, _ := s.holderOf(t, "4711")
	killed := time.Now()
	require.NoError(t, syscall.Kill(holder, syscall.SIGKILL))
	select {
	case e := <-ended:
		if s.axes[slots.AxisKill] != "pidns" { // the command could have done it
			require.NoError(t, e.err)
			assert.Equal(t, slots.OutcomeSignaled, e.result.Metadata.Outcome)
		} else if assert.Error(t, e.err) {
			assert.Equal(t, slots.KindSlotLost, slots.AsError(e.err).Kind, "%v", e.err)
			assert.Equal(t, slots.ExecutedMaybe, slots.AsError(e.err).Executed)
		}
		s.Within(t, "the end of the call", time.Since(killed), 5*time.Second)
	case <-time.After(time.Minute):
		t.Fatal("the call waits for a holder that is dead")
	}
	s.works(t)
	s.noStraysBut(t, "cat .canary")
	assert.True(t, s.Bash(t, "slot_0", "test -e kept", 20).Success, "its files stay")
}

// killsEveryone kills all that the slot may signal: at the levels of uids
// that is the holder too.
func killsEveryone(t *testing.T, s *stage) {
	if s.axes[slots.AxisProc] == "shared" || s.axes[slots.AxisProc] == "nodump" {
		t.Skip("not promised here, and not tried: everyone would be the whole machine, or the whole user")
	}
	for range 2 {
		_, err := s.Try("slot_0", `(setsid sleep 1000 &); kill -9 -1; kill -9 $PPID; sleep 1`, 5)
		if err != nil {
			assert.Equal(t, slots.KindSlotLost, slots.AsError(err).Kind, "%v", err)
		}
		s.works(t)
	}
	s.noStraysBut(t, "cat .canary")
}

func stopsAgent(t *testing.T, s *stage) {
	if s.axes[slots.AxisProc] == "shared" || s.axes[slots.AxisProc] == "nodump" {
		t.Skip("not promised here: the agent is exposed to signals")
	}
	go s.Try("slot_2", "sleep 4712", 20) // it is there to be found, until the slot is reset
	_, spawner := s.holderOf(t, "4712")
	r := s.Bash(t, "slot_0", fmt.Sprintf(`for n in STOP TSTP KILL TERM; do for p in %d %d; do kill -$n $p && echo sent; done; done 2>/dev/null; echo end`, s.PID, spawner), 20)
	assert.Equal(t, "end", r.Output)
	s.works(t)
}

func clientGoes(t *testing.T, s *stage) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	id := fmt.Sprintf("gone-%d", time.Now().UnixNano())
	ended := make(chan error, 1)
	go func() {
		_, err := s.Execute(ctx, api.Call{SlotID: "slot_0", Tool: "bash", Args: json.RawMessage(`{"command":"echo x >> runs; sleep 1.5; echo end"}`), ExecutionID: id, Timeout: api.Seconds(10 * agenttest.Patience())})
		ended <- err
	}()
	runs := func(line string) bool { return strings.HasSuffix(line, `"sleep 1.5 "`) }
	require.Eventually(t, func() bool { return slices.ContainsFunc(s.processes(t), runs) }, agenttest.Patient(20*time.Second), 20*time.Millisecond)
	cancel()
	require.Error(t, <-ended)
	// What waits behind it and loses its client never starts.
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := s.Execute(short, api.Call{SlotID: "slot_0", Tool: "bash", Args: json.RawMessage(`{"command":"touch never"}`), Timeout: api.Seconds(10 * agenttest.Patience())})
	require.Error(t, err)
	assert.Equal(t, "x", s.Bash(t, "slot_0", "cat runs", 20).Output)
	assert.False(t, s.Bash(t, "slot_0", "test -e never", 20).Success)
	r, state, err := s.Result(t.Context(), id)
	if assert.NoError(t, err) {
		assert.Empty(t, state)
		assert.Equal(t, "end", r.Output, "%+v", r)
	}
}

func sameExecution(t *testing.T, s *stage) {
	id := fmt.Sprintf("same-%d", time.Now().UnixNano())
	call := api.Call{SlotID: "slot_0", Tool: "bash", Args: json.RawMessage(`{"command":"echo x >> runs; sleep 0.5; cat runs"}`), ExecutionID: id, Timeout: api.Seconds(10 * agenttest.Patience())}
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			r, err := s.Execute(context.Background(), call)
			if assert.NoError(t, err) {
				assert.Equal(t, "x", r.Output)
				assert.Equal(t, id, r.ExecutionID)
			}
		})
	}
	all.Wait()
	r, err := s.Execute(t.Context(), call)
	require.NoError(t, err)
	assert.Equal(t, "x", r.Output)
	assert.True(t, r.Metadata.Replayed)
	for what, change := range map[string]func(*api.Call){
		"body":    func(c *api.Call) { c.Args = json.RawMessage(`{"command":"cat /etc/hostname"}`) },
		"slot":    func(c *api.Call) { c.SlotID = "slot_2" },
		"tool":    func(c *api.Call) { c.Tool = "bash_stateful" },
		"timeout": func(c *api.Call) { c.Timeout = api.Seconds(9) },
	} {
		other := call
		change(&other)
		r, err := s.Execute(t.Context(), other)
		if assert.Error(t, err, what) {
			assert.Equal(t, slots.KindConflict, slots.AsError(err).Kind, "%s: %v", what, err)
		}
		assert.NotContains(t, r.Output, "x", "no result leaks: %s", what)
	}
	_, err = s.Reset(t.Context(), "slot_0", nil)
	require.NoError(t, err)
	r, err = s.Execute(t.Context(), call)
	require.NoError(t, err)
	assert.True(t, r.Metadata.Replayed, "also after a reset")
	assert.False(t, s.Bash(t, "slot_0", "test -e runs", 20).Success)
}

// batch runs one command line after the other in slot_0.
func (s *stage) batch(t *testing.T, args []map[string]any) []api.Result {
	t.Helper()
	var calls []api.Call
	for _, a := range args {
		raw, err := json.Marshal(a)
		require.NoError(t, err)
		calls = append(calls, api.Call{SlotID: "slot_0", Tool: "bash", Args: raw, Timeout: api.Seconds(20 * agenttest.Patience())})
	}
	results, err := s.Batch(t.Context(), calls)
	require.NoError(t, err)
	require.Len(t, results, len(args))
	for i, r := range results {
		require.NotNil(t, r.Metadata.Receipt, "%v: %+v", args[i], r)
	}
	return results
}

func exitCodes(t *testing.T, s *stage) {
	var args []map[string]any
	for code := range 256 {
		args = append(args, map[string]any{"command": fmt.Sprintf("exit %d", code)})
	}
	for code, r := range s.batch(t, args) {
		assert.Equal(t, code, r.Metadata.ExitCode)
		assert.Equal(t, slots.OutcomeExited, r.Metadata.Outcome, "exit %d", code)
		assert.Equal(t, code == 0, r.Success)
		assert.Empty(t, r.Metadata.Signal)
		if code != 0 {
			assert.Equal(t, fmt.Sprintf("Exit code: %d", code), r.Error)
		}
	}
}

func exitSignals(t *testing.T, s *stage) {
	unending := map[int]bool{17: true, 18: true, 19: true, 20: true, 21: true, 22: true, 23: true, 28: true, 32: true, 33: true}
	var args []map[string]any
	var numbers []int
	for n := 1; n <= 64; n++ {
		if unending[n] {
			continue
		}
		numbers = append(numbers, n)
		args = append(args, map[string]any{
			"command": "exec /usr/bin/python3 -I -S -",
			"stdin":   fmt.Sprintf("import os, signal\nif %d != 9: signal.signal(%d, signal.SIG_DFL)\nos.kill(os.getpid(), %d)\n", n, n, n),
		})
	}
	for i, r := range s.batch(t, args) {
		assert.Equal(t, slots.OutcomeSignaled, r.Metadata.Outcome, "signal %d", numbers[i])
		assert.Equal(t, 128+numbers[i], r.Metadata.ExitCode)
		assert.NotEmpty(t, r.Metadata.Signal, "signal %d has a name", numbers[i])
	}
}

func notRunnable(t *testing.T, s *stage) {
	for command, want := range map[string][]int{
		"./missing":               {127},
		`ln -s loop loop; ./loop`: {126},
		"no-such-program":         {127},
		"mkdir d; ./d":            {126},
		"echo x > plain; ./plain": {126},
		`printf '\177ELF\2\1\1\0\0\0\0\0\0\0\0\0\2\0\267\0' > arm; head -c 100 /dev/zero >> arm; chmod +x arm; ./arm`: {126},
		`printf '#!/no/such/interpreter\n' > s; chmod +x s; ./s`:                                                      {126, 127},
		`cp /bin/sleep busy; exec 3>>busy; ./busy 0`:                                                                  {126},
	} {
		r, err := s.Try("slot_0", command, 20)
		if assert.NoError(t, err, command) {
			assert.Contains(t, want, r.Metadata.ExitCode, "%s: %q", command, r.Output)
			assert.Contains(t, r.Output, "[stderr]", command)
		}
	}
	for _, cwd := range []string{"missing", "plain", "loop"} {
		_, err := s.Tool("slot_0", "bash", map[string]any{"command": "true", "cwd": cwd}, 20)
		if assert.Error(t, err, cwd) {
			assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind, "%v", err)
		}
	}
	r, err := s.Tool("slot_0", "bash", map[string]any{"command": "echo ran", "env": map[string]string{"PATH": "/nowhere"}}, 20)
	t.Logf("without a PATH: %v %q %v", err, r.Output, r.Metadata.Details["shell"])
	if err != nil {
		assert.NotEqual(t, slots.KindInternal, slots.AsError(err).Kind, "%v", err)
	}
	s.works(t)
}

// TestHostileSCrash kills the agent while its slots are busy.
func TestHostileSCrash(t *testing.T) {
	for _, set := range settings(t) {
		t.Run(set.name+"/S16_AgentKilled", func(t *testing.T) {
			t.Parallel()
			s := newStage(t, set, nil)
			s.Bash(t, "slot_0", "echo secret > old; echo secret > /tmp/old; sleep 0.1", 20)
			for _, c := range []string{"(setsid sleep 1000 &); trap '' TERM HUP; sleep 1000", "sleep 1000"} {
				go s.Try("slot_0", c, 100) // it ends with the agent
			}
			go s.Tool("slot_2", "bash", map[string]any{"command": "sleep 1000 & sleep 1000", "background": true}, 100) // it ends with the agent
			require.Eventually(t, func() bool { return len(s.processes(t)) >= 4 }, agenttest.Patient(20*time.Second), 20*time.Millisecond)
			s.Kill()
			s.noMarked(t)
			again := newStage(t, set, func(o *agenttest.Options) { o.Dir = s.Dir })
			r := again.Bash(t, "slot_0", "ls -A; cat old", 20)
			t.Logf("after the crash slot_0 holds %q", r.Output)
			again.noStrays(t)
		})
	}
}

// noMarked proves, after the agent's end, that nothing of it or of its slots
// is left.
func (s *stage) noMarked(t *testing.T) {
	t.Helper()
	var left []string
	for deadline := time.Now().Add(agenttest.Patient(20 * time.Second)); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		left = nil
		names, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, name := range names {
			env, _ := os.ReadFile(name)
			if strings.Contains(string(env), "STAGE_MARK="+s.mark) || strings.Contains(string(env), "SECRET_OF_THE_AGENT="+s.Token+"\x00") {
				command, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "cmdline"))
				left = append(left, fmt.Sprintf("%s %q", name, command))
			}
		}
		if len(left) == 0 {
			return
		}
	}
	assert.Empty(t, left)
}

// TestHostileSStop asks the agent to end while its slots are busy.
func TestHostileSStop(t *testing.T) {
	const drain = 5 * time.Second // for the rest of a second's sleep, on a slow machine
	for _, set := range settings(t) {
		t.Run(set.name+"/S21_Terminated", func(t *testing.T) {
			t.Parallel()
			s := newStage(t, set, func(o *agenttest.Options) { o.Args = append(o.Args, "--drain-timeout", drain.String()) })
			bar := drain + 8*time.Second + 8*s.Calm(t, "slot_2") // time to drain, and the end of what does not
			type end struct {
				r   api.Result
				err error
			}
			short, long := make(chan end, 1), make(chan end, 1)
			go func() { r, err := s.Try("slot_0", "touch begun; sleep 1; echo finished", 60); short <- end{r, err} }()
			go func() {
				r, err := s.Try("slot_1", "trap '' TERM; (setsid sleep 1000 &); touch begun; sleep 60", 60)
				long <- end{r, err}
			}()
			for _, slot := range []string{"slot_0", "slot_1"} {
				require.Eventually(t, func() bool {
					_, err := os.Stat(filepath.Join(s.Dir, "sandboxes", "slots", slot, "workspace", "begun"))
					return err == nil
				}, time.Minute, 5*time.Millisecond, "%s has begun", slot)
			}
			began := time.Now()
			s.Stop(t)
			assert.Less(t, time.Since(began), bar)
			e := <-short
			if assert.NoError(t, e.err, "what ends in time is answered") {
				assert.Equal(t, "finished", e.r.Output)
			}
			e = <-long
			if assert.Error(t, e.err) {
				assert.Contains(t, []slots.Kind{slots.KindInterrupted, slots.KindDraining}, slots.AsError(e.err).Kind, "%v", e.err)
			}
			s.noMarked(t)
		})
	}
}
