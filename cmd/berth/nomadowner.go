package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"berth/jobs"
	"berth/orchestrator/backend/nomad/operate"
)

// refusal is why the job is deployed by force only.
func (a *app) refusal(name string, j *nomadJob, given *pflag.FlagSet) error {
	switch name {
	case "sandboxd":
	case "orchestrator":
		return cmp.Or(j.abandoned(), a.forgotten(j))
	default:
		return nil
	}
	lowered, back := j.lowered(), a.takenBack(j, given)
	if lowered != nil && back != nil {
		return fmt.Errorf("%w; and %w", lowered, back)
	}
	return cmp.Or(lowered, back)
}

// abandoned is the error that the pool of the orchestrator that runs would have
// none any more: there is one such job in a namespace.
func (j *nomadJob) abandoned() error {
	if j.was.Job == "" || j.template.Job == j.was.Job {
		return nil
	}
	return fmt.Errorf("the orchestrator serves job %s, which would run on with nobody to serve it: another pool has a namespace of its own, by --namespace, "+
		"or is one more of the \"templates:\" in the file that the orchestrator's --config names", j.was.Job)
}

// forgotten is the error that the orchestrators would not know the
// configurations of function tools that they know now, or one not those of
// another, or that there is no place for them.
func (a *app) forgotten(j *nomadJob) error {
	if j.volumeHunt != nil {
		a.progress("which machines have the volume %s cannot be told: %v", j.volume, j.volumeHunt)
	}
	switch machines := strings.Join(j.volumeOf, ", "); {
	case j.volumeWas != "" && j.volume != j.volumeWas:
		return fmt.Errorf("the configurations of function tools are on volume %s, and would be left there: move the files config.db* to where they are to be", j.volumeWas)
	case j.volume == "" || j.volumeHunt != nil || len(j.volumeOf) == 1:
		return nil
	case machines == "":
		return fmt.Errorf("no machine of these datacenters and this node pool has a host volume %s: make it, by \"host_volume\" in a client's configuration, or by `nomad volume create`", j.volume)
	default:
		return fmt.Errorf("%s have a host volume %s each: an orchestrator on one of them does not know what those of the others were told. "+
			"Have one machine have it, or --node-pool and --datacenter leave one of them", machines, j.volume)
	}
}

// lowered is the error that the pool would have fewer containers than run. The
// orchestrator takes away only those that nobody leases.
func (j *nomadJob) lowered() error {
	if j.template.Count >= j.was.Count {
		return nil
	}
	return fmt.Errorf("job %s runs %d containers, and %d would end their leases: the orchestrator stops those that have none, down to its --containers, "+
		"which `berth nomad deploy orchestrator --count %d` sets", j.template.Job, j.was.Count, j.template.Count, j.template.Count)
}

// takenBack is the error that the orchestrator is going to register the pool's
// job with other slots or another isolation than it is deployed with. What else
// of its settings differs is told: it counts for jobs that it registers anew.
func (a *app) takenBack(j *nomadJob, given *pflag.FlagSet) error {
	if j.ownError != nil {
		a.progress("what the orchestrator registers cannot be told: %v", j.ownError)
	}
	if !j.owned || j.own.Template.Job != j.template.Job {
		if j.disowned {
			return fmt.Errorf("job %s was registered by an orchestrator that is no job of this Nomad: give it these slots and this isolation first, or it registers its own again", j.template.Job)
		}
		return nil
	}
	differ := j.differs(j.own.Template, given)
	var words []string
	for _, name := range []string{"slots", "isolation-require"} {
		if d, ok := differ[name]; ok {
			words = append(words, fmt.Sprintf("--%s %s, not %s", name, cmp.Or(d.own, `""`), cmp.Or(d.here, `""`)))
		}
	}
	if len(words) > 0 {
		return fmt.Errorf("the orchestrator registers job %s with %s: run `berth nomad deploy orchestrator%s` first", j.template.Job, strings.Join(words, " and "), differ.flags())
	}
	if len(differ) > 0 {
		a.progress("the orchestrator has other settings, for jobs that it registers: `berth nomad deploy orchestrator%s` changes them", differ.flags())
	}
	return nil
}

// knownAgain has the pool's job say that it is the one that the orchestrator
// asks for, so that nobody registers it once more while it is rolled out. Where
// the orchestrator asks for another, it has to find that.
func (j *nomadJob) knownAgain(ctx context.Context, o *operate.Operator) error {
	j.own, j.owned, j.ownError = o.Serving(ctx)
	complete, err := j.template.Complete()
	if err != nil {
		return usagef("%v", err)
	}
	was := j.template.Meta
	j.template.Meta = maps.Clone(was)
	if j.owned && was[jobs.MetaEnv] != "" { // else it has registered none yet
		text, owns, err := j.own.Owns(complete)
		if err != nil {
			return err
		}
		if owns {
			j.template.Meta[jobs.MetaSpec] = text
			return nil
		}
	}
	if complete.Slots != j.was.Slots || complete.Isolation != j.was.Isolation {
		_, j.disowned = was[jobs.MetaSpec]
		delete(j.template.Meta, jobs.MetaSpec)
	}
	return nil
}

// difference is what a flag is here and in the orchestrator's own settings.
type difference struct{ here, own string }

// differences are by flag.
type differences map[string]difference

// flags are those that take what is here over to the orchestrator.
func (d differences) flags() string {
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(d)) {
		value := d[name].here
		if value == "" {
			value = `""`
		}
		fmt.Fprintf(&all, " --%s %s", name, value)
	}
	return all.String()
}

// differs holds the template, which is complete, against the orchestrator's
// own. How many containers there are changes with what they have to do: that
// counts only when it was given.
func (j *nomadJob) differs(own jobs.Template, given *pflag.FlagSet) differences {
	of := func(t jobs.Template) map[string]string {
		one, flags, values := nomadJob{}, pflag.NewFlagSet("", pflag.ContinueOnError), map[string]string{}
		one.flags(flags)
		one.template, one.driver = t, string(t.Driver)
		flags.VisitAll(func(f *pflag.Flag) {
			if list, ok := f.Value.(pflag.SliceValue); ok {
				values[f.Name] = strings.Join(list.GetSlice(), ",")
				return
			}
			values[f.Name] = f.Value.String()
		})
		return values
	}
	here, there, all := of(j.template), of(own), differences{}
	for name, value := range here {
		switch name {
		case "namespace", "region", "orchestrator", "orchestrators", "config-volume", "serve":
			continue
		case "count":
			if !given.Changed(name) {
				continue
			}
		case "node-pool":
			if cmp.Or(value, "default") == cmp.Or(there[name], "default") {
				continue
			}
		case "isolation-require":
			if operate.Least(value) == operate.Least(there[name]) {
				continue
			}
		}
		if value != there[name] {
			all[name] = difference{value, there[name]}
		}
	}
	return all
}
