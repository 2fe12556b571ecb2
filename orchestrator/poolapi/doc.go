// Package poolapi holds what travels on /v1 between an orchestrator and its
// callers: the types of every request and answer, for the server and for
// clients. What concerns one slot alone, as results, events and artifacts, is
// in package sandboxd/api. It imports slots, sandboxd/api and the standard
// library only.
package poolapi
