package main

import (
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator"
)

func TestNomadRenderPrintsTheFilesOfTheProject(t *testing.T) {
	for _, name := range []string{"sandboxd", "orchestrator", "prepull"} {
		status, out, errs := runMain(t.Context(), "nomad", "render", name)
		require.Zero(t, status, errs)
		file, err := os.ReadFile("../../jobs/" + name + ".nomad.hcl")
		require.NoError(t, err)
		assert.Equal(t, string(file), out)
	}
	t.Setenv("NOMAD_NAMESPACE", "")
	status, out, errs := runMain(t.Context(), "nomad", "render", "policy")
	require.Zero(t, status, errs)
	assert.Equal(t, jobs.Policy, out)
	t.Setenv("NOMAD_NAMESPACE", "ml")
	status, out, errs = runMain(t.Context(), "nomad", "render", "policy")
	require.Zero(t, status, errs)
	assert.Contains(t, out, "\nnamespace \"ml\" {", "where deploy puts the jobs")
	assert.NotContains(t, out, "default")
	status, out, errs = runMain(t.Context(), "nomad", "render", "policy", "--namespace", "web")
	require.Zero(t, status, errs)
	assert.Contains(t, out, "\nnamespace \"web\" {")
	status, out, errs = runMain(t.Context(), "nomad", "render", "orchestrator", "--namespace", "web")
	require.Zero(t, status, errs)
	assert.Contains(t, out, "acl policy apply -namespace web ")
	assert.Contains(t, out, "var put -namespace web nomad/jobs/berth-orchestrator")
}

