package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"

	"berth/cmd/berth/bench"
)

// measure measures a sandboxd against its bars and prints the table.
func measure(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	config := bench.Config{Progress: stderr}
	flags := flag.NewFlagSet("berth bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&config.Binary, "agent", besideMe("sandboxd"), "the sandboxd `binary` to measure")
	flags.IntVar(&config.Runs, "runs", 300, "runs that a p50 is of")
	flags.IntVar(&config.Executions, "executions", 50_000, "executions in a row")
	flags.IntVar(&config.Starts, "starts", 10, "starts that the time to ready is of")
	flags.Func("only", "measure only the rows whose name matches the `regexp`", func(text string) (err error) {
		config.Only, err = regexp.Compile(text)
		return err
	})
	flags.Usage = func() {
		fmt.Fprint(stderr, "usage: berth bench [FLAGS] [-- FLAGS OF sandboxd serve]\n\nMeasures a container against its bars and prints them as a table.\n\n")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage
	}
	if config.Runs < 1 || config.Executions < 1 || config.Starts < 1 {
		fmt.Fprintln(stderr, "berth bench: --runs, --executions and --starts must be above 0")
		return errUsage
	}
	config.Args = flags.Args()
	return bench.Run(ctx, config, stdout)
}
