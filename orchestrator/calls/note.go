package calls

import (
	"time"

	"berth/orchestrator/dispatch"
	"berth/orchestrator/pool"
	"berth/orchestrator/recent"
	"berth/slots"
)

// Note is a call under way that Config.Recent was told of.
type Note struct {
	Acquire time.Duration // until the call had its slot

	c     *Carrier
	lease pool.Ref
	who   string
	tool  string
}

// Note tells Config.Recent that a call of the lease begins. Its Ended has to
// be called, once.
func (c *Carrier) Note(lease pool.Lease, tool string) Note {
	n := Note{c: c, lease: lease.Ref(), who: lease.Slot.Trajectory, tool: tool}
	c.config.Recent.Began(n.lease)
	return n
}

// Ended tells what came of the call.
func (n Note) Ended(answer dispatch.Answer, err error) {
	call := recent.Call{
		Ended: time.Now(), Lease: n.lease, Trajectory: n.who, Tool: n.tool, Timing: answer.Timing, Acquire: n.Acquire,
	}
	if ran := answer.Result.Metadata.Receipt; ran != nil {
		call.Outcome = ran.Outcome
	}
	if err != nil {
		call.Fault = slots.AsError(err).Kind
	}
	n.c.config.Recent.Ended(call, true)
}

// noteRefused tells Config.Recent of a call that got no slot.
func (c *Carrier) noteRefused(trajectory, tool string, took time.Duration, err error) {
	c.config.Recent.Ended(recent.Call{
		Ended: time.Now(), Trajectory: trajectory, Tool: tool, Acquire: took, Fault: slots.AsError(err).Kind,
	}, false)
}
