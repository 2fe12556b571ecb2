package hostile_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/slots"
)

func oneLongLine(t *testing.T, s *stage) {
	size := 128 << 20
	if s.Level == slots.LevelNSCgroup {
		size = 1 << 30
	}
	r, err := s.Tool("slot_0", "bash", map[string]any{"command": "head -c $SIZE /dev/zero | tr '\\0' x", "env": map[string]string{"SIZE": itoa(size)}}, 60)
	if !assert.NoError(t, err) { //nolint:testifylint // the watch is to end well
		return
	}
	assert.True(t, r.Success, r.Error)
	assert.EqualValues(t, size, r.Metadata.StdoutBytes)
	assert.True(t, r.Metadata.Truncated)
	assert.Less(t, len(r.Output), 60_000)
	assert.True(t, strings.HasPrefix(r.Output, "xxx") && strings.HasSuffix(r.Output, "xxx"), "head and tail are kept")
	path, _ := r.Metadata.Details["stdout_path"].(string)
	if assert.NotEmpty(t, path) {
		r := s.Bash(t, "slot_0", "stat -c spilled=%s "+path, 20)
		assert.LessOrEqual(t, number(t, r.Output, "spilled"), stageSpill)
	}
}

func flood(t *testing.T, s *stage) {
	began := time.Now()
	r := s.Bash(t, "slot_0", `trap '' TERM PIPE; echo first; yes & yes >&2 & (yes; yes) & exec yes out`, 3)
	assert.Equal(t, slots.OutcomeTimedOut, r.Metadata.Outcome)
	s.Within(t, "the timeout of the flood", time.Since(began), 8*time.Second)
	assert.True(t, r.Metadata.Truncated)
	assert.Contains(t, r.Output[:min(200, len(r.Output))], "first")
	assert.Less(t, len(r.Output), 120_000)
	assert.Greater(t, r.Metadata.StdoutBytes, int64(1<<20))
	assert.Greater(t, r.Metadata.StderrBytes, int64(1<<20))
	s.works(t)
}

func closedOutput(t *testing.T, s *stage) {
	r := s.Bash(t, "slot_0", `echo hello; exec >&- 2>&-; sleep 0.7; touch ran-on`, 20)
	assert.True(t, r.Success, r.Error)
	assert.Equal(t, "hello", r.Output)
	assert.Greater(t, r.Metadata.DurationMS, 500.0) // counted from when the holder knows that it runs
	assert.True(t, s.Bash(t, "slot_0", "test -e ran-on", 20).Success)
	r = s.Bash(t, "slot_0", `echo hello; exec 0<&- >&- 2>&-; while :; do sleep 1; done`, 0.7)
	assert.Equal(t, slots.OutcomeTimedOut, r.Metadata.Outcome)
	assert.Equal(t, "hello", r.Output)
}

func keptPipe(t *testing.T, s *stage) {
	for _, c := range []string{
		`sleep 60 & echo done`,
		`setsid sleep 60 & echo done`,
		`(setsid bash -c 'trap "" TERM HUP; sleep 60; sleep 60' &) ; echo done`,
		`bash -c 'while :; do echo more; sleep 0.01; done' & echo done`,
	} {
		began := time.Now()
		r := s.Bash(t, "slot_0", c, 20)
		assert.True(t, r.Success)
		assert.Contains(t, r.Output, "done")
		s.Within(t, c, time.Since(began), 3*time.Second)
		assert.Positive(t, r.Metadata.Leftover, c)
		s.noStraysBut(t, "cat .canary")
	}
}

func unreadInput(t *testing.T, s *stage) {
	input := strings.Repeat("never read\n", 6<<20/11)
	for _, c := range []string{"sleep 0.1", "head -c 100 >&2; exec 0<&-; sleep 0.1"} {
		r, err := s.Tool("slot_0", "bash", map[string]any{"command": c, "stdin": input}, 20)
		if assert.NoError(t, err) {
			assert.True(t, r.Success, "%s: %s", c, r.Error)
			s.Within(t, c, time.Duration(r.Metadata.DurationMS*float64(time.Millisecond)), 3*time.Second)
		}
	}
	r, err := s.Tool("slot_0", "bash", map[string]any{"command": "sleep 60", "stdin": input}, 2)
	if assert.NoError(t, err) {
		assert.Equal(t, slots.OutcomeTimedOut, r.Metadata.Outcome)
	}
}

