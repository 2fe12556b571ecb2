package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"berth/cmd/berth/container"
	"berth/cmd/berth/rollout"
	"berth/orchestrator/client"
)

// poolConfig says which pool to start for a demo.
type poolConfig struct {
	orchestrator, agent string // the binaries
	containers, slots   int    // slots of each container
	args                []string
}

// demoPool starts an orchestrator, plays a rollout on its pool and stops it,
// which stops the containers.
func demoPool(ctx context.Context, config poolConfig, trajectories int, stdout io.Writer) error {
	args := []string{"--sandboxd", config.agent, "--containers", strconv.Itoa(config.containers)}
	for _, arg := range config.args {
		args = append(args, "--sandboxd-arg", arg)
	}
	// An orchestrator is started, and told to stop, as a container is.
	c, err := container.Start(ctx, container.Config{Binary: config.orchestrator, Slots: config.slots, Args: args})
	if err != nil {
		return err
	}
	pool, err := client.New(client.Config{URL: c.URL, Token: c.Token})
	if err != nil {
		return errors.Join(err, c.Close())
	}
	defer pool.Close()
	fmt.Fprintf(stdout, "pool ready at %s, %d containers of %d slots\n", c.URL, config.containers, config.slots)
	on := rollout.Pool{Client: pool, Slots: config.containers * config.slots}
	return errors.Join(playOn(ctx, on, trajectories, stdout), c.Close())
}
