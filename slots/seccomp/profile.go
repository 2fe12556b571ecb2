package seccomp

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Profile says what is refused. It is plain data: the same profile compiles for
// every architecture, and a call that an architecture does not have is passed over.
type Profile struct {
	// Rules are tried in order; the first that applies decides. A call to which
	// none applies is allowed.
	Rules []Rule
	// Newest is the highest syscall number that the author of the profile knew.
	// Every higher one answers ENOSYS, which is what a kernel without it says, so
	// that a newer kernel does not open what nobody has judged. Zero means no bound.
	Newest uint32
}

// Rule refuses one syscall.
type Rule struct {
	// Syscall is the kernel's name of the call, such as "mount".
	Syscall string
	// Errno is what the caller gets.
	Errno unix.Errno
	// When lists conditions that must all hold; none refuses every such call.
	When []Condition
}

// Op says how a condition compares.
type Op int

// The comparisons.
const (
	In    Op = iota // the masked argument is one of the values
	NotIn           // the masked argument is none of the values
)

// Condition compares one argument of a syscall with constants.
type Condition struct {
	// Arg is the argument's position, 0 to 5.
	Arg int
	// Wide compares all 64 bits. Otherwise only the low 32 count, which is right
	// for whatever the kernel declares as int: it drops the high word itself, so a
	// comparison that looked at it could be evaded by setting a bit there.
	Wide bool
	// Mask selects the bits that count; zero selects all.
	Mask uint64
	// Op says whether the value must be among Values or must not.
	Op Op
	// Values are the constants, at least one, without bits outside Mask.
	Values []uint64
}

// maxErrno is the largest error number that the kernel returns to user space.
const maxErrno = 4095

// maxValues bounds the constants of one condition far above any sensible use.
const maxValues = 1024

// bits returns the bits of the argument that the condition looks at.
func (c Condition) bits() uint64 {
	mask := c.Mask
	if mask == 0 {
		mask = ^uint64(0)
	}
	if !c.Wide {
		mask &= 0xffffffff
	}
	return mask
}

func (c Condition) validate() error {
	switch {
	case c.Arg < 0 || c.Arg > 5:
		return fmt.Errorf("no argument %d", c.Arg)
	case c.Op != In && c.Op != NotIn:
		return fmt.Errorf("unknown comparison %d", c.Op)
	case c.Mask != 0 && c.bits() == 0:
		return errors.New("mask selects no bit that is compared")
	case len(c.Values) == 0:
		return errors.New("no values")
	case len(c.Values) > maxValues:
		return fmt.Errorf("%d values, more than %d", len(c.Values), maxValues)
	}
	for _, v := range c.Values {
		if v&^c.bits() != 0 {
			return fmt.Errorf("value %#x has bits that are not compared", v)
		}
	}
	return nil
}

func (r Rule) validate() error {
	if r.Errno == 0 || r.Errno > maxErrno {
		return fmt.Errorf("errno %d is not an error number", int(r.Errno))
	}
	if _, known := syscalls[r.Syscall]; !known {
		return errors.New("unknown syscall")
	}
	for i, c := range r.When {
		if err := c.validate(); err != nil {
			return fmt.Errorf("condition %d: %w", i, err)
		}
	}
	return nil
}
