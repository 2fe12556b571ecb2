package sandbox_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
	"berth/slots/sandbox"
)

var shellExamples = []example{
	{"a shell keeps what it was told", shellSemantics},
	{"a shell's output is exact", shellOutput},
	{"a shell's jobs outlive commands, timeouts and other calls", shellJobs},
	{"C04 a command that is ended runs nothing of its rest", shellRest},
	{"a shell that is busy by itself is replaced", shellBusy},
	{"a shell restarts as asked", shellRestart},
	{"a background job does not delay the shell", shellQuiet},
	{"a shell survives what is written to its status pipe", shellForged},
}

func shell(t testing.TB, x fixture, text string, timeout time.Duration) (stdout, stderr string, exit slots.Exit, state sandbox.ShellState) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), timeout, sandbox.ErrTimedOut)
	defer cancel()
	return shellUntil(ctx, t, x, text)
}

// shellTimesOut is shell for a command whose time is over once it has come so
// far, however loaded the machine is.
func shellTimesOut(t testing.TB, x fixture, text string, come func() bool) (stdout, stderr string, exit slots.Exit, state sandbox.ShellState) {
	t.Helper()
	ctx, over := context.WithCancelCause(t.Context())
	var watch sync.WaitGroup
	defer watch.Wait()
	watch.Go(func() {
		defer over(sandbox.ErrTimedOut)
		for end := time.Now().Add(20 * time.Second); !come() && time.Now().Before(end); {
			time.Sleep(5 * time.Millisecond)
		}
	})
	return shellUntil(ctx, t, x, text)
}

func shellUntil(ctx context.Context, t testing.TB, x fixture, text string) (stdout, stderr string, exit slots.Exit, state sandbox.ShellState) {
	t.Helper()
	var out, errs bytes.Buffer
	exit, state, err := x.s.Shell(ctx, sandbox.ShellCommand{Command: text, Stdout: &out, Stderr: &errs})
	require.NoError(t, err, "%.80q", text)
	return out.String(), errs.String(), exit, state
}

func said(t testing.TB, x fixture, text string) string {
	t.Helper()
	out, errs, exit, _ := shell(t, x, text, 10*time.Second)
	require.Equal(t, 0, exit.Code, "%.80q: %s%s", text, out, errs)
	return out
}

