package jobs_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator"
	"berth/orchestrator/backend/nomad/nomadtest"
	"berth/sandboxd"
)

// templates are one for each driver, with everything said that can be said.
func templates() map[string]jobs.Template {
	out := map[string]jobs.Template{"least": {Job: "berth-p"}}
	for _, driver := range jobs.Drivers() {
		out[string(driver)] = jobs.Template{
			Job: "berth-" + string(driver), Namespace: "ml", Region: "eu", Datacenters: []string{"a", "b"}, NodePool: "gpu", Priority: 70,
			Driver: driver, Image: "example/sandboxd:1", Runtime: "runsc", Seccomp: "/s.json", Command: "/opt/sandboxd",
			Args: []string{"--shm", "1GiB"}, Writable: true, Count: 3, Slots: 5, Isolation: "ns,net=loopback-only", NoNetwork: true,
			Longest: 90 * time.Second, Drain: 25 * time.Second, SlotMemory: 1 << 30, SlotPids: 100, SlotCPUs: 0.5, SlotDisk: 1 << 31,
			Cores: 4, MemoryMB: 2000, MemoryMaxMB: 3000, DiskMB: 5000, Meta: map[string]string{jobs.MetaTemplate: "t \"${x}\""},
		}
	}
	return out
}

// asJSON is a job as it travels, to compare what Nomad would see.
func asJSON(t *testing.T, job *api.Job) string {
	t.Helper()
	text, err := json.MarshalIndent(job, "", " ")
	require.NoError(t, err)
	return string(text)
}

func files(t *testing.T) map[string]jobs.File {
	t.Helper()
	all, err := jobs.Files()
	require.NoError(t, err)
	for name, template := range templates() {
		for kind, build := range map[string]func(jobs.Template) (jobs.File, error){
			"sandboxd": jobs.SandboxdFile, "orchestrator": jobs.OrchestratorFile, "prepull": jobs.PrepullFile,
		} {
			file, err := build(template)
			require.NoError(t, err, "%s %s", name, kind)
			all[name+" "+kind] = file
		}
	}
	return all
}

func TestTheTextAndTheValueOfAJobAreEqual(t *testing.T) {
	for name, file := range files(t) {
		t.Run(name, func(t *testing.T) {
			text, err := file.HCL()
			require.NoError(t, err)
			job := parse(t, text)
			job.Name = file.Job.Name // Nomad takes the ID
			assert.Equal(t, asJSON(t, file.Job), asJSON(t, job), "%s", text)
		})
	}
}

func TestTheFilesForPeopleAreWhatTheCodeMakes(t *testing.T) {
	all, err := jobs.Files()
	require.NoError(t, err)
	for name, file := range all {
		text, err := file.HCL()
		require.NoError(t, err)
		if os.Getenv("BERTH_UPDATE") != "" {
			require.NoError(t, os.WriteFile(name, text, 0o644)) //nolint:gosec // it is for everybody
		}
		have, err := os.ReadFile(name)
		require.NoError(t, err)
		assert.Equal(t, string(text), string(have), "BERTH_UPDATE=1 go test ./jobs writes %s anew", name)
	}
}

func TestNomadItselfReadsTheFilesAsWeMeantThem(t *testing.T) {
	nomad := nomadtest.Program(t)
	for name, file := range files(t) {
		t.Run(name, func(t *testing.T) {
			text, err := file.HCL()
			require.NoError(t, err)
			path := filepath.Join(t.TempDir(), "job.nomad.hcl")
			require.NoError(t, os.WriteFile(path, text, 0o600))
			out, err := exec.CommandContext(t.Context(), nomad, "job", "run", "-output", path).Output()
			require.NoError(t, err)
			var read struct{ Job *api.Job }
			require.NoError(t, json.Unmarshal(out, &read))
			for _, task := range file.Job.TaskGroups[0].Tasks { // to Nomad the one of that name is apart
				if len(task.Identities) > 0 {
					task.Identity, task.Identities = task.Identities[0], []*api.WorkloadIdentity{}
				}
			}
			file.Job.Canonicalize()
			read.Job.Canonicalize()
			assert.Equal(t, asJSON(t, file.Job), asJSON(t, read.Job))
		})
	}
}

