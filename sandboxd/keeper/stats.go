package keeper

import (
	"maps"
	"sync"
	"time"

	"berth/sandboxd/api"
	"berth/slots"
)

// unknownTool stands for every tool name that there is no tool for, so that
// callers cannot make counters.
const unknownTool = "unknown"

// Ending names how executions of one tool ended. Both words come from small
// fixed sets.
type Ending struct {
	Tool string // a tool's name, or "unknown"
	// Outcome is the error kind of a call that could not be carried out, the
	// outcome of a process that ran, or "ok" and "failed" of other tools.
	Outcome string
}

// Stats is a snapshot of what has happened since the start.
type Stats struct {
	Executions  map[Ending]uint64
	Resets      uint64 // that ended clean
	Quarantines uint64 // resets and starts that did not
}

// Observer is told what has happened, for histograms. Its methods must not
// block, must not change what they are given, and may be called at once.
type Observer interface {
	// ExecutionEnded tells of a call that was answered, under the name of its
	// tool or "unknown". Joined and replayed ones are not told again.
	ExecutionEnded(tool string, r *api.Result)
	ResetEnded(clean bool, took time.Duration)
}

// counters counts for Stats.
type counters struct {
	mu          sync.Mutex // guards all below; nothing else happens under it
	executions  map[Ending]uint64
	resets      uint64
	quarantines uint64
}

// Stats returns the counts so far.
func (k *Keeper) Stats() Stats {
	k.counts.mu.Lock()
	defer k.counts.mu.Unlock()
	return Stats{
		Executions: maps.Clone(k.counts.executions), Resets: k.counts.resets, Quarantines: k.counts.quarantines,
	}
}

// ended counts a call that was answered.
func (k *Keeper) ended(tool string, r *api.Result) {
	e := Ending{Tool: tool, Outcome: outcome(r)}
	k.counts.mu.Lock()
	k.counts.executions[e]++
	k.counts.mu.Unlock()
	if k.Observer != nil {
		k.Observer.ExecutionEnded(tool, r)
	}
}

func outcome(r *api.Result) string {
	switch {
	case r.Metadata.ErrorKind != "":
		return string(r.Metadata.ErrorKind)
	case r.Metadata.Receipt != nil:
		return string(r.Metadata.Outcome)
	case r.Metadata.Details["timeout"] == true:
		return string(slots.OutcomeTimedOut)
	case r.Success:
		return "ok"
	default:
		return "failed"
	}
}

func (k *Keeper) wasReset(clean bool, took time.Duration) {
	if clean {
		k.counts.mu.Lock()
		k.counts.resets++
		k.counts.mu.Unlock()
	}
	if k.Observer != nil {
		k.Observer.ResetEnded(clean, took)
	}
}

func (c *counters) quarantined() {
	c.mu.Lock()
	c.quarantines++
	c.mu.Unlock()
}
