package seccomp

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// Program is a filter as the kernel takes it.
type Program []unix.SockFilter

// MaxInstructions is the kernel's bound on a program (BPF_MAXINSNS).
const MaxInstructions = 4096

// Where struct seccomp_data keeps what a filter reads. Both architectures are
// little-endian: the low word of an argument comes first.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

// The numbers above those of ordinary calls.
const (
	x32Bit = 0x40000000 // on amd64: another ABI, with numbers that no rule names
	// skipped is the number after a tracer has answered a call itself. The kernel
	// runs nothing then, and an errno of ours would replace the tracer's answer.
	skipped = 0xffffffff
)

const (
	load    = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	and     = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	equal   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	atLeast = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
	jump    = unix.BPF_JMP | unix.BPF_JA
	result  = unix.BPF_RET | unix.BPF_K
)

var allow = Program{{Code: result, K: unix.SECCOMP_RET_ALLOW}}

func refuse(errno unix.Errno) Program {
	return Program{{Code: result, K: unix.SECCOMP_RET_ERRNO | uint32(errno)}}
}

// Compile makes the program of a profile for an architecture. A call through a
// foreign ABI kills the process, with the exception of x32 on amd64, which
// answers EPERM. It fails for an unknown syscall, a condition that makes no
// sense, and a program that is longer than MaxInstructions.
//
// Every part is compiled to a piece of code that is entered at its start. A piece
// of an argument rule falls off its end when the rule does not apply. So pieces
// are put together from the last to the first, and each jump knows how far it goes.
func Compile(p Profile, arch Arch) (Program, error) {
	if !slices.Contains(Arches(), arch) {
		return nil, fmt.Errorf("compile profile: no syscall table for %s", arch)
	}
	calls := map[uint32][]Rule{}
	for i, r := range p.Rules {
		if err := r.validate(); err != nil {
			return nil, fmt.Errorf("compile profile: rule %d (%s): %w", i, r.Syscall, err)
		}
		nr := syscalls[r.Syscall].number(arch)
		if nr == absent {
			continue
		}
		if p.Newest != 0 && nr > int64(p.Newest) {
			return nil, fmt.Errorf("compile profile: rule %d (%s): number %d is above the newest, %d", i, r.Syscall, nr, p.Newest)
		}
		calls[uint32(nr)] = append(calls[uint32(nr)], r)
	}
	if p.Newest >= x32Bit {
		return nil, fmt.Errorf("compile profile: newest %#x is no syscall number", p.Newest)
	}
	program := Program{
		{Code: load, K: offsetArch},
		{Code: equal, K: uint32(arch), Jt: 1, Jf: 0},
		{Code: result, K: unix.SECCOMP_RET_KILL_PROCESS},
		{Code: load, K: offsetNumber},
	}
	program = append(program, tree(ranges(calls, p.Newest, arch))...)
	if len(program) > MaxInstructions {
		return nil, fmt.Errorf("compile profile: %d instructions, more than the %d that the kernel takes", len(program), MaxInstructions)
	}
	return program, nil
}

// numberRange is the code for every number from its start to that of the next.
type numberRange struct {
	from uint32
	code Program
}

// ranges splits the numbers into the fewest ranges with one piece of code each,
// in ascending order. The first starts at zero.
func ranges(calls map[uint32][]Rule, newest uint32, arch Arch) []numberRange {
	starts := map[uint32]Program{0: allow}
	for nr := range calls {
		starts[nr+1] = allow
	}
	for nr, rules := range calls {
		starts[nr] = decide(rules)
	}
	if newest != 0 {
		starts[newest+1] = refuse(unix.ENOSYS)
	}
	if arch == AMD64 {
		starts[x32Bit] = refuse(unix.EPERM)
	}
	starts[skipped] = allow

	var all []numberRange
	for _, from := range slices.Sorted(maps.Keys(starts)) {
		if len(all) > 0 && slices.Equal(all[len(all)-1].code, starts[from]) {
			continue
		}
		all = append(all, numberRange{from, starts[from]})
	}
	return all
}

// tree finds the range of the number in A by bisection.
func tree(all []numberRange) Program {
	if len(all) == 1 {
		return all[0].code
	}
	middle := len(all) / 2
	below, above := tree(all[:middle]), tree(all[middle:])
	return slices.Concat(branch(atLeast, all[middle].from, len(below), 0), below, above)
}

// decide is the code of one call: its rules in order, then the allowance.
func decide(rules []Rule) Program {
	var code Program
	for _, r := range rules {
		code = append(code, r.code()...)
		if len(r.When) == 0 {
			return code
		}
	}
	return append(code, allow...)
}

// code refuses the call, or falls off the end when a condition does not hold.
func (r Rule) code() Program {
	code := refuse(r.Errno)
	for _, c := range slices.Backward(r.When) {
		code = append(c.code(len(code)), code...)
	}
	return code
}

// code falls off the end when the condition holds, and otherwise jumps over the
// miss instructions that follow its end.
func (c Condition) code(miss int) Program {
	bits := c.bits()
	low := word(offsetArgs+8*c.Arg, uint32(bits))
	high := word(offsetArgs+8*c.Arg+4, uint32(bits>>32))
	found, next := 0, miss
	if c.Op == NotIn {
		found, next = miss, 0
	}
	// Each value is compared by a piece that jumps when it is found and falls off
	// its end when not; only the last has to know where a vain search ends.
	var code Program
	for _, v := range slices.Backward(c.Values) {
		hit := found + len(code)
		piece := branch(equal, uint32(v), hit, next)
		if c.Wide {
			piece = append(slices.Clone(low), piece...)
			piece = slices.Concat(high, branch(equal, uint32(v>>32), 0, len(piece)+next), piece)
		}
		code = append(piece, code...)
		next = 0
	}
	if c.Wide {
		return code
	}
	return append(low, code...)
}

// word loads a 32-bit word and keeps the bits that count.
func word(offset int, bits uint32) Program {
	code := Program{{Code: load, K: uint32(offset)}}
	if bits != 0xffffffff {
		code = append(code, unix.SockFilter{Code: and, K: bits})
	}
	return code
}

// branch compares A with k and skips yes or no instructions. A conditional jump
// reaches 255 instructions; beyond that it chooses between two long jumps.
func branch(comparison uint16, k uint32, yes, no int) Program {
	const reach = 255
	if yes <= reach && no <= reach {
		return Program{{Code: comparison, Jt: uint8(yes), Jf: uint8(no), K: k}}
	}
	return Program{
		{Code: comparison, Jt: 0, Jf: 1, K: k},
		{Code: jump, K: uint32(yes) + 1},
		{Code: jump, K: uint32(no)},
	}
}
