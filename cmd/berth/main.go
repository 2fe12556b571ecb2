// Command berth is Berth's command line for people.
//
//	berth demo      play a rollout against one container
//	berth bench     measure a container against its bars
//	berth version   print the version
//
// Exit status: 0 done, 1 something went wrong, 2 the command line is wrong.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the linker.
var version = "unknown"

const usage = `usage: berth COMMAND [FLAGS]

  demo      play a rollout against one container
  bench     measure a container against its bars
  version   print the version

Exit status: 0 done, 1 something went wrong, 2 the command line is wrong.
"berth COMMAND --help" lists a command's flags.
`

// errUsage ends the program with status 2; what was wrong is printed already.
var errUsage = errors.New("wrong usage")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// Main is the program: it runs the command that args name and returns the
// exit status.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	err := dispatch(ctx, args, stdout, stderr)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		return 2
	}
	fmt.Fprintln(stderr, "berth:", err)
	return 1
}

func dispatch(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return errUsage
	}
	switch args[0] {
	case "demo":
		return demo(ctx, args[1:], stdout, stderr)
	case "bench":
		return measure(ctx, args[1:], stdout, stderr)
	case "version":
		fmt.Fprintln(stdout, "berth", version)
		return nil
	case "help", "-h", "--help":
		fmt.Fprint(stdout, usage)
		return nil
	}
	fmt.Fprintf(stderr, "berth: unknown command %q\n%s", args[0], usage)
	return errUsage
}
