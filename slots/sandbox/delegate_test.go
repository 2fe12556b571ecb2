package sandbox

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

func TestDelegateHandsOverTheCgroupThatWeAreIn(t *testing.T) {
	if os.Geteuid() != 0 {
		need.Facility(t, "root", os.ErrPermission)
	}
	h := &Host{config: Config{Exe: sandboxtest.Agent(t)}}
	dir, err := h.delegateCgroup(t.Context())
	need.Facility(t, "userns", err)
	defer dir.Close()
	at := filepath.Join("/proc/self/fd", strconv.Itoa(int(dir.Fd())))
	text, err := os.ReadFile(filepath.Join(at, "cgroup.procs"))
	require.NoError(t, err)
	assert.Contains(t, strings.Fields(string(text)), strconv.Itoa(os.Getpid()))
	made := filepath.Join(at, "berth-test-delegated")
	require.NoError(t, os.Mkdir(made, 0o755), "unlike a container's own mount, it can be written")
	require.NoError(t, unix.Rmdir(made))
	flags, err := unix.FcntlInt(dir.Fd(), unix.F_GETFD, 0)
	require.NoError(t, err)
	assert.Equal(t, unix.FD_CLOEXEC, flags&unix.FD_CLOEXEC, "no slot inherits it")
}

func TestDelegateThatSaysNothingIsAnError(t *testing.T) {
	if os.Geteuid() != 0 {
		need.Facility(t, "root", os.ErrPermission)
	}
	for _, exe := range []string{"/bin/true", "/bin/false", "/nonexistent"} {
		h := &Host{config: Config{Exe: exe}}
		dir, err := h.delegateCgroup(t.Context())
		require.Error(t, err, exe)
		assert.Nil(t, dir, exe)
	}
}

func TestDelegateMessagesAreReadWithSuspicion(t *testing.T) {
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	fd := int(null.Fd())
	for _, c := range []struct {
		name, body string
		files      []int
		want       string // in the error; "" when a file comes
	}{
		{"a directory", `{}`, []int{fd}, ""},
		{"nothing", ``, nil, "hear from delegate"},
		{"no message", `!`, []int{fd}, "hear from delegate"},
		{"no file", `{}`, nil, "0 attachments"},
		{"a refusal", `{"errno":13,"text":"mount cgroup2: permission denied"}`, nil, "permission denied"},
	} {
		t.Run(c.name, func(t *testing.T) {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			ours := os.NewFile(uintptr(pair[0]), "ours")
			defer ours.Close()
			if c.body != "" {
				var rights []byte
				if c.files != nil {
					rights = unix.UnixRights(c.files...)
				}
				require.NoError(t, unix.Sendmsg(pair[1], []byte(c.body), rights, nil, 0))
			}
			require.NoError(t, unix.Close(pair[1]))
			f, err := receiveDirectory(ours)
			if c.want == "" {
				require.NoError(t, err)
				assert.NoError(t, f.Close())
				return
			}
			require.ErrorContains(t, err, c.want)
			if c.name == "a refusal" {
				assert.ErrorIs(t, err, syscall.EACCES, "what mends it depends on the error number")
			}
		})
	}
}

func TestHiddenPathsAreMaskedOnce(t *testing.T) {
	h := &Host{config: Config{
		DataDir: "/data/berth/sandboxes",
		Hide:    []string{"/data/berth", "", "relative", "/data/berth/token", "/secrets", "/secrets-of-others/", "/secrets/"},
	}}
	assert.Equal(t, []string{"/data/berth", "/secrets", "/secrets-of-others"}, h.hidden(mechanism{}), "there is no place for a mask under a mask")
}
