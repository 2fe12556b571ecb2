// Package pool says which slot may be used by whom now. It leases slots to
// trajectories, takes them back, watches the containers they are in, and
// starts and drains containers as they are needed.
//
// The slots hold their own leases: a container grants, renews, expires and
// fences them, and keeps them across its own crash. What this package knows is
// a view of that. It is rebuilt from the containers at the start and corrected
// while it is used, so several orchestrators may work on the same containers:
// every grant is decided by the container, and what one of them refuses is
// tried at the next. But an orchestrator learns of a lease that another one has
// given when it reads the container the next time, Config.SyncEvery later at
// most. Until then it would give the trajectory a second one, or release
// nothing, so everything of one trajectory has to go to one orchestrator while
// its lease is younger than that. Of two leases of a trajectory that were not
// asked for as further ones the newest counts: where the answer to a grant was
// lost, the trajectory was served by the grant after it.
//
//	Acquire ─► queue ─┐            ┌─► AcquireAny at the fullest container
//	                  ├─► match ───┤
//	slot free, up ────┘            └─► refused or lost: back to its place
//
//	watch (one goroutine per container) ─► Health, Slots ─► view ─► match
//	run   (one for all)                 ─► Watch of the fleet, autoscale
//
// The mutex of a pool guards its view and is never held while a container is
// asked. A request to a container belongs to the pool, not to the caller that
// caused it: a caller may leave at any time, and what was won for it is given
// back.
//
// Where several orchestrators share a fleet, one of them starts and stops
// containers, which its Duty says. What operators ask of any of them, a drain
// or a cordon, the fleet keeps for all. Before a container is stopped all its slots
// are leased by the orchestrators themselves, so that none of them gives one
// away meanwhile; see close.go.
//
// A request whose answer was lost may have been granted. Each grant carries a
// label of its own, so that such a lease is recognised when the container is
// read the next time, and released.
package pool
