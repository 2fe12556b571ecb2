package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
)

// berthing says which slot a command runs in.
type berthing struct {
	lease      string
	trajectory string
	template   string
	labels     map[string]string
	wait       time.Duration
	ttl        time.Duration
	keep       bool
}

func (b *berthing) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&b.lease, "lease", "", "run in the slot of this `lease`, which stays")
	flags.StringVar(&b.trajectory, "trajectory", "", "run in the slot of this trajectory, which stays if it has one")
	flags.StringVar(&b.template, "template", "", "pool to lease from; the server's own without it")
	flags.StringToStringVar(&b.labels, "label", nil, "label of the lease, as `NAME=VALUE`; may be repeated")
	flags.DurationVar(&b.wait, "wait", time.Minute, "how long to wait for a free slot")
	flags.DurationVar(&b.ttl, "ttl", 0, "how long the lease lasts when nobody renews it; the template's without it")
	flags.BoolVar(&b.keep, "keep", false, "keep the lease at the end, and print it")
}

func (b *berthing) check() error {
	if b.wait < 0 || b.ttl < 0 {
		return usagef("--wait and --ttl must not be below 0")
	}
	if b.lease != "" && (b.trajectory != "" || b.template != "" || len(b.labels) > 0) {
		return usagef("--lease says which slot: --trajectory, --template and --label are for one that is to be leased")
	}
	return nil
}

// acquire finds or leases the slot. ours says that it was leased here.
func (b *berthing) acquire(ctx context.Context, c *client.Client) (lease poolapi.Lease, ours bool, err error) {
	if b.lease != "" {
		lease, err = c.Lease(ctx, b.lease)
		return lease, false, err
	}
	ours = true
	if b.trajectory != "" {
		held, err := c.Leases(ctx, client.Filter{Trajectory: b.trajectory, Template: b.template})
		if err != nil {
			return lease, false, err
		}
		ours = len(held) == 0
	}
	want := poolapi.LeaseRequest{
		Template: b.template, Trajectory: b.trajectory, Labels: b.labels, TTLSeconds: b.ttl.Seconds(), WaitS: b.wait.Seconds(),
	}
	if want.Trajectory == "" {
		want.Trajectory = "berth-" + rand.Text()[:8]
	}
	lease, err = c.Acquire(ctx, want)
	return lease, ours, err
}

// releaseWithin bounds how long the end of a command waits for its release.
const releaseWithin = 30 * time.Second

// settle gives the lease back, or says how long it is kept. What goes wrong
// with that is told and nothing more: the command's own end counts, and a
// lease that nobody renews ends by itself.
func (a *app) settle(ctx context.Context, c *client.Client, lease poolapi.Lease, keep bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	if keep {
		if renewed, err := c.Renew(ctx, lease.ID, 0); err == nil {
			lease = renewed
		}
		fmt.Fprintf(a.err, "berth: kept %s until %s; \"berth release %s\" ends it\n",
			lease.ID, lease.ExpiresAt.Local().Format(time.DateTime), lease.ID)
		return
	}
	if _, err := c.Release(ctx, lease.ID); err != nil {
		fmt.Fprintf(a.err, "berth: lease %s was not released as it should: %v\n", lease.ID, err)
	}
}

// berthed has do run while a slot is held for it, and gives back what was leased
// for that. The context of do ends when the lease does.
func (a *app) berthed(ctx context.Context, b berthing, do func(context.Context, *client.Client, poolapi.Lease) error) error {
	if err := b.check(); err != nil {
		return err
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	defer c.Close()
	lease, ours, err := b.acquire(ctx, c)
	if err != nil {
		return err
	}
	if ours || b.keep {
		defer func() { a.settle(ctx, c, lease, b.keep) }()
	}
	held, done := c.Hold(ctx, lease)
	defer done()
	return do(held, c, lease)
}
