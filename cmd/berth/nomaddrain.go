package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"berth/jobs"
	"berth/orchestrator/backend/nomad/operate"
)

// emptied is what "nomad drain" prints.
type emptied struct {
	Allocations []string `json:"allocations"`
	Containers  []string `json:"containers"`
	Node        string   `json:"node,omitempty"`
}

func (a *app) nomadDrainCommand() *cobra.Command {
	var t jobs.Template
	var node string
	var within time.Duration
	var force bool
	cmd := &cobra.Command{
		Use: "drain CONTAINER|ALLOCATION | drain --node NODE", Short: "Empty a container, or a machine, and stop it",
		Long: `Has the orchestrator give the container no new leases and stop it when its last
lease has ended, and waits until its allocation is gone. With --node Nomad drains
that machine, and all that runs there goes elsewhere: containers get no new
leases from then on, and are stopped when their last one has ended, or after
--within.

An allocation that no orchestrator has claimed is stopped at once.`,
		Args: arguments(0, 1),
	}
	jobFlags(cmd, &t)
	cmd.Flags().StringVar(&node, "node", "", "the machine, by its `NAME` or the beginning of its ID")
	cmd.Flags().DurationVar(&within, "within", 0, "stop it after this time also if it has leases; 0: never, for a machine 10 m")
	cmd.Flags().BoolVar(&force, "force", false, "also when no orchestrator answers: who holds leases is not told")
	cmd.RunE = onNomad(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		switch {
		case within < 0:
			return usagef("--within must not be below 0")
		case (node == "") == (len(args) == 0):
			return usagef("name one container or allocation, or a machine by --node")
		case node != "" && force:
			return usagef("--force is for a container: no orchestrator is asked for a machine")
		}
		o, err := operator(t)
		if err != nil {
			return err
		}
		defer o.Close()
		d := drainer{a, o, t.Job, force}
		var done emptied
		if node != "" {
			done, err = d.machine(ctx, node, within)
		} else {
			done, err = d.container(ctx, args[0], within)
		}
		if err != nil {
			return err
		}
		if a.asJSON(cmd, true) {
			return a.printJSON(done)
		}
		for _, id := range done.Allocations {
			fmt.Fprintf(a.out, "allocation %.8s is gone\n", id)
		}
		return nil
	})
	return cmd
}

// drainer empties what Nomad runs.
type drainer struct {
	*app
	nomad *operate.Operator
	job   string
	force bool
}

// container empties one and waits until it is gone.
func (d drainer) container(ctx context.Context, name string, within time.Duration) (emptied, error) {
	alloc, err := d.nomad.Find(ctx, d.job, name)
	if err != nil {
		return emptied{}, err
	}
	done := emptied{Allocations: []string{alloc.ID}, Containers: []string{}}
	stop := alloc.Container == ""
	if !stop {
		done.Containers = append(done.Containers, alloc.Container)
		leases, err := d.ask(ctx, alloc.Container, within)
		switch {
		case err == nil:
			d.progress("container %s is draining, with %d leases", alloc.Container, leases)
		case d.force:
			d.progress("the orchestrator is left out: %s", err)
			stop = true
		default:
			return emptied{}, fmt.Errorf("%w; --force stops it all the same", err)
		}
	}
	if stop {
		d.progress("stopping allocation %.8s", alloc.ID)
		if err := d.nomad.Stop(ctx, alloc.ID); err != nil {
			return emptied{}, err
		}
	}
	if err := d.nomad.Gone(ctx, alloc.ID); err != nil {
		return emptied{}, fmt.Errorf("%w: %w, and nothing takes it back", err, operate.ErrGoesOn)
	}
	return done, nil
}

// ask has the orchestrator drain a container.
func (d drainer) ask(ctx context.Context, id string, within time.Duration) (leases int, err error) {
	c, err := d.client()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	container, err := c.Drain(ctx, id, within)
	for _, s := range container.Slots {
		if s.Lease != nil {
			leases++
		}
	}
	return leases, err
}

// machineTime is how long a machine's containers have by default.
const machineTime = 10 * time.Minute

// machine empties a machine. The orchestrators hear of its drain from Nomad, as
// of one that anybody else begins, and give no new leases there.
func (d drainer) machine(ctx context.Context, name string, within time.Duration) (emptied, error) {
	id, on, err := d.nomad.Node(ctx, d.job, name)
	if err != nil {
		return emptied{}, err
	}
	done := emptied{Node: id, Allocations: []string{}, Containers: []string{}}
	for _, alloc := range on {
		done.Allocations = append(done.Allocations, alloc.ID)
		if alloc.Container != "" {
			done.Containers = append(done.Containers, alloc.Container)
		}
	}
	if within == 0 {
		within = machineTime
	}
	index, err := d.nomad.DrainNode(ctx, id, within)
	if err != nil {
		return emptied{}, err
	}
	if err := d.nomad.Drained(ctx, id, index, d.progress); err != nil {
		if !errors.Is(err, operate.ErrTakenBack) {
			err = fmt.Errorf("%w; to have work come again: nomad node drain -disable %s", err, id)
		}
		return emptied{}, err
	}
	return done, nil
}
