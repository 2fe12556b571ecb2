package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// app is one run of the program.
type app struct {
	in       io.Reader
	out, err io.Writer
	getenv   func(string) string

	url       string // of --url
	tokenFile string // of --token-file
	json      bool   // of --json
}

const about = `Berth gives every trajectory its own slot.

Without a server, "berth up" starts a pool on this machine. With one, commands
run in a slot of it that is leased for them.`

const statuses = `
Exit status:
  0    done
  1    something went wrong: the last line on the standard error says what
  2    the command line is wrong
  69   no server answers
  78   the configuration is wrong: a token, a file, an address, this machine
  exec and shell end with the status of their command: 124 when it took too
  long, 128 and the signal's number when a signal ended it, 130 after Ctrl-C
`

// run runs the command that args name.
func run(ctx context.Context, args []string, a *app) int {
	root := a.root() //nolint:contextcheck // cobra hands the context on
	root.SetArgs(args)
	return a.report(root.ExecuteContext(ctx))
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use: "berth", Short: "Isolated slots for trajectories", Long: about,
		SilenceErrors: true, SilenceUsage: true, SuggestionsMinimumDistance: 2,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			hint := "\"berth --help\" lists the commands"
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				hint = fmt.Sprintf("did you mean %q?", near[0])
			}
			return usagef("unknown command %q: %s", args[0], hint)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprint(a.err, cmd.UsageString())
			return &failure{status: exitUsage}
		},
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%v: \"%s --help\" lists the flags", err, cmd.CommandPath())
	})
	root.SetUsageTemplate(strings.TrimRight(root.UsageTemplate(), "\n") + "\n" + statuses)
	flags := root.PersistentFlags()
	flags.StringVar(&a.url, "url", "", "the server's address; BERTH_URL, else "+defaultURL)
	flags.StringVar(&a.tokenFile, "token-file", "", "`file` that holds the bearer token; else BERTH_TOKEN, else that of \"berth up\"")
	flags.BoolVar(&a.json, "json", false, "print JSON; without it so does what is not printed on a terminal")
	root.AddCommand(
		a.upCommand(), a.execCommand(), a.shellCommand(), a.copyCommand(), a.slotsCommand(), a.topCommand(),
		a.releaseCommand(), a.cordonCommand(), a.drainCommand(), a.doctorCommand(), a.nomadCommand(), a.configCommand(), a.toolCommand(),
		a.demoCommand(), a.benchCommand(), a.versionCommand(),
	)
	return root
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.asJSON(cmd, false) {
				return a.printJSON(map[string]string{"version": version})
			}
			fmt.Fprintln(a.out, "berth", version)
			return nil
		},
	}
}

// command is what a cobra.Command does.
type command func(ctx context.Context, cmd *cobra.Command, args []string) error

// secondAfter is how long after a Ctrl-C the next one is a second one: who
// signals a whole group of processes may send it to one of them twice.
const secondAfter = time.Second

// interruptible ends the command's context at Ctrl-C; a second one ends the
// program at once.
func interruptible(do command) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
		defer stop()
		context.AfterFunc(ctx, func() { time.AfterFunc(secondAfter, stop) })
		err := do(ctx, cmd, args)
		if _, told := errors.AsType[*failure](err); err != nil && !told && ctx.Err() != nil {
			return &failure{exitInterrupted, errors.New("interrupted")}
		}
		return err
	}
}

// arguments wants so many arguments, most at most; -1: any number.
func arguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch n := len(args); {
		case n < least:
			return usagef("too few arguments: usage: %s", cmd.UseLine())
		case most >= 0 && n > most:
			return usagef("unexpected argument %q: usage: %s", args[most], cmd.UseLine())
		}
		return nil
	}
}

// behindDash wants no arguments before "--", and any number behind it.
func behindDash(cmd *cobra.Command, args []string) error {
	if n := cmd.ArgsLenAtDash(); n > 0 || n < 0 && len(args) > 0 {
		return usagef("unexpected argument %q: usage: %s", args[0], cmd.UseLine())
	}
	return nil
}

// terminal returns the descriptor of a stream that is one.
func terminal(stream any) (fd int, ok bool) {
	f, isFile := stream.(*os.File)
	if !isFile {
		return 0, false
	}
	fd = int(f.Fd()) //nolint:gosec // descriptors are small
	return fd, term.IsTerminal(fd)
}

// asJSON reports whether to print JSON: as --json says, else byDefault where
// no terminal is printed on.
func (a *app) asJSON(cmd *cobra.Command, byDefault bool) bool {
	if cmd.Flags().Changed("json") {
		return a.json
	}
	_, onTerminal := terminal(a.out)
	return byDefault && !onTerminal
}
