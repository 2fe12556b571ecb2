package slots

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Level is one word for how well the slots of a container are isolated from
// each other and from the agent. Larger is stronger.
type Level int

// The ladder, weakest first.
const (
	LevelNone        Level = iota // nothing but a directory
	LevelBasic                    // no_new_privs, empty environment, rlimits, kill by walk
	LevelLandlock                 // same uid, files and ports held apart by Landlock
	LevelUID                      // a uid per slot, no capabilities, seccomp
	LevelUIDLandlock              // both
	LevelNS                       // own namespaces and root view
	LevelNSCgroup                 // and a cgroup per slot
)

var levelWords = []string{"none", "basic", "landlock", "uid", "uid+landlock", "ns", "ns+cgroup"}

// Levels lists the ladder, weakest first.
func Levels() []Level {
	return []Level{LevelNone, LevelBasic, LevelLandlock, LevelUID, LevelUIDLandlock, LevelNS, LevelNSCgroup}
}

// String returns the level's word.
func (l Level) String() string {
	if l < 0 || int(l) >= len(levelWords) {
		return fmt.Sprintf("level(%d)", int(l))
	}
	return levelWords[l]
}

// MarshalText encodes the level as its word.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText decodes a level's word.
func (l *Level) UnmarshalText(text []byte) error {
	v, err := ParseLevel(string(text))
	*l = v
	return err
}

// ParseLevel reads a level's word.
func ParseLevel(word string) (Level, error) {
	if i := slices.Index(levelWords, word); i >= 0 {
		return Level(i), nil
	}
	return LevelNone, fmt.Errorf("unknown isolation level %q: want one of %s", word, strings.Join(levelWords, ", "))
}

// Axis names one aspect of isolation.
type Axis string

// The axes. Their values are ordered, weakest first, in AxisValues.
const (
	AxisFS       Axis = "fs"
	AxisProc     Axis = "proc"
	AxisAgent    Axis = "agent"
	AxisNet      Axis = "net"
	AxisIPC      Axis = "ipc"
	AxisKill     Axis = "kill"
	AxisPids     Axis = "pids"
	AxisMemory   Axis = "memory"
	AxisCPU      Axis = "cpu"
	AxisDisk     Axis = "disk"
	AxisSyscalls Axis = "syscalls"
	AxisProcfs   Axis = "procfs"
)

var axisValues = map[Axis][]string{
	AxisFS:       {"shared", "dac", "landlock", "dac+landlock", "mntns"},
	AxisProc:     {"shared", "nodump", "uid", "landlock-scope", "pidns"},
	AxisAgent:    {"exposed", "signals-only", "hidden"},
	AxisNet:      {"host", "host-minus-agent-port", "loopback-only"},
	AxisIPC:      {"shared", "seccomp", "ipcns"},
	AxisKill:     {"pgrp", "walk", "uid", "cgroup", "pidns"},
	AxisPids:     {"none", "rlimit", "cgroup"},
	AxisMemory:   {"none", "rlimit", "cgroup"},
	AxisCPU:      {"none", "cgroup"},
	AxisDisk:     {"none", "fsize", "watcher", "tmpfs-size", "quota"},
	AxisSyscalls: {"inherited", "denylist", "denylist+no-nested-userns"},
	AxisProcfs:   {"shared", "rbind", "fresh", "none"},
}

// AxisNames lists the axes in the order in which they are reported.
func AxisNames() []Axis { return slices.Clone(axisNames) }

var axisNames = []Axis{
	AxisFS, AxisProc, AxisAgent, AxisNet, AxisIPC, AxisKill,
	AxisPids, AxisMemory, AxisCPU, AxisDisk, AxisSyscalls, AxisProcfs,
}

// AxisValues lists the values of an axis, weakest first; nil for no axis.
func AxisValues(a Axis) []string { return slices.Clone(axisValues[a]) }

// Axes is what holds on each axis. An absent axis has its weakest value.
type Axes map[Axis]string

// MarshalJSON writes the known axes in the order of AxisNames.
func (a Axes) MarshalJSON() ([]byte, error) { return a.appendJSON(nil) }

// appendJSON does it without reflection, which would sort the map: every
// result carries the axes.
func (a Axes) appendJSON(dst []byte) ([]byte, error) {
	if a == nil {
		return append(dst, "null"...), nil
	}
	b, written := append(dst, '{'), 0
	for _, axis := range axisNames {
		value, ok := a[axis]
		if !ok || !slices.Contains(axisValues[axis], value) {
			continue
		}
		if written++; written > 1 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), axis...), `":"`...)
		b = append(append(b, value...), '"')
	}
	if written < len(a) { // of another version
		text, err := json.Marshal(map[Axis]string(a))
		return append(dst, text...), err
	}
	return append(b, '}'), nil
}

// rank is the position of the axis' value; unknown and absent values are weakest.
func (a Axes) rank(axis Axis) int { return max(0, slices.Index(axisValues[axis], a[axis])) }

// atLeast reports whether every named axis has at least its value.
func (a Axes) atLeast(want Axes) bool {
	for axis, value := range want {
		if a.rank(axis) < slices.Index(axisValues[axis], value) {
			return false
		}
	}
	return true
}

