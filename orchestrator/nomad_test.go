package orchestrator

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
)

func TestTheJobsOfNomadAreMadeOfTheSettings(t *testing.T) {
	path := file(t, "backend: nomad\nnomad-driver: exec\nnomad-datacenter: [a, b]\ntemplates: [{template: big, slots: 30}]\n")
	c, err := parse([]string{
		"--config", path, "--nomad-jobs", "ml", "--nomad-cores", "4", "--nomad-memory", "3000", "--sandboxd", "/opt/sandboxd", "--sandboxd-arg", "--shm=1GiB",
	}, "ORCHESTRATOR_NOMAD_NODE_POOL=gpu", "NOMAD_ADDR=http://127.0.0.1:1")
	require.NoError(t, err)
	n := c.nomad()
	assert.Equal(t, "ml", n.Prefix)
	require.Len(t, n.Pools, 2)
	assert.Equal(t, "big", n.Pools[1].Template)
	assert.Equal(t, 30, n.Pools[1].Slots)
	want := jobs.Template{
		Driver: jobs.Exec, Command: "/opt/sandboxd", Args: []string{"--shm=1GiB"}, Datacenters: []string{"a", "b"}, NodePool: "gpu",
		Cores: 4, CPU: 1000, MemoryMB: 3000, DiskMB: 2048, Image: "berth/sandboxd:local", Seccomp: "/etc/berth/seccomp-slots.json",
	}
	assert.Equal(t, want, n.Job)
	assert.False(t, n.Purge)
}

func TestSettingsThatMakeNoJobAreRefused(t *testing.T) {
	for _, args := range [][]string{
		{"--backend", "kubernetes"},
		{"--backend", "nomad", "--nomad-driver", "qemu"},
		{"--backend", "nomad", "--nomad-jobs", "a/b"},
		{"--backend", "nomad", "--nomad-jobs", "a-name-that-leaves-no-room-for-the-template"},
		{"--backend", "nomad", "--nomad-memory", "100", "--nomad-memory-max", "50"},
		{"--backend", "nomad", "--nomad-cpu", "0"},
		{"--backend", "nomad", "--nomad-lock-ttl", "9s"},
		{"--backend", "nomad", "--nomad-lock-delay", "0"},
		{"--backend", "nomad", "--nomad-image", "a\nb"},
	} {
		_, err := parse(args)
		assert.ErrorIs(t, err, ErrUsage, "%v", args)
	}
}

func TestANomadThatRefusesStopsTheStart(t *testing.T) {
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "s3cret", r.Header.Get("X-Nomad-Token"))
		assert.Equal(t, "ml", r.URL.Query().Get("namespace"))
		http.Error(w, "Permission denied", http.StatusForbidden)
	}))
	t.Cleanup(refusing.Close)
	t.Setenv("NOMAD_ADDR", refusing.URL)
	t.Setenv("NOMAD_TOKEN", "s3cret")
	t.Setenv("NOMAD_NAMESPACE", "ml")
	c, err := parse([]string{"--backend", "nomad", "--listen", "127.0.0.1:0"})
	require.NoError(t, err)
	_, err = Open(t.Context(), c, "test", hclog.NewNullLogger())
	require.ErrorContains(t, err, "Permission denied")
	assert.NotContains(t, err.Error(), "s3cret")
}
