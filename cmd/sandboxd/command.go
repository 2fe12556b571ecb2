package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/hashicorp/go-hclog"

	"berth/sandboxd"
	"berth/slots/sandbox"
)

// Exit statuses, as --help lists them.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 64
	exitUnmet  = 78
)

const usage = `sandboxd serves the isolated slots of one container

  sandboxd serve [flags]      serve the slots; --help lists the flags
  sandboxd probe [--json]     say what isolation this machine allows, and how to get more
  sandboxd version            print the version

Without a command, flags are those of serve.
`

// Main is the program: signals and exit statuses apart, tests start it in
// process.
func Main(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	args = withCommand(args)
	switch args[0] {
	case "serve":
		return serve(ctx, args[1:], environ, stdout, stderr)
	case "probe":
		return runProbe(ctx, args[1:], environ, stdout, stderr)
	case "version":
		fmt.Fprintln(stdout, version)
		return exitOK
	case "help", "-h", "--help":
		fmt.Fprint(stdout, usage)
		return exitOK
	}
	fmt.Fprintf(stderr, "sandboxd: unknown command %q\n%s", args[0], usage)
	return exitUsage
}

// withCommand adds the command that was left out: the reference server takes
// its flags without one.
func withCommand(args []string) []string {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") && args[0] != "-h" && args[0] != "--help" {
		return append([]string{"serve"}, args...)
	}
	return args
}

func serve(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	config, err := sandboxd.Parse(args, environ, stdout)
	if errors.Is(err, sandboxd.ErrHelp) {
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(stderr, "sandboxd serve: %v\n", err)
		return exitUsage
	}
	logger := hclog.New(&hclog.LoggerOptions{
		Name: "sandboxd", Output: stderr, Level: hclog.LevelFromString(config.LogLevel), JSONFormat: config.LogJSON,
	})
	if err := sandbox.HardenAgent(); err != nil {
		logger.Error("cannot protect the agent", "error", err)
		return exitFailed
	}
	life, end := context.WithCancel(ctx)
	defer end()
	running, reload := untilTold(life, logger)
	agent, err := sandboxd.Open(running, config, version, logger)
	if err == nil {
		go keepReloading(life, agent, reload, logger) // ends with us: a drain may be long
		err = agent.Run(running)
	}
	if err != nil {
		logger.Error("ended", "error", err)
		if _, unmet := errors.AsType[*sandbox.UnmetError](err); unmet {
			return exitUnmet
		}
		return exitFailed
	}
	logger.Info("ended")
	return exitOK
}

// keepReloading reads the token again whenever it is told to.
func keepReloading(ctx context.Context, agent *sandboxd.Agent, told <-chan struct{}, logger hclog.Logger) {
	for {
		select {
		case <-told:
			if err := agent.Reload(); err != nil {
				logger.Error("cannot reload, the old token stays", "error", err)
				continue
			}
			logger.Info("reloaded")
		case <-ctx.Done():
			return
		}
	}
}

// untilTold makes a context that ends at SIGTERM or SIGINT, and tells of SIGHUP
// until ctx ends. Every other signal that can be caught is noted and survived:
// slots must not end the agent.
func untilTold(ctx context.Context, logger hclog.Logger) (running context.Context, reload <-chan struct{}) {
	running, cancel := context.WithCancelCause(ctx)
	signals := sandbox.Signals()
	told := make(chan struct{}, 1)
	go func() { // ends with the context
		for {
			select {
			case s := <-signals:
				switch s {
				case syscall.SIGTERM, syscall.SIGINT:
					cancel(fmt.Errorf("got %v", s))
				case syscall.SIGHUP:
					select {
					case told <- struct{}{}:
					default: // it is about to be done
					}
				default:
					logger.Debug("signal ignored", "signal", s.String())
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return running, told
}
