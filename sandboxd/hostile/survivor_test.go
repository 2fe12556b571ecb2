package hostile_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/slots"
)

// TestHostileS has processes that will not end, and ends them at the worst
// moment.
func TestHostileS(t *testing.T) {
	runAttacks(t, []attack{
		{id: "S01_DaemonAfterTimeout", run: daemonAfterTimeout},
		{id: "S02_NohupAndDisown", run: nohup},
		{id: "S03_RotatingWorms", run: worms, crowds: true},
		{id: "S04_IgnoresSignals", run: ignoresSignals},
		{id: "S05_StopsItself", run: stopsItself},
		{id: "S05_StopsEveryone", run: stopsEveryone},
		{id: "S07_Zombies", run: zombies},
		{id: "S08_ChangesItsName", run: disguised},
		{id: "S09_ForkDuringKill", run: forkDuringKill, crowds: true},
		{id: "S10_BackgroundJobs", run: backgroundJobs},
		{id: "S11_ResetWhileACallRuns", run: resetUnderCall},
		{id: "S12_TwoResetsAtOnce", run: twoResets},
		{id: "S13_CallsDuringReset", run: callsDuringReset},
		{id: "S14_Timeouts", run: oddTimeouts},
		{id: "S15_WallClock", run: wallClock},
		{id: "S17_KilledHolder", run: killedHolder},
		{id: "S17_KillsEveryone", run: killsEveryone},
		{id: "S18_StopsTheAgent", run: stopsAgent},
		{id: "S19_ClientGoesAway", run: clientGoes},
		{id: "S20_SameExecutionAgain", run: sameExecution},
		{id: "S22_EveryExitCode", run: exitCodes},
		{id: "S22_EverySignal", run: exitSignals},
		{id: "S23_FilesThatDoNotRun", run: notRunnable},
	})
}

// timesOut runs a command that must end by its timeout, soon after it, and
// leave nothing.
func (s *stage) timesOut(t *testing.T, command string, timeout float64) api.Result {
	t.Helper()
	began := time.Now()
	r := s.Bash(t, "slot_0", command, timeout)
	assert.Equal(t, slots.OutcomeTimedOut, r.Metadata.Outcome, "%.60q %+v", r.Output, r.Metadata.Receipt)
	s.Within(t, "the timeout of "+command, time.Since(began), 3*time.Second+time.Duration(timeout*float64(time.Second)))
	s.noStraysBut(t, "cat .canary")
	s.works(t)
	return r
}

func daemonAfterTimeout(t *testing.T, s *stage) {
	s.timesOut(t, `(setsid bash -c 'setsid bash -c "trap \"\" TERM HUP INT; sleep 1000; sleep 1000" & exit' &) ; echo out; sleep 60`, 0.6)
}

func nohup(t *testing.T, s *stage) {
	began := time.Now()
	r := s.Bash(t, "slot_0", `nohup sleep 1000 >/dev/null 2>&1 & disown; nohup setsid nohup sleep 1000 & disown -a; echo out`, 20)
	assert.True(t, r.Success)
	assert.Contains(t, r.Output, "out")
	assert.Positive(t, r.Metadata.Leftover)
	s.Within(t, "the call", time.Since(began), 3*time.Second)
	s.noStraysBut(t, "cat .canary")
}

// worm forks, lets its parent end, and goes on for ever in new sessions.
const worm = `
import os, signal, sys
def worm():
    for n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)
    while True:
        try:
            if os.fork(): os._exit(0)
            os.setsid()
            if os.fork(): os._exit(0)
        except OSError: pass # the limit; another worm has just ended
try:
    for n in range(20):
        if os.fork() == 0: worm()
except OSError: pass # the first of them have used it up
`

func worms(t *testing.T, s *stage) {
	s.needsPids(t)
	r := s.python(t, worm+"print('left them')\n", 20)
	assert.True(t, r.Output == "left them" || r.Metadata.OOMKilled, "%+v %s", r.Metadata.Receipt, r.Output)
	s.noStraysBut(t, "cat .canary")
	s.works(t)
	r = s.python(t, worm+"import time\ntime.sleep(60)\n", 1)
	assert.True(t, r.Metadata.Outcome == slots.OutcomeTimedOut || r.Metadata.OOMKilled, "%+v %s", r.Metadata.Receipt, r.Output)
	s.noStraysBut(t, "cat .canary")
	s.works(t)
}

func ignoresSignals(t *testing.T, s *stage) {
	s.timesOut(t, `trap '' TERM HUP INT QUIT USR1 ALRM; while :; do sleep 0.05; done`, 0.6)
}

func stopsItself(t *testing.T, s *stage) {
	s.timesOut(t, `(sleep 1000 & kill -STOP $!); kill -STOP $$; sleep 5`, 0.6)
	s.timesOut(t, `sleep 1000 & kill -STOP 0; sleep 5`, 0.6)
}