// levelNeeds is what each level asks of the axes, beyond the level below it
// unless standsAlone.
var levelNeeds = map[Level]Axes{
	LevelBasic:       {AxisKill: "walk", AxisPids: "rlimit"},
	LevelLandlock:    {AxisFS: "landlock", AxisAgent: "signals-only", AxisKill: "walk", AxisSyscalls: "denylist"},
	LevelUID:         {AxisFS: "dac", AxisProc: "uid", AxisAgent: "hidden", AxisKill: "uid", AxisSyscalls: "denylist"},
	LevelUIDLandlock: {AxisFS: "dac+landlock", AxisProc: "uid", AxisAgent: "hidden", AxisKill: "uid", AxisSyscalls: "denylist"},
	LevelNS: {
		AxisFS: "mntns", AxisProc: "pidns", AxisAgent: "hidden", AxisIPC: "ipcns", AxisKill: "pidns",
		AxisSyscalls: "denylist+no-nested-userns",
	},
	LevelNSCgroup: {
		AxisFS: "mntns", AxisProc: "pidns", AxisAgent: "hidden", AxisIPC: "ipcns", AxisKill: "pidns",
		AxisSyscalls: "denylist+no-nested-userns", AxisPids: "cgroup", AxisMemory: "cgroup",
	},
}

// Level is the strongest level whose every need the axes meet.
func (a Axes) Level() Level {
	for _, l := range slices.Backward(Levels()) {
		if a.atLeast(levelNeeds[l]) {
			return l
		}
	}
	return LevelNone
}

// Isolation is what is in force, as it is reported everywhere.
type Isolation struct {
	Level Level `json:"level"`
	Axes  Axes  `json:"axes"`
	// Unsafe is true below the level at which slots cannot read each other.
	Unsafe bool `json:"unsafe,omitempty"`
	// Weak lists what the probe found open although the level holds.
	Weak []string `json:"weak,omitempty"`
}

// AppendJSON appends what json.Marshal gives.
func (i *Isolation) AppendJSON(dst []byte) ([]byte, error) {
	dst = append(append(append(dst, `{"level":"`...), i.Level.String()...), `","axes":`...)
	dst, err := i.Axes.appendJSON(dst)
	if err != nil {
		return nil, err
	}
	if i.Unsafe {
		dst = append(dst, `,"unsafe":true`...)
	}
	if len(i.Weak) > 0 {
		weak, err := json.Marshal(i.Weak)
		if err != nil {
			return nil, err
		}
		dst = append(append(dst, `,"weak":`...), weak...)
	}
	return append(dst, '}'), nil
}

// NewIsolation reports the axes under their level.
func NewIsolation(axes Axes) Isolation {
	l := axes.Level()
	return Isolation{Level: l, Axes: axes, Unsafe: l < LevelLandlock}
}

// Requirement is the least isolation somebody accepts: a level, and minima of
// single axes.
type Requirement struct {
	Level Level
	Axes  Axes
}

// Shortfall is one part of a requirement that is not met.
type Shortfall struct {
	Axis   string `json:"axis"` // "level" for the level itself
	Wanted string `json:"wanted"`
	Got    string `json:"got"`
}

// ParseRequirement reads "uid+landlock,net=loopback-only,kill=uid": a level
// word and axis minima, each optional, in any order. Empty text requires
// nothing.
func ParseRequirement(text string) (Requirement, error) {
	r := Requirement{Axes: Axes{}}
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		name, value, isAxis := strings.Cut(part, "=")
		if !isAxis {
			l, err := ParseLevel(part)
			if err != nil {
				return Requirement{}, err
			}
			r.Level = l
			continue
		}
		values, known := axisValues[Axis(name)]
		if !known {
			return Requirement{}, fmt.Errorf("unknown isolation axis %q", name)
		}
		if !slices.Contains(values, value) {
			return Requirement{}, fmt.Errorf("unknown value %q of isolation axis %s: want one of %s", value, name, strings.Join(values, ", "))
		}
		r.Axes[Axis(name)] = value
	}
	return r, nil
}

// String is the text that ParseRequirement reads.
func (r Requirement) String() string {
	parts := []string{r.Level.String()}
	for _, a := range AxisNames() {
		if v, ok := r.Axes[a]; ok {
			parts = append(parts, string(a)+"="+v)
		}
	}
	return strings.Join(parts, ",")
}

// MarshalJSON encodes the requirement as its text.
func (r Requirement) MarshalJSON() ([]byte, error) { return json.Marshal(r.String()) }

// Unmet lists what the isolation lacks of the requirement, axis by axis; nil
// when it is met.
func (r Requirement) Unmet(have Isolation) []Shortfall {
	var out []Shortfall
	if have.Level < r.Level {
		need := levelNeeds[r.Level]
		for _, a := range AxisNames() {
			if v, ok := need[a]; ok && !have.Axes.atLeast(Axes{a: v}) {
				out = append(out, Shortfall{string(a), v, have.Axes.value(a)})
			}
		}
		if len(out) == 0 {
			out = append(out, Shortfall{"level", r.Level.String(), have.Level.String()})
		}
	}
	for _, a := range AxisNames() {
		if v, ok := r.Axes[a]; ok && !have.Axes.atLeast(Axes{a: v}) {
			out = append(out, Shortfall{string(a), v, have.Axes.value(a)})
		}
	}
	return out
}

func (a Axes) value(axis Axis) string { return axisValues[axis][a.rank(axis)] }

// AtMost returns the axes with one of them lowered to value, if it is higher.
func (a Axes) AtMost(axis Axis, value string) Axes {
	out := maps.Clone(a)
	if out.rank(axis) > slices.Index(axisValues[axis], value) {
		out[axis] = value
	}
	return out
}
