package hostile_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/sandboxd/agenttest"
	"berth/sandboxd/api"
	"berth/slots"
	"berth/slots/need"
)

// A stage is one agent that has an attacker in slot_0, a watched neighbour in
// slot_1 and a second attacker in slot_2.
type stage struct {
	*agenttest.Agent
	axes slots.Axes
	uid  int    // of the agent; 0: ours
	mark string // in the environment of every process of a slot
}

// The limits that every stage puts on its slots.
const (
	stagePids      = 200
	stageMemory    = 512 << 20
	stageAddress   = 2 << 30 // the holder is under it as well, and a Go program reserves more than 1 GiB
	stageDisk      = 256 << 20
	stageFiles     = 3_000
	stageSpill     = 8 << 20
	stageOpenFiles = 4096
)

// commonPids is the limit where all slots are one ordinary user's: the kernel
// counts the processes of all his agents, other tests' too, and each slot is
// refused by its own agent's limit. With three slots this one's is below that of
// an agent with one slot and the default, and leaves it room.
const commonPids = 160

// attack is one case of the catalogue. What it does in slot_0 is watched.
type attack struct {
	id     string
	crowds bool // it takes all the processes that its user may have
	bounds agenttest.Bounds
	run    func(*testing.T, *stage)
}

// setting is one level at which the cases run.
type setting struct {
	name  string
	level slots.Level
	uid   int
}

// another is the first of some users whom the machine knows nothing of.
const another = 47113

// settings are the levels that the machine offers to our own user, and those
// that it offers only to somebody who is not root: there uids hold nobody
// apart.
func settings(t *testing.T) []setting {
	t.Helper()
	var list []setting
	own := agenttest.Levels(t)
	for _, l := range own {
		list = append(list, setting{l.String(), l, 0})
	}
	if os.Geteuid() != 0 {
		return list
	}
	others := []slots.Level{slots.LevelBasic, slots.LevelLandlock, slots.LevelNS}
	if !agenttest.EveryLevel() {
		others = others[1:2]
	}
	for _, l := range others {
		user := another + int(l) // the kernel counts processes per user
		if err := agenttest.Offers(t, l, user); err != nil {
			t.Logf("level %s is not offered to another user: %v", l, err)
			continue
		}
		list = append(list, setting{l.String() + " as another user", l, user})
	}
	slices.Reverse(list) // the strongest, which nothing excuses, first
	return list
}

// stageOptions are the flags of a stage.
func stageOptions(s setting, mark string) agenttest.Options {
	pids := stagePids
	if s.uid != 0 || os.Geteuid() != 0 {
		pids = commonPids
	}
	o := agenttest.Options{Level: s.level, UID: s.uid, Slots: 3, Args: []string{
		"--pids", strconv.Itoa(pids), "--disk-backend", "watcher", "--disk", strconv.Itoa(stageDisk), "--disk-files", strconv.Itoa(stageFiles),
		"--spill-max", strconv.Itoa(stageSpill), "--open-files", strconv.Itoa(stageOpenFiles), "--env", "STAGE_MARK=" + mark,
	}}
	if s.level == slots.LevelNSCgroup {
		o.Args = append(o.Args, "--memory", strconv.Itoa(stageMemory))
	} else {
		o.Args = append(o.Args, "--address-space", strconv.Itoa(stageAddress))
	}
	return o
}

func newStage(t *testing.T, s setting, change func(*agenttest.Options)) *stage {
	t.Helper()
	st := &stage{uid: s.uid, mark: fmt.Sprintf("stage-%d-%d", os.Getpid(), time.Now().UnixNano())}
	o := stageOptions(s, st.mark)
	if change != nil {
		change(&o)
	}
	st.Agent = agenttest.Start(t, o)
	h, err := st.Health(t.Context())
	require.NoError(t, err)
	st.axes = slots.Axes{}
	for _, axis := range slots.AxisNames() {
		st.axes[axis] = slots.AxisValues(axis)[0] // what is not told is weakest
	}
	maps.Copy(st.axes, h.Isolation.Axes)
	t.Logf("level %s, axes %v", h.Isolation.Level, st.axes)
	return st
}

// runAttacks runs the cases at every level, one agent for each level, and
// resets the attackers' slots after each case.
func runAttacks(t *testing.T, attacks []attack) {
	need.Program(t, "python3")
	for _, set := range settings(t) {
		t.Run(set.name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, set, nil)
			for _, a := range attacks {
				t.Run(a.id, func(t *testing.T) {
					if !s.Alive() {
						t.Fatalf("an earlier attack has ended the agent\n%s", s.Log())
					}
					began := time.Now()
					defer func() {
						if t.Failed() {
							t.Logf("the agent's log:\n%s", s.Log())
						}
						if took := time.Since(began); took > 4*time.Second {
							t.Logf("took %v", took)
						}
					}()
					a.bounds.OneCount = a.crowds && !s.separate()
					s.Watch(t, a.bounds, func() {
						a.run(t, s)
						s.tidy(t)
					})
					s.noStrays(t)
				})
			}
		})
	}
}

