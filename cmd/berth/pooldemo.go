package main

import (
	"context"
	"errors"
	"fmt"
	"io"

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
