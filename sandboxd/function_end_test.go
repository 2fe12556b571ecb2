package sandboxd_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/need"
)

// running counts the processes whose arguments hold the word.
func running(t *testing.T, word string) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, e := range entries {
		text, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err == nil && strings.Contains(string(text), word) {
			n++
		}
	}
	return n
}

// daemon is how a function starts a process that leaves it; the word is a time
// to sleep, by which a test finds it.
const daemon = `
import os, subprocess, time
def worm(word):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp('sleep', ['sleep', word])
        os._exit(0)
    while not any(word in command(p) for p in os.listdir('/proc') if p.isdigit()):
        time.sleep(0.01)
def command(p):
    try:
        return open('/proc/%s/cmdline' % p, errors='replace').read()
    except OSError:
        return '' # it has ended, or is none of ours
`

func sleepWord(t *testing.T, n int) string {
	t.Helper()
	return fmt.Sprintf("86%03d.%d", n, os.Getpid())
}

// functionEndings is what must hold of how runs end, at every level.
func functionEndings(t *testing.T, a *agenttest.Agent) {
	word := sleepWord(t, len(t.Name())+int(a.Level)*7)

	r := fn{source: daemon + "def f():\n    worm('" + word + "')\n    subprocess.Popen(['sleep', '" + word + "'])\n    print('left')\n    return 1"}.run(t, a)
	require.Nil(t, r.Error, "%+v", r.Error)
	assert.Equal(t, "1", string(r.FuncReturn))
	assert.Equal(t, []string{"left"}, r.Stdout, "what holds the pipe delays nothing and loses nothing")
	assert.Eventually(t, func() bool { return running(t, word) == 0 }, 30*time.Second, 10*time.Millisecond, "a finished run's processes end")

	endless := daemon + "def f():\n    worm('" + word + "')\n    print('partial', flush=True)\n    import sys\n    sys.stderr.write('err')\n    import signal\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    while True:\n        time.sleep(1)"
	for timeout := 3.0; ; timeout *= 3 { // which may be too little to get that far, on a machine that has much to do
		e, r := fn{source: endless, timeout: timeout}.fails(t, a)
		assert.Equal(t, api.FunctionTimeout, e.Kind)
		assert.Equal(t, fmt.Sprintf("Executing tool f timed out after %v seconds.", timeout), r.Text)
		if len(r.Stderr) == 0 && timeout < 60 {
			continue
		}
		assert.Equal(t, []string{"partial"}, r.Stdout)
		assert.Equal(t, []string{"err"}, r.Stderr)
		break
	}
	assert.Eventually(t, func() bool { return running(t, word) == 0 }, 30*time.Second, 10*time.Millisecond, "so do those of one that is ended")

	for _, x := range []struct {
		name, source string
		kind         api.FunctionErrorKind
	}{
		{"it stops itself", py("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"), api.FunctionTimeout},
		{"it stops its server", py("import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)\nwhile True: pass"), api.FunctionTimeout},
		{"it is busy", py("while True: pass"), api.FunctionTimeout},
		{"its source is", "while True: pass", api.FunctionTimeout},
		{"it ends its server and itself", py("import os\nos.kill(os.getppid(), 9)\nos.kill(os.getpid(), 9)"), api.FunctionSignal},
		{"it ends its group", py("import os\nos.killpg(0, 9)"), api.FunctionSignal},
	} {
		timeout := 60.0
		if x.kind == api.FunctionTimeout {
			timeout = 1
		}
		e, _ := fn{source: x.source, timeout: timeout}.fails(t, a)
		assert.Equal(t, x.kind, e.Kind, x.name)
		assert.Equal(t, "2", fn{source: py("return 2")}.returns(t, a), "after %s", x.name)
	}
	// It ends its server, and goes on.
	r = fn{source: py("import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(0.2)\nreturn 1")}.run(t, a)
	if r.Error != nil {
		assert.Equal(t, api.FunctionSignal, r.Error.Kind)
	}
	assert.Equal(t, "3", fn{source: py("return 3")}.returns(t, a))

	// What keeps it from its neighbours' memory keeps it from nothing else.
	if a.Level >= slots.LevelNS {
		moved := py("import os, subprocess\nos.makedirs('d', exist_ok=True)\nopen('d/x', 'w').close()\nos.rename('d/x', 'x')\nos.link('x', 'd/y')\nreturn subprocess.run(['mv', 'd/y', 'y']).returncode")
		assert.Equal(t, "0", fn{source: moved}.returns(t, a))
	}

	// Whatever stands ready is a process like any other, to who works in the slot.
	server := fn{source: py("import os\nreturn os.getppid()")}.returns(t, a)
	require.Equal(t, true, bash(t, a, "kill -9 "+server)["success"])
	// The next run may have gone to the last child of the one that was killed, and
	// nobody knows how far it came.
	if r = (fn{source: py("return 4")}).run(t, a); r.Error != nil {
		assert.Equal(t, api.FunctionSignal, r.Error.Kind)
	}
	assert.Equal(t, "5", fn{source: py("return 5")}.returns(t, a))
	assert.Equal(t, true, bash(t, a, "sleep 0.01 & true")["success"])
	got, result := fn{source: py("return 5")}.runIn(t, a, "slot_0")
	assert.Equal(t, "5", string(got.FuncReturn))
	assert.Equal(t, true, result.Metadata.Details["warm"], "another tool's end spares the server")
}

