// Package bench measures a sandboxd, and a pool of two with its orchestrator,
// against the bars that they have to meet and prints them as tables.
//
// Every row is measured for real, against child processes of the given
// binaries, through the Go clients and over TCP. What is a ratio is one against
// Go's own os/exec of the same command, with nothing captured: the cheapest
// that a Go program can do without any isolation. It is measured in the same
// run, in turns with what it is compared to, so that a machine that is slow
// for a while is slow for both.
//
// Measure does the same with any server of the reference protocol, which it
// puts under load.
package bench
