// Package nomad is a backend whose containers are allocations of Nomad jobs:
// one job for each template, one allocation for each container.
//
// # Which allocation is which container
//
// A job has a count, and Nomad chooses what it calls the allocations; the
// caller of Start chooses the ID of a container. An allocation that runs is
// nobody's at first. A start claims one that answers, or has the count raised
// until there is one; the claim is an item (allocation = container) of a
// variable beside the job's secret, written by compare-and-set, so that all
// orchestrators agree and a new one finds what is there. Claims are spread
// over several variables by the first digit of the allocation's ID, because a
// variable holds 64 KiB.
//
// # Stopping without harm
//
// Nomad lowers a count by stopping the allocations of the highest index. So
// the count is lowered only as far as no claimed allocation is at or above the
// new one, and not while a deployment or a migration is under way or an index
// is there twice, because Nomad chooses in other ways then. A container in the
// middle is stopped by itself: Nomad puts another allocation in its place,
// which the next start claims. What nobody has claimed for Config.Spare above
// all that is claimed is given back. What runs at or above the count is claimed
// by nobody before the count is raised: Nomad leaves it there while it does not
// hear of another one, and stops it when it does.
//
// How long running calls have is the job's kill timeout, for all of them
// alike: the grace of Stop is not looked at.
//
// # What containers are made of
//
// A job that there is not is registered as Config.Job and the Spec say. One that
// there is is registered anew when a container is wanted and the job was made of
// another Spec, the environment apart; Nomad replaces what runs then. What no
// Spec says, such as image and memory, stays as the job has it: somebody may have
// deployed another since Config.Job was written. The environment is in the
// variable, where who scales writes it at once. Containers that are started from
// then on have it, and those that run keep theirs.
//
// # Several orchestrators
//
// One of them scales a job: the one that holds the lock on a variable beside
// the job's secret. It renews the lock after four fifths of the TTL that it
// asked Nomad for, and scales only until that TTL after the last renewal that
// came through, by its own clock; every write that scales ends with that. Nomad
// keeps a lock that nobody renews for twice its TTL and Config.LockDelay, so
// that who was cut off has stopped long before another one begins, and Nomad is
// asked for a TTL by which this ends within Config.LockTTL:
//
//	renewed      its TTL           twice that   the delay   Config.LockTTL
//	   ├────────────┼────────────────────┼───────────┼────────────┤
//	    who scaled    nobody scales                   another one
//	    may go on                                     takes it
//
// Servers of Nomad that elect another leader count from that moment. Who is
// closed gives the lock back at once. The others learn of both by the query
// that tells of variables, and ask for nothing meanwhile.
//
// Callers may wait for a slot at any of them. Those that do not scale the job
// write how many wait there into one more variable, when that has changed and
// at most once a second, and the one that scales counts them among its own: at
// once where they know as many containers as it does. Who has not written for a
// minute while callers waited has died.
//
// What operators want of a container, that it gets no new leases or is drained
// by some time, is an item of further variables, which any orchestrator writes
// by compare-and-set and all hear of. So it does not matter which is asked, who
// leads meanwhile, or whether any of them lives on: it stays until the
// container is gone. They are spread as the claims are, so that all of some
// thousand containers can be drained at once.
//
// # Machines that are drained
//
// The job's migrate block lets Nomad move nothing by itself before a drain's
// deadline. The backend tells of the containers on a machine that is drained,
// and by when; it stops what nobody has claimed there, claims nothing there,
// and stops the containers that it is told to stop, which are those without
// leases. What is left at the deadline Nomad stops.
//
// # Machines that are not heard of
//
// When Nomad does not hear of a machine, what runs there is "unknown" to it for
// jobs.LostAfter, and lost then. A container there is told of as unheard, with
// that deadline: its leases go on, and no new one is given. Nothing is claimed
// there; what nobody has claimed there keeps its place in the count, so that
// another is started above it. No count is lowered meanwhile, for Nomad does not
// count what it does not hear of, and would make up for it from the top when the
// machine is back. Then all is as before, and what was told to stop meanwhile
// ends.
//
// # What the backend knows
//
// It lists the allocations, then follows the event stream. It lists again when
// the stream ends, goes back to an older index, or was followed for
// Config.Relist. A blocking query tells of changed variables, until the lock is
// to be renewed, which takes the same connection. When nothing happens that is
// all: a connection and one for each job, and two requests for each job in four
// fifths of the TTL of a lock, however many allocations there are. By default
// that is 0.2 requests a second and two connections for one job, and 0.18 and
// one more for each further one.
//
// A lease may come here before anything tells of its container, which another
// orchestrator has just claimed. Find reads claims and allocations before it says
// that there is no such container, for all who ask and once a second at most.
//
// # Tokens
//
// The token of a container is HMAC-SHA256 of its allocation's ID under the
// job's secret, in hexadecimal; the job has the same as a template. When the
// secret changes, agents learn of it one after the other and take both tokens
// for a while. The backend asks each whether it takes the new one, and goes over
// to that from then on.
package nomad