func shellSemantics(t *testing.T, x fixture) {
	const anyFailure = -2
	for _, c := range []struct {
		text      string
		out       string
		errs      string // a part of stderr; "" for none at all
		code      int
		restarted bool
		note      string // a part of it
	}{
		{text: "x=5; declare -a l=(1 '2 3'); export E=e; f() { echo f$x; }; mkdir -p d; cd d"},
		{text: `f; echo "${l[1]}"; sh -c 'echo $E'; basename "$PWD"`, out: "f5\n2 3\ne\nd\n"},
		{text: "alias ll='echo aliased'; shopt -s expand_aliases nullglob"},
		{text: "ll; echo *.none", out: "aliased\n\n"},
		{text: "false", code: 1},
		{text: "echo $?", out: "1\n"},
		{text: "echo out; echo err >&2; exit_code() { return 42; }; exit_code", out: "out\n", errs: "err\n", code: 42},
		{text: "cat <<EOF\nhi $x\nEOF", out: "hi 5\n"},
		{text: "cat <<X\nnever ended", out: "never ended\n", errs: "here-document"},
		{text: `echo "unterminated`, errs: "unexpected EOF", code: 2},
		{text: "(", errs: "syntax error", code: 2},
		{text: "if true; then", errs: "syntax error", code: 2},
		{text: "# nothing but a comment"},
		{text: " \n\t "},
		{text: "echo a # comment\necho b", out: "a\nb\n"},
		{text: "echo one; \\\necho two", out: "one\ntwo\n"},
		{text: "printf 'no newline'", out: "no newline"},
		{text: `read y; echo "got<$y>"`, out: "got<>\n"},
		{text: "cat", out: ""},
		{text: "no-such-command", errs: "command not found", code: 127},
		{text: "sleep 0.01 | exit 3", code: 3},
		{text: "exit 4", code: 4, restarted: true},
		{text: "f; echo $E; basename $PWD", out: "f5\ne\nd\n"},
		{text: "g() { exit 9; }; g", code: 9, restarted: true},
		{text: "echo $x ${l[1]}", out: "5 2 3\n"},
		{text: "set -e; false; echo not reached", code: 1, restarted: true},
		{text: "false; echo reached $x", out: "reached 5\n"},
		{text: "set -u; echo $nope", errs: "unbound", code: anyFailure, restarted: true},
		{text: "set +u; echo -$nope- $x", out: "-- 5\n"},
		{text: "trap 'echo caught' USR1; kill -USR1 $BASHPID", out: "caught\n"},
		{text: "break; echo on", out: "on\n", errs: "only meaningful in a"},
		{text: "continue; echo on", out: "on\n", errs: "only meaningful in a"},
		{text: "return; echo on", out: "on\n", errs: "can only `return' from"},
		{text: "for i in 1 2; do while :; do break 7; done; done; echo $i $x", out: "1 5\n"},
		{text: "declare -A m=([k]=v); set -- 1 2; set -v"},
		{text: "echo ${m[k]} $2", out: "v 2\n", errs: "echo ${m[k]}"},
		{text: "set +v; TMOUT=1; sleep 1.2", errs: "set +v"},
		{text: "unset TMOUT; exec true", restarted: true, note: "starts empty"},
		{text: "echo again${x-.}", out: "again.\n"},
		{text: "trap 'echo BYE; echo bye >&2' EXIT; exit 3", out: "BYE\n", errs: "bye", code: 3, restarted: true, note: "starts empty"},
		{text: "x=7"},
		{text: "exit", restarted: true, note: "takes up"},
		{text: "echo $x", out: "7\n"},
		{text: "exec sh -c 'sleep 0.1; echo other; exit 8'", out: "other\n", code: 8, restarted: true},
		{text: "x=6; kill -9 $$", code: 137, restarted: true},
		{text: "echo -$x-", out: "--\n"},
		{text: "kill -TERM $$; echo alive?", code: anyFailure, restarted: true},
		{text: "echo fine", out: "fine\n"},
	} {
		out, errs, exit, state := shell(t, x, c.text, 10*time.Second)
		assert.Equal(t, c.out, out, "%q", c.text)
		if c.errs == "" {
			assert.Empty(t, errs, "%q", c.text)
		}
		assert.Contains(t, errs, c.errs, "%q", c.text)
		if c.code == anyFailure {
			assert.NotZero(t, exit.Code, "%q", c.text)
		} else {
			assert.Equal(t, c.code, exit.Code, "%q", c.text)
		}
		if c.restarted { // told with the command that ended it, and again with the next
			assert.True(t, state.Restarted, "%q", c.text)
			assert.NotEmpty(t, state.Note, "%q", c.text)
			assert.Contains(t, state.Note, c.note, "%q", c.text)
		}
	}
}

func shellOutput(t *testing.T, x fixture) {
	assert.Equal(t, "\x00\x01\xff\r\n\x1b[0m", said(t, x, `printf '\000\001\377\r\n\033[0m'`))
	assert.Len(t, said(t, x, "head -c 2000000 /dev/zero"), 2_000_000)
	text := "v='" + strings.Repeat("a\\n", 350_000) + "'; echo ${#v}"
	assert.Equal(t, "1050000\n", said(t, x, text), "a command of 1 MB")
	assert.Equal(t, "1050000\n", said(t, x, "echo ${#v}"))
	assert.Equal(t, "echo $'\\x00'\n", said(t, x, `echo "echo $'\x00'"`))
	for _, n := range []int{4095, 4096, 4097, 65536} {
		assert.Equal(t, "ok\n", said(t, x, "echo ok #"+strings.Repeat("x", n-9)), "%d", n)
	}
}

func shellJobs(t *testing.T, x fixture) {
	old, young := marker(), marker()
	said(t, x, "sleep "+old+" & (setsid sleep "+old+" &)")
	assert.Equal(t, "1\n", said(t, x, "jobs -r | wc -l"))
	output(t, x.s, "true; sleep 0.02 &")
	_, _, _, err := try(x.s, script("sleep 60"), 50*time.Millisecond)
	require.NoError(t, err)
	assert.Len(t, alive(old), 2, "other calls spare the shell's jobs")

	_, _, exit, state := shellTimesOut(t, x, "(setsid sleep "+young+" &); sleep "+young, func() bool { return len(alive(young)) == 2 })
	assert.Equal(t, slots.OutcomeTimedOut, exit.Outcome)
	assert.Equal(t, -1, exit.Code)
	assert.False(t, state.Restarted, "the shell itself comes back")
	requireGone(t, young)
	assert.Len(t, alive(old), 2, "a timeout kills only what its command started")
	assert.Equal(t, "1\n", said(t, x, "jobs -r | wc -l"))
}

