package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/jobs"
	"berth/orchestrator/backend/nomad/operate"
	"berth/slots"
)

// Exit statuses of "nomad plan", which are Nomad's own.
const (
	exitChanges  = 1
	exitNoAnswer = 255
)

// asRunning is said of plan and of deploy.
const asRunning = `
What no flag says is as in the job that runs: of the pool its image, its count,
its slots; of the orchestrator the pool that it registers, its own image, how
many there are and their other settings. The first orchestrator of a pool that
runs is given the pool as it is. Where nothing runs, and of the job that
fetches images, all is as "berth nomad render" prints it. So is what has neither
flag nor setting: changes of a job that were made by hand are lost.

An orchestrator registers the job of its pool when it needs a container and the
job has other slots or another isolation than its own settings say. So it is
told of those first, by a deploy of the orchestrator, then the pool is changed.
The environment of slots is for containers that are started from then on.`

// environmentLater is said when slots are given another environment.
const environmentLater = "containers that are started from now on have this environment, those that run keep theirs: `berth drain --recycle CONTAINER` replaces one when its leases have ended"

// operator asks the Nomad of the environment.
func operator(t jobs.Template) (*operate.Operator, error) {
	o, err := operate.Open(operate.Config{Namespace: t.Namespace, Region: t.Region})
	if err != nil {
		return nil, configf("%w: look at NOMAD_ADDR and the other variables of Nomad", err)
	}
	return o, nil
}

// onNomad is interruptible and says then what goes on, else what mends an error
// of Nomad's.
func onNomad(do command) func(*cobra.Command, []string) error {
	return interruptible(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		err := do(ctx, cmd, args)
		_, told := errors.AsType[*failure](err)
		_, ofServer := errors.AsType[*slots.Error](err)
		if told || ofServer {
			return err
		}
		kind, mend := operate.Explain(err)
		switch goesOn := errors.Is(err, operate.ErrGoesOn); {
		case goesOn && ctx.Err() != nil:
			return &failure{exitInterrupted, fmt.Errorf("interrupted: %w", err)}
		case !goesOn && mend != "":
			err = fmt.Errorf("%w; %s", err, mend)
		}
		switch kind {
		case operate.Unreachable:
			return &failure{exitUnreachable, err}
		case operate.Misconfigured:
			return &failure{exitConfig, err}
		case operate.Other:
		}
		return err
	})
}

// make makes the job, from that which runs as far as no flag says otherwise.
func (j *nomadJob) make(ctx context.Context, o *operate.Operator, name string, flags *pflag.FlagSet) (jobs.File, error) {
	err := j.check(name, flags)
	if err != nil {
		return jobs.File{}, err
	}
	switch name {
	case "sandboxd":
		if err = j.fromPool(ctx, o, flags); err == nil {
			err = j.knownAgain(ctx, o)
		}
	case "orchestrator":
		err = j.fromOrchestrator(ctx, o, flags)
	case "prepull":
		j.index, err = o.Index(ctx, jobs.PrepullJob)
	}
	if err != nil {
		return jobs.File{}, err
	}
	file, err := j.build(name, slices.Sorted(maps.Keys(nomadFiles())), flags)
	if err == nil && name == "orchestrator" && j.volume != "" {
		j.volumeOf, j.volumeHunt = o.WithVolume(ctx, j.volume, j.template)
	}
	return file, err
}

func (j *nomadJob) fromPool(ctx context.Context, o *operate.Operator, flags *pflag.FlagSet) error {
	running, found, err := o.Running(ctx, j.template.Job)
	j.index = running.ModifyIndex
	if err != nil || !found {
		return err
	}
	return j.adopt(running.Template, flags)
}

func (j *nomadJob) fromOrchestrator(ctx context.Context, o *operate.Operator, flags *pflag.FlagSet) error {
	running, found, err := o.Serving(ctx)
	if err != nil {
		return err
	}
	if !found { // it is the first of a pool that may be there
		err := j.fromPool(ctx, o, flags)
		j.index = running.ModifyIndex
		return err
	}
	j.index = running.ModifyIndex
	was := running.Template.Driver
	if !flags.Changed("orchestrators") && running.Count > 0 {
		j.orchestrators = running.Count
	}
	j.more = running.More
	if j.volumeWas = running.Volume; !flags.Changed("config-volume") {
		j.volume = running.Volume
	}
	if err := j.adopt(running.Template, flags); err != nil {
		return err
	}
	if !flags.Changed("orchestrator") && j.driver == string(was) {
		j.orchestrator = running.Runs
	}
	return nil
}

// adopt takes what runs and sets the flags that were given once more.
func (j *nomadJob) adopt(running jobs.Template, flags *pflag.FlagSet) error {
	given, lists := map[string]string{}, map[string][]string{}
	flags.Visit(func(f *pflag.Flag) {
		if list, ok := f.Value.(pflag.SliceValue); ok {
			lists[f.Name] = list.GetSlice()
			return
		}
		given[f.Name] = f.Value.String()
	})
	j.was = running
	j.template, j.driver = running, string(running.Driver)
	for name, text := range given {
		if err := flags.Set(name, text); err != nil {
			return fmt.Errorf("set --%s: %w", name, err)
		}
	}
	for name, list := range lists {
		if err := flags.Lookup(name).Value.(pflag.SliceValue).Replace(list); err != nil {
			return fmt.Errorf("set --%s: %w", name, err)
		}
	}
	if j.template.MemoryMB != running.MemoryMB && !flags.Changed("memory-max") {
		j.template.MemoryMaxMB = 0 // it follows the other
	}
	if flags.Changed("cpu") && !flags.Changed("cores") {
		j.template.Cores = 0 // else MHz do not count
	}
	return nil
}

