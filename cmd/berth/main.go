// Command berth is Berth's command line for people: a pool on this machine,
// commands, shells and files in its slots, and measurements.
//
// "berth --help" lists the commands and the exit statuses.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the linker.
var version = "unknown"

func main() {
	// A reader that went away is an error of a write, so that what was leased
	// is given back.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGHUP)
	status := run(ctx, os.Args[1:], &app{in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv})
	stop()
	os.Exit(status)
}
