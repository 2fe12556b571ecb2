package dockertest_test

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth/sandboxd/api"
	"berth/sandboxd/client"
	"berth/sandboxd/dockertest"
	"berth/slots/sandbox/sandboxtest"
)

// container is one sandboxd as PID 1 of a container.
type container struct {
	*client.Client
	id     string
	health api.Health
}

// start runs the agent of the tests in the engine's image, which has none.
func start(t *testing.T, e dockertest.Engine, options, flags []string) *container {
	t.Helper()
	options = append([]string{"--volume", sandboxtest.Agent(t) + ":/sandboxd:ro", "--entrypoint", "/sandboxd"}, options...)
	return startImage(t, e.Image, options, append([]string{"--data-dir", "/data/berth"}, flags...))
}

// startImage runs `sandboxd serve` of an image under the options of docker run
// and waits until its slots are ready. The container is removed when the test
// ends.
func startImage(t *testing.T, image string, options, flags []string) *container {
	t.Helper()
	args := slices.Concat([]string{"run", "--detach", "--publish", "127.0.0.1::8080"}, options,
		[]string{image, "serve", "--listen", "0.0.0.0:8080", "--insecure-no-auth", "--slots", "2"}, flags)
	id, err := dockertest.Docker(args...)
	require.NoError(t, err)
	c := &container{id: id}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.log())
		}
		if _, err := dockertest.Docker("rm", "--force", "--volumes", id); err != nil {
			t.Error(err)
		}
	})
	address, err := dockertest.Docker("port", id, "8080")
	require.NoError(t, err, c.log())
	address, _, _ = strings.Cut(address, "\n")
	c.Client, err = client.New(client.Config{URL: "http://" + address})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	for deadline := time.Now().Add(90 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		c.health, err = c.Health(t.Context())
		if err == nil && c.health.Status == api.HealthOK && c.health.Available == 2 {
			return c
		}
		running, inspectErr := dockertest.Docker("inspect", "--format", "{{.State.Running}}", id)
		if inspectErr != nil || running != "true" || time.Now().After(deadline) {
			t.Fatalf("not ready: %v, running %s, %+v", err, running, c.health)
		}
	}
}

func (c *container) log() string {
	out, err := exec.Command("docker", "logs", c.id).CombinedOutput()
	return fmt.Sprintf("%s%v", out, err)
}

// processes lists state and command line of every process in the container.
func (c *container) processes(t *testing.T) []string {
	t.Helper()
	out, err := dockertest.Docker("top", c.id, "-eo", "pid,stat,args")
	require.NoError(t, err)
	return strings.Split(out, "\n")[1:]
}
