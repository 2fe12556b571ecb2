// Package environment keeps the environments of one container: trees of Python
// or Node packages, each built once from its api.EnvironmentSpec, then
// read-only to every slot and found in memory.
//
// Packages bring code of their own that runs when they are installed, so a
// build runs in a throw-away sandbox of the kind that slots are: it writes the
// one tree, sees no other, and has a slot's limits. What it leaves is verified,
// sealed and put in force in one step; an agent that ends before that leaves a
// tree that is nobody's, and the next one removes it. Agents hold a lock on
// their data directory, so one process at a time builds there.
package environment