func TestNomadHasNothingToWarnOf(t *testing.T) {
	a := nomadtest.Start(t, nomadtest.Config{})
	for name, file := range files(t) {
		t.Run(name, func(t *testing.T) {
			file.Job.Namespace, file.Job.Region, file.Job.NodePool = nil, nil, nil // which it does not have
			if most := file.Job.TaskGroups[0].Tasks[0].Resources.MemoryMaxMB; most != nil {
				*most = 0 // which only a scheduler that allows it takes without a warning
			}
			text, err := file.HCL()
			require.NoError(t, err)
			path := filepath.Join(t.TempDir(), "job.nomad.hcl")
			require.NoError(t, os.WriteFile(path, text, 0o600))
			for _, verb := range []string{"validate", "plan"} {
				out, err := a.Command("job", verb, path).CombinedOutput()
				if code, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || verb != "plan" || code.ExitCode() != 1) { // 1: there would be changes
					require.NoError(t, err, "%s", out)
				}
				assert.NotContains(t, string(out), "Job Warnings", "%s", out)
			}
			checked, _, err := a.Client.Jobs().Validate(file.Job, nil)
			require.NoError(t, err)
			assert.Empty(t, checked.ValidationErrors)
			assert.Empty(t, checked.Warnings)
			planned, _, err := a.Client.Jobs().Plan(file.Job, false, nil)
			require.NoError(t, err)
			assert.Empty(t, planned.Warnings)
		})
	}
}

func TestAPathThatLeadsNowhereIsAnError(t *testing.T) {
	file, err := jobs.PrepullFile(jobs.Template{Job: "p"})
	require.NoError(t, err)
	wrong := file
	wrong.Variables = []jobs.Variable{{Name: "x", Path: "group.none", About: "x"}}
	_, err = wrong.HCL()
	require.ErrorContains(t, err, "group.none")
	file.Comments = map[string]string{"group.task.none": "x"}
	_, err = file.HCL()
	assert.ErrorContains(t, err, "group.task.none")
}

func TestAnImpossibleTemplateMakesNoJob(t *testing.T) {
	for what, template := range map[string]jobs.Template{
		"no name":       {},
		"a path":        {Job: "a/b"},
		"driver":        {Job: "p", Driver: "qemu"},
		"isolation":     {Job: "p", Isolation: "strong"},
		"count":         {Job: "p", Count: -1},
		"slots":         {Job: "p", Slots: -1},
		"memory":        {Job: "p", MemoryMB: 10, MemoryMaxMB: 5},
		"slot memory":   {Job: "p", SlotMemory: -1},
		"line break":    {Job: "p", Image: "a\nb"},
		"argument":      {Job: "p", Args: []string{"a\x00"}},
		"negative CPUs": {Job: "p", SlotCPUs: -1},
	} {
		_, err := jobs.Sandboxd(template)
		require.Error(t, err, what)
		_, err = jobs.Orchestrator(template)
		require.Error(t, err, what)
		_, err = jobs.Prepull(template)
		require.Error(t, err, what)
	}
}

// interpolated are Nomad's names in a value.
var interpolated = regexp.MustCompile(`\$\{[^}]*\}`)

func TestSandboxdTakesTheSettingsOfTheJob(t *testing.T) {
	known := map[string]string{
		"${NOMAD_IP_http}": "10.0.0.1", "${NOMAD_PORT_http}": "23456", "${NOMAD_SECRETS_DIR}": "/secrets",
	}
	for name, template := range templates() {
		job, err := jobs.Sandboxd(template)
		require.NoError(t, err)
		one := job.TaskGroups[0].Tasks[0]
		var environ []string
		for key, value := range one.Env {
			environ = append(environ, key+"="+interpolated.ReplaceAllStringFunc(value, func(s string) string {
				require.Contains(t, known, s)
				return known[s]
			}))
		}
		args, ok := one.Config["args"].([]string)
		require.True(t, ok)
		config, err := sandboxd.Parse(args[1:], append(environ, "NOMAD_ALLOC_DIR=/alloc"), os.Stderr)
		require.NoError(t, err, name)
		assert.Equal(t, "/secrets/token", config.TokenFile)
		assert.Equal(t, "/alloc", config.DataDir)
		assert.True(t, strings.HasSuffix(config.Listen, ":23456"), config.Listen)
		if name != "least" {
			assert.Equal(t, template.Slots, config.Slots)
			assert.Equal(t, template.Longest, config.MaxTimeout)
			assert.Equal(t, template.Drain, config.DrainTimeout)
			assert.Equal(t, template.SlotMemory, config.Limits.MemoryBytes)
			assert.Equal(t, template.SlotPids, config.Limits.Pids)
			assert.InDelta(t, template.SlotCPUs, config.Limits.CPUs, 0)
			assert.Equal(t, template.SlotDisk, config.Limits.DiskBytes)
			assert.False(t, config.Network)
			assert.Equal(t, template.Isolation, config.Require.String())
			assert.Greater(t, *one.KillTimeout, config.DrainTimeout, "what drains is not killed")
			assert.Equal(t, one.ShutdownDelay+template.Drain, template.Ending(), "until then leases are served")
		}
		assert.True(t, config.DrainLeases, "they go with the allocation")
		assert.Empty(t, job.TaskGroups[0].Services, "a client that is started again ends tasks whose group's services it cannot register")
		assert.Len(t, one.Services, 1)
	}
}

