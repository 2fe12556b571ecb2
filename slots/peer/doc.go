// Package peer finds out who is at the other end of a TCP connection that
// comes from this machine: the uid that owns the client's socket.
//
// Local tells connections of this machine from all others by their addresses.
// A Looker then asks the kernel for the client's socket, by sock_diag, or
// through /proc/net/tcp where that is not to be had. An agent refuses by it
// what the processes of its own slots send, before it reads a byte of it.
//
// What makes the answer safe to rely on:
//
//   - Without privileges a process can have a source address only if that is
//     one of the machine's, so Local misses none of them.
//   - The uid is the one that made the socket. Handing the socket on does not
//     change it.
//   - A client that has closed its socket owns it no more, though what it
//     sent still waits to be read. That is not taken for uid 0, which is what
//     the kernel writes there: UID says that there is no owner.
//   - A socket that is bound to a device is found only by who names the
//     device, so all devices are tried before a socket counts as missing.
//
// Uids are those of the caller's user namespace; what has no number there
// reads as the overflow uid, 65534.
package peer
