package orchestrator

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"

	"berth/orchestrator/backend/local"
	"berth/orchestrator/calls"
	"berth/orchestrator/function"
	"berth/orchestrator/pool"
	"berth/sandboxd/api"
	"berth/sandboxd/client"
)

// templateLocal is the pool of local sandboxes.
const templateLocal = "local"

// carrier is a calls.Carrier that has environments built, too.
type carrier struct{ *calls.Carrier }

// Ensure is function.Calls's.
func (c carrier) Ensure(ctx context.Context, lease pool.Lease, spec api.EnvironmentSpec, recreate bool) (api.EnvironmentResult, error) {
	to, err := c.Client(lease)
	if err != nil {
		return api.EnvironmentResult{}, err
	}
	return to.EnsureEnvironment(ctx, spec, client.EnsureOptions{Recreate: recreate})
}

// hosted is the pool of local sandboxes: one container on this machine, started
// when a run first needs it, with a directory of its own.
type hosted struct {
	backend *local.Backend
	pools   *pool.Pools
	calls   *calls.Carrier
}

// openHosted opens the pool of local sandboxes.
func (c Config) openHosted(ctx context.Context, logger hclog.Logger) (*hosted, error) {
	main := c.Templates[0]
	t := pool.Template{
		Name: templateLocal, Slots: c.LocalSlots, MaxContainers: 1,
		Isolation: main.Isolation, Network: main.Network, MaxTimeout: main.MaxTimeout, Limits: main.Limits,
	}
	binary := c.Sandboxd
	if c.Backend != backendLocal {
		binary = "" // the setting is about other machines
	}
	b, err := local.Open(ctx, local.Config{
		Dir: filepath.Join(c.DataDir, "local"), Binary: binary, Args: append(c.hidden(), c.SandboxdArgs...), Keep: c.Keep,
		Grace: c.DrainTimeout, Logger: logger.Named(templateLocal), // the main pool has proven what it expects
	})
	if err != nil {
		return nil, impossible(ctx, err)
	}
	pools, err := pool.New(b, connect, pool.Config{Templates: []pool.Template{t}, Log: logger.Named(templateLocal)})
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return &hosted{b, pools, calls.New(pools, calls.Config{Template: templateLocal, Logger: logger.Named(templateLocal)})}, nil
}

// close ends what openHosted has opened.
func (h *hosted) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), lastCalls)
	defer cancel()
	return errors.Join(h.calls.Close(ctx), h.pools.Close(), h.backend.Close())
}

// newTools makes what runs function tools.
func (s *Server) newTools() *function.Runner {
	main := s.config.Templates[0]
	c := function.Config{
		Isolated: &function.Place{Leases: s.pools, Calls: carrier{s.calls}, Template: main.Name},
		Longest:  main.MaxTimeout, Environ: hostEnvironment(os.Environ()),
	}
	if s.hosted != nil {
		c.Local = &function.Place{Leases: s.hosted.pools, Calls: carrier{s.hosted.calls}, Template: templateLocal}
	}
	return function.New(s.configs, c)
}

// hostEnvironment is what local sandboxes see of this process's environment:
// not our own settings, which may name secrets.
func hostEnvironment(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(pair string) bool {
		return strings.HasPrefix(pair, prefix) || strings.HasPrefix(pair, "SANDBOXD_") || strings.HasPrefix(pair, "NOMAD_TOKEN=") || strings.HasPrefix(pair, "BERTH_TOKEN=")
	})
}
