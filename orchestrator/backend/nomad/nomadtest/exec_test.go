package nomadtest_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth/jobs"
	"berth/orchestrator/backend/nomad/nomadtest"
	"berth/sandboxd/dockertest"
	"berth/slots/need"
	"berth/slots/sandbox/sandboxtest"
)

// execClient has tasks of the driver exec see the agent and a few programs, and
// not all of /usr, which takes Nomad longer to link than the test to run.
func execClient(t *testing.T) string {
	t.Helper()
	files, err := dockertest.Files()
	require.NoError(t, err)
	files["/usr/local/bin/sandboxd"] = sandboxtest.Agent(t)
	var text strings.Builder
	for at, path := range files {
		path, err = filepath.EvalSymlinks(path)
		require.NoError(t, err)
		fmt.Fprintf(&text, "    %q = %q\n", path, at)
	}
	return "client {\n  chroot_env {\n" + text.String() + "  }\n}\n"
}

// needExec says that the test takes a Nomad with the driver exec.
func needExec(t *testing.T, a *nomadtest.Agent) {
	t.Helper()
	node, _, err := a.Client.Nodes().Info(a.NodeID(), nil)
	require.NoError(t, err)
	driver := node.Drivers[string(jobs.Exec)]
	switch {
	case driver == nil:
		err = errors.New("this nomad has no driver exec: it was built without cgo")
	case !driver.Healthy:
		err = errors.New(driver.HealthDescription)
	}
	need.Facility(t, "nomad-exec", err)
}

func TestAPoolOfTheDriverExec(t *testing.T) {
	t.Parallel()
	nomadtest.Program(t)
	a := nomadtest.Start(t, nomadtest.Config{Extra: execClient(t)})
	needExec(t, a)
	o := serve(
		t, a.URL, "--nomad-driver", "exec", "--sandboxd", "/usr/local/bin/sandboxd", "--isolation-require", "ns",
		"--containers", "1", "--max-containers", "2", "--slots", "2", "--idle-after", "1s", "--shrink-cooldown", "1s",
	)
	o.settled(t, 1)
	l := begin(t, o.Client, 4)
	o.settled(t, 2)
	l.progress(t, 10)
	harmless(t, l.end(t))
	held := hold(t, o)
	o.await(t, "one container", func() bool { return len(o.ids(t)) == 1 })
	assert.Equal(t, "kept", held.run(t, "cat f"))
	_, err := o.Release(t.Context(), held.lease.ID)
	require.NoError(t, err)
}
