// Package holder runs a slot's processes from inside the slot.
//
// Three processes take part, all of them the same binary:
//
//	agent ──socketpair──> spawner      one per container, started first and kept thin
//	  │                      │ clone(NEWUSER|NEWPID|NEWNS|...)
//	  └────socketpair──> holder        one per slot, PID 1 of its namespaces
//	                         │ vfork + exec
//	                         └─> bash  every process of the slot
//
// The agent never forks: a fork from a large process is slow, and a user
// namespace needs a real one. The spawner clones holders and passes their
// death on. The holder applies everything that confines the slot once, in
// the one order that works (see setUp), and then answers requests:
//
//	agent                                  holder
//	  plan ─────────────────────────────────>  confine itself
//	  <──────────────────────────────── ready | failed {stage, errno}
//	  spawn #1 {argv, env, cwd} + files ─────>  vfork, exec
//	  <──── output #1 + pipes, when it is long or the process goes on
//	  lend #1 + pipes ───────────────────────>  when none could be passed, see borrow
//	  <──────────── exited #1 {status, usage, alone, output} | refused #1 {error}
//	  sweep #2 ──────────────────────────────>  kill all but what is kept
//	  <──────────────────────────────── swept #2 {killed, left}
//	  op #3 {name, args} (+ input file) ─────>  a file operation, as the slot
//	  <────────────────── stream #3 + pipe, when the output is large
//	  <──────────────────────────────── reply #3 {reply | error, output}
//	  cancel #3 ─────────────────────────────>
//
// What a process writes is collected in the holder while it is short, unless
// the agent passes descriptors for it. The agent has no goroutine that reads a
// holder's messages: of those who wait for one, one reads for all.
//
// Every message is one SOCK_SEQPACKET packet; a body that does not fit goes
// into an attached file. The holder is not trusted: the agent checks the
// length and shape of whatever it sends, and acts on no pid that it names.
// Either side that loses the other ends: a holder that ends takes its
// namespaces along.
package holder
