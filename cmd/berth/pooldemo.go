package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"berth/cmd/berth/container"
	"berth/cmd/berth/rollout"
	"berth/orchestrator/client"
)

// demoPool starts an orchestrator, plays a rollout on its pool and stops it,
// which stops the containers.
func demoPool(ctx context.Context, config container.Pool, trajectories int, stdout io.Writer) error {
	c, err := container.Start(ctx, config.Config())
	if err != nil {
		return err
	}
	pool, err := client.New(client.Config{URL: c.URL, Token: c.Token})
	if err != nil {
		return errors.Join(err, c.Close())
	}
	defer pool.Close()
	fmt.Fprintf(stdout, "pool ready at %s, %d containers of %d slots\n", c.URL, config.Containers, config.Slots)
	on := rollout.Pool{Client: pool, Slots: config.Containers * config.Slots}
	return errors.Join(playOn(ctx, on, trajectories, stdout), c.Close())
}

// demoServer plays a rollout on the pool of a server that runs.
func (a *app) demoServer(ctx context.Context, cmd *cobra.Command, args []string, trajectories int) error {
	for _, name := range []string{"agent", "orchestrator", "containers", "slots"} {
		if cmd.Flags().Changed(name) {
			return usagef("--%s is of a pool that is started: it does not go with --url", name)
		}
	}
	if len(args) > 0 {
		return usagef("flags of sandboxd are of a pool that is started: they do not go with --url")
	}
	pool, err := a.client()
	if err != nil {
		return err
	}
	defer pool.Close()
	fmt.Fprintf(a.out, "playing on the pool at %s\n", a.address())
	return playOn(ctx, rollout.Pool{Client: pool}, trajectories, a.out)
}
