package sandbox_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth/slots"
	"berth/slots/need"
	"berth/slots/quota"
	"berth/slots/quota/quotatest"
	"berth/slots/sandbox"
	"berth/slots/workspace"
)

// The disk limit of these tests.
const (
	diskBytes = 8 << 20
	diskFiles = 200
)

// eachKernelLimit runs the test with each backend by which the kernel itself
// refuses a write, at each level that matters.
func eachKernelLimit(t *testing.T, test func(t *testing.T, c sandbox.Config)) {
	t.Helper()
	needRoot(t)
	for _, backend := range []sandbox.DiskBackend{sandbox.DiskTmpfs, sandbox.DiskQuota} {
		for _, l := range []slots.Level{slots.LevelUIDLandlock, slots.LevelNS, slots.LevelNSCgroup} {
			if reachable(l) != l {
				continue
			}
			t.Run(fmt.Sprintf("%s at %s", backend, l), func(t *testing.T) {
				c := limited(t, backend)
				atLevel(l)(&c)
				test(t, c)
			})
		}
	}
}

func limited(t testing.TB, backend sandbox.DiskBackend) sandbox.Config {
	t.Helper()
	c := config(t)
	c.Disk, c.Limits.DiskBytes, c.Limits.DiskFiles = backend, diskBytes, diskFiles
	switch backend {
	case sandbox.DiskQuota:
		c.DataDir = filepath.Join(quotatest.Mount(t, "prjquota"), "data")
	case sandbox.DiskTmpfs:
		needMounts(t)
		t.Cleanup(func() { unmountBelow(t, c.DataDir) })
	case sandbox.DiskAuto, sandbox.DiskWatcher: // need nothing
	}
	return c
}

func needMounts(t testing.TB) {
	t.Helper()
	at := t.TempDir()
	if err := unix.Mount("test", at, "tmpfs", 0, "size=4k"); err != nil {
		need.Facility(t, "mount", err)
	}
	require.NoError(t, unix.Unmount(at, 0))
}

// mountsBelow lists what is mounted below the directory.
func mountsBelow(t testing.TB, dir string) (at []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if point := strings.Fields(line)[4]; strings.HasPrefix(point, dir+"/") {
			at = append(at, point)
		}
	}
	return at
}

// unmountBelow is what the end of a machine does.
func unmountBelow(t testing.TB, dir string) {
	t.Helper()
	for _, at := range mountsBelow(t, dir) {
		assert.NoError(t, unix.Unmount(at, unix.MNT_DETACH))
	}
}

func openHostWith(t testing.TB, c sandbox.Config) *sandbox.Host {
	t.Helper()
	return openHost(t, func(config *sandbox.Config) { *config = c })
}

// refusedByKernel runs a command that fails for want of disk space.
func refusedByKernel(t testing.TB, s *sandbox.Sandbox, text string) slots.Exit {
	t.Helper()
	_, stderr, exit := bash(t, s, text)
	assert.Equal(t, slots.OutcomeExited, exit.Outcome, "the command ends by itself")
	assert.NotZero(t, exit.Code)
	assert.Regexp(t, "No space left|quota exceeded", stderr)
	return exit
}

func TestAWriteBeyondTheDiskLimitIsRefused(t *testing.T) {
	eachKernelLimit(t, func(t *testing.T, c sandbox.Config) {
		h := openHostWith(t, c)
		want := map[sandbox.DiskBackend]string{sandbox.DiskTmpfs: "tmpfs-size", sandbox.DiskQuota: "quota"}[c.Disk]
		assert.Equal(t, want, h.Isolation().Axes[slots.AxisDisk])
		assert.Contains(t, h.Report().Disk, string(c.Disk))
		s, neighbour := open(t, h, "slot_0"), open(t, h, "slot_1")

		exit := refusedByKernel(t, s, "head -c 20M /dev/zero > fill")
		assert.True(t, exit.DiskFull, "the result says so")
		size := output(t, s, "stat -c %s fill")
		assert.LessOrEqual(t, len(size), len("8388608\n"), "%s bytes", size)
		refusedByKernel(t, s, "head -c 1M /dev/zero > ${TMPDIR:-/tmp}/more")
		err := s.Do(t.Context(), "write", workspace.WriteArgs{Path: "by-op"}, nil, strings.NewReader(strings.Repeat("x", 1<<20)), nil)
		assert.Equal(t, slots.KindTooLarge, kindOf(t, err), "a file operation is refused in words of its own")
		_, _, exit = bash(t, neighbour, "head -c 4M /dev/zero > fill")
		assert.Zero(t, exit.Code, "the neighbour goes on")
		assert.False(t, exit.DiskFull)
		_, _, exit = bash(t, s, "rm -f fill ${TMPDIR:-/tmp}/more; head -c 4M /dev/zero > again")
		assert.Zero(t, exit.Code, "who is at the limit may tidy up")
		assert.False(t, exit.DiskFull)

		refusedByKernel(t, s, "for i in $(seq 400); do : > f$i || exit 1; done")
		assert.NotContains(t, output(t, s, "ls | wc -l; rm -f f*"), "400")

		receipt, err := s.Reset(t.Context())
		require.NoError(t, err)
		assert.True(t, receipt.Clean, "%+v", receipt)
		assert.Empty(t, output(t, s, "ls -A; ls -A ${TMPDIR:-/tmp} | grep more; true"))
		output(t, s, "head -c 6M /dev/zero > next")
		refusedByKernel(t, s, "head -c 4M /dev/zero > beyond")
	})
}