// stopsEveryone stops all that the slot may signal: at the levels of uids
// that is the holder too.
func stopsEveryone(t *testing.T, s *stage) {
	if s.axes[slots.AxisProc] == "shared" || s.axes[slots.AxisProc] == "nodump" {
		t.Skip("not promised here, and not tried: everyone would be the whole machine, or the whole user")
	}
	began := time.Now()
	r, err := s.Try("slot_0", `sleep 1000 & kill -STOP -1; kill -STOP $$`, 0.6)
	if err != nil {
		assert.Equal(t, slots.KindSlotLost, slots.AsError(err).Kind, "%v", err)
	} else {
		assert.Equal(t, slots.OutcomeTimedOut, r.Metadata.Outcome)
	}
	t.Logf("%v, %v after %v", r.Metadata.ErrorKind, err, time.Since(began).Round(time.Millisecond))
	s.Within(t, "the timeout", time.Since(began), 12*time.Second)
	s.works(t)
	s.noStraysBut(t, "cat .canary")
}

func zombies(t *testing.T, s *stage) {
	const many = `
import os, time
made = 0
try:
    for n in range(150):
        if os.fork() == 0: os._exit(0)
        made += 1
except OSError: pass
print("made=%d" % made, flush=True)
`
	for after, timeout := range map[string]float64{"time.sleep(0.2)\n": 20, "time.sleep(30)\n": 4, "os.execv('/bin/sleep', ['sleep', '0.2'])\n": 20} {
		r := s.python(t, many+after, timeout)
		assert.Equal(t, 150, number(t, r.Output, "made"), "the zombies of the last call are gone")
	}
	// Orphans that end are the holder's to collect, while the call still runs.
	r := s.python(t, `
import os, time
made = 0
for n in range(400):
    pid = os.fork()
    if pid == 0:
        if os.fork() == 0: os._exit(0)
        os._exit(0)
    os.waitpid(pid, 0)
    made += 1
print("made=%d" % made)
`, 20)
	assert.Equal(t, 400, number(t, r.Output, "made"))
}

func disguised(t *testing.T, s *stage) {
	r := s.python(t, `
import ctypes, os
libc = ctypes.CDLL(None)
print("left", flush=True)
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
libc.prctl(15, b"sandboxd", 0, 0, 0)
os.chdir("/")
os.closerange(0, 100)
os.execve("/bin/sleep", ["sandboxd serve-slot", "1000"], {})
`, 20)
	assert.Equal(t, "left", r.Output)
	s.noStraysBut(t, "cat .canary")
}

func forkDuringKill(t *testing.T, s *stage) {
	s.needsPids(t)
	for range 3 {
		r := s.python(t, `
import os, time
try:
    for n in range(20):
        if os.fork() == 0: break
except OSError: pass
while True:
    try:
        if os.fork() == 0:
            os.setsid()
            time.sleep(0.02)
            os._exit(0)
    except OSError: pass
    try:
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except OSError: pass
`, 0.7)
		assert.True(t, r.Metadata.Outcome == slots.OutcomeTimedOut || r.Metadata.OOMKilled, "%+v %s", r.Metadata.Receipt, r.Output)
		s.noStraysBut(t, "cat .canary")
	}
	s.works(t)
}

func backgroundJobs(t *testing.T, s *stage) {
	r := s.Bash(t, "slot_0", `sleep 1000 & echo $! > pid`, 20)
	assert.True(t, r.Success)
	assert.False(t, s.Bash(t, "slot_0", `kill -0 $(cat pid) 2>/dev/null`, 20).Success, "it dies by default")
	r, err := s.Tool("slot_0", "bash", map[string]any{"command": `sleep 1000 & echo $! > pid; setsid sleep 1001 & echo $! >> pid`, "background": true}, 20)
	require.NoError(t, err)
	assert.True(t, r.Success, r.Error)
	for range 3 {
		assert.True(t, s.Bash(t, "slot_0", `sleep 50 & sleep 0.05`, 20).Success)
	}
	r = s.Bash(t, "slot_0", `sleep 60`, 0.3)
	assert.Equal(t, slots.OutcomeTimedOut, r.Metadata.Outcome)
	r = s.Bash(t, "slot_0", `for p in $(cat pid); do kill -0 $p || exit 1; done`, 20)
	assert.True(t, r.Success, "it lives on through other calls and their ends: %s", r.Output)
	_, err = s.Reset(t.Context(), "slot_0", nil)
	require.NoError(t, err)
	s.noStraysBut(t, "cat .canary")
}

