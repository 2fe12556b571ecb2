package function

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"berth/orchestrator/config"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
	"berth/slots"
)

// route is where a run goes, and what is set there.
type route struct {
	of          poolapi.SandboxType
	configID    string
	fingerprint string
	tenant      tenant
	keep        time.Duration
	pip, npm    []api.Requirement
	reuse       bool
	recreate    bool
}

// route decides where the run goes: to the host for an organisation that is
// privileged, unless it asks for isolation, and to the pool for every other
// one, whatever it asks for.
func (r *Runner) route(ctx context.Context, organization string, asked *poolapi.ToolSandbox) (route, error) {
	if asked == nil {
		asked = &poolapi.ToolSandbox{}
	}
	if asked.ConfigID != "" && len(asked.Config) > 0 {
		return route{}, slots.Errorf(slots.KindBadRequest, "sandbox has a config_id and a config: one of them is meant")
	}
	named, err := r.named(ctx, organization, asked)
	if err != nil {
		return route{}, err
	}
	owner, err := r.store.Organization(ctx, organization)
	if err != nil {
		return route{}, err
	}
	of := poolapi.SandboxIsolated
	if owner.PrivilegedTools && named.Type != poolapi.SandboxIsolated || r.config.Isolated == nil && owner.PrivilegedTools {
		of = poolapi.SandboxLocal
	}
	place := r.place(of)
	if place == nil {
		return route{}, slots.Errorf(slots.KindUnavailable, "this orchestrator has no %s sandboxes", of)
	}
	found := named
	if named.ID == "" || named.Type != of {
		if found, err = r.store.Default(ctx, organization, of); err != nil {
			return route{}, err
		}
	}
	if len(asked.Config) > 0 && (named.Type == "" || named.Type == of) {
		if found.Config, err = config.Canonical(of, asked.Config); err != nil {
			return route{}, err
		}
		if found.Fingerprint, err = config.Fingerprint(organization, of, found.Config); err != nil {
			return route{}, err
		}
	}
	to := route{
		of: of, configID: found.ID, fingerprint: found.Fingerprint, recreate: asked.Recreate,
		reuse: asked.Reuse == nil || *asked.Reuse, tenant: tenant{place.Template, organization, found.Fingerprint},
	}
	return to, to.read(found.Config)
}

// named is the config that the request names, or its type alone.
func (r *Runner) named(ctx context.Context, organization string, asked *poolapi.ToolSandbox) (c poolapi.SandboxConfig, err error) {
	if asked.Type != "" && asked.Type != poolapi.SandboxAuto {
		if c.Type, err = config.ParseType(asked.Type); err != nil {
			return c, err
		}
	}
	if asked.ConfigID == "" {
		return c, nil
	}
	want := c.Type
	if c, err = r.store.Get(ctx, organization, asked.ConfigID); err != nil {
		return c, err
	}
	if want != "" && want != c.Type {
		return c, slots.Errorf(slots.KindBadRequest, "sandbox.config_id is of type %s, sandbox.type says %s", c.Type, want)
	}
	return c, nil
}

// keepLocal is how long a local slot is kept after a run.
const keepLocal = 5 * time.Minute

// read takes what matters here from the settings.
func (to *route) read(settings json.RawMessage) error {
	if to.of == poolapi.SandboxLocal {
		var s poolapi.LocalSettings
		if err := json.Unmarshal(settings, &s); err != nil {
			return slots.Errorf(slots.KindInternal, "read sandbox config: %w", err)
		}
		to.keep = keepLocal
		listed, err := requirementsFile(s.SandboxDir)
		if err != nil {
			return err
		}
		to.pip, err = merged(api.LanguagePython, listed, s.PipRequirements)
		return err
	}
	var s poolapi.IsolatedSettings
	if err := json.Unmarshal(settings, &s); err != nil {
		return slots.Errorf(slots.KindInternal, "read sandbox config: %w", err)
	}
	to.keep = time.Duration(s.TimeoutS) * time.Second
	to.tenant.template = cmp.Or(s.Template, to.tenant.template)
	to.pip, to.npm = s.PipRequirements, s.NpmRequirements
	return nil
}
