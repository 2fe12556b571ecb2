package hostile_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/sandboxd/client"
	"berth/slots"
)

// TestHostileR has one slot use up whatever a machine has.
func TestHostileR(t *testing.T) {
	runAttacks(t, []attack{
		{id: "R01_ForkBomb", run: forkBomb},
		{id: "R02_ForkBombsBesideManyClients", run: forkBombs},
		{id: "R03_MemoryHog", run: memoryHog},
		{id: "R04_MemoryHogOverManyProcesses", run: memoryHogs},
		{id: "R04_MemoryHogOfProcessesSmallerThanTheHolder", run: smallMemoryHogs},
		{id: "R05_MemoryKeptInFiles", run: memoryInFiles},
		{id: "R06_DiskFill", run: diskFill},
		{id: "R07_InodeFill", run: inodeFill},
		{id: "R08_SparseFile", run: sparseFile},
		{id: "R09_DescriptorExhaustion", run: descriptors},
		{id: "R09_DescriptorsOnTheirWay", run: descriptorsOnTheirWay},
		{id: "R10_AGiBInOneLine", run: oneLongLine},
		{id: "R11_EndlessFloodOnBothStreams", run: flood},
		{id: "R12_OutputClosedEarly", run: closedOutput},
		{id: "R13_ChildKeepsThePipe", run: keptPipe},
		{id: "R14_InputNeverRead", run: unreadInput, bounds: agenttest.Bounds{GrowthMiB: 192}},
		{id: "R15_CPUBurn", run: cpuBurn},
		{id: "R16_ObjectsCountedPerUser", run: perUserObjects},
		{id: "R17_Threads", run: threads},
		{id: "R18_LockedMemory", run: lockedMemory},
		{id: "R19_SocketBuffers", run: socketBuffers},
		{id: "R20_DentryBomb", run: dentryBomb},
		{id: "R21_SignalQueue", run: signalQueue},
		{id: "R22_FsyncStorm", run: fsyncStorm},
		{id: "R23_AddressSpace", run: addressSpace},
		{id: "R24_MountTableBomb", run: mountBomb},
	})
}

// needsPids skips where a fork bomb would take the machine along.
func (s *stage) needsPids(t *testing.T) {
	t.Helper()
	s.unpromised(t, slots.AxisPids, "rlimit")
}

// forkBombText multiplies until it is refused, and stays.
const forkBombText = `b() { b | b & }; b 2>/dev/null; sleep 30`

func forkBomb(t *testing.T, s *stage) {
	s.noCrowd(t)
	r := s.Bash(t, "slot_0", forkBombText, 1.2)
	assert.Equal(t, slots.OutcomeTimedOut, r.Metadata.Outcome)
	s.works(t)
}