func TestADeletedFileThatIsOpenCountsAgainstTheKernelsLimit(t *testing.T) {
	eachKernelLimit(t, func(t *testing.T, c sandbox.Config) {
		s := open(t, openHostWith(t, c), "slot_0")
		refusedByKernel(t, s, "exec 9> hidden; rm hidden; head -c 20M /dev/zero >&9")
		output(t, s, "head -c 6M /dev/zero > now-there-is-room")
	})
}

func TestADiskLimitIsCarriedOverWithTheWorkspace(t *testing.T) {
	eachKernelLimit(t, func(t *testing.T, c sandbox.Config) {
		h, err := sandbox.Open(t.Context(), c)
		require.NoError(t, err)
		s, err := h.NewSandbox(t.Context(), "slot_0", 1)
		require.NoError(t, err)
		output(t, s, "mkdir d; head -c 6M /dev/zero > d/kept; head -c 1M /dev/zero > ${TMPDIR:-/tmp}/scratch; ln -s d link")
		require.NoError(t, s.Close())
		require.NoError(t, h.Close())

		h = openHostWith(t, c)
		open(t, h, "slot_1") // takes the uid that slot_0 had
		s, err = h.Reopen(t.Context(), "slot_0", 1)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, s.Close()) })
		assert.Equal(t, "6291456\n", output(t, s, "ls -A ${TMPDIR:-/tmp} | grep scratch; stat -c %s link/kept"))
		refusedByKernel(t, s, "head -c 4M /dev/zero > d/more")
		output(t, s, "rm d/kept d/more; head -c 6M /dev/zero > d/again")

		ended := s.HolderEnded()
		require.NoError(t, unix.Kill(s.HolderPID(), unix.SIGKILL))
		<-ended
		assert.Equal(t, "6291456\n", output(t, s, "stat -c %s d/again"), "a new holder finds the files")
		refusedByKernel(t, s, "head -c 4M /dev/zero > d/more")

		receipt, err := s.Reset(t.Context())
		require.NoError(t, err)
		assert.True(t, receipt.Clean, "%+v", receipt)
		assert.Empty(t, output(t, s, "ls -A"))
		output(t, s, "head -c 6M /dev/zero > next")
	})
}

func TestFilesInMemoryThatAreGoneAreToldOf(t *testing.T) {
	needRoot(t)
	c := limited(t, sandbox.DiskTmpfs)
	h, err := sandbox.Open(t.Context(), c)
	require.NoError(t, err)
	s, err := h.NewSandbox(t.Context(), "slot_0", 1)
	require.NoError(t, err)
	output(t, s, "echo precious > file")
	s.SparePID() // it is there, and goes with the agent
	require.NoError(t, s.Close())
	require.NoError(t, h.Close())
	assert.Len(t, mountsBelow(t, c.DataDir), 1, "only the slot's own is kept")

	other := c
	other.Disk = sandbox.DiskWatcher
	h, err = sandbox.Open(t.Context(), other)
	require.NoError(t, err)
	_, err = h.Reopen(t.Context(), "slot_0", 1)
	assert.Equal(t, slots.KindUnavailable, kindOf(t, err), "an agent that cannot take them over does not throw them away")
	require.NoError(t, h.Close())

	h, err = sandbox.Open(t.Context(), c)
	require.NoError(t, err)
	s, err = h.Reopen(t.Context(), "slot_0", 1)
	require.NoError(t, err)
	assert.Equal(t, "precious\n", output(t, s, "cat file"))
	require.NoError(t, s.Close())
	require.NoError(t, h.Close())

	h, err = sandbox.Open(t.Context(), c)
	require.NoError(t, err)
	left, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = h.Reopen(left, "slot_0", 1)
	require.Error(t, err, "it fails after it has taken the files")
	s, err = h.Reopen(t.Context(), "slot_0", 1)
	require.NoError(t, err)
	assert.Equal(t, "precious\n", output(t, s, "cat file"), "they were given back")
	require.NoError(t, s.Close())
	require.NoError(t, h.Close())
	assert.Len(t, mountsBelow(t, c.DataDir), 1)

	unmountBelow(t, c.DataDir)
	h = openHostWith(t, c)
	_, err = h.Reopen(t.Context(), "slot_0", 1)
	assert.Equal(t, slots.KindSlotLost, kindOf(t, err))
	assert.Empty(t, output(t, open(t, h, "slot_0"), "ls -A"))
}

