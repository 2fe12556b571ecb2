// Package orchestrator is the control plane, wired: what keeps a pool of
// containers, leases their slots to trajectories and sends the calls of many
// trajectories to each container in few requests. It stands beside the agent,
// never below it, and sees a container only through sandboxd/api and
// sandboxd/client.
//
//	httpapi ─► calls ─► dispatch ─► containers
//	   │         │
//	   └─────────┴────► pool ─► backend/local, backend/nomad
//
// It keeps nothing that the containers do not: killed at any moment, it knows
// everything again as soon as it has read them.
package orchestrator
