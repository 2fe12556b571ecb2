package client

import (
	"context"
	"time"

	"berth/orchestrator/poolapi"
	"berth/slots"
)

// leastBeat is how often a lease is renewed at most.
const leastBeat = 100 * time.Millisecond

// Hold renews the lease until done is called, which waits for the last renewal
// to be over. held ends with ctx, and when the lease is over; its cause says
// why then. An orchestrator that does not answer for a while changes nothing:
// it is the container that knows.
func (c *Client) Hold(ctx context.Context, lease poolapi.Lease) (held context.Context, done func()) {
	held, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	beat := max(leastBeat, time.Duration(lease.TTLSeconds/3*float64(time.Second)))
	go func() { // waited for by done
		defer close(ended)
		tick := time.NewTicker(beat)
		defer tick.Stop()
		for {
			select {
			case <-held.Done():
				return
			case <-tick.C:
			}
			if _, err := c.Renew(held, lease.ID, 0); err != nil && over(err) {
				cancel(err)
				return
			}
		}
	}()
	return held, func() {
		cancel(nil)
		<-ended
	}
}

// over reports whether a renewal's error says that the lease has ended.
func over(err error) bool {
	switch slots.AsError(err).Kind {
	case slots.KindLeaseExpired, slots.KindFenced, slots.KindSlotLost, slots.KindNotFound:
		return true
	default:
		return false
	}
}