func cpuBurn(t *testing.T, s *stage) {
	own, err := syscall.Getpriority(syscall.PRIO_PROCESS, s.PID) // 20 less what nice says
	require.NoError(t, err)
	r := s.Bash(t, "slot_0", "nice", 20)
	assert.Equal(t, itoa(min(19, 20-own+10)), r.Output, "it gives way to the agent")
	r = s.python(t, `
import os, time
denied = 0
try: os.nice(-20)
except OSError: denied = 1
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(99))
except OSError: denied += 1
print("denied=%d" % denied, flush=True)
if denied == 2:
    for n in range(8): 
        if os.fork() == 0: break
    while True: pass
`, 2)
	if s.confined() {
		assert.Equal(t, 2, number(t, r.Output, "denied"), "neither a better nice value nor real time")
		assert.Equal(t, slots.OutcomeTimedOut, r.Metadata.Outcome)
	}
	s.works(t)
}

// What the kernel counts per user a slot can only use up for its own.
func perUserObjects(t *testing.T, s *stage) {
	const objects = `
import ctypes, os, errno, fcntl, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def fill(make, most):
    n = 0
    while n < most:
        if make() < 0: break
        n += 1
    return n
most = int(os.environ.get("MOST", "3000"))
notify = fill(lambda: libc.inotify_init1(0), most)
timers = fill(lambda: libc.timerfd_create(1, 0), 200)
epolls = fill(lambda: libc.epoll_create1(0), 200)
def pipe():
    try: r, w = os.pipe()
    except OSError: return -1
    try: fcntl.fcntl(w, 1031, 1 << 20)
    except OSError: return -1
    return 0
pipes = fill(pipe, min(most, 400))
keys = fill(lambda: libc.syscall(248, b"user", b"k%d" % os.getpid(), b"x" * 1000, 1000, -3), 100)
print("notify=%d timers=%d epolls=%d pipes=%d keys=%d" % (notify, timers, epolls, pipes, keys), flush=True)
time.sleep(float(os.environ.get("HOLD", "0")))
`
	held := make(chan string, 1)
	go func() {
		r, _ := s.Tool("slot_0", "bash", map[string]any{"command": "exec /usr/bin/python3 -I -", "stdin": objects, "env": map[string]string{"HOLD": "1.5"}}, 20)
		held <- r.Output
	}()
	time.Sleep(700 * time.Millisecond)
	r, err := s.Tool("slot_2", "bash", map[string]any{"command": "exec /usr/bin/python3 -I -", "stdin": objects, "env": map[string]string{"MOST": "5"}}, 20)
	t.Logf("attacker: %s", <-held)
	if !assert.NoError(t, err) { //nolint:testifylint // the watch is to end well
		return
	}
	t.Logf("neighbour: %s", r.Output)
	if s.confined() {
		assert.Equal(t, 0, number(t, r.Output, "keys"), "the key rings are out of reach")
	}
	if s.separate() {
		assert.Equal(t, 5, number(t, r.Output, "notify"))
		assert.Equal(t, 5, number(t, r.Output, "pipes"))
	}
}

func threads(t *testing.T, s *stage) {
	s.noCrowd(t)
	r := s.python(t, `
import threading, time
threading.stack_size(32768)
n = 0
try:
    while n < 100000:
        threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
        n += 1
except (RuntimeError, MemoryError): pass
print("threads=%d" % n, flush=True)
time.sleep(0.3)
import os; os._exit(0)
`, 20)
	n := number(t, r.Output, "threads")
	assert.Less(t, n, stagePids)
	assert.Greater(t, n, stagePids/2)
	s.works(t)
}

func lockedMemory(t *testing.T, s *stage) {
	if !s.confined() {
		t.Skip("not promised here: no rlimits")
	}
	r := s.python(t, `
import ctypes, mmap
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
at = libc.mmap(None, 64 << 20, 3, 0x22, -1, 0)
print("mlock=%d" % libc.mlock(at, 64 << 20))
print("mlockall=%d" % libc.mlockall(3))
huge = libc.mmap(None, 1 << 30, 3, 0x22 | 0x40000, -1, 0)
print("huge=%d" % (huge not in (None, 2**64 - 1)))
at = libc.mmap(None, 8 << 20, 3, 0x22 | 0x2000, -1, 0)
print("locked=%d" % (at not in (None, 2**64 - 1)))
`, 20)
	assert.Equal(t, -1, number(t, r.Output, "mlock"))
	assert.Equal(t, 0, number(t, r.Output, "locked"), "MAP_LOCKED beyond the limit")
	assert.Equal(t, 0, number(t, r.Output, "huge"), "this machine reserves no huge pages")
	s.works(t)
}

