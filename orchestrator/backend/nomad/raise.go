package nomad

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"berth/jobs"
)

// raise registers the job of the index with a higher count. Nomad refuses to
// scale while a deployment is under way, and each scale-out begins one, which
// lasts until its containers were healthy for a while; another registration
// takes its place. It is nil, and nothing is changed, while a canary is tried:
// that one comes first.
func (p *pool) raise(ctx context.Context, count int, modify uint64) (*api.JobRegisterResponse, error) {
	q := new(api.QueryOptions).WithContext(ctx)
	d, _, err := p.b.client.Jobs().LatestDeployment(p.job, q)
	if err != nil {
		return nil, fmt.Errorf("read deployment of job %s: %w", p.job, err)
	}
	if d == nil || d.TaskGroups[jobs.Group] == nil {
		return nil, nil //nolint:nilnil // it is as the comment says
	}
	if group := d.TaskGroups[jobs.Group]; group.DesiredCanaries > 0 && !group.Promoted {
		return nil, nil //nolint:nilnil // as above
	}
	job, _, err := p.b.client.Jobs().Info(p.job, q)
	if err != nil {
		return nil, fmt.Errorf("read job %s: %w", p.job, err)
	}
	for _, group := range job.TaskGroups {
		if *group.Name == jobs.Group {
			group.Count = &count
		}
	}
	answer, _, err := p.b.client.Jobs().EnforceRegister(job, modify, new(api.WriteOptions).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("register job %s: %w", p.job, err)
	}
	return answer, nil
}
