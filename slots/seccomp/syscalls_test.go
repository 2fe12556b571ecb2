package seccomp

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"berth/slots/need"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// kernelNumbers reads the numbers of x/sys/unix for an architecture from its
// source: the constants themselves exist for the host only.
func kernelNumbers(t *testing.T, a Arch) map[string]int64 {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", "golang.org/x/sys/unix").Output()
	need.Facility(t, "go", err)
	file := filepath.Join(strings.TrimSpace(string(dir)), "zsysnum_linux_"+a.String()+".go")
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	require.NoError(t, err)
	out := map[string]int64{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		name, isCall := strings.CutPrefix(spec.Names[0].Name, "SYS_")
		if isCall {
			number, err := strconv.ParseInt(spec.Values[0].(*ast.BasicLit).Value, 0, 64)
			require.NoError(t, err)
			out[strings.ToLower(name)] = number
		}
		return true
	})
	require.Greater(t, len(out), 300)
	return out
}

func TestTheTableAgreesWithTheKernelsNumbers(t *testing.T) {
	for _, a := range Arches() {
		t.Run(a.String(), func(t *testing.T) {
			want := kernelNumbers(t, a)
			for name, n := range syscalls {
				number, exists := want[name]
				if !exists {
					number = absent
				}
				assert.Equal(t, number, n.number(a), name)
			}
		})
	}
}

// A failure here means that x/sys has learned a call that nobody has judged yet:
// decide whether the denylist must name it, then raise newest.
func TestEveryNumberThatXSysKnowsWasJudged(t *testing.T) {
	for _, a := range Arches() {
		highest := int64(0)
		for _, n := range kernelNumbers(t, a) {
			highest = max(highest, n)
		}
		assert.EqualValues(t, newest, highest, "newest on %s", a)
	}
}

// These are compiled in, so the host's table is checked where no Go tool is.
func TestTheHostsNumbersAreThoseOfItsKernelHeaders(t *testing.T) {
	host, err := HostArch()
	require.NoError(t, err)
	for name, want := range map[string]int64{
		"mount": unix.SYS_MOUNT, "clone": unix.SYS_CLONE, "unshare": unix.SYS_UNSHARE, "ptrace": unix.SYS_PTRACE,
		"ioctl": unix.SYS_IOCTL, "socket": unix.SYS_SOCKET, "personality": unix.SYS_PERSONALITY, "bpf": unix.SYS_BPF,
		"keyctl": unix.SYS_KEYCTL, "setns": unix.SYS_SETNS, "shmget": unix.SYS_SHMGET, "clone3": unix.SYS_CLONE3,
		"file_setattr": unix.SYS_FILE_SETATTR, "open_tree_attr": unix.SYS_OPEN_TREE_ATTR,
	} {
		assert.Equal(t, want, syscalls[name].number(host), name)
	}
}

func TestArchesHaveTheirGoNames(t *testing.T) {
	assert.Equal(t, "amd64", AMD64.String())
	assert.Equal(t, "arm64", ARM64.String())
	assert.Equal(t, "arch(0x28)", Arch(0x28).String())
	host, err := HostArch()
	require.NoError(t, err)
	assert.Equal(t, runtime.GOARCH, host.String())
	assert.EqualValues(t, absent, syscalls["mount"].number(Arch(0x28)))
}

func TestEveryCallOfTheTableIsUsedBySomeProfile(t *testing.T) {
	used := map[string]bool{}
	for _, r := range ForSlot(Options{SharedIPC: true, SharedUID: true, PortRules: true}).Rules {
		used[r.Syscall] = true
	}
	for name := range syscalls {
		assert.True(t, used[name], name)
	}
}