func TestNomadRenderTakesItsFlagsAndPrintsJSON(t *testing.T) {
	status, out, errs := runMain(t.Context(), "nomad", "render", "sandboxd", "--json", "--driver", "raw_exec", "--job", "berth-big",
		"--slots", "30", "--sandboxd", "/opt/sandboxd", "--cores", "4", "--count", "7", "--datacenter", "a,b")
	require.Zero(t, status, errs)
	var job struct {
		Job struct {
			ID          string
			Datacenters []string
			TaskGroups  []struct {
				Count int
				Tasks []struct {
					Driver    string
					Config    map[string]any
					Env       map[string]string
					Resources struct{ Cores int }
				}
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &job))
	assert.Equal(t, "berth-big", job.Job.ID)
	assert.Equal(t, []string{"a", "b"}, job.Job.Datacenters)
	group := job.Job.TaskGroups[0]
	assert.Equal(t, 7, group.Count)
	assert.Equal(t, "raw_exec", group.Tasks[0].Driver)
	assert.Equal(t, "/opt/sandboxd", group.Tasks[0].Config["command"])
	assert.Equal(t, "30", group.Tasks[0].Env["SANDBOXD_SLOTS"])
	assert.Equal(t, 4, group.Tasks[0].Resources.Cores)
}

func TestNomadRenderRefusesWhatMakesNoJob(t *testing.T) {
	for _, args := range [][]string{
		{"nomad"},
		{"nomad", "render"},
		{"nomad", "render", "nginx"},
		{"nomad", "render", "sandboxd", "--driver", "qemu"},
		{"nomad", "render", "sandboxd", "--job", "a/b"},
		{"nomad", "render", "orchestrator", "--slots", "-1"},
		{"nomad", "render", "orchestrator", "--job", "ml-default"},
		{"nomad", "render", "orchestrator", "--job", "berth-orchestrator"},
		{"nomad", "render", "sandboxd", "--job", "berth-prepull"},
		{"nomad", "render", "policy", "--namespace", `a" {}`},
		{"nomad", "render", "policy", "--namespace", "*"},
	} {
		status, out, errs := runMain(t.Context(), args...)
		assert.Equal(t, exitUsage, status, "%v", args)
		assert.Empty(t, out)
		assert.NotEmpty(t, errs)
	}
	status, _, errs := runMain(t.Context(), "nomad", "render", "orchestrator", "--driver", "raw_exec")
	assert.Zero(t, status, errs)
}

// orchestratorOf renders the orchestrator's job with the flags and returns it,
// what is rendered of the pool that it registers, and the settings of it.
func orchestratorOf(t *testing.T, args ...string) (job, pool string, env map[string]string) {
	t.Helper()
	status, job, errs := runMain(t.Context(), append([]string{"nomad", "render", "orchestrator", "--json"}, args...)...)
	require.Zero(t, status, errs)
	var made struct {
		Job struct {
			Namespace  string
			Region     string
			TaskGroups []struct {
				Tasks []struct{ Env map[string]string }
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(job), &made))
	env = made.Job.TaskGroups[0].Tasks[0].Env
	template, _, err := jobs.PoolOf(env)
	require.NoError(t, err)
	template.Namespace, template.Region = made.Job.Namespace, made.Job.Region // Nomad tells its tasks
	of, err := jobs.Sandboxd(template)
	require.NoError(t, err)
	text, err := json.Marshal(map[string]any{"Job": of})
	require.NoError(t, err)
	return job, string(text), env
}

func TestNomadOrchestratorRegistersThePoolThatIsRenderedWithTheSameFlags(t *testing.T) {
	of := map[string][]string{ // by flag, with what it takes beside itself
		"job": {"berth-big"}, "driver": {"exec"}, "image": {"example/sandboxd:1"}, "runtime": {"runsc"}, "sandboxd": {"/opt/sandboxd", "--driver=raw_exec"},
		"namespace": {"ml"}, "region": {"eu"}, "node-pool": {"gpu"}, "datacenter": {"a,b"}, "count": {"7"}, "slots": {"30"}, "isolation-require": {"uid,net=loopback-only"},
		"cores": {"4"}, "cpu": {"700"}, "memory": {"2000"}, "memory-max": {"3000"}, "disk": {"5000"},
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(nomadJob).flags(flags)
	plain, _, _ := orchestratorOf(t)
	flags.VisitAll(func(f *pflag.Flag) {
		if to := appliesTo(f.Name); !slices.Contains(to, "sandboxd") {
			return
		}
		require.Contains(t, of, f.Name, "say something by it")
		args := append([]string{"--" + f.Name + "=" + of[f.Name][0]}, of[f.Name][1:]...)
		t.Run(f.Name, func(t *testing.T) {
			job, registers, _ := orchestratorOf(t, args...)
			assert.NotEqual(t, plain, job)
			status, pool, errs := runMain(t.Context(), append([]string{"nomad", "render", "sandboxd", "--json"}, args...)...)
			require.Zero(t, status, errs)
			assert.JSONEq(t, pool, registers)
		})
	})
	var all []string
	for name, values := range of {
		if name != "sandboxd" && name != "cpu" && name != "driver" { // which the others rule out
			all = append(all, "--"+name+"="+values[0])
		}
	}
	_, registers, env := orchestratorOf(t, all...)
	status, pool, errs := runMain(t.Context(), append([]string{"nomad", "render", "sandboxd", "--json"}, all...)...)
	require.Zero(t, status, errs)
	assert.JSONEq(t, pool, registers)
	var environ []string
	for name, value := range env {
		environ = append(environ, name+"="+value)
	}
	config, err := orchestrator.Parse(nil, environ, os.Stderr)
	require.NoError(t, err, "an orchestrator takes it")
	assert.Equal(t, "big", config.Templates[0].Name)
	assert.Equal(t, "gpu", config.Nomad.Job.NodePool)
}

func TestNomadRendersSeveralOrchestratorsSideBySide(t *testing.T) {
	job, _, _ := orchestratorOf(t, "--orchestrators", "3", "--orchestrator", "example/orchestrator:1")
	var made struct {
		Job struct {
			TaskGroups []struct {
				Count   int
				Spreads []any
				Update  struct{ MaxParallel, Canary int }
				Tasks   []struct{ Config map[string]any }
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(job), &made))
	group := made.Job.TaskGroups[0]
	assert.Equal(t, 3, group.Count)
	assert.NotEmpty(t, group.Spreads)
	assert.Equal(t, 1, group.Update.MaxParallel)
	assert.Equal(t, 1, group.Update.Canary)
	assert.Equal(t, "example/orchestrator:1", group.Tasks[0].Config["image"])
	status, out, errs := runMain(t.Context(), "nomad", "render", "orchestrator", "--orchestrators", "3")
	require.Zero(t, status, errs)
	assert.Regexp(t, `variable "orchestrators" \{\s+type += number\s+default += 3`, out)
}

func TestNomadRenderRefusesFlagsThatWouldBeOfNoEffect(t *testing.T) {
	for _, c := range []struct{ flag, args string }{
		{"slots", "prepull --slots 4"},
		{"driver", "prepull --driver exec"},
		{"isolation-require", "prepull --isolation-require ns"},
		{"job", "prepull --job berth-big"},
		{"orchestrators", "prepull --orchestrators 2"},
		{"node-pool", "policy --node-pool gpu"},
		{"image", "policy --image i"},
		{"orchestrator", "sandboxd --orchestrator i"},
		{"orchestrators", "sandboxd --orchestrators 2"},
		{"orchestrators", "orchestrator --orchestrators 0"},
		{"sandboxd", "sandboxd --sandboxd /s"},
		{"sandboxd", "orchestrator --sandboxd /s"},
		{"image", "orchestrator --driver raw_exec --image i"},
		{"runtime", "sandboxd --driver exec --runtime runsc"},
		{"cpu", "orchestrator --cores 4 --cpu 700"},
	} {
		status, out, errs := runMain(t.Context(), append([]string{"nomad", "render"}, strings.Fields(c.args)...)...)
		assert.Equal(t, exitUsage, status, c.args)
		assert.Contains(t, errs, "--"+c.flag+": ", c.args)
		assert.Empty(t, out)
	}
	for _, args := range []string{
		"prepull --image i --namespace ml --node-pool gpu --datacenter a", "orchestrator --cores 0 --cpu 700",
		"orchestrator --driver raw_exec --sandboxd /s --orchestrator /o",
	} {
		status, _, errs := runMain(t.Context(), append([]string{"nomad", "render"}, strings.Fields(args)...)...)
		assert.Zero(t, status, "%s: %s", args, errs)
	}
}

func TestNomadCommandsAskTheRegionThatIsNamed(t *testing.T) {
	var asked []string
	region := func(r *http.Request) any {
		asked = append(asked, r.URL.Query().Get("region"))
		return object{"ID": "berth-default", "Status": "running", "Diff": object{"Type": "None"}}
	}
	nomadDouble(t, map[string]any{"PUT job/berth-default/plan": region, "GET job/berth-default": region})
	for _, c := range []struct{ variable, flag, want string }{{"moon", "", "moon"}, {"moon", "--region=mars", "mars"}, {"", "--region=mars", "mars"}} {
		t.Setenv("NOMAD_REGION", c.variable)
		for _, command := range []string{"plan sandboxd", "status"} {
			asked = nil
			args := strings.Fields("nomad " + command + " " + c.flag)
			_, _, _ = runMain(t.Context(), args...) // how it ends is another matter
			require.NotEmpty(t, asked, "%v", args)
			assert.Equal(t, slices.Repeat([]string{c.want}, len(asked)), asked, "%v", args)
		}
	}
	status, out, errs := runMain(t.Context(), "nomad", "render", "orchestrator", "--region", "mars", "--namespace", "ml")
	require.Zero(t, status, errs)
	assert.Contains(t, out, "var put -region mars -namespace ml nomad/jobs/berth-orchestrator")
	assert.Regexp(t, `region += "mars"`, out)
}
