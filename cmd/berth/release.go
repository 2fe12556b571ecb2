package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
)

func (a *app) releaseCommand() *cobra.Command {
	var f client.Filter
	cmd := &cobra.Command{
		Use: "release [LEASE]... [--trajectory NAME] [--label NAME=VALUE]...", Short: "Give slots back, pristine",
		Long: `Releases the named leases, and those that meet all of the flags, and says what
came of each. What runs in their slots is ended.`,
		Args: arguments(0, -1),
	}
	cmd.Flags().StringVar(&f.Trajectory, "trajectory", "", "all leases of this trajectory")
	cmd.Flags().StringToStringVar(&f.Labels, "label", nil, "all leases with this label, as `NAME=VALUE`; may be repeated")
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		filtered := f.Trajectory != "" || len(f.Labels) > 0
		if len(args) == 0 && !filtered {
			return usagef("say which leases: by name, --trajectory or --label; \"berth slots\" lists them")
		}
		c, err := a.client()
		if err != nil {
			return err
		}
		defer c.Close()
		released := []poolapi.Released{}
		for _, lease := range args {
			receipt, err := c.Release(ctx, lease)
			if err != nil && (client.Unreachable(err) || len(args) == 1 && !filtered) {
				return err
			}
			r := poolapi.Released{Lease: lease, Reset: receipt}
			if err != nil {
				fault := api.NewErrorAnswer(err).Error
				r.Error = &fault
			}
			released = append(released, r)
		}
		if filtered {
			more, err := c.ReleaseAll(ctx, f)
			if err != nil {
				return err
			}
			released = append(released, more...)
		}
		return a.printReleased(cmd, released)
	})
	return cmd
}

// printReleased prints what came of each; that some went wrong is an error.
func (a *app) printReleased(cmd *cobra.Command, released []poolapi.Released) error {
	wrong := 0
	for _, r := range released {
		if r.Error != nil {
			wrong++
		}
	}
	if a.asJSON(cmd, true) {
		if err := a.printJSON(poolapi.ReleasedLeases{Released: released}); err != nil {
			return err
		}
	} else {
		for _, r := range released {
			switch {
			case r.Error != nil:
				fmt.Fprintf(a.out, "%s  NOT released: %s\n", r.Lease, plainText(r.Error.Message))
			case r.Reset != nil && r.Reset.Clean:
				fmt.Fprintf(a.out, "%s  released, clean after %.1f ms\n", r.Lease, r.Reset.MS)
			default:
				fmt.Fprintf(a.out, "%s  released\n", r.Lease)
			}
		}
		if len(released) == 0 {
			fmt.Fprintln(a.out, "no lease is meant by that")
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d of %d leases were not released as they should: what is said of each tells why", wrong, len(released))
	}
	return nil
}

func (a *app) drainCommand() *cobra.Command {
	var within time.Duration
	var recycle, wait bool
	cmd := &cobra.Command{
		Use: "drain CONTAINER", Short: "Stop a container when its leases have ended",
		Long: `Gives the container no new leases and stops it when its last lease has ended.
The pool starts another one in its place when it needs one; --recycle has it do
so now.`,
		Args: arguments(1, 1),
	}
	cmd.Flags().DurationVar(&within, "within", 0, "stop it after this time also if it has leases; without it never")
	cmd.Flags().BoolVar(&recycle, "recycle", false, "start another one in its place now")
	cmd.Flags().BoolVar(&wait, "wait-gone", false, "wait until it is gone")
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		if within < 0 {
			return usagef("--within must not be below 0")
		}
		c, err := a.client()
		if err != nil {
			return err
		}
		defer c.Close()
		operate := c.Drain
		if recycle {
			operate = c.Recycle
		}
		container, err := operate(ctx, args[0], within)
		if err != nil {
			return err
		}
		if wait {
			if err := gone(ctx, c, container.ID); err != nil {
				return err
			}
		}
		if a.asJSON(cmd, true) {
			return a.printJSON(container)
		}
		leases := 0
		for _, s := range container.Slots {
			if s.Lease != nil {
				leases++
			}
		}
		if wait {
			fmt.Fprintf(a.out, "container %s is gone\n", container.ID)
			return nil
		}
		fmt.Fprintf(a.out, "container %s is draining, with %d leases\n", container.ID, leases)
		return nil
	})
	return cmd
}

// pollEvery is how often something is looked at that tells nobody of its end.
const pollEvery = 100 * time.Millisecond

// gone waits until the container is no more.
func gone(ctx context.Context, c *client.Client, id string) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		all, err := c.Containers(ctx)
		if err != nil {
			return err
		}
		there := false
		for _, container := range all {
			there = there || container.ID == id
		}
		if !there {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
