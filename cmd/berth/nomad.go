package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/jobs"
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
--json jobs are what "nomad job run -json" takes.`,
		Args: arguments(1, 1), ValidArgs: names,
	}
	j.flags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if args[0] == "policy" {
			fmt.Fprint(a.out, jobs.Policy)
			return nil
		}
		file, err := j.build(args[0], names)
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

// nomadJob is one of the jobs and how it is to be made.
type nomadJob struct {
	template     jobs.Template
	driver       string
	orchestrator string // what runs in the orchestrator's job; "": the default
}

// build makes the job of the name, which is one of names.
func (j *nomadJob) build(name string, names []string) (jobs.File, error) {
	build, known := nomadFiles()[name]
	if !known {
		return jobs.File{}, usagef("unknown job %q: want one of %s", name, strings.Join(names, " "))
	}
	j.template.Driver = jobs.Driver(j.driver)
	file, err := build(j.template)
	if err != nil {
		return jobs.File{}, usagef("%v", err)
	}
	if name == "orchestrator" && j.orchestrator != "" {
		runs := "image"
		if j.template.Driver != jobs.Docker {
			runs = "command"
		}
		file.Job.TaskGroups[0].Tasks[0].Config[runs] = j.orchestrator
	}
	return file, nil
}

// flags makes the flags of a job's template.
func (j *nomadJob) flags(flags *pflag.FlagSet) {
	t := &j.template
	flags.StringVar(&t.Job, "job", "berth-default", "name of the pool's job: berth- and the name of its template")
	flags.StringVar(&j.driver, "driver", string(jobs.Docker), "docker, exec or raw_exec")
	flags.StringVar(&t.Image, "image", "", "image of the docker driver")
	flags.StringVar(&t.Runtime, "runtime", "", "runtime of the docker driver, as runsc")
	flags.StringVar(&t.Command, "sandboxd", "", "program of the other drivers, on the machines' disks")
	flags.StringVar(&j.orchestrator, "orchestrator", "", "image of the orchestrator's own job, or its program with the other drivers")
	flags.StringVar(&t.Namespace, "namespace", "", "namespace of the job")
	flags.StringVar(&t.NodePool, "node-pool", "", "node pool of the job")
	flags.StringSliceVar(&t.Datacenters, "datacenter", nil, "datacenters of the job; without it all")
	flags.IntVar(&t.Count, "count", 2, "containers")
	flags.IntVar(&t.Slots, "slots", 8, "slots of each container")
	flags.StringVar(&t.Isolation, "isolation-require", "", "least isolation to accept")
	flags.IntVar(&t.Cores, "cores", 0, "whole CPUs of each container; 0: --cpu counts")
	flags.IntVar(&t.CPU, "cpu", 0, "MHz of each container")
	flags.IntVar(&t.MemoryMB, "memory", 0, "MB of memory of each container")
	flags.IntVar(&t.MemoryMaxMB, "memory-max", 0, "MB that it may use while the machine has them to spare; 0: no more than --memory")
	flags.IntVar(&t.DiskMB, "disk", 0, "MB of disk of each container")
}
