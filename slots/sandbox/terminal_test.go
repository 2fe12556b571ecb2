package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth/slots"
	"berth/slots/sandbox"
)

var terminalExamples = []example{
	{"a terminal is one for what runs on it", terminalIsOne},
	{"a shell on a terminal controls its jobs", terminalJobs},
	{"what was started on a terminal ends with it", terminalEnds},
	{"a terminal that is closed takes everything along", terminalCloses},
	{"a terminal and commands do not meet", terminalBeside},
	{"a terminal passes everything on, both ways", terminalCarries},
	{"a terminal that cannot start says why", terminalRefused},
	{"nobody else types into a terminal", terminalPrivate},
	{"a terminal whose keeper is killed leaves commands alone", terminalKeeperKilled},
	{"a terminal ends with its slot", terminalReset},
}

// screen is a terminal with what it has shown so far.
type screen struct {
	t    testing.TB
	tty  sandbox.Terminal
	end  context.CancelCauseFunc
	read chan struct{} // closed when it shows nothing any more

	mu   sync.Mutex
	text strings.Builder
	from int
}

func onTerminal(t testing.TB, s *sandbox.Sandbox, c sandbox.TerminalCommand) *screen {
	t.Helper()
	ctx, end := context.WithCancelCause(context.Background())
	tty, err := s.Terminal(ctx, c)
	require.NoError(t, err)
	x := &screen{t: t, tty: tty, end: end, read: make(chan struct{})}
	t.Cleanup(func() { assert.NoError(t, tty.Close()); <-x.read; end(nil) })
	go func() {
		defer close(x.read)
		buf := make([]byte, 32<<10)
		for {
			n, err := tty.Read(buf)
			x.mu.Lock()
			x.text.Write(buf[:n])
			x.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return x
}

// bashTerminal is an interactive bash that has said that it is there.
func bashTerminal(t testing.TB, s *sandbox.Sandbox) *screen {
	t.Helper()
	x := onTerminal(t, s, sandbox.TerminalCommand{Argv: []string{"bash", "--norc", "-i"}, Env: []string{"PS1=ready> ", "TERM=xterm"}, Columns: 80, Rows: 24})
	x.expect("ready> ")
	return x
}

func (x *screen) shown() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.text.String()
}

// expect waits for the text behind what was expected before.
func (x *screen) expect(text string) {
	x.t.Helper()
	require.Eventually(x.t, func() bool { return strings.Contains(x.shown()[x.from:], text) }, 30*time.Second, 5*time.Millisecond,
		"%q is not in %q", text, x.shown()[x.from:])
	x.from += strings.Index(x.shown()[x.from:], text) + len(text)
}

func (x *screen) typed(text string) {
	x.t.Helper()
	_, err := io.WriteString(x.tty, text)
	require.NoError(x.t, err)
}

func (x *screen) exit() slots.Exit {
	x.t.Helper()
	select {
	case <-x.read:
	case <-time.After(30 * time.Second):
		require.Fail(x.t, "terminal goes on", "%q", x.shown())
	}
	exit, err := x.tty.Wait()
	require.NoError(x.t, err)
	return exit
}

func terminalIsOne(t *testing.T, x fixture) {
	s := bashTerminal(t, x.s)
	s.typed("stty size; echo term=$TERM; pwd -P; id -u\r")
	s.expect("24 80\r\nterm=xterm\r\n")
	s.expect("ready> ")
	require.NoError(t, s.tty.Resize(132, 43))
	s.typed("stty size\r")
	s.expect("43 132\r\n")
	s.typed("bash -c 'trap \"echo resized; stty size\" WINCH; trap \"exit 5\" INT; echo lo\"\"oping; while ! false; do sleep 0.05; done'\r")
	s.expect("looping\r\n")
	require.NoError(t, s.tty.Resize(100, 30))
	s.expect("resized\r\n30 100\r\n")
	s.typed("\x03")
	s.expect("ready> ")
	s.typed("test -t 0 && test -t 1 && test -t 2 && echo all three; echo typed >/dev/tty; tty\r")
	s.expect("all three\r\ntyped\r\n/dev/pts/")
	s.typed("stty -a | grep -o ' iutf8'; read -p 'say: ' word; echo \"said <$word>\"\r")
	s.expect(" iutf8\r\nsay: ")
	s.typed("ä\x7fa\r")
	s.expect("said <a>\r\n")
	s.typed("exit 42\r")
	exit := s.exit()
	assert.Equal(t, slots.OutcomeExited, exit.Outcome)
	assert.Equal(t, 42, exit.Code)
	_, err := s.tty.Write([]byte("x"))
	require.Error(t, err)

	plain := onTerminal(t, x.s, sandbox.TerminalCommand{Argv: []string{"sh", "-c", "stty size; kill -TERM $$"}, Columns: 1, Rows: 1})
	exit = plain.exit()
	assert.Contains(t, plain.shown(), "1 1\r\n")
	assert.Equal(t, "SIGTERM", exit.Signal)
	assert.Equal(t, 128+15, exit.Code)
}

func terminalJobs(t *testing.T, x fixture) {
	s := bashTerminal(t, x.s)
	mark := marker()
	s.typed("sleep " + mark + "\r")
	requireAlive(t, mark)
	s.typed("\x03")
	s.expect("ready> ")
	requireGone(t, mark)
	s.typed("echo $?\r")
	s.expect("130\r\n")
	s.typed("sleep " + mark + "\r")
	requireAlive(t, mark)
	s.typed("\x1a")
	s.expect("Stopped")
	s.typed("bg\r")
	s.expect("sleep " + mark + " &")
	s.typed("jobs\r")
	s.expect("Running")
	s.expect("ready> ")
	s.typed("fg\r")
	s.expect("fg\r\n")
	s.expect("sleep " + mark + "\r\n")
	s.typed("\x1c") // SIGQUIT
	s.expect("Quit")
	requireGone(t, mark)
	s.typed("\x04") // the end of the input
	assert.Equal(t, slots.OutcomeExited, s.exit().Outcome)
}

func terminalEnds(t *testing.T, x fixture) {
	s := bashTerminal(t, x.s)
	mark := marker()
	s.typed("trap '' HUP TERM; (setsid sleep " + mark + " &) ; nohup sleep " + mark + " >/dev/null 2>&1 & disown; echo st''arted\r")
	s.expect("started\r\n")
	require.Eventually(t, func() bool { return len(alive(mark)) == 2 }, 30*time.Second, 5*time.Millisecond)
	s.typed("exit 7\r")
	exit := s.exit()
	assert.Equal(t, 7, exit.Code)
	assert.Empty(t, alive(mark), "they have ended when Wait returns")
}

func terminalCloses(t *testing.T, x fixture) {
	mark, saved := marker(), "saved-"+marker()
	s := bashTerminal(t, x.s)
	s.typed("trap 'echo hung up >" + saved + "' HUP; (trap '' HUP TERM INT; exec setsid sleep " + mark + ") & echo st''arted; while ! false; do sleep 0.02; done\r")
	s.expect("started\r\n")
	requireAlive(t, mark)
	require.NoError(t, s.tty.Close())
	assert.Empty(t, alive(mark))
	exit, err := s.tty.Wait()
	require.NoError(t, err)
	assert.Equal(t, slots.OutcomeCancelled, exit.Outcome)
	assert.Equal(t, "hung up\n", output(t, x.s, "cat "+saved), "a program may save what was typed")
	require.NoError(t, s.tty.Close(), "twice is once")

	s = bashTerminal(t, x.s)
	s.typed("sleep " + mark + "\r")
	requireAlive(t, mark)
	s.end(errors.New("nobody is there"))
	assert.Equal(t, slots.OutcomeCancelled, s.exit().Outcome)
	assert.Empty(t, alive(mark))
}

func terminalBeside(t *testing.T, x fixture) {
	s, other := bashTerminal(t, x.s), bashTerminal(t, x.s)
	mine, theirs := marker(), marker()
	s.typed("sleep " + mine + " & echo st''arted\r")
	s.expect("started\r\n")
	requireAlive(t, mine)
	var ran sync.WaitGroup
	ran.Go(func() { _, _, _, _ = try(x.s, script("sleep "+theirs), time.Minute) })
	requireAlive(t, theirs)
	other.typed("exit\r")
	assert.Equal(t, 0, other.exit().Code)
	assert.NotEmpty(t, alive(theirs), "the end of a terminal is not that of a command")
	assert.NotEmpty(t, alive(mine), "nor of another terminal")
	output(t, x.s, "sleep "+marker()+" & true") // leaves something, which is swept
	assert.NotEmpty(t, alive(mine), "a command sweeps what is its own")
	assert.Equal(t, "5\n", said(t, x, "x=5; echo $x"), "nor does the persistent shell mind")
	s.typed("pkill -9 -x -f 'sleep " + theirs + "'; echo do''ne; kill %1\r")
	s.expect("done\r\n")
	ran.Wait()
	s.typed("exit\r")
	s.exit()
	assert.Empty(t, alive(mine))
}

func terminalCarries(t *testing.T, x fixture) {
	const long, hash = 300_000, "92712d77c46f3ee77d7ac6caba4fe2ba"
	s := onTerminal(t, x.s, sandbox.TerminalCommand{Argv: []string{"bash", "-c", fmt.Sprintf(
		"stty raw -echo; echo go; sleep 0.3; head -c %d | md5sum; head -c %d /dev/zero | tr '\\0' z; exit 3", long, long)}})
	s.expect("go\n")
	s.typed(strings.Repeat("a", long)) // waits for its reader
	exit := s.exit()
	assert.Equal(t, 3, exit.Code)
	assert.Contains(t, s.shown(), hash+"  -", "%.200q", s.shown())
	assert.Equal(t, long, strings.Count(s.shown(), "z"), "what was shown last is shown when nothing runs any more")
}

func terminalRefused(t *testing.T, x fixture) {
	ctx := t.Context()
	_, err := x.s.Terminal(ctx, sandbox.TerminalCommand{Argv: []string{"no-such-program"}})
	assert.Equal(t, slots.KindNotFound, kindOf(t, err))
	_, err = x.s.Terminal(ctx, sandbox.TerminalCommand{Argv: []string{"bash"}, Cwd: "nowhere"})
	assert.Equal(t, slots.KindBadRequest, kindOf(t, err))
	output(t, x.s, "echo text >unfit; chmod +x unfit")
	_, err = x.s.Terminal(ctx, sandbox.TerminalCommand{Argv: []string{"/workspace/unfit"}})
	if x.level >= slots.LevelNS { // elsewhere the path is not the slot's
		assert.Equal(t, slots.KindBadRequest, kindOf(t, err))
		require.ErrorContains(t, err, "exec format error")
	}
	ended, end := context.WithCancel(ctx)
	end()
	_, err = x.s.Terminal(ended, sandbox.TerminalCommand{Argv: []string{"bash"}})
	assert.Equal(t, slots.KindInterrupted, kindOf(t, err))
}

// typist tries every way to type into the terminals that it finds, as program
// of python.
const typist = `import fcntl, glob, os, termios
def push(fd):
    try: fcntl.ioctl(fd, termios.TIOCSTI, b"!"); print("TYPED")
    except OSError as e: print("refused", e.errno)
try: push(0)
except Exception as e: print(e)
for path in glob.glob("/dev/pts/[0-9]*"):
    try:
        if os.stat(path).st_rdev == os.fstat(0).st_rdev and os.stat(path).st_ino == os.fstat(0).st_ino: continue
        fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
    except OSError as e: continue
    print("OPENED", path); push(fd)
print("tried all")
`

func terminalPrivate(t *testing.T, x fixture) {
	if x.level <= slots.LevelBasic {
		t.Skip("not promised here, and not tried: it would type into every terminal of the machine")
	}
	other := open(t, x.h, "slot_1")
	victim := bashTerminal(t, other)
	s := onTerminal(t, x.s, sandbox.TerminalCommand{Argv: []string{"python3", "-c", typist}})
	assert.Equal(t, 0, s.exit().Code, "%s", s.shown())
	assert.Contains(t, s.shown(), "tried all")
	assert.NotContains(t, s.shown(), "TYPED")
	assert.Contains(t, s.shown(), "refused 1\r\n", "EPERM")
	assert.NotContains(t, s.shown(), "OPENED")
	require.NoError(t, s.tty.Close())
	if x.level >= slots.LevelNS {
		assert.Equal(t, "/dev/pts/ptmx\n", output(t, x.s, "ls -d /dev/pts/*"), "no terminal of anybody else is to be seen")
	}
	victim.typed("echo un''harmed\r")
	victim.expect("unharmed\r\n")
	assert.NotContains(t, victim.shown(), "!")
}

// terminalKeeperKilled has the slot kill, or stop, the process that looks after
// a terminal, while a command runs beside it that has left its own group.
func terminalKeeperKilled(t *testing.T, x fixture) {
	for _, signal := range []string{"KILL", "STOP"} {
		s, other := bashTerminal(t, x.s), bashTerminal(t, x.s)
		mine, theirs, others := marker(), marker(), marker()
		ran := make(chan slots.Exit, 1)
		go func() {
			_, _, exit, _ := try(x.s, script("(sleep "+theirs+" &); sleep "+theirs+"; exit 3"), time.Minute)
			ran <- exit
		}()
		other.typed("sleep " + others + " & echo st''arted\r")
		other.expect("started\r\n")
		s.typed("trap '' HUP; (sleep " + mine + " &); (setsid sleep " + mine + " &); sleep " + mine + " & kill -" + signal + " $PPID; echo st''arted\r")
		if signal == "STOP" {
			s.expect("started\r\n")
			require.Eventually(t, func() bool { return len(alive(mine)) == 3 }, 30*time.Second, 5*time.Millisecond)
			s.end(errors.New("nobody is there"))
		}
		s.exit()
		require.Eventually(t, func() bool { return len(alive(mine)) <= 1 }, 30*time.Second, 5*time.Millisecond, "SIG%s: what is in its session has ended", signal)
		require.Len(t, alive(theirs), 2, "SIG%s: a command beside it goes on, with all that it started", signal)
		require.Len(t, alive(others), 1, "and so does another terminal")
		kill := alive(theirs)
		require.NoError(t, unix.Kill(kill[0], unix.SIGKILL))
		require.NoError(t, unix.Kill(kill[1], unix.SIGKILL))
		assert.Equal(t, 3, (<-ran).Code)
		assert.Empty(t, alive(mine), "the sweep after the command takes the rest")
		require.Len(t, alive(others), 1)
		other.typed("exit\r")
		other.exit()
	}
}

func terminalReset(t *testing.T, x fixture) {
	s := bashTerminal(t, x.s)
	mark := marker()
	s.typed("sleep " + mark + "\r")
	requireAlive(t, mark)
	_, err := x.s.Reset(t.Context())
	require.NoError(t, err)
	<-s.read
	_, err = s.tty.Wait()
	assert.Equal(t, slots.KindSlotLost, kindOf(t, err))
	assert.Empty(t, alive(mark))
}
