package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"berth/cmd/berth/container"
	"berth/cmd/berth/rollout"
)

// demo starts a container, plays a rollout against it and stops it. It is an
// error when a trajectory fails or the container does not stop in order.
func demo(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("berth demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	binary := flags.String("agent", besideMe("sandboxd"), "the sandboxd `binary` to start")
	slots := flags.Int("slots", 8, "slots of the container")
	trajectories := flags.Int("trajectories", 8, "trajectories to play")
	flags.Usage = func() {
		fmt.Fprint(stderr, "usage: berth demo [FLAGS] [-- FLAGS OF sandboxd serve]\n\nPlays a rollout against one container by the reference protocol.\n\n")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage
	}
	if *slots < 1 || *trajectories < 1 {
		fmt.Fprintln(stderr, "berth demo: --slots and --trajectories must be above 0")
		return errUsage
	}

	c, err := container.Start(ctx, container.Config{Binary: *binary, Slots: *slots, Args: flags.Args()})
	if err != nil {
		return err
	}
	client := rollout.Client{URL: c.URL, Token: c.Token, HTTP: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: *slots},
	}}
	return errors.Join(play(ctx, client, *trajectories, stdout), c.Close())
}

// play runs the rollout and prints how it goes and went.
func play(ctx context.Context, client rollout.Client, trajectories int, stdout io.Writer) error {
	defer client.HTTP.CloseIdleConnections()
	health, err := client.Health(ctx)
	if err != nil {
		return err
	}
	level := health.Isolation.Level
	if level == "" {
		level = "not reported"
	}
	fmt.Fprintf(stdout, "container ready at %s, isolation %s\n", client.URL, level)
	report, err := rollout.Run(ctx, client, rollout.Config{Trajectories: trajectories, Progress: stdout})
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout)
	if err := report.Write(stdout); err != nil {
		return err
	}
	if n := report.Failures(); n > 0 {
		return fmt.Errorf("%d of %d trajectories failed", n, trajectories)
	}
	return nil
}

// besideMe is the path of a binary in the folder of this one.
func besideMe(name string) string {
	if me, err := os.Executable(); err == nil {
		return filepath.Join(filepath.Dir(me), name)
	}
	return name
}
