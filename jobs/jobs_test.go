package jobs_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	texttemplate "text/template"
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
	"berth/slots"
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
		if template.Driver == "" || template.Driver == jobs.Exec { // as docker
			continue
		}
		file, err := jobs.OrchestratorFile(template)
		require.NoError(t, err, name)
		if template.Driver == jobs.RawExec {
			file.Job.TaskGroups[0].Tasks[0].Env["ORCHESTRATOR_CONFIG_DB"] = "/srv/config.db"
		}
		require.NoError(t, file.KeepConfigs("berth-configs"), name)
		all[name+" orchestrator with a volume"] = file
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
			for _, task := range read.Job.TaskGroups[0].Tasks {
				if len(task.Identities) == 0 { // it took out the one of the name default
					task.Identities = nil
				}
			}
			file.Job.Canonicalize()
			read.Job.Canonicalize()
			assert.Equal(t, asJSON(t, file.Job), asJSON(t, read.Job))
		})
	}
}

func TestNomadHasNothingToWarnOf(t *testing.T) {
	for name, memory := range map[string]bool{"as it comes": false, "with memory oversubscription": true} {
		t.Run(name, func(t *testing.T) {
			a := nomadtest.Start(t, nomadtest.Config{Memory: memory})
			for name, file := range files(t) {
				job := file.Job
				job.Namespace, job.Region, job.NodePool = nil, nil, nil // which it does not have
				most := job.TaskGroups[0].Tasks[0].Resources.MemoryMaxMB
				beyond := most != nil && *most > 0
				if memory && !beyond {
					continue // it is looked at in the other
				}
				if !memory && beyond {
					assert.Contains(t, warnings(t, a, job), "oversubscription", "else nothing is shown by the other")
					*most = 0
				}
				t.Run(name, func(t *testing.T) {
					said, err := file.HCL()
					require.NoError(t, err)
					plans(t, a, said)
					assert.Empty(t, warnings(t, a, job))
				})
			}
		})
	}
}

// warnings are what Nomad has to say of a job that it takes.
func warnings(t *testing.T, a *nomadtest.Agent, job *api.Job) string {
	t.Helper()
	checked, _, err := a.Client.Jobs().Validate(job, nil)
	require.NoError(t, err)
	assert.Empty(t, checked.ValidationErrors)
	planned, _, err := a.Client.Jobs().Plan(job, false, nil)
	require.NoError(t, err)
	return checked.Warnings + planned.Warnings
}

// plans has Nomad's own commands take the text without a warning, and returns
// what the last of them said.
func plans(t *testing.T, a *nomadtest.Agent, text []byte, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "job.nomad.hcl")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	var out []byte
	for _, verb := range []string{"validate", "plan"} {
		var err error
		out, err = a.Command(append(append([]string{"job", verb}, args...), path)...).CombinedOutput()
		if code, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || verb != "plan" || code.ExitCode() != 1) { // 1: there would be changes
			require.NoError(t, err, "%s", out)
		}
		assert.NotContains(t, string(out), "Job Warnings", "%s", out)
	}
	return string(out)
}

// What a job asks of machines Nomad's own fingerprint has to tell, or no
// machine would do.
func TestNomadFindsMachinesForWhatIsAskedOfThem(t *testing.T) {
	a := nomadtest.Start(t, nomadtest.Config{})
	node, _, err := a.Client.Nodes().Info(a.NodeID(), nil)
	require.NoError(t, err)
	assert.Contains(t, []string{"1", "2"}, node.Attributes["os.cgroups.version"])
	_, landlock := node.Attributes["kernel.landlock"]
	for _, level := range slots.Levels() {
		file, err := jobs.SandboxdFile(jobs.Template{Job: "berth-p", Driver: jobs.RawExec, Count: 1, Isolation: level.String()})
		require.NoError(t, err)
		text, err := file.HCL()
		require.NoError(t, err)
		out := plans(t, a, text)
		if strings.Contains(level.String(), "landlock") && !landlock {
			assert.Contains(t, out, "attr.kernel.landlock", level)
			continue
		}
		assert.Contains(t, out, "All tasks successfully allocated", level)
	}
	file, err := jobs.OrchestratorFile(jobs.Template{Job: "berth-p", Driver: jobs.RawExec})
	require.NoError(t, err)
	text, err := file.HCL()
	require.NoError(t, err)
	assert.Contains(t, plans(t, a, text, "-var", "orchestrators=3"), "3 create")
}

