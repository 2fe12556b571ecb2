// Package nomadtest starts real Nomad agents for tests, on free ports of the
// loopback and in directories of their own, and ends them. Tests that need
// them skip where no nomad is on PATH.
package nomadtest
