package operate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"berth/jobs"
)

// Rotate gives the job another secret and leaves all else in its variable as
// it is. What the secret is for goes on as the job says: agents of a pool take
// both tokens for a while. The error is a *NotFoundError when there is none.
func (o *Operator) Rotate(ctx context.Context, job string) (path string, err error) {
	path = jobs.VariablePath(job)
	for {
		v, _, err := o.client.Variables().Peek(path, new(api.QueryOptions).WithContext(ctx))
		if err != nil {
			return path, fmt.Errorf("read variable %s: %w", path, err)
		}
		if v == nil || v.Items[jobs.Secret] == "" {
			return path, &NotFoundError{"secret in variable " + path, `"berth nomad deploy" makes that of a job; name another by --job`}
		}
		v.Items[jobs.Secret] = rand.Text() + rand.Text()
		_, _, err = o.client.Variables().CheckedUpdate(v, new(api.WriteOptions).WithContext(ctx))
		if _, lost := errors.AsType[api.ErrCASConflict](err); lost {
			continue // what somebody has written meanwhile stays
		}
		if err != nil {
			return path, fmt.Errorf("write variable %s: %w", path, err)
		}
		return path, nil
	}
}
