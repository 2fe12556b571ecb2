// Package rollout plays trajectories, each of which mends one small broken
// program on a slot of its own. On one container it is an existing client of
// the reference server: plain HTTP and JSON, with nothing of our own protocol,
// so that a rollout that passes shows that such clients work unchanged. On a
// pool every trajectory leases its slot, and waits for it in the queue.
package rollout
