// Package dispatch sends the calls of many trajectories to each container in
// few requests, and gives every caller its result when it is there.
//
// A Dispatcher is for one container, a Router for all of them by id. What they
// promise:
//
//   - A call is sent at once while few calls are under way in the container,
//     so that it costs nothing over a direct call. While many are, calls are
//     collected until they are as many as are under way beyond those few, and
//     never longer than a third of the time that quick calls take there now,
//     nor than Config.MaxHold. Then all of them go out.
//   - Beside calls under way, those go together that are there at the same
//     moment: on a busy machine they have come while others had the processor.
//   - Requests are streamed batches. Each result reaches its caller when its
//     line comes; no request waits for the end of another.
//   - The calls of one lease on a slot reach the container in the order of
//     their Submits. A batch holds them in this order, which is the order in
//     which the container queues them, and the lease's next calls are sent when
//     all of its calls in that batch are answered. So two requests never race
//     with calls of one lease, whatever connection breaks. There are at most as
//     many requests open as there are leases.
//   - A streamed call has a place among those of its lease, as any other. It
//     goes alone, carried by its caller when it is its turn.
//   - A caller that goes away takes its call out when it was not sent. One
//     that was sent goes on if it has started, unless Call.CancelStarted; when
//     nobody waits for any call of its batch, the batch's connection is closed
//     once the container has its calls, which cancels those that have not
//     started.
//   - Every call has an execution id before it is sent, so that a broken
//     connection is taken up again and no call runs twice.
//   - Nothing here grows without bound: Config.MaxInFlight calls are taken, of
//     them Config.MaxPerLease of one lease, so that one cannot take all places.
//     Further callers wait for a place in the order in which they came.
//
// The package does no I/O but through a Remote and its time is package time's,
// so that it runs under testing/synctest.
package dispatch
