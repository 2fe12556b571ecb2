// Package workspace works on one directory tree: it reads, writes, edits,
// lists, searches, packs, unpacks and removes below a root, and never
// anywhere else.
//
// The tree belongs to somebody who may be hostile and who goes on changing it
// while we work. Three rules follow, and every file of the package keeps
// them:
//
//   - A path is only ever resolved by the kernel below an open directory
//     (openat2 with RESOLVE_BENEATH), or one component at a time without
//     following links. No string is checked first and opened later.
//   - Nothing is opened that could block or act: every open is non-blocking,
//     and what is not a regular file or a directory is refused after fstat.
//   - Nothing is read whole, collected or recursed into without a bound.
//     Trees may be 20 000 levels deep and directories may hold a million
//     names.
//
// The operations run as whoever calls them. In a slot that is the holder,
// with the slot's own rights, through the table Ops. RemoveAll and Usage
// serve the agent, which has more rights and so relies on the same rules.
package workspace
