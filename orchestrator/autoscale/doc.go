// Package autoscale decides how many containers should exist. Decide is a
// pure function: what there is and what is wanted go in, what to start and
// what to drain comes out. It keeps no state and reads no clock, so that every
// decision can be replayed from its arguments.
//
// The rules, the first that applies decides:
//
//  1. Above the maximum, drain down to it: empty containers first.
//  2. Below the minimum, start up to it.
//  3. Callers wait, or fewer slots are free than the margin: start as many as
//     bring the free slots up, counting those that are starting already.
//  4. Containers that were empty for long enough are drained, as long as the
//     margin stays free without them and the minimum is kept, and none that is
//     in use has a higher rank.
//
// A container whose machine is not heard of may be back, or be lost. Until that is
// known it is nobody's choice to drain, and counts towards the minimum: nothing is
// started for its sake alone. It does not count towards the maximum, which bounds
// what serves: callers who wait get another one at once, as if it were lost
// already. When it is back rule 1 makes up for it, at the cost of what has no
// leases if there is such a one.
//
// What rule 4 leaves is enough for rule 3, so under a constant load there is
// an end to deciding.
package autoscale
