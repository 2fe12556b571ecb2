package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"

	"berth/jobs"
)

// ErrNoRoom is that the next version of a job that runs finds no room. Nomad
// would try for ever: the clock of a deployment begins with the first that is
// placed, and while it is under way nothing of the job is scaled.
var ErrNoRoom = errors.New("there is no room for its next version, which takes that of one more while it is tried")

// roomFor is the error that the job would be refused, in Nomad's words, or that
// it runs and its next version finds no room; by force that is told alone.
func (o *Operator) roomFor(ctx context.Context, job *api.Job, force bool, progress Progress) error {
	p, err := o.Plan(ctx, job)
	// One that is the same as the one that runs begins no deployment.
	if err != nil || len(p.Unplaced) == 0 || p.Change == "None" || value(job.Type) != api.JobTypeService {
		return err
	}
	running, err := o.job(ctx, *job.ID)
	if err != nil || running == nil || value(running.Stop) {
		return err
	}
	err = fmt.Errorf("job %s runs, and %w: %s. Make room, or ask for what a machine has", *job.ID, ErrNoRoom, strings.Join(p.Unplaced, "; "))
	if !force {
		return err
	}
	progress("%v", err)
	return nil
}

// endedBy is the sentence with the command that ends the deployment, which is
// its one %s; "": there is no deployment.
func (o *Operator) endedBy(sentence, deployment string) string {
	if deployment == "" {
		return ""
	}
	return fmt.Sprintf(sentence, "`"+jobs.EndDeployment(o.namespace, deployment)+"`")
}
