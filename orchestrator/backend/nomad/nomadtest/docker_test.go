package nomadtest_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator/backend/nomad/nomadtest"
	"berth/orchestrator/client"
	"berth/orchestrator/poolapi"
	"berth/sandboxd/agenttest"
	"berth/sandboxd/dockertest"
)

// ownImage builds the image of the agent on a few programs of the machine, and
// returns its name. No registry has it.
func ownImage(t *testing.T, e dockertest.Engine) string {
	t.Helper()
	tag := dockertest.Tag(t)
	out, err := dockertest.Build(t, dockertest.Project(t), "ONLY=agent", "AGENT_BASE="+e.Image, "TAG="+tag)
	require.NoError(t, err, out)
	return "berth/agent:" + tag
}

// dockerClient is what images says that a client with Docker needs.
func dockerClient(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dockertest.Images(t), "docker", "client.hcl"))
	require.NoError(t, err)
	return string(text)
}

func TestAPoolOfDockerContainersScalesOutUnderLoadAndInWithLeasesHeld(t *testing.T) {
	t.Parallel()
	nomadtest.Program(t) // before images are made for nothing
	e := dockertest.Need(t)
	image := ownImage(t, e)
	a := nomadtest.Start(t, nomadtest.Config{Driver: string(jobs.Docker), Extra: dockerClient(t)})
	o := serve(
		t, a.URL, "--nomad-driver", "docker", "--nomad-image", image, "--nomad-seccomp", filepath.Join(dockertest.Images(t), "seccomp-slots.json"),
		"--containers", "1", "--max-containers", "3", "--slots", "2", "--idle-after", "1s", "--shrink-cooldown", "1s",
		"--isolation-require", e.Best().String(), // the jobs' options give no less
		// In a container the agent does not see which uids those outside use.
		"--sandboxd-arg", "--first-uid="+strconv.Itoa(agenttest.ClaimUIDs(t)),
	)
	o.settled(t, 1)
	l := begin(t, o.Client, 5)
	o.settled(t, 3)
	l.progress(t, 20)
	harmless(t, l.end(t))

	held := hold(t, o)
	few := begin(t, o.Client, 1)
	o.await(t, "one container", func() bool { return len(o.ids(t)) == 1 })
	harmless(t, few.end(t))
	require.Eventually(t, func() bool { return len(allocations(t, a)) == 1 }, patience, 200*time.Millisecond, "Nomad's count falls as well")
	assert.Equal(t, held.lease.Container, containerOf(t, a, allocations(t, a)[0].ID))
	assert.Equal(t, "kept", held.run(t, "cat f"))
	_, err := o.Release(t.Context(), held.lease.ID)
	require.NoError(t, err)
}

// orchestratorImage builds images, the orchestrator's among them, and finds the
// engine's network: an orchestrator in a container reaches its own from there, so
// not by the loopback.
func orchestratorImage(t *testing.T, e dockertest.Engine, only string) (tag, bridge string) {
	t.Helper()
	tag = dockertest.Tag(t)
	project := dockertest.Project(t)
	own, err := os.ReadFile(program(t, "orchestrator"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(project, "bin", "orchestrator"), own, 0o755)) //nolint:gosec // a program
	out, err := dockertest.Build(t, project, "ONLY="+only, "AGENT_BASE="+e.Image, "TAG="+tag)
	require.NoError(t, err, out)
	bridge, err = dockertest.Docker("network", "inspect", "bridge", "--format", `{{ index .Options "com.docker.network.bridge.name" }}`)
	require.NoError(t, err)
	return tag, bridge
}

