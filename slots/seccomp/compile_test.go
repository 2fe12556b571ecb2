package seccomp

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// isOneOf makes a condition on the second argument.
func isOneOf(op Op, wide bool, mask uint64, values ...uint64) Condition {
	return Condition{Arg: 1, Wide: wide, Mask: mask, Op: op, Values: values}
}

func TestConditionsCompareWhatTheySay(t *testing.T) {
	const top = 1 << 63
	for name, c := range map[string]struct {
		when    []Condition
		refused []uint64
		passed  []uint64
	}{
		"one value": {
			[]Condition{isOneOf(In, false, 0, 7)}, []uint64{7, high | 7, top | 7}, []uint64{0, 6, 8, high},
		},
		"one of several values": {
			[]Condition{isOneOf(In, false, 0, 3, 5, 9)}, []uint64{3, 5, 9, high | 9}, []uint64{0, 4, 10, high | 4},
		},
		"none of several values": {
			[]Condition{isOneOf(NotIn, false, 0, 3, 5, 9)}, []uint64{0, 4, 10, high | 4}, []uint64{3, 5, 9, high | 3},
		},
		"masked value": {
			[]Condition{isOneOf(In, false, 0xf0, 0x30)}, []uint64{0x30, 0x3f, 0xf30, top | 0x31}, []uint64{0x20, 0x70, 0x13},
		},
		"any flag of a mask": {
			[]Condition{isOneOf(NotIn, false, 0x11, 0)}, []uint64{1, 0x10, 0x11, high | 1}, []uint64{0, 2, high},
		},
		"wide value": {
			[]Condition{isOneOf(In, true, 0, high|7)}, []uint64{high | 7}, []uint64{7, high, 2*high | 7, high | 8},
		},
		"one of several wide values": {
			[]Condition{isOneOf(In, true, 0, high|7, 7, top)}, []uint64{high | 7, 7, top}, []uint64{high, top | 7, 0},
		},
		"none of several wide values": {
			[]Condition{isOneOf(NotIn, true, 0, high|7, 7)}, []uint64{high, 0, 2*high | 7}, []uint64{high | 7, 7},
		},
		"any flag of a wide mask": {
			[]Condition{isOneOf(NotIn, true, top|2, 0)}, []uint64{top, 2, top | 2, top | 1}, []uint64{0, 1, high, 4},
		},
		"two conditions": {
			[]Condition{isOneOf(In, false, 1, 1), isOneOf(NotIn, true, 0, 3, 5)}, []uint64{1, 7, high | 3}, []uint64{0, 2, 3, 5},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := Profile{Rules: []Rule{{Syscall: "ioctl", Errno: unix.EPERM, When: c.when}}}
			for _, a := range Arches() {
				run := machine(t, mustCompile(t, p, a))
				for _, v := range c.refused {
					assert.Equal(t, eperm, verdictName(run(call{a, nr(t, a, "ioctl"), [6]uint64{0, v}})), "%s %#x", a, v)
				}
				for _, v := range c.passed {
					assert.Equal(t, allowed, verdictName(run(call{a, nr(t, a, "ioctl"), [6]uint64{0, v}})), "%s %#x", a, v)
				}
			}
		})
	}
}

func TestTheFirstRuleThatAppliesDecides(t *testing.T) {
	p := Profile{Rules: []Rule{
		{Syscall: "ioctl", Errno: unix.ENOTTY, When: []Condition{isOneOf(In, false, 0, 1, 2)}},
		{Syscall: "ioctl", Errno: unix.EPERM, When: []Condition{isOneOf(In, false, 0, 2, 3)}},
		{Syscall: "ioctl", Errno: unix.ENOSYS},
		{Syscall: "ioctl", Errno: unix.EACCES}, // never reached
	}}
	run := machine(t, mustCompile(t, p, AMD64))
	for arg, want := range map[uint64]string{1: "ENOTTY", 2: "ENOTTY", 3: eperm, 4: enosys} {
		assert.Equal(t, want, verdictName(run(call{AMD64, 16, [6]uint64{0, arg}})), "argument %d", arg)
	}
}

func TestAnEmptyProfileChecksOnlyTheABI(t *testing.T) {
	run := machine(t, mustCompile(t, Profile{}, ARM64))
	assert.Equal(t, allowed, verdictName(run(call{arch: ARM64, nr: 40})))
	assert.Equal(t, allowed, verdictName(run(call{arch: ARM64, nr: 100000})))
	assert.Equal(t, killed, verdictName(run(call{arch: AMD64, nr: 40})))
	assert.Len(t, mustCompile(t, Profile{}, ARM64), 5)
}

