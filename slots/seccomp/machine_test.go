package seccomp

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// call is what the kernel shows to a filter.
type call struct {
	arch Arch
	nr   uint32
	args [6]uint64
}

// words lays the call out as struct seccomp_data. The kernel loads words in the
// machine's order and the VM in network order, so the words are written in that,
// while their sequence stays that of a little-endian machine.
func (c call) words() []byte {
	out := binary.BigEndian.AppendUint32(nil, c.nr)
	out = binary.BigEndian.AppendUint32(out, uint32(c.arch))
	out = append(out, 0xde, 0xad, 0xbe, 0xef, 0xde, 0xad, 0xbe, 0xef) // instruction pointer
	for _, a := range c.args {
		out = binary.BigEndian.AppendUint32(out, uint32(a))
		out = binary.BigEndian.AppendUint32(out, uint32(a>>32))
	}
	return out
}

// machine runs a program in the VM of x/net, which also refuses malformed ones.
func machine(tb testing.TB, p Program) func(call) uint32 {
	tb.Helper()
	code := make([]bpf.Instruction, len(p))
	for i, in := range p {
		code[i] = bpf.RawInstruction{Op: in.Code, Jt: in.Jt, Jf: in.Jf, K: in.K}.Disassemble()
	}
	vm, err := bpf.NewVM(code)
	require.NoError(tb, err)
	return func(c call) uint32 {
		verdict, err := vm.Run(c.words())
		require.NoError(tb, err)
		return uint32(verdict)
	}
}

// walk is a second, tiny machine: it counts the steps and says whether the
// verdict depends on anything but number and architecture, by the rules of the
// kernel's seccomp_is_const_allow.
func walk(tb testing.TB, p Program, c call) (verdict uint32, steps int, constant bool) {
	tb.Helper()
	words, a := c.words(), uint32(0)
	constant = true
	for pc := 0; ; pc++ {
		in := p[pc]
		steps++
		switch in.Code {
		case load:
			a = binary.BigEndian.Uint32(words[in.K:])
			constant = constant && (in.K == offsetNumber || in.K == offsetArch)
		case and:
			a &= in.K
		case jump:
			pc += int(in.K)
		case equal, atLeast:
			holds := a == in.K
			if in.Code == atLeast {
				holds = a >= in.K
			}
			if holds {
				pc += int(in.Jt)
			} else {
				pc += int(in.Jf)
			}
		case result:
			return in.K, steps, constant
		default:
			tb.Fatalf("instruction %d has code %#x", pc, in.Code)
		}
	}
}

// judge is what the profile means, read off it without any cleverness.
func judge(p Profile, c call) uint32 {
	switch {
	case c.nr == skipped:
		return unix.SECCOMP_RET_ALLOW
	case c.arch == AMD64 && c.nr >= x32Bit:
		return unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	case p.Newest != 0 && c.nr > p.Newest:
		return unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	}
	for _, r := range p.Rules {
		if syscalls[r.Syscall].number(c.arch) == int64(c.nr) && applies(r, c) {
			return unix.SECCOMP_RET_ERRNO | uint32(r.Errno)
		}
	}
	return unix.SECCOMP_RET_ALLOW
}

func applies(r Rule, c call) bool {
	for _, cond := range r.When {
		arg := c.args[cond.Arg]
		if !cond.Wide {
			arg = uint64(uint32(arg))
		}
		if cond.Mask != 0 {
			arg &= cond.Mask
		}
		if slices.Contains(cond.Values, arg) != (cond.Op == In) {
			return false
		}
	}
	return true
}

// The verdicts by name, so that tables read like the specification.
const (
	allowed = "allow"
	killed  = "kill"
	eperm   = "EPERM"
	enosys  = "ENOSYS"

	noFamily   = "EAFNOSUPPORT"
	noProtocol = "EPROTONOSUPPORT"
	noSupport  = "ENOTSUP"
	noEntry    = "ENOENT"
)

func verdictName(v uint32) string {
	switch {
	case v == unix.SECCOMP_RET_ALLOW:
		return allowed
	case v == unix.SECCOMP_RET_KILL_PROCESS:
		return killed
	case v&unix.SECCOMP_RET_ACTION_FULL == unix.SECCOMP_RET_ERRNO:
		return unix.ErrnoName(unix.Errno(v & unix.SECCOMP_RET_DATA))
	}
	return fmt.Sprintf("verdict %#x", v)
}

func mustCompile(tb testing.TB, p Profile, a Arch) Program {
	tb.Helper()
	program, err := Compile(p, a)
	require.NoError(tb, err)
	return program
}

func nr(tb testing.TB, a Arch, name string) uint32 {
	tb.Helper()
	n := syscalls[name].number(a)
	require.GreaterOrEqual(tb, n, int64(0), "%s on %s", name, a)
	return uint32(n)
}