// All of it is as images and jobs have it: the orchestrator's image and job,
// the policy that the job gets, and what the job says is to be done beside it.
func TestAPoolOfDockerIsKeptByAnOrchestratorInDocker(t *testing.T) {
	t.Parallel()
	nomadtest.Program(t)
	e := dockertest.Need(t)
	tag, bridge := orchestratorImage(t, e, "agent orchestrator")
	a := nomadtest.Start(t, nomadtest.Config{Driver: string(jobs.Docker), ACL: true, Network: bridge, Extra: dockerClient(t)})
	token := bootstrapped(t, a)

	file, err := jobs.OrchestratorFile(jobs.Template{
		Job: job, Image: "berth/agent:" + tag, Count: 1, Slots: 2, MemoryMB: 256, Isolation: e.Best().String(),
		Seccomp: filepath.Join(dockertest.Images(t), "seccomp-slots.json"), Args: []string{"--first-uid=" + strconv.Itoa(agenttest.ClaimUIDs(t))},
	})
	require.NoError(t, err)
	text, err := file.HCL()
	require.NoError(t, err)
	// A setting that is no flag of a deploy, as the guide says.
	text = bytes.Replace(text, []byte("ORCHESTRATOR_SLOTS "), []byte("ORCHESTRATOR_MAX_CONTAINERS = \"2\"\n        ORCHESTRATOR_SLOTS "), 1)
	require.Contains(t, string(text), "MAX_CONTAINERS")
	dir := t.TempDir()
	spec, policy := filepath.Join(dir, "job.hcl"), filepath.Join(dir, "policy.hcl")
	require.NoError(t, os.WriteFile(spec, text, 0o600))
	require.NoError(t, os.WriteFile(policy, []byte(jobs.Policy), 0o600))
	const secret = "of the callers"
	nomad := func(words ...string) {
		cmd := a.Command(words...)
		cmd.Env = append(cmd.Env, "NOMAD_TOKEN="+token)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	nomad("acl", "policy", "apply", "-namespace", "default", "-job", jobs.OrchestratorJob, "berth", policy)
	nomad("var", "put", jobs.VariablePath(jobs.OrchestratorJob), jobs.Secret+"="+secret)
	nomad("job", "run", "-var", "image=berth/orchestrator:"+tag, spec) // and waits until it is ready
	plan := exec.CommandContext(t.Context(), program(t, "berth"), "nomad", "plan", "orchestrator", "--orchestrator", "berth/orchestrator:"+tag, "--json=false")
	plan.Env = append(a.Command().Env, "NOMAD_TOKEN="+token)
	planned, err := plan.CombinedOutput()
	require.NoError(t, err, "the file and what is deployed without it are the same: %s", planned)
	here, _, err := a.Client.Services().Get(jobs.OrchestratorJob, nil)
	require.NoError(t, err)
	require.Len(t, here, 1)
	pool, err := client.New(client.Config{URL: fmt.Sprintf("http://%s:%d", here[0].Address, here[0].Port), Token: secret})
	require.NoError(t, err)
	lease, err := pool.Acquire(t.Context(), poolapi.LeaseRequest{Trajectory: "t", TTLSeconds: 600, WaitS: patience.Seconds()})
	require.NoError(t, err)
	result, err := pool.Execute(t.Context(), lease.ID, poolapi.Call{Tool: "bash", Args: []byte(`{"command": "echo a slot of Docker"}`)})
	require.NoError(t, err)
	assert.Equal(t, "a slot of Docker", result.Output)
	_, err = pool.Release(t.Context(), lease.ID)
	require.NoError(t, err)

	id, err := dockertest.Docker("ps", "--quiet", "--filter", "ancestor=berth/orchestrator:"+tag)
	require.NoError(t, err)
	who, err := dockertest.Docker("top", id, "-eo", "pid,uid")
	require.NoError(t, err)
	lines := strings.Split(who, "\n")[1:]
	require.NotEmpty(t, lines)
	for _, line := range lines {
		assert.Equal(t, "65532", strings.Fields(line)[1], "nothing of it is root's")
	}
	nomad("job", "stop", "-purge", jobs.OrchestratorJob) // else it registers its pool again when that is stopped
}
