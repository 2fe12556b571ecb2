// Package jobs makes Nomad jobs of templates, once: Sandboxd, Orchestrator and
// Prepull return the API's value, and File renders that same value as HCL2 for
// people, so that what an orchestrator registers and what an operator reads
// cannot differ.
//
// What the files of this folder hold is rendered by the tests, from the
// examples of Files; BERTH_UPDATE=1 go test ./jobs writes them anew.
package jobs