func TestMemoryOfSlotsThatWereIsGivenBack(t *testing.T) {
	needRoot(t)
	c := limited(t, sandbox.DiskTmpfs)
	h := openHostWith(t, c)
	s := open(t, h, "slot_0")
	for range 3 {
		output(t, s, "head -c 4M /dev/zero > fill")
		_, err := s.Reset(t.Context())
		require.NoError(t, err)
	}
	s.SparePID()
	h.Settle()
	left, err := filepath.Glob(filepath.Join(c.DataDir, "trash", "*"))
	require.NoError(t, err)
	assert.Empty(t, left)
	assert.Len(t, mountsBelow(t, c.DataDir), 2, "the slot's and its spare's")
}

func TestADiskBackendThatIsNamedMustWork(t *testing.T) {
	c := config(t)
	c.Disk, c.Limits.DiskBytes = sandbox.DiskQuota, diskBytes
	if system, err := quota.Open(c.DataDir); err == nil {
		require.NoError(t, system.Close())
		t.Skip("temporary directories have project quota here")
	}
	_, err := sandbox.Open(t.Context(), c)
	var unmet *sandbox.UnmetError
	require.ErrorAs(t, err, &unmet)
	assert.Equal(t, []slots.Shortfall{{Axis: "disk", Wanted: "quota", Got: "watcher"}}, unmet.Shortfall)
	require.ErrorContains(t, err, "project quota")

	c.Disk = sandbox.DiskAuto
	h := openHostWith(t, c)
	assert.Equal(t, "watcher", h.Isolation().Axes[slots.AxisDisk])
	assert.Contains(t, h.Report().Disk, "watcher")
	assert.Contains(t, h.Report().Attempts[0].Error, "project quota", "it says why not better")
}

func TestASlotCannotLeaveItsProject(t *testing.T) {
	needRoot(t)
	for _, l := range []slots.Level{slots.LevelUIDLandlock, slots.LevelNS} {
		if reachable(l) != l {
			continue
		}
		t.Run(l.String(), func(t *testing.T) {
			if _, err := exec.LookPath("chattr"); err != nil {
				need.Facility(t, "prjquota", err)
			}
			c := limited(t, sandbox.DiskQuota)
			atLevel(l)(&c)
			h := openHostWith(t, c)
			s, neighbour := open(t, h, "slot_0"), open(t, h, "slot_1")
			mine, err := quota.ProjectOf(s.Workspace() + "/.")
			require.NoError(t, err)
			theirs, err := quota.ProjectOf(neighbour.Workspace() + "/.")
			require.NoError(t, err)
			assert.NotEqual(t, mine, theirs)
			output(t, s, "mkdir d; touch d/f")
			for _, attack := range []string{"chattr -p 0 .", "chattr -p 0 d/f", fmt.Sprintf("chattr -p %d d", theirs), "chattr -P d"} {
				_, stderr, exit := bash(t, s, attack)
				assert.NotZero(t, exit.Code, "%s: %s", attack, stderr)
			}
			for _, path := range []string{"/.", "/d", "/d/f"} {
				now, err := quota.ProjectOf(s.Workspace() + path)
				require.NoError(t, err)
				assert.Equal(t, mine, now, path)
			}
			refusedByKernel(t, s, "head -c 20M /dev/zero > d/f")
			output(t, neighbour, "head -c 6M /dev/zero > f")
		})
	}
}

func TestTheWatcherSeesFilesThatAreDeletedAndOpen(t *testing.T) {
	for _, l := range []slots.Level{slots.LevelLandlock, slots.LevelUIDLandlock, slots.LevelNS} {
		if reachable(l) != l {
			continue
		}
		t.Run(l.String(), func(t *testing.T) {
			t.Parallel()
			h := openHost(t, func(c *sandbox.Config) {
				atLevel(l)(c)
				c.Disk, c.Limits.DiskBytes = sandbox.DiskWatcher, diskBytes
			})
			if strings.Contains(h.Report().Mechanism, "no /proc") {
				t.Skip("not promised without a /proc of one's own")
			}
			s := open(t, h, "slot_0")
			_, _, exit, err := try(s, script("exec 9> hidden; rm hidden; head -c 20M /dev/zero >&9; sleep 300"), 2*time.Minute)
			require.NoError(t, err)
			assert.Equal(t, slots.OutcomeDiskLimited, exit.Outcome)
			assert.Equal(t, "tidied\n", output(t, s, "sleep 0.5; echo tidied"), "with the process its file has gone")
		})
	}
}

