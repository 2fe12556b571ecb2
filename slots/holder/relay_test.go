package holder_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth/slots/holder"
	"berth/slots/need"
)

// crowdedOut is a holder that may pass no descriptor: it runs as a user that has
// more of them on their way through sockets than the holder's limit, until
// ebb is called.
func crowdedOut(t *testing.T) (h *holder.Holder, ebb func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		need.Facility(t, "root", fmt.Errorf("runs as uid %d", os.Geteuid()))
	}
	uid := 3_000_000 + os.Getpid()
	p := plain(t)
	p.IDs = holder.IDs{Switch: true, UID: uid, GID: uid}
	p.Rlimits = []holder.Rlimit{{Resource: unix.RLIMIT_NOFILE, Value: 64}}
	for _, dir := range []string{p.Workspace, p.Run} {
		require.NoError(t, os.Chown(dir, uid, uid))
	}
	h = spawn(t, startSpawner(t), p)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	ebb = func() {
		unix.Close(pair[0])
		unix.Close(pair[1])
	}
	// They count for the real uid of the thread, which is still root otherwise.
	const same = ^uintptr(0)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), same, same)
	require.Zero(t, errno)
	err = unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(repeated(pair[0], 200)...), nil, 0)
	_, _, errno = unix.RawSyscall(unix.SYS_SETRESUID, 0, same, same)
	require.Zero(t, errno)
	require.NoError(t, err)
	return h, ebb
}

// repeated is fd, n times.
func repeated(fd, n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = fd
	}
	return list
}

func TestOutputComesWholeWhereNoPipeMayBePassed(t *testing.T) {
	h, ebb := crowdedOut(t)
	defer ebb()
	for script, want := range map[string][2]string{
		"echo start; sleep 0.1; true":                              {"start\n", ""},
		"printf early; sleep 0.1; printf late; printf problem >&2": {"earlylate", "problem"},
		"(sleep 0.3; printf late) & printf early":                  {"earlylate", ""},
		"exec 2>&-; printf a; sleep 0.1; printf b":                 {"ab", ""},
		"head -c 60000 /dev/zero | tr '\\0' x; sleep 0.1 & exit 0": {strings.Repeat("x", 60_000), ""},
	} {
		all, passed := collected(t, h, script)
		require.NotNil(t, passed, script)
		assert.Equal(t, want[1], all[1], script)
		assert.Equal(t, want[0], all[0], script)
	}
	requireLongOutput(t, h, 500_000)
}

func TestAReaderThatIsGoneEndsWhoWritesWhereNoPipeMayBePassed(t *testing.T) {
	h, ebb := crowdedOut(t)
	defer ebb()
	p, err := h.Start(holder.Request{Argv: []string{"yes"}, Files: []int{-1}, Output: func(p holder.Passed) {
		for _, fd := range p.Pipes {
			unix.Close(fd)
		}
	}})
	require.NoError(t, err)
	exit, err := p.Wait(t.Context())
	require.NoError(t, err)
	assert.Equal(t, unix.SIGPIPE, exit.Status.Signal())
}

func TestOperationsAnswerWholeWhereNothingMayBePassed(t *testing.T) {
	h, ebb := crowdedOut(t)
	defer ebb()
	text := strings.Repeat("0123456789", 300_000)
	require.NoError(t, h.Do(t.Context(), "write", map[string]any{"path": "long"}, nil, strings.NewReader(text), nil))
	var out bytes.Buffer
	require.NoError(t, h.Do(t.Context(), "read", map[string]any{"path": "long"}, nil, nil, &out))
	assert.Equal(t, len(text), out.Len())
	// A reply that is too long for one packet.
	require.NoError(t, h.Do(t.Context(), "mkdir", map[string]any{"path": "many"}, nil, nil, nil))
	for n := range 900 {
		require.NoError(t, h.Do(t.Context(), "write", map[string]any{"path": fmt.Sprintf("many/%s-%d", strings.Repeat("n", 200), n)}, nil, strings.NewReader(""), nil))
	}
	var reply struct {
		Entries []any `json:"entries"`
	}
	require.NoError(t, h.Do(t.Context(), "list", map[string]any{"path": "many"}, &reply, nil, nil))
	assert.Len(t, reply.Entries, 900)
}

func TestNamedPipesAreCopiedWhereNoneMayBePassed(t *testing.T) {
	h, ebb := crowdedOut(t)
	pipes, err := h.OpenPipes(t.Context(), "name")
	require.NoError(t, err)
	require.True(t, pipes[0].Copied)
	_, exit, err := finished(t, h, fmt.Sprintf("head -c 50000 /dev/zero > %s; printf problem > %s", pipes[0].Path, pipes[1].Path))
	require.NoError(t, err)
	require.True(t, exit.Status.Exited())
	require.NoError(t, h.DropPipes(t.Context(), "name"))
	var buf [100_000]byte
	n, err := unix.Read(pipes[0].Read, buf[:])
	require.NoError(t, err)
	assert.Equal(t, 50_000, n, "all of it is there after the drop")
	all, err := io.ReadAll(os.NewFile(uintptr(pipes[1].Read), "passed"))
	require.NoError(t, err)
	assert.Equal(t, "problem", string(all))
	unix.Close(pipes[0].Read)

	_, _, err = h.OpenFile(t.Context(), "file")
	stage, ok := errors.AsType[*holder.StageError](err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, int(unix.ETOOMANYREFS), stage.Errno, "and nobody waits for ever")

	ebb()
	require.Eventually(t, func() bool {
		pipes, err := h.OpenPipes(t.Context(), "again")
		require.NoError(t, err)
		for _, p := range pipes {
			unix.Close(p.Read)
			unix.Close(p.Write)
		}
		require.NoError(t, h.DropPipes(t.Context(), "again"))
		return !pipes[0].Copied
	}, 30*time.Second, 10*time.Millisecond, "passed again once there is room")
	left, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", h.PID()))
	require.NoError(t, err)
	assert.Less(t, len(left), 20, "the holder keeps none of them: %v", left)
}

// finished runs the script with its output on pipes of the test's.
func finished(t *testing.T, h *holder.Holder, script string) (out string, exit holder.Exit, err error) {
	t.Helper()
	p, read := start(t, h, holder.Request{Argv: []string{"sh", "-c", script}})
	exit, err = p.Wait(t.Context())
	text, readErr := io.ReadAll(read)
	require.NoError(t, readErr)
	return string(text), exit, err
}
