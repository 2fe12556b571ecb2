package slots

import "slices"

// State is what a slot is doing. Whether it is leased is its Tenancy's matter.
type State string

// The states of a slot.
const (
	StateStarting    State = "starting"    // its sandbox is being made
	StateAvailable   State = "available"   // waits for a call
	StateExecuting   State = "executing"   // a call runs
	StateResetting   State = "resetting"   // a fresh sandbox takes the old one's place
	StateQuarantined State = "quarantined" // could not be proven clean; serves nobody until a reset succeeds
	StateDraining    State = "draining"    // finishes what runs and takes nothing new
	StateClosed      State = "closed"      // nothing of it is left
)

// transitions holds every legal change. A slot leaves quarantine by a reset
// only, a draining slot never comes back, and closed is final.
var transitions = map[State][]State{
	StateStarting:    {StateAvailable, StateQuarantined, StateDraining, StateClosed},
	StateAvailable:   {StateExecuting, StateResetting, StateQuarantined, StateDraining, StateClosed},
	StateExecuting:   {StateAvailable, StateResetting, StateQuarantined, StateDraining, StateClosed},
	StateResetting:   {StateAvailable, StateQuarantined, StateDraining, StateClosed},
	StateQuarantined: {StateResetting, StateDraining, StateClosed},
	StateDraining:    {StateClosed},
	StateClosed:      nil,
}

// States lists every state, in the order of a slot's life.
func States() []State {
	return []State{
		StateStarting, StateAvailable, StateExecuting, StateResetting,
		StateQuarantined, StateDraining, StateClosed,
	}
}

// CanBecome reports whether a slot in state s may go to next. Staying is no
// change and not legal either.
func (s State) CanBecome(next State) bool { return slices.Contains(transitions[s], next) }
