// Package keeper keeps the slots of one container: it queues their calls,
// holds their leases, resets them, sets aside those that cannot be proven
// clean, and drains them. It does nothing itself that touches a process, a
// file or the network: slots are driven through the Sandbox interface, what
// must survive a restart goes through the Store interface.
//
// One goroutine per slot, its runner, does everything that must not happen
// twice at once: it starts the sandbox, runs the queue in order, and resets.
// Everybody else leaves a request under the slot's mutex and wakes it; only
// Run does the runner's work itself, when the slot is idle:
//
//	Submit ──► queue ─┐
//	Reset, Release,   ├─► runner ──► tool.Run, Sandbox.Reset
//	expiry ──► reset ─┘
//	Run, when idle ──────────► tool.Run, while the runner holds still
//	Do ───────────────► Sandbox.Do, beside the runner; a reset ends it first
//
// A reset goes before whatever waits in the queue. When one is asked for, the
// calls that wait are refused, the call that runs is cancelled, and no call is
// taken into the workspace again before the swap is done.
package keeper
