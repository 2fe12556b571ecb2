// Package client is the Go client of an orchestrator's /v1: leases, calls and
// files in their slots, containers and pools. Every failure is a *slots.Error
// of the kind that the orchestrator named; Unreachable tells an orchestrator
// that does not answer from a container that does not.
//
// What is sent again after a broken connection:
//
//   - A call with an ExecutionID, because its container runs it at most once;
//     a stream of it goes on where it broke.
//   - Requests that change nothing, renewals and releases.
//   - An acquire. Of a trajectory's first slot, acquiring twice is acquiring
//     once; a further one gets a key.
//   - What a Client of Keyed is asked for.
//
// Everything else is sent once.
package client
