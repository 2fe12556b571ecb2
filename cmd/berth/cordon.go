package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) cordonCommand() *cobra.Command {
	var off bool
	cmd := &cobra.Command{
		Use: "cordon CONTAINER", Short: "Keep new leases away from a container",
		Long: `Gives the container no new leases; those that it has stay, and so does the
container. --off lets leases come again.`,
		Args: arguments(1, 1),
	}
	cmd.Flags().BoolVar(&off, "off", false, "let leases come again")
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		c, err := a.client()
		if err != nil {
			return err
		}
		defer c.Close()
		container, err := c.Cordon(ctx, args[0], !off)
		if err != nil {
			return err
		}
		if a.asJSON(cmd, true) {
			return a.printJSON(container)
		}
		fmt.Fprintf(a.out, "container %s is %s\n", container.ID, container.State)
		return nil
	})
	return cmd
}
