package operate

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"berth/jobs"
)

// Running is the job of a pool.
type Running struct {
	Template    jobs.Template // that it was made of, as far as it tells
	ModifyIndex uint64        // for Deploy; 0: there is no such job, also none that was stopped
}

// Running reads the job of a pool, so that a new version of it changes what is
// meant to change. There is none when it does not run.
func (o *Operator) Running(ctx context.Context, job string) (r Running, found bool, err error) {
	running, err := o.job(ctx, job)
	if err != nil || running == nil {
		return Running{}, false, err
	}
	r.ModifyIndex = value(running.JobModifyIndex)
	if value(running.Stop) {
		return r, false, nil
	}
	if r.Template, err = jobs.TemplateOf(running); err != nil {
		return Running{}, false, fmt.Errorf("read job %s: %w", job, err)
	}
	return r, true, nil
}

// Index is the ModifyIndex of a job, also of one that was stopped; 0: there is
// none.
func (o *Operator) Index(ctx context.Context, job string) (uint64, error) {
	running, err := o.job(ctx, job)
	if err != nil || running == nil {
		return 0, err
	}
	return value(running.JobModifyIndex), nil
}

// job reads a job; nil: there is none.
func (o *Operator) job(ctx context.Context, id string) (*api.Job, error) {
	job, _, err := o.client.Jobs().Info(id, new(api.QueryOptions).WithContext(ctx))
	if missing(err) {
		return nil, nil //nolint:nilnil // there is none, and that is no error
	}
	if err != nil {
		return nil, fmt.Errorf("read job %s: %w", id, err)
	}
	return job, nil
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
