// Package rollout plays trajectories against one container as an existing
// client of the reference server would: by plain HTTP and JSON, with nothing
// of our own protocol. Each trajectory mends one small broken program on a
// slot of its own. So a rollout that passes shows that such clients work
// unchanged.
package rollout
