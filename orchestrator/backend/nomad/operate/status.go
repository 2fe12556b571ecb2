package operate

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"berth/jobs"
)

// Status is how a job stands.
type Status struct {
	Job         string       `json:"job"`
	Type        string       `json:"type"`
	Status      string       `json:"status"` // pending, running, dead
	Version     uint64       `json:"version"`
	Submitted   time.Time    `json:"submitted_at"`
	Count       int          `json:"count"`
	Image       string       `json:"image"` // or the program, where no container is made
	Deployment  *Deployment  `json:"deployment,omitempty"`
	Unplaced    []string     `json:"unplaced"`    // why there is no room for some, in Nomad's words
	Allocations []Allocation `json:"allocations"` // that are there, and the last of each index that failed, by index
	Failed      int          `json:"failed"`      // how many have failed before those
}

// Deployment is the latest of a job.
type Deployment struct {
	ID      string `json:"id"`
	Version uint64 `json:"version"`
	Status  string `json:"status"`
	Words   string `json:"words"`
	Healthy int    `json:"healthy"`
	Desired int    `json:"desired"`
	Waits   string `json:"waits,omitempty"`   // for what, while it is under way: nothing else of the job is scaled then
	EndsBy  string `json:"ends_by,omitempty"` // the command that ends it then
}

// Allocation is one allocation of a job.
type Allocation struct {
	ID        string    `json:"id"`
	Job       string    `json:"job"`
	Index     int       `json:"index"`
	Node      string    `json:"node"`
	NodeID    string    `json:"node_id"`
	Version   uint64    `json:"version"`
	Status    string    `json:"status"`  // of the client: pending, running, complete, failed, lost, unknown
	Desired   string    `json:"desired"` // run, stop, evict
	Healthy   *bool     `json:"healthy,omitempty"`
	Created   time.Time `json:"created_at"`
	URL       string    `json:"url,omitempty"`
	Container string    `json:"container,omitempty"` // that an orchestrator has claimed it for
	Words     string    `json:"words"`               // Nomad's last about it
}

// Ended reports whether nothing of it runs any more.
func (a Allocation) Ended() bool {
	return slices.Contains([]string{api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost}, a.Status)
}

// Status looks at the job. The error is a *NotFoundError when there is none.
func (o *Operator) Status(ctx context.Context, id string) (Status, error) {
	job, err := o.job(ctx, id)
	if err != nil {
		return Status{}, err
	}
	if job == nil {
		return Status{}, &NotFoundError{"job " + id, `name one that "nomad job status" has by --job, and its namespace by --namespace`}
	}
	s := Status{
		Job: id, Type: value(job.Type), Status: value(job.Status), Version: value(job.Version), Submitted: time.Unix(0, value(job.SubmitTime)).UTC(),
		Unplaced: []string{},
	}
	for _, group := range job.TaskGroups {
		s.Count += value(group.Count)
		for _, task := range group.Tasks {
			for _, name := range []string{"image", "command"} {
				if text, ok := task.Config[name].(string); ok {
					s.Image = text
				}
			}
		}
	}
	if s.Deployment, err = o.deployment(ctx, id); err != nil {
		return s, err
	}
	if s.Allocations, err = o.allocations(ctx, id); err != nil {
		return s, err
	}
	s.Allocations, s.Failed = ofInterest(s.Allocations)
	evals, _, err := o.client.Jobs().Evaluations(id, new(api.QueryOptions).WithContext(ctx))
	if err != nil {
		return s, fmt.Errorf("list evaluations of job %s: %w", id, err)
	}
	for _, e := range evals {
		if e.Status == api.EvalStatusBlocked {
			s.Unplaced = append(s.Unplaced, unplaced(e.FailedTGAllocs)...)
		}
	}
	return s, nil
}