func TestTheSecretOfAPoolStandsInNoJob(t *testing.T) {
	for name, template := range templates() {
		job, err := jobs.Sandboxd(template)
		require.NoError(t, err)
		for _, one := range job.TaskGroups[0].Tasks[0].Templates {
			assert.Equal(t, "0600", *one.Perms, name)
			assert.True(t, strings.HasPrefix(*one.DestPath, "secrets/"), name)
			assert.Contains(t, *one.EmbeddedTmpl, `{{ with nomadVar "nomad/jobs/`+template.Job+`" }}`)
		}
	}
}

func TestThePolicyIsAboutTheJobOfTheFiles(t *testing.T) {
	text, err := os.ReadFile("orchestrator.policy.hcl")
	require.NoError(t, err)
	_, diags := hclsyntax.ParseConfig(text, "policy", hcl.InitialPos)
	require.False(t, diags.HasErrors(), "%v", diags)
	assert.Contains(t, string(text), `path "nomad/jobs/berth-*"`)
	all, err := jobs.Files()
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(jobs.VariablePath(*all["sandboxd.nomad.hcl"].Job.ID), "nomad/jobs/berth-"))
}

func TestTheOrchestratorTakesTheSettingsOfTheJob(t *testing.T) {
	for name, template := range templates() {
		job, err := jobs.Orchestrator(template)
		require.NoError(t, err)
		one := job.TaskGroups[0].Tasks[0]
		var environ []string
		for key, value := range one.Env {
			environ = append(environ, key+"="+interpolated.ReplaceAllString(value, "9001"))
		}
		args, ok := one.Config["args"].([]string)
		require.True(t, ok)
		config, err := orchestrator.Parse(args[1:], environ, os.Stderr)
		require.NoError(t, err, name)
		assert.Equal(t, "nomad", config.Backend)
		assert.Equal(t, "0.0.0.0:9001", config.Listen)
		if template.Driver != "" {
			assert.Equal(t, template.Driver, config.Nomad.Job.Driver)
			assert.Equal(t, template.Slots, config.Templates[0].Slots)
		}
	}
}

// Nomad asks a registry for an image that is called latest every time; any
// other that the machine has it takes from there.
func TestTheImagesAreThoseThatMakeImageBuilds(t *testing.T) {
	build, err := os.ReadFile("../images/build")
	require.NoError(t, err)
	tag := regexp.MustCompile(`TAG=\$\{TAG-([a-z]+)\}`).FindSubmatch(build)
	require.NotNil(t, tag)
	assert.NotEqual(t, "latest", string(tag[1]))
	all, err := jobs.Files()
	require.NoError(t, err)
	for name, image := range map[string]string{
		"sandboxd.nomad.hcl": "berth/sandboxd", "prepull.nomad.hcl": "berth/sandboxd", "orchestrator.nomad.hcl": "berth/orchestrator",
	} {
		assert.Contains(t, string(build), "="+image)
		assert.Equal(t, image+":"+string(tag[1]), all[name].Job.TaskGroups[0].Tasks[0].Config["image"], name)
	}
}

// A client that is started again registers the services of groups before it
// takes up their tasks, and ends those whose registration no server takes then.
func TestNoServiceIsAGroups(t *testing.T) {
	for name, file := range files(t) {
		for _, group := range file.Job.TaskGroups {
			assert.Empty(t, group.Services, name)
			assert.Nil(t, group.ShutdownDelay, "%s: it waits for the group's services", name)
		}
	}
}
