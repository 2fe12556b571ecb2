package seccomp

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"berth/slots/need"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const nobody = 65534

// user is somebody to run a scenario as.
type user struct {
	name       string
	credential *syscall.Credential // nil: the tester
}

// users are the tester, and an ordinary user when the tester can become one.
func users() []user {
	all := []user{{name: "tester"}}
	if os.Geteuid() == 0 {
		all = append(all, user{"nobody", &syscall.Credential{Uid: nobody, Gid: nobody}})
	}
	return all
}

// play runs a scenario in a child of its own and returns the child's report.
func play(t *testing.T, scenario string, as user, env ...string) report {
	t.Helper()
	need.Facility(t, "seccomp", Probe())
	// By this link the binary runs whoever may enter its directory.
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), append(env, scenarioVariable+"="+scenario)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as.credential}
	cmd.Dir = "/"
	var stderr strings.Builder
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	require.NoError(t, err, "%s%s", text, stderr.String())
	var out report
	require.NoError(t, json.Unmarshal(text, &out), "%s", text)
	return out
}

func TestE01E10X22FilteredProcessesAreRefused(t *testing.T) {
	others := map[string]string{
		"clone3": enosys, "io_uring_setup": enosys, "statmount": enosys, "from the future": enosys,
		"uevent": noProtocol, "audit": noProtocol,
	}
	for _, as := range users() {
		t.Run(as.name, func(t *testing.T) {
			got := play(t, "filtered", as)
			require.Greater(t, len(got), 40, got)
			for name, result := range got {
				assert.Equal(t, cmp.Or(others[name], eperm), result, name)
			}
		})
	}
}

// bareRoot says what would refuse the tester's calls already.
func bareRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("an ordinary user is refused by the kernel")
	}
	mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	if err == nil && mode != 0 {
		return errors.New("the container engine filters as well")
	}
	return err
}

// Without this, the test above could pass because the kernel refuses anyway.
func TestTheSameCallsReachTheKernelWithoutAFilter(t *testing.T) {
	need.Facility(t, "root", bareRoot())
	got := play(t, "bare", user{})
	// the others need capabilities that a container's root may lack
	for _, name := range []string{
		"setns", "ptrace", "personality", "vsock", "vsock, high word", "TIOCSTI", "TIOCLINUX", "SETFLAGS", "FSSETXATTR",
		"keyctl", "name_to_handle_at", "shmget", "shmat", "semctl", "mq_open", "clone3", "io_uring_setup",
	} {
		assert.NotEqual(t, eperm, got[name], name)
	}
}

func TestFilteredProcessesDoOrdinaryThings(t *testing.T) {
	for _, as := range users() {
		t.Run(as.name, func(t *testing.T) {
			for name, result := range play(t, "ordinary", as, "TMPDIR=/tmp") {
				if as.credential != nil && name == "python" && strings.Contains(strings.ToLower(result), "permission denied") {
					t.Log("the tester's python3 is not for others:", result)
					continue
				}
				assert.Equal(t, "ok", result, name)
			}
		})
	}
}

func TestNetworkIsOneOption(t *testing.T) {
	for _, as := range users() {
		t.Run(as.name, func(t *testing.T) {
			assert.Equal(t,
				report{"unix": "ok", "tcp4": eperm, "udp4": eperm, "udp6": eperm, "interfaces": noFamily},
				play(t, "offline", as))
			online := play(t, "online", as)
			for _, name := range []string{"unix", "tcp4", "udp4", "interfaces"} {
				assert.Equal(t, "ok", online[name], name)
			}
			assert.NotEqual(t, eperm, online["udp6"], "a machine may lack IPv6, but the filter does not forbid it")
		})
	}
}

func TestInstallCoversThreadsThatRunAlready(t *testing.T) {
	for _, as := range users() {
		t.Run(as.name, func(t *testing.T) {
			got := play(t, "threads", as)
			require.Len(t, got, 14, got)
			for name, result := range got {
				want := "ok"
				if strings.HasPrefix(name, "thread ") {
					want = eperm
				}
				assert.Equal(t, want, result, name)
			}
		})
	}
}

func TestInstallFailsWhenAThreadHasAnotherFilter(t *testing.T) {
	got := play(t, "diverged", user{})
	require.Equal(t, "ok", got["diverged"])
	assert.Regexp(t, `^install filter: thread \d+ is under another filter$`, got["install"])
	assert.NotEqual(t, enosys, got["clone3 afterwards"], "no thread is filtered by halves")
}

func TestDebuggersWorkWhereTheyAreAllowed(t *testing.T) {
	for _, as := range users() {
		t.Run(as.name, func(t *testing.T) {
			assert.Equal(t, report{"stopped": "true", "detach": "ok", "exit": "7"}, play(t, "tracing", as))
		})
	}
}

// program386 is a whole ELF file for i386 that leaves by int 0x80 with status 42.
func program386() []byte {
	const base, headers = 0x08048000, 52 + 32
	code := []byte{0xb8, 1, 0, 0, 0, 0xbb, 42, 0, 0, 0, 0xcd, 0x80}
	le := binary.LittleEndian
	out := append([]byte("\x7fELF\x01\x01\x01"), make([]byte, 9)...)
	for _, half := range []uint16{2, 3} { // executable, i386
		out = le.AppendUint16(out, half)
	}
	for _, word := range []uint32{1, base + headers, 52, 0, 0} { // version, entry, program headers, no sections, flags
		out = le.AppendUint32(out, word)
	}
	for _, half := range []uint16{52, 32, 1, 0, 0, 0} {
		out = le.AppendUint16(out, half)
	}
	size := uint32(headers + len(code))
	for _, word := range []uint32{1, 0, base, base, size, size, 5, 4096} { // one segment: all of it, readable and executable
		out = le.AppendUint32(out, word)
	}
	return append(out, code...)
}

func TestE10ForeignABIsDoNotPassTheFilter(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("needs amd64: i386 and x32 are ABIs of its kernels")
	}
	dir, err := os.MkdirTemp("/tmp", "seccomp") //nolint:usetesting // another user must reach it
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	file := filepath.Join(dir, "i386")
	require.NoError(t, os.WriteFile(file, program386(), 0o755))
	bare := exec.CommandContext(t.Context(), file)
	runs := bare.Run()
	if bare.ProcessState.ExitCode() != 42 {
		need.Facility(t, "ia32", runs)
	}
	for _, as := range users() {
		t.Run(as.name, func(t *testing.T) {
			got := play(t, "foreign", as, foreignVariable+"="+file)
			assert.Equal(t, eperm, got["x32 getpid"])
			assert.Equal(t, enosys, got["x32 ptrace"])
			assert.Contains(t, got["i386"], "signal: bad system call")
		})
	}
}

func TestInstallRefusesWhatIsNoProgram(t *testing.T) {
	require.ErrorContains(t, Install(nil), "install filter: 0 instructions")
	require.ErrorContains(t, Install(make(Program, MaxInstructions+1)), "install filter: 4097 instructions")
}

func TestProbeInstallsNothing(t *testing.T) {
	need.Facility(t, "seccomp", Probe())
	before, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	require.NoError(t, err)
	require.NoError(t, Probe())
	after, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	require.NoError(t, err)
	assert.Equal(t, before, after)
}

func TestTheFilterIsCheap(t *testing.T) {
	got := play(t, "cost", user{})
	require.Len(t, got, 4, got)
	t.Log(got)
}
