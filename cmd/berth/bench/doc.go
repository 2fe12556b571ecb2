// Package bench measures a sandboxd against the bars that it has to meet and
// prints them as a table.
//
// Every row is measured for real, against child processes of the given
// binary, through the Go client and over TCP. What is a ratio is one against
// Go's own os/exec of the same command, with nothing captured: the cheapest
// that a Go program can do without any isolation. It is measured in the same
// run, in turns with what it is compared to, so that a machine that is slow
// for a while is slow for both.
//
// Measure does the same with any server of the reference protocol, which it
// puts under load.
package bench
