package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"berth/sandboxd/api"
	"berth/slots"
)

// EnsureOptions says how an environment is asked for.
type EnsureOptions struct {
	Recreate bool              // build it anew also when it is there
	Progress func(line string) // called with what the build says; nil: nobody listens
}

// EnsureEnvironment has the container build the environment of the spec, if it
// is not there, and waits for it. Packages that cannot be installed are a
// result with a Failure. The build goes on when ctx ends. A spec without
// requirements is answered without the container: there is nothing to build.
func (c *Client) EnsureEnvironment(ctx context.Context, spec api.EnvironmentSpec, o EnsureOptions) (api.EnvironmentResult, error) {
	key, err := spec.Key()
	if err != nil {
		return api.EnvironmentResult{}, err
	}
	if key == "" {
		plain := api.Environment{Language: spec.Language, State: api.EnvironmentReady, Requirements: []api.Requirement{}}
		return api.EnvironmentResult{Environment: &plain, Cached: true}, nil
	}
	r := Request{Method: http.MethodPut, Path: api.EnvironmentRoute(key), Body: spec, Again: !o.Recreate}
	if o.Recreate {
		r.Query = url.Values{"recreate": {"true"}}
	}
	for line, err := range c.Lines(ctx, r) {
		if err != nil {
			return api.EnvironmentResult{}, err
		}
		var e api.EnvironmentEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return api.EnvironmentResult{}, slots.Errorf(slots.KindInternal, "decode event: %w", err)
		}
		switch {
		case e.Event == api.EventProgress && o.Progress != nil:
			o.Progress(e.Text)
		case e.Event == api.EventResult && e.EnvironmentResult != nil:
			if e.Error != nil {
				return api.EnvironmentResult{}, api.ErrorAnswer{Error: *e.Error}.Err()
			}
			return *e.EnvironmentResult, nil
		}
	}
	return api.EnvironmentResult{}, ctx.Err() // not reached: Lines ends with an error
}

// Environments lists the environments of the container.
func (c *Client) Environments(ctx context.Context) (api.Environments, error) {
	var all api.Environments
	err := c.call(ctx, Request{Method: http.MethodGet, Path: "/v1/environments", Again: true}, &all)
	return all, err
}

// DeleteEnvironment removes an environment, or ends its build. One in use is a
// slots.KindConflict, one that is not there a slots.KindNotFound.
func (c *Client) DeleteEnvironment(ctx context.Context, key string) error {
	return c.call(ctx, Request{Method: http.MethodDelete, Path: api.EnvironmentRoute(key)}, nil)
}