func TestAMachineMustHaveWhatTheIsolationTakes(t *testing.T) {
	const landlock, cgroups = "${attr.kernel.landlock}", "${attr.os.cgroups.version}"
	of := map[string][]string{
		"":                                 {landlock}, // sandboxd's default
		"none":                             nil,
		"basic":                            nil,
		"landlock":                         {landlock},
		"uid":                              nil,
		"uid+landlock":                     {landlock},
		"ns":                               nil,
		"ns+cgroup":                        {cgroups},
		"uid,net=loopback-only":            nil,
		"basic,kill=uid":                   nil,
		"fs=landlock":                      {landlock},
		"uid,fs=dac+landlock":              {landlock},
		"ns,fs=landlock":                   nil,
		"fs=mntns":                         nil,
		"uid,proc=landlock-scope":          {landlock},
		"ns,proc=landlock-scope":           nil,
		"net=loopback-only,landlock":       {landlock},
		"uid,memory=cgroup":                {cgroups},
		"ns,pids=cgroup":                   {cgroups},
		"landlock,cpu=cgroup":              {landlock, cgroups},
		"uid,kill=cgroup":                  {cgroups},
		"ns,kill=cgroup":                   nil,
		"uid,pids=rlimit,memory=rlimit":    nil,
		" uid+landlock , memory = cgroup ": {"no such isolation"},
	}
	for _, level := range slots.Levels() {
		require.Contains(t, of, level.String())
	}
	for isolation, want := range of {
		for _, driver := range jobs.Drivers() {
			job, err := jobs.Sandboxd(jobs.Template{Job: "berth-p", Driver: driver, Isolation: isolation})
			if err != nil {
				assert.Equal(t, []string{"no such isolation"}, want, "%q: %v", isolation, err)
				continue
			}
			var asked []string
			for _, c := range job.TaskGroups[0].Constraints[1:] { // the first is that it is Linux
				asked = append(asked, c.LTarget)
				assert.Equal(t, map[string]string{landlock: "is_set", cgroups: "= 2"}[c.LTarget], strings.TrimSpace(c.Operand+" "+c.RTarget))
			}
			if driver != jobs.Docker { // as root on the machine itself those of v1 do as well
				want = slices.DeleteFunc(slices.Clone(want), func(s string) bool { return s == cgroups })
			}
			assert.ElementsMatch(t, want, asked, "%s with %s", isolation, driver)
		}
	}
	config, err := sandboxd.Parse(nil, nil, os.Stderr)
	require.NoError(t, err)
	assert.Equal(t, jobs.DefaultIsolation, config.Require.String())
}

