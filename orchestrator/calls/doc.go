// Package calls carries calls to the slots that trajectories hold.
//
// A trajectory gets its slot with its first call and keeps it: every later
// call finds the lease in the pools and goes to the container's dispatcher.
// Nothing is kept here that could not be lost. The lease is the slot's, and
// names its trajectory, so after a restart the next call finds it again.
//
//	Execute ─► Lookup ── none ──► Acquire
//	              │                  │
//	              └──► link of the container ─► dispatcher ─► Answer
//
//	Run: renews the leases of trajectories that called, beside the calls
//
// A call may take long, but not in a container that is silent for
// pool.Config.LostAfter: its calls end with slots.KindContainerUnreachable, and
// further ones are refused until it is heard. The leases hold meanwhile.
//
// A lease that ended without its trajectory is told to it once, with the
// reason; the call after that begins anew in another slot.
package calls
