package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"berth/cmd/berth/container"
	"berth/cmd/berth/rollout"
)

func (a *app) demoCommand() *cobra.Command {
	var pool container.Pool
	var trajectories int
	cmd := &cobra.Command{
		Use: "demo [flags] [-- FLAGS OF sandboxd serve]", Short: "Play a rollout on a pool of containers",
		Long: "Starts a pool, plays a rollout on the slots that its trajectories lease, and\nstops it. With --url it plays on the pool of that server, and starts and stops\nnothing.",
		Args: behindDash,
	}
	cmd.Flags().StringVar(&pool.Agent, "agent", besideMe("sandboxd"), "the sandboxd `binary` to start")
	cmd.Flags().StringVar(&pool.Orchestrator, "orchestrator", besideMe("orchestrator"), "the orchestrator `binary` to start")
	cmd.Flags().IntVar(&pool.Containers, "containers", 2, "containers of the pool; 0: one without a pool, by the reference protocol")
	cmd.Flags().IntVar(&pool.Slots, "slots", 8, "slots of each container")
	cmd.Flags().IntVar(&trajectories, "trajectories", 64, "trajectories to play")
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		if pool.Slots < 1 || trajectories < 1 || pool.Containers < 0 {
			return usagef("--slots and --trajectories must be above 0, --containers 0 or more")
		}
		if cmd.Flags().Changed("url") {
			return a.demoServer(ctx, cmd, args, trajectories)
		}
		if pool.Containers == 0 {
			return demo(ctx, container.Config{Binary: pool.Agent, Slots: pool.Slots, Args: args}, trajectories, a.out)
		}
		pool.Args = args
		return demoPool(ctx, pool, trajectories, a.out)
	})
	return cmd
}

// demo starts a container, plays a rollout against it and stops it. It is an
// error when a trajectory fails or the container does not stop in order.
func demo(ctx context.Context, config container.Config, trajectories int, stdout io.Writer) error {
	c, err := container.Start(ctx, config)
	if err != nil {
		return err
	}
	client := rollout.Client{URL: c.URL, Token: c.Token, HTTP: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: config.Slots},
	}}
	return errors.Join(play(ctx, client, trajectories, stdout), c.Close())
}

// play runs the rollout on one container.
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
	return playOn(ctx, client, trajectories, stdout)
}

// playOn runs the rollout and prints how it goes and went.
func playOn(ctx context.Context, on rollout.Target, trajectories int, stdout io.Writer) error {
	report, err := rollout.Run(ctx, on, rollout.Config{Trajectories: trajectories, Progress: stdout})
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