// ofInterest are those that are there, and the last of each index that failed.
// failed is how many have failed before that one.
func ofInterest(all []Allocation) (some []Allocation, failed int) {
	last := map[int]string{}
	for _, a := range all { // the newest of each index comes last
		if a.Status == api.AllocClientStatusFailed {
			last[a.Index] = a.ID
		}
	}
	for _, a := range all {
		switch {
		case !a.Ended() || last[a.Index] == a.ID:
			some = append(some, a)
		case a.Status == api.AllocClientStatusFailed:
			failed++
		}
	}
	return some, failed
}

func (o *Operator) deployment(ctx context.Context, job string) (*Deployment, error) {
	v, _, err := o.client.Jobs().LatestDeployment(job, new(api.QueryOptions).WithContext(ctx))
	if missing(err) || err == nil && v == nil {
		return nil, nil //nolint:nilnil // there is none, and that is no error
	}
	if err != nil {
		return nil, fmt.Errorf("read deployment of job %s: %w", job, err)
	}
	d := &Deployment{ID: v.ID, Version: v.JobVersion, Status: v.Status, Words: v.StatusDescription}
	canaries, placed := 0, 0
	for _, g := range v.TaskGroups {
		d.Healthy += g.HealthyAllocs
		d.Desired += g.DesiredTotal
		if !g.Promoted {
			canaries += g.DesiredCanaries
			placed += len(g.PlacedCanaries)
		}
	}
	switch v.Status {
	case api.DeploymentStatusSuccessful, api.DeploymentStatusFailed, api.DeploymentStatusCancelled:
		return d, nil
	}
	d.Waits, d.EndsBy = fmt.Sprintf("until %d more are healthy", max(d.Desired-d.Healthy, 0)), jobs.EndDeployment(o.namespace, v.ID)
	if placed < canaries {
		d.Waits = fmt.Sprintf("for room for %d of %d canaries, which go first", canaries-placed, canaries)
	} else if canaries > 0 {
		d.Waits = fmt.Sprintf("until %d canaries, which go first, are healthy", canaries)
	}
	return d, nil
}

// allocations lists those of a job, with the containers that they are.
func (o *Operator) allocations(ctx context.Context, job string) ([]Allocation, error) {
	q := &api.QueryOptions{Params: map[string]string{"resources": "true"}, Filter: fmt.Sprintf("JobID == %q", job)}
	stubs, _, err := o.client.Allocations().List(q.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("list allocations of job %s: %w", job, err)
	}
	claims, err := o.claims(ctx, job)
	if err != nil {
		return nil, err
	}
	all := make([]Allocation, len(stubs))
	for i, s := range stubs {
		all[i] = Allocation{
			ID: s.ID, Job: s.JobID, Index: jobs.AllocationIndex(s.Name), Node: s.NodeName, NodeID: s.NodeID, Version: s.JobVersion, Status: s.ClientStatus,
			Desired: s.DesiredStatus, Created: time.Unix(0, s.CreateTime).UTC(), URL: jobs.AllocationURL(s.AllocatedResources), Container: claims[s.ID], Words: jobs.LastWords(s.TaskStates, s.ClientDescription, s.DesiredDescription),
		}
		if s.DeploymentStatus != nil {
			all[i].Healthy = s.DeploymentStatus.Healthy
		}
	}
	slices.SortFunc(all, func(a, b Allocation) int { return cmp.Or(a.Index-b.Index, a.Created.Compare(b.Created)) })
	return all, nil
}

// claims are the containers of a job's allocations.
func (o *Operator) claims(ctx context.Context, job string) (map[string]string, error) {
	all := map[string]string{}
	prefix := jobs.ClaimsPath(job)
	metas, _, err := o.client.Variables().PrefixList(prefix, new(api.QueryOptions).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("list variables below %s: %w", prefix, err)
	}
	for _, m := range metas {
		v, _, err := o.client.Variables().Peek(m.Path, new(api.QueryOptions).WithContext(ctx))
		if err != nil {
			return nil, fmt.Errorf("read variable %s: %w", m.Path, err)
		}
		if v != nil {
			maps.Copy(all, v.Items)
		}
	}
	return all, nil
}
