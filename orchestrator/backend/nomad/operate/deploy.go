package operate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"berth/jobs"
	"berth/orchestrator/config"
)

// Deployed is how a deployment ended.
type Deployed struct {
	Job         string   `json:"job"`
	Version     uint64   `json:"version"`
	ModifyIndex uint64   `json:"job_modify_index"`
	Variable    string   `json:"variable,omitempty"`   // path of the one that was made, or given items, because there were none
	Evaluation  string   `json:"evaluation,omitempty"` // ID
	Deployment  string   `json:"deployment,omitempty"` // ID; "": Nomad made none, as nothing was to be replaced
	Status      string   `json:"status"`               // registered, successful, complete, failed, cancelled
	Words       string   `json:"words,omitempty"`      // Nomad's, about the status
	Warnings    string   `json:"warnings,omitempty"`
	Unplaced    []string `json:"unplaced,omitempty"`
	Failures    []string `json:"failures,omitempty"` // what Nomad says of each allocation that failed
}

// ErrChanged is that somebody else has registered the job meanwhile.
var ErrChanged = errors.New("somebody has changed the job meanwhile: look at the plan again")

// Options are how a job is deployed.
type Options struct {
	Detach bool // do not follow what comes of it
	Force  bool // also when there is no room for what goes first
}

// Deploy registers the job if it still has the index that it had when it was
// read to make this one of, 0: if there is none. It asks Nomad's plan first:
// the error is an ErrNoRoom when the job runs and there is no room for its next
// version. It makes its variable of secrets when there is none, and follows it
// until it is healthy. What has failed is an error with Nomad's own words, and
// in the answer all the same.
func (o *Operator) Deploy(ctx context.Context, job *api.Job, index uint64, options Options, progress Progress) (Deployed, error) {
	d := Deployed{Job: *job.ID, Status: "registered"}
	valid, _, err := o.client.Jobs().Validate(job, new(api.WriteOptions).WithContext(ctx))
	if err != nil {
		return d, fmt.Errorf("validate job %s: %w", d.Job, err)
	}
	if valid.Error != "" {
		return d, fmt.Errorf("validate job %s: %s", d.Job, strings.Join(strings.Fields(valid.Error), " "))
	}
	if err := o.roomFor(ctx, job, options.Force, progress); err != nil {
		return d, err
	}
	if d.Variable, err = o.secret(ctx, job); err != nil {
		return d, err
	}
	if d.Variable != "" {
		progress("made secrets in variable %s", d.Variable)
	}
	answer, _, err := o.client.Jobs().EnforceRegister(job, index, new(api.WriteOptions).WithContext(ctx))
	if err != nil {
		if strings.Contains(err.Error(), "Enforcing job modify index") {
			err = fmt.Errorf("%w (%w)", ErrChanged, err)
		}
		return d, fmt.Errorf("register job %s: %w", d.Job, err)
	}
	d.ModifyIndex, d.Evaluation, d.Warnings = answer.JobModifyIndex, answer.EvalID, strings.TrimSpace(answer.Warnings)
	if registered, err := o.job(ctx, d.Job); err == nil && registered != nil {
		d.Version, job = value(registered.Version), registered
	}
	progress("registered job %s, version %d", d.Job, d.Version)
	if d.Warnings != "" {
		progress("warnings: %s", d.Warnings)
	}
	if options.Detach || d.Evaluation == "" {
		return d, nil
	}
	err = o.follow(ctx, &d, job, progress)
	return d, err
}

// secrets are the items of the job's variable that its templates cannot do
// without, and the keys of configurations where they read those.
func secrets(job *api.Job) map[string]string {
	path, items := jobs.VariablePath(*job.ID), map[string]string{}
	for _, group := range job.TaskGroups {
		for _, task := range group.Tasks {
			for _, t := range task.Templates {
				text := value(t.EmbeddedTmpl)
				if strings.Contains(text, path) {
					items[jobs.Secret] = rand.Text() + rand.Text()
				}
				if strings.Contains(text, "."+jobs.ConfigKeys+".") {
					items[jobs.ConfigKeys] = config.NewKey()
				}
			}
		}
	}
	return items
}

