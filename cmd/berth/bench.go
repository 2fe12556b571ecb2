package main

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"berth/cmd/berth/bench"
)

func (a *app) benchCommand() *cobra.Command {
	var config bench.Config
	var load bench.Load
	var only string
	cmd := &cobra.Command{
		Use: "bench [flags] [-- FLAGS OF sandboxd serve]", Short: "Measure a container and a pool, or with --url any server under load",
		Long: `Without --url: measures a sandboxd, and then a pool of two, against their bars
and prints them as tables. It starts what it measures.

With --url: sends executions to a server that speaks the reference protocol,
that of a container (slot_id) or that of a pool (trajectory_id), and prints what
one execution took beside what fork and exec take here in the same run. Slots of
a container are reset before and after; a pool's trajectories are released.
So that this happens to no server by accident, BERTH_URL does not count here:
the server has to be named by --url.`,
		Args: behindDash,
	}
	flags := cmd.Flags()
	flags.StringVar(&config.Binary, "agent", besideMe("sandboxd"), "the sandboxd `binary` to measure")
	flags.StringVar(&config.Orchestrator, "orchestrator", besideMe("orchestrator"), "the orchestrator `binary` of the pool")
	flags.IntVar(&config.Runs, "runs", 300, "runs that a p50 is of")
	flags.IntVar(&config.Executions, "executions", 50_000, "executions in a row")
	flags.IntVar(&config.Starts, "starts", 10, "starts that the time to ready is of")
	flags.StringVar(&only, "only", "", "measure only the rows whose name matches the `regexp`")
	flags.IntVar(&load.Workers, "workers", 16, "with --url: executions at once")
	flags.IntVar(&load.Calls, "calls", 1000, "with --url: executions in all")
	flags.StringVar(&load.Command, "command", "true", "with --url: what each executes")
	flags.StringVar(&load.Protocol, "protocol", "auto", "with --url: slots, trajectories or auto")
	flags.DurationVar(&load.Timeout, "timeout", time.Minute, "with --url: how long one execution may take")
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		if err := fits(cmd, a.url != "", args); err != nil {
			return err
		}
		if a.url != "" {
			return a.load(ctx, cmd, load)
		}
		if config.Runs < 1 || config.Executions < 1 || config.Starts < 1 {
			return usagef("--runs, --executions and --starts must be above 0")
		}
		if only != "" {
			var err error
			if config.Only, err = regexp.Compile(only); err != nil {
				return usagef("--only: %v", err)
			}
		}
		config.Args, config.Progress = args, a.err
		return bench.Run(ctx, config, a.out)
	})
	return cmd
}

// ofSuite are the flags that say nothing about a server under load, ofLoad
// those that say nothing without one.
var (
	ofSuite = []string{"agent", "orchestrator", "runs", "executions", "starts", "only"}
	ofLoad  = []string{"workers", "calls", "command", "protocol", "timeout", "token-file", "json"}
)

// fits refuses what the chosen one of the two measurements would not heed.
func fits(cmd *cobra.Command, loaded bool, args []string) error {
	other, mend := ofLoad, "is about a server under load: name the server by --url (BERTH_URL does not count here)"
	if loaded {
		other, mend = ofSuite, "is about what berth starts and measures by itself: leave out either it or --url"
		if len(args) > 0 {
			return usagef("%q behind -- %s", args[0], mend)
		}
	}
	for _, name := range other {
		if cmd.Flags().Changed(name) {
			return usagef("--%s %s", name, mend)
		}
	}
	return nil
}

// load measures the server under load.
func (a *app) load(ctx context.Context, cmd *cobra.Command, load bench.Load) error {
	if load.Workers < 1 || load.Calls < load.Workers || load.Timeout <= 0 {
		return usagef("--workers and --timeout must be above 0, --calls not below --workers")
	}
	switch load.Protocol {
	case bench.ProtocolAuto, bench.ProtocolSlots, bench.ProtocolTrajectories:
	default:
		return usagef("--protocol %q: want slots, trajectories or auto", load.Protocol)
	}
	var err error
	if load.Token, err = a.token(); err != nil {
		return err
	}
	load.URL, load.Progress = a.address(), a.err
	report, err := bench.Measure(ctx, load)
	if err != nil {
		return err
	}
	if a.asJSON(cmd, true) {
		err = a.printJSON(report)
	} else {
		err = report.Write(a.out)
	}
	if err == nil && report.Failed > 0 {
		err = fmt.Errorf("%d of %d executions failed, the first of them: %s", report.Failed, report.Calls, report.FirstFailure)
	}
	return err
}