// A version that does not get well is taken back when that is over.
func TestABadVersionIsTakenBackSoonWhereNothingIsPulled(t *testing.T) {
	for driver, want := range map[jobs.Driver]time.Duration{jobs.Docker: 10 * time.Minute, jobs.Exec: 2 * time.Minute, jobs.RawExec: 2 * time.Minute} {
		of := jobs.Template{Job: "berth-p", Driver: driver, Drain: time.Hour}
		pool, err := jobs.Sandboxd(of)
		require.NoError(t, err)
		control, err := jobs.Orchestrator(of)
		require.NoError(t, err)
		for job, drain := range map[*api.Job]time.Duration{pool: time.Hour, control: 25 * time.Second} {
			update := job.TaskGroups[0].Update
			assert.Equal(t, drain+want, *update.ProgressDeadline, "%s %s", driver, *job.ID)
			assert.Less(t, *update.MinHealthyTime, *update.HealthyDeadline)
			assert.Less(t, *update.HealthyDeadline, want, "Nomad takes no other")
		}
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
		assert.Equal(t, "/secrets/metrics", config.MetricsTokenFile)
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

// Without the item the file is empty, which is no token, and nothing waits.
func TestTheTokenOfMetricsIsThereWhereTheVariableHasIt(t *testing.T) {
	type item struct{ Value string }
	for name, template := range templates() {
		pool, err := jobs.Sandboxd(template)
		require.NoError(t, err)
		control, err := jobs.Orchestrator(template)
		require.NoError(t, err)
		for _, job := range []*api.Job{pool, control} {
			one := job.TaskGroups[0].Tasks[0]
			at := slices.IndexFunc(one.Templates, func(t *api.Template) bool { return *t.DestPath == "secrets/metrics" })
			require.GreaterOrEqual(t, at, 0, "%s %s", name, *job.ID)
			text, token := one.Templates[at], one.Templates[0]
			assert.Equal(t, []any{token.ChangeMode, token.ChangeSignal, token.Perms, token.Uid, token.Gid},
				[]any{text.ChangeMode, text.ChangeSignal, text.Perms, text.Uid, text.Gid}, "as the other token")
			assert.Contains(t, []string{one.Env["SANDBOXD_METRICS_TOKEN_FILE"], one.Env["ORCHESTRATOR_METRICS_TOKEN_FILE"]}, "${NOMAD_SECRETS_DIR}/metrics")
			for want, items := range map[string]map[string]item{
				"":         {jobs.Secret: {"s"}, jobs.EnvItem: {""}},
				"looks-on": {jobs.Secret: {"s"}, jobs.Metrics: {"looks-on"}},
			} {
				parsed, err := texttemplate.New("").Funcs(texttemplate.FuncMap{"nomadVar": func(path string) map[string]item {
					assert.Equal(t, jobs.VariablePath(*job.ID), path)
					return items
				}}).Parse(*text.EmbeddedTmpl)
				require.NoError(t, err)
				var out strings.Builder
				require.NoError(t, parsed.Execute(&out, nil))
				assert.Equal(t, want, out.String(), "%s %s", name, *job.ID)
			}
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

// What a deploy reads of an orchestrator that runs is what that has read.
func TestAPoolIsReadOfSettingsAsTheOrchestratorReadsThem(t *testing.T) {
	env := map[string]string{
		"ORCHESTRATOR_MEMORY": "512MiB", "ORCHESTRATOR_PIDS": "1K", "ORCHESTRATOR_DISK": "2GB", "ORCHESTRATOR_CPUS": "0.5",
		"ORCHESTRATOR_MAX_TIMEOUT": "1800", "ORCHESTRATOR_NOMAD_DRAIN": "20", "ORCHESTRATOR_SANDBOXD_ARG": "--shm\n1GiB\n",
		"ORCHESTRATOR_NETWORK": "off", "ORCHESTRATOR_NOMAD_WRITABLE": "1", "ORCHESTRATOR_SLOTS": "30", "ORCHESTRATOR_NOMAD_MEMORY": "3000",
	}
	var environ []string
	for name, value := range env {
		environ = append(environ, name+"="+value)
	}
	config, err := orchestrator.Parse(nil, environ, os.Stderr)
	require.NoError(t, err)
	got, more, err := jobs.PoolOf(env)
	require.NoError(t, err)
	assert.Empty(t, more)
	spec := config.Templates[0].Spec("")
	want := config.Nomad.Job
	want.Job, want.Count, want.Slots, want.NoNetwork, want.Longest, want.Args = "berth-default", 2, spec.Slots, !spec.Network, spec.MaxTimeout, config.SandboxdArgs
	want.SlotMemory, want.SlotPids, want.SlotCPUs, want.SlotDisk = spec.Limits.MemoryBytes, spec.Limits.Pids, spec.Limits.CPUs, spec.Limits.DiskBytes
	want, err = want.Complete()
	require.NoError(t, err)
	assert.Equal(t, want, got)
	assert.EqualValues(t, 512<<20, got.SlotMemory)
	assert.Equal(t, 30*time.Minute, got.Longest)

	config, err = orchestrator.Parse(nil, []string{"ORCHESTRATOR_PIDS=0"}, os.Stderr)
	require.NoError(t, err)
	got, _, err = jobs.PoolOf(map[string]string{"ORCHESTRATOR_PIDS": "0"})
	require.NoError(t, err)
	assert.EqualValues(t, 512, got.SlotPids, "there is no pool without a limit of processes")
	assert.Equal(t, got.SlotPids, config.Templates[0].Limits.Pids, "a deploy says 512, which is to make the same job")

	for name, value := range map[string]string{"ORCHESTRATOR_MEMORY": "1.5G", "ORCHESTRATOR_MAX_TIMEOUT": "0", "ORCHESTRATOR_SLOTS": "8K"} {
		_, _, err := jobs.PoolOf(map[string]string{name: value})
		require.ErrorContains(t, err, name)
		_, err = orchestrator.Parse(nil, []string{name + "=" + value}, os.Stderr)
		require.ErrorContains(t, err, name)
	}
}

// A number that the orchestrator does not start with makes no job, which is
// said before anything is deployed.
func TestATemplateHasTheBoundsOfTheOrchestratorsSettings(t *testing.T) {
	for _, c := range []struct {
		name        string
		least, most int
		with        string // what it takes beside itself
		says        string
	}{
		{"CONTAINERS", 0, 1 << 16, "", "count: want 0 to 65536"},
		{"SLOTS", 1, 2000, "", "slots: want 1 to 2000"},
		{"NOMAD_PRIORITY", 0, 1<<15 - 1, "", "priority: want"},
		{"NOMAD_CORES", 0, 1 << 10, "", "cores: want"},
		{"NOMAD_CPU", 1, 1 << 24, "", "cpu: want"},
		{"NOMAD_MEMORY", 10, 1 << 24, "", "memory: want 10 to"},
		{"NOMAD_MEMORY_MAX", 2000, 1 << 24, "NOMAD_MEMORY=2000", "memory-max: want 2000 to"},
		{"NOMAD_DISK", 10, 1 << 24, "", "disk: want 10 to"},
	} {
		for value, good := range map[int]bool{c.least: true, c.most: true, c.least - 1: false, c.most + 1: false} {
			if !good && value == 0 {
				continue // it means the default
			}
			env, environ := map[string]string{}, []string{"ORCHESTRATOR_BACKEND=nomad", "NOMAD_ADDR=http://127.0.0.1:1"}
			for _, kv := range []string{c.name + "=" + strconv.Itoa(value), c.with} {
				if name, text, found := strings.Cut(kv, "="); found {
					env["ORCHESTRATOR_"+name] = text
					environ = append(environ, "ORCHESTRATOR_"+kv)
				}
			}
			_, _, err := jobs.PoolOf(env)
			_, starts := orchestrator.Parse(nil, environ, os.Stderr)
			if good {
				require.NoError(t, err, environ)
				require.NoError(t, starts, environ)
				continue
			}
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, "got "+strconv.Itoa(value))
			require.Error(t, starts, environ)
		}
	}
}