func TestCallsThatAnArchitectureLacksArePassedOver(t *testing.T) {
	p := Profile{Rules: []Rule{{Syscall: "iopl", Errno: unix.EPERM}}}
	assert.Equal(t, mustCompile(t, Profile{}, ARM64), mustCompile(t, p, ARM64))
	assert.NotEqual(t, mustCompile(t, Profile{}, AMD64), mustCompile(t, p, AMD64))
}

// many makes n values that differ in both words.
func many(n int) []uint64 {
	values := make([]uint64, n)
	for i := range values {
		values[i] = uint64(i)<<33 | uint64(2*i)
	}
	return values
}

// Jumps of more than 255 instructions occur within a set, over the rest of a
// rule, and over one half of the decision tree.
func TestLongJumpsArrive(t *testing.T) {
	narrow := make([]uint64, 400)
	for i := range narrow {
		narrow[i] = uint64(3 * i)
	}
	for name, rules := range map[string][]Rule{
		"in a set":        {{"ioctl", unix.EPERM, []Condition{isOneOf(In, false, 0, narrow...)}}},
		"out of a set":    {{"ioctl", unix.EPERM, []Condition{isOneOf(NotIn, false, 0, narrow...)}}},
		"in a wide set":   {{"ioctl", unix.EPERM, []Condition{isOneOf(In, true, 0, many(400)...)}}},
		"out of wide set": {{"ioctl", unix.EPERM, []Condition{isOneOf(NotIn, true, 0, many(400)...)}}},
		"over a condition": {{"ioctl", unix.EPERM, []Condition{
			isOneOf(In, false, 1, 1), isOneOf(NotIn, true, 3<<40, 1<<40), isOneOf(In, false, 0, narrow...),
		}}},
		"over half of the tree": {
			{"ioctl", unix.EPERM, []Condition{isOneOf(In, false, 0, narrow...)}},
			{"mount", unix.ENOSYS, []Condition{isOneOf(NotIn, false, 0, narrow...)}},
			{"clone", unix.EPERM, []Condition{isOneOf(In, true, 0, many(100)...)}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := Profile{Rules: rules, Newest: newest}
			for _, a := range Arches() {
				program := mustCompile(t, p, a)
				require.True(t, slices.ContainsFunc(program, func(in unix.SockFilter) bool { return in.Code == jump }), "no long jump")
				run := machine(t, program)
				for _, number := range []uint32{0, nr(t, a, "ioctl"), nr(t, a, "mount"), nr(t, a, "clone"), newest + 1} {
					for i := range uint64(1300) {
						for _, arg := range []uint64{i, high | i, i<<33 | 2*i, 1<<40 | i} {
							c := call{a, number, [6]uint64{arg, arg}}
							if judge(p, c) != run(c) {
								require.Equal(t, verdictName(judge(p, c)), verdictName(run(c)), "%s %d(%#x)", a, number, arg)
							}
						}
					}
				}
			}
		})
	}
}

