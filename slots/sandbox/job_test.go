package sandbox_test

import (
	"bytes"
	"context"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
	"berth/slots/sandbox"
)

var jobExamples = []example{
	{"a job goes to a process of its own", jobOnce},
	{"a process that stands ready is used and replaced", jobPrimed},
	{"more than one stand ready while jobs come quickly", jobsInAHurry},
	{"a server that takes no job is replaced by a process", jobWithoutServer},
	{"a job ends with its result, and with its context", jobEnds},
}

// onceProgram answers with its source and its job, framed as they came.
const onceProgram = `n() { head -c 8 <&4 | od -An -tu1 | { read a b c d e f g h; echo $((g * 256 + h)); }; }
s=$(head -c $(n) <&4); b=$(head -c $(n) <&4); printf 'T%s|%s' "$s" "$b" >&3; echo out; echo err >&2; `

func once(rest string) sandbox.Interpreter {
	return sandbox.Interpreter{Key: "test" + rest, Source: []byte("source"), Once: []string{"bash", "-c", onceProgram + rest}}
}

// answer takes a result, and tells when something of it is there.
type answer struct {
	mu    sync.Mutex
	text  bytes.Buffer
	whole chan struct{}
}

func (a *answer) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.text.Len() == 0 && a.whole != nil {
		close(a.whole)
	}
	return a.text.Write(p)
}

func job(t *testing.T, x fixture, n sandbox.Interpreter, timeout time.Duration) (string, slots.Exit, sandbox.JobState) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), timeout, sandbox.ErrTimedOut)
	defer cancel()
	var out, errs bytes.Buffer
	var result answer
	exit, state, err := x.s.Job(ctx, sandbox.Job{Interpreter: n, Body: []byte("job"), Stdout: &out, Stderr: &errs, Result: &result})
	require.NoError(t, err)
	if exit.Outcome == slots.OutcomeExited {
		assert.Equal(t, "out\n", out.String())
		assert.Equal(t, "err\n", errs.String())
	}
	return result.text.String(), exit, state
}

const patient = 30 * time.Second

func jobOnce(t *testing.T, x fixture) {
	got, exit, state := job(t, x, once("exit 3"), patient)
	assert.Equal(t, "Tsource|job", got)
	assert.Equal(t, 3, exit.Code)
	assert.False(t, state.Warm)

	m := marker()
	_, exit, _ = job(t, x, once("sleep "+m+" & (setsid sleep "+m+" &) ; true"), patient)
	assert.Equal(t, 0, exit.Code)
	assert.Positive(t, exit.Leftover)
	requireGone(t, m)

	_, _, err := x.s.Job(t.Context(), sandbox.Job{Interpreter: sandbox.Interpreter{Once: []string{"no-such-program"}}})
	assert.Equal(t, slots.KindNotFound, kindOf(t, err))
	_, _, err = x.s.Job(t.Context(), sandbox.Job{Interpreter: sandbox.Interpreter{Once: []string{"/no/such/program"}}})
	assert.Equal(t, slots.KindBadRequest, kindOf(t, err))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = x.s.Job(ended, sandbox.Job{Interpreter: once("")})
	assert.Equal(t, slots.KindInterrupted, kindOf(t, err))
}

func jobPrimed(t *testing.T, x fixture) {
	m := marker()
	n := once("")
	n.Key, n.Once, n.Primed = m, append(n.Once, m), true
	for round := range 3 {
		got, _, state := job(t, x, n, patient)
		assert.Equal(t, "Tsource|job", got)
		assert.Equal(t, round > 0, state.Warm)
		output(t, x.s, "true; sleep 0.01 &") // whose end ends no other process
	}
	requireAlive(t, m)
	require.Eventually(t, func() bool {
		for _, pid := range alive(m) { // it may have begun a child in between
			syscall.Kill(pid, syscall.SIGKILL)
		}
		return len(alive(m)) == 0
	}, patient, 5*time.Millisecond)
	got, _, _ := job(t, x, n, patient)
	assert.Equal(t, "Tsource|job", got, "one that was killed is replaced")
}

func jobsInAHurry(t *testing.T, x fixture) {
	m := marker()
	n := once("")
	n.Key, n.Once, n.Primed = m, append(n.Once, m), true
	// Each comes before the last one's successor is sure to be ready, unless
	// this machine has much to do.
	waiting := func() int {
		job(t, x, n, patient)
		return x.s.Primed(m)
	}
	require.Eventually(t, func() bool { return waiting() > 1 }, patient, time.Millisecond)
	for range 20 {
		assert.LessOrEqual(t, waiting(), 4)
	}
	output(t, x.s, "true; sleep 0.01 &") // spares them all
	requireAlive(t, m)
	_, err := x.s.Reset(t.Context())
	require.NoError(t, err)
	requireGone(t, m)
}

func jobWithoutServer(t *testing.T, x fixture) {
	for _, program := range []string{"no-such-program", "/no/such/program", "true", "false", "head -c 1000 /dev/zero >&3; sleep 600", "head -c 21 /dev/zero >&3; sleep 600"} {
		n := once("")
		n.Key += program
		n.Serve = []string{program}
		if program[0] != 'n' && program[0] != '/' {
			n.Serve = []string{"bash", "-c", program}
		}
		got, exit, _ := job(t, x, n, patient)
		assert.Equal(t, "Tsource|job", got, program)
		assert.Equal(t, 0, exit.Code, program)
	}
	// One that does nothing is given all the time there is, and ended.
	m := marker()
	n := once("")
	n.Key, n.Serve = "idle", []string{"sleep", m}
	got, exit, _ := job(t, x, n, 300*time.Millisecond)
	assert.Empty(t, got)
	assert.Equal(t, slots.OutcomeTimedOut, exit.Outcome)
	requireGone(t, m)
}

func jobEnds(t *testing.T, x fixture) {
	m := marker()
	_, exit, _ := job(t, x, once("(setsid sleep "+m+" &); sleep "+m), 2*time.Second)
	assert.Equal(t, slots.OutcomeTimedOut, exit.Outcome)
	requireGone(t, m)

	result := answer{whole: make(chan struct{})}
	exit, _, err := x.s.Job(t.Context(), sandbox.Job{Interpreter: once("sleep " + m), Body: []byte("job"), Result: &result, Whole: result.whole})
	require.NoError(t, err)
	assert.Equal(t, slots.OutcomeExited, exit.Outcome, "what comes after the result does not count")
	assert.Equal(t, 0, exit.Code)
	requireGone(t, m)
}

func TestASmallSlotHasOneProcessThatWaits(t *testing.T) {
	t.Parallel()
	h := openHost(t, func(c *sandbox.Config) { atLevel(slots.LevelNS)(c); c.Limits.MemoryBytes = 100 << 20 })
	x := fixture{h, open(t, h, "slot_0"), h.Isolation().Level}
	m := marker()
	n := once("")
	n.Once, n.Primed = append(n.Once, m), true
	for range 10 {
		job(t, x, n, patient)
		assert.Equal(t, 1, x.s.Primed(n.Key))
	}
}

func TestAnInterpreterThatIdlesIsEnded(t *testing.T) {
	t.Parallel()
	h := openHost(t, func(c *sandbox.Config) { atLevel(slots.LevelNS)(c); c.JobIdle = 2 * time.Second })
	x := fixture{h, open(t, h, "slot_0"), h.Isolation().Level}
	m := marker()
	n := once("")
	n.Once, n.Primed = append(n.Once, m), true
	job(t, x, n, patient)
	requireAlive(t, m)
	requireGone(t, m)
}
