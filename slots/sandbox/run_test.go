package sandbox_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth/slots"
	"berth/slots/sandbox"
)

func firstLines(text string, n int) string {
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(lines[:min(n, len(lines))], "")
}

var runExamples = []example{
	{"S22 every exit code is reported", everyExitCode},
	{"S22 every deadly signal is reported", everySignal},
	{"output is whole and streams are apart", outputIsWhole},
	{"the streams can be opened by their names", streamsByName},
	{"R13 a child that holds the output does not hold the call", childHoldsOutput},
	{"R12 a command that closes its output runs on", closedOutput},
	{"R14 input that nobody reads does no harm", unreadInput},
	{"input arrives exactly", exactInput},
	{"S23 a program that cannot run is told apart", brokenPrograms},
	{"F20 a working directory that is none is refused", badCwd},
	{"the environment is the slot's and the command's", environment},
	{"a script of any size runs", bigScript},
	{"a call whose context has ended never starts", endedContext},
	{"usage is measured", usage},
}

func everyExitCode(t *testing.T, x fixture) {
	step := 17
	if x.level == slots.LevelNS {
		step = 1
	}
	for code := 0; code < 256; code += step {
		_, _, exit := bash(t, x.s, "exit "+strconv.Itoa(code))
		require.Equal(t, slots.OutcomeExited, exit.Outcome)
		require.Equal(t, code, exit.Code)
	}
}

func everySignal(t *testing.T, x fixture) {
	harmless := []int{3, 17, 18, 19, 20, 21, 22, 23, 28, 32, 33} // ignored (3 by bash), stopping, or the C library's own
	for n := 1; n <= 64; n++ {
		if slices.Contains(harmless, n) {
			continue
		}
		_, _, exit := bash(t, x.s, fmt.Sprintf("kill -%d $$; sleep 5", n))
		require.Equal(t, slots.OutcomeSignaled, exit.Outcome, "signal %d", n)
		require.Equal(t, 128+n, exit.Code)
		name := unix.SignalName(unix.Signal(n))
		if n >= 34 {
			name = fmt.Sprintf("SIGRTMIN+%d", n-34)
		}
		require.Equal(t, name, exit.Signal)
	}
}

func outputIsWhole(t *testing.T, x fixture) {
	out, errs, exit := bash(t, x.s, `head -c 3000000 /dev/zero; printf '\001\377\r\n' >&2`)
	assert.Equal(t, 0, exit.Code)
	assert.Len(t, out, 3000000)
	assert.Equal(t, "\x01\xff\r\n", errs)
}

func childHoldsOutput(t *testing.T, x fixture) {
	m := marker()
	began := time.Now()
	out, _, exit := bash(t, x.s, "(: ; echo late) & sleep "+m+" & (setsid sleep "+m+" &) ; echo early; exit 3")
	assert.Less(t, time.Since(began), 20*time.Second)
	assert.ElementsMatch(t, []string{"early", "late", ""}, strings.Split(out, "\n"), "what comes within the drain is kept")
	assert.Equal(t, 3, exit.Code)
	assert.Equal(t, slots.OutcomeExited, exit.Outcome)
	assert.Positive(t, exit.Leftover)
	requireGone(t, m)
}

func closedOutput(t *testing.T, x fixture) {
	began := time.Now()
	out, _, exit := bash(t, x.s, "echo x; exec >&- 2>&-; sleep 0.2; exit 5")
	assert.Equal(t, "x\n", out)
	assert.Equal(t, 5, exit.Code)
	assert.GreaterOrEqual(t, time.Since(began), 200*time.Millisecond)
}

func unreadInput(t *testing.T, x fixture) {
	for _, size := range []int{1, 60_000, 64 << 10, 64<<10 + 1, 20 << 20} {
		c := script("exit 7")
		c.Stdin = strings.NewReader(strings.Repeat("x", size))
		_, _, exit := run(t, x.s, c)
		assert.Equal(t, 7, exit.Code)
	}
}

func exactInput(t *testing.T, x fixture) {
	for _, size := range []int{0, 1, 64 << 10, 64<<10 + 1, 3_000_001} {
		text := bytes.Repeat([]byte("0123456789abcde\n"), size/16+1)[:size]
		c := script("sha256sum")
		c.Stdin = bytes.NewReader(text)
		out, _, _ := run(t, x.s, c)
		assert.Equal(t, fmt.Sprintf("%x  -\n", sha256.Sum256(text)), out)
	}
	assert.Empty(t, output(t, x.s, "cat"), "no input is an empty one")
}

func brokenPrograms(t *testing.T, x fixture) {
	output(t, x.s, "mkdir dir; printf x > plain; printf '\\177ELF\\2\\1\\1garbage' > elf; chmod +x elf; printf '#!/no/such\\n' > bang; chmod +x bang")
	for _, c := range []struct {
		program string
		kind    slots.Kind
	}{
		{"no-such-program", slots.KindNotFound},
		{"./missing", slots.KindBadRequest},
		{"./dir", slots.KindBadRequest},
		{"./plain", slots.KindBadRequest},
		{"./elf", slots.KindBadRequest},
		{"./bang", slots.KindBadRequest},
		{"", slots.KindNotFound},
	} {
		_, _, _, err := try(x.s, sandbox.Command{Argv: []string{c.program}}, 5*time.Second)
		assert.Equal(t, c.kind, kindOf(t, err), "%q: %v", c.program, err)
		assert.Equal(t, slots.ExecutedNever, slots.AsError(err).Executed, "%q", c.program)
	}
	_, _, _, err := try(x.s, sandbox.Command{}, 5*time.Second)
	require.Error(t, err)
	_, _, _, err = try(x.s, sandbox.Command{Argv: []string{"echo", strings.Repeat("x", 140<<10)}}, 5*time.Second)
	assert.Equal(t, slots.KindBadRequest, kindOf(t, err), "F18: too large for one argument")
	output(t, x.s, "true")
}

