package operate

import (
	"cmp"
	"context"
	"fmt"

	"berth/jobs"
)

// Serving is the orchestrator's job that runs, as far as it tells.
type Serving struct {
	Template jobs.Template     // that the orchestrator makes its pool's job of
	Runs     string            // its image, or its program
	Count    int               // of orchestrators
	More     map[string]string // of its environment, that the template does not say
}

// Serving reads the orchestrator's job. There is none when it does not run. The
// error may be that its settings are none of a pool.
func (o *Operator) Serving(ctx context.Context) (s Serving, found bool, err error) {
	running, err := o.job(ctx, jobs.OrchestratorJob)
	if err != nil || running == nil || running.Stop != nil && *running.Stop {
		return Serving{}, false, err
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
	s.Template.Namespace, s.Template.Region = value(running.Namespace), value(running.Region)
	image, _ := task.Config["image"].(string)
	command, _ := task.Config["command"].(string)
	s.Runs = cmp.Or(image, command)
	return s, true, nil
}
