package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/jobs"
	"berth/orchestrator/backend/nomad/operate"
)

// nomadFiles are what can be rendered, but the policy.
func nomadFiles() map[string]func(jobs.Template) (jobs.File, error) {
	return map[string]func(jobs.Template) (jobs.File, error){
		"sandboxd": jobs.SandboxdFile, "orchestrator": jobs.OrchestratorFile, "prepull": jobs.PrepullFile,
	}
}

func (a *app) nomadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "nomad", Short: "Run pools on Nomad", Args: arguments(0, 0),
		Long: `Works with the jobs of pools on the Nomad that NOMAD_ADDR, NOMAD_TOKEN,
NOMAD_NAMESPACE, NOMAD_REGION, NOMAD_CACERT and so on name.`,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		fmt.Fprint(a.err, cmd.UsageString())
		return &failure{status: exitUsage}
	}
	cmd.AddCommand(a.nomadRenderCommand(), a.nomadPlanCommand(), a.nomadDeployCommand(), a.nomadStatusCommand(), a.nomadDrainCommand(), a.nomadRotateCommand())
	return cmd
}

func (a *app) nomadRenderCommand() *cobra.Command {
	var j nomadJob
	names := append(slices.Sorted(maps.Keys(nomadFiles())), "policy")
	cmd := &cobra.Command{
		Use: "render " + strings.Join(names, "|"), Short: "Print a job specification or the ACL policy",
		Long: `Prints, as HCL with comments, the job of a pool, that of the orchestrator, one
that has every machine fetch the image, or the orchestrator's ACL policy. With
--json jobs are what "nomad job run -json" takes.

The orchestrator registers the job of its pool. Its own job takes the flags of
both: what describes the pool is handed to it as its settings.

Of what runs it knows nothing: "berth nomad deploy" changes that, and keeps what
no flag says.`,
		Args: arguments(1, 1), ValidArgs: names,
	}
	j.flags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if args[0] == "policy" {
			return a.printPolicy(&j, cmd.Flags())
		}
		file, err := j.build(args[0], names, cmd.Flags())
		if err != nil {
			return err
		}
		if a.asJSON(cmd, false) {
			return a.printJSON(map[string]any{"Job": file.Job})
		}
		text, err := file.HCL()
		if err != nil {
			return err
		}
		fmt.Fprint(a.out, string(text))
		return nil
	}
	return cmd
}

// printPolicy prints the policy of the namespace that jobs are deployed to.
func (a *app) printPolicy(j *nomadJob, flags *pflag.FlagSet) error {
	if err := j.check("policy", flags); err != nil {
		return err
	}
	text, err := jobs.PolicyFor(cmp.Or(j.template.Namespace, a.getenv("NOMAD_NAMESPACE"), "default"))
	if err != nil {
		return usagef("%v", err)
	}
	fmt.Fprint(a.out, text)
	return nil
}

// nomadJob is one of the jobs and how it is to be made.
type nomadJob struct {
	template      jobs.Template
	driver        string
	orchestrator  string // what runs in the orchestrator's job; "": the default
	orchestrators int
	volume        string            // host volume of the configurations of function tools; "": they go with the allocation
	serve         []string          // settings of the orchestrator, NAME=VALUE
	more          map[string]string // of the orchestrator's environment, that is to stay

	volumeWas  string   // that of what runs
	volumeOf   []string // the machines that have it
	volumeHunt error    // why that cannot be told

	index    uint64          // of the job that runs, at which this one replaces it
	was      jobs.Template   // what runs
	disowned bool            // the orchestrator that registered what runs does not know this
	own      operate.Serving // the orchestrator's job, of which a pool's is to know
	owned    bool            // there is one
	ownError error           // why that cannot be told
}

// build makes the job of the name, which is one of names.
func (j *nomadJob) build(name string, names []string, flags *pflag.FlagSet) (jobs.File, error) {
	build, known := nomadFiles()[name]
	if !known {
		return jobs.File{}, usagef("unknown job %q: want one of %s", name, strings.Join(names, " "))
	}
	if err := j.check(name, flags); err != nil {
		return jobs.File{}, err
	}
	if err := j.checkDriver(name, flags); err != nil {
		return jobs.File{}, err
	}
	j.template.Driver = jobs.Driver(j.driver)
	complete, err := j.template.Complete()
	if err != nil {
		return jobs.File{}, usagef("%v", err)
	}
	j.template = complete
	if name == "orchestrator" {
		return j.orchestratorFile(flags)
	}
	file, err := build(j.template)
	if err != nil {
		return jobs.File{}, usagef("%v", err)
	}
	return file, nil
}

