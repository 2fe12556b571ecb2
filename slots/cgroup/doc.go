// Package cgroup accounts for, limits, freezes and kills a set of processes.
// It speaks the kernel's cgroup file system in both versions; it starts no
// process but one that never runs (see Open) and logs nothing.
//
// A Tree is the part of the hierarchy that is ours: one directory below the
// cgroup that this process is in, on every mount that is used. A Group is a
// directory in it, one per slot.
//
//	v2:  <own>/<Name>/<group>         and <own>/<Name>/self for whoever sat in <own>
//	v1:  <mount>/<own>/<Name>/<group> once per controller
//
// What holds everywhere:
//
//   - Nothing is made above or beside the cgroup we are in, no mount is
//     changed, no limit of a cgroup that exists already is touched. On v2 the
//     controllers of our own cgroup must be enabled for its children, and the
//     kernel allows that only once the cgroup itself holds no process (the
//     real root excepted). So its processes move one level down, into "self",
//     but only if the cgroup belongs to this container, this agent or whoever
//     started it: see
//     Open. Tree.Close moves them back.
//   - Zombies count. A process that has ended but was not waited for stays in
//     pids.current and takes a place below pids.max until its parent, or the
//     subreaper that inherited it, has reaped it. It holds no memory and does
//     not keep a group alive otherwise. Group.Close waits for that too.
//   - A limit of zero means none, except Pids, whose default is DefaultPids.
//   - Process ids are those of the pid namespace of the caller.
package cgroup
