package slots

import (
	"encoding/json"
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// vectors are axes as real machines give them, under the level they make.
var vectors = map[Level]Axes{
	LevelNone:        {},
	LevelBasic:       {AxisKill: "walk", AxisPids: "rlimit", AxisAgent: "signals-only"},
	LevelLandlock:    {AxisFS: "landlock", AxisAgent: "hidden", AxisKill: "walk", AxisSyscalls: "denylist", AxisPids: "rlimit"},
	LevelUID:         {AxisFS: "dac", AxisProc: "uid", AxisAgent: "hidden", AxisKill: "uid", AxisSyscalls: "denylist", AxisPids: "rlimit"},
	LevelUIDLandlock: {AxisFS: "dac+landlock", AxisProc: "uid", AxisAgent: "hidden", AxisKill: "uid", AxisSyscalls: "denylist"},
	LevelNS: {
		AxisFS: "mntns", AxisProc: "pidns", AxisAgent: "hidden", AxisNet: "loopback-only", AxisIPC: "ipcns",
		AxisKill: "pidns", AxisPids: "rlimit", AxisMemory: "rlimit", AxisSyscalls: "denylist+no-nested-userns", AxisProcfs: "fresh",
	},
	LevelNSCgroup: {
		AxisFS: "mntns", AxisProc: "pidns", AxisAgent: "hidden", AxisNet: "host", AxisIPC: "ipcns",
		AxisKill: "pidns", AxisPids: "cgroup", AxisMemory: "cgroup", AxisSyscalls: "denylist+no-nested-userns",
	},
}

func TestLevelIsTheStrongestWhoseNeedsTheAxesMeet(t *testing.T) {
	for level, axes := range vectors {
		assert.Equal(t, level, axes.Level(), "%v", axes)
	}
}

func TestOneWeakAxisLowersTheLevel(t *testing.T) {
	for level, axes := range vectors {
		for axis := range levelNeeds[level] {
			weak := maps.Clone(axes)
			delete(weak, axis)
			assert.Less(t, weak.Level(), level, "%s without %s", level, axis)
		}
	}
}

func TestLevelWordsGoBothWays(t *testing.T) {
	words := []string{"none", "basic", "landlock", "uid", "uid+landlock", "ns", "ns+cgroup"}
	require.Len(t, Levels(), len(words))
	for i, level := range Levels() {
		assert.Equal(t, words[i], level.String())
		parsed, err := ParseLevel(words[i])
		require.NoError(t, err)
		assert.Equal(t, level, parsed)
		text, err := json.Marshal(level)
		require.NoError(t, err)
		var back Level
		require.NoError(t, json.Unmarshal(text, &back))
		assert.Equal(t, level, back)
	}
	assert.Equal(t, "level(-1)", Level(-1).String())
	assert.Equal(t, "level(7)", Level(7).String())
}

func TestParseLevelRefusesOtherWords(t *testing.T) {
	for _, word := range []string{"", "NS", "ns ", "uid+", "max"} {
		level, err := ParseLevel(word)
		require.Error(t, err, word)
		assert.Equal(t, LevelNone, level)
	}
	var level Level
	assert.Error(t, json.Unmarshal([]byte(`"strong"`), &level))
}

func TestEveryAxisHasOrderedValuesAndEveryNeedIsOne(t *testing.T) {
	assert.Len(t, AxisNames(), len(axisValues))
	for _, axis := range AxisNames() {
		assert.NotEmpty(t, AxisValues(axis), axis)
	}
	for level, needs := range levelNeeds {
		for axis, value := range needs {
			assert.Contains(t, AxisValues(axis), value, "%s needs %s", level, axis)
		}
	}
	assert.Nil(t, AxisValues("gravity"))
	AxisValues(AxisNet)[0] = "changed"
	assert.Equal(t, "host", AxisValues(AxisNet)[0], "the table cannot be changed from outside")
}

func TestUnsafeIsEverythingInWhichSlotsCanReadEachOther(t *testing.T) {
	for level, axes := range vectors {
		isolation := NewIsolation(axes)
		assert.Equal(t, level, isolation.Level)
		assert.Equal(t, level < LevelLandlock, isolation.Unsafe, level)
	}
	text, err := json.Marshal(NewIsolation(Axes{}))
	require.NoError(t, err)
	assert.JSONEq(t, `{"level":"none","axes":{},"unsafe":true}`, string(text))
}

func TestParseRequirementReadsALevelAndAxes(t *testing.T) {
	for text, want := range map[string]Requirement{
		"":                        {Axes: Axes{}},
		" , ":                     {Axes: Axes{}},
		"landlock":                {Level: LevelLandlock, Axes: Axes{}},
		"uid+landlock,kill=uid":   {Level: LevelUIDLandlock, Axes: Axes{AxisKill: "uid"}},
		" net=loopback-only , ns": {Level: LevelNS, Axes: Axes{AxisNet: "loopback-only"}},
		"fs=dac+landlock":         {Axes: Axes{AxisFS: "dac+landlock"}},
	} {
		r, err := ParseRequirement(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, r, text)
		again, err := ParseRequirement(r.String())
		require.NoError(t, err)
		assert.Equal(t, r, again, "its text reads back")
	}
}

func TestParseRequirementRefusesWhatItDoesNotKnow(t *testing.T) {
	for text, part := range map[string]string{
		"strong":        `unknown isolation level "strong"`,
		"color=red":     `unknown isolation axis "color"`,
		"net=":          `unknown value "" of isolation axis net`,
		"net=none":      `want one of host, host-minus-agent-port, loopback-only`,
		"ns,kill=magic": `unknown value "magic" of isolation axis kill`,
		"kill=uid=uid":  `unknown value "uid=uid"`,
	} {
		_, err := ParseRequirement(text)
		assert.ErrorContains(t, err, part, text)
	}
}

func FuzzParseRequirementReadsWhatItWrites(f *testing.F) {
	f.Add("uid+landlock,net=loopback-only,kill=uid")
	f.Add("ns,=,")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRequirement(text)
		if err != nil {
			return
		}
		again, err := ParseRequirement(r.String())
		require.NoError(t, err)
		assert.Equal(t, r, again)
	})
}

func TestRequirementTravelsAsItsText(t *testing.T) {
	text, err := json.Marshal(Requirement{Level: LevelNS, Axes: Axes{AxisNet: "loopback-only", AxisFS: "mntns"}})
	require.NoError(t, err)
	assert.Equal(t, `"ns,fs=mntns,net=loopback-only"`, string(text))
}

func TestUnmetNamesEachAxisThatFallsShort(t *testing.T) {
	landlock := NewIsolation(vectors[LevelLandlock])
	for text, want := range map[string][]Shortfall{
		"":                  nil,
		"none":              nil,
		"landlock":          nil,
		"landlock,net=host": nil,
		"net=loopback-only": {{"net", "loopback-only", "host"}},
		"uid,cpu=cgroup": {
			{"proc", "uid", "shared"}, {"kill", "uid", "walk"}, {"cpu", "cgroup", "none"},
		},
	} {
		r, err := ParseRequirement(text)
		require.NoError(t, err)
		assert.Equal(t, want, r.Unmet(landlock), text)
	}
}

func TestEveryLevelMeetsItselfAndWhatIsWeaker(t *testing.T) {
	for level, axes := range vectors {
		have := NewIsolation(axes)
		for _, wanted := range Levels() {
			unmet := Requirement{Level: wanted}.Unmet(have)
			assert.Equal(t, wanted > level, len(unmet) > 0, "%s on %s: %v", wanted, level, unmet)
		}
	}
}
