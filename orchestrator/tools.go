package orchestrator

import (
	"context"
	"os"
	"slices"
	"strings"

	"berth/orchestrator/calls"
	"berth/orchestrator/function"
	"berth/orchestrator/pool"
	"berth/orchestrator/strip"
	"berth/sandboxd/api"
	"berth/sandboxd/client"
)

// carrier is a calls.Carrier that has environments built, too.
type carrier struct{ *calls.Carrier }

// Ensure is function.Calls's.
func (c carrier) Ensure(ctx context.Context, lease pool.Lease, spec api.EnvironmentSpec, recreate bool, progress func(line string)) (api.EnvironmentResult, error) {
	to, err := c.Client(lease)
	if err != nil {
		return api.EnvironmentResult{}, err
	}
	return to.EnsureEnvironment(ctx, spec, client.EnsureOptions{Recreate: recreate, Progress: progress})
}

// newTools makes what runs function tools.
func (s *Server) newTools() *function.Runner {
	main := s.config.Templates[0]
	c := function.Config{
		Isolated: &function.Place{Leases: s.pools, Calls: carrier{s.calls}, Template: main.Name},
		Longest:  main.MaxTimeout, Environ: hostEnvironment(os.Environ()), Strip: strip.New(strip.Config{}),
	}
	if s.hosts != nil {
		c.Local = s.hosts.place
	}
	return function.New(s.configs, c)
}

// ofThisProcess are variables that are true for this process only: a sandbox
// has a home and a place for temporary files of its own, and an interpreter of
// its own.
var ofThisProcess = []string{"HOME", "TMPDIR", "PWD", "OLDPWD", "VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "NODE_PATH", "NODE_OPTIONS"}

// hostEnvironment is what local sandboxes see of this process's environment:
// not our own settings, which may name secrets.
func hostEnvironment(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.Contains(ofThisProcess, name) || strings.HasPrefix(pair, prefix) || strings.HasPrefix(pair, "SANDBOXD_") || strings.HasPrefix(pair, "NOMAD_TOKEN=") || strings.HasPrefix(pair, "BERTH_TOKEN=")
	})
}
