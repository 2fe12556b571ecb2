// Command berth is Berth's command line for people: a pool on this machine,
// commands, shells and files in its slots, and measurements.
//
// "berth --help" lists the commands and the exit statuses.
package main

import (
	"context"
	"io"
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

// Main is the program: it runs the command that args name and returns the
// exit status.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return run(ctx, args, &app{in: eof{}, out: stdout, err: stderr, getenv: os.Getenv})
}

// eof is an input that is over.
type eof struct{}

// Read returns io.EOF.
func (eof) Read([]byte) (int, error) { return 0, io.EOF }
