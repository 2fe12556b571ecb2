package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"berth/orchestrator/poolapi"
	"berth/slots"
)

func (a *app) slotsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "slots", Short: "List the slots and who holds them", Args: arguments(0, 0),
	}
	cmd.RunE = interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		c, err := a.client()
		if err != nil {
			return err
		}
		defer c.Close()
		all, err := c.Containers(ctx)
		if err != nil {
			return err
		}
		if a.asJSON(cmd, true) {
			return a.printJSON(poolapi.Containers{Containers: all})
		}
		return writeSlots(a.out, all, time.Now())
	})
	return cmd
}

// writeSlots writes one line for each slot.
func writeSlots(out io.Writer, containers []poolapi.Container, now time.Time) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "CONTAINER\tSLOT\tSTATE\tTRAJECTORY\tENDS IN\tLABELS\tLEASE")
	for _, c := range containers {
		if len(c.Slots) == 0 {
			fmt.Fprintf(w, "%s\t-\t%s\t\t\t\t%s\n", plainText(c.ID), c.State, plainText(c.Failure))
		}
		for _, s := range c.Slots {
			lease := cmp.Or(s.Lease, &poolapi.Lease{})
			left := ""
			if s.Lease != nil {
				left = until(now, lease.ExpiresAt)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
				plainText(c.ID), s.SlotID, slotState(c, s), plainText(lease.Trajectory), left, labelText(lease.Labels), lease.ID)
		}
	}
	return w.Flush()
}

// slotState is the slot's state, and that of its container where it is not
// ready.
func slotState(c poolapi.Container, s poolapi.Slot) string {
	state := string(s.State)
	switch {
	case s.Releasing:
		state = "releasing"
	case s.Lease != nil && s.State == slots.StateAvailable:
		state = "leased"
	case s.Reason != "":
		state += " (" + plainText(s.Reason) + ")"
	}
	if c.State != "ready" {
		state += ", " + c.State
	}
	return state
}

func labelText(labels map[string]string) string {
	parts := make([]string, 0, len(labels))
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, plainText(name+"="+labels[name]))
	}
	return strings.Join(parts, " ")
}

// until is how long it is from now to then, in whole seconds.
func until(now, then time.Time) string { return max(0, then.Sub(now)).Round(time.Second).String() }

// plainText is a name that somebody has chosen, without what would steer a
// terminal.
func plainText(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}
