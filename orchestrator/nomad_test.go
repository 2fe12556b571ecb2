package orchestrator

import (
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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
		Drain: 25 * time.Second,
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
		{"--backend", "nomad", "--nomad-lock-ttl", "21s"},
		{"--backend", "nomad", "--nomad-lock-delay", "0"},
		{"--backend", "nomad", "--nomad-image", "a\nb"},
	} {
		_, err := parse(args)
		assert.ErrorIs(t, err, ErrUsage, "%v", args)
	}
}

func TestANomadThatRefusesStopsTheStart(t *testing.T) {
	var status atomic.Int32 // of every answer
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "s3cret", r.Header.Get("X-Nomad-Token"))
		assert.Equal(t, "ml", r.URL.Query().Get("namespace"))
		http.Error(w, "Permission denied", int(status.Load()))
	}))
	t.Cleanup(refusing.Close)
	t.Setenv("NOMAD_ADDR", refusing.URL)
	t.Setenv("NOMAD_TOKEN", "s3cret")
	t.Setenv("NOMAD_NAMESPACE", "ml")
	c, err := parse([]string{"--backend", "nomad", "--listen", "127.0.0.1:0"})
	require.NoError(t, err)
	for _, refused := range []int32{http.StatusForbidden, http.StatusUnauthorized} {
		status.Store(refused)
		_, err = Open(t.Context(), c, "test", hclog.NewNullLogger())
		require.ErrorContains(t, err, "Permission denied")
		require.ErrorContains(t, err, "`nomad acl policy apply -namespace ml -job berth-orchestrator berth-orchestrator policy.hcl`")
		require.ErrorIs(t, err, ErrImpossible)
		assert.NotContains(t, err.Error(), "s3cret")
	}
	status.Store(http.StatusBadGateway)
	_, err = Open(t.Context(), c, "test", hclog.NewNullLogger())
	require.Error(t, err)
	assert.NotErrorIs(t, err, ErrImpossible, "that may pass")
}

// poolOf is the job that an orchestrator registers that is started as the job
// of the template says. Nomad itself tells it its namespace and region.
func poolOf(t *testing.T, of jobs.Template) jobs.Template {
	t.Helper()
	job, err := jobs.Orchestrator(of)
	require.NoError(t, err)
	t.Setenv("NOMAD_NAMESPACE", of.Namespace)
	t.Setenv("NOMAD_REGION", of.Region)
	var environ []string
	for name, value := range job.TaskGroups[0].Tasks[0].Env {
		environ = append(environ, name+"="+value)
	}
	c, err := parse([]string{}, environ...)
	require.NoError(t, err, "%q", environ)
	require.Len(t, c.Templates, 1)
	made, err := c.nomad().Template(c.Templates[0].Spec(""))
	require.NoError(t, err)
	made.Count, made.Meta = c.Templates[0].MinContainers, of.Meta // which it gives itself
	known, _, err := jobs.PoolOf(job.TaskGroups[0].Tasks[0].Env)
	require.NoError(t, err)
	known.Namespace, known.Region, known.Meta = of.Namespace, of.Region, of.Meta
	pool, err := jobs.Sandboxd(made)
	require.NoError(t, err)
	told, err := jobs.Sandboxd(known)
	require.NoError(t, err)
	assert.Equal(t, pool, told, "whoever reads the orchestrator's job knows what it registers")
	return made
}

func TestTheOrchestratorRegistersWhatItsJobWasMadeOf(t *testing.T) {
	whole := jobs.Template{
		Job: "berth-big", Namespace: "ml", Region: "eu", Datacenters: []string{"a", "b"}, NodePool: "gpu", Priority: 70,
		Driver: jobs.RawExec, Image: "example/sandboxd:1", Runtime: "runsc", Seccomp: "/s.json", Command: "/opt/sandboxd",
		Args: []string{"--shm", "1GiB", "--env=A=b c"}, Writable: true, Count: 3, Slots: 5, Isolation: "ns,net=loopback-only", NoNetwork: true,
		Longest: 90 * time.Second, Drain: 20 * time.Second, SlotMemory: 1 << 30, SlotPids: 100, SlotCPUs: 0.5, SlotDisk: 1 << 31,
		Cores: 4, CPU: 700, MemoryMB: 2000, MemoryMaxMB: 3000, DiskMB: 5000, Meta: map[string]string{jobs.MetaTemplate: "big"},
	}
	all := map[string]jobs.Template{"all": whole, "nothing": {Job: "berth-default", Count: 2}, "none": {Job: "berth-default"}}
	for i := range reflect.TypeFor[jobs.Template]().NumField() {
		field := reflect.TypeFor[jobs.Template]().Field(i).Name
		value := reflect.ValueOf(whole).Field(i)
		require.False(t, value.IsZero(), "say something of %s", field)
		for _, driver := range jobs.Drivers() {
			one := jobs.Template{Job: "berth-default", Count: 2, Driver: driver}
			reflect.ValueOf(&one).Elem().Field(i).Set(value)
			all[field+" with "+string(driver)] = one
		}
	}
	for what, of := range all {
		want, err := jobs.Sandboxd(of)
		require.NoError(t, err)
		got, err := jobs.Sandboxd(poolOf(t, of))
		require.NoError(t, err)
		assert.Equal(t, want, got, what)
	}
}

func TestAJobThatTheOrchestratorWouldCallOtherwiseMakesNone(t *testing.T) {
	for _, job := range []string{"ml-default", "berth-", jobs.PoolPrefix + strings.Repeat("a", 41), "berth-orchestrator", "berth-prepull"} {
		_, err := jobs.Orchestrator(jobs.Template{Job: job})
		require.ErrorContains(t, err, job)
	}
	_, err := jobs.Orchestrator(jobs.Template{Job: jobs.PoolPrefix + strings.Repeat("a", 40)})
	require.NoError(t, err)
	for _, name := range []string{"ORCHESTRATOR_SLOTS", "ORCHESTRATOR_CPUS", "ORCHESTRATOR_NOMAD_WRITABLE", "ORCHESTRATOR_NOMAD_DRAIN", "ORCHESTRATOR_CONTAINERS"} {
		_, _, err := jobs.PoolOf(map[string]string{name: "many"})
		require.ErrorContains(t, err, name)
	}
	_, _, err = jobs.PoolOf(map[string]string{"ORCHESTRATOR_ISOLATION_REQUIRE": "strong"})
	require.ErrorContains(t, err, "strong")
}
