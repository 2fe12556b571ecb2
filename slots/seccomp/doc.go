// Package seccomp narrows which system calls the processes of a slot can make:
// a profile as plain data, compiled to a BPF program by a pure function, and
// installed on every thread of the calling process.
//
//	profile := seccomp.ForSlot(seccomp.Options{})
//	program, err := seccomp.Compile(profile, arch)
//	err = seccomp.Install(program)
//
// The profile is a denylist: what it does not name is allowed, so that compilers,
// interpreters and package installers work. It is never the only barrier. Calls
// that the kernel guards by capability (setuid, mknod, chown) stay allowed,
// because a slot has none and no_new_privs keeps it from gaining any.
//
// What a filter cannot do: it sees numbers and argument words, never the memory
// that they point to. So it cannot tell one AF_UNIX address from another, cannot
// see the flags of clone3 (which therefore does not exist for a slot), and
// does not judge descriptors that somebody passes in.
//
// # Cost
//
// Since Linux 5.11 the kernel runs a new filter once per syscall number and
// remembers those that it allows on the number and the architecture alone; for
// them the filter is no longer run. The programs made here read an argument only
// behind a number that has an argument rule, so all other allowed calls are
// remembered. Older kernels walk a decision tree of about eight comparisons.
package seccomp