// appliesTo are what the flag of a job's template says something of.
func appliesTo(flag string) []string {
	switch flag {
	case "namespace":
		return []string{"sandboxd", "orchestrator", "prepull", "policy"}
	case "node-pool", "datacenter", "region", "image":
		return []string{"sandboxd", "orchestrator", "prepull"}
	case "orchestrator", "orchestrators", "config-volume", "serve":
		return []string{"orchestrator"}
	default:
		return []string{"sandboxd", "orchestrator"}
	}
}

// refuser keeps the first of the flags that were given and cannot be.
type refuser struct {
	given *pflag.FlagSet
	err   error
}

func (r *refuser) refuse(flag, why string) {
	if r.err == nil && r.given.Changed(flag) {
		r.err = usagef("--%s: %s", flag, why)
	}
}

// check refuses flags that say nothing of what is named, and those that make no
// sense whatever runs.
func (j *nomadJob) check(name string, given *pflag.FlagSet) error {
	own, r := pflag.NewFlagSet("", pflag.ContinueOnError), refuser{given: given}
	new(nomadJob).flags(own)
	own.VisitAll(func(f *pflag.Flag) {
		if to := appliesTo(f.Name); !slices.Contains(to, name) {
			r.refuse(f.Name, fmt.Sprintf("%s has nothing to do with it, but %s", name, strings.Join(to, " and ")))
		}
	})
	if !slices.Contains(jobs.Drivers(), jobs.Driver(j.driver)) {
		r.refuse("driver", fmt.Sprintf("%q: want docker, exec or raw_exec", j.driver))
	}
	if j.template.Cores > 0 && given.Changed("cores") {
		r.refuse("cpu", "--cores say already what CPUs there are")
	}
	if j.orchestrators < 1 {
		r.refuse("orchestrators", "want 1 or more")
	}
	return r.err
}

// checkDriver refuses flags of which the driver takes no notice, which may be
// that of the job that runs. Images are fetched with docker only.
func (j *nomadJob) checkDriver(name string, given *pflag.FlagSet) error {
	r := refuser{given: given}
	switch {
	case name == "prepull":
	case j.driver == string(jobs.Docker):
		r.refuse("sandboxd", "it is of the other drivers; --image is of docker")
	default:
		r.refuse("image", "it is of the docker driver; --sandboxd is of the others")
		r.refuse("runtime", "it is of the docker driver")
	}
	return r.err
}

// flags makes the flags of a job's template.
func (j *nomadJob) flags(flags *pflag.FlagSet) {
	t := &j.template
	flags.StringVar(&t.Job, "job", "berth-default", "name of the pool's job: berth- and the name of its template, which the orchestrator's is then")
	flags.StringVar(&j.driver, "driver", string(jobs.Docker), "docker, exec or raw_exec: of the pool's job and of the orchestrator's")
	flags.StringVar(&t.Image, "image", "", "image of the pool's containers with the docker driver")
	flags.StringVar(&t.Runtime, "runtime", "", "runtime of the docker driver, as runsc; only machines that have it are taken")
	flags.StringVar(&t.Command, "sandboxd", "", "program of the other drivers, on the machines' disks")
	flags.StringVar(&j.orchestrator, "orchestrator", "", "image of the orchestrator's own job, or its program with the other drivers")
	flags.IntVar(&j.orchestrators, "orchestrators", 1, "how many orchestrators serve the pool side by side")
	flags.StringVar(&j.volume, "config-volume", "", "host `volume` of Nomad, on one machine, that keeps the configurations of function tools: all orchestrators run there and share them; \"\": each allocation has its own")
	flags.StringArrayVar(&j.serve, "serve", nil, "`NAME=VALUE` of a flag of \"orchestrator serve\", as max-containers=8, for the orchestrator's job; may be repeated; NAME= takes it back")
	flags.StringVar(&t.Namespace, "namespace", "", "namespace of the job, which is that of the orchestrator and of its pool")
	flags.StringVar(&t.Region, "region", "", "region of the job; without it NOMAD_REGION, else the agent's")
	flags.StringVar(&t.NodePool, "node-pool", "", "node pool of the job; the orchestrator and its pool are in the same")
	flags.StringSliceVar(&t.Datacenters, "datacenter", nil, "datacenters of the job, those of the orchestrator and of its pool alike; without it all")
	flags.IntVar(&t.Count, "count", 2, "containers")
	flags.IntVar(&t.Slots, "slots", 8, "slots of each container")
	flags.StringVar(&t.Isolation, "isolation-require", "", "least isolation to accept")
	flags.IntVar(&t.Cores, "cores", 0, "whole CPUs of each container; 0: --cpu counts")
	flags.IntVar(&t.CPU, "cpu", 0, "MHz of each container")
	flags.IntVar(&t.MemoryMB, "memory", 0, "MB of memory of each container")
	flags.IntVar(&t.MemoryMaxMB, "memory-max", 0, "MB that it may use while the machine has them to spare; 0: no more than --memory")
	flags.IntVar(&t.DiskMB, "disk", 0, "MB of disk of each container")
}
