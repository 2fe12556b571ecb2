package probe

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth/slots"
)

// strongest claims the best value on every axis that an attack can lower.
func strongest() slots.Axes {
	return slots.Axes{
		slots.AxisFS: "mntns", slots.AxisProc: "pidns", slots.AxisAgent: "hidden", slots.AxisNet: "host-minus-agent-port",
		slots.AxisSyscalls: "denylist+no-nested-userns", slots.AxisIPC: "seccomp", slots.AxisKill: "pidns",
	}
}

func TestJudgeLowersWhatAnAttackHasShownOpen(t *testing.T) {
	for _, c := range []struct {
		open       string
		axis       slots.Axis
		falls      string
		privateIPC bool
	}{
		{open: "read the neighbour's file by its path", axis: slots.AxisFS, falls: "shared"},
		{open: "read the neighbour's file through /proc", axis: slots.AxisFS, falls: "shared"},
		{open: "read the agent's file", axis: slots.AxisAgent, falls: "exposed"},
		{open: "read the agent's tokens", axis: slots.AxisAgent, falls: "exposed"},
		{open: "read the agent's environment", axis: slots.AxisAgent, falls: "exposed"},
		{open: "read the agent's memory", axis: slots.AxisAgent, falls: "exposed"},
		{open: "trace the agent", axis: slots.AxisAgent, falls: "exposed"},
		{open: "signal the agent", axis: slots.AxisAgent, falls: "signals-only"},
		{open: "signal the neighbour", axis: slots.AxisProc, falls: "nodump"},
		{open: "trace the neighbour", axis: slots.AxisProc, falls: "shared"},
		{open: "talk to the agent's port", axis: slots.AxisNet, falls: "host"},
		{open: "make a user namespace", axis: slots.AxisSyscalls, falls: "inherited"},
		{open: "load a bpf program", axis: slots.AxisSyscalls, falls: "inherited"},
		{open: "make shared memory that others see", axis: slots.AxisIPC, falls: "shared"},
		{open: "make shared memory that others see", axis: slots.AxisIPC, falls: "seccomp", privateIPC: true},
	} {
		t.Run(c.open, func(t *testing.T) {
			claimed := strongest()
			results := []Result{{Name: c.open, Open: true}, {Name: "signal the agent", Open: c.open == "signal the agent"}}
			axes, weak := Judge(claimed, results, c.privateIPC)
			assert.Equal(t, c.falls, axes[c.axis])
			assert.Empty(t, weak)
			for axis, value := range claimed {
				if axis != c.axis {
					assert.Equal(t, value, axes[axis])
				}
			}
			assert.Equal(t, strongest(), claimed, "the claim itself is not touched")
		})
	}
}

func TestJudgeNamesWeaknessesThatCostNoAxis(t *testing.T) {
	axes, weak := Judge(strongest(), []Result{{Name: "reach the neighbour's abstract socket", Open: true}}, false)
	assert.Equal(t, strongest(), axes)
	assert.Equal(t, []string{"a slot can reach the neighbour's abstract socket"}, weak)
}

func TestJudgeRaisesNothing(t *testing.T) {
	var all []Result
	for _, a := range attacks {
		all = append(all, Result{Name: a.name})
	}
	axes, weak := Judge(slots.Axes{slots.AxisFS: "dac"}, all, false)
	assert.Equal(t, slots.Axes{slots.AxisFS: "dac"}, axes, "attacks that failed prove no more than was claimed")
	assert.Empty(t, weak)
	for i := range all {
		all[i].Open = true
	}
	axes, _ = Judge(strongest(), all, false)
	assert.Equal(t, slots.LevelNone, axes.Level())
}

func TestEveryAttackNamesAValueOfItsAxis(t *testing.T) {
	names := map[string]bool{}
	for _, a := range attacks {
		assert.False(t, names[a.name], "%s stands there twice", a.name)
		names[a.name] = true
		if a.axis != "" {
			assert.Contains(t, slots.AxisValues(a.axis), a.falls, a.name)
		}
	}
}

// attackFrom runs the list in this very process, which nothing confines.
func attackFrom(t *testing.T, targets Targets) map[string]Result {
	t.Helper()
	text, err := json.Marshal(targets)
	require.NoError(t, err)
	var out bytes.Buffer
	require.Zero(t, AttackMain(bytes.NewReader(text), &out))
	var results []Result
	require.NoError(t, json.Unmarshal(out.Bytes(), &results))
	require.Len(t, results, len(attacks), "each has its answer")
	byName := map[string]Result{}
	for _, r := range results {
		byName[r.Name] = r
		assert.NotEmpty(t, r.Note)
	}
	return byName
}