func TestCompileRefusesNonsense(t *testing.T) {
	rule := func(c Condition) Profile {
		return Profile{Rules: []Rule{{Syscall: "ioctl", Errno: unix.EPERM, When: []Condition{c}}}}
	}
	var tooLong Profile
	for range 5 {
		tooLong.Rules = append(tooLong.Rules, Rule{"ioctl", unix.EPERM, []Condition{isOneOf(In, true, 0, many(400)...)}})
	}
	for name, c := range map[string]struct {
		profile Profile
		want    string
	}{
		"unknown syscall":      {Profile{Rules: []Rule{{Syscall: "mout", Errno: unix.EPERM}}}, "rule 0 (mout): unknown syscall"},
		"no errno":             {Profile{Rules: []Rule{{Syscall: "mount"}}}, "errno 0"},
		"huge errno":           {Profile{Rules: []Rule{{Syscall: "mount", Errno: 4096}}}, "errno 4096"},
		"argument 6":           {rule(Condition{Arg: 6, Values: []uint64{0}}), "no argument 6"},
		"argument -1":          {rule(Condition{Arg: -1, Values: []uint64{0}}), "no argument -1"},
		"unknown comparison":   {rule(Condition{Op: 2, Values: []uint64{0}}), "unknown comparison 2"},
		"no values":            {rule(Condition{}), "no values"},
		"too many values":      {rule(isOneOf(In, false, 0, make([]uint64, 1025)...)), "1025 values"},
		"value off the mask":   {rule(isOneOf(In, false, 6, 1)), "value 0x1 has bits that are not compared"},
		"value in the dropped": {rule(isOneOf(In, false, 0, high)), "value 0x100000000 has bits"},
		"mask in the dropped":  {rule(isOneOf(In, false, high, 0)), "mask selects no bit"},
		"rule above newest":    {Profile{Newest: 400, Rules: []Rule{{Syscall: "clone3", Errno: unix.EPERM}}}, "above the newest"},
		"newest of x32":        {Profile{Newest: x32Bit}, "no syscall number"},
		"too long":             {tooLong, "more than the 4096"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Compile(c.profile, AMD64)
			require.ErrorContains(t, err, c.want)
			assert.True(t, strings.HasPrefix(err.Error(), "compile profile: "), err.Error())
		})
	}
	_, err := Compile(Profile{}, Arch(1))
	assert.ErrorContains(t, err, "no syscall table for arch(0x1)")
}

func TestCompilingIsPure(t *testing.T) {
	p := ForSlot(Options{SharedIPC: true})
	first := mustCompile(t, p, AMD64)
	for range 20 {
		require.Equal(t, first, mustCompile(t, p, AMD64))
	}
	first[0].K = 99
	assert.NotEqual(t, first, mustCompile(t, p, AMD64))
	assert.Equal(t, ForSlot(Options{SharedIPC: true}), p)
}

// randomProfile makes up to 40 rules with small sets, small enough to meet.
func randomProfile(r *rand.Rand) Profile {
	var names []string
	for name := range syscalls {
		names = append(names, name)
	}
	slices.Sort(names)
	var p Profile
	if r.IntN(2) == 0 {
		p.Newest = newest + r.Uint32N(10)
	}
	for range r.IntN(40) {
		rule := Rule{Syscall: names[r.IntN(len(names))], Errno: unix.Errno(1 + r.IntN(40))}
		for range r.IntN(4) {
			c := Condition{Arg: r.IntN(6), Wide: r.IntN(2) == 0, Op: Op(r.IntN(2))}
			if r.IntN(2) == 0 {
				c.Mask = randomArgument(r) | 1
			}
			for range 1 + r.IntN(5) {
				c.Values = append(c.Values, randomArgument(r)&c.bits())
			}
			rule.When = append(rule.When, c)
		}
		p.Rules = append(p.Rules, rule)
	}
	return p
}

// randomArgument has few bits set in each word, so that values meet often.
func randomArgument(r *rand.Rand) uint64 {
	v := uint64(r.IntN(8))
	if r.IntN(3) == 0 {
		v |= uint64(r.IntN(4)) << 32
	}
	if r.IntN(8) == 0 {
		v |= 1 << r.IntN(64)
	}
	return v
}

// FuzzProgramsAgreeWithTheirProfile compares the compiled program with the
// profile's plain meaning: a made-up profile and the slots' own.
func FuzzProgramsAgreeWithTheirProfile(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed, uint32(seed*7), seed<<31, seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64, number uint32, arg0, arg1 uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		options := everyOptions()
		for _, p := range []Profile{randomProfile(r), ForSlot(options[r.IntN(len(options))])} {
			for _, a := range Arches() {
				program := mustCompile(t, p, a)
				run := machine(t, program)
				calls := []call{{a, number, [6]uint64{arg0, arg1, arg0 ^ arg1}}}
				for range 50 {
					c := call{arch: a, nr: r.Uint32N(newest + 20)}
					if len(p.Rules) > 0 && r.IntN(4) > 0 {
						c.nr = uint32(syscalls[p.Rules[r.IntN(len(p.Rules))].Syscall].number(a))
					}
					for i := range c.args {
						c.args[i] = randomArgument(r)
					}
					calls = append(calls, c)
				}
				for _, c := range calls {
					want := judge(p, c)
					require.Equal(t, verdictName(want), verdictName(run(c)), "%s %#v of %#v", a, c, p)
					walked, steps, _ := walk(t, program, c)
					require.Equal(t, want, walked)
					require.LessOrEqual(t, steps, len(program))
				}
			}
		}
	})
}