func (a *app) nomadPlanCommand() *cobra.Command {
	var j nomadJob
	names := slices.Sorted(maps.Keys(nomadFiles()))
	cmd := &cobra.Command{
		Use: "plan " + strings.Join(names, "|"), Short: "Show what a deploy would change",
		Long: `Asks Nomad what registering the job would change, and changes nothing.
` + asRunning + `

The exit status is that of "nomad job plan": 0 when nothing would change, 1 when
something would, 255 when there is no plan to be had.`,
		Args: arguments(1, 1), ValidArgs: names,
	}
	j.flags(cmd.Flags())
	cmd.RunE = onNomad(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		p, err := a.plan(ctx, cmd, &j, args[0])
		if err == nil && p.Changes() {
			return &failure{status: exitChanges}
		}
		return err
	})
	plan := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := plan(cmd, args)
		told, ok := errors.AsType[*failure](err)
		if err == nil || ok && slices.Contains([]int{exitChanges, exitUsage, exitInterrupted}, told.status) {
			return err
		}
		return &failure{exitNoAnswer, err}
	}
	return cmd
}

func (a *app) plan(ctx context.Context, cmd *cobra.Command, j *nomadJob, name string) (operate.Plan, error) {
	o, err := operator(j.template)
	if err != nil {
		return operate.Plan{}, err
	}
	defer o.Close()
	file, err := j.make(ctx, o, name, cmd.Flags())
	if err != nil {
		return operate.Plan{}, err
	}
	if err := a.refusal(name, j, cmd.Flags()); err != nil {
		a.progress("a deploy would be refused: %v", err)
	}
	p, err := o.Plan(ctx, file.Job)
	if err != nil {
		return p, err
	}
	if a.asJSON(cmd, true) {
		return p, a.printJSON(p)
	}
	return p, p.Write(a.out)
}

const deployedByForce = "--force deploys it all the same"

func (a *app) nomadDeployCommand() *cobra.Command {
	var j nomadJob
	var options operate.Options
	var within time.Duration
	names := slices.Sorted(maps.Keys(nomadFiles()))
	cmd := &cobra.Command{
		Use: "deploy " + strings.Join(names, "|"), Short: "Register a job and follow it until it is healthy",
		Long: `Registers the job, unless somebody else does meanwhile, writes its variable of
secrets where there is none, and follows the deployment until it is healthy. One
that is not fails with Nomad's own words.
` + asRunning,
		Args: arguments(1, 1), ValidArgs: names,
	}
	j.flags(cmd.Flags())
	cmd.Flags().BoolVar(&options.Detach, "detach", false, "do not wait for the deployment")
	cmd.Flags().BoolVar(&options.Force, "force", false, "deploy also what the orchestrator is going to change back, what may end leases, and what leaves a pool without orchestrator or finds no room")
	cmd.Flags().DurationVar(&within, "timeout", 15*time.Minute, "wait so long; Nomad goes on then")
	cmd.RunE = onNomad(func(ctx context.Context, cmd *cobra.Command, args []string) error {
		if within <= 0 {
			return usagef("--timeout must be above 0")
		}
		ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("%s have passed", within))
		defer cancel()
		o, err := operator(j.template)
		if err != nil {
			return err
		}
		defer o.Close()
		file, err := j.make(ctx, o, args[0], cmd.Flags())
		if err != nil {
			return err
		}
		if err := a.refusal(args[0], &j, cmd.Flags()); err != nil {
			if !options.Force {
				return fmt.Errorf("%w; %s", err, deployedByForce)
			}
			a.progress("%v", err)
		}
		if asks := j.template.KillTimeout(); args[0] != "prepull" && asks > jobs.ClientsAllow {
			a.progress("a container that is stopped is to have %v: clients kill it after %v, unless their max_kill_timeout allows that", asks, jobs.ClientsAllow)
		}
		if j.index > 0 && slices.ContainsFunc(j.serve, func(s string) bool { return strings.HasPrefix(s, "env=") }) {
			a.progress(environmentLater)
		}
		d, err := o.Deploy(ctx, file.Job, j.index, options, a.progress)
		switch {
		case errors.Is(err, operate.ErrNoRoom):
			err = fmt.Errorf("%w; %s", err, deployedByForce)
		case errors.Is(err, operate.ErrGoesOn):
			err = fmt.Errorf("%w; \"berth nomad status --job %s\" says how far it is", err, d.Job)
		}
		if a.asJSON(cmd, true) && d.ModifyIndex > 0 {
			return errors.Join(err, a.printJSON(d))
		}
		if err == nil {
			fmt.Fprintf(a.out, "job %s, version %d: %s\n", d.Job, d.Version, d.Status)
		}
		return err
	})
	return cmd
}

// progress tells of a step on the standard error: what is printed on the other
// is the result.
func (a *app) progress(format string, args ...any) {
	fmt.Fprintf(a.err, "%s  %s\n", time.Now().Format(time.TimeOnly), plainText(fmt.Sprintf(format, args...)))
}