func TestAttacksSucceedWhereNothingStandsInTheWay(t *testing.T) {
	victim := exec.CommandContext(t.Context(), "sleep", "1000")
	require.NoError(t, victim.Start())
	defer func() { victim.Process.Kill(); victim.Wait() }()
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("s3cret"), 0o600))
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@berth-probe-test-" + filepath.Base(t.TempDir()), Net: "unix"})
	require.NoError(t, err)
	defer listener.Close()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer tcp.Close()
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("HTTP/1.0 200 OK\r\n\r\n"))
			c.Close()
		}
	}()
	token, err := FileAt(secret)
	require.NoError(t, err)
	got := attackFrom(t, Targets{
		AgentSecrets: []File{{Path: "/no/such/file"}, token}, NeighbourFile: secret, NeighbourPID: victim.Process.Pid, AgentPID: victim.Process.Pid, AgentFile: secret,
		AgentAddress: tcp.Addr().String(), Abstract: strings.TrimPrefix(listener.Addr().String(), "@"), Secret: "s3cret",
	})
	for _, name := range []string{
		"read the neighbour's file by its path", "read the neighbour's file through /proc", "read the agent's file",
		"read the agent's environment", "read the agent's memory", "signal the agent", "signal the neighbour", "read the agent's tokens",
		"talk to the agent's port", "reach the neighbour's abstract socket",
	} {
		assert.True(t, got[name].Open, "%s: %s", name, got[name].Note)
	}
}

// Each way must get there where nothing hinders it, or its failure would prove
// nothing.
func TestEveryWayToThePortIsOne(t *testing.T) {
	tcp, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer tcp.Close()
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			line, _ := bufio.NewReader(c).ReadString('\n')
			c.Write([]byte(line))
			c.Close()
		}
	}()
	address := tcp.Addr().(*net.TCPAddr).AddrPort()
	// What a kernel says that does not know a way, or has it switched off.
	unknown := []error{unix.ENOENT, unix.EPROTONOSUPPORT, unix.ENOPROTOOPT, unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.EADDRNOTAVAIL}
	for i, w := range ways {
		err := w.talk(address)
		if i > 0 && slices.ContainsFunc(unknown, func(u error) bool { return errors.Is(err, u) }) {
			t.Logf("%s: not on this machine: %v", w.name, err)
			continue
		}
		require.NoError(t, err, w.name)
	}
	tcp.Close()
	for _, w := range ways {
		require.Error(t, w.talk(address), "%s: nobody listens", w.name)
	}
	require.ErrorIs(t, talk(address.String()), unix.ECONNREFUSED, "what the plain way said")
	assert.ErrorIs(t, talk("no address"), errSafe)
}

func TestAttacksThatFailAreNotTakenForSuccess(t *testing.T) {
	refusing, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer refusing.Close()
	go func() { // an agent that hangs up on a slot
		for {
			c, err := refusing.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	other := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, []byte("what the slot sees there is another file"), 0o600))
	masked := File{Path: other}
	got := attackFrom(t, Targets{
		AgentSecrets: []File{masked}, NeighbourFile: other, NeighbourPID: 1 << 30, AgentPID: 1 << 30, AgentFile: "/no/such/file",
		AgentAddress: refusing.Addr().String(), Abstract: "berth-nobody-listens-here", Secret: "s3cret",
	})
	for name, r := range got {
		switch name {
		case "make a user namespace", "load a bpf program", "make shared memory that others see":
		default:
			assert.False(t, r.Open, "%s: %s", name, r.Note)
		}
	}
}

func TestAttacksByNumberAreNotMadeOnOneself(t *testing.T) {
	got := attackFrom(t, Targets{AgentPID: os.Getpid(), NeighbourPID: os.Getpid(), OwnPIDs: true, OwnProc: true, Secret: "x"})
	for _, name := range []string{"signal the agent", "trace the agent", "signal the neighbour", "trace the neighbour", "read the agent's memory", "read the agent's environment"} {
		assert.False(t, got[name].Open, name)
	}
}

func TestAttackMainRefusesWhatIsNoTarget(t *testing.T) {
	assert.Equal(t, 64, AttackMain(strings.NewReader("{"), &bytes.Buffer{}))
	assert.Equal(t, 74, AttackMain(strings.NewReader("{}"), failing{}))
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestDeniedTellsARefusalFromABadArgument(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EPERM, unix.EACCES, unix.ENOSYS} {
		assert.Equal(t, errno, denied(errno))
	}
	for _, errno := range []unix.Errno{0, unix.EINVAL, unix.EFAULT} {
		assert.NoError(t, denied(errno), "the call got through")
	}
}

func TestFactsAreThoseOfThisProcess(t *testing.T) {
	f := Take()
	assert.Equal(t, os.Geteuid(), f.UID)
	assert.Equal(t, runtime.GOARCH, f.Arch)
	assert.NotEmpty(t, f.Kernel)
	assert.False(t, f.PID1)
	assert.Equal(t, f.LandlockABI == 0, f.LandlockErr != "", "either it works or it is said why not")
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, caps, _ := strings.Cut(string(status), "\nCapEff:\t")
	caps, _, _ = strings.Cut(caps, "\n")
	assert.Equal(t, caps, fmt.Sprintf("%016x", f.Caps))
}

func TestWhoMaySwitchHasAllThreeCapabilities(t *testing.T) {
	all := Facts{Caps: 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_CHOWN}
	assert.True(t, all.CanSwitch())
	for _, c := range []int{unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_CHOWN} {
		less := Facts{Caps: all.Caps &^ (1 << c)}
		assert.False(t, less.CanSwitch())
		assert.False(t, less.Can(c))
	}
	assert.True(t, Facts{Caps: 1 << 40}.Can(40))
}
