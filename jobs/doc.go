// Package jobs is the place of the Nomad job: a function from a template
// (image, slots, limits, isolation, environment) to one job, as HCL text and
// as the API's value, made from one source. There is no code here yet.
package jobs
