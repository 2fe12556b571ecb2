// Package sandbox makes one slot's holder, limits, filter, mounts and
// workspace into one object: open it, run commands and file operations in
// it, reset it, close it. A Host is what all sandboxes of a container share:
// the isolation that the machine gives, the spawner, the cgroup tree and the
// uids.
package sandbox
