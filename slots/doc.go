// Package slots holds the vocabulary and the rules of Berth: what a slot is,
// which isolation it can promise, who may use it, and how a call on it can
// end. It imports the standard library only and does no I/O, so every other
// package can speak its words.
//
// One word per idea:
//
//	slot        the unit of isolation and of rental: one workspace and one set of limits inside one container
//	container   one running sandboxd with N slots: a Nomad allocation, or a child process of the local backend
//	workspace   the slot's directory tree; seen from inside as /workspace
//	holder      the slot's pre-warmed init process: PID 1 of its namespaces, spawns every process of the slot
//	spawner     the thin process that makes holders, so that the agent itself never forks
//	sandbox     holder + limits + filter + workspace of one slot, as one object
//	spare       a sandbox that stands ready to replace a slot's at its next reset
//	tool        a named operation on a slot (bash, read_file, ...)
//	execution   one run of one tool, named by its execution_id, run at most once
//	trajectory  one rollout; it owns at most one slot of a pool at a time, unless it asks for more
//	lease       a trajectory's time-limited right to a slot
//	token       the lease's fencing token: per slot, only grows, survives release and restart
//	generation  how many times the slot has been reset
//	acquire, renew, release, reset, quarantine
//	            take, keep, give back, make pristine, set aside because a reset failed
//	pool        all slots of all containers of one template, and their states
//	template    what a pool's containers are made of: image, slots, limits, isolation, environment
//	backend     what starts and stops containers: local, nomad
//	batch       calls to one container sent as one request
//	artifact    a file or tree read out of a workspace
//	environment a tree of packages that programs of slots import from: built once, then read-only to all
//	level       one word for how well slots are isolated; the minimum over the axes
//	axis        one aspect of isolation (files, processes, network, ...) with ordered values
package slots
