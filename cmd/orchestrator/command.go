package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"

	"github.com/hashicorp/go-hclog"

	"berth/orchestrator"
)

// Exit statuses, as --help lists them.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 64
	exitConfig = 78
)

const usage = `orchestrator leases the slots of many containers to trajectories

  orchestrator serve [flags]  serve the pool; --help lists the flags
  orchestrator reseal [flags] seal the variables of sandbox configs with the
                              first key of --config-key-file; flags as of serve
  orchestrator key            print a new key for --config-key-file
  orchestrator version        print the version

Without a command, flags are those of serve.
`

// Main is the program: signals and exit statuses apart, tests start it in
// process.
func Main(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	args = withCommand(args)
	switch args[0] {
	case "serve":
		return serve(ctx, args[1:], environ, stdout, stderr)
	case "reseal":
		return reseal(ctx, args[1:], environ, stdout, stderr)
	case "key":
		fmt.Fprintln(stdout, orchestrator.NewKey())
		return exitOK
	case "version":
		fmt.Fprintln(stdout, version)
		return exitOK
	case "help", "-h", "--help":
		fmt.Fprint(stdout, usage)
		return exitOK
	}
	fmt.Fprintf(stderr, "orchestrator: unknown command %q\n%s", args[0], usage)
	return exitUsage
}

// withCommand adds the command that was left out.
func withCommand(args []string) []string {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") && args[0] != "-h" && args[0] != "--help" {
		return append([]string{"serve"}, args...)
	}
	return args
}

func serve(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	config, err := orchestrator.Parse(args, environ, stdout)
	if errors.Is(err, orchestrator.ErrHelp) {
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(stderr, "orchestrator serve: %v\n", err)
		return exitUsage
	}
	logger := hclog.New(&hclog.LoggerOptions{
		Name: "orchestrator", Output: stderr, Level: hclog.LevelFromString(config.LogLevel), JSONFormat: config.LogJSON,
	})
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	server, err := orchestrator.Open(ctx, config, version, logger)
	if err == nil {
		err = server.Run(ctx)
	}
	if err != nil {
		logger.Error("ended", "error", err)
		if errors.Is(err, orchestrator.ErrImpossible) {
			return exitConfig
		}
		return exitFailed
	}
	logger.Info("ended")
	return exitOK
}

func reseal(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	config, err := orchestrator.Parse(args, environ, stdout)
	if errors.Is(err, orchestrator.ErrHelp) {
		return exitOK
	}
	n := 0
	if err == nil {
		n, err = orchestrator.Reseal(ctx, config)
	}
	if err == nil {
		fmt.Fprintf(stdout, "%d values sealed anew\n", n)
		return exitOK
	}
	fmt.Fprintf(stderr, "orchestrator reseal: %v\n", err)
	switch {
	case errors.Is(err, orchestrator.ErrUsage):
		return exitUsage
	case errors.Is(err, orchestrator.ErrImpossible):
		return exitConfig
	}
	return exitFailed
}
