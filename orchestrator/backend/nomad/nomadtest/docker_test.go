package nomadtest_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator/backend/nomad/nomadtest"
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
	text, err := os.ReadFile(filepath.Join(dockertest.Images(), "docker", "client.hcl"))
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
		t, a.URL, "--nomad-driver", "docker", "--nomad-image", image, "--nomad-seccomp", filepath.Join(dockertest.Images(), "seccomp-slots.json"),
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
