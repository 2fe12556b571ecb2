package dockertest_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/sandboxd/dockertest"
	"berth/slots"
)

// mode is one way to start a container, and the level that it must reach.
type mode struct {
	name    string
	options []string
	want    slots.Level
}

var nobody = []string{"--user", "1000:1000", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only"}

// modes are those of the deployment guide. What an engine with AppArmor and
// one on cgroup v2 change is part of the table.
func modes(t *testing.T, e dockertest.Engine) []mode {
	t.Helper()
	profile, err := filepath.Abs("../../images/seccomp-slots.json")
	require.NoError(t, err)
	if named := os.Getenv("BERTH_SECCOMP"); named != "" {
		profile = named // where only the test program was brought
	}
	require.FileExists(t, profile)
	seccomp := []string{"--security-opt", "seccomp=" + profile}
	open := append(seccomp, "--security-opt", "apparmor=unconfined")
	confined, best := slots.LevelNS, slots.LevelNS
	if e.Unified {
		best = slots.LevelNSCgroup
		confined = best
	}
	if e.AppArmor {
		confined = slots.LevelUIDLandlock // which then refuses every mount
	}
	tmpfs := []string{"--tmpfs", "/data:mode=1777"}
	scratch := []string{"--tmpfs", "/data:mode=1777,exec", "--tmpfs", "/tmp"}
	return []mode{
		{"default", nil, slots.LevelUIDLandlock},
		{"default, no-new-privileges", []string{"--security-opt", "no-new-privileges"}, slots.LevelUIDLandlock},
		{"default, read-only, data on tmpfs noexec", append([]string{"--read-only"}, tmpfs...), slots.LevelUIDLandlock},
		{"user", append(nobody, scratch...), slots.LevelLandlock},
		{"user, data on a volume", append(nobody, "--volume", "/data"), slots.LevelLandlock},
		{"slots profile", seccomp, confined},
		{"slots profile, no AppArmor", open, best},
		{"slots profile, no AppArmor, no-new-privileges, pids limit", append(open, "--security-opt", "no-new-privileges", "--pids-limit", "4096"), best},
		{"slots profile, no AppArmor, read-only, data on tmpfs noexec", append(append(open, "--read-only"), tmpfs...), best},
		{"user, slots profile, no AppArmor", append(append(nobody, scratch...), open...), slots.LevelNS},
		{"SYS_ADMIN, no AppArmor", []string{"--cap-add", "SYS_ADMIN", "--security-opt", "apparmor=unconfined"}, best},
	}
}

func TestContainersReachTheirLevelAndWork(t *testing.T) {
	e := dockertest.Need(t)
	for _, m := range modes(t, e) {
		t.Run(m.name, func(t *testing.T) {
			c := start(t, e, m.options, []string{"--memory", "96MiB", "--isolation-require", m.want.String()})
			t.Logf("%s: %v, weak: %q", c.health.Isolation.Level, c.health.Isolation.Axes, c.health.Isolation.Weak)
			assert.GreaterOrEqual(t, c.health.Isolation.Level, m.want)
			assert.False(t, c.health.Isolation.Unsafe)

			runsCommands(t, c)
			keepsFiles(t, c)
			keepsTheShell(t, c)
			hidesNeighbours(t, c)
			keepsItsPort(t, c)
			killsWhatTimesOut(t, c)
			limitsMemory(t, c)
			resets(t, c)
			endsWell(t, c)
		})
	}
}

func (c *container) tool(t *testing.T, slot, tool string, args map[string]any, timeout float64) api.Result {
	t.Helper()
	text, err := json.Marshal(args)
	require.NoError(t, err)
	r, err := c.Execute(t.Context(), api.Call{SlotID: slot, Tool: tool, Args: text, Timeout: api.Seconds(timeout)})
	require.NoError(t, err)
	return r
}

func (c *container) bash(t *testing.T, slot, command string) api.Result {
	t.Helper()
	return c.tool(t, slot, "bash", map[string]any{"command": command}, 30)
}

// runsCommands tries what every program needs: status, output, input, places
// to write, and no others.
func runsCommands(t *testing.T, c *container) {
	t.Helper()
	r := c.bash(t, "slot_0", "echo out; echo problem >&2; exit 3")
	assert.Equal(t, "out\n[stderr]\nproblem", strings.TrimSpace(r.Output))
	assert.Equal(t, "Exit code: 3", r.Error)
	r = c.bash(t, "slot_0", `touch "${TMPDIR:-/tmp}/x" "$HOME/x" && cat <(echo substituted); ls -d /var/tmp`)
	assert.Contains(t, r.Output, "substituted", "/dev/fd works")
	r = c.tool(t, "slot_0", "bash", map[string]any{"command": "wc -c", "stdin": strings.Repeat("x", 100_000)}, 30)
	assert.Equal(t, "100000", strings.TrimSpace(r.Output))
	r = c.bash(t, "slot_0", "id -u; ulimit -c; [ -w / ] && echo 'root is writable'; true")
	t.Logf("runs as %q", r.Output)
	assert.NotContains(t, r.Output, "root is writable")
}

// keepsFiles writes by one way and reads by the others.
func keepsFiles(t *testing.T, c *container) {
	t.Helper()
	r := c.tool(t, "slot_0", "write_file", map[string]any{"path": "dir/a.txt", "content": "one\ntwo\n"}, 30)
	require.True(t, r.Success, r.Error)
	r = c.tool(t, "slot_0", "edit_file", map[string]any{"path": "dir/a.txt", "old_string": "two", "new_string": "three"}, 30)
	require.True(t, r.Success, r.Error)
	assert.Equal(t, "one\nthree", strings.TrimSpace(c.bash(t, "slot_0", "cat dir/a.txt").Output))
	r = c.tool(t, "slot_0", "read_file", map[string]any{"path": "dir/a.txt"}, 30)
	assert.Contains(t, r.Output, "three")
	r = c.tool(t, "slot_0", "grep", map[string]any{"pattern": "thr", "path": "."}, 30)
	assert.Contains(t, r.Output, "dir/a.txt")
	answer, err := c.ReadArtifact(t.Context(), api.ReadRequest{SlotID: "slot_0", Path: "dir/a.txt"})
	require.NoError(t, err)
	assert.NotEmpty(t, answer)
}

// keepsTheShell finds what one command set in the next.
func keepsTheShell(t *testing.T, c *container) {
	t.Helper()
	r := c.tool(t, "slot_0", "bash_stateful", map[string]any{"command": "cd dir; export X=kept"}, 30)
	require.True(t, r.Success, r.Error)
	r = c.tool(t, "slot_0", "bash_stateful", map[string]any{"command": `echo "$X $(cat a.txt)"`}, 30)
	assert.Equal(t, "kept one\nthree", strings.TrimSpace(r.Output), r.Error)
}

// hidesNeighbours reaches for a neighbour's file by its path, through its
// processes, and through the container's data directory.
func hidesNeighbours(t *testing.T, c *container) {
	t.Helper()
	const secret = "a-secret-of-slot-one"
	r := c.tool(t, "slot_1", "bash", map[string]any{"command": "echo " + secret + " > secret; sleep 31986 & disown", "background": true}, 30)
	require.True(t, r.Success, r.Error)
	r = c.bash(t, "slot_0", `shopt -s nullglob
		for f in /data/berth/sandboxes/slots/slot_1/workspace/secret /data/berth/sandboxes/live/*/workspace/secret /proc/[0-9]*/cwd/secret \
			/proc/[0-9]*/root/data/berth/sandboxes/slots/slot_1/workspace/secret /proc/[0-9]*/root/workspace/secret; do cat "$f"; done
		cat /data/berth/lock /proc/1/environ; ls /data/berth/sandboxes/live; true`)
	assert.NotContains(t, r.Output, secret)
	r = c.bash(t, "slot_1", "cat secret")
	assert.Equal(t, secret, strings.TrimSpace(r.Output))
	if c.health.Isolation.Axes[slots.AxisProc] != "nodump" {
		// No signal of the neighbour's reaches the process. A slot may end its
		// own holder, and then gets a new one.
		args := json.RawMessage(`{"command":"for p in /proc/[0-9]*; do kill -9 ${p#/proc/} 2>/dev/null; done; kill -9 -1"}`)
		if _, err := c.Execute(t.Context(), api.Call{SlotID: "slot_0", Tool: "bash", Args: args, Timeout: api.Seconds(30)}); err != nil {
			assert.Equal(t, slots.KindSlotLost, slots.AsError(err).Kind, err)
		}
		assert.Contains(t, strings.Join(c.processes(t), "\n"), "sleep 31986")
	}
}

// keepsItsPort holds the agent to what it says of its port: that slots cannot
// talk to it, or that they can.
func keepsItsPort(t *testing.T, c *container) {
	t.Helper()
	r := c.bash(t, "slot_0", `exec 3<>/dev/tcp/127.0.0.1/8080 && printf 'GET /livez HTTP/1.0\r\n\r\n' >&3 && timeout 2 head -n 1 <&3`)
	if net := c.health.Isolation.Axes[slots.AxisNet]; net == "" || net == "host" {
		assert.Contains(t, r.Output, "HTTP/1.")
	} else {
		assert.NotContains(t, r.Output, "HTTP/1.")
	}
}

// killsWhatTimesOut leaves daemons behind a command that runs too long.
func killsWhatTimesOut(t *testing.T, c *container) {
	t.Helper()
	r := c.tool(t, "slot_0", "bash", map[string]any{"command": "for i in 1 2 3; do (setsid bash -c 'trap \"\" TERM HUP; sleep 31987; :' &) ; done; sleep 31987"}, 1)
	assert.Equal(t, "Command timed out after 1s", r.Error)
	left := func(what string) (found []string) {
		for _, p := range c.processes(t) {
			if strings.Contains(p, what) {
				found = append(found, p)
			}
		}
		return found
	}
	assert.Empty(t, left("sleep 31987"), "what the command left running")
	assert.Eventually(t, func() bool { return len(left("<defunct>")) == 0 }, 30*time.Second, 50*time.Millisecond, "what nobody waited for")
}

// limitsMemory has a slot use more than its limit where the agent says that it
// is kept.
func limitsMemory(t *testing.T, c *container) {
	t.Helper()
	if c.health.Isolation.Axes[slots.AxisMemory] != "cgroup" {
		return
	}
	r := c.bash(t, "slot_0", "head -c 400000000 /dev/zero | tail -c 300000000 | wc -c")
	require.NotNil(t, r.Metadata.Receipt)
	assert.True(t, r.Metadata.OOMKilled, "%+v", r)
	assert.NotContains(t, r.Output, "300000000")
	assert.True(t, c.bash(t, "slot_1", "cat secret").Success, "the neighbour goes on")
}

// resets takes a slot's files and leaves its neighbour's.
func resets(t *testing.T, c *container) {
	t.Helper()
	before, err := c.Slots(t.Context())
	require.NoError(t, err)
	receipt, err := c.Reset(t.Context(), "slot_0", nil)
	require.NoError(t, err)
	assert.True(t, receipt.Clean, "%+v", receipt)
	assert.Equal(t, before[0].Generation+1, receipt.Generation)
	assert.Empty(t, strings.TrimSpace(c.bash(t, "slot_0", `ls -A; ls -A "${TMPDIR:-/tmp}"`).Output))
	assert.True(t, c.bash(t, "slot_1", "cat secret").Success, "the neighbour's file stays")
}

// endsWell looks into the container from outside and stops it.
func endsWell(t *testing.T, c *container) {
	t.Helper()
	_, err := dockertest.Docker("exec", c.id, "/sandboxd", "version")
	require.NoError(t, err, "operators get in")
	health, err := c.Health(t.Context())
	require.NoError(t, err)
	assert.Equal(t, api.HealthOK, health.Status)
	_, err = dockertest.Docker("stop", "--time", "40", c.id)
	require.NoError(t, err)
	out, err := dockertest.Docker("inspect", "--format", "{{.State.ExitCode}} {{.State.OOMKilled}}", c.id)
	require.NoError(t, err)
	code, _, _ := strings.Cut(out, " ")
	status, err := strconv.Atoi(code)
	require.NoError(t, err)
	assert.Zero(t, status, c.log())
}
