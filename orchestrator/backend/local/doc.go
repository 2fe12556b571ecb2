// Package local is the backend whose containers are processes of this
// machine: each is one sandboxd with a directory, a token and a port of its
// own.
//
// # On disk
//
// Everything of a container is below Config.Dir, in a directory of its ID that
// slots can pass through and nobody but our user can read:
//
//	lock    held by the orchestrator that looks after the container
//	state   what was started, and as which process (see state.go)
//	token   the bearer token, the only place where it is written
//	log     what sandboxd wrote, and log.1, what it wrote before
//	stop    an orchestrator that does not look after it asks for its end
//	data    sandboxd's own: workspaces, leases, journal
//
// # Who looks after a container
//
// Containers are children by accident only: they have a session of their own,
// no death signal, and their exit is seen in /proc. An orchestrator that was
// killed leaves them running, and the next one adopts them. Of several
// orchestrators on one directory the one that holds the lock restarts, gives
// up and removes a container; the others tell of it and take over when the
// lock becomes free. The kernel frees it with the process that held it.
//
// # Whose process it is
//
// A pid alone proves nothing, since it is used again. A process is ours when
// the machine has not been booted since, it started in the very tick that was
// noted, and its command line names the container's data directory; only then
// is it ever sent a signal. It is up when the address that it announced in its
// log answers to the token.
//
// # What ends a container
//
// Stop, or a Close without Config.Keep, or that it crashed too often in a row,
// or that it exits with a status that another try cannot mend: 78, the machine
// does not give the isolation, and 64, it does not understand its arguments. A
// Close leaves the directory, and the next Open starts what is in it again.
package local