func TestAtLandlockTheWatcherLeavesANeighboursDeletedFilesToIt(t *testing.T) {
	h := openHost(t, func(c *sandbox.Config) {
		atLevel(slots.LevelLandlock)(c)
		c.Disk, c.Limits.DiskBytes = sandbox.DiskWatcher, diskBytes
	})
	s, neighbour := open(t, h, "slot_0"), open(t, h, "slot_1")
	m := marker()
	var wait sync.WaitGroup
	defer wait.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wait.Go(func() {
		neighbour.Run(ctx, script("exec 9> hidden; rm hidden; head -c 7M /dev/zero >&9; sleep "+m))
	})
	requireAlive(t, m)
	assert.Equal(t, "fits\n", output(t, s, "head -c 6M /dev/zero > f; sleep 1; head -c 1M /dev/zero >> f; sleep 1; echo fits"))
}

func TestTheWatcherReadsDirectoriesAgainstTheirModes(t *testing.T) {
	if os.Geteuid() == 0 { // whom no mode keeps out
		out, err := reexec(t, nobody, nil, "-test.run=^"+t.Name()+"$", "-test.v").CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Contains(t, string(out), "--- PASS: "+t.Name())
		return
	}
	for _, mode := range []string{"000", "400", "300"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			h := openHost(t, func(c *sandbox.Config) {
				atLevel(slots.LevelLandlock)(c)
				c.Disk, c.Limits.DiskBytes = sandbox.DiskWatcher, diskBytes
			})
			s := open(t, h, "slot_0")
			_, _, exit, err := try(s, script("mkdir -p d/e; exec 9> d/e/f; chmod "+mode+" d/e d; head -c 20M /dev/zero >&9; sleep 300"), 2*time.Minute)
			require.NoError(t, err)
			assert.Equal(t, slots.OutcomeDiskLimited, exit.Outcome)
			assert.Equal(t, strings.TrimLeft(mode, "0"), strings.TrimLeft(strings.TrimSpace(output(t, s, "stat -c %a d")), "0"), "as it was")
			assert.Equal(t, strings.TrimLeft(mode, "0"), strings.TrimLeft(strings.TrimSpace(output(t, s, "chmod 700 d; stat -c %a d/e")), "0"), "as it was")
		})
	}
}

func TestEachShortCommandIsToldOfWhatItWroteBeyondTheLimit(t *testing.T) {
	t.Parallel()
	h := openHost(t, func(c *sandbox.Config) {
		c.Disk, c.Limits.DiskBytes, c.Limits.DiskFiles = sandbox.DiskWatcher, diskBytes, diskFiles
	})
	s := open(t, h, "slot_0")
	run := func(text string) slots.Exit {
		_, _, exit, err := try(s, script(text), time.Minute)
		require.NoError(t, err)
		assert.Equal(t, exit.Outcome == slots.OutcomeDiskLimited, exit.DiskFull, "%+v", exit)
		return exit
	}
	told := func(text string) { assert.Equal(t, slots.OutcomeDiskLimited, run(text).Outcome, text) }
	fits := func(text string) {
		exit := run(text)
		assert.Equal(t, slots.OutcomeExited, exit.Outcome, text)
		assert.Zero(t, exit.Code, text)
	}
	for n := range 20 {
		told(fmt.Sprintf("head -c 20M /dev/zero > fill%d", n))
		fits("ls")
		fits(fmt.Sprintf("truncate -s 12M fill%d", n)) // who is over the limit may tidy up in steps
	}
	fits("rm fill*; head -c 6M /dev/zero > first")
	told("fallocate -l 4M second || head -c 4M /dev/zero > second")
	told("exec 2>&-; : > third; head -c 1M /dev/zero > third; exit 3")
	fits("rm second third")
	told("for i in $(seq 300); do : > f$i; done")
	fits("rm f*")

	err := s.Do(t.Context(), "write", workspace.WriteArgs{Path: "by-op"}, nil, strings.NewReader(strings.Repeat("x", 12<<20)), nil)
	assert.Equal(t, slots.KindTooLarge, kindOf(t, err))
	fits("rm -f by-op; head -c 5M /dev/zero > again")
	exit, _, err := s.Shell(t.Context(), sandbox.ShellCommand{Command: "head -c 5M /dev/zero > more"})
	require.NoError(t, err)
	assert.Equal(t, slots.OutcomeDiskLimited, exit.Outcome)
}