// tidy resets the attackers' slots, which must succeed after every attack,
// and proves that no process of theirs is left. The neighbour may be at work.
func (s *stage) tidy(t *testing.T) {
	t.Helper()
	for _, slot := range []string{"slot_0", "slot_2"} {
		receipt, err := s.Reset(t.Context(), slot, nil)
		require.NoError(t, err, "reset of %s: %+v", slot, receipt)
		assert.True(t, receipt.Clean)
		s.Within(t, "reset of "+slot, time.Duration(receipt.MS*float64(time.Millisecond)), 2*time.Second)
	}
	s.noStraysBut(t, "cat .canary")
}

// unpromised ends a case that the level does not promise to hold.
func (s *stage) unpromised(t *testing.T, axis slots.Axis, least string) {
	t.Helper()
	values := slots.AxisValues(axis)
	if slices.Index(values, s.axes[axis]) < slices.Index(values, least) {
		t.Skipf("not promised here: axis %s is %q, the case needs %q", axis, s.axes[axis], least)
	}
}

// noCrowd skips a case where the neighbours' processes are counted together
// with the attacker's.
func (s *stage) noCrowd(t *testing.T) {
	t.Helper()
	s.unpromised(t, slots.AxisPids, "rlimit")
	if s.axes[slots.AxisPids] == "rlimit" && !s.separate() {
		t.Skip("not promised here: processes are counted per user, and all slots are one user")
	}
}

// confined reports whether slots have rlimits and a filter.
func (s *stage) confined() bool { return s.axes[slots.AxisSyscalls] != "inherited" }

// separate reports whether what the kernel counts per uid is counted per slot.
func (s *stage) separate() bool {
	return s.uid == 0 && os.Geteuid() == 0 && s.axes[slots.AxisProc] != "shared" && s.axes[slots.AxisProc] != "nodump" && s.axes[slots.AxisProc] != "landlock-scope"
}

// python runs a program in slot_0.
func (s *stage) python(t *testing.T, program string, timeout float64) api.Result {
	t.Helper()
	return s.pythonIn(t, "slot_0", program, timeout)
}

func (s *stage) pythonIn(t *testing.T, slot, program string, timeout float64) api.Result {
	t.Helper()
	r, err := s.Tool(slot, "bash", map[string]any{"command": "exec /usr/bin/python3 -I -", "stdin": program}, timeout)
	require.NoError(t, err)
	return r
}

// works proves that slot_0 is usable.
func (s *stage) works(t *testing.T) {
	t.Helper()
	r := s.Bash(t, "slot_0", "echo works", 20)
	assert.Equal(t, "works", r.Output, "%+v", r.Metadata.Receipt)
}

// processes lists the processes of slots, by whatever of two traces they
// cannot have wiped: the mark in their environment, or a descent from the
// agent. The agent's own processes are not among them.
func (s *stage) processes(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	parents := map[int]int{}
	shown := map[int]string{}
	for _, dir := range names {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue
		}
		_, rest, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
		fields := strings.Fields(string(rest))
		if len(fields) < 2 {
			continue
		}
		parents[pid], _ = strconv.Atoi(fields[1])
		command, _ := os.ReadFile(dir + "/cmdline")
		argv := strings.Split(string(command), "\x00")
		own := len(argv) > 1 && (argv[1] == "serve-slot" || argv[1] == "holder" || argv[1] == "spawner" || argv[1] == "serve")
		env, _ := os.ReadFile(dir + "/environ")
		if bytes.Contains(env, []byte("STAGE_MARK="+s.mark+"\x00")) || !own {
			shown[pid] = fmt.Sprintf("%d %s %s %q", pid, fields[0], stat[:bytes.LastIndexByte(stat, ')')+1], strings.Join(argv, " "))
		}
		if bytes.Contains(env, []byte("STAGE_MARK="+s.mark+"\x00")) {
			parents[pid] = s.PID
		}
	}
	var list []string
	for pid, line := range shown {
		for at, steps := pid, 0; at > 1 && steps < 1000; at, steps = parents[at], steps+1 {
			if at == s.PID {
				list = append(list, line)
				break
			}
		}
	}
	slices.Sort(list)
	return list
}

// noStrays proves that no process of any slot is left.
func (s *stage) noStrays(t *testing.T) {
	t.Helper()
	s.noStraysBut(t, "\x00")
}

// noStraysBut leaves out the processes whose command line holds a text.
func (s *stage) noStraysBut(t *testing.T, text string) {
	t.Helper()
	var left []string
	for deadline := time.Now().Add(agenttest.Patient(10 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
		left = slices.DeleteFunc(s.processes(t), func(line string) bool { return strings.Contains(line, text) })
		if len(left) == 0 || time.Now().After(deadline) {
			break
		}
	}
	assert.Empty(t, left[:min(len(left), 10)], "%d processes are left", len(left))
}

// number reads an integer that an attack printed after a name: name=12.
func number(t *testing.T, output, name string) int {
	t.Helper()
	_, after, ok := strings.Cut(output, name+"=")
	require.True(t, ok, "no %s in %q", name, output)
	end := strings.IndexFunc(after, func(r rune) bool { return r != '-' && (r < '0' || r > '9') })
	if end < 0 {
		end = len(after)
	}
	n, err := strconv.Atoi(after[:end])
	require.NoError(t, err)
	return n
}

func itoa(n int) string { return strconv.Itoa(n) }
