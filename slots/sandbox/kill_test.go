package sandbox_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
	"berth/slots/sandbox"
)

var killExamples = []example{
	{"C4 a timeout kills whatever a command did to escape", timeoutKills},
	{"the cause of the end is the outcome", causes},
	{"S07 zombies are reaped", zombies},
	{"S10 a background command lives on", background},
	{"a background command can be killed and can fail", backgroundEnds},
	{"S11 a command that a reset ends is lost", resetUnderCommand},
}

// escapes are commands that would outlive a kill of their process group. %M
// is the marker.
var escapes = map[string]string{
	"S01 double fork and setsid": "(setsid bash -c '(sleep %M &) ; sleep %M' &) ; sleep %M",
	"S02 nohup and disown":       "nohup sleep %M >/dev/null 2>&1 & disown; sleep %M",
	"S03 rotating worm":          "worm() { ( worm & ) ; }; for i in 1 2 3 4 5; do (setsid bash -c 'w() { sleep 0.002; ( w & ); }; w; sleep %M' &) ; done; sleep %M",
	"S04 ignores signals":        "trap '' TERM HUP INT QUIT; (trap '' TERM HUP INT; setsid sleep %M &) ; while :; do sleep %M; done",
	"S05 stops itself":           "(setsid sleep %M &) ; sleep %M & kill -STOP $!; kill -STOP $$; sleep %M",
	"S08 other name and session": "(setsid bash -c 'exec -a kworker sleep %M' &) ; exec -a init sleep %M",
	"S09 forks while it dies":    "trap 'sleep %M & sleep %M &' EXIT TERM; while :; do sleep %M & done 2>/dev/null & sleep 0.05; kill $!; sleep %M",
}

func timeoutKills(t *testing.T, x fixture) {
	for name, text := range escapes {
		t.Run(name, func(t *testing.T) {
			m := marker()
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			out := &firstWrite{then: func() { time.AfterFunc(150*time.Millisecond, func() { cancel(sandbox.ErrTimedOut) }) }}
			c := script("echo partial; " + strings.ReplaceAll(text, "%M", m))
			c.Stdout = out
			exit, err := x.s.Run(ctx, c)
			require.NoError(t, err)
			assert.Less(t, time.Since(out.at), 20*time.Second)
			assert.Equal(t, slots.OutcomeTimedOut, exit.Outcome)
			assert.Equal(t, -1, exit.Code)
			assert.Equal(t, "partial\n", out.String())
			requireGone(t, m)
			assert.Equal(t, "usable\n", output(t, x.s, "echo usable"))
		})
	}
}

// firstWrite calls then when something comes, however loaded the machine is.
type firstWrite struct {
	bytes.Buffer
	at   time.Time
	then func()
}

func (w *firstWrite) Write(p []byte) (int, error) {
	if w.at.IsZero() {
		w.at = time.Now()
		w.then()
	}
	return w.Buffer.Write(p)
}

func causes(t *testing.T, x fixture) {
	for outcome, cause := range map[slots.Outcome]error{
		slots.OutcomeTimedOut: sandbox.ErrTimedOut, slots.OutcomeOutputLimited: sandbox.ErrOutputLimited,
		slots.OutcomeDiskLimited: sandbox.ErrDiskLimited, slots.OutcomeCancelled: errors.New("any other"),
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
		exit, err := x.s.Run(ctx, script("sleep 60"))
		require.NoError(t, err)
		assert.Equal(t, outcome, exit.Outcome)
	}
}

func zombies(t *testing.T, x fixture) {
	out := output(t, x.s, "for i in 1 2 3 4 5 6 7 8 9; do (true & exec true) & done; sleep 0.1; (sleep 0.05 & exec true); exit 0")
	assert.Empty(t, out)
	assert.Equal(t, "0\n", output(t, x.s, `n=0; for p in $(cat /proc/$PPID/task/*/children 2>/dev/null); do grep -q 'State:.Z' /proc/$p/status 2>/dev/null && n=$((n+1)); done; echo $n`))
}

func background(t *testing.T, x fixture) {
	m, n := marker(), marker()
	c := script("sleep " + m + " & (setsid sleep " + n + " &) ; echo started; exit 9")
	c.Background = true
	began := time.Now()
	out, _, exit := run(t, x.s, c)
	assert.Less(t, time.Since(began), 20*time.Second)
	assert.Equal(t, "started\n", out)
	assert.Equal(t, 9, exit.Code)
	assert.Zero(t, exit.Leftover)
	output(t, x.s, "sleep 0.01 & true")
	_, _, timedOut, err := try(x.s, script("sleep 60"), 50*time.Millisecond)
	require.NoError(t, err)
	assert.Equal(t, slots.OutcomeTimedOut, timedOut.Outcome)
	assert.NotEmpty(t, alive(m), "later commands and their timeouts spare it")
	assert.NotEmpty(t, alive(n))
	receipt, err := x.s.Reset(t.Context())
	require.NoError(t, err)
	assert.True(t, receipt.Clean)
	requireGone(t, m)
	requireGone(t, n)
}

func backgroundEnds(t *testing.T, x fixture) {
	m := marker()
	c := script("sleep " + m)
	c.Background = true
	_, _, exit, err := try(x.s, c, 100*time.Millisecond)
	require.NoError(t, err)
	assert.Equal(t, slots.OutcomeTimedOut, exit.Outcome)
	requireGone(t, m)

	c = script("kill -SEGV $$")
	c.Background = true
	_, _, exit = run(t, x.s, c)
	assert.Equal(t, slots.OutcomeSignaled, exit.Outcome)
	assert.Equal(t, "SIGSEGV", exit.Signal)

	c = sandbox.Command{Argv: []string{"no-such-program"}, Background: true}
	_, _, _, err = try(x.s, c, 5*time.Second)
	assert.Equal(t, slots.KindNotFound, kindOf(t, err))
}

func resetUnderCommand(t *testing.T, x fixture) {
	m := marker()
	ended := make(chan error, 1)
	go func() {
		_, _, _, err := try(x.s, script("while :; do echo x >> file; done & sleep "+m), 20*time.Second)
		ended <- err
	}()
	requireAlive(t, m)
	receipt, err := x.s.Reset(t.Context())
	require.NoError(t, err)
	assert.True(t, receipt.Clean, "%+v", receipt)
	assert.Equal(t, slots.KindSlotLost, kindOf(t, <-ended))
	requireGone(t, m)
	assert.Empty(t, output(t, x.s, "sleep 0.05; ls -A"), "nothing old writes into the new workspace")
}