// secret makes the variable that the job's templates read, if there is none,
// and the items that it lacks.
func (o *Operator) secret(ctx context.Context, job *api.Job) (made string, err error) {
	path, lacks := jobs.VariablePath(*job.ID), secrets(job)
	if len(lacks) == 0 {
		return "", nil
	}
	for {
		known, _, err := o.client.Variables().Peek(path, new(api.QueryOptions).WithContext(ctx))
		if err != nil {
			return "", fmt.Errorf("read variable %s: %w", path, err)
		}
		v := &api.Variable{Path: path, Items: map[string]string{jobs.EnvItem: ""}}
		if known != nil {
			v = known
			maps.DeleteFunc(lacks, func(name, _ string) bool { return known.Items[name] != "" })
		}
		if len(lacks) == 0 {
			return "", nil
		}
		maps.Copy(v.Items, lacks)
		_, _, err = o.client.Variables().CheckedUpdate(v, new(api.WriteOptions).WithContext(ctx))
		if _, lost := errors.AsType[api.ErrCASConflict](err); lost {
			continue // somebody has made it meanwhile
		}
		if err != nil {
			return "", fmt.Errorf("write variable %s: %w", path, err)
		}
		return path, nil
	}
}

// look is how long one blocking query waits.
const look = 10 * time.Second

// follow follows what the evaluation of the job leads to.
func (o *Operator) follow(ctx context.Context, d *Deployed, job *api.Job, progress Progress) error {
	said := ""
	say := func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); text != said {
			said = text
			progress("%s", text)
		}
	}
	if err := o.evaluated(ctx, d, say); err != nil {
		return err
	}
	if d.Deployment != "" {
		return o.deployed(ctx, d, job, say)
	}
	if kind := value(job.Type); kind == api.JobTypeSysbatch || kind == api.JobTypeBatch {
		return o.completed(ctx, d, say)
	}
	d.Status = api.DeploymentStatusSuccessful
	if len(d.Unplaced) > 0 {
		d.Status = api.DeploymentStatusFailed
		return fmt.Errorf("deploy job %s: %s", d.Job, strings.Join(d.Unplaced, "; "))
	}
	return nil
}

// evaluated waits until Nomad has decided what to do.
func (o *Operator) evaluated(ctx context.Context, d *Deployed, say Progress) error {
	q := &api.QueryOptions{WaitTime: look}
	for {
		e, meta, err := o.client.Evaluations().Info(d.Evaluation, q.WithContext(ctx))
		if err != nil {
			return o.lost(ctx, d, err)
		}
		switch e.Status {
		case api.EvalStatusComplete, api.EvalStatusBlocked:
			d.Deployment, d.Unplaced = e.DeploymentID, unplaced(e.FailedTGAllocs)
			for _, why := range d.Unplaced {
				say("no room yet: %s%s", why, o.endedBy("; until there is, nothing else of the job is scaled, which %s ends", d.Deployment))
			}
			return nil
		case api.EvalStatusFailed, api.EvalStatusCancelled:
			d.Status, d.Words = e.Status, e.StatusDescription
			return fmt.Errorf("deploy job %s: evaluation %s: %s", d.Job, e.Status, e.StatusDescription)
		}
		q.WaitIndex = meta.LastIndex
	}
}

// deployed waits until the deployment has ended.
func (o *Operator) deployed(ctx context.Context, d *Deployed, job *api.Job, say Progress) error {
	q := &api.QueryOptions{WaitTime: look}
	unhealthy := 0
	for {
		v, meta, err := o.client.Deployments().Info(d.Deployment, q.WithContext(ctx))
		if err != nil {
			return o.lost(ctx, d, err)
		}
		d.Status, d.Words = v.Status, v.StatusDescription
		before, now := unhealthy, 0
		for name, g := range v.TaskGroups {
			now += g.UnhealthyAllocs
			canaries := ""
			if g.DesiredCanaries > 0 && !g.Promoted {
				canaries = fmt.Sprintf(", %d of %d canaries placed", len(g.PlacedCanaries), g.DesiredCanaries)
			}
			say("deployment %.8s %s: %s: %d of %d healthy, %d unhealthy%s", d.Deployment, v.Status, name, g.HealthyAllocs, g.DesiredTotal, g.UnhealthyAllocs, canaries)
		}
		if unhealthy = now; unhealthy > before { // Nomad tries others, maybe for long
			for _, words := range o.failures(ctx, d) {
				say("%s", words)
			}
			say("Nomad goes on trying%s", o.endedBy("; %s ends that and takes the version before", d.Deployment))
		}
		switch v.Status {
		case api.DeploymentStatusSuccessful:
			d.Unplaced = nil
			return nil
		case api.DeploymentStatusFailed, api.DeploymentStatusCancelled:
			next, err := o.raised(ctx, d, job)
			if err != nil {
				return o.lost(ctx, d, err)
			}
			if v.Status == api.DeploymentStatusCancelled && next != nil { // a failed one may have been reverted
				say("the orchestrator has scaled it meanwhile, as version %d", next.JobVersion)
				d.Version, d.Deployment, unhealthy, q.WaitIndex = next.JobVersion, next.ID, 0, 0
				continue
			}
			d.Failures = o.failures(ctx, d)
			return d.failed(fmt.Sprintf("deployment %.8s %s: %s", d.Deployment, v.Status, v.StatusDescription))
		}
		q.WaitIndex = meta.LastIndex
	}
}

