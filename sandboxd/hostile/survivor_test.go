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
		{id: "S03_RotatingWorms", run: worms},
		{id: "S04_IgnoresSignals", run: ignoresSignals},
		{id: "S05_StopsItself", run: stopsItself},
		{id: "S05_StopsEveryone", run: stopsEveryone},
		{id: "S07_Zombies", run: zombies},
		{id: "S08_ChangesItsName", run: disguised},
		{id: "S09_ForkDuringKill", run: forkDuringKill},
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
	assert.Less(t, time.Since(began).Seconds(), timeout+3)
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
	assert.Less(t, time.Since(began), 3*time.Second)
	s.noStraysBut(t, "cat .canary")
}

// worm forks, lets its parent end, and goes on for ever in new sessions.
const worm = `
import os, signal, sys
def worm():
    for n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)
    while True:
        if os.fork(): os._exit(0)
        os.setsid()
        if os.fork(): os._exit(0)
for n in range(20):
    if os.fork() == 0: worm()
`

func worms(t *testing.T, s *stage) {
	s.needsPids(t)
	r := s.python(t, worm+"print('left them')\n", 20)
	assert.Equal(t, "left them", r.Output)
	s.noStraysBut(t, "cat .canary")
	s.works(t)
	r = s.python(t, worm+"import time\ntime.sleep(60)\n", 1)
	assert.Equal(t, slots.OutcomeTimedOut, r.Metadata.Outcome)
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
	assert.Less(t, time.Since(began), 12*time.Second)
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
	for _, after := range []string{"time.sleep(0.2)\n", "time.sleep(30)\n", "os.execv('/bin/sleep', ['sleep', '0.2'])\n"} {
		r := s.python(t, many+after, 1.5)
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
	r := s.Bash(t, "slot_0", `cat > d.py <<'E'
import ctypes, os, sys, signal
libc = ctypes.CDLL(None)
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
libc.prctl(15, b"sandboxd", 0, 0, 0)
os.chdir("/")
os.closerange(0, 100)
os.execve("/bin/sleep", ["sandboxd serve-slot", "1000"], {})