// TestATimeoutGrantsNoDelay has a run and a process of it do as much as they can
// when they are asked to end: they are not asked.
func TestATimeoutGrantsNoDelay(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	a := best(t, agenttest.Options{})
	const stubborn = `
import signal, subprocess, time
def f():
    for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(n, lambda *_: print('asked to end', flush=True))
    subprocess.Popen(['sh', '-c', 'trap "echo asked to end" TERM INT HUP; while :; do sleep 0.1; done'])
    print('begun', flush=True)
    while True:
        time.sleep(0.1)
`
	shortest := time.Hour
	for range 3 { // a machine that has much to do adds to what it takes
		began := time.Now()
		e, r := fn{source: stubborn, timeout: 1}.fails(t, a)
		shortest = min(shortest, time.Since(began))
		assert.Equal(t, api.FunctionTimeout, e.Kind, "%+v %q", e, r.Stdout)
		assert.NotContains(t, strings.Join(r.Stdout, ""), "asked to end")
		if shortest < 4*time.Second {
			break
		}
	}
	assert.Less(t, shortest, 6*time.Second, "of a timeout of one second")
}

func TestAFunctionEndsWithAllItsProcesses(t *testing.T) {
	need.Program(t, "python3")
	for _, level := range agenttest.Levels(t) {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			functionEndings(t, agenttest.Start(t, agenttest.Options{Level: level, Slots: 1}))
		})
	}
}

func TestAFunctionRunsForAnOrdinaryUser(t *testing.T) {
	need.Program(t, "python3")
	if os.Geteuid() != 0 {
		t.Skip("it is one that runs the other tests")
	}
	for _, level := range []slots.Level{slots.LevelNone, slots.LevelLandlock, slots.LevelNS} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			functionEndings(t, agenttest.Start(t, agenttest.Options{Level: level, Slots: 1, UID: 65534}))
		})
	}
}

// TestAFunctionFindsNoOtherProcessOpen is about what waits for the jobs to
// come: whoever writes into its memory writes into those.
func TestAFunctionFindsNoOtherProcessOpen(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	a := best(t, agenttest.Options{})
	if a.Level < slots.LevelNS {
		t.Skipf("needs isolation level %s: this machine gives %s", slots.LevelNS, a.Level)
	}
	const look = `
import os
def f():
    open_to_me = []
    for p in os.listdir('/proc'):
        if not p.isdigit():
            continue
        try:
            os.close(os.open('/proc/%s/mem' % p, os.O_RDWR))
            open_to_me.append(int(p) == os.getpid())
        except OSError:
            pass
    return open_to_me`
	const script = `exports.f = () => {
  const fs = require('fs');
  return fs.readdirSync('/proc').filter((p) => /^[0-9]+$/.test(p)).flatMap((p) => {
    try {
      fs.closeSync(fs.openSync('/proc/' + p + '/mem', 'r+'));
      return [Number(p) === process.pid];
    } catch {
      return [];
    }
  });
}`
	for range 3 {
		assert.Equal(t, "[true]", fn{source: look}.returns(t, a), "its own it may look into")
	}
	need.Program(t, "node")
	if abi, _, _ := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION); int(abi) < 6 {
		t.Skip("needs Linux 6.12: before, one interpreter is not kept out of another's")
	}
	for range 5 { // more than one waits by then
		assert.Equal(t, "[true]", fn{source: script, script: true}.returns(t, a))
		assert.Equal(t, "[true]", fn{source: look}.returns(t, a))
	}
}

