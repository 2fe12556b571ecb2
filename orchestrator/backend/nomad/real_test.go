package nomad_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator/backend"
	"berth/orchestrator/backend/backendtest"
	"berth/orchestrator/backend/nomad"
	"berth/orchestrator/backend/nomad/nomadtest"
	"berth/slots/sandbox/sandboxtest"
)

func TestItKeepsThePromisesOfABackendOnARealNomad(t *testing.T) {
	a := nomadtest.Start(t, nomadtest.Config{})
	s := spec("")
	s.Isolation, s.Network = "none", true
	pools := map[backend.Backend]string{} // their jobs
	backendtest.Run(t, backendtest.Subject{
		New: func(t *testing.T) backend.Backend {
			at := api.DefaultConfig()
			at.Address = a.URL
			prefix := fmt.Sprintf("promise-%d", len(pools))
			b := open(t, nomad.Config{
				Prefix: prefix, API: at, Pools: []backend.Spec{s}, Purge: true, Blocked: time.Second,
				Logger: newDouble(t).config(t).Logger,
				Job:    jobs.Template{Driver: jobs.RawExec, Command: sandboxtest.Agent(t), Args: []string{"--isolation-attempt", "none"}, MemoryMB: 256},
			})
			pools[b] = prefix + "-" + s.Template
			return b
		},
		Starting: func(b backend.Backend, id string) bool { return b.(*nomad.Backend).Starting(id) },
		Crash: func(t *testing.T, b backend.Backend, c backend.Container) {
			allocID, err := claimed(a, pools[b], c.ID)
			require.NoError(t, err)
			require.Eventually(t, func() bool { // its restarts come to an end
				one, _, err := a.Client.Allocations().Info(allocID, nil)
				require.NoError(t, err)
				if one.ClientStatus == api.AllocClientStatusFailed {
					return true
				}
				_ = a.Client.Allocations().Signal(one, nil, jobs.Group, "SIGKILL") // it may be about to be started again
				return false
			}, patience, 100*time.Millisecond)
		},
		Spec: s,
	})
}

// claimed finds the allocation that was claimed for a container.
func claimed(a *nomadtest.Agent, job, id string) (allocID string, err error) {
	all, _, err := a.Client.Variables().PrefixList(jobs.VariablePath(job)+"/containers/", nil)
	if err != nil {
		return "", err
	}
	for _, one := range all {
		v, _, err := a.Client.Variables().Read(one.Path, nil)
		if err != nil {
			return "", err
		}
		for allocID, held := range v.Items {
			if held == id {
				return allocID, nil
			}
		}
	}
	return "", fmt.Errorf("nobody has claimed an allocation for %s", id)
}
