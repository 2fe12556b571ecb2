package function

import (
	"cmp"
	"context"
	"encoding/json"
	"path/filepath"
	"time"

	"berth/orchestrator/config"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/api"
	"berth/slots"
)

// route is where a run goes, and what is set there.
type route struct {
	of          poolapi.SandboxType
	place       *Place
	configID    string
	fingerprint string
	tenant      tenant
	keep        time.Duration
	pip, npm    []api.Requirement
	directory   string // below the place's home
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
	if owner.PrivilegedTools && named.Type != poolapi.SandboxIsolated {
		of = poolapi.SandboxLocal
	}
	place, err := r.place(ctx, of, organization)
	if err != nil {
		return route{}, err
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
		of: of, place: place, configID: found.ID, fingerprint: found.Fingerprint, recreate: asked.Recreate,
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

// enter takes the directory of the config, which must be the organization's own
// or below: a path that leads anywhere else on this host is not its to name.
func (to *route) enter(dir string) error {
	if dir == "" {
		return nil
	}
	below, err := filepath.Rel(to.place.Home, dir)
	if to.place.Home == "" || err != nil || !filepath.IsLocal(below) {
		return slots.Errorf(slots.KindBadRequest, "sandbox_dir must be the organization's own directory or lie in it: %s", to.place.Home)
	}
	if below != "." {
		to.directory = below
	}
	return nil
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
		if err := to.enter(s.SandboxDir); err != nil {
			return err
		}
		listed, err := requirementsFile(to.place.Home, to.directory)
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