func TestAFunctionWithoutItsInterpreterSaysWhatToDo(t *testing.T) {
	t.Parallel()
	a := best(t, agenttest.Options{Args: []string{"--env", "PATH=/nowhere"}})
	e, r := fn{source: py("return 1")}.fails(t, a)
	assert.Equal(t, api.FunctionSpawn, e.Kind)
	assert.Contains(t, r.Text, "python3 could not be started")
	assert.Contains(t, r.Text, "install it in the container's image")
	e, r = fn{source: "exports.f = () => 1", script: true}.fails(t, a)
	assert.Equal(t, api.FunctionSpawn, e.Kind)
	assert.Contains(t, r.Text, "node could not be started")

	text, err := json.Marshal(api.FunctionArgs{Name: "f", SourceCode: py("return 1"), SourceType: api.SourcePython, Environment: "gone"})
	require.NoError(t, err)
	_, err = a.Execute(t.Context(), api.Call{SlotID: "slot_0", Tool: api.FunctionTool, Args: text})
	require.Error(t, err)
	assert.Equal(t, slots.KindNotFound, slots.AsError(err).Kind, "%v", err)
}

func TestAFunctionsRunIsCancelled(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	a := best(t, agenttest.Options{})
	args, err := json.Marshal(api.FunctionArgs{Name: "f", SourceType: api.SourcePython, SourceCode: py("import time\ntime.sleep(600)")})
	require.NoError(t, err)
	done := make(chan api.Result, 1)
	go func() { // ends with the call
		r, _ := a.Execute(context.Background(), api.Call{SlotID: "slot_0", Tool: api.FunctionTool, Args: args, ExecutionID: "long", Timeout: api.Seconds(600)})
		done <- r
	}()
	require.Eventually(t, func() bool { _, _, err := a.Cancel(t.Context(), "long"); return err == nil }, 30*time.Second, 20*time.Millisecond)
	r := <-done
	if f, err := r.FunctionResult(); err == nil && f != nil { // else it had not begun
		assert.Equal(t, api.FunctionCancelled, f.Error.Kind)
	}
	assert.Equal(t, "1", fn{source: py("return 1")}.returns(t, a))
}

func TestAFunctionThatNeedsTooMuchMemoryIsKilledForIt(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	a := best(t, agenttest.Options{Args: []string{"--memory", "100MiB"}})
	if a.Level < slots.LevelNSCgroup {
		t.Skipf("needs isolation level %s: this machine gives %s", slots.LevelNSCgroup, a.Level)
	}
	for range 2 {
		e, r := fn{source: py("x = [bytearray(1 << 20) for _ in range(1000)]\nreturn len(x)")}.fails(t, a)
		assert.Equal(t, api.FunctionOOM, e.Kind)
		assert.Equal(t, "Error executing function f: Killed: signal 9 (out of memory)", r.Text)
		assert.Equal(t, "1", fn{source: py("return 1")}.returns(t, a))
	}
}

func TestFunctionsOfDifferentSlotsRunAtOnce(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	a := best(t, agenttest.Options{Slots: 4})
	for slot := range 4 {
		t.Run(fmt.Sprint(slot), func(t *testing.T) {
			t.Parallel()
			for n := range 10 {
				got, _ := fn{source: "import os\ndef f(n):\n    open('mine', 'a').write(str(n))\n    return open('mine').read()", args: fmt.Sprintf(`{"n":%d}`, n)}.runIn(t, a, fmt.Sprintf("slot_%d", slot))
				assert.Equal(t, `"`+"0123456789"[:n+1]+`"`, string(got.FuncReturn))
			}
		})
	}
}

func TestAResetLeavesNoInterpreterOfTheLastTenant(t *testing.T) {
	t.Parallel()
	need.Program(t, "python3")
	a := best(t, agenttest.Options{})
	assert.Equal(t, "1", fn{source: py("return 1")}.returns(t, a))
	_, r := fn{source: py("return 1")}.runIn(t, a, "slot_0")
	assert.Equal(t, true, r.Metadata.Details["warm"])
	newServer(t, a)
	got, r := fn{source: py("import os\nreturn os.listdir()")}.runIn(t, a, "slot_0")
	assert.Equal(t, "[]", string(got.FuncReturn))
	assert.Equal(t, false, r.Metadata.Details["warm"])
}
