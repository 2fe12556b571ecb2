package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"berth/jobs"
	"berth/orchestrator/backend/nomad/operate"
	"berth/orchestrator/poolapi"
)

// nomadStatus is what "nomad status" prints.
type nomadStatus struct {
	operate.Status
	Containers []poolapi.Container `json:"containers"`             // of this job, as the orchestrator has them
	NoServer   string              `json:"orchestrator,omitempty"` // why it could not be asked
}

// of is the orchestrator's container that the allocation is; nil: none.
func (s *nomadStatus) of(a operate.Allocation) *poolapi.Container {
	for i := range s.Containers {
		if a.Container != "" && s.Containers[i].ID == a.Container {
			return &s.Containers[i]
		}
	}
	return nil
}

// jobFlags are those of commands about a job that is there.
func jobFlags(cmd *cobra.Command, t *jobs.Template) {
	cmd.Flags().StringVar(&t.Job, "job", "berth-default", "the pool's job")
	cmd.Flags().StringVar(&t.Namespace, "namespace", "", "namespace of the job")
	cmd.Flags().StringVar(&t.Region, "region", "", "region of the job")
}

func (a *app) nomadStatusCommand() *cobra.Command {
	var t jobs.Template
	cmd := &cobra.Command{
		Use: "status", Short: "Show a job, its deployment and its allocations",
		Long: `Shows the job, its deployment, what Nomad found no room for, and its allocations:
with their slots and leases, when the orchestrator can be asked.`,
		Args: arguments(0, 0),
	}
	jobFlags(cmd, &t)
	cmd.RunE = onNomad(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
		o, err := operator(t)
		if err != nil {
			return err
		}
		defer o.Close()
		var s nomadStatus
		if s.Status, err = o.Status(ctx, t.Job); err != nil {
			return err
		}
		s.Containers = []poolapi.Container{}
		all, err := a.containers(ctx)
		if err != nil {
			s.NoServer = err.Error()
		}
		for _, c := range all {
			for _, alloc := range s.Allocations {
				if alloc.Container == c.ID {
					s.Containers = append(s.Containers, c)
				}
			}
		}
		if a.asJSON(cmd, true) {
			return a.printJSON(s)
		}
		return a.writeStatus(&s, time.Now())
	})
	return cmd
}

// serverTimeout bounds what is asked of the orchestrator by the way.
const serverTimeout = 5 * time.Second

// containers asks the orchestrator.
func (a *app) containers(ctx context.Context) ([]poolapi.Container, error) {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	c, err := a.client()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Containers(ctx)
}

func (a *app) writeStatus(s *nomadStatus, now time.Time) error {
	w := tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%s\t%s\n", name, plainText(fmt.Sprintf(format, args...)))
	}
	line("job", "%s, %s, version %d, submitted %s ago", s.Job, s.Status.Status, s.Version, until(s.Submitted, now))
	line("image", "%s", s.Image)
	line("count", "%d", s.Count)
	if d := s.Deployment; d != nil {
		line("deployment", "%.8s of version %d: %s, %d of %d healthy: %s", d.ID, d.Version, d.Status, d.Healthy, d.Desired, d.Words)
		if d.Waits != "" {
			line("it waits", "%s; nothing else is scaled meanwhile; `%s` ends it", d.Waits, d.EndsBy)
		}
	}
	for _, why := range s.Unplaced {
		line("no room", "%s", why)
	}
	if s.NoServer != "" {
		line("orchestrator", "no answer, so there are no slots and leases below: %s", s.NoServer)
	}
	fmt.Fprintln(w, "\nINDEX\tALLOCATION\tNODE\tVERSION\tSTATUS\tCONTAINER\tSTATE\tSLOTS\tLEASES\tLAST WORDS")
	for _, one := range s.Allocations {
		state, slots, leases := "", "", ""
		if c := s.of(one); c != nil {
			held := 0
			for _, slot := range c.Slots {
				if slot.Lease != nil {
					held++
				}
			}
			state, slots, leases = c.State, strconv.Itoa(len(c.Slots)), strconv.Itoa(held)
		}
		fmt.Fprintf(w, "%d\t%.8s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", one.Index, one.ID, plainText(one.Node), one.Version, allocationState(one),
			cmp.Or(plainText(one.Container), "-"), state, slots, leases, plainText(one.Words))
	}
	if s.Failed > 0 {
		fmt.Fprintf(w, "and %d that failed before those: \"nomad job allocs\" has them\n", s.Failed)
	}
	return w.Flush()
}

// allocationState is how it is, and what is to become of it.
func allocationState(one operate.Allocation) string {
	switch {
	case one.Desired != "run" && !one.Ended():
		return one.Status + ", to " + one.Desired
	case one.Healthy != nil && !*one.Healthy:
		return one.Status + ", unhealthy"
	}
	return one.Status
}