func resetUnderCall(t *testing.T, s *stage) {
	const writer = `
import os, time
for n in range(8):
    if os.fork() == 0: os.setsid(); break
here = os.environ["HOME"]
n = 0
while True:
    n += 1
    for at in (here, ".", os.getcwd(), os.environ.get("TMPDIR", "/tmp")):
        try: open("%s/old-%d-%d" % (at, os.getpid(), n % 50), "w").write("old")
        except OSError: pass
`
	ended := make(chan error, 1)
	go func() {
		_, err := s.Tool("slot_0", "bash", map[string]any{"command": "exec /usr/bin/python3 -I -", "stdin": writer}, 30)
		ended <- err
	}()
	time.Sleep(500 * time.Millisecond)
	began := time.Now()
	receipt, err := s.Reset(t.Context(), "slot_0", nil)
	require.NoError(t, err)
	assert.True(t, receipt.Clean)
	select {
	case err := <-ended:
		if assert.Error(t, err) {
			assert.Equal(t, slots.KindInterrupted, slots.AsError(err).Kind, "%v", err)
			assert.Equal(t, slots.ExecutedYes, slots.AsError(err).Executed, "as far as it came")
		}
		s.Within(t, "the end of the call", time.Since(began), 5*time.Second)
	case <-time.After(time.Minute):
		t.Fatal("the call goes on after the reset")
	}
	for range 5 {
		r := s.Bash(t, "slot_0", `ls -A . "${TMPDIR:-/tmp}" | grep -c old`, 20)
		assert.Equal(t, "0", r.Output)
	}
	s.noStraysBut(t, "cat .canary")
}

func twoResets(t *testing.T, s *stage) {
	s.Bash(t, "slot_0", "touch old", 20)
	before, err := s.Reset(t.Context(), "slot_0", nil)
	require.NoError(t, err)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			receipt, err := s.Reset(context.Background(), "slot_0", nil)
			if assert.NoError(t, err) {
				assert.True(t, receipt.Clean)
				assert.Greater(t, receipt.Generation, before.Generation)
			}
		})
	}
	all.Wait()
	s.works(t)
}

func callsDuringReset(t *testing.T, s *stage) {
	var all sync.WaitGroup
	for n := range 24 {
		if n%6 == 3 {
			all.Go(func() {
				receipt, err := s.Reset(context.Background(), "slot_0", nil)
				if assert.NoError(t, err) {
					assert.True(t, receipt.Clean)
				}
			})
		}
		all.Go(func() {
			r, err := s.Try("slot_0", fmt.Sprintf("echo %d; touch made", n), 20)
			if err != nil {
				e := slots.AsError(err)
				assert.Equal(t, slots.KindInterrupted, e.Kind, "%v", err)
				return
			}
			assert.Equal(t, fmt.Sprint(n), r.Output)
		})
		time.Sleep(5 * time.Millisecond)
	}
	all.Wait()
	s.works(t)
}

func oddTimeouts(t *testing.T, s *stage) {
	for _, text := range []string{"0", "-1", "1e308", `"5"`, "9223372036854775808", "9.3e15", "-0.0", "true", "[1]", "{}", `"NaN"`, "1e-400", "3600.001"} {
		var timeout api.Timeout
		require.NoError(t, timeout.UnmarshalJSON([]byte(text)))
		r, err := s.Execute(t.Context(), api.Call{SlotID: "slot_0", Tool: "bash", Args: json.RawMessage(`{"command":"touch ran"}`), Timeout: timeout})
		if assert.Error(t, err, text) {
			assert.Equal(t, slots.KindBadRequest, slots.AsError(err).Kind, "%s: %v", text, err)
			assert.Equal(t, slots.ExecutedNever, slots.AsError(err).Executed, text)
		}
		assert.False(t, r.Success)
	}
	assert.False(t, s.Bash(t, "slot_0", "test -e ran", 20).Success, "none of them has run")
	for _, text := range []string{"NaN", "Infinity", "-Infinity", "0x10", "01", "1e400"} {
		body := `{"slot_id":"slot_0","tool":"bash","args":{"command":"touch ran"},"timeout":` + text + `}`
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/execute", strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+s.Token)
		answer, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		assert.Less(t, answer.StatusCode, 500, text)
		answer.Body.Close()
	}
	assert.False(t, s.Bash(t, "slot_0", "test -e ran", 20).Success, "none of them has run")
	began := time.Now()
	r := s.Bash(t, "slot_0", "sleep 60", 1e-6)
	assert.Equal(t, slots.OutcomeTimedOut, r.Metadata.Outcome)
	s.Within(t, "the shortest timeout", time.Since(began), 3*time.Second)
	assert.True(t, s.Bash(t, "slot_0", "true", 3600).Success)
}

// A jump of the machine's clock cannot be tried on a machine that others use;
// that a slot cannot make one can.
func wallClock(t *testing.T, s *stage) {
	if !s.confined() {
		t.Skip("not promised here, and not tried: root without a filter may set the clock")
	}
	r := s.python(t, `
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
t = (ctypes.c_long * 2)(1, 0)
def why(n): return ctypes.get_errno() if n < 0 else 0
print("clock_settime=%d" % why(libc.clock_settime(0, ctypes.byref(t))))
print("settimeofday=%d" % why(libc.settimeofday(ctypes.byref(t), None)))
`, 20)
	assert.Equal(t, 1, number(t, r.Output, "clock_settime"))
	assert.Equal(t, 1, number(t, r.Output, "settimeofday"))
}