func shellRest(t *testing.T, x fixture) {
	for _, text := range []string{
		"x=1; sleep %M; x=2; echo more; touch ran",
		"x=1; sleep %M || x=2; echo more >ran && x=3",
		"x=1; for i in 1 2; do sleep %M; x=2; touch ran; done",
		"x=1; f() { while sleep %M; do x=2; touch ran; done; touch ran; }; f; touch ran",
		"x=1; f() { while :; do sleep %M; touch ran; done; }; f; touch ran",
		"x=1; (sleep %M; touch ran); { touch ran; }; [[ a == a ]] && x=2",
		"trap : DEBUG; x=1; wait; sleep %M; x=2; touch ran",
	} {
		m := marker()
		out, errs, exit, state := shellTimesOut(t, x, strings.ReplaceAll(text, "%M", m), func() bool { return len(alive(m)) > 0 })
		assert.Equal(t, slots.OutcomeTimedOut, exit.Outcome, text)
		assert.False(t, state.Restarted, text)
		assert.Empty(t, out, text)
		assert.NotContains(t, errs, "berth", text)
		assert.Equal(t, "1 absent off\n", said(t, x, "o=on; shopt -q extdebug || o=off; f=; [ -e ran ] || f=absent; echo $x $f $o"), text)
	}
	assert.Equal(t, "trap -- ':' DEBUG\n", said(t, x, "trap -p DEBUG"))
}

func shellBusy(t *testing.T, x fixture) {
	said(t, x, "y=1")
	began := time.Now()
	ctx, over := context.WithCancelCause(t.Context())
	out := &firstWrite{then: func() { over(sandbox.ErrTimedOut) }}
	exit, state, err := x.s.Shell(ctx, sandbox.ShellCommand{Command: "echo busy; while :; do :; done", Stdout: out})
	require.NoError(t, err)
	assert.Less(t, time.Since(began), 20*time.Second)
	assert.Equal(t, slots.OutcomeTimedOut, exit.Outcome)
	assert.Equal(t, "busy\n", out.String())
	assert.True(t, state.Restarted)
	assert.Contains(t, state.Note, "SIGKILL")
	assert.Equal(t, "--\n", said(t, x, "echo -$y-"))
}

func shellRestart(t *testing.T, x fixture) {
	m := marker()
	said(t, x, "y=1; sleep "+m+" &")
	requireAlive(t, m)
	var out bytes.Buffer
	exit, state, err := x.s.Shell(t.Context(), sandbox.ShellCommand{Restart: true})
	require.NoError(t, err)
	assert.Equal(t, 0, exit.Code)
	assert.True(t, state.Restarted)
	requireGone(t, m)
	exit, state, err = x.s.Shell(t.Context(), sandbox.ShellCommand{Restart: true, Command: "echo -$y-", Stdout: &out})
	require.NoError(t, err)
	assert.True(t, state.Restarted)
	assert.Equal(t, 0, exit.Code)
	assert.Equal(t, "--\n", out.String())
}

func shellQuiet(t *testing.T, x fixture) {
	m := marker()
	said(t, x, "true")
	const delayed = 120 * time.Millisecond // each would take more if the pipes' end were awaited
	fastest := time.Hour
	for tries := 0; fastest >= delayed && tries < 50; tries++ {
		began := time.Now()
		assert.Equal(t, "x\n", said(t, x, "sleep "+m+" & echo x"))
		fastest = min(fastest, time.Since(began))
	}
	assert.Less(t, fastest, delayed)
	out := said(t, x, "(for i in {1..3000}; do echo $i; done) & echo 0; wait $!")
	assert.Contains(t, out, "\n3000\n")
	began := time.Now()
	shell(t, x, "(while :; do echo y; done) & true", time.Minute)
	assert.Less(t, time.Since(began), 20*time.Second, "but not for ever")
}

func shellForged(t *testing.T, x fixture) {
	said(t, x, "true")
	pid := strings.TrimSpace(said(t, x, "echo $$"))
	for _, forgery := range []string{"77\\n", "nonsense\\n", strings.Repeat("9", 100), "1\\n2\\n3\\n4\\n5\\n6\\n"} {
		bash(t, x.s, "printf '"+forgery+"' > /proc/"+pid+"/fd/4")
		shell(t, x, "echo whatever", 10*time.Second)
		shell(t, x, "echo whatever", 10*time.Second)
	}
	_, _, err := x.s.Shell(t.Context(), sandbox.ShellCommand{Restart: true})
	require.NoError(t, err)
	assert.Equal(t, "fine\n", said(t, x, "echo fine"))
}
