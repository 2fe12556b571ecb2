// Package recent remembers how the calls of the last minutes went: how many
// ended in each second and how long they took, which were the slowest, and
// which leases have calls under way. It is what a dashboard shows of calls.
//
// Memory is bounded, whatever is called: counts per second in a ring of
// Window, a histogram of a fixed size in each, and the MaxSlowest slowest of
// two stretches of Window. Noting a call is a few additions under one mutex
// and keeps nothing of it unless it is among the slowest.
package recent