func socketBuffers(t *testing.T, s *stage) {
	r := s.python(t, `
import socket, errno
kept, sent, why = [], 0, 0
try:
    while len(kept) < 300:
        a, b = socket.socketpair()
        a.setblocking(False)
        try:
            while True: sent += a.send(b"x" * 65536)
        except BlockingIOError: pass
        kept += [a, b]
except OSError as e: why = e.errno
print("pairs=%d sent=%d why=%d" % (len(kept) // 2, sent, why), flush=True)
ports = 0
try:
    while ports < 10000:
        l = socket.socket(); l.bind(("127.0.0.1", 0)); l.listen(1000); kept.append(l); ports += 1
except OSError as e: why = e.errno
print("ports=%d why=%d" % (ports, why), flush=True)
import time; time.sleep(0.3)
`, 30)
	t.Log(r.Output)
	if s.confined() {
		assert.LessOrEqual(t, number(t, r.Output, "ports"), stageOpenFiles)
	}
	s.works(t)
}

func dentryBomb(t *testing.T, s *stage) {
	r := s.python(t, `
import os
for i in range(100000):
    try: os.stat("/tmp/there-is-no-such-name-%d" % i)
    except OSError: pass
print("done")
`, 30)
	assert.Equal(t, "done", r.Output)
	s.works(t)
}

func signalQueue(t *testing.T, s *stage) {
	if !s.confined() {
		t.Skip("not promised here: no rlimits")
	}
	const queue = `
import ctypes, os, signal, time
libc = ctypes.CDLL(None, use_errno=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 3])
n = 0
while n < 100000 and libc.sigqueue(os.getpid(), signal.SIGRTMIN + 3, ctypes.c_void_p(1)) == 0: n += 1
print("queued=%d" % n, flush=True)
time.sleep(float(os.environ.get("HOLD", "0")))
`
	held := make(chan string, 1)
	go func() {
		r, _ := s.Tool("slot_0", "bash", map[string]any{"command": "exec /usr/bin/python3 -I -", "stdin": queue, "env": map[string]string{"HOLD": "2"}}, 20)
		held <- r.Output
	}()
	time.Sleep(400 * time.Millisecond)
	r := s.pythonIn(t, "slot_2", queue, 20)
	for range 2 { // the second needs a holder that is made now
		receipt, err := s.Reset(t.Context(), "slot_2", nil)
		if assert.NoError(t, err) {
			s.Within(t, "reset while signals are used up", time.Duration(receipt.MS*float64(time.Millisecond)), time.Second)
		}
	}
	assert.LessOrEqual(t, number(t, <-held, "queued"), 1024)
	if s.separate() {
		assert.Greater(t, number(t, r.Output, "queued"), 900, "the neighbour has a queue of its own")
	}
}

func fsyncStorm(t *testing.T, s *stage) {
	r := s.python(t, `
import os
for n in range(6):
    if os.fork() == 0: break
f = os.open("storm%d" % os.getpid(), os.O_CREAT | os.O_WRONLY)
while True:
    os.pwrite(f, b"x" * 65536, 0)
    os.fsync(f)
`, 2)
	assert.Equal(t, slots.OutcomeTimedOut, r.Metadata.Outcome)
	s.works(t)
}

func addressSpace(t *testing.T, s *stage) {
	r := s.python(t, `
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
got = 0
for n in range(10):
    if libc.mmap(None, 1 << 40, 3, 0x4022, -1, 0) != 2**64 - 1: got += 1
print("got=%d" % got)
`, 20)
	if s.axes[slots.AxisMemory] == "rlimit" {
		assert.Equal(t, 0, number(t, r.Output, "got"))
	}
	s.works(t)
}

func mountBomb(t *testing.T, s *stage) {
	if !s.confined() {
		t.Skip("not promised here: no filter")
	}
	r := s.python(t, `
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def why(n): return ctypes.get_errno() if n < 0 else 0
print("user=%d" % why(libc.unshare(0x10000000)))
print("mount=%d" % why(libc.unshare(0x00020000)))
print("clone=%d" % why(libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)))
print("clone3=%d" % why(libc.syscall(435, 0, 0)))
print("tmpfs=%d" % why(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)))
print("open_tree=%d" % why(libc.syscall(428, -100, b"/", 1)))
print("fsopen=%d" % why(libc.syscall(430, b"tmpfs", 0)))
`, 20)
	for _, name := range []string{"user", "mount", "clone", "tmpfs", "open_tree", "fsopen"} {
		assert.Equal(t, 1, number(t, r.Output, name), "%s: EPERM", name)
	}
	assert.Equal(t, 38, number(t, r.Output, "clone3"), "ENOSYS, so that programs fall back to clone")
}
