package nomad_test

import (
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator/backend"
	"berth/orchestrator/backend/backendtest"
	"berth/orchestrator/backend/nomad"
)

// patience is how long anything may take; only what fails takes that long.
const patience = time.Minute

func spec(id string) backend.Spec {
	return backend.Spec{ID: id, Template: "t", Slots: 2, Env: map[string]string{"KEY": "s3cret"}}
}

// config is one for tests: quick.
func (d *double) config(t *testing.T) nomad.Config {
	t.Helper()
	at := api.DefaultConfig()
	at.Address = d.server.URL
	return nomad.Config{
		API: at, Job: jobs.Template{Driver: jobs.RawExec}, Pools: []backend.Spec{spec("")}, Blocked: 200 * time.Millisecond,
		Retry: 5 * time.Millisecond, Look: 2 * time.Millisecond, Unplaced: 20 * time.Millisecond,
		Logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: testWriter{t}}),
	}
}

// testWriter writes the log where the test's is.
type testWriter struct{ t *testing.T }

// Write is io.Writer's.
func (w testWriter) Write(p []byte) (int, error) {
	if w.t.Context().Err() == nil {
		w.t.Logf("%s", p)
	}
	return len(p), nil
}

// open opens a backend that the test's end closes.
func open(t *testing.T, c nomad.Config) *nomad.Backend {
	t.Helper()
	b, err := nomad.Open(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, b.Close()) })
	return b
}

func TestItKeepsThePromisesOfABackend(t *testing.T) {
	doubles := map[backend.Backend]*double{}
	backendtest.Run(t, backendtest.Subject{
		New: func(t *testing.T) backend.Backend {
			d := newDouble(t)
			b := open(t, d.config(t))
			doubles[b] = d
			return b
		},
		Starting: func(b backend.Backend, id string) bool { return b.(*nomad.Backend).Starting(id) },
		Crash: func(_ *testing.T, b backend.Backend, c backend.Container) {
			d := doubles[b]
			d.do(func() { d.fail(d.allocOf(c), api.TaskTerminated, "Exit Code: 1") })
		},
		Spec: spec(""),
	})
}

// allocOf is the allocation of the container.
func (d *double) allocOf(c backend.Container) string {
	for _, v := range d.variables {
		for allocID, id := range v.Items {
			if id == c.ID && d.allocs[allocID] != nil && !d.allocs[allocID].ClientTerminalStatus() {
				return allocID
			}
		}
	}
	require.Fail(d.t, "no allocation", "%s", c.ID)
	return ""
}
