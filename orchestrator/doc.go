// Package orchestrator is the place of the control plane: what keeps a pool
// of containers, leases their slots to trajectories and sends the calls of
// many trajectories to each container in few requests. It belongs beside the
// agent, never below it, and sees a container only through sandboxd/api and
// sandboxd/client. There is no code here yet.
package orchestrator