func forkBombs(t *testing.T, s *stage) {
	s.noCrowd(t)
	var all sync.WaitGroup
	for _, slot := range []string{"slot_0", "slot_2"} {
		all.Go(func() {
			r, err := s.Try(slot, forkBombText, 1.2)
			if assert.NoError(t, err) {
				assert.Equal(t, slots.OutcomeTimedOut, r.Metadata.Outcome)
			}
		})
	}
	for range 20 {
		all.Go(func() {
			c, err := client.New(client.Config{URL: s.URL, Token: s.Token})
			if !assert.NoError(t, err) { //nolint:testifylint // not in a goroutine
				return
			}
			defer c.Close()
			for range 10 {
				_, err := c.Health(context.Background())
				assert.NoError(t, err) //nolint:testifylint // not in a goroutine
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	all.Wait()
	s.works(t)
}

const hog = `
kept = []
try:
    while True:
        kept.append(bytearray(16 << 20) if touch else bytes(16 << 20))
        if len(kept) >= 256: break
except MemoryError:
    pass
print("got=%d" % (len(kept) * 16))
`

func memoryHog(t *testing.T, s *stage) {
	s.unpromised(t, slots.AxisMemory, "rlimit")
	touch := "touch = True\n"
	if s.axes[slots.AxisMemory] == "rlimit" {
		touch = "touch = False\n" // it counts what is reserved
	}
	r := s.python(t, touch+hog, 20)
	if s.axes[slots.AxisMemory] == "cgroup" {
		assert.Equal(t, slots.OutcomeOOMKilled, r.Metadata.Outcome, "%+v", r)
		assert.True(t, r.Metadata.OOMKilled)
	} else {
		assert.Equal(t, slots.OutcomeExited, r.Metadata.Outcome)
		assert.LessOrEqual(t, number(t, r.Output, "got"), stageAddress>>20)
	}
	s.works(t)
}

func memoryHogs(t *testing.T, s *stage) {
	s.unpromised(t, slots.AxisMemory, "cgroup")
	r := s.python(t, `
import os, time
for n in range(50):
    if os.fork() == 0:
        b = b"x" * (24 << 20)
        time.sleep(30)
        os._exit(0)
for n in range(50):
    try: os.wait()
    except ChildProcessError: break
    break
print("one died")
`, 20)
	assert.True(t, r.Metadata.OOMKilled, "%+v", r)
	s.works(t)
}

// The holder must not be the largest that the kernel finds.
func smallMemoryHogs(t *testing.T, s *stage) {
	s.unpromised(t, slots.AxisMemory, "cgroup")
	r, err := s.Tool("slot_0", "bash", map[string]any{"command": "exec /usr/bin/python3 -I -", "stdin": `
import os, time, mmap
# Shared memory belongs to nobody in particular: each of the many is small.
m = mmap.mmap(-1, 520 << 20)
for n in range(150):
    if os.fork() == 0:
        lo = n * (520 << 20) // 150
        for i in range(lo, lo + (520 << 20) // 150, 4096): m[i] = 1
        os.execv("/bin/sleep", ["sleep", "60"])
while not os.WIFSIGNALED(os.wait()[1]): pass # however long filling the memory takes here
time.sleep(2)
`}, 40)
	require.NoError(t, err, "a command that ran out of memory is no fault of ours")
	assert.True(t, r.Metadata.OOMKilled, "%+v", r)
	s.works(t)
}

func memoryInFiles(t *testing.T, s *stage) {
	if s.axes[slots.AxisFS] == "shared" {
		t.Skip("not promised here: /dev/shm is the machine's, and nothing tells whose file is whose")
	}
	r := s.Bash(t, "slot_0", `head -c 48M /dev/zero > /dev/shm/fill-by-slot; head -c 100M /dev/zero > /tmp/fill-by-slot
		stat -c shm=%s /dev/shm/fill-by-slot || echo shm=0`, 20)
	if s.axes[slots.AxisFS] == "mntns" || s.axes[slots.AxisFS] == "dac" {
		assert.Equal(t, 48<<20, number(t, r.Output, "shm"))
	}
	if s.axes[slots.AxisMemory] == "cgroup" {
		assert.True(t, s.python(t, "touch = True\n"+hog, 20).Metadata.OOMKilled)
	}
	receipt, err := s.Reset(t.Context(), "slot_0", nil)
	require.NoError(t, err)
	assert.True(t, receipt.Clean)
	r = s.Bash(t, "slot_0", `ls /dev/shm/fill-by-slot /tmp/fill-by-slot 2>&1 | grep -c "fill-by-slot$"
		head -c 48M /dev/zero > /dev/shm/fill-again; stat -c shm=%s /dev/shm/fill-again || echo shm=0`, 20)
	assert.True(t, strings.HasPrefix(r.Output, "0\n"), "the last tenant's files are gone: %q", r.Output)
	if s.axes[slots.AxisFS] == "mntns" {
		assert.Equal(t, 48<<20, number(t, r.Output, "shm"), "its memory was given back")
	}
}

func diskFill(t *testing.T, s *stage) {
	s.unpromised(t, slots.AxisDisk, "watcher")
	for _, c := range []string{`fallocate -l 600M fill; sleep 20`, `dd if=/dev/zero of=fill bs=1M count=600; sleep 20`} {
		began := time.Now()
		r := s.Bash(t, "slot_0", c, 25)
		assert.Equal(t, slots.OutcomeDiskLimited, r.Metadata.Outcome)
		s.Within(t, c, time.Since(began), 15*time.Second)
		r = s.Bash(t, "slot_0", `rm -f fill && echo tidied`, 20)
		assert.Equal(t, "tidied", r.Output, "who is over the limit may still tidy up")
		if s.Level != slots.LevelNSCgroup {
			return // the watcher is the same at every level
		}
	}
	_, err := s.PutFile(t.Context(), client.Place{SlotID: "slot_0", Path: "upload"}, &fillUpload{left: 600 << 20}, client.PutOptions{})
	require.Error(t, err)
	t.Log("upload: ", err)
}

// fillUpload is a long and boring upload.
type fillUpload struct{ left int }

func (z *fillUpload) Read(p []byte) (int, error) {
	n := min(len(p), z.left)
	if n == 0 {
		return 0, fmt.Errorf("took all of it")
	}
	z.left -= n
	clear(p[:n])
	return n, nil
}

func inodeFill(t *testing.T, s *stage) {
	s.unpromised(t, slots.AxisDisk, "watcher")
	r := s.python(t, `
import os, time
n = 0
for d in range(60):
    os.mkdir("d%d" % d)
    for i in range(1000):
        os.close(os.open("d%d/%d" % (d, i), os.O_CREAT | os.O_WRONLY))
        n += 1
    print("n=%d" % n, flush=True)
time.sleep(20)
`, 30)
	assert.Equal(t, slots.OutcomeDiskLimited, r.Metadata.Outcome)
	t.Logf("made until it was seen: %s", r.Output[strings.LastIndexByte(r.Output, '\n')+1:])
	s.works(t)
}

func sparseFile(t *testing.T, s *stage) {
	r := s.Bash(t, "slot_0", `for n in 8E 7E 1E 15T 4T; do truncate -s $n sparse && break; done 2>/dev/null; stat -c size=%s sparse`, 20)
	require.Greater(t, number(t, r.Output, "size"), 1<<40)
	within := func(what string, bar time.Duration, call func(ctx context.Context) error) error {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := call(ctx)
		s.Within(t, what, time.Since(began), bar)
		return err
	}
	for tool, args := range map[string]map[string]any{
		"read_file": {"path": "sparse"},
		"grep":      {"pattern": "x", "path": "."},
		"edit_file": {"path": "sparse", "old_string": "x", "new_string": "y"},
		"list_dir":  {"path": "."},
		"glob":      {"pattern": "**"},
	} {
		within(tool, 3*time.Second, func(context.Context) error { // logged
			r, err := s.Tool("slot_0", tool, args, 1) //nolint:contextcheck // the call's own timeout is what is tried
			t.Logf("%s: %t %.80q %v", tool, r.Success, r.Error, err)
			return err
		})
	}
	within("read", 3*time.Second, func(ctx context.Context) error { // what counts is the time
		answer, err := s.ReadArtifact(ctx, api.ReadRequest{SlotID: "slot_0", Path: "sparse", Encoding: "base64"})
		assert.LessOrEqual(t, answer.Bytes, int64(5_000_000))
		assert.Equal(t, err == nil, answer.Truncated)
		return err
	})
	err := within("read with sha256", 11*time.Second, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		_, err := s.ReadArtifact(ctx, api.ReadRequest{SlotID: "slot_0", Path: "sparse", Encoding: "base64", IncludeSHA256: true})
		return err
	})
	t.Log("read with sha256:", err)
	err = within("archive", 4*time.Second, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		_, err := s.ArchiveArtifacts(ctx, api.ArchiveRequest{SlotID: "slot_0", Path: ".", Format: "tar.gz"})
		return err
	})
	assert.Error(t, err, "an archive of it") //nolint:testifylint // the watch is to end well
	s.works(t)
}

func descriptors(t *testing.T, s *stage) {
	r := s.python(t, `
import os, errno
for child in range(8):
    if os.fork() == 0: break
fds, why = [], 0
try:
    while len(fds) < 20000: fds.append(os.open("/dev/null", os.O_RDONLY))
except OSError as e: why = e.errno
os.write(1, b"opened=%d why=%d\n" % (len(fds), why))
import time; time.sleep(1)
`, 20)
	opened := number(t, r.Output, "opened")
	if s.confined() {
		assert.LessOrEqual(t, opened, stageOpenFiles)
		assert.Equal(t, 24, number(t, r.Output, "why"), "EMFILE, which is the process' own")
	}
	s.works(t)
}
