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
// Who does not read is not written to, up to the program on the terminal, which
// waits. A client that is not heard of for Silence, not even by the answer to a
// ping, has gone. So that the server hears it when the program does not read
// either, it queues up to 256 KiB of what is typed. Of a client that types more
// it hears no more until the program reads: then it goes by whether the
// client's machine takes what it is sent.
package terminal
