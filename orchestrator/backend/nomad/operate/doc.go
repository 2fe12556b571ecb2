// Package operate does what operators do to the jobs of pools: hold a job
// against the one that runs, register it and follow its deployment, look at
// all of it, and empty containers and machines. It looks and acts when it is
// asked, and keeps nothing between two calls; what has to follow a pool all
// the time is the backend.
package operate
