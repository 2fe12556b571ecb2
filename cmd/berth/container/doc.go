// Package container starts a sandboxd as a child process, on a free port of
// the loopback and in a directory of its own, and stops it again.
package container
