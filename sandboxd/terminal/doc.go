// Package terminal carries a terminal over a WebSocket, both ends of it. It is
// the only package that knows WebSockets.
//
//	client                                   server
//	  GET ...?cols=&rows=&term=&command= ──────>  starts the command, or answers an error
//	  <───────────────────────────────── 101
//	  binary: what is typed ───────────────────>
//	  <─────────────────── binary: what is shown
//	  text: {"resize":{"cols":..,"rows":..}} ──>
//	  <──────────────── text: {"exit":{...}}, or {"error":{...}}, the last of all
//
// Nothing is queued at either end: who does not read is not written to, up to
// the program on the terminal, which waits. A client that is not heard of for
// Silence, not even by the answer to a ping, has gone.
package terminal