func badCwd(t *testing.T, x fixture) {
	output(t, x.s, "mkdir -p a/b; touch file; ln -s nowhere dangling")
	for _, cwd := range []string{"missing", "file", "dangling", "/no/such/dir", strings.Repeat("x", 5000)} {
		c := script("pwd")
		c.Cwd = cwd
		_, _, _, err := try(x.s, c, 5*time.Second)
		assert.Equal(t, slots.KindBadRequest, kindOf(t, err), "%.20q", cwd)
	}
	c := script("pwd")
	c.Cwd = "a/b"
	out, _, _ := run(t, x.s, c)
	assert.True(t, strings.HasSuffix(out, "/a/b\n"), out)
}

// Scripts write to /dev/stderr: the pipes behind it are the slot's own.
func streamsByName(t *testing.T, x fixture) {
	text := "cat /dev/stdin > /dev/stdout; echo problem > /dev/stderr; echo also | tee /dev/stderr"
	for name, change := range map[string]func(*sandbox.Command){
		"collected": func(*sandbox.Command) {}, "live": func(c *sandbox.Command) { c.Live = true },
		"background": func(c *sandbox.Command) { c.Background = true },
	} {
		c := script(text)
		c.Stdin = strings.NewReader("input\n")
		change(&c)
		out, errs, exit := run(t, x.s, c)
		assert.Equal(t, []any{"input\nalso\n", "problem\nalso\n", 0}, []any{out, errs, exit.Code}, name)
	}
	out, errs, exit, _ := shell(t, x, "echo said > /dev/stdout; echo problem > /dev/stderr", 5*time.Second)
	assert.Equal(t, []any{"said\n", "problem\n", 0}, []any{out, errs, exit.Code}, "in the shell")
}

func environment(t *testing.T, x fixture) {
	require.NotEmpty(t, os.Getenv("BERTH_TEST_SECRET_OF_AGENT"), "set by TestMain")
	c := sandbox.Command{Argv: []string{"env"}, Env: []string{"A=1", "A=2", "HOME=/elsewhere", "EMPTY="}}
	out, _, _ := run(t, x.s, c)
	lines := strings.Split(out, "\n")
	assert.Contains(t, lines, "A=2")
	assert.NotContains(t, lines, "A=1")
	assert.Contains(t, lines, "HOME=/elsewhere")
	assert.Contains(t, lines, "EMPTY=")
	assert.NotContains(t, out, "SECRET")
	for _, name := range []string{"PATH", "LC_CTYPE", "OMP_NUM_THREADS", "GOMAXPROCS", "MAKEFLAGS"} {
		assert.Contains(t, out, name+"=")
	}
	out, _, _ = run(t, x.s, script("text=né; echo ${#text}"))
	assert.Equal(t, "2\n", out, "text is UTF-8")
	c = script("type -P env || echo nothing")
	c.Env = []string{"PATH=/nowhere"}
	out, _, _ = run(t, x.s, c)
	assert.Equal(t, "nothing\n", out, "a command's own PATH is for what it starts, the shell is there all the same")
}

func bigScript(t *testing.T, x fixture) {
	text := "v='" + strings.Repeat("a", 300<<10) + "'; echo ${#v} $0 \"$1\""
	for range 2 {
		out, errs, exit := run(t, x.s, sandbox.Command{Argv: []string{"bash"}, Script: []byte(text)})
		assert.Equal(t, 0, exit.Code, errs)
		assert.True(t, strings.HasPrefix(out, strconv.Itoa(300<<10)+" "), out)
	}
}

func endedContext(t *testing.T, x fixture) {
	cause := errors.New("client went away")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	_, runErr := x.s.Run(ctx, script("touch ran"))
	doErr := x.s.Do(ctx, "mkdir", map[string]string{"path": "made"}, nil, nil, nil)
	_, _, shellErr := x.s.Shell(ctx, sandbox.ShellCommand{Command: "touch ran"})
	for _, err := range []error{runErr, doErr, shellErr} {
		assert.Equal(t, slots.KindInterrupted, kindOf(t, err))
		assert.Equal(t, slots.ExecutedNever, slots.AsError(err).Executed)
		require.ErrorIs(t, err, cause)
	}
	assert.Empty(t, output(t, x.s, "ls"))
}

func usage(t *testing.T, x fixture) {
	_, _, exit := bash(t, x.s, "x=$(head -c 8000000 /dev/zero | tr '\\0' a); i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done")
	assert.Greater(t, exit.CPU, 5*time.Millisecond)
	assert.Greater(t, exit.MaxRSS, int64(4<<20))
	assert.Greater(t, exit.Duration, 5*time.Millisecond)
	assert.Positive(t, exit.Spawn)
	output(t, x.s, "touch f")
	_, err := os.Stat(x.s.Workspace() + "/f")
	assert.NoError(t, err, "the agent's name of the workspace follows resets")
}