// raised is the deployment of a later version that is the job but for its count
// and its meta: an orchestrator registers such a one when it needs more
// containers while the job is rolled out. nil: there is none.
func (o *Operator) raised(ctx context.Context, d *Deployed, job *api.Job) (*api.Deployment, error) {
	next, _, err := o.client.Jobs().LatestDeployment(d.Job, new(api.QueryOptions).WithContext(ctx))
	if err != nil || next == nil || next.JobVersion <= d.Version {
		return nil, err
	}
	now, err := o.job(ctx, d.Job)
	if err != nil || now == nil || value(now.Version) != next.JobVersion {
		return nil, err
	}
	ours, err := jobs.TemplateOf(job)
	theirs, other := jobs.TemplateOf(now)
	if err != nil || other != nil { // it is no pool's
		return nil, nil //nolint:nilnil // as the comment says
	}
	ours.Count, ours.Meta = theirs.Count, theirs.Meta
	if !reflect.DeepEqual(ours, theirs) {
		return nil, nil //nolint:nilnil // as the comment says
	}
	return next, nil
}

// completed waits until all allocations of a job that ends have ended.
func (o *Operator) completed(ctx context.Context, d *Deployed, say Progress) error {
	q := &api.QueryOptions{WaitTime: look}
	for {
		all, meta, err := o.client.Jobs().Allocations(d.Job, false, q.WithContext(ctx))
		if err != nil {
			return o.lost(ctx, d, err)
		}
		complete, failed, of := 0, 0, 0
		for _, a := range all {
			if a.JobVersion != d.Version {
				continue
			}
			of++
			switch a.ClientStatus {
			case api.AllocClientStatusComplete:
				complete++
			case api.AllocClientStatusFailed, api.AllocClientStatusLost:
				failed++
			}
		}
		say("%d of %d complete, %d failed", complete, of, failed)
		switch {
		case failed > 0:
			d.Status, d.Failures = api.DeploymentStatusFailed, o.failures(ctx, d)
			return d.failed(fmt.Sprintf("%d of %d allocations failed", failed, of))
		case of == 0: // it was decided
			d.Status = api.DeploymentStatusFailed
			if len(d.Unplaced) > 0 {
				return d.failed("nothing was placed")
			}
			return d.failed("no machine that takes work is in its datacenters and its node pool and has what it asks for")
		case complete == of:
			d.Status = "complete"
			return nil
		}
		q.WaitIndex = meta.LastIndex
	}
}

// failed is the error of a deployment that failed.
func (d *Deployed) failed(what string) error {
	return fmt.Errorf("deploy job %s: %s", d.Job, strings.Join(append(append([]string{what}, d.Failures...), d.Unplaced...), "; "))
}

// lost is why it is not followed to its end.
func (o *Operator) lost(ctx context.Context, d *Deployed, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		// Nomad goes on; what it knows so far may tell why it takes so long.
		look, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterwards)
		defer cancel()
		d.Failures = o.failures(look, d)
		return fmt.Errorf("%w: %w: %w%s", d.failed("not healthy yet"), cause, ErrGoesOn, o.endedBy(", unless %s ends it", d.Deployment))
	}
	return fmt.Errorf("follow job %s: %w: %w%s", d.Job, err, ErrGoesOn, o.endedBy(", unless %s ends it", d.Deployment))
}
