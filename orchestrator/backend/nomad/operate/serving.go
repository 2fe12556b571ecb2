package operate

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strings"

	"berth/jobs"
	"berth/orchestrator/backend"
	"berth/slots"
)

// Serving is the orchestrator's job that runs, as far as it tells.
type Serving struct {
	Template jobs.Template     // that the orchestrator makes its pool's job of
	Runs     string            // its image, or its program
	Count    int               // of orchestrators
	Volume   string            // where the configurations of function tools are; "": with the allocation
	More     map[string]string // of its environment, that neither the template nor the volume say

	ModifyIndex uint64 // for Deploy; 0: there is no such job, also none that was stopped
}

// Serving reads the orchestrator's job. There is none when it does not run. The
// error may be that its settings are none of a pool.
func (o *Operator) Serving(ctx context.Context) (s Serving, found bool, err error) {
	running, err := o.job(ctx, jobs.OrchestratorJob)
	if err != nil || running == nil {
		return Serving{}, false, err
	}
	s.ModifyIndex = value(running.JobModifyIndex)
	if value(running.Stop) {
		return s, false, nil
	}
	if len(running.TaskGroups) != 1 || value(running.TaskGroups[0].Name) != jobs.OrchestratorGroup || len(running.TaskGroups[0].Tasks) != 1 {
		return Serving{}, false, fmt.Errorf("read job %s: it is not an orchestrator's: want one group %s with one task", jobs.OrchestratorJob, jobs.OrchestratorGroup)
	}
	group := running.TaskGroups[0]
	task := group.Tasks[0]
	s.Count = value(group.Count)
	if s.Template, s.More, err = jobs.PoolOf(task.Env); err != nil {
		return Serving{}, false, fmt.Errorf("read job %s: %w", jobs.OrchestratorJob, err)
	}
	s.Volume = jobs.ConfigVolume(running)
	maps.DeleteFunc(s.More, jobs.OfVolume)
	s.Template.Namespace, s.Template.Region = value(running.Namespace), value(running.Region)
	image, _ := task.Config["image"].(string)
	command, _ := task.Config["command"].(string)
	s.Runs = cmp.Or(image, command)
	return s, true, nil
}

// Owns is the meta of a job of the template, which is complete, by which the
// orchestrator knows it for the one that it asks for. It is false when it asks
// for another one.
func (s Serving) Owns(t jobs.Template) (meta string, owns bool, err error) {
	own, here := specOf(s.Template), specOf(t)
	here.Isolation = own.Isolation
	if Least(t.Isolation) != Least(own.Isolation) || !own.Equal(here) {
		return "", false, nil
	}
	meta, err = own.Meta() // in its own words
	return meta, true, err
}

// Least is a requirement of isolation in one of the ways of writing it; what is
// none stays as it is.
func Least(isolation string) string {
	r, err := slots.ParseRequirement(cmp.Or(isolation, jobs.DefaultIsolation))
	if err != nil {
		return isolation
	}
	return r.String()
}

// specOf is what the orchestrator of the template asks for.
func specOf(t jobs.Template) backend.Spec {
	return backend.Spec{
		Template: strings.TrimPrefix(t.Job, jobs.PoolPrefix), Slots: t.Slots, Isolation: t.Isolation, Network: !t.NoNetwork, MaxTimeout: t.Longest,
		Limits: backend.Limits{MemoryBytes: t.SlotMemory, Pids: t.SlotPids, CPUs: t.SlotCPUs, DiskBytes: t.SlotDisk},
	}
}
